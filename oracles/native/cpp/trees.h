// Trees: the children of all nodes of a level, chosen by rank or drawn, then the pass of the next level, without leaving
// the compiled code.
#pragma once
#include <memory>

#include "chains.h"

namespace specdec {

// The first `count` ids of a law in falling order, the lowest id first among equals; -1 if no id is left.
static void best_of(const float* law, int64_t size, int64_t count, int64_t* ids) {
    std::fill_n(ids, count, -1);
    int64_t found = 0;
    float least = 0;  // what an id has to exceed
    for (int64_t begin = 0; begin < size; begin += WIDTH) {
        const int64_t end = std::min(begin + WIDTH, size);
        bool some = false;
        for (int64_t id = begin; id < end; ++id) some |= law[id] > least;
        for (int64_t id = begin; some && id < end; ++id) {
            if (!(law[id] > least)) continue;
            int64_t at = std::min(found, count - 1);
            for (; at > 0 && law[id] > law[ids[at - 1]]; --at) ids[at] = ids[at - 1];
            ids[at] = id;
            found = std::min(found + 1, count);
            if (found == count) least = law[ids[count - 1]];
        }
    }
}

// A node with children. All of them are listed level by level, the pending token first.
struct Inner {
    int64_t node;         // of the tree; -1: the pending token
    int64_t above;        // its parent among the nodes that passes score; -1: the pending token
    int64_t first_child;  // its children stand side by side
    int64_t num_children;
    int64_t depth;        // of its children, 0 below the pending token
};

// Trees of one shape, one in each row, that are cut to their first nodes.
class Trees {
public:
    Trees(const Call& call, int64_t vocabulary, const Growth& growth, const Draws& draws)
        : call_(call), growth_(growth), draws_(draws), vocabulary_(vocabulary),
          adjusting_(growth.adjustments, call.batch, vocabulary) {
        std::vector<int64_t> owners(size_t(growth.size));  // of each node, the place of its parent in `inner_`
        for (int64_t i = 0; i < growth.size; ++i) {
            const int64_t parent = growth.parents[i];
            if (inner_.empty() || inner_.back().node != parent) {
                const int64_t owner = parent < 0 ? -1 : owners[size_t(parent)];
                const int64_t depth = parent < 0 ? 0 : inner_[size_t(owner)].depth + 1;
                inner_.push_back({parent, owner - 1, i, 0, depth});
            }
            ++inner_.back().num_children;
            owners[size_t(i)] = int64_t(inner_.size()) - 1;
        }
        std::fill_n(growth.ids, call.batch * growth.size, -1);
        std::fill_n(growth.peaks, call.batch * int64_t(inner_.size()), -INFINITY);
    }

    // Of the nodes that are drafted after a row's text, those with children are scored.
    After after(int64_t b) const {
        After all{growth_.limits[b] > 0, 0, 0};
        for (const Inner& inner : inner_)
            if (inner.node >= 0 && inner.first_child < growth_.limits[b]) ++all.slots, all.positions = inner.depth;
        return all;
    }

    // Run the first pass, then choose and score level after level. Returns as `score` does.
    int64_t grow(const Model& model, const Cache& cache, const Call& first) {
        const int64_t inner = int64_t(inner_.size()), widest = widest_level();
        const std::unique_ptr<float[]> logits(new float[size_t(call_.batch * widest * vocabulary_)]);
        std::vector<int64_t> tokens(size_t(call_.batch * inner)), parents(tokens), counts(size_t(call_.batch));
        std::vector<int64_t> lengths(size_t(cache.num_rows));
        Call pass = first;
        pass.logits = logits.get();
        int64_t answer = score(model, cache, pass);
        for (from_ = 0; answer == FINE; from_ = to_) {
            to_ = end_of_level(from_);
            logits_ = logits.get();
            choose_all();
            if (to_ == inner) break;
            const int64_t width = end_of_level(to_) - 1;
            for (int64_t b = 0; b < call_.batch; ++b) {
                counts[size_t(b)] = list(b, width, tokens.data() + b * width, parents.data() + b * width);
                lengths[size_t(first.rows[b])] = first.lengths[first.rows[b]] + first.num_nodes[b];
            }
            pass.tokens = tokens.data(), pass.parents = parents.data(), pass.num_nodes = counts.data();
            pass.lengths = lengths.data(), pass.want = ALL;
            pass.width = int32_t(width), pass.first = int32_t(to_ - 1);
            answer = score(model, cache, pass);
        }
        return answer;
    }

private:
    int64_t end_of_level(int64_t from) const {
        int64_t to = from;
        while (to < int64_t(inner_.size()) && inner_[size_t(to)].depth == inner_[size_t(from)].depth) ++to;
        return to;
    }

