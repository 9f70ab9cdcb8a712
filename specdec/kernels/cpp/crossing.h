// Where a running total over keys, the largest first, reaches a bound: what top-k and top-p have in common.
#pragma once

#include <algorithm>
#include <cstdint>

namespace specdec {

// `key` is the largest one such that the amounts of all keys from it up reach the bound; `above` is the sum of the
// amounts above it. If rounding keeps even the sum of all amounts below the bound, `key` is at most the smallest.
template <class Key>
struct Crossing {
    Key key;
    double above;
};

// The same for a few keys; the sum of the amounts above them is known.
template <class Key, class Amount>
Crossing<Key> crossing_of_few(Key* keys, int64_t count, double above, double bound, Amount amount) {
    std::sort(keys, keys + count, [](Key a, Key b) { return a > b; });
    for (int64_t i = 0;;) {
        const Key key = keys[i];
        double total = 0;
        for (; i < count && keys[i] == key; ++i) total += amount(key);
        if (i == count || !(above + total < bound)) return {key, above};
        above += total;
    }
}

// The crossing of `count` keys from `low` to `high`, which are reordered.
//
// A round sorts the keys into at most 256 ranges of equal width and goes on with those of the range where the total
// crosses the bound, until a range is one key, or has few. So equal keys cost no more than others: O(count) in all, and
// no more than a few are sorted. Each range is summed in the order of its keys, and the ranges from the highest down.
template <class Key, class Amount>
Crossing<Key> crossing(Key* keys, int64_t count, Key low, Key high, double bound, Amount amount) {
    constexpr int RANGES = 256, FEW = 16;
    double above = 0;
    for (;;) {
        if (count > 0 && count <= FEW) return crossing_of_few(keys, count, above, bound, amount);
        int shift = 0;
        while (((high - low) >> shift) >= RANGES) ++shift;
        double totals[RANGES] = {};
        for (int64_t i = 0; i < count; ++i) totals[(keys[i] - low) >> shift] += amount(keys[i]);
        int range = int((high - low) >> shift);
        for (; range > 0 && above + totals[range] < bound; --range) above += totals[range];
        low += Key(range) << shift;
        if (shift == 0) return {low, above};
        high = low + std::min<Key>(high - low, (Key(1) << shift) - 1);
        int64_t kept = 0;
        for (int64_t i = 0; i < count; ++i) {
            const Key key = keys[i];
            keys[kept] = key;
            kept += (key >= low) & (key <= high);
        }
        count = kept;
    }
}

}  // namespace specdec
