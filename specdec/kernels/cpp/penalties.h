// Penalties: what the ids that stand before a node, in its row and on its path, change in the node's logits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace specdec {

// The ids before the nodes of some rows, the strengths of the penalties, and the logits that they change.
struct Before {
    const int64_t* ids;        // [rows][stride]
    const int64_t* ends;       // [rows] how many of them stand
    const int64_t* prompts;    // [rows] how many of these are no output
    const int64_t* drafted;    // [rows][width] drafted ids
    const uint8_t* paths;      // [rows][nodes][width] which of them lie on a node's path
    const double* strengths;   // [3][rows] the repetition, presence and frequency penalties
    void* logits;              // [rows][nodes][size]
    int64_t is_double, rows, stride, nodes, width, size;
};

// The penalties of a row.
template <class T>
struct Penalties {
    T repetition, presence, frequency;

    // Those of a row, out of three lists of `rows`: repetition, presence and frequency.
    static Penalties of(const double* by, int64_t rows, int64_t row) {
        return {T(by[row]), T(by[rows + row]), T(by[2 * rows + row])};
    }

    bool is_any() const { return repetition != T(1) || presence != T(0) || frequency != T(0); }

    // The logit of an id that stands, and does so `produced` times in the output.
    T operator()(T value, int64_t produced) const {
        if (repetition != T(1)) value = value > T(0) ? value / repetition : value * repetition;
        const T count = T(produced);
        return value - presence * T(count > T(0)) - frequency * count;
    }
};

// Whether every id of the rows with penalties is in the vocabulary.
inline bool is_sound(const Before& before) {
    const auto are_ids = [&](const int64_t* ids, int64_t count) {
        return std::all_of(ids, ids + count, [&](int64_t id) { return id >= 0 && id < before.size; });
    };
    bool sound = true;
    for (int64_t row = 0; row < before.rows; ++row) {
        if (!Penalties<double>::of(before.strengths, before.rows, row).is_any()) continue;
        const int64_t end = before.ends[row];
        sound &= end >= 0 && end <= before.stride && are_ids(before.ids + row * before.stride, end) &&
                 are_ids(before.drafted + row * before.width, before.width);
    }
    return sound;
}

// How often ids stand before a node.
class Occurrences {
  public:
    explicit Occurrences(int64_t size) : seen_(size_t(size)), produced_(seen_.size()) {}

    void add(int64_t id, bool is_produced) {
        if (!seen_[size_t(id)]++) ids_.push_back(id);
        produced_[size_t(id)] += is_produced;
    }
    // Add the first `end` ids of a row, of which the first `prompt` are no output.
    void add_row(const int64_t* ids, int64_t end, int64_t prompt) {
        for (int64_t i = 0; i < end; ++i) add(ids[i], i >= prompt);
    }
    void take(int64_t id) {
        --seen_[size_t(id)];
        --produced_[size_t(id)];
    }
    void forget() {
        for (const int64_t id : ids_) seen_[size_t(id)] = produced_[size_t(id)] = 0;
        ids_.clear();
    }

    // Forget that ids from `count` on were met, none of which stands any more.
    void shorten(size_t count) { ids_.resize(count); }

    const std::vector<int64_t>& ids() const { return ids_; }
    int64_t produced(int64_t id) const { return produced_[size_t(id)]; }

  private:
    std::vector<int64_t> seen_, produced_, ids_;
};

// Change the logits of ids that stand before a node.
template <class T>
void penalise(const Before& before) {
    Occurrences met(before.size);
    for (int64_t row = 0; row < before.rows; ++row) {
        const Penalties<T> penalised = Penalties<T>::of(before.strengths, before.rows, row);
        if (!penalised.is_any()) continue;
        const int64_t* drafted = before.drafted + row * before.width;
        met.add_row(before.ids + row * before.stride, before.ends[row], before.prompts[row]);
        const size_t standing = met.ids().size();
        for (int64_t node = 0; node < before.nodes; ++node) {
            const int64_t at = row * before.nodes + node;
            T* logits = static_cast<T*>(before.logits) + at * before.size;
            const uint8_t* path = before.paths + at * before.width;
            for (int64_t i = 0; i < before.width; ++i)
                if (path[i]) met.add(drafted[i], true);
            for (const int64_t id : met.ids()) logits[id] = penalised(logits[id], met.produced(id));
            for (int64_t i = 0; i < before.width; ++i)
                if (path[i]) met.take(drafted[i]);
            met.shorten(standing);
        }
        met.forget();
    }
}

}  // namespace specdec
