// Sixteen floats on any instruction set, with the same bits everywhere.
//
// A `V` is always 16 floats, whatever a register holds: one register of 16 lanes (AVX-512), two of 8 (AVX2) or four of
// 4 (SSE with FMA, NEON). Code above this header sees only the 16, so an order of sums never depends on the machine.
//
// What keeps the bits: +, -, * and / are correctly rounded per lane; a fused multiply-add happens only where `vfma` is
// called (compile with -ffp-contract=off and without fast-math); `hsum` adds in one fixed tree. The sign and the
// payload of a NaN are the only bits that may differ between machines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__FAST_MATH__)
#error "Fast-math reorders sums: compile without it."
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Stored weights are read as little-endian words."
#endif

#if !defined(SPECDEC_LANES)
#if defined(__AVX512F__)
#define SPECDEC_LANES 16
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define SPECDEC_LANES 8
#else
#define SPECDEC_LANES 4
#endif
#endif

#if defined(__x86_64__) && (defined(__FMA__) || defined(__AVX512F__))
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#else
#error "No fused multiply-add: compile for x86-64 with -mfma or for aarch64."
#endif

#define INL inline __attribute__((always_inline))

// Goes before a loop of a constant, small number of rounds that must live in registers.
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

namespace specdec {

constexpr int LANES = SPECDEC_LANES;  // floats in one register
constexpr int NP = 16 / LANES;        // registers in one V

typedef float Floats __attribute__((vector_size(4 * SPECDEC_LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * SPECDEC_LANES)));
typedef int32_t Flags __attribute__((vector_size(4 * SPECDEC_LANES)));

struct V {  // 16 floats
    Floats p[NP];
};
struct W {  // 16 words of 32 bits
    Words p[NP];
};
struct Mask {  // 16 answers: all bits set is yes, no bit set is no
    Flags p[NP];
};

// A number, a register or more of them, from anywhere.
template <class T>
INL T unaligned(const void* from) {
    T number;
    memcpy(&number, from, sizeof(number));
    return number;
}

// ---- What every instruction set spells its own way: one register's fused multiply-add, widening of halves and bytes ----

#if SPECDEC_LANES == 16
INL Floats fma_register(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
INL Floats f16_register(const uint16_t* from) {
    // The mask of all lanes: GCC 12 takes the plain form's unused operand for an uninitialized variable.
    return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
INL Floats i8_register(const int8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, bytes));
}
#elif SPECDEC_LANES == 8
INL Floats fma_register(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
INL Floats f16_register(const uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
INL Floats i8_register(const int8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
#elif defined(__aarch64__)
INL Floats fma_register(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
INL Floats f16_register(const uint16_t* from) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))); }
#else
INL Floats fma_register(Floats a, Floats b, Floats c) { return _mm_fmadd_ps(a, b, c); }
#if defined(__F16C__)
INL Floats f16_register(const uint16_t* from) {
    return _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}
#else
INL Floats f16_register(const uint16_t* from) {
    Words half = {from[0], from[1], from[2], from[3]};
    Words magnitude = (half & 0x7fffu) << 13;  // a float whose exponent is 112 too small, so subnormals stay right
    Words finite = (Words)((Floats)magnitude * 0x1p112f);
    Words widened = (half & 0x7c00u) == 0x7c00u ? magnitude | 0x7f800000u : finite;  // infinities and NaNs
    return (Floats)(widened | (half & 0x8000u) << 16);
}
#endif
#endif

#if SPECDEC_LANES == 4
INL Floats i8_register(const int8_t* from) {
    typedef int8_t Bytes __attribute__((vector_size(4)));
    return __builtin_convertvector(unaligned<Bytes>(from), Floats);
}
#endif

// ---- Loads, stores, constants ----

// 16 numbers, register by register: `at` makes those of register i.
template <class T, class At>
INL T each(At at) {
    T made;
    UNROLL for (int i = 0; i < NP; ++i) made.p[i] = at(i);
    return made;
}

INL V vload(const float* from) {
    return each<V>([=](int i) { return unaligned<Floats>(from + i * LANES); });
}
INL void vstore(float* to, V v) {
    UNROLL for (int i = 0; i < NP; ++i) memcpy(to + i * LANES, &v.p[i], sizeof(Floats));
}
INL V vset(float a) {
    return each<V>([=](int) { return a - Floats{}; });  // minus +0 keeps every value, -0 too
}
INL V vzero() { return V{}; }

// 32 bfloat16 stored as 16 words: the low half of word i is column i, the high half is column i + 16. A bfloat16 is the
// upper half of a float, so widening is exact.
INL void vload_bf16_pairs(const uint16_t* from, V& low, V& high) {
    const W pairs = each<W>([=](int i) { return unaligned<Words>(from + 2 * i * LANES); });
    low = each<V>([&](int i) { return (Floats)(pairs.p[i] << 16); });
    high = each<V>([&](int i) { return (Floats)(pairs.p[i] & 0xffff0000u); });
}

// 16 IEEE halves in order; exact, subnormal halves included.
INL V vload_f16(const uint16_t* from) {
    return each<V>([=](int i) { return f16_register(from + i * LANES); });
}

// 16 signed bytes in order, exactly.
INL V vload_i8(const int8_t* from) {
    return each<V>([=](int i) { return i8_register(from + i * LANES); });
}

// Ask for the line `bytes` behind an address. It may lie outside of every array, so the address is computed as a
// number.
INL void prefetch(const char* from, uintptr_t bytes) {
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(from) + bytes));
}

// ---- Arithmetic: each result is rounded once ----

