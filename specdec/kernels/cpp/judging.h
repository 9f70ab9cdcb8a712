// A whole verdict: laws of the logits, where the walk stops, the id that follows.
//
// It is what `laws.h`, `verdicts.h` or `matching.h`, and `draws.h` compute one after the other, but of no node beyond
// the stop, and of none that the walk cannot reach.
#pragma once

#include <memory>

#include "draws.h"
#include "matching.h"
#include "verdicts.h"
#include "walks.h"

namespace specdec {

// How the target's laws decide: what is drafted is offered (the rules "standard" and "multi_draft"); an id is drawn and
// matched by numbers of the step, or, in coupled mode, by a race at each node.
enum Way : int64_t { OFFERED, MATCHED, RACED };

// What drafts are judged by: all but the peaks and the likeliest ids of the logits, which walks read too.
struct Scored {
    const void* logits;      // [batch][width][size], of the peaks' type
    Laws drawn;              // [batch][width - 1] what ids were drawn from; table null: they were chosen
    const uint8_t* without;  // [batch][width - 1] or null: drawn without its elder siblings
    double tolerance;        // how far from 1 the sum of a law that was drawn from may be
    int64_t size, way, stop, next;  // ids in the vocabulary; a `Way`; the codes of what is drawn
};

// How rows are sampled, and by which numbers.
struct Asked {
    const double* sampling;  // temperatures, top_k, top_p and min_p, [batch] each; temperature 0: the likeliest id
    const int64_t* path;     // of `words` numbers; see `key_at`. Races: keys [batch], positions [batch]
    int64_t words;
    const double* uniforms;  // [batch][2] numbers on [0, 1) for the stop and for the next id; null: the path gives them
};

// Where a walk stops, and the id that follows; -1 if a law on the way is none.
struct End {
    int64_t stop, id;
};

template <class T>
class Judge {
  public:
    Judge(const Drafts& of, const Scored& by, const Asked& ask)
        : of_(of),
          by_(by),
          ask_(ask),
          law_(new T[size_t(by.size)]),
          keys_(new Bits<T>[size_t(by.size)]),
          stops_(new double[size_t(of.width)]) {}

    // Go on with another row. Returns whether its ids are ids, and their declared laws such that they were drawn from
    // them.
    bool open(int64_t row) {
        row_ = row, at_ = -1;
        bool is_sound = true;
        for (int64_t node = 1; node < of_.width; ++node) is_sound &= is_id(token(node)) && has_row(node);
        if (!by_.drawn.table) return is_sound;
        for (int64_t node = 1; is_sound && node < of_.sizes[row]; ++node) is_sound = is_declared(node);
        return is_sound;
    }

    // The end of a walk that is drawn, once its row is open, whose law `rule` tells.
    template <class Rule>
    End drawn(Rule& rule) {
        const int64_t stop = drawn_stop(rule);
        return {stop, stop < 0 ? -1 : next(rule, stop)};
    }

    // The end of a walk into the children that carry the ids which races draw.
    End raced(const Walk& walk) {
        for (int64_t node = 0, depth = 0;; ++depth) {
            const int64_t id = winner(node, depth), child = id < 0 ? 0 : walk.next(node, id);
            if (!child) return {node, id};
            node = child;
        }
    }

    // Write with which probability a walk stops at each node, [width], and what follows after a stop there but for the
    // sum, [width][size]; zeros at padding. `drawn` draws from these numbers.
    template <class Rule>
    void tell(Rule& rule, double* stops, T* next) {
        const Row row = drafted();
        std::fill(stops, stops + of_.width, 0.0);
        std::fill(next, next + of_.width * by_.size, T(0));
        stops[0] = 1;
        for (int64_t node = 0; node < of_.sizes[row_]; ++node) {
            if (stops[node] != 0 && has_children(row, node)) share(rule, row, node, law(node), stops);
            const LawOf<T> left = rule.after(row, node, law(node));
            for (int64_t id = 0; id < by_.size; ++id) next[node * by_.size + id] = left.of(id);
        }
    }

  private:
    // The node where a walk stops; -1 if a law on the way is none.
    //
    // What is drawn is where the running sum of the nodes' probabilities exceeds a part of their total, which is 1 but
    // for rounding. Nodes after a sum that exceeds it clearly change nothing. Within a margin around it they are all
    // computed; the margin is far wider than rounding, so that many rows of a test fall into it.
    template <class Rule>
    int64_t drawn_stop(Rule& rule) {
        constexpr double MARGIN = 0x1p-7;
        const double part = number(0, by_.stop);
        const Row row = drafted();
        std::fill(stops_.get(), stops_.get() + of_.width, 0.0);
        stops_[0] = 1;
        double sum = 0;
        bool is_close = false;
        for (int64_t node = 0; node < of_.sizes[row_]; ++node) {
            if (stops_[node] != 0 && has_children(row, node)) share(rule, row, node, law(node), stops_.get());
            sum += stops_[node];
            if (std::isnan(sum)) return -1;
            if (!is_close && sum > part + MARGIN) return node;
            is_close |= sum > part - MARGIN;
        }
        return Running<double>(stops_.get(), of_.width).draw(part);
    }

