// One pass: every thread runs `Worker::run`, and waits for the others at barriers between the phases of a layer.
#pragma once
#include "attention.h"
#include "float_mode.h"

namespace specdec {

// Some queries of one key-value head of a row, in the order of nodes and, within a node, of its query heads.
struct Tile {
    int32_t batch, head, first, count;
    int32_t first_chunk, last_chunk;
    int64_t part;  // where its parts begin, counted in parts, when chunks are shared among threads
};

// What a thread takes at a time: all chunks of a tile, or one of them.
struct Unit {
    int32_t tile, chunk;
};

// The scratch of a pass: one piece of memory, laid out again for every call.
struct Plan {
    // Up to this many rows, every thread normalises all of them for itself, which saves a barrier.
    static constexpr int OWN_NORMS = 16;

    Plan(const Model& model, const Cache& cache, const Call& call, void* memory)
        : model(model), cache(cache), call(call), arena(memory), nodes(arena, call) {}

    // Place every buffer, by the sizes of the call alone.
    void reserve() {
        const int64_t rows = int64_t(call.batch) * (call.width - call.first), threads = call.threads;
        const int heads = model.query_heads * padded_head(model);
        x_stride = stride(model.hidden), both_stride = stride(2 * int64_t(model.hidden)), qkv_stride = stride(int64_t(model.kv_heads) * head_columns(model));
        out_stride = stride(heads), inner_stride = stride(model.inner_size);
        const int widest = std::max({model.reading ? 2 * model.hidden : model.hidden, heads, model.inner_size});
        rounded_stride = rounds_inputs() ? stride(std::max(rounded_row(widest), rounded_groups(widest))) : 0;
        x = arena.take<float>(rows * x_stride);
        both = arena.take<float>(model.reading ? rows * both_stride : 0);
        normed = arena.take<float>(rows > OWN_NORMS ? rows * x_stride : 0);
        whole = arena.take<float>(rows > OWN_NORMS ? rows * rounded_stride : 0);
        qkv = arena.take<float>(rows * qkv_stride);
        attended = arena.take<float>(rows * out_stride);
        inner = arena.take<float>(rows * inner_stride);
        read_rows = arena.take<int32_t>(rows);
        read_places = arena.take<int32_t>(rows);
        most_tiles = int64_t(call.batch) * model.kv_heads * (call.width * groups(model) / MOST_QUERIES + 1);
        const int64_t chunks = most_tiles < sharing_tiles() ? (cache.slots + CHUNK - 1) / CHUNK : 1;
        tiles = arena.take<Tile>(most_tiles);
        units = arena.take<Unit>(most_tiles * chunks);
        taken = arena.take<std::atomic<int32_t>>(model.num_layers * threads);
        own_floats = OWN_NORMS * (x_stride + rounded_stride) + attention_scratch(call.width) + 2 * MOST_QUERIES * Part::floats(padded_head(model));
        own_floats = rounded(own_floats, 2 * WIDTH);
        own = arena.take<float>(threads * own_floats);
        const int64_t most_parts = chunks > 1 ? rows * model.query_heads * chunks : 0;
        parts = arena.take<float>(most_parts * Part::floats(padded_head(model)));
        written_stride = stride(model.written);
        written = arena.take<float>(model.written_ids ? most_read() * written_stride : 0);
    }

    int64_t most_read() const {
        return call.want == NONE ? 0 : int64_t(call.batch) * (call.want == ALL ? call.width - call.first : 1);
    }

    // Chunks are shared among threads only if there are fewer tiles than this, which bounds the parts that are kept.
    int64_t sharing_tiles() const { return call.threads == 1 ? 0 : 4 * call.threads; }

    bool rounds_inputs() const {
        const auto rounds = [](const Layer& layer) { return specdec::rounds_inputs(layer); };
        return specdec::rounds_inputs(model.head) || std::any_of(model.layers, model.layers + model.num_layers, rounds);
    }

