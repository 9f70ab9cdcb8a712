// The inputs of a pass: a model's weights, a cache and a call. `bindings.py` reads the fields here.
#pragma once
#include <cstdint>

#include "functions.h"
#include "team.h"

namespace specdec {

enum Storage : int32_t {
    FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, INT8 = 3, INT4 = 4, INT8_DYNAMIC = 5,
    Q8_0_STORED = 6, Q4_0_STORED = 7, Q4_1_STORED = 8,  // as GGUF files hold them, and the same in whole numbers
    Q8_0_WHOLE = 9, Q4_0_WHOLE = 10, Q4_1_WHOLE = 11,
};
enum Want : int32_t { ALL = 0, LAST = 1, NONE = 2 };

// Columns of a block of weights, and floats in a `V`: the keys of WIDTH positions lie side by side.
constexpr int BLOCK = 32, WIDTH = 16;
// How many bytes ahead to prefetch: what a core reads during one memory latency.
constexpr int64_t AHEAD = 4096;

INL int64_t rounded(int64_t size, int64_t unit) { return (size + unit - 1) / unit * unit; }
// Floats from one row of activations to the next: an odd number of cache lines, so that rows do not share cache sets.
INL int64_t stride(int64_t columns) { return rounded(columns, BLOCK) + WIDTH; }

// y = x W + b, from blocks of 32 columns, one after the other, in their storage: see `storages.h`. Padding columns are
// zero. `bias` is null, or has a float for each column. `scales` has one too for int8 weights, whether or not inputs are
// rounded, and is null in any other storage.
struct Linear {
    const void* weights;
    const float *bias, *scales;
    int32_t inputs, columns;  // columns: a multiple of 32
    int32_t storage, unused;
};

// If `bias` is null, scale by the root mean square; else shift and scale by mean and variance. Both are padded with zeros
// to a multiple of 16. Without a weight nothing is changed.
struct Norm {
    const float *weight, *bias;
    float eps;
    int32_t size;
};

// What a node sees. If `ahead`: all nodes of its row, which are a chain, and the last `window` positions before them.
// Else: the last `window` positions of its path, its own among them. A window of 0 means no limit.
struct Reach {
    int32_t window, ahead;
};

// A layer without attention (the adapter of an exit head) has no `qkv.weights`.
struct Layer {
    Norm before_attention, before_mlp;
    Linear qkv, out, up, down;
    const float *query_norm, *key_norm;  // null, or one weight per dimension of a head, padded to a multiple of 16
    Reach reach;
};

struct Model;

// What a head reads besides ids. Queries, keys and values of its first layer read the normed embedding of a node and,
// beside it, the normed feature that the cache holds for it; the stream before that layer is the feature.
struct Reading {
    Norm norm;          // of features; that of embeddings is the layer's own
    const Model* host;  // whose embeddings are read; null: the head's own
    int32_t norms_stream, norms_output;  // the stream begins with the normed feature; it is left for children after the last norm
};

struct Model {
    const Layer* layers;
    Norm last;
    Linear head;
    const void* embeddings;  // [vocabulary][hidden] in `embedding_storage`; null: the columns of the head
    const void* positions;   // [context][hidden] in `position_storage`, or null
    // [written], rising: the id whose logit each column of the head is; every other id's is -infinity. Null: all are
    // written, column i is id i.
    const int32_t* written_ids;
    int32_t embedding_storage, position_storage;
    int32_t vocabulary, hidden, num_layers, context;
    int32_t query_heads, kv_heads, head_size, rotary_size;
    int32_t inner_size, activation, gated, parallel_residual;
    float qk_eps;
    int32_t written, num_parts;
    const Norm* parts;       // [num_parts] of a stream that is given: it consists of parts, each normed by itself; or null
    const Reading* reading;  // null: a model of ids alone
};

// Hidden states on their way into the features of a cache: those of successive positions of some of its rows.
struct Arrival {
    const Model* combiner;       // no layers: hidden states of a position side by side, and a head that writes features
    const Model* reader;         // the layers that keep keys and values of features, normed; null: the cache keeps features
    const Norm* norm;            // of features, where there is a reader
    const float* const* states;  // [num_states], of each [batch][width][size]
    const int64_t* rows;         // [batch] of the cache
    const int64_t *starts, *counts;  // [batch] the first position of each, and how many there are
    const int64_t* columns;      // [batch][most] where the states of each stand among `width`; null: in order
    int32_t batch, num_states, width, most;  // batch: 0 once they are taken in
    int64_t row_stride;          // floats of a row of states
};

// keys [layers][kv_heads][num_pages][head_size][16], values [layers][kv_heads][num_pages][16][padded head_size]: a page
// holds 16 slots of a row, those of its number 16 p .. 16 p + 15 where `pages` lists it p-th.
// It records how many slots of each row are committed, and how many were ever written. A head's cache has features too: a
// node in slot s reads those of position s, and leaves its own for its children as those of s + 1, if these are not known.
struct Cache {
    float *keys, *values;
    const int32_t* pages;        // [num_rows][slots / 16]
    const int64_t* rooms;        // [num_rows] slots that the pages of each row hold
    int64_t *lengths, *written;  // [num_rows]
    int32_t num_rows, slots;     // slots: the most that a row can have
    int64_t num_pages;
    float* features;       // [num_rows][slots + 1][hidden], or null
    const int64_t* known;  // [num_rows] positions whose features were given, or null
    Arrival* arrival;      // what the next call takes in before all else, or null
};

struct Call {
    const int64_t* tokens;     // [batch][width]
    const int64_t* parents;    // the same shape, or null: chains
    const int64_t* num_nodes;  // [batch]
    const int64_t* rows;       // [batch] distinct rows of the cache
    const int64_t* lengths;    // [num_rows] slots of the cache before the nodes
    const float* stream;       // [batch][width - first][hidden] before the first layer, or null: embeddings
    const float *cosines, *sines;  // [rotations][rotary_size / 2]
    float* logits;             // [batch][width - first][vocabulary], [batch][1][vocabulary] for LAST
    int64_t* likeliest;        // the first id of the largest logit of every row of logits, or null
    float* peaks;              // these logits
    float* const* hidden;      // one [batch][width - first][hidden] for each of `hidden_layers`
    const int32_t* hidden_layers;
    void* scratch;
    int64_t scratch_bytes;
    Team team;
    int32_t threads, batch, width, first;
    int32_t first_layer, last_layer, want, num_hidden;
    int32_t rotations, context_only;  // context_only: a stream leaves its keys and values in every layer, as it is given
};

// A call with the same rows, tables of rotations, threads and scratch, but without nodes.
INL Call without_nodes(const Call& call) {
    Call bare{};
    bare.rows = call.rows, bare.batch = call.batch, bare.threads = call.threads, bare.team = call.team;
    bare.cosines = call.cosines, bare.sines = call.sines, bare.rotations = call.rotations;
    bare.scratch = call.scratch, bare.scratch_bytes = call.scratch_bytes;
    return bare;
}

// The committed ids in the rows of a call. Chains and trees read the ids whose keys the cache lacks; of the call they read
// only its rows, tables of rotations, threads and scratch.
struct Text {
    const int64_t* ids;   // [batch][stride]
    const int64_t* ends;  // [batch] how many of them stand
    int64_t stride;
};

// Blocks whose laws a head computes in one pass: the pending ids, and a mask at each place after them.
struct Blocks {
    const Model* host;       // whose embeddings the ids have
    const Model* markov;     // no layers: a table of ids, and a head that makes of its rows what is added to logits; or null
    const int64_t* pending;  // [batch]
    int64_t mask, size;      // the id of a mask; places of a block
    int64_t first, depth;    // so many places have laws that are read, the first of which is that
};

// How the ids of chains and trees are drawn: the law of each, and the numbers that it is drawn by.
struct Draws {
    const double* filters;            // lists of [batch], see `Sampling`
    // [batch] id i of row b is drawn by the key bases[b], extended by firsts[b] + i. In a tree the children of node i
    // are, counted from the pending token; in a race those at depth i. Null (trees): the best ids by rank.
    const int64_t *bases, *firsts;
    float* laws;                      // [batch][steps][vocabulary] what is drawn from; trees: [batch][inner][vocabulary]
    int64_t is_race;                  // a race of all ids, or else along the running sum
};

// Changes of the logits of nodes before these become laws: biases, then penalties, then a ban of EOS. Rows are those of the
// call.
struct Adjustments {
    const int64_t* ids;             // [batch][stride] that stand before the nodes
    const int64_t *ends, *prompts;  // [batch] how many of them do, and how many of these are no output
    const double* penalties;        // three lists of [batch]: repetition, presence and frequency
    const int64_t* bias_ends;       // [batch] where the biases of each row end, those of all rows in a list
    const int64_t* bias_ids;
    const double* biases;
    const double* bans;             // [batch] EOS is banned before so many ids of output
    const int64_t* eos;             // [num_eos]
    int64_t stride, num_eos;
};

// Chains that follow a pass: what is asked for, and what is found.
struct Following {
    int64_t* limits;                // [batch] ids of each row; zeros while somebody is asked
    int64_t steps, begun;           // the largest of them at first; how many steps are done, 0 at first
    int64_t* kept;                  // [batch] ids whose keys are kept
    int64_t* ids;                   // [batch][steps]
    float* peaks;                   // [batch][steps] the largest logits; a NaN counts as the largest
    const Draws* draws;             // null: the likeliest ids
    double* entropies;              // [batch] those of the laws of a step; null: not asked about
    double* confidences;            // [batch][steps] the probabilities of the ids; null: not asked about
    void (*ask)(int64_t step, int64_t is_drawn);  // writes limits, none higher than before
    const Adjustments* adjustments;  // null: none
};

// Trees to draft. Nodes stand level by level, siblings side by side.
struct Growth {
    const int64_t* parents;  // [size] of each node, an earlier one; -1: the last id of the text
    const int64_t* limits;   // [batch] a row's tree has the first so many nodes
    int64_t* ids;            // [batch][size], -1 for none
    float* peaks;            // [batch][inner] the largest logit of each node with children, -infinity if it has none
    int64_t size;
    const Adjustments* adjustments;  // null: none
};

INL int padded_head(const Model& model) { return int(rounded(model.head_size, WIDTH)); }
INL int groups(const Model& model) { return model.query_heads / model.kv_heads; }
INL bool rounds_groups(const Linear& layer) { return layer.storage >= Q8_0_WHOLE; }
INL bool rounds_inputs(const Linear& layer) {
    return layer.weights && (layer.storage == INT8_DYNAMIC || rounds_groups(layer));
}
INL bool rounds_inputs(const Layer& layer) {
    return rounds_inputs(layer.qkv) || rounds_inputs(layer.out) || rounds_inputs(layer.up) || rounds_inputs(layer.down);
}
// Where the pages of one layer and key-value head begin, and which of them belong to a row.
INL float* keys_of(const Cache& cache, const Model& model, int64_t layer, int64_t head) {
    return cache.keys + (layer * model.kv_heads + head) * cache.num_pages * model.head_size * WIDTH;
}
INL float* values_of(const Cache& cache, const Model& model, int64_t layer, int64_t head) {
    return cache.values + (layer * model.kv_heads + head) * cache.num_pages * padded_head(model) * WIDTH;
}
INL const int32_t* pages_of(const Cache& cache, int64_t row) { return cache.pages + row * (cache.slots / WIDTH); }

// Where a slot of a row lies: its key, every WIDTH-th float from there, and its value.
struct Place {
    float *key, *value;
};
INL Place place_of(const Cache& cache, const Model& model, int64_t layer, int64_t head, int64_t row, int64_t slot) {
    const int64_t page = pages_of(cache, row)[slot / WIDTH], at = slot % WIDTH;
    return {keys_of(cache, model, layer, head) + page * model.head_size * WIDTH + at,
            values_of(cache, model, layer, head) + (page * WIDTH + at) * padded_head(model)};
}

// Columns of queries, key and value of one key-value head.
INL int head_columns(const Model& model) { return (groups(model) + 2) * padded_head(model); }

}  // namespace specdec
