// A C interface to lanes.h, functions.h and float_mode.h for test_functions.py.
#include "float_mode.h"
#include "functions.h"

using namespace specdec;

extern "C" {

int lanes() { return LANES; }

// out = expression of a, b and c, 16 floats at a time; `count` is a multiple of 16.
#define MAP(name, expression)                                                                     \
    void map_##name(const float* x, const float* y, const float* z, float* out, long count) {     \
        FloatMode mode;                                                                           \
        for (long i = 0; i < count; i += 16) {                                                    \
            [[maybe_unused]] V a = vload(x + i), b = vload(y + i), c = vload(z + i);              \
            vstore(out + i, expression);                                                          \
        }                                                                                         \
    }
MAP(exp, vexp(a))
MAP(log, vlog(a))
MAP(sigmoid, vsigmoid(a))
MAP(silu, vsilu(a))
MAP(gelu, vgelu(a))
MAP(gelu_tanh, vgelu_tanh(a))
MAP(relu, vrelu(a))
MAP(fma, vfma(a, b, c))
MAP(multiply_then_add, vadd(vmul(a, b), c))
MAP(subtract, vsub(a, b))
MAP(divide, vdiv(a, b))
MAP(max, vmax(a, b))
MAP(min, vmin(a, b))
MAP(select, vselect(vless(a, b), a, vselect(vat_most(a, b), b, c)))

// out[row] = the reduction of 16 floats.
#define REDUCE(name)                                                           \
    void rows_##name(const float* x, float* out, long rows) {                  \
        FloatMode mode;                                                        \
        for (long row = 0; row < rows; ++row) out[row] = name(vload(x + 16 * row)); \
    }
REDUCE(hsum)
REDUCE(hmax)

void widen_f16(const uint16_t* x, float* out, long count) {
    FloatMode mode;
    for (long i = 0; i < count; i += 16) vstore(out + i, vload_f16(x + i));
}

void widen_bf16_pairs(const uint16_t* x, float* out, long count) {
    for (long i = 0; i < count; i += 32) {
        V low, high;
        vload_bf16_pairs(x + i, low, high);
        vstore(out + i, low);
        vstore(out + i + 16, high);
    }
}

void map_sincos(const double* angle, double* sine, double* cosine, long count) {
    FloatMode mode;
    for (long i = 0; i < count; ++i) sincos(angle[i], sine[i], cosine[i]);
}

#define MAP64(name)                                                    \
    void map_##name(const double* x, double* out, long count) {        \
        FloatMode mode;                                                \
        for (long i = 0; i < count; ++i) out[i] = name(x[i]);          \
    }
MAP64(exp64)
MAP64(log64)

// a * b in a FloatMode scope and after it, in a thread whose mode flushes subnormal results to zero.
void multiply_in_float_mode(float a, float b, float* inside, float* after) {
    volatile float x = a, y = b;
#if defined(__aarch64__)
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{1} << 24));
#else
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0x9FC0);
#endif
    {
        FloatMode mode;
        *inside = x * y;
    }
    *after = x * y;
#if defined(__aarch64__)
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
#else
    _mm_setcsr(before);
#endif
}
}
