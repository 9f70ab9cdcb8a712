// Draws from laws by numbers that a key gives: along the running sum of a law, or by a race of all its ids.
//
// Keys are those of `specdec/randomness.py`, bit for bit: 64 bits, arithmetic modulo 2^64.
#pragma once

#include <algorithm>
#include <vector>

#include "functions.h"

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

// The key of a stream: `path` holds a seed for each stream, then parts to extend it by, of which each begins with its
// length: a number for each stream, or one for all.
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
    Running(const T* weights, int64_t size) : weights_(weights), size_(size), sums_(size_t((size + 15) / 16) + 1) {
        add_from(0);
    }
    double total() const { return sums_.back(); }

    // The first id at which the sum exceeds `uniform` parts of the total, or reaches all of it, should rounding put the
    // threshold there. So no id of weight 0 is drawn. Of a law that holds NaN the last id.
    int64_t draw(double uniform) const {
        const double threshold = uniform * total();
        const auto ends = [=](double sum) { return sum > threshold || sum >= total(); };
        // The sum never falls: the id is in the first group that ends with such a sum.
        size_t group = 0;
        while (group + 1 < sums_.size() && !ends(sums_[group + 1])) ++group;
        double sum = sums_[group];
        for (int64_t i = int64_t(group) * 16; i < std::min(int64_t(group) * 16 + 16, size_); ++i) {
            sum += double(weights_[i]);
            if (ends(sum)) return i;
        }
        return size_ - 1;
    }

    // Take an id out of the law.
    void remove(int64_t id) {
        if (left_.empty()) left_.assign(weights_, weights_ + size_);
        left_[size_t(id)] = 0;
        weights_ = left_.data();
        add_from(id / 16);
    }

  private:
    // Sum up from a group of 16 ids on.
    void add_from(int64_t group) {
        double sum = sums_[size_t(group)];
        for (int64_t begin = group * 16; begin < size_; begin += 16) {
            const int64_t end = std::min(begin + 16, size_);
            for (int64_t i = is_empty(begin) ? end : begin; i < end; ++i) sum += double(weights_[i]);
            sums_[size_t(begin / 16) + 1] = sum;
        }
    }

    // Whether the numbers from `begin` on, 16 or what is left, are all zeros: those add nothing to a sum.
    bool is_empty(int64_t begin) const {
        if (begin + 16 > size_) return false;
        bool some = false;
        for (int i = 0; i < 16; ++i) some |= weights_[begin + i] != 0;
        return !some;
    }

    const T* weights_;
    int64_t size_;
    std::vector<double> sums_;  // before each group of 16 ids, and behind the last
    std::vector<T> left_;  // the law without the ids that were taken out, if any were
};

// Draw `count` ids of a law without replacement, by the numbers of `key`; -1 where none is left, but some id where a
// single draw finds none.
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

// The `count` ids of the largest weight over waiting time, best first, the lowest id first among equals; -1 where no id
// of positive weight is left, but 0 where a single draw finds none.
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
