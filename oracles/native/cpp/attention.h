// Attention of a few queries over a chunk of positions, and the combination of chunks.
//
// Positions are cut into chunks of CHUNK from 0. In a chunk every score is one chain over the head's dimensions, weights
// are summed by position, and every output is one chain over the positions; chunks are combined in order. So a result
// depends on nothing but the query, the keys and values on its path, and their positions.
#pragma once
#include <cmath>

#include "nodes.h"
#include "rotary.h"

namespace specdec {

constexpr int CHUNK = 256;
// Queries whose sums fill the registers.
constexpr int ABREAST = SPECDEC_LANES == 16 ? 8 : 2;
// Queries of a tile. ABREAST of them at a time read a chunk while it is in cache, so memory is read once for all of
// them. With this many, arithmetic takes longer than reading.
constexpr int MOST_QUERIES = 32;

// The keys and values of one key-value head of a row.
struct Memory {
    const float *keys, *values;  // of all pages
    const int32_t* pages;        // those of the row
    int size, padded;            // of a head
    int length;                  // slots of the prefix; nodes lie behind
    int end;                     // slots written

    const float* keys_of(int page) const { return keys + int64_t(pages[page]) * size * WIDTH; }
    const float* value(int slot) const {
        return values + (int64_t(pages[slot / WIDTH]) * WIDTH + slot % WIDTH) * padded;
    }
    // The end of the run of adjacent pages that begins at `page`, at most `to`: nearly always all are adjacent.
    int run(int page, int to) const {
        while (++page < to && pages[page] == pages[page - 1] + 1) {}
        return page;
    }
};

struct Query {
    const float* vector;
    const int32_t* path;  // see Node
    int low, end;         // positions seen
    int straight;         // positions below this one lie in the slot of their own number

    bool sees(int from, int to) const { return end > from && low < to; }
    int slot(int position, int length) const { return position < straight ? position : length + path[position - length]; }
};

// Weighted values of some positions: [padded head] sums, then the largest score and the sum of the weights.
struct Part {
    float* sums;
    int padded;

