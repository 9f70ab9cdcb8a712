// The law of a row of logits: temperature, top-k, softmax, top-p and min-p, in float or double arithmetic.
//
// Every sum has a fixed order, so a law's bits depend on its own row alone, and are the same on every machine.
#pragma once

#include <limits>

#include "crossing.h"
#include "functions.h"

namespace specdec {

// How a row is sampled; the numbers given here change nothing. Python names its lists by these fields. A new one comes
// last.
struct Sampling {
    double temperature = 1;
    double top_k = 0;
    double top_p = 1;
    double min_p = 0;

    // That of a row, out of a list of `rows` numbers for each field.
    static Sampling of(const double* lists, int64_t rows, int64_t row) {
        constexpr int FIELDS = int(sizeof(Sampling) / sizeof(double));
        double own[FIELDS];
        for (int field = 0; field < FIELDS; ++field) own[field] = lists[field * rows + row];
        Sampling sampling;
        memcpy(&sampling, own, sizeof(own));
        return sampling;
    }
};

constexpr int GROUP = 16;  // numbers that are worked on side by side

// Work on a row, or on what becomes of another one, 16 numbers at a time; the last are filled up with a number that
// does no harm. `work` is told where to read and where to write.
template <class T, class Work>
INL void by_groups(const T* from, T* to, int64_t size, T filler, Work work) {
    const int64_t full = size / GROUP * GROUP;
    for (int64_t begin = 0; begin < full; begin += GROUP) work(from + begin, to + begin);
    T last[GROUP];
    std::fill(last, last + GROUP, filler);
    std::copy(from + full, from + size, last);
    work(last, last);
    std::copy(last, last + (size - full), to + full);
}

// The largest number of a row; a NaN anywhere gives NaN.
template <class T>
T largest(const T* row, int64_t size) {
    constexpr int SIDE = 4 * GROUP;  // this many chains of comparisons hide the time that one takes
    T most[SIDE];
    std::fill(most, most + SIDE, row[0]);
    const int64_t full = size / SIDE * SIDE;
    for (int64_t begin = 0; begin < full; begin += SIDE)
        for (int i = 0; i < SIDE; ++i) most[i] = larger(most[i], row[begin + i]);
    for (int64_t i = full; i < size; ++i) most[i - full] = larger(most[i - full], row[i]);
    for (int i = 1; i < SIDE; ++i) most[0] = larger(most[0], most[i]);
    return most[0];
}

// e^((x - most) / heat) of 16 numbers x, 0 where x is below a floor; `cold` is 1 / heat.
INL void weigh(const float* x, float* weights, float most, float cold, float floor) {
    const V v = vload(x);
    const V weight = vexp(vmul(vsub(v, vset(most)), vset(cold)));
    vstore(weights, vselect(vless(v, vset(floor)), vzero(), weight));
}
INL void weigh(const double* x, double* weights, double most, double cold, double floor) {
    for (int i = 0; i < GROUP; ++i) weights[i] = x[i] < floor ? 0 : exp64((x[i] - most) * cold);
}

// A key in the order of numbers. The two zeros share one, so that no key lies above that of the largest number.
template <class T>
INL Bits<T> ordered(T x) {
    constexpr Bits<T> SIGN = Bits<T>(1) << (8 * sizeof(T) - 1);
    const Bits<T> bits = bits_of(x + T(0));
    return bits & SIGN ? ~bits : bits | SIGN;
}
template <class T>
T number_of(Bits<T> key) {
    constexpr Bits<T> SIGN = Bits<T>(1) << (8 * sizeof(T) - 1);
    return from_bits<T>(key & SIGN ? key ^ SIGN : ~key);
}

// Write the bits of those of 16 weights that reach a bound, and return how many. All 16 places may be written.
template <class T>
INL int pack(const T* weights, T bound, Bits<T>* bits) {
    int count = 0;
    for (int i = 0; i < GROUP; ++i) {
        bits[count] = bits_of(weights[i]);
        count += weights[i] >= bound;
    }
    return count;
}
#if SPECDEC_LANES == 16
INL int pack(const float* weights, float bound, uint32_t* bits) {
    const V w = vload(weights);
    return vpack(bits, vbits(w), vat_most(vset(bound), w));
}
#endif

// The same of a row of numbers.
template <class T>
int64_t pack_row(const T* numbers, int64_t size, T bound, Bits<T>* bits) {
    const int64_t full = size / GROUP * GROUP;
    int64_t count = 0;
    for (int64_t begin = 0; begin < full; begin += GROUP) count += pack(numbers + begin, bound, bits + count);
    for (int64_t i = full; i < size; ++i) {
        bits[count] = bits_of(numbers[i]);
        count += numbers[i] >= bound;
    }
    return count;
}

// The sum of packed numbers.
template <class T>
double packed_sum(const Bits<T>* bits, int64_t count) {
    Sums sums{};
    for (int64_t begin = 0; begin < count; begin += GROUP) {
        T numbers[GROUP] = {};
        memcpy(numbers, bits + begin, size_t(std::min<int64_t>(count - begin, GROUP)) * sizeof(T));
        accumulate(sums, numbers);
    }
    return total(sums);
}

// The largest of every `rows` groups of 16 numbers, lane by lane, as keys in their order. What is left at the end of
// the row is passed over. Returns how many there are.
template <class T>
int64_t largest_keys(const T* numbers, int64_t size, int64_t rows, Bits<T>* keys) {
    int64_t count = 0;
    for (int64_t begin = 0; begin + rows * GROUP <= size; begin += rows * GROUP, count += GROUP) {
        T most[GROUP];
        std::copy(numbers + begin, numbers + begin + GROUP, most);
        for (int64_t row = 1; row < rows; ++row)
            for (int i = 0; i < GROUP; ++i) most[i] = larger(most[i], numbers[begin + row * GROUP + i]);
        for (int i = 0; i < GROUP; ++i) keys[count + i] = ordered(most[i]);
    }
    return count;
}

// The logit of the k-th best id, of which there are `top_k` or more, `most` being the best.
//
// The k-th largest of any of the logits is at most the k-th best of all. So what is below the k-th of the largest of
// some groups is passed over.
template <class T>
T kth_best(const T* logits, int64_t size, double top_k, T most, Bits<T>* keys) {
    const auto kth = [&](int64_t count, Bits<T> low) {
        return crossing(keys, count, low, ordered(most), top_k, [](Bits<T>) { return 1.0; }).key;
    };
    Bits<T> low = ordered(-std::numeric_limits<T>::infinity());
    const int64_t rows = int64_t(double(size) / std::max<double>(4 * top_k, GROUP));
    const int64_t groups = rows > 1 ? largest_keys(logits, size, rows, keys) : 0;
    if (groups > 0) low = kth(groups, low);  // there are more than top_k then
    const int64_t count = pack_row(logits, size, number_of<T>(low), keys);
    for (int64_t i = 0; i < count; ++i) keys[i] = ordered(from_bits<T>(keys[i]));
    return number_of<T>(kth(count, low));
}

// Which of 16 numbers are not 0, NaN among them: a bit for each.
template <class T>
INL uint32_t filled(const T* numbers) {
    uint32_t bits = 0;
    for (int i = 0; i < GROUP; ++i) bits |= uint32_t(numbers[i] != 0) << i;
    return bits;
}
#if SPECDEC_LANES == 16
INL uint32_t filled(const float* numbers) {
    return _mm512_cmp_ps_mask(_mm512_loadu_ps(numbers), _mm512_setzero_ps(), _CMP_NEQ_UQ);
}
#endif

// Which weights stay: those above a floor, and the first `equals` that equal it.
template <class T>
struct Kept {
    T floor;
    double equals;
};

// The smallest set of best ids that reaches `top_p` of the mass, the lowest id first among equals. Weights are at most
// 1, and 1 is among them.
//
// Only ids of weight `least` or more are looked at. Suppose that an id in the set had less than half of (1 - top_p)
// mass / size. So would all ids that are not before it, which together would have less than half of (1 - top_p) mass.
// Those before it would then have reached top_p of the mass, by a margin that rounding does not reach, and the set
// would have ended there. Mostly the ids of some times that weight reach that mass too, and fewer are looked at.
template <class T>
Kept<T> nucleus(const T* weights, int64_t size, double mass, double top_p, Bits<T>* keys) {
    constexpr double TIMES = 16, MARGIN = 1e-9;
    const double bound = top_p * mass, sure = mass * (1 - top_p) / (2 * double(size));
    T least = T(TIMES * sure);
    int64_t count = pack_row(weights, size, least, keys);
    if (packed_sum<T>(keys, count) * (1 - MARGIN) < bound) {
        least = T(sure);
        count = pack_row(weights, size, least, keys);
    }
    const auto found = crossing(keys, count, bits_of(least), bits_of(T(1)), bound,
                                [](Bits<T> key) { return double(from_bits<T>(key)); });
    const T floor = from_bits<T>(found.key);
    return {floor, std::max(1.0, __builtin_ceil((bound - found.above) / double(floor)))};
}

// Drop what is not kept, and return the sum of the rest.
template <class T>
double cut(T* weights, int64_t size, Kept<T> kept) {
    int64_t equals = 0;
    for (int64_t i = 0; i < size; ++i) equals += weights[i] == kept.floor;
    if (double(equals) > kept.equals) {
        equals = 0;
        for (int64_t i = 0; i < size; ++i)
            if (weights[i] == kept.floor && double(++equals) > kept.equals) weights[i] = 0;
    }
    Sums sums{};
    by_groups(weights, weights, size, T(0), [&](const T* from, T* to) {
        for (int i = 0; i < GROUP; ++i) to[i] = from[i] < kept.floor ? 0 : from[i];
        accumulate(sums, to);
    });
    return total(sums);
}

// Divide 16 numbers in place.
INL void part(float* x, float by) { vstore(x, vdiv(vload(x), vset(by))); }
INL void part(double* x, double by) {
    for (int i = 0; i < GROUP; ++i) x[i] /= by;
}

// Divide the numbers of a row; groups of zeros are passed over.
template <class T>
void divide(T* row, int64_t size, T by) {
    const int64_t full = size / GROUP * GROUP;
    for (int64_t begin = 0; begin < full; begin += GROUP)
        if (filled(row + begin)) part(row + begin, by);
    for (int64_t i = full; i < size; ++i) row[i] /= by;
}

// Write the law of a row of logits, or NaN if it has none: a logit is NaN or +infinity, or all are -infinity. Returns
// the largest logit. `keys` is room for `size` numbers.
//
// A filter drops ids by the logits or weights of this row alone, and leaves some of those that the filters before it
// left. top_p and min_p are two bounds on the same weights, of which the stricter holds: that leaves something because
// both keep the best id. A filter that may drop the best id has to look at what the others have left.
template <class T>
T law(const T* logits, int64_t size, const Sampling& ask, T* probs, Bits<T>* keys) {
    using Limits = std::numeric_limits<T>;
    const T most = largest(logits, size), none = -Limits::infinity();
    if (!(most > none && most < Limits::infinity())) {
        std::fill(probs, probs + size, Limits::quiet_NaN());
        return most;
    }
    // If colder, 1 / heat would be infinite, and 0 times that NaN; if hotter, it would be 0, and -infinity times that
    // NaN.
    const double coldest = double(Limits::min() / Limits::epsilon()), hottest = double(Limits::max());
    const T heat = T(std::min(std::max(ask.temperature, coldest), hottest));
    const bool has_k = ask.top_k > 0 && ask.top_k < double(size);
    const T floor = has_k ? kth_best(logits, size, ask.top_k, most, keys) : none;
    Sums sums{};
    by_groups(logits, probs, size, none, [&](const T* from, T* to) {
        weigh(from, to, most, 1 / heat, floor);
        accumulate(sums, to);
    });
    double mass = total(sums);
    // The best id has weight 1, so min_p is a weight too.
    Kept<T> kept{T(ask.min_p), double(size)};
    if (ask.top_p < 1) {
        const Kept<T> inside = nucleus(probs, size, mass, ask.top_p, keys);
        if (inside.floor >= kept.floor) kept = inside;
    }
    if (kept.floor > 0) mass = cut(probs, size, kept);
    divide(probs, size, T(mass));
    return most;
}

// The sum of the numbers of a row.
template <class T>
double sum_of(const T* row, int64_t size) {
    Sums sums{};
    const int64_t full = size / GROUP * GROUP;
    for (int64_t begin = 0; begin < full; begin += GROUP) accumulate(sums, row + begin);
    T last[GROUP] = {};
    std::copy(row + full, row + size, last);
    accumulate(sums, last);
    return total(sums);
}

// The entropy of a law in nats, NaN if the law is. What is below the smallest normal number adds nothing.
template <class T>
double entropy(const T* probs, int64_t size) {
    Sums sums{};
    const auto add = [&](const T* group) {
        double terms[GROUP];
        for (int i = 0; i < GROUP; ++i) {
            const double p = double(group[i]), term = 0 - p * log64(p);
            terms[i] = p < std::numeric_limits<double>::min() ? 0 : term;
        }
        accumulate(sums, terms);
    };
    const int64_t full = size / GROUP * GROUP;
    for (int64_t begin = 0; begin < full; begin += GROUP) add(probs + begin);
    T last[GROUP] = {};
    std::copy(probs + full, probs + size, last);
    add(last);
    return total(sums);
}

}  // namespace specdec
