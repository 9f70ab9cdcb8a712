// Penalties: what the ids that stand before a node, in its row and on its path, change in the node's logits.
#pragma once

#include <cstdint>
#include <vector>

namespace specdec {

// The ids before the nodes of some rows, the strengths of the penalties, and the logits that they change.
struct Before {
    const int64_t* ids;        // [rows][stride]
    const uint8_t* stands;     // [rows][stride] which of them count
    const uint8_t* produced;   // [rows][stride] which of these are output
    const int64_t* drafted;    // [rows][width] drafted ids
    const uint8_t* paths;      // [rows][nodes][width] which of them lie on a node's path
    const double* strengths;   // [3][rows] the repetition, presence and frequency penalties
    void* logits;              // [rows][nodes][size]
    int64_t is_double, rows, stride, nodes, width, size;
};

// Whether every id is one.
inline bool is_sound(const Before& before) {
    const auto is_id = [&](int64_t id) { return id >= 0 && id < before.size; };
    bool sound = true;
    for (int64_t i = 0; i < before.rows * before.stride; ++i) sound &= is_id(before.ids[i]);
    for (int64_t i = 0; i < before.rows * before.width; ++i) sound &= is_id(before.drafted[i]);
    return sound;
}

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

// How often ids stand before a node.
class Occurrences {
  public:
    explicit Occurrences(int64_t size) : seen_(size_t(size)), produced_(seen_.size()) {}

    void add(int64_t id, bool is_produced) {
        if (!seen_[size_t(id)]++) ids_.push_back(id);
        produced_[size_t(id)] += is_produced;
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
    T* logits = static_cast<T*>(before.logits);
    for (int64_t row = 0; row < before.rows; ++row) {
        const Penalties<T> penalised = Penalties<T>::of(before.strengths, before.rows, row);
        const int64_t *drafted = before.drafted + row * before.width, first = row * before.stride;
        for (int64_t i = first; i < first + before.stride; ++i)
            if (before.stands[i]) met.add(before.ids[i], before.produced[i]);
        const size_t standing = met.ids().size();
        for (int64_t node = 0; node < before.nodes; ++node, logits += before.size) {
            const uint8_t* path = before.paths + (row * before.nodes + node) * before.width;
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
