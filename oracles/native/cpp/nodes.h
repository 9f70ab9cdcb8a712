// The nodes of a call: where each one lies, and what it sees.
#pragma once
#include <algorithm>

#include "model.h"

namespace specdec {

struct Node {
    int32_t batch;          // which row of the call
    int32_t row, length;    // its row of the cache, and the slots that stand there
    int32_t index, depth;   // in its tree, cached nodes included
    const int32_t* path;    // [depth + 1] indices of its ancestors, itself last; null in a chain, where path[i] = i
    int64_t token;

    // The index of its parent in its tree; -1: it has none.
    int parent() const { return !path ? index - 1 : depth ? path[depth - 1] : -1; }
    // The slot whose features a head reads: the one after its parent's, or that of the first node if it has no parent.
    int64_t after_parent() const { return int64_t(length) + parent() + 1; }
};

// Memory handed out in pieces of whole cache lines; without memory it only counts.
class Arena {
public:
    explicit Arena(void* memory) : memory_(static_cast<char*>(memory)) {}
    template <class T>
    T* take(int64_t count) {
        char* at = memory_ ? memory_ + bytes_ : nullptr;
        bytes_ += rounded(count * int64_t(sizeof(T)), 128);
        return reinterpret_cast<T*>(at);
    }
    int64_t bytes() const { return bytes_; }

private:
    char* memory_;
    int64_t bytes_ = 0;
};

// What is wrong with a call; names in `bindings.py`.
enum Fault : int64_t {
    FINE = 0, BAD_TOKEN = -1, BAD_PARENT = -2, BAD_COUNT = -3, BAD_ROW = -4, BAD_ADJUSTMENT = -5, BAD_END = -6, NO_ROOM = -7,
    NO_POSITION = -8, NO_FEATURE = -9
};

class Nodes {
public:
    Nodes(Arena& arena, const Call& call) {
        const int64_t most = int64_t(call.batch) * call.width;
        all = arena.take<Node>(most);
        begins = arena.take<int32_t>(call.batch + 1);
        if (!call.parents) return;
        depths_ = arena.take<int32_t>(most);
        offsets_ = arena.take<int64_t>(most);
        paths_ = arena.take<int32_t>(most * (call.width + 1) / 2);
    }

    // List the nodes to score, row after row without padding.
    Fault fill(const Model& model, const Cache& cache, const Call& call) {
        int64_t used = 0;
        count = 0;
        if (!call.tokens) return fill_plain(call);
        for (int b = 0; b < call.batch; ++b) {
            const int64_t nodes = call.num_nodes[b], row = call.rows[b];
            begins[b] = count;
            if (row < 0 || row >= cache.num_rows) return BAD_ROW;
            if (nodes < 0 || nodes > call.width) return BAD_COUNT;
            if (nodes && call.lengths[row] + nodes > cache.rooms[row]) return NO_ROOM;
            for (int64_t i = 0; i < nodes; ++i) {
                const int64_t at = int64_t(b) * call.width + i;
                if (call.tokens[at] < 0 || call.tokens[at] >= model.vocabulary) return BAD_TOKEN;
                if (call.parents && !trace(call, at, i, used)) return BAD_PARENT;
                if (i < call.first) continue;
                const int32_t depth = call.parents ? depths_[at] : int32_t(i);
                const int32_t* path = call.parents ? paths_ + offsets_[at] : nullptr;
                const Node& node = all[count++] = {b, int32_t(row), int32_t(call.lengths[row]), int32_t(i), depth, path, call.tokens[at]};
                if (model.reading && node.parent() >= call.first && node.after_parent() >= cache.known[row]) return NO_FEATURE;
            }
        }
        begins[call.batch] = count;
        return FINE;
    }

    // Rows of a stream that no layer's attention reads.
    Fault fill_plain(const Call& call) {
        for (int b = 0; b <= call.batch; ++b) begins[b] = b * call.width;
        for (count = 0; count < call.batch * call.width; ++count)
            all[count] = {count / call.width, 0, 0, count % call.width, 0, nullptr, 0};
        return FINE;
    }

    Node* all;
    int32_t* begins;  // [batch + 1]
    int32_t count = 0;

private:
    // Append the path of node i: its parent's path, then itself.
    bool trace(const Call& call, int64_t at, int64_t i, int64_t& used) {
        const int64_t parent = call.parents[at];
        if (parent < -1 || parent >= i) return false;
        const int64_t above = at - i + parent;
        const int32_t depth = parent < 0 ? 0 : depths_[above] + 1;
        if (depth) std::copy(paths_ + offsets_[above], paths_ + offsets_[above] + depth, paths_ + used);
        paths_[used + depth] = int32_t(i);
        depths_[at] = depth;
        offsets_[at] = used;
        used += depth + 1;
        return true;
    }

    int32_t *depths_ = nullptr, *paths_ = nullptr;
    int64_t* offsets_ = nullptr;
};

}  // namespace specdec