    float& largest() const { return sums[padded]; }
    float& weight() const { return sums[padded + 1]; }
    static int floats(int padded) { return padded + WIDTH; }
};

// Scores of M queries against N adjacent pages, from scores[m][first] on. Pages are long, so the processor's own
// prefetcher does not reach the next ones in time; with one query alone, so much is read at once that it does.
template <int M, int N>
INL void score_pages(const Query* queries, const float* keys, int size, float* const* scores, int first) {
    V sums[M][N];
    UNROLL for (int m = 0; m < M; ++m) UNROLL for (int n = 0; n < N; ++n) sums[m][n] = vzero();
    const int64_t floats = int64_t(size) * WIDTH;
    const char* next = reinterpret_cast<const char*>(keys + N * floats);
    for (int d = 0; d < size; ++d) {
        V key[N];
        if (M > 1)
            UNROLL for (int n = 0; n < N; ++n) prefetch(next, uintptr_t(AHEAD + (int64_t(d) * N + n) * WIDTH * 4));
        UNROLL for (int n = 0; n < N; ++n) key[n] = vload(keys + n * floats + d * WIDTH);
        UNROLL for (int m = 0; m < M; ++m) {
            const V a = vset(queries[m].vector[d]);
            UNROLL for (int n = 0; n < N; ++n) sums[m][n] = vfma(a, key[n], sums[m][n]);
        }
    }
    UNROLL for (int m = 0; m < M; ++m)
        UNROLL for (int n = 0; n < N; ++n) vstore(scores[m] + first + n * WIDTH, sums[m][n]);
}

// Scores against the slots of a range of a row's pages, from scores[m][0] on.
template <int M>
static void score(const Query* queries, const Memory& memory, Range pages, float* const* scores) {
    constexpr int N = SPECDEC_LANES == 16 ? (M == 1 ? 8 : M <= 4 ? 4 : 2) : (M == 1 ? 4 : 2);
    const int64_t floats = int64_t(memory.size) * WIDTH;
    for (int p = pages.from; p < pages.to;) {
        const float* keys = memory.keys_of(p);
        int first = (p - pages.from) * WIDTH;
        const int to = memory.run(p, pages.to);
        for (; p + N <= to; p += N, keys += N * floats, first += N * WIDTH)
            score_pages<M, N>(queries, keys, memory.size, scores, first);
        for (; p < to; ++p, keys += floats, first += WIDTH) score_pages<M, 1>(queries, keys, memory.size, scores, first);
    }
}

// Reorder the scores of a query's own branch from slots to positions.
static void straighten(const Query& query, const Memory& memory, int from, int to, const float* by_slot, float* scores) {
    const int origin = memory.length / WIDTH * WIDTH;
    for (int p = std::max(query.straight, from); p < std::min(query.end, to); ++p)
        scores[p - from] = by_slot[query.slot(p, memory.length) - origin];
}

// Find the largest score of the positions from .. to - 1; unseen ones become -infinity. Four chains hide the latency of a
// comparison; the order of comparisons decides at most the sign of a zero, which does not affect any weight.
static void find_largest(const Query& query, int from, int to, float* scores, const Part& part) {
    const int begin = std::max(query.low - from, 0), end = std::min(query.end, to) - from;
    const int groups = int(rounded(end, WIDTH));
    std::fill(scores, scores + begin, -INFINITY);
    std::fill(scores + end, scores + groups, -INFINITY);
    auto at = [&](int i) { return vload(scores + std::min(i * WIDTH, groups - WIDTH)); };
    V largest[4];
    UNROLL for (int k = 0; k < 4; ++k) largest[k] = at(k);
    for (int i = 4; i * WIDTH < groups; i += 4) UNROLL for (int k = 0; k < 4; ++k) largest[k] = vmax(largest[k], at(i + k));
    part.largest() = hmax(vmax(vmax(largest[0], largest[1]), vmax(largest[2], largest[3])));
}

// Turn scores into weights relative to the largest; unseen positions weigh 0.
static void weigh(const Query& query, int from, int to, float* scores, const Part& part) {
    const int groups = int(rounded(std::min(query.end, to) - from, WIDTH));
    const V top = vset(part.largest());
    V weight = vzero();
    for (int i = 0; i < groups; i += WIDTH) {
        const V e = vexp(vsub(vload(scores + i), top));
        vstore(scores + i, e);
        weight = vadd(weight, e);
    }
    part.weight() = hsum(weight);
}

// sums[m][first .. first + 16 N) of weights[m][from + i] * values[i] over `count` slots in order, on top of those before
// `from`.
template <int M, int N>
INL void sum_values(float* const* weights, int from, const float* values, int padded, int count, const Part* parts, int first) {
    V sums[M][N];
    UNROLL for (int m = 0; m < M; ++m)
        UNROLL for (int n = 0; n < N; ++n) sums[m][n] = from ? vload(parts[m].sums + first + n * WIDTH) : vzero();
    for (int i = 0; i < count; ++i) {
        const float* slot = values + int64_t(i) * padded;
        V value[N];
        UNROLL for (int n = 0; n < N; ++n) {
            if (M > 1) prefetch(reinterpret_cast<const char*>(slot + first + n * WIDTH), AHEAD);
            value[n] = vload(slot + first + n * WIDTH);
        }
        UNROLL for (int m = 0; m < M; ++m) {
            const V a = vset(weights[m][from + i]);
            UNROLL for (int n = 0; n < N; ++n) sums[m][n] = vfma(a, value[n], sums[m][n]);
        }
    }
    UNROLL for (int m = 0; m < M; ++m)
        UNROLL for (int n = 0; n < N; ++n) vstore(parts[m].sums + first + n * WIDTH, sums[m][n]);
}

// The same for all columns, over adjacent slots.
template <int M>
static void sum_run(float* const* weights, int from, const float* values, int padded, int count, const Part* parts) {
    constexpr int N = SPECDEC_LANES == 16 || M == 1 ? 4 : 2;
    int first = 0;
    for (; first + N * WIDTH <= padded; first += N * WIDTH)
        sum_values<M, N>(weights, from, values, padded, count, parts, first);
    for (; first + 2 * WIDTH <= padded; first += 2 * WIDTH)
        sum_values<M, 2>(weights, from, values, padded, count, parts, first);
    for (; first < padded; first += WIDTH) sum_values<M, 1>(weights, from, values, padded, count, parts, first);
}

// The same over a range of a row's slots; weights[m][0] belongs to the first.
template <int M>
static void sum_shared(float* const* weights, const Memory& memory, Range slots, const Part* parts) {
    if (slots.from >= slots.to) return sum_run<M>(weights, 0, memory.values, memory.padded, 0, parts);
    const int pages = (slots.to + WIDTH - 1) / WIDTH;
    for (int s = slots.from, end; s < slots.to; s = end) {
        end = std::min(slots.to, memory.run(s / WIDTH, pages) * WIDTH);
        sum_run<M>(weights, s - slots.from, memory.value(s), memory.padded, end - s, parts);
    }
}

// Add the values of the positions that a query does not share with its tile; weights[0] belongs to the first.
static void sum_own(const Query& query, const Memory& memory, Range own, const float* weights, const Part& part) {
    for (int p = own.from; p < own.to; ++p) {
        const float* value = memory.value(query.slot(p, memory.length));
        const V a = vset(weights[p - own.from]);
        for (int d = 0; d < memory.padded; d += WIDTH) vstore(part.sums + d, vfma(a, vload(value + d), vload(part.sums + d)));
    }
}

// Floats of scratch that `attend` needs for a tree that writes `nodes` slots.
INL int64_t attention_scratch(int64_t nodes) { return ABREAST * (CHUNK + rounded(nodes + WIDTH, WIDTH)); }

// The parts of M queries in one chunk; the part of a query that sees nothing of the chunk is meaningless. A value that is
// not a number, and lies outside the window of one query and inside that of another of them, reaches both.
template <int M>
static void attend_abreast(const Query* queries, const Memory& memory, int chunk, float* scratch, const Part* parts) {
    const int from = chunk * CHUNK, to = from + CHUNK, origin = memory.length / WIDTH;
    int far = from, common = to, low = to;
    bool branches = false;
    for (int m = 0; m < M; ++m) {
        far = std::max(far, std::min({to, queries[m].straight, queries[m].end}));
        common = std::min({common, queries[m].straight, queries[m].end});
        low = std::min(low, std::max(from, queries[m].low));
        branches = branches || std::min(to, queries[m].end) > std::max(from, queries[m].straight);
    }
    float *scores[M], *by_slot[M];
    const int64_t room = attention_scratch(memory.end - memory.length) / ABREAST;
    for (int m = 0; m < M; ++m) scores[m] = scratch + m * room, by_slot[m] = scores[m] + CHUNK;
    score<M>(queries, memory, {from / WIDTH, (far + WIDTH - 1) / WIDTH}, scores);
    if (branches) score<M>(queries, memory, {origin, (memory.end + WIDTH - 1) / WIDTH}, by_slot);
    for (int m = 0; m < M; ++m) {
        if (branches) straighten(queries[m], memory, from, to, by_slot[m], scores[m]);
        if (queries[m].sees(from, to)) find_largest(queries[m], from, to, scores[m], parts[m]);
        else std::fill(scores[m], scores[m] + CHUNK, 0.0f);
    }
    for (int m = 0; m < M; ++m)
        if (queries[m].sees(from, to)) weigh(queries[m], from, to, scores[m], parts[m]);
    const int begin = std::min(low, std::max(common, from)), shared = std::max(common, begin);
    for (int m = 0; m < M; ++m) scores[m] += begin - from;
    sum_shared<M>(scores, memory, {begin, shared}, parts);
    for (int m = 0; m < M; ++m)
        sum_own(queries[m], memory, {shared, std::min(to, queries[m].end)}, scores[m] + (shared - begin), parts[m]);
}

// Add a later chunk's part to that of all chunks before it.
INL void combine(const Part& all, const Part& next) {
    const float top = larger(all.largest(), next.largest());
    float scales[WIDTH] = {all.largest() - top, next.largest() - top};
    vstore(scales, vexp(vload(scales)));
    const V before = vset(scales[0]), after = vset(scales[1]);
    for (int d = 0; d < all.padded; d += WIDTH)
        vstore(all.sums + d, vfma(vload(all.sums + d), before, vmul(vload(next.sums + d), after)));
    all.weight() = __builtin_fmaf(all.weight(), scales[0], next.weight() * scales[1]);
    all.largest() = top;
}

INL void divide(const Part& all, float* out) {
    const V scale = vset(1.0f / all.weight());
    for (int d = 0; d < all.padded; d += WIDTH) vstore(out + d, vmul(vload(all.sums + d), scale));
}

// `attend_abreast` of `count` queries, at most ABREAST of them.
template <int M = ABREAST>
static void attend_few(int count, const Query* queries, const Memory& memory, int chunk, float* scratch, const Part* parts) {
    if (count == M) return attend_abreast<M>(queries, memory, chunk, scratch, parts);
    if constexpr (M > 1) attend_few<M - 1>(count, queries, memory, chunk, scratch, parts);
}

// The same for all queries of a tile.
static void attend(int count, const Query* queries, const Memory& memory, int chunk, float* scratch, const Part* parts) {
    const int times = (count + ABREAST - 1) / ABREAST;
    for (int i = 0; i < times; ++i) {
        const Range few = share(count, i, times);
        attend_few(few.to - few.from, queries + few.from, memory, chunk, scratch, parts + few.from);
    }
}

}  // namespace specdec
