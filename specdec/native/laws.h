// The law of a row of logits: temperature, top-k, softmax, top-p and min-p, in float or double arithmetic.
//
// Every sum has a fixed order, so a law's bits depend on its own row alone, and are the same on every machine.
#pragma once

#include <limits>

#include "crossing.h"
#include "functions.h"

namespace specdec {

// How a row is sampled. `top_k` 0, `top_p` 1 and `min_p` 0 cut nothing.
struct Sampling {
    double temperature, top_k, top_p, min_p;
};

constexpr int GROUP = 16;  // numbers that are worked on side by side

// Unsigned integers of a type's size.
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
    Bits<T> bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}
template <class T>
INL T from_bits(Bits<T> bits) {
    T x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

// The numbers of a row, 16 at a time; the last 16 are filled up with a number that does no harm.
template <class T>
class Groups {
  public:
    Groups(const T* row, int64_t size, T filler) : row_(row), size_(size) {
        const int64_t full = size / GROUP * GROUP;
        std::fill(last_, last_ + GROUP, filler);
        std::copy(row + full, row + size, last_);
    }
    INL const T* at(int64_t begin) const { return begin + GROUP <= size_ ? row_ + begin : last_; }

  private:
    const T* row_;
    int64_t size_;
    T last_[GROUP];
};

// The sum of 16 numbers in one tree, that of `hsum`.
INL double sum_of(const double (&x)[GROUP]) {
    double t[8];
    for (int i = 0; i < 8; ++i) t[i] = x[i] + x[i + 8];
    return ((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7]));
}

// The largest number of a row; a NaN anywhere gives NaN.
template <class T>
T largest(const T* row, int64_t size) {
    const Groups<T> groups(row, size, -std::numeric_limits<T>::infinity());
    T most[GROUP];
    std::copy(groups.at(0), groups.at(0) + GROUP, most);
    for (int64_t begin = GROUP; begin < size; begin += GROUP) {
        const T* x = groups.at(begin);
        for (int i = 0; i < GROUP; ++i) most[i] = larger(most[i], x[i]);
    }
    T best = most[0];
    for (int i = 1; i < GROUP; ++i) best = larger(best, most[i]);
    return best;
}

// e^((x - most) / heat) of 16 numbers.
INL void weigh_group(const float* x, float most, float heat, float* weights) {
    vstore(weights, vexp(vdiv(vsub(vload(x), vset(most)), vset(heat))));
}
INL void weigh_group(const double* x, double most, double heat, double* weights) {
    for (int i = 0; i < GROUP; ++i) weights[i] = exp64((x[i] - most) / heat);
}

// Write the weights e^((x - most) / heat) of a row, 0 where x is below a floor, and return their sum.
template <class T>
double weigh(const T* logits, int64_t size, T most, T heat, T floor, T* weights) {
    const Groups<T> groups(logits, size, -std::numeric_limits<T>::infinity());
    double sums[GROUP] = {};
    for (int64_t begin = 0; begin < size; begin += GROUP) {
        const T* x = groups.at(begin);
        T w[GROUP];
        weigh_group(x, most, heat, w);
        for (int i = 0; i < GROUP; ++i) w[i] = x[i] < floor ? 0 : w[i];
        for (int i = 0; i < GROUP; ++i) sums[i] += double(w[i]);
        std::copy(w, w + std::min<int64_t>(GROUP, size - begin), weights + begin);
    }
    return sum_of(sums);
}

// A key in the order of numbers. The two zeros share one, so that no key lies above that of the largest number.
template <class T>
INL Bits<T> ordered(T x) {
    constexpr Bits<T> SIGN = Bits<T>(1) << (8 * sizeof(T) - 1);
    const Bits<T> bits = bits_of(x + T(0));
    return bits & SIGN ? ~bits : bits | SIGN;
}

// The logit of the k-th best id, of which there are `top_k` or more, `most` being the best.
template <class T>
T kth_best(const T* logits, int64_t size, double top_k, T most, Bits<T>* keys) {
    constexpr Bits<T> SIGN = Bits<T>(1) << (8 * sizeof(T) - 1);
    for (int64_t i = 0; i < size; ++i) keys[i] = ordered(logits[i]);
    const Bits<T> low = ordered(-std::numeric_limits<T>::infinity());
    const Bits<T> key = crossing(keys, size, low, ordered(most), top_k, [](Bits<T>) { return 1.0; }).key;
    return from_bits<T>(key & SIGN ? key ^ SIGN : ~key);
}

// Which weights stay: those above a floor, and the first `equals` that equal it.
template <class T>
struct Kept {
    T floor;
    double equals;
};

// The smallest set of best ids that reaches `top_p` of the total, the lowest id first among equals. Weights are at most
// 1, and 1 is among them.
//
// Only ids of a weight from `least` on are looked at. Say that an id in the set had less than half of
// (1 - top_p) total / size. So had all ids that are not before it, and together less than half of (1 - top_p) total.
// Those before it then had reached top_p of the total, with a margin that rounding does not reach, and the set had
// ended there.
template <class T>
Kept<T> nucleus(const T* weights, int64_t size, double total, double top_p, Bits<T>* keys) {
    const T least = T(total * (1 - top_p) / (2 * double(size)));
    int64_t count = 0;
    for (int64_t i = 0; i < size; ++i) {
        keys[count] = bits_of(weights[i]);
        count += weights[i] >= least;
    }
    const double bound = top_p * total;
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
    double sums[GROUP] = {};
    const auto keep = [&](int64_t begin, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
            T& w = weights[begin + i];
            w = w < kept.floor ? 0 : w;
            sums[i] += double(w);
        }
    };
    const int64_t full = size / GROUP * GROUP;
    for (int64_t begin = 0; begin < full; begin += GROUP) keep(begin, GROUP);
    keep(full, size - full);
    return sum_of(sums);
}

// Write the law of a row of logits, or NaN where it has none: a logit is NaN or +infinity, or all are -infinity.
// `keys` is room for `size` numbers.
template <class T>
void law(const T* logits, int64_t size, const Sampling& ask, T* probs, Bits<T>* keys) {
    using Limits = std::numeric_limits<T>;
    const T most = largest(logits, size), none = -Limits::infinity();
    if (!(most > none && most < Limits::infinity())) {
        std::fill(probs, probs + size, Limits::quiet_NaN());
        return;
    }
    // Quotients of the largest logits stay finite, but for those so far below the best that they mean nothing.
    const double coldest = double(Limits::min() / Limits::epsilon()), hottest = double(Limits::max());
    const T heat = T(std::min(std::max(ask.temperature, coldest), hottest));
    const bool has_k = ask.top_k > 0 && ask.top_k < double(size);
    const T floor = has_k ? kth_best(logits, size, ask.top_k, most, keys) : none;
    double total = weigh(logits, size, most, heat, floor, probs);
    // The best id has weight 1, so min_p is a weight too.
    Kept<T> kept{T(ask.min_p), double(size)};
    if (ask.top_p < 1) {
        const Kept<T> inside = nucleus(probs, size, total, ask.top_p, keys);
        if (inside.floor >= kept.floor) kept = inside;
    }
    if (kept.floor > 0) total = cut(probs, size, kept);
    const T sum = T(total);
    for (int64_t i = 0; i < size; ++i) probs[i] /= sum;
}

}  // namespace specdec
