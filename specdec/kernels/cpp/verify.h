// A whole verdict: laws of the logits, where the walk stops, the id that follows.
//
// It is what `laws.h`, `verdicts.h` or `matching.h`, and `draws.h` compute one after the other, but for no node beyond
// the stop, and for none that the walk cannot reach.
#pragma once

#include <memory>

#include "draws.h"
#include "matching.h"
#include "standing.h"
#include "verdicts.h"
#include "walks.h"

namespace specdec {

// How the target's laws decide: what is drafted is offered (the rules "standard" and "multi_draft"); an id is drawn and
// matched by numbers of the step, or, in coupled mode, by a race at each node; whole paths are asked whether they stand
// (the rules "block" and "traversal").
enum Way : int64_t { OFFERED, MATCHED, RACED, STANDING };

// What drafts are verified by: all but the peaks and the likeliest ids of the logits, which walks read too.
struct Target {
    const void* logits;      // [batch][width][size] or null: laws are given; of the peaks' type
    const double* filters;   // [filters][batch] or null: lists of `Sampling`; temperature 0: the likeliest id
    Laws laws;               // of all nodes; index null: they are made of the logits
    Laws drawn;              // of all nodes but the root; index null: ids were chosen
    const uint8_t* without;  // [batch][width - 1] or null: drawn without its elder siblings
    const int64_t* path;     // [words] or null: see `Judge::number`. Races: keys [batch], positions [batch]
    const double* uniforms;  // [batch][2] or null: numbers on [0, 1) for the stop and for the next id
    double tolerance;        // how far from 1 the sum of a law that was drawn from may be
    int64_t size, way, words;
};

template <class T>
class Judge {
  public:
    Judge(const Drafts& of, const Target& by, Fault& fault)
        : of_(of),
          by_(by),
          fault_(fault),
          law_(new T[size_t(by.size)]),
          keys_(new Bits<T>[size_t(by.size)]),
          stops_(new double[size_t(of.width)]) {}

    // Go on with another row. Report ids outside the vocabulary, and declared laws that cannot have been drawn from.
    void open(const Walk& walk) {
        row_ = walk.row, at_ = -1;
        const int64_t size = walk.is_counted() ? of_.sizes[row_] : 0, root = row_ * of_.width;
        for (int64_t node = 0; by_.laws.index && node < of_.width; ++node)
            if (by_.laws.index[root + node] >= by_.laws.rows) fault_.tell(LOGITS, row_, node);
        for (int64_t node = 1; node < of_.width; ++node) {
            const bool is_known = is_id(token(node));
            if (!is_known) fault_.tell(TOKEN, row_, node);
            if (!by_.drawn.index) continue;
            if (by_.drawn.index[place(node)] >= by_.drawn.rows)
                fault_.tell(TABLE, row_, node);
            else if (is_known && node < size && !is_declared(node))
                fault_.tell(LAW, row_, node);
        }
    }

    // The end of a walk that is drawn, once its row is open, whose law `rule` tells.
    template <class Rule>
    End drawn(Rule& rule) {
        const int64_t stop = draw_stop(rule);
        return {stop, next(rule, stop)};
    }

    // The end of a walk into the children that carry the ids which races draw.
    End raced(const Walk& walk) {
        return walk.to_end([&](int64_t node, int64_t depth) { return winner(node, depth); });
    }

    // Write the probability that a walk stops at each node, [width], and what follows after a stop there but for the
    // sum, [width][size]; zeros at padding. `drawn` draws from these numbers.
    template <class Rule>
    void tell(Rule& rule, double* stops, T* next) {
        const Row row = drafted();
        begin(rule, stops);
        std::fill(next, next + of_.width * by_.size, T(0));
        for (int64_t node = 0; node < of_.sizes[row_]; ++node) {
            pass(rule, row, node, stops);
            const LawOf<T> left = rule.after(row, node, law(node));
            for (int64_t id = 0; id < by_.size; ++id) next[node * by_.size + id] = left.of(id);
        }
        rule.settle(row, stops);
    }

  private:
    // Begin with a row at its root.
    template <class Rule>
    void begin(Rule& rule, double* stops) {
        rule.open();
        std::fill(stops, stops + of_.width, 0.0);
        stops[0] = 1;
    }

    // Pass what a node has on to its children, if it has anything and any children.
    template <class Rule>
    void pass(Rule& rule, const Row& row, int64_t node, double* stops) {
        if (stops[node] != 0 && has_children(row, node)) rule.share(row, node, law(node), stops);
    }

    // The node where a walk stops.
    //
    // What is drawn is where the running sum of the nodes' probabilities exceeds a part of their total, which is 1 but
    // for rounding. Nodes after a sum that exceeds it clearly change nothing, unless `settle` decides. Within a margin
    // around it they are all computed; the margin is far wider than rounding, so that many rows of a test fall into it.
    template <class Rule>
    int64_t draw_stop(Rule& rule) {
        constexpr double MARGIN = 0x1p-7;
        const double part = number(0);
        const Row row = drafted();
        begin(rule, stops_.get());
        double sum = 0;
        bool is_close = !Rule::WALKS;
        for (int64_t node = 0; node <= row.count; ++node) {
            pass(rule, row, node, stops_.get());
            sum += stops_[node];
            if (std::isnan(sum)) return fault_.tell(LOGITS, row_, node), node;
            if (!is_close && sum > part + MARGIN) return node;
            is_close |= sum > part - MARGIN;
        }
        rule.settle(row, stops_.get());
        return Running<double>(stops_.get(), of_.width).draw(part);
    }

