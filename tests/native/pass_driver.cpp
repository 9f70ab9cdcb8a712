// Scores chains, trees, cached first nodes, ragged batches, parts of passes and long contexts, and drafts chains and
// trees, with small models of integer weights, and prints five hashes of bits for each model: of passes, chains, trees,
// chains that somebody ends, and chains and trees whose logits are adjusted. Tests compile it with sanitizers, by other
// compilers and for other machines. Its threads are its own. Every buffer has just the size that `model.h` promises, so
// that the address sanitizer sees what lies beside it, and what was never written holds NaN in one run and zeros in
// another. A call for chains or trees that cannot be booked leaves the books as they were.
#include "api.cpp"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <thread>
#include <vector>

namespace {

using Floats_ = std::vector<float>;
using Ids = std::vector<int64_t>;
constexpr int VOCABULARY = 101, LAYERS = 2, CONTEXT = 1024, SLOTS = 512, ROWS = 3;

struct Shape {
    const char* name;
    int hidden, inner, query_heads, kv_heads, head_size, rotary_size, window;
    Activation activation;
    bool gated, layer_norm, parallel, positions, head_norms, tied;
    Storage storage;
    int written = 0;  // ids that the head writes, if not all
};

const Shape SHAPES[] = {
    {"llama", 64, 96, 4, 2, 16, 16, 0, SILU, true, false, false, false, false, false, FLOAT32},
    {"llama", 64, 96, 4, 2, 16, 16, 0, SILU, true, false, false, false, false, false, BFLOAT16},
    {"llama", 64, 96, 4, 2, 16, 16, 0, SILU, true, false, false, false, false, false, FLOAT16},
    {"llama", 64, 96, 4, 2, 16, 16, 0, SILU, true, false, false, false, false, false, INT8},
    {"llama", 64, 96, 4, 2, 16, 16, 0, SILU, true, false, false, false, false, false, INT4},
    {"llama", 64, 96, 4, 2, 16, 16, 0, SILU, true, false, false, false, false, false, INT8_DYNAMIC},
    {"llama", 64, 96, 4, 2, 16, 16, 0, SILU, true, false, false, false, false, false, Q8_0_STORED},
    {"llama", 64, 96, 4, 2, 16, 16, 0, SILU, true, false, false, false, false, false, Q4_0_STORED},
    {"llama", 64, 96, 4, 2, 16, 16, 0, SILU, true, false, false, false, false, false, Q4_1_STORED},
    {"llama", 64, 96, 4, 2, 16, 16, 0, SILU, true, false, false, false, false, false, Q8_0_WHOLE},
    {"llama", 64, 96, 4, 2, 16, 16, 0, SILU, true, false, false, false, false, false, Q4_0_WHOLE},
    {"llama", 64, 96, 4, 2, 16, 16, 0, SILU, true, false, false, false, false, false, Q4_1_WHOLE},
    {"window", 48, 80, 8, 1, 36, 36, 40, SILU, true, false, false, false, false, true, BFLOAT16},
    {"wide window", 48, 80, 3, 3, 16, 16, 270, RELU, true, false, false, false, false, false, FLOAT32},
    {"gpt2", 48, 72, 3, 3, 16, 0, 0, GELU, false, true, false, true, false, true, FLOAT16},
    {"neox", 64, 100, 4, 4, 16, 4, 0, GELU, false, true, true, false, false, false, BFLOAT16},
    {"pairs", 64, 100, 4, 2, 32, 8, 0, GELU, false, true, true, false, false, false, BFLOAT16},
    {"pairs", 64, 100, 4, 2, 32, 8, 0, GELU, false, true, true, false, false, false, INT8_DYNAMIC},
    {"some ids", 64, 96, 4, 2, 16, 16, 0, SILU, true, false, false, false, false, false, BFLOAT16, 9},
    {"some ids", 64, 96, 4, 2, 16, 16, 0, SILU, true, false, false, false, false, false, INT8_DYNAMIC, 1},
    {"odd", 44, 51, 3, 1, 20, 6, 0, GELU_TANH, true, false, false, false, true, true, FLOAT32},
    {"odd", 44, 51, 3, 1, 20, 6, 0, GELU_TANH, true, false, false, false, true, true, INT8},
    {"odd", 44, 51, 3, 1, 20, 6, 0, GELU_TANH, true, false, false, false, true, true, INT4},
    {"odd", 44, 51, 3, 1, 20, 6, 0, GELU_TANH, true, false, false, false, true, true, INT8_DYNAMIC},
    {"odd", 44, 51, 3, 1, 20, 6, 0, GELU_TANH, true, false, false, false, true, true, Q4_1_STORED},
    {"odd", 44, 51, 3, 1, 20, 6, 0, GELU_TANH, true, false, false, false, true, true, Q8_0_WHOLE},
    {"odd", 44, 51, 3, 1, 20, 6, 0, GELU_TANH, true, false, false, false, true, true, Q4_1_WHOLE},
};

// ---- Threads ----

thread_local int thread_number = 0, team_size = 1;
unsigned most_threads = 99;  // a team may be smaller than was asked for

void run_together(void (*body)(void*), void* argument, unsigned threads, unsigned) {
    const int count = int(std::min(threads, most_threads));
    std::vector<std::thread> others;
    auto one = [=](int number) {
        thread_number = number, team_size = count;
        body(argument);
    };
    for (int i = 1; i < count; ++i) others.emplace_back(one, i);
    one(0);
    for (auto& other : others) other.join();
}
int number_of_this() { return thread_number; }
int number_of_all() { return team_size; }

// ---- Models ----

int size_of(Storage storage) { return storage == FLOAT32 ? 4 : storage == BFLOAT16 || storage == FLOAT16 ? 2 : 1; }
// What an embedding of its own is stored as.
Storage of_tables(Storage storage) { return size_of(storage) == 1 ? FLOAT32 : storage; }

// An exact float in the storage's bits; an int8 counts the steps of `Built::number`.
uint32_t stored(float value, Storage storage) {
    uint32_t bits;
    if (size_of(storage) == 1) return uint32_t(int32_t(value * 512));
    std::memcpy(&bits, &value, 4);
    if (storage == FLOAT32) return bits;
    if (storage == BFLOAT16) return bits >> 16;
    return (value == 0 ? 0 : (bits >> 13 & 0x3ffff) - (112u << 10)) | (bits >> 16 & 0x8000);
}

struct Built {
    explicit Built(const Shape& shape) : storage(shape.storage), bias(shape.layer_norm) {
        const int padded = int(rounded(shape.head_size, WIDTH)), inner = int(rounded(shape.inner, WIDTH));
        const int columns = (shape.query_heads + 2 * shape.kv_heads) * padded;
        for (int i = 0; i < LAYERS; ++i) {
            Layer layer{norm(shape.hidden), norm(shape.hidden), linear(shape.hidden, columns),
                        linear(shape.query_heads * padded, shape.hidden),
                        linear(shape.hidden, shape.gated ? 2 * inner : shape.inner),
                        linear(shape.gated ? inner : shape.inner, shape.hidden), nullptr, nullptr, {shape.window, 0}};
            if (shape.head_norms) layer.query_norm = vector(shape.head_size, 1), layer.key_norm = vector(shape.head_size, 1);
            layers.push_back(layer);
        }
        for (int i = 0; i < shape.written; ++i) written_ids.push_back(3 + i * (VOCABULARY - 4) / shape.written);
        model = {layers.data(), norm(shape.hidden), linear(shape.hidden, shape.written ? shape.written : VOCABULARY),
                 shape.tied ? nullptr : table(VOCABULARY * shape.hidden),
                 shape.positions ? table(CONTEXT * shape.hidden) : nullptr, shape.written ? written_ids.data() : nullptr, of_tables(storage), of_tables(storage),
                 VOCABULARY, shape.hidden, LAYERS, CONTEXT, shape.query_heads, shape.kv_heads, shape.head_size, shape.rotary_size, shape.inner,
                 shape.activation, shape.gated, shape.parallel, 1e-5f, shape.written, 0, nullptr, nullptr};
        const int pairs = shape.rotary_size / 2;
        std::vector<double> frequencies;
        for (int i = 0; i < pairs; ++i) frequencies.push_back(1.0 / (1 + i * i * i));
        cosines.resize(CONTEXT * pairs), sines.resize(CONTEXT * pairs);
        specdec_rotations(frequencies.data(), pairs, 0, 100, cosines.data(), sines.data());
        specdec_rotations(frequencies.data(), pairs, 100, CONTEXT, cosines.data(), sines.data());
    }

