// The verdicts of the rules "standard" and "multi_draft": the children of a node are offered one after the other. Each
// is accepted with the probability that the target's law gives its id, over that of the law that it was drawn from, and
// after a rejection what is left of the target's law goes on.
#pragma once

#include <cmath>
#include <limits>
#include <memory>

#include "laws.h"

namespace specdec {

// Laws of nodes: a row of the table each, or (index -1) a point.
struct Laws {
    const void* table;     // [rows][size] or null: all are points
    const int64_t* index;  // [batch][nodes] or null: there are none
    const int64_t* point;  // [batch][nodes] or null: there are none
    int64_t rows;
};

// One law.
template <class T>
struct LawOf {
    const T* probs;  // null: all on the point
    int64_t point;

    LawOf(const Laws& laws, int64_t at, int64_t size)
        : probs(laws.index[at] < 0 ? nullptr : static_cast<const T*>(laws.table) + laws.index[at] * size),
          point(laws.point[at]) {}
    explicit LawOf(int64_t id) : probs(nullptr), point(id) {}
    explicit LawOf(const T* law) : probs(law), point(0) {}
    T of(int64_t id) const { return probs ? probs[id] : T(id == point); }
};

// Whether a law gives any id more than another does.
template <class T>
bool exceeds(const LawOf<T>& law, const LawOf<T>& other, int64_t size) {
    if (!law.probs) return other.of(law.point) < T(1);
    if (!other.probs) return law.probs[other.point] < T(1);
    // Mostly the first ids tell; a loop that may end at each of them is not compiled to wide instructions.
    bool some = false;
    for (int64_t begin = 0; begin < size && !some; begin += GROUP)
        for (int64_t id = begin; id < std::min(begin + GROUP, size); ++id) some |= law.probs[id] > other.probs[id];
    return some;
}

// The probability that an id stands once it is reached. One that was drawn from a law with nothing left beside it
// stands: the ratio is 1 up to rounding there. If the target's law is a point, ids are compared.
template <class T>
double acceptance(const LawOf<T>& target, const LawOf<T>& drawn, bool is_chosen, int64_t id, int64_t size) {
    const double p = double(target.of(id));
    if (is_chosen) return p > 1 ? 1 : p;
    if (target.probs && !exceeds(target, drawn, size)) return std::isnan(p) ? p : 1;
    const double ratio = p / std::max(double(drawn.of(id)), std::numeric_limits<double>::min());
    return ratio > 1 ? 1 : ratio;
}

// The drafted nodes of a row, and what their ids were drawn from.
struct Row {
    const int64_t *tokens, *above;     // above: where the parent is scored; null for chains
    const uint8_t *scouts, *without;   // or null: never entered; drawn without its elder siblings
    const int64_t* sources;            // or null: whose siblings these are
    int64_t count;                     // nodes that are real
    const Laws& drawn;
    int64_t first;                     // its first law among them

    int64_t parent(int64_t node) const { return above ? above[node] : node; }

    // Go through the children of a scored node that a walk may enter.
    template <class Visit>
    void each_child(int64_t node, Visit visit) const {
        for (int64_t child = node; child < (above ? count : std::min(count, node + 1)); ++child)
            if (parent(child) == node && !(scouts && scouts[child])) visit(child);
    }
    bool is_elder(int64_t elder, int64_t node) const {
        return above[elder] == above[node] && (!sources || sources[elder] == sources[node]);
    }
};

// What is left of the target's law at a node while its children take from it what they were drawn from.
template <class T>
class Leftover {
  public:
    explicit Leftover(int64_t size) : size(size), left_(int64_t(0)), room_(new T[size_t(3 * size)]) {}
    const int64_t size;

    // Begin with the law of a node.
    void open(const LawOf<T>& target) { left_ = target, has_pending_ = false; }

    // The law that is left, until the next child takes from it.
    const LawOf<T>& law() {
        if (has_pending_ && left_.probs) settle();
        has_pending_ = false;
        return left_;
    }

    // What a child's id was drawn from, given its elder siblings.
    LawOf<T> drawn_from(const Row& row, int64_t child) {
        if (!row.drawn.index) return LawOf<T>(row.tokens[child]);
        const LawOf<T> law(row.drawn, row.first + child, size);
        if (!law.probs || !row.above || !row.without || !row.without[child]) return law;
        T* narrowed = nullptr;
        for (int64_t elder = row.above[child]; elder < child; ++elder) {
            if (!row.is_elder(elder, child)) continue;
            if (!narrowed) narrowed = std::copy(law.probs, law.probs + size, room(2)) - size;
            narrowed[row.tokens[elder]] = 0;
        }
        return narrowed && normalise(narrowed) ? LawOf<T>(static_cast<const T*>(narrowed)) : law;
    }

    // Take what a child was drawn from out of `weight` times the law, if that leaves anything. A point stays a point.
    void take(const LawOf<T>& drawn, double weight) { pending_ = drawn, weight_ = T(weight), has_pending_ = true; }

  private:
    T* room(int place) { return room_.get() + place * size; }

    void settle() {
        T* rest = room(left_.probs == room(0) ? 1 : 0);
        if (pending_.probs)
            for (int64_t id = 0; id < size; ++id) rest[id] = std::max(weight_ * left_.probs[id] - pending_.probs[id], T(0));
        else
            std::copy(left_.probs, left_.probs + size, rest)[pending_.point - size] = 0;
        if (normalise(rest)) left_ = LawOf<T>(static_cast<const T*>(rest));
    }

    // Divide numbers by their sum; false if it is not above 0.
    bool normalise(T* numbers) const {
        const T sum = T(sum_of(numbers, size));
        if (!(sum > 0)) return false;
        for (int64_t id = 0; id < size; ++id) numbers[id] /= sum;
        return true;
    }

    LawOf<T> left_, pending_{int64_t(0)};
    T weight_ = 1;
    bool has_pending_ = false;
    const std::unique_ptr<T[]> room_;  // for two laws that are left, in turn, and one that is narrowed
};

// A rule whose walk knows at each node whether it stops there. Others say in `settle` what becomes of a row's numbers.
struct Walking {
    static constexpr bool WALKS = true;

    void open() {}
    void settle(const Row&, double*) {}
};

// The children of a node are offered one after the other.
template <class T>
class Offering : public Walking {
  public:
    explicit Offering(int64_t size) : left_(size) {}

    // Offer the children of a node that the walk stands at with the probability `probs[node]`: write the probability
    // that it stops there, and that it goes on into each.
    void share(const Row& row, int64_t node, const LawOf<T>& target, double* probs) {
        double waiting = probs[node];
        offer(row, node, target, [&](int64_t child, double accept) {
            probs[child + 1] = waiting * accept;
            waiting *= 1 - accept;
        });
        probs[node] = waiting;
    }

    // What the children of a node leave if all were rejected.
    LawOf<T> after(const Row& row, int64_t node, const LawOf<T>& target) {
        offer(row, node, target, [](int64_t, double) {});
        return left_.law();
    }

  private:
    // Offer the children of a scored node, and call `tell` for each with the probability that it stands if it is
    // offered.
    template <class Tell>
    void offer(const Row& row, int64_t node, const LawOf<T>& target, Tell tell) {
        left_.open(target);
        row.each_child(node, [&](int64_t child) {
            const LawOf<T> law = left_.law(), drawn = left_.drawn_from(row, child);
            left_.take(drawn, 1);
            tell(child, acceptance(law, drawn, !row.drawn.index, row.tokens[child], left_.size));
        });
    }

    Leftover<T> left_;
};

}  // namespace specdec
