// Chains: the likeliest id after every row, or a drawn one, again and again, without leaving the compiled code.
#pragma once
#include <vector>

#include "draws.h"
#include "laws.h"
#include "worker.h"

namespace specdec {

// The first id of the largest logit; a NaN counts as the largest.
static int64_t likeliest(const float* logits, int64_t count) {
    V largest = vset(-INFINITY);
    int64_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) largest = vmax(largest, vload(logits + i));
    float top = hmax(largest);
    for (; i < count; ++i) top = larger(top, logits[i]);
    for (i = 0; logits[i] != top && logits[i] == logits[i]; ++i) {
    }
    return i;
}

// Write the law of a row of logits, uniform where they allow none.
static void law_or_uniform(const float* logits, int64_t size, const Sampling& ask, float* probs, Bits<float>* room) {
    law(logits, size, ask, probs, room);
    if (probs[0] != probs[0]) std::fill_n(probs, size, float(1.0 / double(size)));
}

// What changes from one step of a chain to the next.
struct Chains {
    const Call& call;
    int64_t vocabulary;
    const int64_t* limits;  // [batch] ids wanted of each row
    int64_t steps;          // the largest of them
    int64_t* ids;           // [batch][steps]
    float* peaks;           // [batch][steps] the largest logits; a NaN counts as the largest
    const Draws* draws;     // null: the likeliest ids
    Bits<float>* room;      // [vocabulary] what laws are computed with, or null

    // Choose the ids of a step from the logits of the last pass.
    void choose(int64_t step) const {
        const FloatMode mode;
        for (int64_t b = 0; b < call.batch; ++b) {
            const int64_t at = b * steps + step;
            if (step < limits[b]) {
                const float* logits = call.logits + b * vocabulary;
                const int64_t best = likeliest(logits, vocabulary);
                peaks[at] = logits[best];
                ids[at] = draws ? drawn(logits, b, step) : best;
            } else {
                ids[at] = 0, peaks[at] = 0;
                if (draws) std::fill_n(draws->laws + at * vocabulary, vocabulary, 0.0f);
            }
        }
    }

    // Write the law of a row's next id, and draw from it.
    int64_t drawn(const float* logits, int64_t b, int64_t step) const {
        const double* own = draws->filters + b;
        const int64_t batch = call.batch;
        float* probs = draws->laws + (b * steps + step) * vocabulary;
        law_or_uniform(logits, vocabulary, {own[0], own[batch], own[2 * batch], own[3 * batch]}, probs, room);
        const uint64_t key = extended(uint64_t(draws->bases[b]), uint64_t(draws->firsts[b]) + uint64_t(step));
        int64_t id;
        (draws->is_race ? race<float> : draw<float>)(probs, vocabulary, key, 1, &id);
        return id;
    }

    // The pass that scores the ids of a step, one a row, behind all that was scored before.
    Call next(int64_t step, std::vector<int64_t>& tokens, std::vector<int64_t>& counts, std::vector<int64_t>& lengths) const {
        for (int64_t b = 0; b < call.batch; ++b) {
            lengths[size_t(call.rows[b])] = call.lengths[call.rows[b]] + call.num_nodes[b] + step;
            tokens[size_t(b)] = ids[b * steps + step];
            counts[size_t(b)] = step + 1 < limits[b];
        }
        Call one = call;
        one.tokens = tokens.data(), one.num_nodes = counts.data(), one.lengths = lengths.data();
        one.width = 1, one.first = 0;
        return one;
    }
};

}  // namespace specdec
