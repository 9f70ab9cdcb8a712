// What one thread does in a pass.
#pragma once
#include "reading.h"

namespace specdec {

class Worker {
public:
    Worker(Plan& plan, int thread, int threads)
        : p_(plan), m_(plan.model), call_(plan.call), thread_(thread), threads_(threads), rows_(plan.nodes.count) {
        own_norms_ = plan.own + thread * plan.own_floats;
        own_whole_ = own_norms_ + Plan::OWN_NORMS * plan.x_stride;
        scratch_ = own_whole_ + Plan::OWN_NORMS * plan.rounded_stride;
        own_parts_ = scratch_ + attention_scratch(call_.width);
    }

    void run() {
        const FloatMode mode;
        begin();
        meet();
        for (int i = call_.first_layer; i < call_.last_layer; ++i) {
            layer(i);
            keep(i);
        }
        if (m_.reading) leave();
        if (p_.num_read) read_out();
    }

private:
    void meet() { p_.barrier.wait(threads_); }
    Range mine(int count) const { return share(count, thread_, threads_); }

    void multiply(const Linear& by, const float* x, int64_t stride, int rows, const Epilogue& to) {
        const bool rounds = rounds_inputs(by);
        if (rounds) x = whole_numbers(by, x, stride, rows);
        product(by, mine(by.columns / BLOCK), x, rounds ? p_.rounded_stride : stride, rows, to);
    }

    // Rows in whole numbers: rounded as `normal` normalises. There is always a further barrier between two products of
    // many rows, so no row is overwritten while a thread reads it.
    const float* whole_numbers(const Linear& by, const float* x, int64_t stride, int rows) {
        const bool alone = rows <= Plan::OWN_NORMS;
        float* out = alone ? own_whole_ : p_.whole;
        const Range part = alone ? Range{0, rows} : mine(rows);
        for (int r = part.from; r < part.to; ++r) round_inputs(by, x + r * stride, out + r * p_.rounded_stride);
        if (!alone) meet();
        return out;
    }
    Epilogue store(float* out, int64_t stride, int32_t columns) const {
        return {Epilogue::STORE, out, stride, columns, nullptr, Activation(m_.activation)};
    }

    // The residual stream before the first layer: embeddings, or the given stream.
    void begin() {
        const Range part = mine(rows_);
        for (int r = part.from; r < part.to; ++r) {
            const Node& node = p_.nodes.all[r];
            float* x = p_.x + r * p_.x_stride;
            std::fill(x + m_.hidden, x + p_.x_stride, 0.0f);
            if (call_.stream) {
                const float* given = call_.stream + p_.place(node) * m_.hidden;
                std::copy(given, given + m_.hidden, x);
                if (m_.num_parts) normalise_parts(p_, x, own_norms_);
            } else if (m_.reading) {
                read_both(p_, node, x, p_.both + r * p_.both_stride, own_norms_);
            } else {
                embed(node, x);
            }
        }
    }

    void embed(const Node& node, float* x) const {
        read_embedding(m_, node.token, x);
        if (!m_.positions) return;
        float* position = own_norms_;
        const int at = std::min(node.length + node.depth, m_.context - 1);
        read_row(m_.positions, m_.position_storage, at, m_.hidden, position);
        for (int i = 0; i < m_.hidden; ++i) x[i] += position[i];
    }

    // Rows of x, normalised: by each thread for itself if they are few, else by all threads together.
    const float* normal(const Norm& norm, int rows, const int32_t* chosen = nullptr) {
        const bool alone = rows <= Plan::OWN_NORMS;
        float* out = alone ? own_norms_ : p_.normed;
        const Range part = alone ? Range{0, rows} : mine(rows);
        for (int r = part.from; r < part.to; ++r)
            normalise(norm, p_.x + (chosen ? chosen[r] : r) * p_.x_stride, out + r * p_.x_stride);
        if (!alone) meet();
        return out;
    }

