// Chains: the likeliest id after every row, or a drawn one, step by step, without leaving the compiled code.
#pragma once
#include <vector>

#include "adjusting.h"
#include "draws.h"
#include "laws.h"
#include "texts.h"
#include "worker.h"

namespace specdec {

// The first id of the largest logit; a NaN counts as the largest.
static int64_t likeliest(const float* logits, int64_t count) {
    const float top = largest(logits, count);
    const auto is_top = [=](float x) { return (x == top) | (x != x); };
    int64_t i = 0;
    for (bool some = false; i + WIDTH <= count; i += WIDTH) {
        for (int64_t k = 0; k < WIDTH; ++k) some |= is_top(logits[i + k]);
        if (some) break;
    }
    while (!is_top(logits[i])) ++i;
    return i;
}

// Write the law of a row of logits, uniform if they allow none. Returns the largest logit.
static float law_or_uniform(const float* logits, int64_t size, const Sampling& ask, float* probs, Bits<float>* room) {
    const float peak = law(logits, size, ask, probs, room);
    if (probs[0] != probs[0]) std::fill_n(probs, size, float(1.0 / double(size)));
    return peak;
}

// The law of a row of logits at temperature 1, in double precision; `room` takes the logits.
static const double* unwarped(const float* logits, int64_t size, double* probs, double* room) {
    std::copy(logits, logits + size, room);
    law<double>(room, size, Sampling{}, probs, nullptr);
    return probs;
}

// The steps of chains. A step reads the logits of the last pass, asks which rows draw, draws, and asks which go on.
class Chains {
  public:
    Chains(const Call& call, int64_t vocabulary, const Following& follow)
        : call_(call), vocabulary_(vocabulary), follow_(follow), tokens_(size_t(call.batch)), counts_(tokens_.size()),
          adjusting_(follow.adjustments, call.batch, vocabulary), room_(follow.draws ? size_t(vocabulary) : 0),
          adjusted_(follow.adjustments ? size_t(vocabulary) : 0),
          wide_(follow.draws || !(follow.entropies || follow.confidences) ? 0 : 2 * size_t(vocabulary)) {}

    bool is_wanted(int64_t step) const {
        bool is_wanted = false;
        for (int64_t b = 0; b < call_.batch; ++b) is_wanted |= step < follow_.limits[b];
        return is_wanted;
    }

    // All ids that are drafted after a row's text are scored, except the last.
    static After after(const Following& follow, int64_t b) {
        const int64_t scored = std::max<int64_t>(follow.limits[b] - 1, 0);
        return {follow.limits[b] > 0, scored, scored};
    }

    // Choose the ids of a step from the logits of the last pass. The watch runs in the caller's floating-point mode.
    void choose(int64_t step) {
        read(step);
        if (follow_.entropies) ask(step, 0);
        if (!is_wanted(step)) return;
        draw(step);
        if (follow_.confidences) ask(step, 1);
    }

    // The pass that scores the ids of the previous step, one in each row, after all that was scored.
    Call pass(int64_t step, std::vector<int64_t>& lengths) {
        for (int64_t b = 0; b < call_.batch; ++b) {
            lengths[size_t(call_.rows[b])] = call_.lengths[call_.rows[b]] + call_.num_nodes[b] + step - 1;
            tokens_[size_t(b)] = follow_.ids[b * follow_.steps + step - 1];
            counts_[size_t(b)] = step < follow_.limits[b];
        }
        Call one = call_;
        one.tokens = tokens_.data(), one.num_nodes = counts_.data(), one.lengths = lengths.data();
        one.width = 1, one.first = 0;
        return one;
    }

  private:
    // An answer writes all limits. If none comes, because of an interrupt, every row has ended.
    void ask(int64_t step, int64_t is_drawn) {
        std::fill_n(follow_.limits, call_.batch, 0);
        follow_.ask(step, is_drawn);
    }

    // Find the likeliest ids or, if ids are drawn, the laws.
    void read(int64_t step) {
        const FloatMode mode;
        for (int64_t b = 0; b < call_.batch; ++b) {
            const int64_t at = b * follow_.steps + step;
            const float* given = call_.logits + b * vocabulary_;
            follow_.peaks[at] = 0;
            if (follow_.entropies) follow_.entropies[b] = 0;
            if (step >= follow_.limits[b]) continue;
            follow_.kept[b] += step > 0;
            const Path path{follow_.ids + b * follow_.steps, step};
            const float* logits = adjusting_.logits(b, given, path, adjusted_.data());
            if (follow_.draws) {
                follow_.ids[at] = 0;
                const float peak = write_law(b, at, logits);
                follow_.peaks[at] = logits == given ? peak : largest(given, vocabulary_);
            } else {
                follow_.ids[at] = likeliest(logits, vocabulary_);
                follow_.peaks[at] = given[follow_.ids[at]];
            }
            if (follow_.entropies) follow_.entropies[b] = entropy_of(b, at);
        }
    }

    // Draw the ids; rows that do not draw get zeros.
    void draw(int64_t step) {
        const FloatMode mode;
        for (int64_t b = 0; b < call_.batch; ++b) {
            const int64_t at = b * follow_.steps + step;
            const bool is_drawn = step < follow_.limits[b];
            if (!is_drawn) {
                follow_.ids[at] = 0;
                if (follow_.draws) std::fill_n(law_at(at), vocabulary_, 0.0f);
            } else if (follow_.draws) {
                follow_.ids[at] = drawn(b, at, step);
            }
            if (follow_.confidences) follow_.confidences[at] = is_drawn ? confidence_of(b, at) : 0;
        }
    }

    float* law_at(int64_t at) const { return follow_.draws->laws + at * vocabulary_; }

    float write_law(int64_t b, int64_t at, const float* logits) {
        const Sampling ask = Sampling::of(follow_.draws->filters, call_.batch, b);
        return law_or_uniform(logits, vocabulary_, ask, law_at(at), room_.data());
    }

    int64_t drawn(int64_t b, int64_t at, int64_t step) const {
        const Draws* draws = follow_.draws;
        const uint64_t key = extended(uint64_t(draws->bases[b]), uint64_t(draws->firsts[b]) + uint64_t(step));
        int64_t id;
        (draws->is_race ? race<float> : specdec::draw<float>)(law_at(at), vocabulary_, key, 1, &id);
        return id;
    }

    // The model's own law of a row, for chains without draws, whose law is a point mass.
    const double* unwarped_of(int64_t b) {
        return unwarped(call_.logits + b * vocabulary_, vocabulary_, wide_.data(), wide_.data() + vocabulary_);
    }
    double entropy_of(int64_t b, int64_t at) {
        return follow_.draws ? entropy(law_at(at), vocabulary_) : entropy(unwarped_of(b), vocabulary_);
    }
    double confidence_of(int64_t b, int64_t at) {
        const int64_t id = follow_.ids[at];
        return follow_.draws ? double(law_at(at)[id]) : unwarped_of(b)[id];
    }

    const Call& call_;
    const int64_t vocabulary_;
    const Following& follow_;
    std::vector<int64_t> tokens_, counts_;
    const Adjusting adjusting_;
    std::vector<Bits<float>> room_;
    std::vector<float> adjusted_;
    std::vector<double> wide_;  // twice the vocabulary
};

}  // namespace specdec
