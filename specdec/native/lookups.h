// Where the latest ids of a row stood before, and what followed them.
#pragma once

#include <algorithm>
#include <cstdint>

namespace specdec {

// What counts as a match, and how its followers are copied.
struct Search {
    int64_t max_ngram, min_ngram, min_continuation, is_last, wraps;
};

struct Match {
    int64_t available, length;  // ids from its end to the end of the row; both 0 if there is none
};

// The longest earlier occurrence of the last ids of a row, the last or the first among equals.
inline Match longest(const Search& search, const int64_t* ids, int64_t size) {
    const int64_t end = std::max<int64_t>(size - search.min_continuation, 0);
    Match best{0, 0};
    for (int64_t i = 0; i < end; ++i) {
        const int64_t at = search.is_last ? end - 1 - i : i;
        const int64_t most = std::min(search.max_ngram, at + 1);
        int64_t length = 0;
        while (length < most && ids[at - length] == ids[size - 1 - length]) ++length;
        if (length >= search.min_ngram && length > best.length) best = {size - 1 - at, length};
        if (best.length == search.max_ngram) break;
    }
    return best;
}

// Copy what followed, `limit` ids at most, over the end again if it wraps. Returns how many.
inline int64_t copied(const Search& search, const Match& match, const int64_t* ids, int64_t size, int64_t limit, int64_t* to) {
    if (!match.available) return 0;
    const int64_t count = search.wraps ? limit : std::min(limit, match.available);
    for (int64_t i = 0; i < count; ++i) to[i] = ids[size - match.available + i % match.available];
    return std::max<int64_t>(count, 0);
}

}  // namespace specdec