INL V vfma(V a, V b, V c) {  // a * b + c
    return each<V>([&](int i) { return fma_register(a.p[i], b.p[i], c.p[i]); });
}
INL V vmul(V a, V b) {
    return each<V>([&](int i) { return a.p[i] * b.p[i]; });
}
INL V vadd(V a, V b) {
    return each<V>([&](int i) { return a.p[i] + b.p[i]; });
}
INL V vsub(V a, V b) {
    return each<V>([&](int i) { return a.p[i] - b.p[i]; });
}
INL V vdiv(V a, V b) {
    return each<V>([&](int i) { return a.p[i] / b.p[i]; });
}

// ---- Comparison and choice: a comparison with a NaN says no ----

INL Mask vless(V a, V b) {
    return each<Mask>([&](int i) { return a.p[i] < b.p[i]; });
}
INL Mask vat_most(V a, V b) {
    return each<Mask>([&](int i) { return a.p[i] <= b.p[i]; });
}
INL V vselect(Mask mask, V yes, V no) {
    return each<V>([&](int i) { return mask.p[i] ? yes.p[i] : no.p[i]; });
}

// The larger and the smaller, of floats or of registers. A NaN on either side gives NaN (the instructions of x86 would
// drop one side's), and of two equal operands, +0 and -0 among them, the second is returned.
template <class T>
INL T larger(T a, T b) {
    return ((a > b) | (a != a)) ? a : b;
}
template <class T>
INL T smaller(T a, T b) {
    return ((a < b) | (a != a)) ? a : b;
}
INL V vmax(V a, V b) {
    return each<V>([&](int i) { return larger(a.p[i], b.p[i]); });
}
INL V vmin(V a, V b) {
    return each<V>([&](int i) { return smaller(a.p[i], b.p[i]); });
}

// ---- The bits of floats ----

INL W vbits(V v) {
    return each<W>([&](int i) { return (Words)v.p[i]; });
}
INL V vfrom_bits(W w) {
    return each<V>([&](int i) { return (Floats)w.p[i]; });
}
INL W operator+(W a, W b) {  // modulo 2^32, as are the other operations on words
    return each<W>([&](int i) { return a.p[i] + b.p[i]; });
}
INL W operator+(W a, uint32_t b) {
    return each<W>([&](int i) { return a.p[i] + b; });
}
INL W operator&(W a, uint32_t b) {
    return each<W>([&](int i) { return a.p[i] & b; });
}
INL W operator|(W a, uint32_t b) {
    return each<W>([&](int i) { return a.p[i] | b; });
}
INL W operator<<(W a, int count) {
    return each<W>([&](int i) { return a.p[i] << count; });
}
INL W operator>>(W a, int count) {
    return each<W>([&](int i) { return a.p[i] >> count; });
}

#if SPECDEC_LANES == 16
// Write those of 16 words that the mask names one after the other, and return how many. All 16 places may be written.
// Narrower registers have no instruction for this: a loop over numbers is faster there.
INL int vpack(uint32_t* to, W words, Mask mask) {
    const __m512i names = (__m512i)mask.p[0];
    const __mmask16 which = _mm512_test_epi32_mask(names, names);
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(which, (__m512i)words.p[0]));
    return __builtin_popcount(which);
}
#endif

// ---- From 16 lanes to one number ----

typedef float Quad __attribute__((vector_size(16)));
struct Quads {
    Quad q[4];
};
INL Quads quads(V v) {
    return unaligned<Quads>(&v);
}

// The sum in one tree for all machines: lanes 8 apart first, then 4, 2 and 1 apart.
INL float hsum(V v) {
    Quads t = quads(v);
    Quad four = (t.q[0] + t.q[2]) + (t.q[1] + t.q[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

// The largest lane; a NaN in any lane gives NaN. The tree is that of hsum.
INL float hmax(V v) {
    Quads t = quads(v);
    Quad four = larger(larger(t.q[0], t.q[2]), larger(t.q[1], t.q[3]));
    Quad two = larger(four, Quad{four[2], four[3], four[2], four[3]});
    Quad one = larger(two, Quad{two[1], two[1], two[1], two[1]});
    return one[0];
}

// ---- Sums in double precision ----

typedef double Doubles __attribute__((vector_size(4 * SPECDEC_LANES)));

// As many floats as one register has room for doubles, widened. GCC 12 spells the conversion of 8 in four steps.
INL Doubles widened(const float* from) {
#if SPECDEC_LANES == 16
    return _mm512_maskz_cvtps_pd(0xff, _mm256_loadu_ps(from));
#else
    typedef float HalfFloats __attribute__((vector_size(2 * SPECDEC_LANES)));
    return __builtin_convertvector(unaligned<HalfFloats>(from), Doubles);
#endif
}

struct Sums {  // one for each of 16 numbers side by side
    Doubles p[2 * NP];
};

INL void accumulate(Sums& sums, const float* from) {
    UNROLL for (int i = 0; i < 2 * NP; ++i) sums.p[i] += widened(from + i * LANES / 2);
}
INL void accumulate(Sums& sums, const double* from) {
    UNROLL for (int i = 0; i < 2 * NP; ++i) sums.p[i] += unaligned<Doubles>(from + i * LANES / 2);
}

// All of them together, in the tree of hsum.
INL double total(const Sums& sums) {
    double t[16];
    memcpy(t, &sums, sizeof(t));
    for (int apart = 8; apart; apart /= 2)
        for (int i = 0; i < apart; ++i) t[i] += t[i + apart];
    return t[0];
}

}  // namespace specdec