    float number() {  // multiples of 2^-9 from -1/4 on, which every storage holds exactly
        state = 1664525u * state + 1013904223u;
        return (float(state >> 24) - 128) / 512;
    }
    char* piece(int64_t bytes) { return pieces.emplace_back(bytes).data(); }
    static void put(char* to, int64_t index, float value, Storage storage) {
        const uint32_t bits = stored(value, storage);
        std::memcpy(to + index * size_of(storage), &bits, size_t(size_of(storage)));
    }
    const float* vector(int size, float offset) {
        float* values = reinterpret_cast<float*>(piece(4 * rounded(size, WIDTH)));
        for (int i = 0; i < size; ++i) values[i] = offset + number();
        return values;
    }
    Norm norm(int size) {
        const float* weight = vector(size, 1);
        return {weight, bias ? vector(size, 0) : nullptr, 1e-5f, size};
    }
    const void* table(int64_t count) {
        const Storage own = of_tables(storage);
        char* values = piece(count * size_of(own));
        for (int64_t i = 0; i < count; ++i) put(values, i, number(), own);
        return values;
    }
    int64_t bytes_of_block(const Linear& layer) const {
        int64_t bytes = 0;
        with_storage(layer, [&](auto kind) { bytes = block_bytes<decltype(kind)>(layer.inputs); });
        return bytes;
    }
    // Where a column of a block stands in a row of pairs: the columns c and c + 16 side by side.
    static int in_pairs(int column) { return column % WIDTH * 2 + column / WIDTH; }
    // Sets a weight, which was zero, of a block.
    void set(char* block, int k, int c, float value) const {
        if (storage == INT4) return set_int4(block, k, c, int(value * 512) >> 4);
        if (storage == INT8_DYNAMIC) return set_dynamic(block, k, c, int(value * 512));
        if (storage == Q8_0_STORED || storage == Q8_0_WHOLE) return set_stored(block, k, c, int(value * 512), 8);
        if (storage >= Q8_0_STORED) return set_stored(block, k, c, int(value * 512) >> 4, 4);
        put(block, int64_t(k) * BLOCK + (storage == BFLOAT16 ? in_pairs(c) : c), value, storage);
    }
    static void set_int4(char* block, int k, int c, int q) {
        char* group = block + k / 32 * 576;
        const uint16_t scale = 0x3d00;  // 2^-5
        std::memcpy(group + 2 * in_pairs(c), &scale, 2);
        group[64 + k % 32 / 4 * 64 + c % WIDTH * 4 + k % 4] |= char((q + 8) << c / WIDTH * 4);
    }
    static void set_dynamic(char* block, int k, int c, int q) {
        int32_t excess;
        std::memcpy(&excess, block + 4 * c, 4);
        excess -= 128 * q;
        std::memcpy(block + 4 * c, &excess, 4);
        block[128 + k / 4 * 128 + 4 * c + k % 4] = char(q);
    }
    // Of q4_1 the minimum is -8 scales, so that it stands for the numbers of q4_0.
    void set_stored(char* block, int k, int c, int q, int bits) const {
        const bool minima = storage == Q4_1_STORED || storage == Q4_1_WHOLE;
        const uint16_t scale = bits == 8 ? 0x1800 : 0x2800, minimum = 0xb400;  // 2^-9 or 2^-5, -2^-2
        const int head = 64 * (1 + minima), inputs = 32 / bits;
        char* group = block + k / 32 * (head + 32 / inputs * 128);
        std::memcpy(group + 2 * c, &scale, 2);
        if (minima) std::memcpy(group + 64 + 2 * c, &minimum, 2);
        const int i = k % 32 % inputs;
        group[head + k % 32 / inputs * 128 + 4 * c + i % 4] |= char((q + (1 << (bits - 1))) << i / 4 * bits);
    }
    Linear linear(int inputs, int columns) {
        const int blocks = (columns + BLOCK - 1) / BLOCK;
        Linear layer{nullptr, nullptr, nullptr, inputs, blocks * BLOCK, storage, 0};
        const int64_t bytes = bytes_of_block(layer);
        char* weights = piece(blocks * bytes);
        for (int block = 0; block < blocks; ++block)
            for (int k = 0; k < inputs; ++k)
                for (int c = 0; c < BLOCK && block * BLOCK + c < columns; ++c) set(weights + block * bytes, k, c, number());
        float *biases = nullptr, *scales = nullptr;
        if (bias) {
            biases = reinterpret_cast<float*>(piece(int64_t(blocks) * BLOCK * 4));
            for (int c = 0; c < columns; ++c) biases[c] = number();
        }
        if (storage == INT8 || storage == INT8_DYNAMIC) {
            scales = reinterpret_cast<float*>(piece(int64_t(blocks) * BLOCK * 4));
            std::fill_n(scales, columns, 1.0f / 512);
        }
        layer.weights = weights, layer.bias = biases, layer.scales = scales;
        return layer;
    }

