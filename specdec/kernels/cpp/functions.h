// Elementary functions in our own arithmetic: a library's exp or sine has other bits on another machine.
//
// Every step below is one correctly rounded operation or one explicit fused multiply-add, in an order that the source
// fixes. The polynomials are weighted minimax fits, rounded to float32. Arguments may be any float, NaN included; the
// thread's mode must be that of FloatMode. The errors were measured against float64 references over dense sweeps of
// floats (tests/native repeats the sweeps); an ulp is the distance between neighbouring floats at the exact value.
#pragma once

#include "lanes.h"

namespace specdec {

constexpr float INFINITE = __builtin_inff();

// Unsigned integers of a float's size: the bits of a number, and the number of such bits.
template <class T>
struct BitsOf;
template <>
struct BitsOf<float> {
    using Type = uint32_t;
};
template <>
struct BitsOf<double> {
    using Type = uint64_t;
};
template <class T>
using Bits = typename BitsOf<T>::Type;

template <class T>
INL Bits<T> bits_of(T x) {
    return unaligned<Bits<T>>(&x);
}
template <class T>
INL T from_bits(Bits<T> bits) {
    return unaligned<T>(&bits);
}

// The polynomial in x whose coefficients are listed from the highest power down.
template <int N>
INL V polynomial(V x, const float (&coefficients)[N]) {
    V sum = vset(coefficients[0]);
    UNROLL for (int k = 1; k < N; ++k) sum = vfma(sum, x, vset(coefficients[k]));
    return sum;
}

// e^x. Error below 1.05 ulp. Exactly 1 at 0; exactly 0 below -87.33654, so that no result is subnormal; infinite above
// 88.72283, where e^x exceeds the largest float.
INL V vexp(V x) {
    // x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 is split in two. Adding 1.5 * 2^23 rounds to the nearest integer n and
    // leaves n in the low bits of the sum.
    V shifted = vfma(x, vset(0x1.715476p+0f), vset(0x1.8p23f));
    V n = vsub(shifted, vset(0x1.8p23f));
    V r = vfma(n, vset(-0x1.62e43p-1f), x);
    r = vfma(n, vset(0x1.05c61p-29f), r);
    // e^r = 1 + (r + r^2 q(r))
    V q = polynomial(r, {0x1.6db488p-10f, 0x1.123c6p-7f, 0x1.555498p-5f, 0x1.55548ep-3f, 0.5f});
    V exp_r = vadd(vset(1), vfma(vmul(r, r), q, r));
    // 2^n e^r: n is added to the exponent, which stays in range wherever the result is kept.
    V y = vfrom_bits(vbits(exp_r) + (vbits(shifted) << 23));
    y = vselect(vless(x, vset(-87.33654f)), vzero(), y);
    return vselect(vat_most(x, vset(88.72283f)), y, vadd(x, vset(INFINITE)));  // too large is infinite, NaN is NaN
}

// ln x. Error below 0.95 ulp, subnormal x included. ln 0 = -infinity; NaN for negative x.
INL V vlog(V x) {
    // x = 2^n (1 + f) with 1 + f from sqrt(1/2) to sqrt(2); a subnormal is lifted by 2^23 first.
    Mask subnormal = vless(x, vset(0x1p-126f));
    V lifted = vselect(subnormal, vmul(x, vset(0x1p23f)), x);
    W moved = vbits(lifted) + (0x3f800000u - 0x3f3504f3u);  // moves the step of the exponent from 1 to sqrt(1/2)
    V n = vsub(vfrom_bits((moved >> 23) | 0x4b000000u), vselect(subnormal, vset(0x1p23f + 150), vset(0x1p23f + 127)));
    V f = vsub(vfrom_bits((moved & 0x007fffffu) + 0x3f3504f3u), vset(1));
    // ln(1 + f) = f + f^2 (f q(f) - 1/2)
    V q = polynomial(f, {-0x1.38b4ccp-4f, 0x1.055b46p-3f, -0x1.0d8552p-3f, 0x1.22da22p-3f, -0x1.547244p-3f,
                         0x1.99a008p-3f, -0x1.000228p-2f, 0x1.555554p-2f});
    V ln_f = vfma(vmul(f, f), vfma(f, q, vset(-0.5f)), f);
    V y = vfma(n, vset(0x1.62e43p-1f), vfma(n, vset(-0x1.05c61p-29f), ln_f));
    y = vselect(vat_most(x, vzero()), vset(-INFINITE), y);
    y = vselect(vat_most(vzero(), x), y, vset(__builtin_nanf("")));  // negative or NaN
    return vselect(vless(x, vset(INFINITE)), y, vadd(x, y));         // infinity and NaN stay
}

// x / (1 + e^-z), the common end of the sigmoid, SiLU and the tanh form of GELU.
INL V divide_by_one_plus_exp(V x, V z) { return vdiv(x, vadd(vset(1), vexp(vsub(vzero(), z)))); }

// 1 / (1 + e^-x). Error below 1.6 ulp for x > 0, 2.5 ulp for x < 0; subnormal below -87.336, 0 below -88.72283.
INL V vsigmoid(V x) { return divide_by_one_plus_exp(vset(1), x); }

// x / (1 + e^-x). Error below 1.6 ulp for x > 0, 2.5 ulp for x < 0; -0 below -88.72283; NaN at -infinity, as torch's.
INL V vsilu(V x) { return divide_by_one_plus_exp(x, x); }

// x Phi(x) with the normal distribution function Phi: GELU in its exact form, x/2 (1 + erf(x / sqrt 2)). Absolute error
// below 1e-7 max(1, |x|); 4.5 ulp for x > 0, 5 ulp from -3 to 0 and 12.5 ulp from -12.8 to -3, where the 1 + erf of
// torch's float32 loses all digits. Below -12.9 results turn subnormal, below -13.2 they are -0; NaN at -infinity, as
// torch's.
INL V vgelu(V x) {
    // Phi(-a) = e^(-a^2/2) g(a / (a + 4) - 0.4); g was fitted on a <= 14, and e^(-a^2/2) is 0 from there on.
    V a = vfrom_bits(vbits(x) & 0x7fffffffu);
    a = vselect(vless(a, vset(16)), a, vset(16));
    V square = vmul(a, a), lost = vfma(a, a, vsub(vzero(), square));
    V g = polynomial(vsub(vdiv(a, vadd(a, vset(4))), vset(0.4f)),
                     {-0x1.16173ap-5f, -0x1.a58fdcp-7f, 0x1.b50e9cp-4f, -0x1.26ee96p-5f, -0x1.161a08p-2f,
                      0x1.434b68p-1f, -0x1.98f0eep-1f, 0x1.676b94p-1f, -0x1.d6a6ecp-2f, 0x1.129e6p-3f});
    V tail = vmul(vexp(vmul(square, vset(-0.5f))), g);
    tail = vfma(tail, vmul(lost, vset(-0.5f)), tail);  // what the rounding of the square lost
    return vmul(x, vselect(vless(x, vzero()), tail, vsub(vset(1), tail)));
}

// x / (1 + e^-u) with u = 2 sqrt(2/pi) (x + 0.044715 x^3), which is GELU's tanh form x/2 (1 + tanh(u/2)). Absolute
// error below 1.3e-7 max(1, |x|); 2 ulp for x > 0, 13.5 ulp from -3 to 0, 205 ulp from -9.9 to -3, because e^-u carries
// the rounding of u (torch's float32 gives 0 there). NaN at -infinity, as torch's.
INL V vgelu_tanh(V x) {
    V u = vmul(x, vfma(vmul(x, x), vset(0x1.2444f2p-4f), vset(0x1.988454p+0f)));
    return divide_by_one_plus_exp(x, u);
}

// x, or 0 for negative x; NaN stays.
INL V vrelu(V x) { return vselect(vless(x, vzero()), vzero(), x); }

// The functions between the two halves of an MLP. `bindings.py` reads the names.
enum Activation : int32_t { SILU, GELU, GELU_TANH, RELU };

INL V activate(V x, Activation kind) {
    switch (kind) {
    case SILU: return vsilu(x);
    case GELU: return vgelu(x);
    case GELU_TANH: return vgelu_tanh(x);
    default: return vrelu(x);
    }
}

// The sine and the cosine of an angle from 0 to 2^26, in double precision, absolute error below 3e-16.
inline void sincos(double angle, double& sine, double& cosine) {
    // angle = n pi/2 + r with |r| <= pi/4. The first part of pi/2 has 27 bits, so the first step is exact; adding
    // 1.5 * 2^52 rounds to the nearest integer n.
    double n = __builtin_fma(angle, 0x1.45f306dc9c883p-1, 0x1.8p52) - 0x1.8p52;
    double r = __builtin_fma(-n, 0x1.921fb54p+0, angle);
    r = __builtin_fma(-n, 0x1.10b4611a62633p-30, r);
    r = __builtin_fma(-n, 0x1.45c06e0e68948p-86, r);
    // Taylor's series; the first term left out is below 1e-17.
    constexpr double SINE[] = {1 / 355687428096000., -1 / 1307674368000., 1 / 6227020800., -1 / 39916800.,
                               1 / 362880.,          -1 / 5040.,          1 / 120.,        -1 / 6.};
    constexpr double COSINE[] = {1 / 20922789888000., -1 / 87178291200., 1 / 479001600., -1 / 3628800.,
                                 1 / 40320.,          -1 / 720.,         1 / 24.,        -1 / 2.};
    double square = r * r, s = SINE[0], c = COSINE[0];
    for (int k = 1; k < 8; ++k) {
        s = __builtin_fma(s, square, SINE[k]);
        c = __builtin_fma(c, square, COSINE[k]);
    }
    s = __builtin_fma(r * square, s, r);
    c = __builtin_fma(square, c, 1.0);
    int64_t quarter = static_cast<int64_t>(n) & 3;  // each quarter turn: sine becomes cosine, cosine minus sine
    sine = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
    cosine = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
}

// The two below have neither branches nor conversions of integers, so that a loop over them runs on whole registers.

// e^x in double precision. Error below 1 ulp. Exactly 1 at 0; exactly 0 below -708.3964, so that no result is
// subnormal; infinite above 709.7827.
inline double exp64(double x) {
    // As vexp: x = n ln 2 + r, and adding 1.5 * 2^52 rounds to the nearest n and leaves it in the low bits.
    const double shifted = __builtin_fma(x, 0x1.71547652b82fep+0, 0x1.8p52);
    const double n = shifted - 0x1.8p52;
    double r = __builtin_fma(n, -0x1.62e42fefa39efp-1, x);
    r = __builtin_fma(n, -0x1.abc9e3b39803fp-56, r);
    // Taylor's series of e^r = 1 + (r + r^2 q(r)); the first term left out is below 5e-18.
    constexpr double TAYLOR[] = {1 / 6227020800., 1 / 479001600., 1 / 39916800., 1 / 3628800., 1 / 362880., 1 / 40320.,
                                 1 / 5040.,       1 / 720.,       1 / 120.,      1 / 24.,      1 / 6.,      1 / 2.};
    double q = TAYLOR[0];
    UNROLL for (int k = 1; k < 12; ++k) q = __builtin_fma(q, r, TAYLOR[k]);
    const double exp_r = 1 + __builtin_fma(r * r, q, r);
    const double beyond = x + double(INFINITE);  // too large is infinite, NaN is NaN
    double y = from_bits<double>(bits_of(exp_r) + (bits_of(shifted) << 52));
    y = x < -708.3964 ? 0 : y;
    return x <= 709.7827 ? y : beyond;
}

// ln x in double precision, of a normal positive x. Error below 1 ulp.
inline double log64(double x) {
    // x = 2^n (1 + f) with 1 + f from sqrt(1/2) to sqrt(2). With n + 1023 in its low bits, 2^52 is the sum of both.
    constexpr uint64_t ONE = 0x3ff0000000000000, ROOT = 0x3fe6a09e667f3bcd;
    const uint64_t moved = bits_of(x) + (ONE - ROOT);
    const double n = from_bits<double>((moved >> 52) | 0x4330000000000000) - (0x1p52 + 1023);
    const double f = from_bits<double>((moved & 0x000fffffffffffff) + ROOT) - 1;
    // With s = f / (2 + f), ln(1 + f) = 2 (s + s^3/3 + s^5/5 + ...) = f - (f^2/2 - s (f^2/2 + r)), where r is twice
    // the series of s^2/3 + s^4/5 + ... The first term left out is below 1e-18.
    constexpr double SERIES[] = {2 / 21., 2 / 19., 2 / 17., 2 / 15., 2 / 13., 2 / 11., 2 / 9., 2 / 7., 2 / 5., 2 / 3.};
    const double s = f / (2 + f), square = s * s, half = 0.5 * f * f;
    double r = SERIES[0];
    UNROLL for (int k = 1; k < 10; ++k) r = __builtin_fma(r, square, SERIES[k]);
    const double low = half - __builtin_fma(s, __builtin_fma(r, square, half), n * 0x1.abc9e3b39803fp-56);
    return __builtin_fma(n, 0x1.62e42fefa39efp-1, f - low);
}

}  // namespace specdec