    // The id that follows after a stop.
    template <class Rule>
    int64_t next(Rule& rule, int64_t stop) {
        const LawOf<T> target = law(stop);
        if (!target.probs) return target.point;  // what is rejected is another id
        return Running<T>(rule.after(drafted(), stop, target).probs, by_.size).draw(number(1));
    }

    // The id that a race draws at a node of some depth.
    int64_t winner(int64_t node, int64_t depth) {
        const LawOf<T> target = law(node);
        if (!target.probs) return target.point;
        const int64_t *keys = by_.path, *positions = keys + of_.batch;
        const uint64_t position = uint64_t(positions[row_]) + uint64_t(depth);
        int64_t id;
        race(target.probs, by_.size, extended(uint64_t(keys[row_]), position), 1, &id);
        return id;
    }

    int64_t token(int64_t node) const { return of_.tokens[row_ * of_.width + node]; }
    bool is_id(int64_t id) const { return id >= 0 && id < by_.size; }

    // The row's number for a draw, of the stop (0) or of the next id (1): given, or the one that its stream has for a
    // purpose. The path ends with the codes of both purposes.
    double number(int64_t draw) const {
        if (by_.uniforms) return by_.uniforms[2 * row_ + draw];
        const uint64_t stream = key_at(by_.path, by_.words - 2, of_.batch, row_);
        const uint64_t purpose = uint64_t(by_.path[by_.words - 2 + draw]);
        return uniform(extended(extended(extended(stream, purpose), 0), 0));
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

    bool is_declared(int64_t node) const {
        const LawOf<T> law(by_.drawn, place(node), by_.size);
        if (!(law.of(token(node)) > 0)) return false;
        return !law.probs || std::abs(sum_of(law.probs, by_.size) - 1) <= by_.tolerance;
    }

    // The target's law at a node of the row; the one before is overwritten. Reports logits that make no law.
    LawOf<T> law(int64_t node) {
        const int64_t at = row_ * of_.width + node;
        if (by_.laws.index) return LawOf<T>(by_.laws, at, by_.size);
        const Sampling ask = Sampling::of(by_.filters, of_.batch, row_);
        if (!(ask.temperature > 0)) return LawOf<T>(of_.ids[at]);
        if (at != at_) {
            specdec::law(static_cast<const T*>(by_.logits) + at * by_.size, by_.size, ask, law_.get(), keys_.get());
            at_ = at;
            if (std::isnan(law_[0])) fault_.tell(LOGITS, row_, node);
        }
        return LawOf<T>(law_.get());
    }

    const Drafts& of_;
    const Target& by_;
    Fault& fault_;
    int64_t row_ = 0, at_ = -1;  // which of all nodes `law_` is of
    const std::unique_ptr<T[]> law_;
    const std::unique_ptr<Bits<T>[]> keys_;
    const std::unique_ptr<double[]> stops_;
};

// Call `with` the rule that a way stands for. If all ids were chosen, offering and standing have one law.
template <class T, class With>
void by_way(const Drafts& drafts, const Target& target, With with) {
    if (target.way == MATCHED)
        with(Matching<T>(target.size));
    else if (target.way == STANDING && target.drawn.index)
        with(Standing<T>(target.size, drafts.width));
    else
        with(Offering<T>(target.size));
}

// Go through the rows; `work` on those that have no fault and come after none. If a fault is reported, what is written
// means nothing.
template <class T, class Work>
void each_sound_row(const Drafts& drafts, const Written& to, Judge<T>& judge, Fault& fault, Work work) {
    for (int64_t row = 0; row < drafts.batch; ++row) {
        const Walk walk{drafts, to, row};
        walk.check(fault);
        judge.open(walk);
        if (!fault.code) work(walk);
    }
}

// Write what walks are drawn from: see `Judge::tell`.
template <class T>
void tell(const Drafts& drafts, const Target& target, const Written& to, Fault& fault, double* stops, T* next) {
    Judge<T> judge(drafts, target, fault);
    by_way<T>(drafts, target, [&](auto rule) {
        each_sound_row(drafts, to, judge, fault, [&](const Walk& walk) {
            judge.tell(rule, stops + walk.row * drafts.width, next + walk.row * drafts.width * target.size);
        });
    });
}

// Write what becomes of drafts whose ids the target's laws decide about.
template <class T>
void verify(const Drafts& drafts, const Target& target, const Written& to, Fault& fault) {
    Judge<T> judge(drafts, target, fault);
    const auto all = [&](auto end_of) {
        each_sound_row(drafts, to, judge, fault, [&](const Walk& walk) {
            const End end = end_of(walk);
            if (!fault.code) walk.write(end);
        });
    };
    if (target.way == RACED) return all([&](const Walk& walk) { return judge.raced(walk); });
    by_way<T>(drafts, target, [&](auto rule) { all([&](const Walk&) { return judge.drawn(rule); }); });
}

}  // namespace specdec