    void layer(int i) {
        const Layer& layer = m_.layers[i];
        if (call_.context_only) return remember(layer, i);
        const Epilogue add{Epilogue::ADD, p_.x, p_.x_stride, int32_t(p_.x_stride), nullptr, SILU};
        if (layer.qkv.weights) {
            const bool reads = m_.reading && !i;
            const float* x = reads ? p_.both : normal(layer.before_attention, rows_);
            multiply(layer.qkv, x, reads ? p_.both_stride : p_.x_stride, rows_, store(p_.qkv, p_.qkv_stride, layer.qkv.columns));
            if (m_.parallel_residual) {
                if (rows_ > Plan::OWN_NORMS) meet();  // all have read what the next norm overwrites
                widen(layer);
            }
            if (has_own_heads()) attend_own(layer, i);
            else attend_together(layer, i);
            meet();
            multiply(layer.out, p_.attended, p_.out_stride, rows_, add);
            meet();
        }
        if (!layer.qkv.weights || !m_.parallel_residual) {
            widen(layer);
            meet();
        }
        multiply(layer.down, p_.inner, p_.inner_stride, rows_, add);
        meet();
    }

    // Keep the keys and values of the unchanged stream.
    void remember(const Layer& layer, int index) {
        multiply(layer.qkv, p_.x, p_.x_stride, rows_, store(p_.qkv, p_.qkv_stride, layer.qkv.columns));
        meet();
        place_heads(layer, index);
        meet();
    }

    // The first half of the MLP.
    void widen(const Layer& layer) {
        const float* x = normal(layer.before_mlp, rows_);
        Epilogue to = store(p_.inner, p_.inner_stride, int32_t(p_.inner_stride));
        to.kind = m_.gated ? Epilogue::GATE : Epilogue::ACTIVATE;
        if (m_.gated) to.columns *= 2;
        multiply(layer.up, x, p_.x_stride, rows_, to);
    }

    // Whether a thread's part of the product before attention covers whole key-value heads.
    bool has_own_heads() const { return m_.kv_heads % threads_ == 0 && head_columns(m_) % BLOCK == 0; }

    // Place and attend to a thread's own heads of every row: no thread waits for another's results, and all do equal work.
    void attend_own(const Layer& layer, int index) {
        const Range heads = mine(m_.kv_heads);
        for (int head = heads.from; head < heads.to; ++head)
            for (int row = 0; row < rows_; ++row) place_head(layer, index, row, head);
        for (int i = 0; i < p_.num_tiles; ++i)
            if (p_.tiles[i].head >= heads.from && p_.tiles[i].head < heads.to) attend_tile(index, p_.tiles[i]);
    }

    void attend_together(const Layer& layer, int index) {
        meet();
        place_heads(layer, index);
        meet();
        attend_all(index);
    }

    // Norm and rotate queries and keys, and write keys and values after the prefixes: in the order of tiles, so that a
    // thread finds most of what it attends to in its own cache, and seldom writes a cache line that another writes too.
    void place_heads(const Layer& layer, int index) {
        const Range part = mine(rows_ * m_.kv_heads);
        for (int b = 0; b < call_.batch; ++b) {
            const int row = p_.nodes.begins[b], count = p_.nodes.begins[b + 1] - row, first = row * m_.kv_heads;
            for (int j = std::max(part.from, first); j < std::min(part.to, first + count * m_.kv_heads); ++j)
                place_head(layer, index, row + (j - first) % count, (j - first) / count);
        }
    }

    void place_head(const Layer& layer, int index, int row, int head) {
        const Node& node = p_.nodes.all[row];
        const int padded = padded_head(m_), count = groups(m_), pairs = m_.rotary_size / 2;
        const int64_t at = int64_t(std::min(node.length + node.depth, call_.rotations - 1)) * pairs;
        float* queries = p_.qkv + row * p_.qkv_stride + head * head_columns(m_);
        const float scale = 1.0f / std::sqrt(float(m_.head_size));
        for (int i = 0; i <= count; ++i) {
            float* one = queries + i * padded;
            const float* weight = i < count ? layer.query_norm : layer.key_norm;
            if (weight) scale_by_rms(one, weight, m_.qk_eps, m_.head_size, one);
            turn(one, call_.cosines + at, call_.sines + at, pairs);
        }
        for (int d = 0; d < count * padded; d += WIDTH) vstore(queries + d, vmul(vload(queries + d), vset(scale)));
        const int slot = node.length + node.index;
        const Place place = place_of(p_.cache, m_, index, head, node.row, slot);
        const float *key = queries + count * padded, *value = key + padded;
        for (int d = 0; d < m_.head_size; ++d) place.key[d * WIDTH] = key[d];
        std::copy(value, value + padded, place.value);
    }

