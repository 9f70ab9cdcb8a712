// The threads of a pass: each one's share of the work, and where they wait for one another.
#pragma once
#include <atomic>
#include <cstdint>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lanes.h"

namespace specdec {

// Entry points of the OpenMP runtime that the process has already started; all null if there is none.
struct Team {
    void (*parallel)(void (*body)(void*), void* argument, unsigned threads, unsigned flags);
    int (*thread_num)();
    int (*num_threads)();
};

struct Range {
    int from, to;
};

// Consecutive parts of 0 .. count - 1, one for each thread; their sizes differ by at most one.
INL Range share(int count, int thread, int threads) {
    return {int(int64_t(count) * thread / threads), int(int64_t(count) * (thread + 1) / threads)};
}

// Threads that arrive wait for all others. They spin for as long as a balanced pass needs, then sleep: if another process
// is busy, the missing thread waits for a processor, which a thread that spins, or only yields, would keep from it.
class Barrier {
public:
    void wait(int threads) {
        if (threads == 1) return;
        const uint32_t turn = turn_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            turn_.store(turn + 1);
            if (asleep_.load()) call(FUTEX_WAKE_PRIVATE, INT32_MAX);
            return;
        }
        for (int spins = 0; spins < PATIENCE; ++spins)
            if (turn_.load(std::memory_order_acquire) != turn) return;
        asleep_.fetch_add(1);
        while (turn_.load() == turn) call(FUTEX_WAIT_PRIVATE, turn);
        asleep_.fetch_sub(1);
    }

private:
    void call(int operation, uint32_t value) { syscall(SYS_futex, &turn_, operation, value, nullptr, nullptr, 0); }

    static constexpr int PATIENCE = 100000;
    // On cache lines of their own: a thread that arrives must not disturb those that spin.
    alignas(128) std::atomic<int> arrived_{0};
    alignas(128) std::atomic<uint32_t> turn_{0};
    alignas(128) std::atomic<int> asleep_{0};
};

}  // namespace specdec
