// Products with packed weights. Every output is one chain of fused multiply-adds over the inputs in order, so that no
// bit depends on how many rows, columns or threads take part.
#pragma once
#include <algorithm>

#include "functions.h"
#include "model.h"

namespace specdec {

// Rows of a tile: with 16 lanes their sums fill the registers; narrower machines have fewer.
constexpr int TILE_ROWS = SPECDEC_LANES == 16 ? 8 : 3;

// How a block's weights are read, 32 columns of an input at a time.
struct Unscaled {
    INL void open(const Linear&, int) {}
};

struct Float32 : Unscaled {
    static constexpr int BYTES = 4;
    static INL void load(const char* row, V& low, V& high) {
        low = vload(reinterpret_cast<const float*>(row));
        high = vload(reinterpret_cast<const float*>(row) + WIDTH);
    }
};

struct Bfloat16 : Unscaled {
    static constexpr int BYTES = 2;
    static INL void load(const char* row, V& low, V& high) {
        vload_bf16_pairs(reinterpret_cast<const uint16_t*>(row), low, high);
    }
};

struct Float16 : Unscaled {
    static constexpr int BYTES = 2;
    static INL void load(const char* row, V& low, V& high) {
        low = vload_f16(reinterpret_cast<const uint16_t*>(row));
        high = vload_f16(reinterpret_cast<const uint16_t*>(row) + WIDTH);
    }
};

// Each weight is the float that its byte times its column's scale is rounded to; the scales stay in registers.
struct Int8 {
    static constexpr int BYTES = 1;
    V low_scale, high_scale;
    INL void open(const Linear& layer, int block) {
        low_scale = vload(layer.scales + block * BLOCK);
        high_scale = vload(layer.scales + block * BLOCK + WIDTH);
    }
    INL void load(const char* row, V& low, V& high) const {
        low = vmul(vload_i8(reinterpret_cast<const int8_t*>(row)), low_scale);
        high = vmul(vload_i8(reinterpret_cast<const int8_t*>(row) + WIDTH), high_scale);
    }
};

// What becomes of the sums of a product.
struct Epilogue {
    enum Kind { STORE, ADD, ACTIVATE, GATE } kind;
    float* out;
    int64_t stride;
    int32_t columns;          // stored ones; a last block may hold more
    const int32_t* rows;      // where the rows lie in `out`; null: in order
    Activation activation;
};

INL V activated(V x, Activation kind) {
    switch (kind) {
    case SILU: return vsilu(x);
    case GELU: return vgelu(x);
    case GELU_TANH: return vgelu_tanh(x);
    default: return vrelu(x);
    }
}

// One row of one block: 32 sums.
INL void finish(const Epilogue& to, int row, int block, V low, V high) {
    float* out = to.out + (to.rows ? to.rows[row] : row) * to.stride;
    const int column = block * BLOCK;
    if (to.kind == Epilogue::GATE)  // gates stand in the first half of a block, what they multiply in the second
        return vstore(out + column / 2, vmul(activated(low, to.activation), high));
    if (to.kind == Epilogue::ACTIVATE) low = activated(low, to.activation), high = activated(high, to.activation);
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

// M rows of x times N consecutive blocks.
template <class S, int M, int N>
static void tile(const Linear& layer, const char* weights, int block, const float* x, int64_t stride, int row, const Epilogue& to) {
    constexpr int STEP = BLOCK * S::BYTES;
    const int64_t bytes = int64_t(layer.inputs) * STEP;
    S storage[N];
    UNROLL for (int n = 0; n < N; ++n) storage[n].open(layer, block + n);
    V sums[N][M][2];
    UNROLL for (int n = 0; n < N; ++n) UNROLL for (int m = 0; m < M; ++m) sums[n][m][0] = sums[n][m][1] = vzero();
    const int64_t ahead = std::min(AHEAD, bytes);
    const int end = layer.inputs - int(ahead / STEP);  // from here on, a block asks for its place among the next N
    for (int k = 0; k < layer.inputs; ++k) {
        const int64_t next = k < end ? ahead : ahead + (N - 1) * bytes;
        UNROLL for (int n = 0; n < N; ++n) {
            const char* at = weights + n * bytes + int64_t(k) * STEP;
            for (int line = 0; line < STEP; line += 64) prefetch(at, uintptr_t(next + line));
            V low, high;
            storage[n].load(at, low, high);
            UNROLL for (int m = 0; m < M; ++m) {
                const V a = vset(x[m * stride + k]);
                sums[n][m][0] = vfma(a, low, sums[n][m][0]);
                sums[n][m][1] = vfma(a, high, sums[n][m][1]);
            }
        }
    }
    UNROLL for (int n = 0; n < N; ++n) {
        const float* bias = layer.bias ? layer.bias + (block + n) * BLOCK : nullptr;
        UNROLL for (int m = 0; m < M; ++m) {
            V low = sums[n][m][0], high = sums[n][m][1];
            if (bias) low = vadd(low, vload(bias)), high = vadd(high, vload(bias + WIDTH));
            finish(to, row + m, block + n, low, high);
        }
    }
}

// M rows times the blocks of a range; few rows take two blocks at once, whose chains hide one another's latency.
template <class S, int M>
static void strip(const Linear& layer, const char* weights, Range blocks, const float* x, int64_t stride, int row, const Epilogue& to) {
    constexpr int N = M <= (SPECDEC_LANES == 16 ? 4 : 1) ? 2 : 1;
    const int64_t bytes = int64_t(layer.inputs) * BLOCK * S::BYTES;
    int block = blocks.from;
    auto at = [&] { return weights + (block - blocks.from) * bytes; };
    for (; block + N <= blocks.to; block += N) tile<S, M, N>(layer, at(), block, x, stride, row, to);
    if constexpr (N > 1)
        if (block < blocks.to) tile<S, M, 1>(layer, at(), block, x, stride, row, to);
}

// `weights`: those of the first block of the range.
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
    const int64_t bytes = int64_t(layer.inputs) * BLOCK * S::BYTES;
    const char* weights = static_cast<const char*>(layer.weights) + blocks.from * bytes;
    if (rows <= TILE_ROWS) return rows_of<S>(rows, layer, weights, blocks, x, stride, 0, to);
    // A block stays near while all rows pass. It is widened anew for each tile, beside the arithmetic, which is faster
    // than to keep it twice as large.
    for (int block = blocks.from; block < blocks.to; ++block, weights += bytes)
        tiles<S>(layer, weights, {block, block + 1}, x, stride, rows, to);
}

// This thread's part of x W + b, from x [rows][stride].
static void product(const Linear& layer, Range blocks, const float* x, int64_t stride, int rows, const Epilogue& to) {
    switch (layer.storage) {
    case FLOAT32: return product_of<Float32>(layer, blocks, x, stride, rows, to);
    case BFLOAT16: return product_of<Bfloat16>(layer, blocks, x, stride, rows, to);
    case FLOAT16: return product_of<Float16>(layer, blocks, x, stride, rows, to);
    default: return product_of<Int8>(layer, blocks, x, stride, rows, to);
    }
}

}  // namespace specdec