    // A thread takes its own tiles, then tiles that others have not begun, because rows differ in length. If there are
    // only a few long tiles, their chunks are shared.
    void attend_all(int layer) {
        for (int i = 0; i < threads_; ++i) attend_share(layer, (thread_ + i) % threads_);
        if (!p_.sharing) return;
        meet();
        const Range part = mine(p_.num_tiles);
        for (int i = part.from; i < part.to; ++i) combine_shared(layer, p_.tiles[i]);
    }

    void attend_share(int layer, int owner) {
        const Range units = share(p_.num_units, owner, threads_);
        std::atomic<int32_t>& taken = p_.taken[layer * threads_ + owner];
        for (int i; (i = units.from + taken.fetch_add(1, std::memory_order_relaxed)) < units.to;) {
            const Tile& tile = p_.tiles[p_.units[i].tile];
            if (p_.sharing) attend_shared(layer, tile, p_.units[i].chunk);
            else attend_tile(layer, tile);
        }
    }

    // Find what a tile's queries see in a layer; return their number.
    int look(int layer, const Tile& tile, Query* queries) const {
        const int per_node = groups(m_), padded = padded_head(m_);
        for (int i = 0; i < tile.count; ++i) {
            const int q = tile.first + i, row = p_.nodes.begins[tile.batch] + q / per_node;
            const Node& node = p_.nodes.all[row];
            const float* vector = p_.qkv + row * p_.qkv_stride + tile.head * head_columns(m_) + q % per_node * padded;
            const Range seen = p_.seen(m_.layers[layer].reach, node);
            queries[i] = {vector, node.path, seen.from, seen.to, node.path ? node.length : seen.to};
        }
        return tile.count;
    }
    // A tile's chunks are those of all layers together; a single layer may reach less far.
    static bool anyone_sees(const Query* queries, int count, int chunk) {
        const auto sees = [=](const Query& query) { return query.sees(chunk * CHUNK, (chunk + 1) * CHUNK); };
        return std::any_of(queries, queries + count, sees);
    }
    float* out_of(const Tile& tile, int i) const {
        const int per_node = groups(m_), q = tile.first + i, row = p_.nodes.begins[tile.batch] + q / per_node;
        return p_.attended + row * p_.out_stride + (tile.head * per_node + q % per_node) * padded_head(m_);
    }
    Memory memory_of(int layer, const Tile& tile) const {
        const Node& node = p_.nodes.all[p_.nodes.begins[tile.batch]];
        const int end = node.length + int(call_.num_nodes[tile.batch]);
        const Cache& cache = p_.cache;
        return {keys_of(cache, m_, layer, tile.head), values_of(cache, m_, layer, tile.head),
                pages_of(cache, node.row), m_.head_size, padded_head(m_), node.length, end};
    }
    Part part_at(float* from, int64_t index) const {
        const int padded = padded_head(m_);
        return {from + index * Part::floats(padded), padded};
    }

    // All chunks of a tile, one after the other.
    void attend_tile(int layer, const Tile& tile) {
        Query queries[MOST_QUERIES];
        Part all[MOST_QUERIES], next[MOST_QUERIES];
        bool begun[MOST_QUERIES] = {};
        const int count = look(layer, tile, queries);
        const Memory memory = memory_of(layer, tile);
        for (int i = 0; i < MOST_QUERIES; ++i)
            all[i] = part_at(own_parts_, i), next[i] = part_at(own_parts_, MOST_QUERIES + i);
        for (int chunk = tile.first_chunk; chunk <= tile.last_chunk; ++chunk) {
            if (!anyone_sees(queries, count, chunk)) continue;
            attend(count, queries, memory, chunk, scratch_, next);
            for (int i = 0; i < count; ++i) {
                if (!queries[i].sees(chunk * CHUNK, (chunk + 1) * CHUNK)) continue;
                if (begun[i]) combine(all[i], next[i]);
                else std::swap(all[i], next[i]), begun[i] = true;
            }
        }
        for (int i = 0; i < count; ++i) divide(all[i], out_of(tile, i));
    }

