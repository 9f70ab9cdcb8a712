// Laws of logits made by integer arithmetic, draws from them, and their entropies: prints a hash of all bits for each kind
// of number, and one of the entropies.
#include <cstdio>
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
        specdec_laws(logits.data(), sizeof(T) == 8, ROWS, NODES, size, sampling, table.data());
        note(table);
        std::vector<double> entropies(ROWS * NODES);
        specdec_entropies(table.data(), sizeof(T) == 8, ROWS * NODES, size, entropies.data());
        note(entropies, entropies_hash);
        std::vector<int64_t> index, point(ROWS * NODES, size - 1), ids(ROWS * NODES * COUNT);
        for (int64_t i = 0; i < ROWS * NODES; ++i) index.push_back(i % 5 ? i : -1);
        const Drawing from{table.data(),    index.data(), point.data(),  ids.data(), sizeof(T) == 8,
                           ROWS * NODES, size,         ROWS * NODES, COUNT};
        const int64_t path[] = {1, 2, 3, 4, 5, 6, 1, 77, 6, 9, 8, 7, 6, 5, 4}, nodes[] = {0, 1};
        if (specdec_keyed(&from, path, 15, ROWS, 3, nodes, NODES)) hash = 0;
        note(ids);
        if (specdec_raced(&from, path, path + 9, ROWS, nodes, NODES)) hash = 0;
        note(ids);
    }
    using Printed = unsigned long long;
    std::printf("%s %016llx %016llx\n", name, Printed(hash), Printed(entropies_hash));
}

}  // namespace

int main() {
    run<float>("float");
    run<double>("double");
}
