// Trees of one plan without their absent nodes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace specdec {

// Trees of `rows` rows, those at `places` among `batch`.
struct Planned {
    const int64_t* ids;                // [rows][size], -1 where a node is absent, and so is all below it
    const int64_t *parents, *owners;   // [size] -1 the pending token; which of a row's `laws` each id comes of
    const int64_t* places;             // [rows]
    int64_t rows, size, laws, batch;
};

// Whether parents stand above their nodes, and rows in the batch.
inline bool is_sound(const Planned& from) {
    bool is_sound = true;
    for (int64_t node = 0; node < from.size; ++node) is_sound &= from.parents[node] < node;
    for (int64_t row = 0; row < from.rows; ++row) is_sound &= from.places[row] >= 0 && from.places[row] < from.batch;
    return is_sound;
}

// Write how many nodes each of the batch has, then their ids, parents and laws, [batch][width] each, and which of them
// are real. Padding has id 0, goes on as a chain, and has law -1. Returns the width: what the largest tree has.
inline int64_t compact(const Planned& from, int64_t* counts, uint8_t* is_real) {
    std::fill_n(counts, from.batch, 0);
    int64_t width = 0;
    for (int64_t row = 0; row < from.rows; ++row) {
        const int64_t *ids = from.ids + row * from.size, absent = std::count(ids, ids + from.size, -1);
        counts[from.places[row]] = from.size - absent;
        width = std::max(width, from.size - absent);
    }
    const int64_t room = from.batch * width;
    int64_t *tokens = counts + from.batch, *parents = tokens + room, *laws = parents + room;
    std::fill_n(tokens, room, 0);
    std::fill_n(laws, room, -1);
    std::fill_n(is_real, room, uint8_t(0));
    for (int64_t i = 0; i < room; ++i) parents[i] = i % width - 1;
    std::vector<int64_t> moved(size_t(from.size));
    for (int64_t row = 0; row < from.rows; ++row) {
        int64_t to = from.places[row] * width, count = 0;
        for (int64_t node = 0; node < from.size; ++node) {
            const int64_t id = from.ids[row * from.size + node], above = from.parents[node];
            if (id == -1) continue;
            moved[size_t(node)] = count++;
            tokens[to] = id;
            parents[to] = above < 0 ? -1 : moved[size_t(above)];
            laws[to] = row * from.laws + from.owners[node];
            is_real[to++] = 1;
        }
    }
    return width;
}

}  // namespace specdec
