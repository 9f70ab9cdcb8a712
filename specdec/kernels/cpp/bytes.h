// Whole numbers beside the floats of `lanes.h`: exact products of bytes, added up modulo 2^32.
#pragma once

#include "lanes.h"

namespace specdec {

// Each word of `sum` plus, modulo 2^32, the products of four bytes: those of `inputs` are unsigned, those of `weights`
// signed.
#if SPECDEC_LANES == 16 && defined(__AVX512VNNI__)
INL Words dot_register(Words sum, Words inputs, Words weights) {
    return (Words)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)inputs, (__m512i)weights);
}
#else
typedef int16_t Shorts __attribute__((vector_size(4 * SPECDEC_LANES)));
typedef uint16_t HalfWords __attribute__((vector_size(4 * SPECDEC_LANES)));

// The products of neighbours, added up.
INL Words add_pairs(Shorts a, Shorts b) {
#if SPECDEC_LANES == 8
    return (Words)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    const Flags products = (Flags)(a * b);  // 255 * -128 still fits a short
    return (Words)((Flags)((Words)products << 16) >> 16) + (Words)(products >> 16);
#endif
}
INL Words dot_register(Words sum, Words inputs, Words weights) {
    const Shorts odd = (Shorts)weights >> 8, even = (Shorts)((HalfWords)weights << 8) >> 8;
    return sum + add_pairs((Shorts)(inputs & 0xff00ffu), even) + add_pairs((Shorts)(inputs >> 8 & 0xff00ffu), odd);
}
#endif

// 16 words in order, from anywhere; one word 16 times.
INL W vload_words(const void* from) {
    return each<W>([=](int i) { return unaligned<Words>(static_cast<const char*>(from) + i * sizeof(Words)); });
}
INL W vset_word(const void* from) {
    const uint32_t word = unaligned<uint32_t>(from);
    return each<W>([=](int) { return word - Words{}; });
}
// The lowest byte of each word, in order.
INL void vstore_bytes(uint8_t* to, W words) {
#if SPECDEC_LANES == 16
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)words.p[0]));
#else
    typedef uint8_t Bytes __attribute__((vector_size(SPECDEC_LANES)));
    UNROLL for (int i = 0; i < NP; ++i) {
        const Bytes bytes = __builtin_convertvector(words.p[i], Bytes);
        memcpy(to + i * LANES, &bytes, sizeof(Bytes));
    }
#endif
}

// All words in one: `both` joins two vectors of them, in any order.
template <class Function>
INL uint32_t fold_words(W words, Function both) {
    typedef uint32_t Four __attribute__((vector_size(16)));
    Four fours[4];
    memcpy(fours, &words, sizeof(fours));
    const Four all = both(both(fours[0], fours[2]), both(fours[1], fours[3]));
    const Four two = both(all, Four{all[2], all[3], all[0], all[1]});
    return both(two, Four{two[1], two[0], two[3], two[2]})[0];
}
// The sum of all words, modulo 2^32; the largest of them.
INL uint32_t sum_words(W words) {
    return fold_words(words, [](auto a, auto b) { return a + b; });
}
INL uint32_t largest_word(W words) {
    return fold_words(words, [](auto a, auto b) { return a > b ? a : b; });
}
INL W larger_words(W a, W b) {
    return each<W>([&](int i) { return a.p[i] > b.p[i] ? a.p[i] : b.p[i]; });
}

// Signed words, rounded to the nearest float.
INL V vfloat(W w) {
    return each<V>([&](int i) { return __builtin_convertvector((Flags)w.p[i], Floats); });
}
// See `dot_register`.
INL W vdot(W sum, W inputs, W weights) {
    return each<W>([&](int i) { return dot_register(sum.p[i], inputs.p[i], weights.p[i]); });
}

}  // namespace specdec
