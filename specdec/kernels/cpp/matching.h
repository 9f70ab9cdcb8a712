// The verdict of the rule "sample_and_match": at a node an id is drawn from the target's law, and the walk goes on into
// the first child that carries it. If none does, it stops there, and that id follows.
#pragma once

#include "verdicts.h"

namespace specdec {

// What the children of a node leave of the target's law there.
template <class T>
class Matching : public Walking {
  public:
    explicit Matching(int64_t size) : size_(size), room_(new T[size_t(size)]) {}

    // See `Offering`.
    void share(const Row& row, int64_t node, const LawOf<T>& target, double* probs) {
        double entered = 0;
        const double left = match(row, node, target, [&](int64_t child, double mass) {
            probs[child + 1] = mass;
            entered += mass;
        });
        const double scale = probs[node] / (left + entered);
        row.each_child(node, [&](int64_t child) { probs[child + 1] *= scale; });
        probs[node] = left * scale;
    }

    // The law of the id that follows if no child carries it, but for its sum; the target's law if nothing is left.
    LawOf<T> after(const Row& row, int64_t node, const LawOf<T>& target) {
        const double left = match(row, node, target, [](int64_t, double) {});
        return target.probs && left > 0 ? LawOf<T>(static_cast<const T*>(room_.get())) : target;
    }

  private:
    // Take the ids of a scored node's children out of the law, and call `tell` for each child with the probability that
    // the law still gave its id: 0 if an elder one carries it too. Returns the mass that is left.
    template <class Tell>
    double match(const Row& row, int64_t node, const LawOf<T>& target, Tell tell) {
        T* rest = nullptr;
        if (target.probs) rest = std::copy(target.probs, target.probs + size_, room_.get()) - size_;
        T point = 1;
        row.each_child(node, [&](int64_t child) {
            const int64_t id = row.tokens[child];
            T none = 0;
            T& mass = rest ? rest[id] : id == target.point ? point : none;
            tell(child, double(mass));
            mass = 0;
        });
        return rest ? sum_of(rest, size_) : double(point);
    }

    const int64_t size_;
    const std::unique_ptr<T[]> room_;
};

}  // namespace specdec