    int64_t widest_level() const {
        int64_t widest = 0;
        for (int64_t from = 0, to; from < int64_t(inner_.size()); from = to) {
            to = end_of_level(from);
            widest = std::max(widest, to - from);
        }
        return widest;
    }

    // List a row's nodes to score and those scored before, `width` in all; return how many of them its tree has.
    int64_t list(int64_t b, int64_t width, int64_t* tokens, int64_t* parents) const {
        int64_t count = 0;
        for (int64_t i = 0; i < width; ++i) {
            const Inner& inner = inner_[size_t(i + 1)];
            // An absent node has no children, but its place stays its own.
            tokens[i] = std::max<int64_t>(growth_.ids[b * growth_.size + inner.node], 0);
            parents[i] = inner.above;
            count += inner.first_child < growth_.limits[b];
        }
        return count;
    }

    // Choose the children of a level's nodes; threads share nodes.
    void choose_all() {
        const int64_t entries = call_.batch * (to_ - from_);
        if (call_.threads > 1 && entries > 1) call_.team.parallel(choose_some, this, unsigned(call_.threads), 0);
        else choose_share(0, 1);
    }

    static void choose_some(void* argument) {
        const Trees& trees = *static_cast<const Trees*>(argument);
        const Team& team = trees.call_.team;
        trees.choose_share(team.thread_num(), team.num_threads());
    }

    // What a thread writes to besides the trees.
    struct Room {
        Room(bool keeps_law, bool adjusts, int64_t size)
            : law(keeps_law ? new float[size_t(size)] : nullptr), adjusted(adjusts ? new float[size_t(size)] : nullptr),
              keys(new Bits<float>[size_t(size)]) {}

        const std::unique_ptr<float[]> law, adjusted;
        const std::unique_ptr<Bits<float>[]> keys;
        std::vector<int64_t> path;
    };

    void choose_share(int thread, int threads) const {
        const FloatMode mode;
        Room room(!draws_.laws, adjusting_.changes_any(), vocabulary_);
        const int64_t width = to_ - from_, inner = int64_t(inner_.size());
        for (int64_t entry = thread; entry < call_.batch * width; entry += threads) {
            const int64_t b = entry / width, place = from_ + entry % width, at = b * inner + place;
            float* law = draws_.laws ? draws_.laws + at * vocabulary_ : room.law.get();
            if (!choose(b, inner_[size_t(place)], logits_ + entry * vocabulary_, growth_.peaks + at, law, room))
                if (draws_.laws) std::fill_n(law, vocabulary_, 0.0f);
        }
    }

    // Choose the children of a node, or return that it has none in its row.
    bool choose(int64_t b, const Inner& inner, const float* logits, float* peak, float* probs, Room& room) const {
        int64_t* ids = growth_.ids + b * growth_.size;
        const int64_t count = std::min(inner.num_children, growth_.limits[b] - inner.first_child);
        if (count <= 0 || (inner.node >= 0 && ids[inner.node] < 0)) return false;
        const float* given = logits;
        logits = adjusting_.logits(b, given, path_to(inner, ids, room.path), room.adjusted.get());
        ids += inner.first_child;
        if (!draws_.bases && count == 1) {
            *ids = likeliest(logits, vocabulary_);
            *peak = given[*ids];
            return true;
        }
        const Sampling ask = Sampling::of(draws_.filters, call_.batch, b);
        *peak = law_or_uniform(logits, vocabulary_, ask, probs, room.keys.get());
        if (logits != given) *peak = draws_.bases ? largest(given, vocabulary_) : given[likeliest(logits, vocabulary_)];
        if (!draws_.bases) {
            best_of(probs, vocabulary_, count, ids);
            return true;
        }
        const uint64_t part = uint64_t(draws_.firsts[b]) + uint64_t(draws_.is_race ? inner.depth : inner.node + 1);
        const uint64_t key = extended(uint64_t(draws_.bases[b]), part);
        (draws_.is_race ? race<float> : draw<float>)(probs, vocabulary_, key, count, ids);
        return true;
    }

    // The ids on the path to a node, if adjustments read them; `kept` holds them.
    Path path_to(const Inner& inner, const int64_t* ids, std::vector<int64_t>& kept) const {
        kept.clear();
        if (adjusting_.changes_any())
            for (int64_t node = inner.node; node >= 0; node = growth_.parents[node]) kept.push_back(ids[node]);
        return {kept.data(), int64_t(kept.size())};
    }

    const Call& call_;
    const Growth& growth_;
    const Draws& draws_;
    const int64_t vocabulary_;
    const Adjusting adjusting_;
    std::vector<Inner> inner_;
    int64_t from_ = 0, to_ = 0;  // the level at work: nodes of `inner_`
    const float* logits_ = nullptr;  // of its nodes, row after row
};

}  // namespace specdec
