// Norms of rows, their rounding to whole numbers, and the widening of stored rows.
#pragma once
#include <cfloat>
#include <cmath>
#include <type_traits>

#include "linear.h"

namespace specdec {

// The sum of the squares of x - mean; `size` entries count, x holds whole vectors.
INL float squares(const float* x, int size, float mean) {
    V sums[4] = {vzero(), vzero(), vzero(), vzero()};
    const V shift = vset(mean);
    int i = 0;
    for (; i + WIDTH <= size; i += WIDTH) {
        const V a = vsub(vload(x + i), shift);
        sums[i / WIDTH % 4] = vfma(a, a, sums[i / WIDTH % 4]);
    }
    if (i < size) {
        float rest[WIDTH] = {};
        for (int j = i; j < size; ++j) rest[j - i] = x[j] - mean;
        const V a = vload(rest);
        sums[i / WIDTH % 4] = vfma(a, a, sums[i / WIDTH % 4]);
    }
    return hsum(vadd(vadd(sums[0], sums[1]), vadd(sums[2], sums[3])));
}

INL float mean(const float* x, int size) {
    V sum = vzero();
    int i = 0;
    for (; i + WIDTH <= size; i += WIDTH) sum = vadd(sum, vload(x + i));
    float rest[WIDTH] = {};
    std::copy(x + i, x + size, rest);
    return hsum(vadd(sum, vload(rest))) / float(size);
}

// Scale `size` entries by the inverse of their root mean square; out may be x. Padding entries stay zero.
INL void scale_by_rms(const float* x, const float* weight, float eps, int size, float* out) {
    const V scale = vset(1.0f / std::sqrt(squares(x, size, 0.0f) / float(size) + eps));
    for (int i = 0; i < size; i += WIDTH) vstore(out + i, vmul(vmul(vload(x + i), scale), vload(weight + i)));
}

static void normalise(const Norm& norm, const float* x, float* out) {
    if (!norm.weight) return void(std::copy(x, x + rounded(norm.size, WIDTH), out));
    if (!norm.bias) return scale_by_rms(x, norm.weight, norm.eps, norm.size, out);
    const float middle = mean(x, norm.size);
    const V scale = vset(1.0f / std::sqrt(squares(x, norm.size, middle) / float(norm.size) + norm.eps));
    for (int i = 0; i < norm.size; i += WIDTH) {
        const V a = vmul(vsub(vload(x + i), vset(middle)), scale);
        vstore(out + i, vfma(a, vload(norm.weight + i), vload(norm.bias + i)));
    }
}

// Row `index` of a stored table [..][size] as float32.
static void read_row(const void* table, int32_t storage, int64_t index, int size, float* out) {
    if (storage == FLOAT32) {
        const float* row = static_cast<const float*>(table) + index * size;
        std::copy(row, row + size, out);
        return;
    }
    const uint16_t* row = static_cast<const uint16_t*>(table) + index * size;
    if (storage == BFLOAT16) {
        for (int i = 0; i < size; ++i) out[i] = widened(uint32_t(row[i]) << 16);
        return;
    }
    for (int i = 0; i < size; i += WIDTH) {
        uint16_t part[WIDTH] = {};
        float wide[WIDTH];
        std::copy(row + i, row + std::min(i + WIDTH, size), part);
        vstore(wide, vload_f16(part));
        std::copy(wide, wide + std::min(WIDTH, size - i), out + i);
    }
}

// Column `index` of a packed layer as float32, as products read it: an id's embedding if the head is the embedding table.
static void read_column(const Linear& layer, int64_t index, float* out) {
    with_storage(layer, [&](auto storage) {
        using S = decltype(storage);
        const char* at = static_cast<const char*>(layer.weights) + index / BLOCK * block_bytes<S>(layer.inputs);
        if constexpr (std::is_same_v<S, Int8Dynamic>) {
            for (int k = 0; k < layer.inputs; ++k) out[k] = S::weight(layer, at, index, k);
        } else {
            for (int k = 0; k < layer.inputs;) {
                storage.open(layer, int(index / BLOCK), at);
                at += S::HEAD;
                const int stop = S::GROUP ? std::min(k + S::GROUP, layer.inputs) : layer.inputs;
                for (; k < stop; at += S::STEP)
                    for (int i = 0; i < S::INPUTS && k < stop; ++i, ++k) {
                        V low, high;
                        float row[BLOCK];
                        storage.load(at, i, low, high);
                        vstore(row, low), vstore(row + WIDTH, high);
                        out[k] = row[index % BLOCK];
                    }
            }
        }
    });
}

// The embedding of an id as float32, without position embeddings.
static void read_embedding(const Model& model, int64_t id, float* out) {
    if (model.embeddings) read_row(model.embeddings, model.embedding_storage, id, model.hidden, out);
    else read_column(model.head, id, out);
}

// A row of floats as whole numbers with a scale of the row: the scale, then for each input a byte, the nearest number plus
// 128. The scale of a row that holds a NaN or an infinity is NaN, and so is every product with it.
INL int64_t rounded_row(int inputs) { return rounded(1 + rounded(inputs, WIDTH) / 4, WIDTH); }
// Or in groups of 32 inputs, each with its own scale. Returns the number of floats that a row takes.
INL int64_t rounded_groups(int inputs) { return rounded(inputs, 32) / 32 * int64_t(sizeof(Group) / 4); }

// The bits of magnitudes, which have the same order; those of a NaN are above all.
INL W magnitude(V v) { return vbits(v) & 0x7fffffffu; }

static void round_row(const float* x, int inputs, float* out) {
    constexpr float whole = 0x1.8p23f + 128;  // added to a number below 2^22, it leaves whole ones, halves to even
    float rest[WIDTH] = {};
    const int even = inputs / WIDTH * WIDTH;
    std::copy(x + even, x + inputs, rest);
    W most = magnitude(vload(rest));
    for (int k = 0; k < even; k += WIDTH) most = larger_words(most, magnitude(vload(x + k)));
    const float fitting = larger(widened(largest_word(most)) / 127, FLT_MIN), scale = fitting + (fitting - fitting);
    uint8_t* numbers = reinterpret_cast<uint8_t*>(out + 1);
    const auto number = [&](V from) { return vbits(vadd(vdiv(from, vset(scale)), vset(whole))); };
    for (int k = 0; k < even; k += WIDTH) vstore_bytes(numbers + k, number(vload(x + k)));
    if (even < inputs) vstore_bytes(numbers + even, number(vload(rest)));
    out[0] = scale;
}

// One group. If it holds a NaN or an infinity, its scale is NaN.
INL void round_group(const float* x, Group& group) {
    constexpr float whole = 0x1.8p23f;  // see above: the lowest byte is the number
    constexpr uint32_t bits = 0x4b400000;
    const V low = vload(x), high = vload(x + WIDTH);
    const float fitting = larger(widened(largest_word(larger_words(magnitude(low), magnitude(high)))) / 127, FLT_MIN);
    const float scale = fitting + (fitting - fitting);
    const auto number = [&](V from) { return vbits(vadd(vdiv(from, vset(scale)), vset(whole))); };
    const W lower = number(low), higher = number(high);
    vstore_bytes(reinterpret_cast<uint8_t*>(group.numbers), lower);
    vstore_bytes(reinterpret_cast<uint8_t*>(group.numbers) + WIDTH, higher);
    group.sum = int32_t(sum_words(lower + higher) - 32 * bits);  // modulo 2^32
    group.scale = scale, group.shift = scale * float(group.sum), group.unused = 0;
}

// The last group is filled up with zeros.
static void round_groups(const float* x, int inputs, float* out) {
    Group* groups = reinterpret_cast<Group*>(out);
    const int even = inputs / 32 * 32;
    for (int k = 0; k < even; k += 32) round_group(x + k, *groups++);
    if (even == inputs) return;
    float rest[32] = {};
    std::copy(x + even, x + inputs, rest);
    round_group(rest, *groups);
}

// A row in the form that a layer which rounds its inputs takes.
INL void round_inputs(const Linear& by, const float* x, float* out) {
    if (rounds_groups(by)) round_groups(x, by.inputs, out);
    else round_row(x, by.inputs, out);
}

}  // namespace specdec