    // The id that follows after a stop; -1 if the law there is none.
    template <class Rule>
    int64_t next(Rule& rule, int64_t stop) {
        const LawOf<T> target = law(stop);
        if (!target.probs) return target.point;  // what is rejected is another id
        if (std::isnan(target.probs[0])) return -1;
        return Running<T>(rule.after(drafted(), stop, target).probs, by_.size).draw(number(1, by_.next));
    }

    // The id that a race draws at a node of some depth; -1 if the law there is none.
    int64_t winner(int64_t node, int64_t depth) {
        const LawOf<T> target = law(node);
        if (!target.probs) return target.point;
        if (std::isnan(target.probs[0])) return -1;
        const int64_t *keys = ask_.path, *positions = keys + of_.batch;
        const uint64_t position = uint64_t(positions[row_]) + uint64_t(depth);
        int64_t id;
        race(target.probs, by_.size, extended(uint64_t(keys[row_]), position), 1, &id);
        return id;
    }

    int64_t token(int64_t node) const { return of_.tokens[row_ * of_.width + node]; }
    bool is_id(int64_t id) const { return id >= 0 && id < by_.size; }

    // The row's number for a draw, the first (0) or the second (1): given, or the one that its stream has for a purpose.
    double number(int64_t draw, int64_t purpose) const {
        if (ask_.uniforms) return ask_.uniforms[2 * row_ + draw];
        const uint64_t stream = key_at(ask_.path, ask_.words, of_.batch, row_);
        return uniform(extended(extended(extended(stream, uint64_t(purpose)), 0), 0));
    }

    int64_t place(int64_t node) const { return row_ * (of_.width - 1) + node - 1; }

    // The row's drafted nodes.
    Row drafted() const {
        const int64_t scored = row_ * of_.width + 1, first = place(1);
        const auto at = [](auto* numbers, int64_t place) { return numbers ? numbers + place : nullptr; };
        return {of_.tokens + scored, at(of_.parents, scored), at(of_.scouts, first), at(by_.without, first),
                at(of_.sources, first), of_.sizes[row_] - 1, by_.drawn, first};
    }

    static bool has_children(const Row& row, int64_t node) {
        bool some = false;
        for (int64_t child = node; child < row.count; ++child) some |= row.parent(child) == node;
        return some;
    }

    // Whether the table has the row that a node's index names, if it names one.
    bool has_row(int64_t node) const {
        return !by_.drawn.table || by_.drawn.index[place(node)] < by_.drawn.rows;
    }

    bool is_declared(int64_t node) const {
        const LawOf<T> law(by_.drawn, place(node), by_.size);
        if (!(law.of(token(node)) > 0)) return false;
        return !law.probs || std::abs(sum_of(law.probs, by_.size) - 1) <= by_.tolerance;
    }

    // The target's law at a node of the row; the one before is overwritten.
    LawOf<T> law(int64_t node) {
        const int64_t batch = of_.batch, at = row_ * of_.width + node;
        const double* own = ask_.sampling + row_;
        if (!(own[0] > 0)) return LawOf<T>(of_.ids[at]);
        if (at != at_) {
            const Sampling ask{own[0], own[batch], own[2 * batch], own[3 * batch]};
            specdec::law(static_cast<const T*>(by_.logits) + at * by_.size, by_.size, ask, law_.get(), keys_.get());
            at_ = at;
        }
        return LawOf<T>(law_.get());
    }

    const Drafts& of_;
    const Scored& by_;
    const Asked& ask_;
    int64_t row_ = 0, at_ = -1;  // which of all nodes `law_` is of
    const std::unique_ptr<T[]> law_;
    const std::unique_ptr<Bits<T>[]> keys_;
    const std::unique_ptr<double[]> stops_;
};

// Call `with` the rule that a way stands for.
template <class T, class With>
bool by_way(const Scored& scored, With with) {
    if (scored.way == MATCHED) return with(Matching<T>(scored.size));
    return with(Offering<T>(scored.size));
}

// Write what walks are drawn from: see `Judge::tell`. Returns whether every row is sound.
template <class T>
bool tell(const Drafts& drafts, const Scored& scored, const Asked& asked, const Bounds& bounds, const Walked& to,
          double* stops, T* next) {
    Judge<T> judge(drafts, scored, asked);
    return by_way<T>(scored, [&](auto rule) {
        for (int64_t row = 0; row < drafts.batch; ++row) {
            if (!Walk{drafts, bounds, to, row}.is_sound() || !judge.open(row)) return false;
            judge.tell(rule, stops + row * drafts.width, next + row * drafts.width * scored.size);
        }
        return true;
    });
}

// Returns whether every row is sound; if one is not, what is written means nothing.
template <class T>
bool judge(const Drafts& drafts, const Scored& scored, const Asked& asked, const Bounds& bounds, const Walked& to) {
    Judge<T> judge(drafts, scored, asked);
    const auto all = [&](auto end_of) {
        for (int64_t row = 0; row < drafts.batch; ++row) {
            const Walk walk{drafts, bounds, to, row};
            if (!walk.is_sound() || !judge.open(row)) return false;
            const End end = end_of(walk);
            if (end.id < 0) return false;
            walk.end(end.stop, walk.lead(end.stop), end.id);
        }
        return true;
    };
    if (scored.way == RACED) return all([&](const Walk& walk) { return judge.raced(walk); });
    return by_way<T>(scored, [&](auto rule) { return all([&](const Walk&) { return judge.drawn(rule); }); });
}

}  // namespace specdec