    Storage storage;
    bool bias;
    uint32_t state = 12345;
    std::deque<std::vector<char>> pieces;
    std::vector<Layer> layers;
    std::vector<int32_t> written_ids;
    Floats_ cosines, sines;
    Model model;
};

// ---- Passes ----

struct Nodes_ {
    Ids tokens, parents, num_nodes, rows;
    int batch, width, first = 0;
    Want want = ALL;
};

struct Result {
    Floats_ logits, hidden;
};

// The chains of which somebody is asked, and who that is: a row is ended before its fourth draw if its law is uncertain,
// another one after its second id.
Following* asking = nullptr;
Ids standing;
using Ask = void (*)(int64_t step, int64_t is_drawn);
void end_rows(int64_t step, int64_t is_drawn) {
    if (!is_drawn && step == 3 && asking->entropies[0] > 1) standing[0] = std::min(standing[0], step);
    if (is_drawn && step == 1 && asking->confidences[asking->steps + step] < 1) standing[1] = std::min(standing[1], step + 1);
    std::copy(standing.begin(), standing.end(), asking->limits);
}

struct Player {
    Player(const Built& built, int threads, unsigned char unwritten)
        : built(built), threads(threads), unwritten(unwritten), keys(size(built.model.head_size)),
          values(size(padded_head(built.model))), pages(ROWS * SLOTS / WIDTH), rooms(ROWS, SLOTS), lengths(ROWS), written(ROWS) {
        std::memset(keys.data(), unwritten, keys.size() * 4);
        std::memset(values.data(), unwritten, values.size() * 4);
        // Pages of rows lie side by side, apart, and in falling order.
        const int32_t most = int32_t(pages.size());
        for (int32_t i = 0; i < most; ++i) pages[i] = i;
        std::rotate(pages.begin() + 5, pages.begin() + 20, pages.end() - 7);
        std::reverse(pages.begin() + 40, pages.begin() + 50);
        cache = {keys.data(), values.data(), pages.data(), rooms.data(), lengths.data(), written.data(), ROWS, SLOTS, most,
                 nullptr, nullptr, nullptr};
    }
    int64_t size(int of_head) const { return int64_t(LAYERS) * ROWS * built.model.kv_heads * SLOTS * of_head; }

