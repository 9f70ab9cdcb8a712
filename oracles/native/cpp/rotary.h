// Rotations: the tables, and turning a head. Cosines and sines come from our own arithmetic, the same on every machine.
#pragma once
#include "norm.h"

namespace specdec {

// cosines and sines [positions][pairs] of position * frequency.
static void rotary_table(const double* frequencies, int pairs, int from, int to, float* cosines, float* sines) {
    for (int position = from; position < to; ++position) {
        for (int i = 0; i < pairs; ++i) {
            double s, c;
            sincos(position * frequencies[i], s, c);
            cosines[int64_t(position) * pairs + i] = float(c);
            sines[int64_t(position) * pairs + i] = float(s);
        }
    }
}

// Turn the pairs (i, i + pairs) of one head by the row of its position.
INL void turn(float* head, const float* cosines, const float* sines, int pairs) {
    int i = 0;
    float *first = head, *second = head + pairs;
    for (; i + WIDTH <= pairs; i += WIDTH) {
        const V a = vload(first + i), b = vload(second + i), c = vload(cosines + i), s = vload(sines + i);
        vstore(first + i, vfma(a, c, vmul(vsub(vzero(), b), s)));
        vstore(second + i, vfma(b, c, vmul(a, s)));
    }
    for (; i < pairs; ++i) {
        const float a = first[i], b = second[i];
        first[i] = __builtin_fmaf(a, cosines[i], (0.0f - b) * sines[i]);
        second[i] = __builtin_fmaf(b, cosines[i], a * sines[i]);
    }
}

}  // namespace specdec
