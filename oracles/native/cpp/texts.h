// Committed ids in the rows of a cache: those without keys are scored, and the cache records what was scored after them.
#pragma once
#include <vector>

#include "nodes.h"

namespace specdec {

// What is drafted after the committed ids of a row.
struct After {
    bool drafts;               // anything at all
    int64_t slots, positions;  // of what is scored
};

// The ids of a call's rows whose keys the cache lacks.
class Unread {
public:
    Unread(const Model& model, const Cache& cache, const Call& call, const Text& text)
        : model_(model), cache_(cache), text_(text), call_(without_nodes(call)), counts_(size_t(call.batch)) {
        call_.last_layer = model.num_layers, call_.want = LAST;
    }

    // Find them, and reserve their slots and those that `after(b)` asks for in row b of the call.
    template <class Afters>
    Fault find(Afters after) {
        std::vector<int64_t> slots(counts_.size());
        int64_t width = 1;
        for (int64_t b = 0; b < call_.batch; ++b) {
            const After more = after(b);
            if (const Fault fault = check(b, more); fault != FINE) return fault;
            slots[size_t(b)] = text_.ends[b] + more.slots;
            counts_[size_t(b)] = text_.ends[b] - cache_.lengths[call_.rows[b]];
            width = std::max(width, counts_[size_t(b)]);
        }
        tokens_.assign(size_t(call_.batch * width), 0);
        for (int64_t b = 0; b < call_.batch; ++b) {
            const int64_t row = call_.rows[b];
            const int64_t* ids = text_.ids + b * text_.stride;
            std::copy(ids + cache_.lengths[row], ids + text_.ends[b], tokens_.begin() + b * width);
            cache_.written[row] = std::max(cache_.written[row], slots[size_t(b)]);
        }
        call_.tokens = tokens_.data(), call_.num_nodes = counts_.data(), call_.lengths = cache_.lengths;
        call_.width = int32_t(width);
        return FINE;
    }

    // The pass that scores them.
    const Call& pass() const { return call_; }

    // Record their keys, and those of the first `more(b)` ids after them, as committed.
    template <class More>
    void keep(More more) {
        for (int64_t b = 0; b < call_.batch; ++b) cache_.lengths[call_.rows[b]] = text_.ends[b] + more(b);
    }

private:
    Fault check(int64_t b, const After& more) const {
        const int64_t row = call_.rows[b], end = text_.ends[b];
        if (row < 0 || row >= cache_.num_rows) return BAD_ROW;
        if (end < cache_.lengths[row] + more.drafts || end > text_.stride) return BAD_END;
        if (end + more.slots > cache_.rooms[row]) return NO_ROOM;
        return end + more.positions > model_.context ? NO_POSITION : FINE;
    }

    const Model& model_;
    const Cache& cache_;
    const Text& text_;
    Call call_;
    std::vector<int64_t> tokens_, counts_;
};

}  // namespace specdec
