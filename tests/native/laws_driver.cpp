// Laws of logits made by integer arithmetic, draws from them, and their entropies: prints a hash of all bits for each kind
// of number, and one of the entropies. Then verdicts, walks and penalties, with one hash.
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

#include "laws.cpp"

namespace {

constexpr uint64_t EMPTY = 0xcbf29ce484222325;
uint64_t hash, entropies_hash;

template <class T>
void note(const std::vector<T>& values, uint64_t& hash = ::hash) {
    const unsigned char* bytes = reinterpret_cast<const unsigned char*>(values.data());
    for (size_t i = 0; i < values.size() * sizeof(T); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
}

// End the program if a call finds a fault: nothing that it is given here has one.
void must(int64_t fault) {
    if (fault) std::abort();
}

// A logit that others equal, or a ban.
template <class T>
T logit(uint64_t at) {
    const uint64_t value = at * 2654435761 % 4294967296 >> 16;
    return value % 9 == 0 ? -std::numeric_limits<T>::infinity() : T(double(value / 64) / 64) - T(8);
}

template <class T>
void run(const char* name) {
    constexpr int64_t ROWS = 6, NODES = 2, COUNT = 3;
    const double sampling[4 * ROWS] = {1,   0.3, 2,    1e-300, 1,      1,    0, 0,   5, 0,   1000, 0,
                                       0.9, 1,   0.05, 0.8,    0.9999, 0.95, 0, 0.1, 0, 0.5, 0,    0.001};
    hash = entropies_hash = EMPTY;
    for (int64_t size : {1, 2, 15, 16, 17, 100, 1003}) {
        std::vector<T> logits(size_t(ROWS * NODES * size)), table(logits.size());
        for (size_t i = 0; i < logits.size(); ++i) logits[i] = logit<T>(i + size_t(size));
        for (int64_t row = 0; row < ROWS * NODES; ++row) logits[size_t(row * size)] = T(row % 3);
        const Warp warp{logits.data(), sampling, table.data(), sizeof(T) == 8, ROWS, NODES, size};
        specdec_laws(&warp);
        note(table);
        std::vector<double> entropies(ROWS * NODES);
        specdec_entropies(table.data(), sizeof(T) == 8, ROWS * NODES, size, entropies.data());
        note(entropies, entropies_hash);
        std::vector<int64_t> index, point(ROWS * NODES, size - 1), ids(ROWS * NODES * COUNT);
        for (int64_t i = 0; i < ROWS * NODES; ++i) index.push_back(i % 5 ? i : -1);
        const Drawing from{table.data(),    index.data(), point.data(),  ids.data(), sizeof(T) == 8,
                           ROWS * NODES, size,         ROWS * NODES, COUNT};
        const int64_t path[] = {1, 2, 3, 4, 5, 6, 1, 77, 6, 9, 8, 7, 6, 5, 4}, nodes[] = {0, 1};
        must(specdec_draw(&from, path, 15, ROWS, 3, nodes, NODES));
        note(ids);
        must(specdec_race(&from, path, path + 9, ROWS, nodes, NODES));
        note(ids);
    }
    using Printed = unsigned long long;
    std::printf("%s %016llx %016llx\n", name, Printed(hash), Printed(entropies_hash));
}

// Verdicts on ragged chains and trees, whole ones too, walks through trees with scouts, and penalties, on
// buffers of just the sizes that they need.
void judge() {
    constexpr int64_t BATCH = 2, WIDTH = 3, NODES = WIDTH + 1, SIZE = 17;
    hash = EMPTY;
    std::vector<double> target(BATCH * NODES * SIZE), drawn(BATCH * WIDTH * SIZE);
    for (size_t i = 0; i < target.size(); ++i) target[i] = double(i * 7 % 13) / 64;
    for (size_t i = 0; i < drawn.size(); ++i) drawn[i] = double(i * 5 % 11) / 64;
    const std::vector<uint8_t> without{0, 1, 0, 0, 1, 1};
    const std::vector<int64_t> ids{5, 6, 7, 5, 1, 2, 3, 4}, above{-1, 0, 0, 1, -1, 0, 1, 2}, sizes{4, 3}, eos{7};
    const std::vector<int64_t> scored{9, 5, 5, 6, 9, 1, 2, 3}, never(BATCH, 9);
    const std::vector<uint8_t> scouts{0, 1, 0, 0, 0, 0}, ignores{0, 1};
    const std::vector<float> peaks(BATCH * NODES, 1);
    const std::vector<int64_t> limits(BATCH, WIDTH);
    for (const int64_t* parents : {above.data(), static_cast<const int64_t*>(nullptr)}) {
        const Drafts drafts{scored.data(), parents, sizes.data(), parents ? scouts.data() : nullptr, nullptr, never.data(),
                            ids.data(), peaks.data(), limits.data(), limits.data(), ignores.data(), eos.data(), 0, BATCH,
                            NODES, 1, 1, 9, 1, 1};
        std::vector<int64_t> numbers(6 * BATCH), block((parents ? 3 : 1) * BATCH * NODES);
        Fault fault{};
        specdec_walk(&drafts, &fault, numbers.data(), block.data());
        must(fault.code);
        note(numbers);
        note(block);
    }
    const std::vector<double> sampling{1, 0.7, 0, 0, 0.9, 1, 0, 0}, tops(BATCH * NODES, 1), given{0, 0.5, 0.75, 1 - 0x1p-53};
    const std::vector<int64_t> path{11, 12, 1, 5, 3, 5}, drafted{5, 5, 6, 1, 2, 3}, from{0, -1, 2, 3, 4, 5};
    for (const int64_t* parents : {above.data(), static_cast<const int64_t*>(nullptr)}) {
        const Drafts drafts{scored.data(), parents, sizes.data(), nullptr, nullptr, never.data(), ids.data(),
                            tops.data(), limits.data(), limits.data(), ignores.data(), eos.data(), 1, BATCH, NODES, 1, 1, 9,
                            1, 1};
        for (const double* table : std::vector<const double*>{drawn.data(), nullptr})
            for (const int64_t way : {OFFERED, MATCHED, RACED, STANDING}) {
                const Laws laws{table, table ? from.data() : nullptr, table ? drafted.data() : nullptr, BATCH * WIDTH};
                const auto by = [&](const int64_t* path, const double* uniforms) {
                    return Target{target.data(), sampling.data(), {}, laws, without.data(), path, uniforms, 9, SIZE, way, 6};
                };
                Fault fault{};
                std::vector<int64_t> numbers(6 * BATCH), block((parents ? 3 : 1) * BATCH * NODES);
                for (const double* uniforms : {static_cast<const double*>(nullptr), given.data()}) {
                    if (way == RACED && uniforms) continue;
                    const Target drawn = by(path.data(), uniforms);
                    specdec_verify(&drafts, &drawn, &fault, numbers.data(), block.data());
                    must(fault.code);
                    note(numbers);
                    note(block);
                }
                if (way == RACED) continue;
                std::vector<double> stops(BATCH * NODES), following(BATCH * NODES * SIZE);
                const Target told = by(nullptr, nullptr);
                specdec_verdict_law(&drafts, &told, &fault, numbers.data(), block.data(), stops.data(), following.data());
                must(fault.code);
                note(stops);
                note(following);
            }
    }
    const std::vector<int64_t> rows{2, 1, 2, 1, 9, 9, 9, 9}, ends{3, 4}, prompts{2, 4};
    std::vector<uint8_t> paths(BATCH * NODES * WIDTH);
    for (size_t i = 0; i < paths.size(); ++i) paths[i] = i * 5 % 3 == 0;
    const std::vector<double> strengths{1.3, 1, 0.5, 0, 0.25, 0.125};
    std::vector<float> logits(BATCH * NODES * SIZE);
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = logit<float>(i * i + 3);
    const Before before{rows.data(), ends.data(), prompts.data(), drafted.data(), paths.data(), strengths.data(),
                        logits.data(), 0, BATCH, 4, NODES, WIDTH, SIZE};
    must(specdec_penalise(&before));
    note(logits);
    std::printf("judged %016llx\n", static_cast<unsigned long long>(hash));
}

}  // namespace

int main() {
    run<float>("float");
    run<double>("double");
    judge();
}
