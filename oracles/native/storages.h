// How blocks of weights lie in memory, and how they are read: 32 columns of an input at a time.
//
// A block has groups of GROUP inputs, or one of them all where GROUP is 0. A group begins with HEAD bytes; then come
// steps of STEP bytes, each with INPUTS inputs.
#pragma once
#include "bytes.h"
#include "model.h"

namespace specdec {

INL float widened(uint32_t high_bits) {
    float out;
    std::memcpy(&out, &high_bits, 4);
    return out;
}

// Where a column of a block stands in a row of pairs: the columns c and c + 16 side by side.
INL int in_pairs(int column) { return column % WIDTH * 2 + column / WIDTH; }

// Weights that a row's inputs meet one by one: each product is added by one fused multiply-add.
struct Chained {
    using Sum = V;
    static constexpr int GROUP = 0, HEAD = 0, INPUTS = 1;
    static INL int count(int inputs) { return inputs; }
    INL void open(const Linear&, int, const char*) {}
    static INL V input(const float* x, int k) { return vset(x[k]); }
    static INL V add(V sum, V input, V weight) { return vfma(input, weight, sum); }
    static INL V result(V sum, const Linear&, int, const char*, const float*) { return sum; }
};

struct Float32 : Chained {
    static constexpr int STEP = 4 * BLOCK;
    static INL void load(const char* row, int, V& low, V& high) {
        low = vload(reinterpret_cast<const float*>(row));
        high = vload(reinterpret_cast<const float*>(row) + WIDTH);
    }
    static float weight(const Linear&, const char* block, int64_t column, int k) {
        return reinterpret_cast<const float*>(block)[int64_t(k) * BLOCK + column % BLOCK];
    }
};

struct Bfloat16 : Chained {
    static constexpr int STEP = 2 * BLOCK;
    static INL void load(const char* row, int, V& low, V& high) {
        vload_bf16_pairs(reinterpret_cast<const uint16_t*>(row), low, high);
    }
    static float weight(const Linear&, const char* block, int64_t column, int k) {
        const uint16_t* row = reinterpret_cast<const uint16_t*>(block) + int64_t(k) * BLOCK;
        return widened(uint32_t(row[in_pairs(int(column % BLOCK))]) << 16);
    }
};

struct Float16 : Chained {
    static constexpr int STEP = 2 * BLOCK;
    static INL void load(const char* row, int, V& low, V& high) {
        low = vload_f16(reinterpret_cast<const uint16_t*>(row));
        high = vload_f16(reinterpret_cast<const uint16_t*>(row) + WIDTH);
    }
    static float weight(const Linear&, const char* block, int64_t column, int k) {
        float row[BLOCK];
        const uint16_t* halves = reinterpret_cast<const uint16_t*>(block) + int64_t(k) * BLOCK;
        vstore(row, vload_f16(halves));
        vstore(row + WIDTH, vload_f16(halves + WIDTH));
        return row[column % BLOCK];
    }
};

// Each weight is the float that its byte times its column's scale is rounded to; the scales stay in registers.
struct Int8 : Chained {
    static constexpr int STEP = BLOCK;
    V low_scale, high_scale;
    INL void open(const Linear& layer, int block, const char*) {
        low_scale = vload(layer.scales + block * BLOCK);
        high_scale = vload(layer.scales + block * BLOCK + WIDTH);
    }
    INL void load(const char* row, int, V& low, V& high) const {
        low = vmul(vload_i8(reinterpret_cast<const int8_t*>(row)), low_scale);
        high = vmul(vload_i8(reinterpret_cast<const int8_t*>(row) + WIDTH), high_scale);
    }
    static float weight(const Linear& layer, const char* block, int64_t column, int k) {
        return float(int8_t(block[int64_t(k) * BLOCK + column % BLOCK])) * layer.scales[column];
    }
};

// Four bits, plus 8 so that none is negative. A group begins with the scales of its columns, in pairs as bfloat16 weights
// are. A step has a word for each pair of columns: a byte for each of 4 inputs, whose low half is column c and whose high
// half is column c + 16. In the upper bits of a mantissa they make the float 24 + q, and (24 + q) * scale - 24 * scale is
// rounded once: that is q * scale, to the bit, if 24 * scale is finite (a scale of 8 bits makes it exact).
struct Int4 : Chained {
    static constexpr int GROUP = 32, HEAD = 2 * BLOCK, INPUTS = 4, STEP = INPUTS * BLOCK / 2;
    static constexpr int MANTISSA = 19;  // the lowest of its upper four bits
    V low_scale, high_scale, low_shift, high_shift;
    INL void open(const Linear&, int, const char* head) {
        vload_bf16_pairs(reinterpret_cast<const uint16_t*>(head), low_scale, high_scale);
        low_shift = vmul(vset(-24), low_scale), high_shift = vmul(vset(-24), high_scale);
    }
    INL void load(const char* step, int i, V& low, V& high) const {
        const W words = vload_words(step);
        low = vfma(number(words, 8 * i), low_scale, low_shift);
        high = vfma(number(words, 8 * i + 4), high_scale, high_shift);
    }
    static INL V number(W words, int bit) {
        const W moved = bit < MANTISSA ? words << (MANTISSA - bit) : words >> (bit - MANTISSA);
        return vfrom_bits((moved & (15u << MANTISSA)) | 0x41800000u);
    }
    static float weight(const Linear&, const char* block, int64_t column, int k) {
        const int place = in_pairs(int(column % BLOCK));
        const char* group = block + int64_t(k / GROUP) * (HEAD + GROUP / INPUTS * STEP);
        const uint32_t scale = reinterpret_cast<const uint16_t*>(group)[place];
        const int byte = uint8_t(group[HEAD + k % GROUP / INPUTS * STEP + place / 2 * INPUTS + k % INPUTS]);
        return float((byte >> place % 2 * 4 & 15) - 8) * widened(scale << 16);
    }
};

// Whole numbers that meet rows of whole numbers, which `round_row` writes: what is added up is exact, modulo 2^32. Steps
// have 4 bytes for each column. Inputs are bytes plus 128: a block begins with what that adds to the sums of its columns,
// negated.
struct Int8Dynamic {
    using Sum = W;
    static constexpr int GROUP = 0, HEAD = 4 * BLOCK, INPUTS = 1, STEP = 4 * BLOCK;
    static INL int count(int inputs) { return (inputs + 3) / 4; }
    INL void open(const Linear&, int, const char*) {}
    static INL void load(const char* step, int, W& low, W& high) {
        low = vload_words(step), high = vload_words(step + 4 * WIDTH);
    }
    static INL W input(const float* x, int k) { return vset_word(x + 1 + k); }
    static INL W add(W sum, W input, W weight) { return vdot(sum, input, weight); }
    static INL V result(W sum, const Linear& layer, int column, const char* head, const float* x) {
        const V exact = vfloat(sum + vload_words(head + column % BLOCK * 4));
        return vmul(vmul(exact, vset(x[0])), vload(layer.scales + column));
    }
    static float weight(const Linear& layer, const char* block, int64_t column, int k) {
        return float(int8_t(block[HEAD + int64_t(k / 4) * STEP + column % BLOCK * 4 + k % 4])) * layer.scales[column];
    }
};

// From one block to the next.
template <class S>
INL int64_t block_bytes(int inputs) {
    const int64_t count = S::count(inputs), group = S::GROUP ? S::GROUP : count;
    return rounded(count, group) / group * (S::HEAD + group / S::INPUTS * S::STEP);
}

// Call a function with the storage of a layer.
template <class Function>
INL void with_storage(const Linear& layer, Function function) {
    switch (layer.storage) {
    case FLOAT32: return function(Float32{});
    case BFLOAT16: return function(Bfloat16{});
    case FLOAT16: return function(Float16{});
    case INT8: return function(Int8{});
    case INT4: return function(Int4{});
    default: return function(Int8Dynamic{});
    }
}

}  // namespace specdec
