// The verdicts of the rules "block" and "traversal": whole paths are asked before their beginnings.
//
// A node has a weight, the probability that the walk stops at it or below; the root's is 1. Its children take from the
// node's law and weight, one after the other. Then each node stands with the weight that its children have left it, and
// the walk stops at the first that stands, asked from the leaves to the root.
#pragma once

#include <algorithm>
#include <vector>

#include "verdicts.h"

namespace specdec {

// By how much `weight` times a law exceeds another law, summed over the ids where it does.
template <class T>
double excess(const LawOf<T>& law, double weight, const LawOf<T>& other, int64_t size) {
    if (!law.probs) return std::max(weight - double(other.of(law.point)), 0.0);
    if (!other.probs) return weight * (1 - double(law.of(other.point)));
    const T part = T(weight);
    const int64_t full = size / GROUP * GROUP;
    T more[GROUP];
    Sums sums{};
    for (int64_t begin = 0; begin < full; begin += GROUP) {
        for (int i = 0; i < GROUP; ++i) more[i] = std::max(part * law.probs[begin + i] - other.probs[begin + i], T(0));
        accumulate(sums, more);
    }
    std::fill(more, more + GROUP, T(0));
    for (int64_t id = full; id < size; ++id) more[id - full] = std::max(part * law.probs[id] - other.probs[id], T(0));
    accumulate(sums, more);
    return total(sums);
}

// For drafts whose ids were drawn; if all were chosen, `Offering` has the same law and computes less.
template <class T>
class Standing {
  public:
    static constexpr bool WALKS = false;

    Standing(int64_t size, int64_t width)
        : left_(size), taken_(size_t(width)), none_(size_t(width)), asked_(size_t(width)) {}

    // Begin with a row.
    void open() { std::fill(taken_.begin(), taken_.end(), 0.0); }

    // Let the children of a scored node of weight `probs[node]` take from it: write what they leave, and their own.
    void share(const Row& row, int64_t node, const LawOf<T>& target, double* probs) {
        constexpr double LEAST = std::numeric_limits<double>::min();
        double weight = probs[node];
        left_.open(target);
        row.each_child(node, [&](int64_t child) {
            const LawOf<T> law = left_.law(), drawn = left_.drawn_from(row, child);
            const int64_t id = row.tokens[child];
            const bool is_whole = weight == 1;
            const double more = excess(law, weight, drawn, left_.size);
            const double ratio = weight * double(law.of(id)) / std::max(double(drawn.of(id)), LEAST);
            // Drawn from a law with nothing left beside it, an id stands: the ratio is 1 up to rounding there.
            probs[child + 1] = ratio > 1 || (is_whole && law.probs && more == 0) ? 1 : ratio;
            left_.take(drawn, taken_[size_t(child)] = weight);
            // The sum is in this order so that 1 stays exactly 1. If the target's law is a point, ids are compared.
            if (law.probs || !is_whole) weight = more / std::max(more + (1 - weight), LEAST);
        });
        probs[node] = weight;
    }

    // Ask whether nodes stand: write the probability that each is the first that does, in place of the weights.
    void settle(const Row& row, double* probs) {
        std::fill(asked_.begin(), asked_.end(), 1.0);
        for (int64_t node = 0; node <= row.count; ++node) none_[size_t(node)] = 1 - probs[node];
        for (int64_t child = row.count - 1; child >= 0; --child)
            none_[size_t(row.parent(child))] *= none_[size_t(child + 1)];
        for (int64_t child = 0; child < row.count; ++child) {
            double& above = asked_[size_t(row.parent(child))];
            asked_[size_t(child + 1)] = above;
            above *= none_[size_t(child + 1)];
        }
        for (int64_t node = 0; node <= row.count; ++node) probs[node] *= asked_[size_t(node)];
    }

    // What the children of a node leave if neither they nor any nodes below them stand.
    LawOf<T> after(const Row& row, int64_t node, const LawOf<T>& target) {
        left_.open(target);
        row.each_child(node, [&](int64_t child) {
            left_.law();
            left_.take(left_.drawn_from(row, child), taken_[size_t(child)]);
        });
        return left_.law();
    }

  private:
    Leftover<T> left_;
    std::vector<double> taken_;  // the weight that the node above had when a child took from it
    std::vector<double> none_;   // the probability that nothing stands at a node, nor below it
    std::vector<double> asked_;  // the probability that a node is asked
};

}  // namespace specdec