    // Layers `from` to `to` - 1; `layer` is the one whose stream is kept, or -1.
    Result score(const Nodes_& nodes, int from = 0, int to = LAYERS, int layer = -1, const float* stream = nullptr) {
        const int64_t places = int64_t(nodes.batch) * (nodes.width - nodes.first);
        const int64_t read = nodes.want == ALL ? places : nodes.want == LAST ? nodes.batch : 0;
        Result result{Floats_(read * VOCABULARY), Floats_(layer < 0 ? 0 : places * built.model.hidden)};
        float* hidden[] = {result.hidden.data()};
        const int32_t hidden_layers[] = {layer};
        const auto given = [](const Ids& ids) { return ids.empty() ? nullptr : ids.data(); };
        Call call{given(nodes.tokens), given(nodes.parents), given(nodes.num_nodes), given(nodes.rows), lengths.data(),
                  stream, built.cosines.data(), built.sines.data(), result.logits.data(), nullptr, nullptr, hidden,
                  hidden_layers, nullptr, 0, {run_together, number_of_this, number_of_all}, threads, nodes.batch, nodes.width, nodes.first,
                  from, to, nodes.want, layer < 0 ? 0 : 1, built.model.rotary_size ? CONTEXT : 0, 0};
        run(call, [&] { return specdec_pass(&built.model, &cache, &call); });
        return result;
    }

