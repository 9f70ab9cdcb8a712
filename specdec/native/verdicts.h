// The verdict of the rule "standard" on chains: an id is accepted with the probability that the target's law gives it,
// over that of the law that it was drawn from, and after a rejection what is left of the target's law goes on.
#pragma once

#include <cmath>
#include <limits>

#include "laws.h"

namespace specdec {

// Laws of nodes: a row of the table each, or (index -1) a point.
struct Laws {
    const void* table;
    const int64_t *index, *point;
    int64_t rows;
};

// Chains, and the laws at their nodes.
struct Chains {
    Laws target;                     // [batch][width + 1], root first
    Laws drawn;                      // [batch][width]; table null: every id was chosen
    const int64_t *tokens, *counts;  // [batch][width] and [batch]; from `counts` on a chain is padding
    int64_t is_double, size, batch, width;
};

// Whether every index lies in its table, and every id and every point that counts among the `size` ids.
inline bool is_sound(const Chains& chains) {
    const auto is_id = [&](int64_t id) { return id >= 0 && id < chains.size; };
    const auto is_law = [&](const Laws& laws, int64_t at) {
        return laws.index[at] < laws.rows && (laws.index[at] >= 0 || is_id(laws.point[at]));
    };
    bool sound = true;
    for (int64_t i = 0; i < chains.batch * (chains.width + 1); ++i) sound &= is_law(chains.target, i);
    for (int64_t row = 0; chains.drawn.table && row < chains.batch; ++row)  // of padding nothing is read
        for (int64_t node = 0; node < std::min(chains.counts[row], chains.width); ++node)
            sound &= is_law(chains.drawn, row * chains.width + node);
    for (int64_t i = 0; i < chains.batch * chains.width; ++i) sound &= is_id(chains.tokens[i]);
    return sound;
}

// One law.
template <class T>
struct LawOf {
    const T* probs;  // null: all on the point
    int64_t point;

    LawOf(const Laws& laws, int64_t at, int64_t size)
        : probs(laws.index[at] < 0 ? nullptr : static_cast<const T*>(laws.table) + laws.index[at] * size), point(laws.point[at]) {}
    explicit LawOf(int64_t id) : probs(nullptr), point(id) {}
    explicit LawOf(const T* law) : probs(law), point(0) {}
    T of(int64_t id) const { return probs ? probs[id] : T(id == point); }
};

// What a chain's id `node` was drawn from.
template <class T>
LawOf<T> drawn_from(const Chains& chains, int64_t row, int64_t node) {
    const int64_t at = row * chains.width + node;
    return chains.drawn.table ? LawOf<T>(chains.drawn, at, chains.size) : LawOf<T>(chains.tokens[at]);
}

// Whether a law gives any id more than another does.
template <class T>
bool exceeds(const LawOf<T>& law, const LawOf<T>& other, int64_t size) {
    if (!law.probs) return other.of(law.point) < T(1);
    if (!other.probs) return law.probs[other.point] < T(1);
    bool some = false;
    for (int64_t id = 0; id < size; ++id) some |= law.probs[id] > other.probs[id];
    return some;
}

// The probability that an id stands once it is reached. One that was drawn from a law with nothing left beside it
// stands: the ratio is 1 up to rounding there.
template <class T>
double acceptance(const LawOf<T>& target, const LawOf<T>& drawn, bool is_chosen, int64_t id, int64_t size) {
    const double p = double(target.of(id));
    if (is_chosen) return p > 1 ? 1 : p;
    if (!exceeds(target, drawn, size)) return std::isnan(p) ? p : 1;
    const double ratio = p / std::max(double(drawn.of(id)), std::numeric_limits<double>::min());
    return ratio > 1 ? 1 : ratio;
}
template <class T>
double acceptance(const Chains& chains, int64_t row, int64_t node) {
    const LawOf<T> target(chains.target, row * (chains.width + 1) + node, chains.size);
    const int64_t id = chains.tokens[row * chains.width + node];
    return acceptance(target, drawn_from<T>(chains, row, node), !chains.drawn.table, id, chains.size);
}

// Write the probability of stopping at each node, [batch][width + 1]; NaN after a law that is.
template <class T>
void chain_stops(const Chains& chains, double* probs) {
    for (int64_t row = 0; row < chains.batch; ++row) {
        double reached = 1;
        for (int64_t node = 0; node <= chains.width; ++node) {
            const bool is_real = node < std::min(chains.counts[row], chains.width);
            const double accept = is_real ? acceptance<T>(chains, row, node) : 0;
            *probs++ = reached * (1 - accept);
            reached *= accept;
        }
    }
}

// Take from a law [size] what the id that was rejected was drawn from, if that leaves anything.
template <class T>
void reject(const LawOf<T>& target, const LawOf<T>& drawn, int64_t size, T* next) {
    if (drawn.probs)
        for (int64_t id = 0; id < size; ++id) next[id] = std::max(next[id] - drawn.probs[id], T(0));
    else
        next[drawn.point] = 0;
    const T left = T(sum_of(next, size));
    for (int64_t id = 0; id < size; ++id) next[id] = left > 0 ? next[id] / left : target.of(id);
}

// Write the law of the token that follows after each chain's stop, [batch][size]: the node's law, without what the id
// that was rejected there was drawn from, if one was.
template <class T>
void chain_next(const Chains& chains, const int64_t* stops, T* next) {
    for (int64_t row = 0; row < chains.batch; ++row, next += chains.size) {
        const LawOf<T> target(chains.target, row * (chains.width + 1) + stops[row], chains.size);
        for (int64_t id = 0; id < chains.size; ++id) next[id] = target.of(id);
        if (stops[row] < std::min(chains.counts[row], chains.width))
            reject(target, drawn_from<T>(chains, row, stops[row]), chains.size, next);
    }
}

}  // namespace specdec