    // One chunk of a tile; other threads may take its other chunks.
    void attend_shared(int layer, const Tile& tile, int chunk) {
        Query queries[MOST_QUERIES];
        Part parts[MOST_QUERIES];
        const int count = look(layer, tile, queries);
        if (!anyone_sees(queries, count, chunk)) return;
        for (int i = 0; i < count; ++i) parts[i] = shared_part(tile, chunk, i);
        attend(count, queries, memory_of(layer, tile), chunk, scratch_, parts);
    }
    Part shared_part(const Tile& tile, int chunk, int i) const {
        return part_at(p_.parts, tile.part + int64_t(chunk - tile.first_chunk) * tile.count + i);
    }

    void combine_shared(int layer, const Tile& tile) {
        Query queries[MOST_QUERIES];
        const int count = look(layer, tile, queries);
        for (int i = 0; i < count; ++i) {
            Part all{nullptr, 0};
            for (int chunk = tile.first_chunk; chunk <= tile.last_chunk; ++chunk) {
                if (!queries[i].sees(chunk * CHUNK, (chunk + 1) * CHUNK)) continue;
                if (all.sums) combine(all, shared_part(tile, chunk, i));
                else all = shared_part(tile, chunk, i);
            }
            divide(all, out_of(tile, i));
        }
    }

    // Write out the residual stream after a layer if it was asked for.
    void keep(int layer) {
        for (int k = 0; k < call_.num_hidden; ++k) {
            if (call_.hidden_layers[k] != layer) continue;
            const Range part = mine(rows_);
            for (int r = part.from; r < part.to; ++r) {
                const float* x = p_.x + r * p_.x_stride;
                std::copy(x, x + m_.hidden, call_.hidden[k] + p_.place(p_.nodes.all[r]) * m_.hidden);
            }
        }
    }

    void leave() {
        const Range part = mine(rows_);
        for (int r = part.from; r < part.to; ++r) leave_features(p_, p_.nodes.all[r], p_.x + r * p_.x_stride, own_norms_);
    }

    void read_out() {
        const float* x = normal(m_.last, p_.num_read, p_.read_rows);
        if (m_.written_ids) return read_out_written(x);
        Epilogue to = store(call_.logits, m_.vocabulary, m_.vocabulary);
        to.rows = p_.read_places;
        multiply(m_.head, x, p_.x_stride, p_.num_read, to);
    }

    // A head that writes only some ids. Every thread spreads a share of the columns, over the ids from its first column's
    // to the next thread's first.
    void read_out_written(const float* x) {
        multiply(m_.head, x, p_.x_stride, p_.num_read, store(p_.written, p_.written_stride, m_.written));
        meet();
        const Range part = mine(m_.written);
        if (part.from == part.to) return;
        const int64_t first = part.from ? m_.written_ids[part.from] : 0;
        const int64_t last = part.to < m_.written ? m_.written_ids[part.to] : m_.vocabulary;
        for (int r = 0; r < p_.num_read; ++r) {
            const float* from = p_.written + r * p_.written_stride;
            float* to = call_.logits + int64_t(p_.read_places[r]) * m_.vocabulary;
            std::fill(to + first, to + last, -INFINITY);
            for (int c = part.from; c < part.to; ++c) to[m_.written_ids[c]] = from[c];
        }
    }

    Plan& p_;
    const Model& m_;
    const Call& call_;
    const int thread_, threads_, rows_;
    float *own_norms_, *own_whole_, *scratch_, *own_parts_;
};

}  // namespace specdec
