// Hidden states that arrived for a head: its next call takes them in before it does anything else.
#pragma once
#include <vector>

#include "reading.h"

namespace specdec {

// Positions whose states are multiplied together, which bounds the memory of a long prompt.
constexpr size_t AT_ONCE = 256;

// The positions that have arrived, row after row.
class Arrived {
public:
    Arrived(const Cache& cache, const Call& call) : cache_(cache), call_(without_nodes(call)), arrival_(*cache.arrival) {
        for (int b = 0; b < arrival_.batch; ++b)
            for (int64_t i = 0; i < arrival_.counts[b]; ++i) all_.push_back({b, arrival_.starts[b] + i});
    }

    // Make features of them, and keep these, or the keys and values that the reader's layers make of them. Returns as
    // `score` does.
    int64_t combine() const {
        const Model& combiner = *arrival_.combiner;
        const size_t most = std::min(AT_ONCE, all_.size()), hidden = size_t(combiner.vocabulary);
        std::vector<float> stream(most * size_t(combiner.hidden)), features(most * hidden);
        for (size_t from = 0; from < all_.size(); from += AT_ONCE) {
            const size_t count = std::min(AT_ONCE, all_.size() - from);
            for (size_t i = 0; i < count; ++i) lay(all_[from + i], stream.data() + i * size_t(combiner.hidden));
            Call pass = call_;
            pass.stream = stream.data(), pass.logits = features.data();
            pass.batch = int32_t(count), pass.width = 1, pass.want = ALL;
            int64_t answer = score(combiner, Cache{}, pass);
            if (answer == FINE && arrival_.reader) answer = remember(all_.data() + from, count, features.data());
            if (answer != FINE) return answer;
            if (!arrival_.reader) keep(all_.data() + from, count, features.data(), hidden);
        }
        return FINE;
    }

private:
    struct Position {
        int32_t batch;
        int64_t at;  // in its row
    };

    // The states of a position side by side.
    void lay(const Position& position, float* to) const {
        const int64_t size = arrival_.combiner->hidden / arrival_.num_states;
        const int64_t index = position.at - arrival_.starts[position.batch];
        const int64_t column = arrival_.columns ? arrival_.columns[position.batch * arrival_.most + index] : index;
        for (int i = 0; i < arrival_.num_states; ++i, to += size) {
            const float* from = arrival_.states[i] + position.batch * arrival_.row_stride + column * size;
            std::copy(from, from + size, to);
        }
    }

    void keep(const Position* positions, size_t count, const float* features, size_t hidden) const {
        for (size_t i = 0; i < count; ++i, features += hidden) {
            const int64_t slot = arrival_.rows[positions[i].batch] * (cache_.slots + 1) + positions[i].at;
            std::copy(features, features + hidden, cache_.features + slot * int64_t(hidden));
        }
    }

    // Keep the keys and values that the reader's layers make of normed features, in the slots of their positions.
    int64_t remember(const Position* positions, size_t count, const float* features) const {
        const Model& reader = *arrival_.reader;
        const size_t batch = size_t(arrival_.batch), hidden = size_t(reader.hidden);
        std::vector<int64_t> counts(batch), lengths(size_t(cache_.num_rows));
        for (size_t i = count; i-- > 0; ++counts[size_t(positions[i].batch)])
            lengths[size_t(arrival_.rows[positions[i].batch])] = positions[i].at;
        const size_t width = size_t(*std::max_element(counts.begin(), counts.end()));
        std::vector<float> stream(batch * width * hidden), row(size_t(rounded(reader.hidden, WIDTH)));
        for (size_t i = 0; i < count; ++i, features += hidden) {
            const size_t b = size_t(positions[i].batch);
            const size_t index = size_t(positions[i].at - lengths[size_t(arrival_.rows[b])]);
            std::copy(features, features + hidden, row.begin());
            normalise(*arrival_.norm, row.data(), row.data());
            std::copy_n(row.begin(), hidden, stream.begin() + std::ptrdiff_t((b * width + index) * hidden));
        }
        const std::vector<int64_t> tokens(batch * width);
        Call pass = call_;
        pass.rows = arrival_.rows, pass.batch = arrival_.batch, pass.width = int32_t(width);
        pass.tokens = tokens.data(), pass.num_nodes = counts.data(), pass.lengths = lengths.data();
        pass.stream = stream.data(), pass.last_layer = reader.num_layers, pass.want = NONE, pass.context_only = 1;
        return score(reader, cache_, pass);
    }

    const Cache& cache_;
    const Call call_;
    const Arrival& arrival_;
    std::vector<Position> all_;
};

// Take in what has arrived for a cache, if anything has. Returns as `score` does.
static int64_t take_in(const Cache& cache, const Call& call) {
    if (!cache.arrival || !cache.arrival->batch) return FINE;
    const FloatMode mode;
    const int64_t answer = Arrived(cache, call).combine();
    if (answer == FINE) cache.arrival->batch = 0;
    return answer;
}

}  // namespace specdec
