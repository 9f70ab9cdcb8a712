// Blocks of heads that compute the laws of several tokens in one pass, and chains of ids along them.
#pragma once
#include <vector>

#include "chains.h"

namespace specdec {

// Run a head's layers over the blocks of the rows for which `takes(b)` is true, in the slots after the committed ones, and
// read out the laws. Returns as `score` does.
//   stream: [batch][size][hidden] after the last layer, zeros for other rows
//   logits: [batch][depth][vocabulary]
template <class Takes>
static int64_t open_blocks(const Model& model, const Cache& cache, const Call& call, const Blocks& blocks, Takes takes,
                           float* stream, float* logits) {
    const size_t size = size_t(blocks.size), hidden = size_t(model.hidden), batch = size_t(call.batch);
    std::vector<float> embedded(batch * size * hidden), mask(hidden), read(batch * size_t(blocks.depth) * hidden);
    std::vector<int64_t> counts(batch);
    const std::vector<int64_t> tokens(batch * size);
    const FloatMode mode;
    read_embedding(*blocks.host, blocks.mask, mask.data());
    for (size_t b = 0; b < batch; ++b) {
        const int64_t row = call.rows[b], id = blocks.pending[b];
        if (row < 0 || row >= cache.num_rows) return BAD_ROW;
        if (id < 0 || id >= blocks.host->vocabulary) return BAD_TOKEN;
        if (!takes(int64_t(b))) continue;
        counts[b] = blocks.size;
        cache.written[row] = std::max(cache.written[row], std::min(cache.lengths[row] + blocks.size, cache.rooms[row]));
        read_embedding(*blocks.host, id, embedded.data() + b * size * hidden);
        for (size_t i = 1; i < size; ++i)
            std::copy(mask.begin(), mask.end(), embedded.begin() + std::ptrdiff_t((b * size + i) * hidden));
    }
    const int32_t last = model.num_layers - 1;
    float* const kept[] = {stream};
    Call pass = without_nodes(call);
    pass.tokens = tokens.data(), pass.num_nodes = counts.data(), pass.lengths = cache.lengths, pass.stream = embedded.data();
    pass.hidden = kept, pass.hidden_layers = &last, pass.num_hidden = 1, pass.width = int32_t(size);
    pass.last_layer = model.num_layers, pass.want = NONE;
    if (const int64_t answer = score(model, cache, pass); answer != FINE) return answer;
    for (size_t i = 0; i < batch * size_t(blocks.depth); ++i) {
        const size_t place = i / size_t(blocks.depth) * size + size_t(blocks.first) + i % size_t(blocks.depth);
        std::copy_n(stream + place * hidden, hidden, read.data() + i * hidden);
    }
    Call laws = without_nodes(call);
    laws.stream = read.data(), laws.logits = logits, laws.batch = int32_t(batch) * int32_t(blocks.depth), laws.width = 1;
    laws.first_layer = laws.last_layer = model.num_layers, laws.want = ALL;
    return score(model, Cache{}, laws);
}

// The logits [batch][vocabulary] of the next step of chains along blocks: those of its depth, plus what the Markov head
// adds for the ids before them. Returns as `score` does.
static int64_t lay_logits(const Model& model, const Call& call, const Blocks& blocks, const Following& follow,
                          const float* laws, float* logits) {
    const int64_t step = follow.begun, vocabulary = model.vocabulary;
    const FloatMode mode;
    for (int64_t b = 0; b < call.batch; ++b)
        std::copy_n(laws + (b * blocks.depth + step) * vocabulary, vocabulary, logits + b * vocabulary);
    if (!blocks.markov) return FINE;
    const Model& markov = *blocks.markov;
    const int64_t rank = markov.hidden, columns = markov.vocabulary;
    const int32_t* ids = columns < vocabulary ? model.written_ids : nullptr;
    std::vector<float> known(size_t(call.batch * rank)), added(size_t(call.batch * columns));
    for (int64_t b = 0; b < call.batch; ++b)
        read_embedding(markov, step ? follow.ids[b * follow.steps + step - 1] : blocks.pending[b], known.data() + b * rank);
    Call pass = without_nodes(call);
    pass.stream = known.data(), pass.logits = added.data(), pass.width = 1, pass.want = ALL;
    if (const int64_t answer = score(markov, Cache{}, pass); answer != FINE) return answer;
    for (int64_t b = 0; b < call.batch; ++b)
        for (int64_t c = 0; c < columns; ++c) logits[b * vocabulary + (ids ? ids[c] : c)] += added[size_t(b * columns + c)];
    return FINE;
}

}  // namespace specdec
