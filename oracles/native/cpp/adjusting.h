// Adjustments: a request changes the logits of nodes, depending on the committed ids and those on the path to a node.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "model.h"
#include "penalties.h"

namespace specdec {

// Whether all ids lie within the vocabulary.
inline bool is_sound(const Adjustments& given, int64_t batch, int64_t size) {
    const auto are_ids = [size](const int64_t* ids, int64_t count) {
        return std::all_of(ids, ids + count, [size](int64_t id) { return id >= 0 && id < size; });
    };
    bool sound = are_ids(given.eos, given.num_eos) && are_ids(given.bias_ids, given.bias_ends[batch - 1]);
    for (int64_t row = 0; row < batch; ++row) sound &= are_ids(given.ids + row * given.stride, given.ends[row]);
    return sound;
}

// The ids between the last committed one and a node.
struct Path {
    const int64_t* ids;
    int64_t length;

    // How often an id is among the first `count`.
    int64_t times(int64_t id, int64_t count) const { return std::count(ids, ids + count, id); }
};

// The changed logits, row by row. Threads may ask concurrently.
class Adjusting {
  public:
    Adjusting(const Adjustments* given, int64_t batch, int64_t size) : given_(given), batch_(batch), size_(size) {
        if (given) meet();
    }

    bool changes_any() const { return given_; }

    // Return the logits of a node after a path: those given, or, if the row changes them, the changed ones in `room`.
    const float* logits(int64_t row, const float* logits, const Path& path, float* room) const {
        if (!given_ || !changes(row)) return logits;
        std::copy_n(logits, size_, room);
        for (int64_t i = first_bias(row); i < given_->bias_ends[row]; ++i)
            room[given_->bias_ids[i]] += float(given_->biases[i]);
        const auto penalised = penalties(row);
        if (penalised.is_any()) {
            const std::vector<Met>& standing = standing_[size_t(row)];
            for (const Met& met : standing)
                room[met.id] = penalised(room[met.id], met.produced + path.times(met.id, path.length));
            for (int64_t i = 0; i < path.length; ++i) {
                const int64_t id = path.ids[i];
                const bool is_done = path.times(id, i) || stands(standing, id);
                if (!is_done) room[id] = penalised(room[id], path.times(id, path.length));
            }
        }
        if (double(produced(row) + path.length) < given_->bans[row])
            for (int64_t i = 0; i < given_->num_eos; ++i) room[given_->eos[i]] = -INFINITY;
        return room;
    }

  private:
    // An id of a row's text, and how often it occurs in the output.
    struct Met {
        int64_t id, produced;
    };

    // Count the ids of rows that have penalties.
    void meet() {
        standing_.resize(size_t(batch_));
        Occurrences met(size_);
        for (int64_t row = 0; row < batch_; ++row) {
            if (!penalties(row).is_any()) continue;
            met.add_row(given_->ids + row * given_->stride, given_->ends[row], given_->prompts[row]);
            for (const int64_t id : met.ids()) standing_[size_t(row)].push_back({id, met.produced(id)});
            met.forget();
        }
    }

    static bool stands(const std::vector<Met>& standing, int64_t id) {
        return std::any_of(standing.begin(), standing.end(), [id](const Met& met) { return met.id == id; });
    }
    Penalties<float> penalties(int64_t row) const { return Penalties<float>::of(given_->penalties, batch_, row); }
    int64_t first_bias(int64_t row) const { return row ? given_->bias_ends[row - 1] : 0; }
    int64_t produced(int64_t row) const { return given_->ends[row] - given_->prompts[row]; }
    bool changes(int64_t row) const {
        return first_bias(row) < given_->bias_ends[row] || penalties(row).is_any() || double(produced(row)) < given_->bans[row];
    }

    const Adjustments* given_;
    const int64_t batch_, size_;
    std::vector<std::vector<Met>> standing_;  // of each row, every id once
};

}  // namespace specdec
