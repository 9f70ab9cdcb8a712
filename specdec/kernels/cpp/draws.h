// Draws from laws: along the running sum of a law by a number on [0, 1), which is given or a key's, or by a race of all
// its ids.
//
// Keys are those of `specdec/kernels/draws.py`, bit for bit: 64 bits, arithmetic modulo 2^64.
#pragma once

#include <algorithm>
#include <vector>

#include "laws.h"

namespace specdec {

// The finaliser of splitmix64.
INL uint64_t mixed(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
}

// The key of a stream's part.
INL uint64_t extended(uint64_t key, uint64_t part) {
    constexpr uint64_t WEYL = 0x9E3779B97F4A7C15;
    return mixed(mixed(key + WEYL) ^ mixed(part * WEYL + 1));
}

// The key of a stream: `path` holds a seed for each stream, then the parts to extend it by, each of which begins with
// its length: a number for each stream, or one for all.
inline uint64_t key_at(const int64_t* path, int64_t words, int64_t streams, int64_t stream) {
    uint64_t key = uint64_t(path[stream]);
    for (int64_t at = streams; at < words; at += 1 + path[at])
        key = extended(key, uint64_t(path[at + 1 + (path[at] > 1 ? stream : 0)]));
    return key;
}

// A number of 53 bits from 0 to 1, 1 excluded.
INL double uniform(uint64_t key) { return double(key >> 11) * 0x1p-53; }

// The running sum over a law, id after id in double precision, and its total.
template <class T>
class Running {
  public:
    Running(const T* weights, int64_t size)
        : weights_(weights), size_(size), sums_(size_t((size + GROUP - 1) / GROUP) + 1), filled_(sums_.size()) {
        // Apart from the sums: beside the widest instructions some processors add more slowly.
        for (int64_t group = 0; group < size / GROUP; ++group) filled_[size_t(group)] = filled(weights + group * GROUP);
        for (int64_t id = size / GROUP * GROUP; id < size; ++id)
            filled_[size_t(id / GROUP)] |= uint32_t(weights[id] != 0) << (id % GROUP);
        add_from(0);
    }
    double total() const { return sums_.back(); }

    // The first id at which the sum exceeds `uniform` parts of the total, or reaches all of it, should rounding put the
    // threshold there. So no id of weight 0 is drawn. For a law that holds NaN, the last id.
    int64_t draw(double uniform) const {
        const double threshold = uniform * total();
        const auto ends = [=](double sum) { return sum > threshold || sum >= total(); };
        // The sum never falls: the id is in the first group that ends with such a sum.
        size_t group = 0;
        while (group + 1 < sums_.size() && !ends(sums_[group + 1])) ++group;
        double sum = sums_[group];
        const int64_t begin = int64_t(group) * GROUP;
        for (int64_t id = begin; id < std::min(begin + GROUP, size_); ++id) {
            if (filled_[group] >> (id - begin) & 1) sum += double(weights_[id]);
            if (ends(sum)) return id;
        }
        return size_ - 1;
    }

    // Take an id out of the law.
    void remove(int64_t id) {
        filled_[size_t(id / GROUP)] &= ~(uint32_t(1) << (id % GROUP));
        add_from(id / GROUP);
    }

  private:
    // Sum up from a group of ids on. Zeros are passed over: they add nothing.
    void add_from(int64_t from) {
        double sum = sums_[size_t(from)];
        for (size_t group = size_t(from); group + 1 < sums_.size(); ++group) {
            const T* own = weights_ + group * GROUP;
            uint32_t left = filled_[group];
            if (left == 0xffff)
                for (int i = 0; i < GROUP; ++i) sum += double(own[i]);
            else
                for (; left; left &= left - 1) sum += double(own[__builtin_ctz(left)]);
            sums_[group + 1] = sum;
        }
    }

    const T* weights_;
    const int64_t size_;
    std::vector<double> sums_;      // before each group of ids, and behind the last
    std::vector<uint32_t> filled_;  // of each group a bit for each id that has weight and was not taken out
};

// Draw `count` ids of a law without replacement, by the numbers of `key`; -1 if none is left, but some id if a single
// draw finds none.
template <class T>
void draw(const T* weights, int64_t size, uint64_t key, int64_t count, int64_t* ids) {
    Running<T> running(weights, size);
    for (int64_t rank = 0; rank < count; ++rank) {
        const int64_t id = running.draw(uniform(extended(key, uint64_t(rank))));
        ids[rank] = count == 1 || running.total() > 0 ? id : -1;
        if (rank + 1 < count) running.remove(id);
    }
}

// An id's exponential waiting time: 53 bits, centred, so that it is finite and not below +0.
INL double waiting(uint64_t cell) { return 0 - log64((double(cell >> 11) + 0.5) * 0x1p-53); }

// The `count` ids of the largest weight over waiting time, best first, the lowest id first among equals; -1 if no id of
// positive weight is left, but 0 if a single draw finds none.
template <class T>
void race(const T* weights, int64_t size, uint64_t key, int64_t count, int64_t* ids) {
    struct Runner {
        double speed;
        int64_t id;
    };
    std::vector<Runner> best;  // in their order, `count` at most
    for (int64_t id = 0; id < size; ++id) {
        if (!(weights[id] > 0)) continue;
        const uint64_t cell = extended(key, uint64_t(id));
        const bool is_full = int64_t(best.size()) == count;
        // A waiting time -log(u) is at least 1 - u, which spares most ids the logarithm.
        if (is_full && double(weights[id]) < best.back().speed * (1 - uniform(cell) - 0x1p-53) * 0.999) continue;
        const Runner runner{double(weights[id]) / waiting(cell), id};
        if (is_full && !(runner.speed > best.back().speed)) continue;
        if (is_full) best.pop_back();
        const auto faster = [](const Runner& a, const Runner& b) { return a.speed > b.speed; };
        best.insert(std::upper_bound(best.begin(), best.end(), runner, faster), runner);
    }
    for (int64_t i = 0; i < count; ++i) ids[i] = i < int64_t(best.size()) ? best[size_t(i)].id : -1;
    if (count == 1 && best.empty()) ids[0] = 0;
}

}  // namespace specdec
