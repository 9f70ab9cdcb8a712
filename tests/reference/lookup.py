"""Prompt lookup, one row and one position at a time."""


def lookup(
    ids: list[int],
    budget: int,
    max_ngram: int = 3,
    min_ngram: int = 1,
    match: str = "last",
    min_continuation: int = 1,
    wrap: bool = False,
) -> list[int]:
    """Return what follows the longest earlier occurrence of the suffix of ``ids``."""
    for size in range(max_ngram, min_ngram - 1, -1):
        starts = []
        for end in range(size, len(ids)):
            follows = len(ids) - end
            if follows >= min_continuation and ids[end - size : end] == ids[len(ids) - size :]:
                starts.append(end)
        if starts:
            start = starts[-1] if match == "last" else starts[0]
            if not wrap:
                return ids[start : start + budget]
            copied = list(ids)
            for i in range(budget):
                copied.append(copied[start + i])  # reads what it has written, once it is past the end
            return copied[len(ids) :]
    return []


def notebook_lookup(ids: list[int], max_ngram_size: int, num_pred_tokens: int) -> list[int]:
    """Return the first occurrence's continuation of full length that starts before the last ``size`` ids, as the
    notebook that introduced the method does."""
    for size in range(max_ngram_size, 0, -1):
        for end in range(size, len(ids) - size):
            if ids[end - size : end] == ids[-size:] and end + num_pred_tokens <= len(ids):
                return ids[end : end + num_pred_tokens]
    return []
