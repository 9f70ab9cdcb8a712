// How blocks of weights lie in memory, and how they are read: 32 columns of an input at a time.
//
// A block has groups of GROUP inputs; if GROUP is 0, one group of all inputs. A group begins with HEAD bytes; then come
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

// Weights that are multiplied with a row's inputs one by one: each product is added by one fused multiply-add.
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
};

struct Bfloat16 : Chained {
    static constexpr int STEP = 2 * BLOCK;
    static INL void load(const char* row, int, V& low, V& high) {
        vload_bf16_pairs(reinterpret_cast<const uint16_t*>(row), low, high);
    }
};

struct Float16 : Chained {
    static constexpr int STEP = 2 * BLOCK;
    static INL void load(const char* row, int, V& low, V& high) {
        low = vload_f16(reinterpret_cast<const uint16_t*>(row));
        high = vload_f16(reinterpret_cast<const uint16_t*>(row) + WIDTH);
    }
};

// Each weight is its byte times its column's scale, rounded to float; the scales stay in registers.
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
};

// Whole numbers times rows of whole numbers, which `round_row` writes: sums are exact, modulo 2^32. Steps have 4 bytes for
// each column. Inputs are bytes plus 128: a block begins with minus what that offset adds to the sums of its columns.
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

// Weights as GGUF files hold them: groups of 32 inputs in which every column has a scale, and in Q4_1 a minimum that is
// added, as float16. A group begins with the scales of its columns, in order, then the minima. A step has a word for each
// column: the bytes of 4 inputs, or 4 inputs and the next 4 in the halves of its bytes. The stored numbers count from 0 and
// are too large by ABOVE. A number times a scale is exact, so a weight is rounded at most once.
template <int BITS, bool MINIMA>
struct Stored : Chained {
    static constexpr int GROUP = 32, HEAD = 2 * BLOCK * (1 + MINIMA), INPUTS = 32 / BITS, STEP = 4 * BLOCK;
    static constexpr int ABOVE = MINIMA ? 0 : 1 << (BITS - 1);
    static constexpr float WHOLE = 0x1p23f;  // a number in the lowest bits of its mantissa is added to it
    V low_scale, high_scale, low_minimum, high_minimum;
    INL void open(const Linear&, int, const char* head) {
        const uint16_t* scales = reinterpret_cast<const uint16_t*>(head);
        low_scale = vload_f16(scales), high_scale = vload_f16(scales + WIDTH);
        if (MINIMA) low_minimum = vload_f16(scales + BLOCK), high_minimum = vload_f16(scales + BLOCK + WIDTH);
    }
    INL void load(const char* step, int i, V& low, V& high) const {
        low = vload_number(step, i), high = vload_number(step + 4 * WIDTH, i);
        low = MINIMA ? vfma(low, low_scale, low_minimum) : vmul(low, low_scale);
        high = MINIMA ? vfma(high, high_scale, high_minimum) : vmul(high, high_scale);
    }
    static INL int bit(int i) { return i % 4 * 8 + i / 4 * BITS; }
    static INL V vload_number(const char* words, int i) {
        const W number = (vload_words(words) >> bit(i)) & ((1u << BITS) - 1);
        return vsub(vfrom_bits(number | 0x4b000000u), vset(WHOLE + ABOVE));
    }
};
using Q8_0 = Stored<8, false>;
using Q4_0 = Stored<4, false>;
using Q4_1 = Stored<4, true>;

// A group of inputs as `round_groups` writes it: whole numbers with a scale, and the factor of minima, the scale times the
// sum of the numbers.
struct Group {
    float scale, shift;
    int32_t sum, unused;
    int8_t numbers[32];
};

// The same weights times groups of whole numbers. Sums within a group are exact; groups are added in order, by fused
// multiply-adds: the sum times (weights' scale * inputs' scale), then the minimum times the shift.
template <class S>
struct Whole : S {
    INL W begin(const Group& group) const {
        const int32_t less = -S::ABOVE * group.sum;
        return vset_word(&less);
    }
    static constexpr int PARTS = S::INPUTS / 4;  // of a step: 4 inputs each
    static INL W part(W words, int i) { return PARTS == 1 ? words : (words >> 4 * i) & 0x0f0f0f0fu; }
    INL void close(const Group& group, W low, W high, V* sums) const {
        const V scale = vset(group.scale);
        sums[0] = vfma(vfloat(low), vmul(S::low_scale, scale), sums[0]);
        sums[1] = vfma(vfloat(high), vmul(S::high_scale, scale), sums[1]);
        if (S::ABOVE) return;
        sums[0] = vfma(S::low_minimum, vset(group.shift), sums[0]);
        sums[1] = vfma(S::high_minimum, vset(group.shift), sums[1]);
    }
};
template <class S>
constexpr bool IS_WHOLE = false;
template <class S>
constexpr bool IS_WHOLE<Whole<S>> = true;

// Bytes from one block to the next.
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
    case INT8_DYNAMIC: return function(Int8Dynamic{});
    case Q8_0_STORED: return function(Q8_0{});
    case Q4_0_STORED: return function(Q4_0{});
    case Q4_1_STORED: return function(Q4_1{});
    case Q8_0_WHOLE: return function(Whole<Q8_0>{});
    case Q4_0_WHOLE: return function(Whole<Q4_0>{});
    default: return function(Whole<Q4_1>{});
    }
}

}  // namespace specdec
