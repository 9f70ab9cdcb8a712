// Walks through drafted trees for which the target says one id after each node, and the blocks that they emit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace specdec {

// What may be wrong with a row. Among several faults the first kind is reported, then the first row, then the first
// node. Mirrored by `FaultCode` in `faults.py`, which says what each means.
enum FaultCode : int64_t { TOKEN = 1, COUNT, PARENT, SCOUT, SOURCE, TABLE, LOGITS, MODEL, LAW, BUDGET };

// The first fault of a batch; the code is 0 if there is none.
struct Fault {
    int64_t code, row, node;

    void tell(FaultCode found, int64_t in_row, int64_t at) {
        if (!code || found < code) *this = {found, in_row, at};
    }
};

// Drafts as they were scored: node 0 of each row is the root. And what the rows may do, and what ends them.
struct Drafts {
    const int64_t* tokens;     // [batch][width]
    const int64_t* parents;    // [batch][width] or null: chains
    const int64_t* sizes;      // [batch] nodes that are real, the root among them
    const uint8_t* scouts;     // [batch][width - 1] or null: none
    const int64_t* sources;    // [batch][width - 1] or null: all are 0
    const int64_t* undefined;  // [batch][columns] or null: all are `never`
    const int64_t* ids;        // [batch][width] what the target says after each node
    const void* peaks;         // [batch][width] the logits of these
    const int64_t *max_depth, *max_nodes;  // [batch]
    const uint8_t* ignores_eos;            // [batch]
    const int64_t* eos_ids;                // [num_eos]
    int64_t is_double, batch, width, num_sources, columns, never, num_eos, ending;
};

// What is written; `depths` and `paths` are null for chains.
struct Written {
    int64_t *num_nodes, *stops, *accepted, *next_ids, *counts, *endings;  // [batch]
    int64_t *block, *depths, *paths;                                      // [batch][width]
};

// Where a walk stops, and the id that follows.
struct End {
    int64_t stop, id;
};

// One row of them.
struct Walk {
    const Drafts& of;
    const Written& to;
    int64_t row;

    const int64_t* nodes(const int64_t* numbers) const { return numbers + row * of.width; }
    int64_t* nodes(int64_t* numbers) const { return numbers + row * of.width; }
    int64_t parent(int64_t node) const { return of.parents ? nodes(of.parents)[node] : node - 1; }
    bool is_scout(int64_t node) const { return of.scouts && node && of.scouts[row * (of.width - 1) + node - 1]; }

    bool is_defined(int64_t node) const {
        const int64_t at = row * of.width + node;
        return std::isfinite(of.is_double ? static_cast<const double*>(of.peaks)[at] : double(static_cast<const float*>(of.peaks)[at]));
    }

    // Whether the number of nodes is possible, so that the nodes can be read.
    bool is_counted() const { return of.sizes[row] >= 1 && of.sizes[row] <= of.width; }

    // Report what is wrong with the row's draft, with the logits after its nodes, and with its size. Writes depths.
    void check(Fault& fault) const {
        for (int64_t column = 0; of.undefined && column < of.columns; ++column)
            if (of.undefined[row * of.columns + column] < of.never) fault.tell(MODEL, row, column);
        if (!is_counted()) return fault.tell(COUNT, row, 0);
        const int64_t size = of.sizes[row];
        int64_t* depth = to.depths ? nodes(to.depths) : nullptr;
        int64_t deepest = depth ? 0 : size - 1;
        if (depth) depth[0] = 0;
        for (int64_t node = 0; node < of.width; ++node) {
            const bool is_real = node < size;
            if (is_real && !is_defined(node)) fault.tell(LOGITS, row, node);
            if (!node) continue;
            const int64_t above = parent(node);
            if (above < 0 || above >= node) return fault.tell(PARENT, row, node);
            if (is_real) check_node(node, above, fault);
            if (depth) depth[node] = depth[above] + 1;
            if (depth && is_real && depth[node] > deepest) deepest = depth[node];
        }
        if (size - 1 > of.max_nodes[row] || deepest > of.max_depth[row]) fault.tell(BUDGET, row, deepest);
    }

    // Report what is wrong with a real node, given the node above it.
    void check_node(int64_t node, int64_t above, Fault& fault) const {
        const int64_t source = of.sources ? of.sources[row * (of.width - 1) + node - 1] : 0;
        if (source < 0 || source >= of.num_sources) fault.tell(SOURCE, row, node);
        if (is_scout(above) && !is_scout(node)) fault.tell(SCOUT, row, node);
    }

    // The first verified child of a node with an id, 0 if it has none.
    int64_t next(int64_t from, int64_t wanted) const {
        const int64_t size = of.sizes[row], *tokens = nodes(of.tokens);
        for (int64_t node = from + 1; node < (of.parents ? size : from + 2) && node < size; ++node)
            if (parent(node) == from && tokens[node] == wanted && !is_scout(node)) return node;
        return 0;
    }

    bool is_end(int64_t token) const {
        for (int64_t i = 0; i < of.num_eos; ++i)
            if (token == of.eos_ids[i]) return !of.ignores_eos[row];
        return false;
    }

    // The end of a walk into the children that carry the ids which `id_of` tells at each node and depth.
    template <class IdOf>
    End to_end(IdOf id_of) const {
        for (int64_t node = 0, depth = 0;; ++depth) {
            const int64_t id = id_of(node, depth), child = next(node, id);
            if (!child) return {node, id};
            node = child;
        }
    }

    // Write where a walk stopped, the way there, and the id that follows.
    void write(const End& end) const {
        const int64_t length = lead(end.stop);
        int64_t* block = nodes(to.block);
        block[length] = end.id;
        std::fill(block + length + 1, block + of.width, -1);
        int64_t count = 0;
        while (count <= length && !is_end(block[count])) ++count;
        const bool ends = count <= length;
        to.num_nodes[row] = of.sizes[row] - 1;
        to.stops[row] = end.stop;
        to.accepted[row] = length;
        to.next_ids[row] = end.id;
        to.counts[row] = ends ? count + 1 : length + 1;
        to.endings[row] = ends ? of.ending : 0;
    }

  private:
    // Write the way to a node, and return how many tokens that accepts.
    int64_t lead(int64_t stop) const {
        int64_t *block = nodes(to.block), *path = to.paths ? nodes(to.paths) : nullptr;
        const int64_t length = to.depths ? nodes(to.depths)[stop] : stop;
        if (path) std::fill(path, path + of.width, 0);
        for (int64_t node = stop, at = length; at > 0; node = parent(node), --at) {
            block[at - 1] = nodes(of.tokens)[node];
            if (path) path[at] = node;
        }
        return length;
    }
};

// If a fault is reported, what is written means nothing.
inline void walk(const Drafts& drafts, const Written& to, Fault& fault) {
    for (int64_t row = 0; row < drafts.batch; ++row) {
        const Walk one{drafts, to, row};
        one.check(fault);
        if (!fault.code) one.write(one.to_end([&](int64_t node, int64_t) { return one.nodes(drafts.ids)[node]; }));
    }
}

}  // namespace specdec
