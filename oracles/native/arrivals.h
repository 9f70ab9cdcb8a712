// Hidden states that arrived for a head: what its next call makes of them before it does anything else.
#pragma once
#include <vector>

#include "reading.h"

namespace specdec {

// Positions whose states meet the weights together, which bounds the memory of a long prompt.
constexpr size_t AT_ONCE = 256;

// The positions that have arrived, row after row.
class Arrived {
public:
    Arrived(const Cache& cache, const Call& call) : cache_(cache), call_(call), arrival_(*cache.arrival) {
        for (int b = 0; b < arrival_.batch; ++b)
            for (int64_t i = 0; i < arrival_.counts[b]; ++i) all_.push_back({b, i});
    }

    // Make features of them. `score` answers 0, or why it did not score.
    template <class Score>
    int64_t combine(Score score) const {
        const Model& combiner = *arrival_.combiner;
        const size_t most = std::min(AT_ONCE, all_.size()), hidden = size_t(combiner.vocabulary);
        std::vector<float> stream(most * size_t(combiner.hidden)), features(most * hidden);
        for (size_t from = 0; from < all_.size(); from += AT_ONCE) {
            const size_t count = std::min(AT_ONCE, all_.size() - from);
            for (size_t i = 0; i < count; ++i) lay(all_[from + i], stream.data() + i * size_t(combiner.hidden));
            const int64_t answer = score(combiner, pass(int32_t(count), stream.data(), features.data()));
            if (answer != FINE) return answer;
            for (size_t i = 0; i < count; ++i) keep(all_[from + i], features.data() + i * hidden, hidden);
        }
        return FINE;
    }

private:
    struct Position {
        int32_t batch;
        int64_t index;  // from the first one of its row on
    };

    // The states of a position side by side.
    void lay(const Position& position, float* to) const {
        const int64_t size = arrival_.combiner->hidden / arrival_.num_states, at = position.index;
        const int64_t column = arrival_.columns ? arrival_.columns[position.batch * arrival_.most + at] : at;
        for (int i = 0; i < arrival_.num_states; ++i, to += size) {
            const float* from = arrival_.states[i] + position.batch * arrival_.row_stride + column * size;
            std::copy(from, from + size, to);
        }
    }

    void keep(const Position& position, const float* feature, size_t hidden) const {
        const int64_t row = arrival_.rows[position.batch], at = arrival_.starts[position.batch] + position.index;
        std::copy(feature, feature + hidden, cache_.features + (row * (cache_.slots + 1) + at) * int64_t(hidden));
    }

    Call pass(int32_t count, const float* stream, float* features) const {
        Call one{};
        one.stream = stream, one.logits = features, one.batch = count, one.width = 1, one.want = ALL;
        one.scratch = call_.scratch, one.scratch_bytes = call_.scratch_bytes;
        one.threads = call_.threads, one.team = call_.team;
        return one;
    }

    const Cache& cache_;
    const Call& call_;
    const Arrival& arrival_;
    std::vector<Position> all_;
};

// Take in what has arrived for a cache, if anything has. `score` runs a pass of a model without a cache.
template <class Score>
static int64_t take_in(const Cache& cache, const Call& call, Score score) {
    if (!cache.arrival || !cache.arrival->batch) return FINE;
    const int64_t answer = Arrived(cache, call).combine(score);
    if (answer == FINE) cache.arrival->batch = 0;
    return answer;
}

}  // namespace specdec
