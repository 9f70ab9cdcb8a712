// What a head reads besides ids: features, from slots of the cache or of given hidden states.
#pragma once
#include "pass.h"

namespace specdec {

// The features of a position, which a node in the slot of that number reads.
INL float* feature_of(const Plan& plan, int row, int64_t position) {
    return plan.cache.features + (int64_t(row) * (plan.cache.slots + 1) + position) * plan.model.hidden;
}

// Norm each part of a row of x separately; `room` takes the row.
static void normalise_parts(const Plan& plan, float* x, float* room) {
    std::copy(x, x + plan.x_stride, room);
    // What a norm writes beyond its part, the next norm overwrites.
    for (int i = 0, at = 0; i < plan.model.num_parts; at += plan.model.parts[i++].size)
        normalise(plan.model.parts[i], room + at, x + at);
}

// The stream of a node before a head's first layer, and the input of its queries, keys and values; `room` takes the
// embedding.
static void read_both(const Plan& plan, const Node& node, float* x, float* both, float* room) {
    const Reading& reading = *plan.model.reading;
    const int size = plan.model.hidden;
    read_embedding(reading.host ? *reading.host : plan.model, node.token, room);
    std::fill(room + size, room + plan.x_stride, 0.0f);
    const float* feature = feature_of(plan, node.row, node.after_parent());
    std::copy(feature, feature + size, x);
    normalise(plan.model.layers->before_attention, room, both);
    normalise(reading.norm, x, both + size);
    std::fill(both + 2 * size, both + plan.both_stride, 0.0f);
    if (reading.norms_stream) std::copy(both + size, both + 2 * size, x);
}

// Leave a node's own features for its children, if none are known; `room` takes a row.
static void leave_features(const Plan& plan, const Node& node, const float* x, float* room) {
    const int64_t position = int64_t(node.length) + node.index + 1;
    if (position < plan.cache.known[node.row]) return;
    if (plan.model.reading->norms_output) normalise(plan.model.last, x, room), x = room;
    std::copy(x, x + plan.model.hidden, feature_of(plan, node.row, position));
}

}  // namespace specdec
