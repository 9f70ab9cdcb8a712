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

// A number of 53 bits from 0 to 1, 1 excluded.
INL double uniform(uint64_t key) { return double(key >> 11) * 0x1p-53; }

// Whether the numbers from `begin` on, 16 or what is left, are all zeros: those add nothing to a sum.
template <class T>
INL bool is_empty(const T* weights, int64_t begin, int64_t size) {
    if (begin + 16 > size) return false;
    bool some = false;
    for (int i = 0; i < 16; ++i) some |= weights[begin + i] != 0;
    return !some;
}

// The running sum over a law, id after id in double precision, and its total.
template <class T>
class Running {
  public:
    Running(const T* weights, int64_t size) : weights_(weights), size_(size) {
        for (int64_t begin = 0; begin < size; begin += 16) {
            if (is_empty(weights, begin, size)) continue;
            const int64_t end = std::min(begin + 16, size);
            for (int64_t i = begin; i < end; ++i) total_ += double(weights[i]);
        }
    }
    double total() const { return total_; }

    // The first id at which the sum exceeds `uniform` parts of the total, or reaches all of it, should rounding put the
    // threshold there. So no id of weight 0 is drawn. Of a law that holds NaN the last id.
    int64_t draw(double uniform) const {
        const double threshold = uniform * total_;
        double sum = 0;
        for (int64_t begin = 0; begin < size_; begin += 16) {
            if (total_ > 0 && is_empty(weights_, begin, size_)) continue;
            const int64_t end = std::min(begin + 16, size_);
            for (int64_t i = begin; i < end; ++i) {
                sum += double(weights_[i]);
                if (sum > threshold || sum >= total_) return i;
            }
        }
        return size_ - 1;
    }

  private:
    const T* weights_;
    int64_t size_;
    double total_ = 0;
};

// Draw `count` ids of a law without replacement, by the numbers of `key`; -1 where none is left.
template <class T>
void draw_distinct(const T* weights, int64_t size, uint64_t key, int64_t count, int64_t* ids) {
    std::vector<double> left(weights, weights + size);
    for (int64_t rank = 0; rank < count; ++rank) {
        const Running<double> running(left.data(), size);
        const int64_t id = running.draw(uniform(extended(key, uint64_t(rank))));
        ids[rank] = running.total() > 0 ? id : -1;
        left[size_t(id)] = 0;
    }
}

template <class T>
void draw(const T* weights, int64_t size, uint64_t key, int64_t count, int64_t* ids) {
    if (count == 1)
        ids[0] = Running<T>(weights, size).draw(uniform(extended(key, 0)));
    else
        draw_distinct(weights, size, key, count, ids);
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
        const Runner runner{double(weights[id]) / waiting(extended(key, uint64_t(id))), id};
        if (int64_t(best.size()) == count && !(runner.speed > best.back().speed)) continue;
        if (int64_t(best.size()) == count) best.pop_back();
        const auto faster = [](const Runner& a, const Runner& b) { return a.speed > b.speed; };
        best.insert(std::upper_bound(best.begin(), best.end(), runner, faster), runner);
    }
    for (int64_t i = 0; i < count; ++i) ids[i] = i < int64_t(best.size()) ? best[size_t(i)].id : -1;
    if (count == 1 && best.empty()) ids[0] = 0;
}

}  // namespace specdec