    // Call for a pass or for chains, with as much scratch memory as it asks for.
    template <class Function>
    void run(Call& call, Function function) {
        for (int64_t answer = function(); answer; answer = function()) {
            if (answer < 0) std::printf("a pass answered %d\n", int(answer)), std::exit(1);
            std::free(call.scratch);
            call.scratch_bytes = answer;
            call.scratch = std::aligned_alloc(128, answer);
            std::memset(call.scratch, unwritten, answer);
        }
        std::free(call.scratch);
    }

    // Call for chains or trees after ids that stand, and forget that these were scored.
    template <class Function>
    void run_after(const Nodes_& nodes, Function function) {
        Ids ids(nodes.batch * SLOTS), ends, before = lengths;
        for (int b = 0; b < nodes.batch; ++b) {
            const int64_t length = lengths[nodes.rows[b]], count = nodes.num_nodes[b];
            std::copy_n(nodes.tokens.begin() + b * nodes.width, count, ids.begin() + b * SLOTS + length);
            ends.push_back(length + count);
        }
        const Text text{ids.data(), ends.data(), SLOTS};
        Call call = after_text(nodes.rows);
        run(call, [&] { return function(call, text); });
        std::copy(before.begin(), before.end(), lengths.begin());
    }

    // A call for chains or trees after ids that stand.
    Call after_text(const Ids& rows) const {
        return {nullptr, nullptr, nullptr, rows.data(), nullptr, nullptr, built.cosines.data(),
                built.sines.data(), nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 0,
                {run_together, number_of_this, number_of_all}, threads, int32_t(rows.size()), 0, 0, 0, LAYERS, LAST, 0,
                built.model.rotary_size ? CONTEXT : 0, 0};
    }

    // Chains, and trees as deep, of `depth` ids after the first `end` ids of a row; another row of the call is sound.
    void must_refuse(Fault fault, int64_t row, int64_t end, int64_t depth, int context = CONTEXT) {
        Model model = built.model;
        model.context = context;
        const Ids ids(2 * SLOTS), rows{2, row}, ends{written[2] + 1, end}, before = lengths, booked = written;
        Ids limits{1, depth}, kept(2), drafted(2 * depth), parents;
        for (int64_t i = 0; i < depth; ++i) parents.push_back(i - 1);
        Floats_ peaks(2 * depth);
        const Text text{ids.data(), ends.data(), SLOTS};
        Following follow{limits.data(), depth, 0, kept.data(), drafted.data(), peaks.data(),
                         nullptr, nullptr, nullptr, nullptr, nullptr};
        const Growth growth{parents.data(), limits.data(), drafted.data(), peaks.data(), depth, nullptr};
        const double filters[] = {1, 1, 1, 0, 0, 0, 0, 0};
        const Draws draws{filters, nullptr, nullptr, nullptr, 0};
        const Call call = after_text(rows);
        const int64_t chains = specdec_chains(&model, &cache, &call, &text, &follow);
        const int64_t trees = specdec_trees(&model, &cache, &call, &text, &growth, &draws);
        if (chains == fault && trees == fault && lengths == before && written == booked) return;
        std::printf("row %d, end %d: chains %d, trees %d, not %d, or booked\n", int(row), int(end), int(chains), int(trees),
                    int(fault));
        std::exit(1);
    }

