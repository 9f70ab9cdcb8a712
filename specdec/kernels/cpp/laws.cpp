// The C interface of the native laws, penalties, draws and walks.
#include <memory>

#include "draws.h"
#include "float_mode.h"
#include "laws.h"
#include "penalties.h"
#include "verify.h"
#include "walks.h"

using namespace specdec;

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Logits, how the rows are sampled, and the laws to be written.
struct Warp {
    const void* logits;     // [rows][nodes][size]
    const double* filters;  // [filters][rows] lists of `Sampling`
    void* table;            // [rows][nodes][size]
    int64_t is_double, rows, nodes, size;
};

template <class T>
void laws(const Warp& warp) {
    const FloatMode mode;
    const std::unique_ptr<Bits<T>[]> keys(new Bits<T>[size_t(warp.size)]);
    for (int64_t i = 0; i < warp.rows * warp.nodes; ++i) {
        const Sampling ask = Sampling::of(warp.filters, warp.rows, i / warp.nodes);
        law(static_cast<const T*>(warp.logits) + i * warp.size, warp.size, ask, static_cast<T*>(warp.table) + i * warp.size, keys.get());
    }
}

template <class T>
void entropies(const T* table, int64_t rows, int64_t size, double* found) {
    const FloatMode mode;
    for (int64_t row = 0; row < rows; ++row) found[row] = entropy(table + row * size, size);
}

// What is drawn from: a law for each entry, either a row of the table or (index -1) a point. Each gives `count` ids.
struct Drawing {
    const void* table;     // [rows][size]
    const int64_t* index;  // [entries]
    const int64_t* point;  // [entries]
    int64_t* ids;          // [drawn] of each entry as many as are drawn
    int64_t is_double, rows, size, entries, count;
};

// Draw for every entry by the numbers of its key. Returns 0, or -1 if an index lies beyond the table.
template <class KeyOf>
int64_t draw_all(const Drawing& from, bool is_race, KeyOf key_of) {
    const FloatMode mode;
    for (int64_t entry = 0; entry < from.entries; ++entry) {
        int64_t* ids = from.ids + entry * from.count;
        if (from.index[entry] >= from.rows) return -1;
        const int64_t row = from.index[entry] * from.size;
        if (row < 0) {
            std::fill(ids, ids + from.count, -1);
            ids[0] = from.point[entry];
        } else if (from.is_double) {
            const double* law = static_cast<const double*>(from.table) + row;
            (is_race ? race<double> : draw<double>)(law, from.size, key_of(entry), from.count, ids);
        } else {
            const float* law = static_cast<const float*>(from.table) + row;
            (is_race ? race<float> : draw<float>)(law, from.size, key_of(entry), from.count, ids);
        }
    }
    return 0;
}

// Where walks write: a list of numbers for each row after the other, then lists for nodes.
Written written(const Drafts& drafts, int64_t* out, int64_t* block) {
    const int64_t batch = drafts.batch, size = batch * drafts.width;
    int64_t *depths = drafts.parents ? block + size : nullptr, *paths = depths ? depths + size : nullptr;
    return {out, out + batch, out + 2 * batch, out + 3 * batch, out + 4 * batch, out + 5 * batch, block, depths, paths};
}

}  // namespace

// Draw by independent streams, one for each row of entries: entry i belongs to stream i / (entries / streams), and its
// node is nodes[i % period].
EXPORT int64_t specdec_draw(const Drawing* from, const int64_t* path, int64_t words, int64_t streams, int64_t purpose,
                             const int64_t* nodes, int64_t period) {
    return draw_all(*from, false, [=](int64_t entry) {
        const uint64_t key = key_at(path, words, streams, entry * streams / from->entries);
        return extended(extended(key, uint64_t(purpose)), uint64_t(nodes[entry % period]));
    });
}

// Draw by races, keyed by position: that of a stream, and depths[i % period] more.
EXPORT int64_t specdec_race(const Drawing* from, const int64_t* keys, const int64_t* positions, int64_t streams,
                             const int64_t* depths, int64_t period) {
    return draw_all(*from, true, [=](int64_t entry) {
        const int64_t stream = entry * streams / from->entries;
        return extended(uint64_t(keys[stream]), uint64_t(positions[stream]) + uint64_t(depths[entry % period]));
    });
}

// Write the laws of logits, float32 or float64.
EXPORT void specdec_laws(const Warp* warp) { (warp->is_double ? laws<double> : laws<float>)(*warp); }

// Change the logits of ids that stand before a node. Returns 0, or -1 if an id is not in the vocabulary.
EXPORT int64_t specdec_penalise(const Before* before) {
    const FloatMode mode;
    if (!is_sound(*before)) return -1;
    (before->is_double ? penalise<double> : penalise<float>)(*before);
    return 0;
}

// Write the entropy of each law [rows][size], float32 or float64.
EXPORT void specdec_entropies(const void* table, int64_t is_double, int64_t rows, int64_t size, double* found) {
    if (is_double)
        entropies(static_cast<const double*>(table), rows, size, found);
    else
        entropies(static_cast<const float*>(table), rows, size, found);
}

// Walk through drafts, and write for each row how many nodes it has, the node where its walk stops, how many tokens are
// accepted, the next one, how many are emitted and what ends it; then blocks, and for trees depths and paths. Reports a
// fault.
EXPORT void specdec_walk(const Drafts* drafts, Fault* fault, int64_t* out, int64_t* block) {
    walk(*drafts, written(*drafts, out, block), *fault);
}

// The same for drafts whose ids the target's laws decide about, and whose next ids are drawn.
EXPORT void specdec_verify(const Drafts* drafts, const Target* target, Fault* fault, int64_t* out, int64_t* block) {
    const FloatMode mode;
    (drafts->is_double ? verify<double> : verify<float>)(*drafts, *target, written(*drafts, out, block), *fault);
}

// Write the law of such a verdict: the probability that each walk stops at each node, [batch][width], and what follows
// there but for the sum, [batch][width][size] in the logits' type. `out` and `block` are room.
EXPORT void specdec_verdict_law(const Drafts* drafts, const Target* target, Fault* fault, int64_t* out, int64_t* block,
                                double* stops, void* next) {
    const FloatMode mode;
    const Written to = written(*drafts, out, block);
    if (drafts->is_double)
        tell(*drafts, *target, to, *fault, stops, static_cast<double*>(next));
    else
        tell(*drafts, *target, to, *fault, stops, static_cast<float*>(next));
}
