// The C interface of the native pass.
#include <iterator>
#include <memory>

#include "arrivals.h"
#include "blocks.h"
#include "trees.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace specdec {

static void work(void* argument) {
    Plan& plan = *static_cast<Plan*>(argument);
    const Team& team = plan.call.team;
    const bool together = plan.call.threads > 1;
    Worker(plan, together ? team.thread_num() : 0, together ? team.num_threads() : 1).run();
}

// What pads a batch: logits as those of the row's last node (a law like any other: a uniform one would be costly to
// cut), hidden layers zeros.
static void fill_padding(const Plan& plan) {
    const Call& call = plan.call;
    const int64_t width = call.width - call.first, hidden = plan.model.hidden, vocabulary = plan.model.vocabulary;
    if (!call.tokens) return;
    for (int64_t b = 0; b < call.batch; ++b) {
        const int64_t begin = std::max<int64_t>(0, std::min<int64_t>(call.num_nodes[b] - call.first, width));
        const int64_t from = b * width + begin, to = (b + 1) * width;
        float* logits = call.logits + from * vocabulary;
        if (call.want == ALL && begin == 0) std::fill_n(logits, width * vocabulary, 0.0f);
        if (call.want == ALL && begin > 0)
            for (int64_t i = from; i < to; ++i, logits += vocabulary)
                std::copy(logits - vocabulary, logits, logits);
        if (call.want == LAST && begin == 0) std::fill_n(call.logits + b * vocabulary, vocabulary, 0.0f);
        for (int i = 0; i < call.num_hidden; ++i)
            std::fill(call.hidden[i] + from * hidden, call.hidden[i] + to * hidden, 0.0f);
    }
}

static void note_likeliest(const Model& model, const Call& call) {
    if (!call.likeliest || call.want == NONE) return;
    const FloatMode mode;
    const int64_t rows = int64_t(call.batch) * (call.want == ALL ? call.width - call.first : 1);
    for (int64_t i = 0; i < rows; ++i) {
        const float* logits = call.logits + i * model.vocabulary;
        call.likeliest[i] = likeliest(logits, model.vocabulary);
        call.peaks[i] = logits[call.likeliest[i]];
    }
}

static int64_t score(const Model& model, const Cache& cache, const Call& call) {
    Plan sizes(model, cache, call, nullptr);
    sizes.reserve();
    if (sizes.arena.bytes() > call.scratch_bytes) return sizes.arena.bytes();
    Plan plan(model, cache, call, call.scratch);
    plan.reserve();
    const Fault fault = plan.nodes.fill(model, cache, call);
    if (fault != FINE) return fault;
    if (call.tokens) plan.cut_attention();
    plan.choose_rows();
    if (call.threads > 1) call.team.parallel(work, &plan, unsigned(call.threads), 0);
    else work(&plan);
    fill_padding(plan);
    note_likeliest(model, call);
    return FINE;
}

// What a call of a cache begins with. Returns what `score` does.
static int64_t begin(const Model& model, const Cache& cache, const Call& call, const Adjustments* adjustments = nullptr) {
    if (adjustments && !is_sound(*adjustments, call.batch, model.vocabulary)) return BAD_ADJUSTMENT;
    return take_in(cache, call);
}

}  // namespace specdec

using namespace specdec;

// Score a call. Returns 0, a `Fault` below 0, or the bytes of scratch that it needs where it was given fewer.
EXPORT int64_t specdec_pass(const Model* model, const Cache* cache, const Call* call) {
    if (const int64_t answer = begin(*model, *cache, *call); answer != FINE) return answer;
    return score(*model, *cache, *call);
}

// Take in the hidden states that arrived for a cache, which any other call of it does first. Returns what `specdec_pass` does.
EXPORT int64_t specdec_take_in(const Model* model, const Cache* cache, const Call* call) { return begin(*model, *cache, *call); }

// Score what the cache lacks of a text for the logits of the last ids; then follow the likeliest ids, or drawn ones, until
// no row wants more. All but the last id of a row are scored in turn, and the cache keeps what was scored. Returns what
// `specdec_pass` does; asked for more scratch, call again: the chains go on where they were.
EXPORT int64_t specdec_chains(const Model* model, const Cache* cache, const Call* call, const Text* text,
                              Following* follow) {
    if (const int64_t answer = begin(*model, *cache, *call, follow->adjustments); answer != FINE) return answer;
    Unread unread(*model, *cache, *call, *text);
    const Fault fault = unread.find([=](int64_t b) { return Chains::after(*follow, b); });
    if (fault != FINE) return fault;
    if (!follow->begun) std::fill_n(follow->kept, call->batch, 0);
    const std::unique_ptr<float[]> logits(new float[size_t(call->batch * int64_t(model->vocabulary))]);
    Call first = unread.pass();
    first.logits = logits.get();
    Chains chains(first, model->vocabulary, *follow);
    std::vector<int64_t> lengths(size_t(cache->num_rows));
    for (int64_t& step = follow->begun; chains.is_wanted(step); ++step) {
        const int64_t answer = score(*model, *cache, step ? chains.pass(step, lengths) : first);
        if (answer != FINE) return answer;
        chains.choose(step);
    }
    if (follow->begun) unread.keep([=](int64_t b) { return follow->kept[b]; });
    return FINE;
}