    // Chains of `limits` ids, greedy or drawn: their ids, the peaks and, if drawn, the laws; what `ask` is told, if any.
    Floats_ chains(const Nodes_& nodes, const Ids& limits, int64_t steps, Draws* draws, Ask ask,
                   const Adjustments* adjustments) {
        Floats_ peaks(nodes.batch * steps), laws(peaks.size() * VOCABULARY);
        Ids ids(peaks.size());
        if (draws) draws->laws = laws.data();
        Ids wanted = limits, kept(nodes.batch);
        std::vector<double> entropies(nodes.batch), confidences(peaks.size());
        Following follow{wanted.data(), steps, 0, kept.data(), ids.data(), peaks.data(), draws,
                         ask ? entropies.data() : nullptr, ask ? confidences.data() : nullptr, ask, adjustments};
        asking = &follow, standing = limits;
        run_after(nodes, [&](const Call& call, const Text& text) {
            return specdec_chains(&built.model, &cache, &call, &text, &follow);
        });
        Floats_ found(ids.begin(), ids.end());
        found.insert(found.end(), peaks.begin(), peaks.end());
        if (draws) found.insert(found.end(), laws.begin(), laws.end());
        if (!ask) return found;
        for (int b = 0; b < nodes.batch; ++b) found.push_back(float(nodes.num_nodes[b] + kept[b]));
        for (const auto& numbers : {entropies, confidences})
            for (const double number : numbers) {
                const float high = float(number);
                found.insert(found.end(), {high, float(number - double(high))});
            }
        return found;
    }

    // Trees of up to `limits` nodes, by rank or drawn: their ids, the peaks of nodes with children and, if drawn, the laws.
    Floats_ grown(const Nodes_& nodes, const Ids& parents, const Ids& limits, int64_t inner, Draws draws,
                  const Adjustments* adjustments) {
        Floats_ peaks(nodes.batch * inner), laws(peaks.size() * VOCABULARY);
        Ids ids(nodes.batch * parents.size());
        const Growth growth{parents.data(), limits.data(), ids.data(), peaks.data(), int64_t(parents.size()), adjustments};
        if (draws.bases) draws.laws = laws.data();
        run_after(nodes, [&](const Call& call, const Text& text) {
            return specdec_trees(&built.model, &cache, &call, &text, &growth, &draws);
        });
        Floats_ found(ids.begin(), ids.end());
        for (const float peak : peaks) found.push_back(std::max(peak, -1e9f));  // hashes are of finite numbers
        if (draws.bases) found.insert(found.end(), laws.begin(), laws.end());
        return found;
    }

    void note(const Floats_& found) { all.insert(all.end(), found.begin(), found.end()); }

    // A prompt of a row, `width` ids at a time.
    void prompt(int row, int length, int width) {
        for (int done = 0; done < length; done += width) {
            const int count = std::min(width, length - done);
            Ids tokens;
            for (int i = 0; i < count; ++i) tokens.push_back((done + i) * 7 % VOCABULARY);
            note(score({tokens, {}, {count}, {row}, 1, count}).logits);
            lengths[row] += count;
        }
    }

