// The verdict on chains of ids that were chosen, not drawn: each is accepted with the probability that the target's law
// gives it, and after a rejection the law goes on without it.
#pragma once

#include "laws.h"

namespace specdec {

// Chains, and the target's laws at their nodes: a row of the table each, or (index -1) a point.
struct Chains {
    const void* table;
    const int64_t *index, *point;   // [batch][width + 1], root first
    const int64_t *tokens, *counts;  // [batch][width] and [batch]; from `counts` on a chain is padding
    int64_t is_double, rows, size, batch, width;
};

// Whether every index lies in the table, and every id and every point that counts among the `size` ids.
inline bool is_sound(const Chains& chains) {
    const auto is_id = [&](int64_t id) { return id >= 0 && id < chains.size; };
    bool sound = true;
    for (int64_t i = 0; i < chains.batch * (chains.width + 1); ++i)
        sound &= chains.index[i] < chains.rows && (chains.index[i] >= 0 || is_id(chains.point[i]));
    for (int64_t i = 0; i < chains.batch * chains.width; ++i) sound &= is_id(chains.tokens[i]);
    return sound;
}

// Write the probability of stopping at each node, [batch][width + 1]; NaN after a law that is.
template <class T>
void chain_stops(const Chains& chains, double* probs) {
    const T* table = static_cast<const T*>(chains.table);
    for (int64_t row = 0; row < chains.batch; ++row) {
        const int64_t *index = chains.index + row * (chains.width + 1), *tokens = chains.tokens + row * chains.width;
        double reached = 1;
        for (int64_t node = 0; node <= chains.width; ++node) {
            double accept = 0;
            if (node < std::min(chains.counts[row], chains.width)) {
                const bool is_point = index[node] < 0;
                const int64_t point = chains.point[row * (chains.width + 1) + node];
                accept = is_point ? point == tokens[node] : double(table[index[node] * chains.size + tokens[node]]);
            }
            accept = accept > 1 ? 1 : accept;
            *probs++ = reached * (1 - accept);
            reached *= accept;
        }
    }
}

// Write the law of the token that follows after each chain's stop, [batch][size]: the node's law without the id that
// was rejected there, if one was, and if that leaves anything.
template <class T>
void chain_next(const Chains& chains, const int64_t* stops, T* next) {
    for (int64_t row = 0; row < chains.batch; ++row, next += chains.size) {
        const int64_t stop = stops[row], at = row * (chains.width + 1) + stop, law = chains.index[at];
        if (law < 0) {
            std::fill(next, next + chains.size, T(0));
            next[chains.point[at]] = 1;
        } else {
            const T* own = static_cast<const T*>(chains.table) + law * chains.size;
            std::copy(own, own + chains.size, next);
        }
        if (stop >= std::min(chains.counts[row], chains.width)) continue;
        const int64_t rejected = chains.tokens[row * chains.width + stop];
        const T removed = next[rejected];
        next[rejected] = 0;
        Sums sums{};
        by_groups(next, chains.size, T(0), [&](T* probs) { accumulate(sums, probs); });
        const T left = T(total(sums));
        if (left > 0)
            for (int64_t id = 0; id < chains.size; ++id) next[id] /= left;
        else
            next[rejected] = removed;
    }
}

}  // namespace specdec
