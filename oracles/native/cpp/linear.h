// Products with packed weights. Every output is one chain of fused multiply-adds over the inputs in order, so its bits do
// not depend on the number of rows, columns or threads.
#pragma once
#include <algorithm>

#include "storages.h"

namespace specdec {

// Rows of a tile: with 16 lanes their sums fill the registers; narrower machines have fewer.
constexpr int TILE_ROWS = SPECDEC_LANES == 16 ? 8 : 3;

// What is done with the sums of a product.
struct Epilogue {
    enum Kind { STORE, ADD, ACTIVATE, GATE } kind;
    float* out;
    int64_t stride;
    int32_t columns;          // stored ones; a last block may hold more
    const int32_t* rows;      // where the rows lie in `out`; null: in order
    Activation activation;
};

// One row of one block: 32 sums.
INL void finish(const Epilogue& to, int row, int block, V low, V high) {
    float* out = to.out + (to.rows ? to.rows[row] : row) * to.stride;
    const int column = block * BLOCK;
    if (to.kind == Epilogue::GATE)  // gates stand in the first half of a block, what they multiply in the second
        return vstore(out + column / 2, vmul(activate(low, to.activation), high));
    if (to.kind == Epilogue::ACTIVATE) low = activate(low, to.activation), high = activate(high, to.activation);
    if (to.kind == Epilogue::ADD) low = vadd(vload(out + column), low), high = vadd(vload(out + column + WIDTH), high);
    if (column + BLOCK <= to.columns) {
        vstore(out + column, low);
        vstore(out + column + WIDTH, high);
        return;
    }
    float last[BLOCK];
    vstore(last, low);
    vstore(last + WIDTH, high);
    std::copy(last, last + to.columns - column, out + column);
}

// Prefetch the weights a given number of bytes after the next ones, `size` bytes of each of N blocks.
template <int N>
INL void ask(int size, const char* at, int64_t bytes, uintptr_t behind) {
    UNROLL for (int n = 0; n < N; ++n)
        for (int line = 0; line < size; line += 64) prefetch(at + n * bytes, behind + uintptr_t(line));
}

// M rows of one input, or of as many as a storage takes at once, times N blocks.
template <class S, int M, int N>
INL void meet(const S* storage, const char* at, int64_t bytes, int i, const float* x, int64_t stride, int k, typename S::Sum (*sums)[M][2]) {
    UNROLL for (int n = 0; n < N; ++n) {
        typename S::Sum low, high;
        storage[n].load(at + n * bytes, i, low, high);
        UNROLL for (int m = 0; m < M; ++m) {
            const auto a = S::input(x + m * stride, k);
            sums[n][m][0] = S::add(sums[n][m][0], a, low);
            sums[n][m][1] = S::add(sums[n][m][1], a, high);
        }
    }
}

// Hand out the products of M rows and N blocks. No storage has code of its own for that, which halves the compile time.
template <int M, int N>
__attribute__((noinline)) static void hand_out(const Linear& layer, int block, int row, const Epilogue& to, const V (*sums)[M][2]) {
    UNROLL for (int n = 0; n < N; ++n) {
        const float* bias = layer.bias ? layer.bias + (block + n) * BLOCK : nullptr;
        UNROLL for (int m = 0; m < M; ++m) {
            V low = sums[n][m][0], high = sums[n][m][1];
            if (bias) low = vadd(low, vload(bias)), high = vadd(high, vload(bias + WIDTH));
            finish(to, row + m, block + n, low, high);
        }
    }
}

// M rows of x times N consecutive blocks.
template <class S, int M, int N>
static void tile(const Linear& layer, const char* weights, int block, const float* x, int64_t stride, int row, const Epilogue& to) {
    const int count = S::count(layer.inputs);
    const int64_t bytes = block_bytes<S>(layer.inputs), ahead = std::min(AHEAD, bytes);
    const char *at = weights, *end = weights + bytes - ahead;  // from there on, a block asks for its place among the next N
    const auto next = [&] { return uintptr_t(at < end ? ahead : ahead + (N - 1) * bytes); };
    S storage[N];
    typename S::Sum sums[N][M][2] = {};
    for (int k = 0; k < count;) {
        ask<N>(S::HEAD, at, bytes, next());
        UNROLL for (int n = 0; n < N; ++n) storage[n].open(layer, block + n, at + n * bytes);
        at += S::HEAD;
        const int stop = S::GROUP ? std::min(k + S::GROUP, count) : count;
        for (; k + S::INPUTS <= stop; k += S::INPUTS, at += S::STEP) {
            ask<N>(S::STEP, at, bytes, next());
            UNROLL for (int i = 0; i < S::INPUTS; ++i) meet<S, M, N>(storage, at, bytes, i, x, stride, k + i, sums);
        }
        if constexpr (S::INPUTS > 1)  // what fills no step
            for (int i = 0; k < stop; ++i, ++k) meet<S, M, N>(storage, at, bytes, i, x, stride, k, sums);
    }
    V products[N][M][2];
    UNROLL for (int n = 0; n < N; ++n)
        UNROLL for (int m = 0; m < M; ++m)
            UNROLL for (int half = 0; half < 2; ++half)
                products[n][m][half] = S::result(sums[n][m][half], layer, (block + n) * BLOCK + half * WIDTH, weights + n * bytes, x + m * stride);
    hand_out<M, N>(layer, block, row, to, products);
}

// The same for whole numbers, one block at a time: x holds rows of groups. A group's sums are whole numbers, those of all
// groups floats, so they take twice the registers.
template <class S, int M>
static void whole_tile(const Linear& layer, const char* weights, int block, const float* x, int64_t stride, int row, const Epilogue& to) {
    const int count = int(rounded(layer.inputs, S::GROUP)) / S::GROUP;
    const auto group = [&](int m, int g) -> const Group& { return reinterpret_cast<const Group*>(x + m * stride)[g]; };
    const char* at = weights;
    S storage;
    V sums[1][M][2] = {};
    for (int g = 0; g < count; ++g) {
        ask<1>(S::HEAD, at, 0, AHEAD);
        storage.open(layer, block, at);
        W whole[M][2];
        UNROLL for (int m = 0; m < M; ++m) whole[m][0] = whole[m][1] = storage.begin(group(m, g));
        at += S::HEAD;
        UNROLL for (int k = 0; k < S::GROUP; k += S::INPUTS, at += S::STEP) {
            ask<1>(S::STEP, at, 0, AHEAD);
            const W low = vload_words(at), high = vload_words(at + 4 * WIDTH);
            UNROLL for (int i = 0; i < S::PARTS; ++i)
                UNROLL for (int m = 0; m < M; ++m) {
                    const W numbers = vset_word(group(m, g).numbers + k + 4 * i);
                    whole[m][0] = vdot(whole[m][0], S::part(low, i), numbers);
                    whole[m][1] = vdot(whole[m][1], S::part(high, i), numbers);
                }
        }
        UNROLL for (int m = 0; m < M; ++m) storage.close(group(m, g), whole[m][0], whole[m][1], sums[0][m]);
    }
    hand_out<M, 1>(layer, block, row, to, sums);
}

template <class S, int M, int N>
INL void any_tile(const Linear& layer, const char* weights, int block, const float* x, int64_t stride, int row, const Epilogue& to) {
    if constexpr (IS_WHOLE<S>) whole_tile<S, M>(layer, weights, block, x, stride, row, to);
    else tile<S, M, N>(layer, weights, block, x, stride, row, to);
}

// M rows times the blocks of a range; few rows of floats take two blocks at once, whose chains hide one another's latency.
template <class S, int M>
static void strip(const Linear& layer, const char* weights, Range blocks, const float* x, int64_t stride, int row, const Epilogue& to) {
    constexpr int N = !IS_WHOLE<S> && M <= (SPECDEC_LANES == 16 ? 4 : 1) ? 2 : 1;
    const int64_t bytes = block_bytes<S>(layer.inputs);
    int block = blocks.from;
    auto at = [&] { return weights + (block - blocks.from) * bytes; };
    for (; block + N <= blocks.to; block += N) any_tile<S, M, N>(layer, at(), block, x, stride, row, to);
    if constexpr (N > 1)
        if (block < blocks.to) any_tile<S, M, 1>(layer, at(), block, x, stride, row, to);
}

// `weights` points to those of the first block of the range.
template <class S, int M = TILE_ROWS>
static void rows_of(int rows, const Linear& layer, const char* weights, Range blocks, const float* x, int64_t stride, int row, const Epilogue& to) {
    if (rows == M) return strip<S, M>(layer, weights, blocks, x, stride, row, to);
    if constexpr (M > 1) rows_of<S, M - 1>(rows, layer, weights, blocks, x, stride, row, to);
}

// All rows in tiles of even height: 9 rows are 5 and 4.
template <class S>
static void tiles(const Linear& layer, const char* weights, Range blocks, const float* x, int64_t stride, int rows, const Epilogue& to) {
    const int count = (rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int i = 0; i < count; ++i) {
        const Range part = share(rows, i, count);
        rows_of<S>(part.to - part.from, layer, weights, blocks, x + part.from * stride, stride, part.from, to);
    }
}

template <class S>
static void product_of(const Linear& layer, Range blocks, const float* x, int64_t stride, int rows, const Epilogue& to) {
    const int64_t bytes = block_bytes<S>(layer.inputs);
    const char* weights = static_cast<const char*>(layer.weights) + blocks.from * bytes;
    if (rows <= TILE_ROWS) return rows_of<S>(rows, layer, weights, blocks, x, stride, 0, to);
    // A block stays in cache while all rows pass. It is widened again for each tile, alongside the arithmetic, which is
    // faster than keeping it twice as large.
    for (int block = blocks.from; block < blocks.to; ++block, weights += bytes)
        tiles<S>(layer, weights, {block, block + 1}, x, stride, rows, to);
}

// This thread's part of x W + b, from x [rows][stride]: floats, or, if the layer rounds its inputs, rows as `round_row` or
// `round_groups` write them.
static void product(const Linear& layer, Range blocks, const float* x, int64_t stride, int rows, const Epilogue& to) {
    with_storage(layer, [&](auto storage) { product_of<decltype(storage)>(layer, blocks, x, stride, rows, to); });
}

}  // namespace specdec