// Score what the cache lacks of a text for the logits of the last ids; then draft a tree below each, level by level: a pass
// scores the nodes of a level that have children, in the slots after the text. The cache keeps the text. Returns what
// `specdec_pass` does; asked for more scratch, call again: the trees begin anew.
EXPORT int64_t specdec_trees(const Model* model, const Cache* cache, const Call* call, const Text* text,
                             const Growth* growth, const Draws* draws) {
    if (const int64_t answer = begin(*model, *cache, *call, growth->adjustments); answer != FINE) return answer;
    Trees trees(*call, model->vocabulary, *growth, *draws);
    Unread unread(*model, *cache, *call, *text);
    const Fault fault = unread.find([&](int64_t b) { return trees.after(b); });
    if (fault != FINE) return fault;
    const int64_t answer = trees.grow(*model, *cache, unread.pass());
    if (answer == FINE) unread.keep([](int64_t) { return 0; });
    return answer;
}

// Run a head's blocks after what stands in the rows of a call, all of which are opened: see `open_blocks`. The books stay as
// they are. Returns what `specdec_pass` does.
EXPORT int64_t specdec_blocks(const Model* model, const Cache* cache, const Call* call, const Blocks* blocks, float* stream,
                              float* logits) {
    if (const int64_t answer = begin(*model, *cache, *call); answer != FINE) return answer;
    return open_blocks(*model, *cache, *call, *blocks, [](int64_t) { return true; }, stream, logits);
}

// The same, for the rows that want ids; then follow the likeliest ids along the blocks, or drawn ones, until no row wants more.
// Asked for more scratch, call again: the blocks are run anew, and the chains go on where they were.
EXPORT int64_t specdec_block_chains(const Model* model, const Cache* cache, const Call* call, const Blocks* blocks,
                                    Following* follow) {
    if (const int64_t answer = begin(*model, *cache, *call, follow->adjustments); answer != FINE) return answer;
    const int64_t batch = call->batch, vocabulary = model->vocabulary;
    const std::unique_ptr<float[]> stream(new float[size_t(batch * blocks->size * model->hidden)]());
    const std::unique_ptr<float[]> laws(new float[size_t(batch * blocks->depth * vocabulary)]);
    const std::unique_ptr<float[]> logits(new float[size_t(batch * vocabulary)]);
    const auto takes = [=](int64_t b) { return follow->limits[b] > 0; };
    int64_t answer = open_blocks(*model, *cache, *call, *blocks, takes, stream.get(), laws.get());
    if (answer != FINE) return answer;
    if (!follow->begun) std::fill_n(follow->kept, batch, 0);
    Call read = without_nodes(*call);
    read.logits = logits.get();
    Chains chains(read, vocabulary, *follow);
    for (int64_t& step = follow->begun; chains.is_wanted(step); ++step) {
        answer = lay_logits(*model, *call, *blocks, *follow, laws.get(), logits.get());
        if (answer != FINE) return answer;
        chains.choose(step);
    }
    return FINE;
}

// Write the embeddings [count][hidden] of ids, of which there are `rows`, without what positions add. Returns 0 or a `Fault`.
EXPORT int64_t specdec_embed(const Model* model, const int64_t* ids, int64_t count, int64_t rows, float* out) {
    const FloatMode mode;
    for (int64_t i = 0; i < count; ++i, out += model->hidden) {
        if (ids[i] < 0 || ids[i] >= rows) return BAD_TOKEN;
        read_embedding(*model, ids[i], out);
    }
    return FINE;
}

// Move the nodes path[0], path[1], ... (increasing) of a row to the slots behind its prefix, in that order.
EXPORT void specdec_keep(const Model* model, const Cache* cache, int64_t row, int64_t length, const int64_t* path, int64_t count) {
    for (int64_t layer = 0; layer < model->num_layers; ++layer) {
        for (int64_t head = 0; head < model->kv_heads; ++head) {
            const auto place = [&](int64_t slot) { return place_of(*cache, *model, layer, head, row, slot); };
            for (int64_t i = 0; i < count; ++i) {
                if (path[i] == i) continue;
                const Place from = place(length + path[i]), to = place(length + i);
                std::copy(from.value, from.value + padded_head(*model), to.value);
                for (int64_t d = 0; d < model->head_size; ++d) to.key[d * WIDTH] = from.key[d * WIDTH];
            }
        }
    }
}

// Fill rows from .. to - 1 of the tables [positions][pairs] of rotations.
EXPORT void specdec_rotations(const double* frequencies, int32_t pairs, int32_t from, int32_t to, float* cosines, float* sines) {
    const FloatMode mode;
    rotary_table(frequencies, pairs, from, to, cosines, sines);
}

// Sizes of the structures in the order of `bindings.py`, which compares them with its own.
EXPORT void specdec_sizes(int64_t* sizes) {
    const int64_t all[] = {sizeof(Linear), sizeof(Norm), sizeof(Reach), sizeof(Layer), sizeof(Reading), sizeof(Model),
                           sizeof(Arrival), sizeof(Cache), sizeof(Team), sizeof(Call), sizeof(Text), sizeof(Blocks),
                           sizeof(Draws), sizeof(Adjustments), sizeof(Following), sizeof(Growth)};
    std::copy(std::begin(all), std::end(all), sizes);
}
