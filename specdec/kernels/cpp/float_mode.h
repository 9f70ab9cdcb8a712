// One floating-point mode for every thread that computes: rounding to nearest, subnormal numbers kept as IEEE says.
#pragma once

#include <cstdint>

#if !defined(__aarch64__)
#include <xmmintrin.h>
#endif

namespace specdec {

// Sets the mode of the current thread and puts the old one back at the end of the scope. A thread may come with
// subnormals flushed to zero (torch.set_flush_denormal, another library's fast-math start-up code), which changes bits.
class FloatMode {
  public:
    FloatMode() : old_(read()) { write(IEEE); }
    ~FloatMode() { write(old_); }
    FloatMode(const FloatMode&) = delete;
    FloatMode& operator=(const FloatMode&) = delete;

  private:
    // The memory clobber keeps loads and stores, and so the arithmetic between them, inside the scope.
#if defined(__aarch64__)
    using Register = uint64_t;
    static constexpr Register IEEE = 0;
    static Register read() {
        Register mode;
        asm volatile("mrs %0, fpcr" : "=r"(mode) : : "memory");
        return mode;
    }
    static void write(Register mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
#else
    using Register = uint32_t;
    static constexpr Register IEEE = 0x1F80;  // every exception masked, no flag raised
    static Register read() { return _mm_getcsr(); }
    static void write(Register mode) {
        asm volatile("" : : : "memory");
        _mm_setcsr(mode);
        asm volatile("" : : : "memory");
    }
#endif
    Register old_;
};

}  // namespace specdec