    const Built& built;
    int threads;
    unsigned char unwritten;
    Floats_ keys, values, all;
    std::vector<int32_t> pages;
    Ids rooms, lengths, written;
    Cache cache;
};

// Trees of `size` nodes, as wide as deep, one for each row.
Nodes_ trees(int size, Ids rows, Ids num_nodes) {
    Nodes_ nodes{{}, {}, num_nodes, rows, int(rows.size()), size};
    for (int b = 0; b < nodes.batch; ++b)
        for (int i = 0; i < size; ++i) {
            const int lowest = std::max(0, i - 4);
            nodes.tokens.push_back((b * 13 + i * 5) % VOCABULARY);
            nodes.parents.push_back(i == 0 || i == 9 ? -1 : lowest + i * 7 % (i - lowest));
        }
    return nodes;
}

void must_equal(const Floats_& a, const float* b, const char* what) {
    if (std::memcmp(a.data(), b, a.size() * 4) == 0) return;
    std::printf("other bits: %s\n", what);
    std::exit(1);
}

// A tree at once, and over its cached first nodes; its path is then kept.
void play_trees(Player& player) {
    for (int size : {12, 40}) {
        Nodes_ nodes = trees(size, {1}, {size});
        const Floats_ whole = player.score(nodes).logits;
        player.note(whole);
        nodes.first = 5;
        must_equal(player.score(nodes).logits, whole.data() + 5 * VOCABULARY, "a tree over its cached first nodes");
    }
    const Ids path = {0, 3, 6, 8};
    specdec_keep(&player.built.model, &player.cache, 1, player.lengths[1], path.data(), int64_t(path.size()));
    player.lengths[1] += int64_t(path.size());
    player.note(player.score({{5}, {}, {1}, {1}, 1, 1}).logits);
}

// Rows of other lengths and counts, padding, an empty row, and the same in two parts.
void play_batches(Player& player) {
    for (int size : {7, 20}) {
        Nodes_ nodes = trees(size, {2, 0, 1}, {size - 2, 0, size});
        const Result whole = player.score(nodes, 0, LAYERS, 0);
        player.note(whole.logits), player.note(whole.hidden);
        must_equal(player.score(nodes, 1, LAYERS, -1, whole.hidden.data()).logits, whole.logits.data(), "a part");
        nodes.want = LAST;
        player.note(player.score(nodes).logits);
        nodes.want = NONE;
        player.note(player.score(nodes, 0, 1, 0).hidden);
    }
    for (const int rows : {1, 3, 35}) {
        Floats_ stream;
        for (int i = 0; i < rows * player.built.model.hidden; ++i) stream.push_back(float(i * 37 % 101 - 50) / 64);
        player.note(player.score({{}, {}, {}, {}, rows, 1}, LAYERS, LAYERS, -1, stream.data()).logits);
    }
}

// Chains of three rows, one of which ends early and one of which wants none.
void play_chains(Player& player, Ask ask, const Adjustments* adjustments) {
    const Nodes_ nodes{{1, 2, 3, 4, 5, 6}, {}, {2, 1, 2}, {2, 0, 1}, 3, 2};
    const double filters[] = {0.8, 1, 1.5, 0, 9, 0, 0.95, 1, 1, 0, 0, 0.01};
    const int64_t bases[] = {-5, 6, 7}, firsts[] = {0, 40, 9};
    Draws draws{filters, bases, firsts, nullptr, 0};
    player.note(player.chains(nodes, {6, 3, 0}, 6, nullptr, ask, adjustments));
    for (draws.is_race = 0; draws.is_race < 2; ++draws.is_race)
        player.note(player.chains(nodes, {6, 3, 0}, 6, &draws, ask, adjustments));
}

// Trees of three rows, cut to the first 12, 5 and 1 of 12 nodes, of which 6 have children, as has the call's last.
void play_growth(Player& player, const Adjustments* adjustments) {
    const Nodes_ nodes{{1, 2, 3, 4, 5, 6}, {}, {2, 1, 2}, {2, 0, 1}, 3, 2};
    const Ids parents = {-1, -1, -1, 0, 0, 1, 2, 3, 3, 4, 6, 6}, limits = {12, 5, 1};
    const double filters[] = {0.8, 1, 1.5, 0, 9, 0, 0.7, 1, 1, 0, 0, 0.01};
    const int64_t bases[] = {-5, 6, 7}, firsts[] = {0, 40, 9};
    player.note(player.grown(nodes, parents, limits, 7, {filters, nullptr, nullptr, nullptr, 0}, adjustments));
    for (const int64_t is_race : {0, 1})
        player.note(player.grown(nodes, parents, limits, 7, {filters, bases, firsts, nullptr, is_race}, adjustments));
}

// Both, with penalties in two rows, biases in two, and a ban that ends with the second id of one row.
void play_adjusted(Player& player) {
    const Ids stand = {1, 2, 9, 30, 2, 3, 100, 100, 100, 0, 5, 6, 7, 8, 9}, ends = {5, 1, 5}, prompts = {2, 1, 0};
    const Ids bias_ends = {2, 3, 3}, bias_ids = {40, 41, 40}, eos = {7, 50};
    const std::vector<double> penalties = {1.5, 1, 0.75, 0.25, 0, 0, 0, 0, -0.5}, biases = {3, -3, 2}, bans = {4, 9, 0};
    const Adjustments adjustments{stand.data(),    ends.data(),   prompts.data(), penalties.data(), bias_ends.data(),
                                  bias_ids.data(), biases.data(), bans.data(),    eos.data(),       5,
                                  2};
    play_chains(player, nullptr, &adjustments);
    play_chains(player, end_rows, &adjustments);
    play_growth(player, &adjustments);
}

// Rows, ends, slots and positions just outside of what is allowed.
void play_refusals(Player& player) {
    const int64_t length = player.lengths[1];
    for (const int64_t row : {-1, int(ROWS)}) player.must_refuse(BAD_ROW, row, length + 1, 2);
    for (const int64_t end : {length - 1, length, int64_t(SLOTS + 1)}) player.must_refuse(BAD_END, 1, end, 2);
    player.must_refuse(NO_ROOM, 1, SLOTS - 3, 5);
    player.must_refuse(NO_POSITION, 1, length + 1, 5, int(length) + 4);
}

struct Played {
    Floats_ passes, chains, trees, ended, adjusted;
};

Played play(const Built& built, int threads, unsigned char unwritten) {
    Player player(built, threads, unwritten);
    player.prompt(0, 300, 77);
    player.prompt(1, 250, 128);
    player.prompt(2, 11, 3);
    play_trees(player);
    play_batches(player);
    player.prompt(2, 1, 1);
    Played played{player.all, {}, {}, {}, {}};
    player.all.clear();
    play_chains(player, nullptr, nullptr);
    played.chains = player.all;
    player.all.clear();
    play_growth(player, nullptr);
    played.trees = player.all;
    player.all.clear();
    play_chains(player, end_rows, nullptr);
    played.ended = player.all;
    player.all.clear();
    play_adjusted(player);
    played.adjusted = player.all;
    play_refusals(player);
    return played;
}

void must_equal(const Played& a, const Played& b, const char* what) {
    must_equal(a.passes, b.passes.data(), what);
    must_equal(a.chains, b.chains.data(), what);
    must_equal(a.trees, b.trees.data(), what);
    must_equal(a.ended, b.ended.data(), what);
    must_equal(a.adjusted, b.adjusted.data(), what);
}

// Ids that a head does not write have minus infinity.
unsigned long long hash(const Floats_& values, bool writes_all) {
    uint64_t found = 0xcbf29ce484222325u;
    for (const float value : values) {
        if (!(value - value == 0) && (writes_all || value != -INFINITY)) std::printf("not finite\n"), std::exit(1);
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        for (int i = 0; i < 4; ++i) found = (found ^ (bits >> 8 * i & 255)) * 0x100000001b3u;
    }
    return found;
}

}  // namespace

int main() {
    for (const Shape& shape : SHAPES) {
        const Built built(shape);
        const Played alone = play(built, 1, 0);
        must_equal(alone, play(built, 1, 0xff), "memory that held NaN");
        for (const int threads : {2, 3, 5}) must_equal(alone, play(built, threads, 0x7f), "several threads");
        most_threads = 2;
        must_equal(alone, play(built, 3, 0), "fewer threads than asked for");
        most_threads = 99;
        std::printf("%s", shape.name);
        for (const Floats_* some : {&alone.passes, &alone.chains, &alone.trees, &alone.ended, &alone.adjusted})
            std::printf(" %016llx", hash(*some, !shape.written));
        std::printf("\n");
    }
}