    // Cut the attention of all layers in the same way: the chunks of a tile are those that some layer sees.
    void cut_attention() {
        const Reach reach = widest();
        num_tiles = num_units = 0;
        int64_t used = 0;
        for (int b = 0; b < call.batch; ++b) {
            const int queries = (nodes.begins[b + 1] - nodes.begins[b]) * groups(model);
            const int count = (queries + MOST_QUERIES - 1) / MOST_QUERIES;
            for (int i = 0; i < model.kv_heads * count; ++i) {
                Tile tile = tile_of(reach, b, i / count, share(queries, i % count, count));
                tile.part = used;
                used += int64_t(tile.count) * (tile.last_chunk - tile.first_chunk + 1);
                tiles[num_tiles++] = tile;
                sharing = sharing || tile.last_chunk > tile.first_chunk;
            }
        }
        sharing = sharing && most_tiles < sharing_tiles();
        for (int i = 0; i < num_tiles; ++i)
            for (int chunk = tiles[i].first_chunk; chunk <= (sharing ? tiles[i].last_chunk : tiles[i].first_chunk); ++chunk)
                units[num_units++] = {i, chunk};
        for (int i = 0; i < model.num_layers * call.threads; ++i) new (taken + i) std::atomic<int32_t>(0);
    }

    // The positions that any layer sees.
    Reach widest() const {
        Reach all{};
        bool is_bounded = model.num_layers > 0;
        for (int i = 0; i < model.num_layers; ++i) {
            const Reach& reach = model.layers[i].reach;
            all = {std::max(all.window, reach.window), all.ahead || reach.ahead};
            is_bounded = is_bounded && reach.window;
        }
        return {is_bounded ? all.window : 0, all.ahead};
    }

    Tile tile_of(const Reach& reach, int batch, int head, Range queries) const {
        Tile tile{batch, head, queries.from, queries.to - queries.from, INT32_MAX, 0, 0};
        for (int q = queries.from; q < queries.to; ++q) {
            const Node& node = nodes.all[nodes.begins[batch] + q / groups(model)];
            const Range range = seen(reach, node);
            tile.first_chunk = std::min(tile.first_chunk, range.from / CHUNK);
            tile.last_chunk = std::max(tile.last_chunk, (range.to - 1) / CHUNK);
        }
        return tile;
    }

    // The positions that a node sees.
    Range seen(const Reach& reach, const Node& node) const {
        const int end = node.length + (reach.ahead ? int(call.num_nodes[node.batch]) : node.depth + 1);
        return {reach.window ? std::max(0, (reach.ahead ? node.length : end) - reach.window) : 0, end};
    }

    // List the nodes whose logits are read.
    void choose_rows() {
        num_read = 0;
        if (call.want == NONE) return;
        for (int b = 0; b < call.batch; ++b)
            for (int r = nodes.begins[b]; r < nodes.begins[b + 1]; ++r)
                if (call.want == ALL || r + 1 == nodes.begins[b + 1]) {
                    read_places[num_read] = call.want == ALL ? int32_t(place(nodes.all[r])) : b;
                    read_rows[num_read++] = r;
                }
    }

    // Where a node's results lie in tensors of the call's shape.
    int64_t place(const Node& node) const {
        return int64_t(node.batch) * (call.width - call.first) + node.index - call.first;
    }

    const Model& model;
    const Cache& cache;
    const Call& call;
    Arena arena;
    Nodes nodes;
    Barrier barrier;
    int64_t x_stride, both_stride, qkv_stride, out_stride, inner_stride, rounded_stride, written_stride, own_floats, most_tiles;
    float *x, *both, *normed, *whole, *qkv, *attended, *inner, *own, *parts, *written;
    int32_t *read_rows, *read_places, num_read = 0, num_tiles = 0, num_units = 0;
    Tile* tiles;
    Unit* units;
    std::atomic<int32_t>* taken;  // [layers][threads] units of a thread's share that someone attends to
    bool sharing = false;
};

// Run a pass. Returns 0, a `Fault` below 0, or the bytes of scratch that it needs if it was given fewer.
static int64_t score(const Model& model, const Cache& cache, const Call& call);

}  // namespace specdec
