"""Loops, straight from their definition."""


def looped(tokens: list[int], longest_block: int, least_repeats: int) -> list[bool]:
    """Return which tokens stand in a stretch that is one block, said ``least_repeats`` times."""
    marks = [False] * len(tokens)
    for size in range(1, longest_block + 1):
        for start in range(len(tokens) - size * least_repeats + 1):
            stretch = tokens[start : start + size * least_repeats]
            if stretch == stretch[:size] * least_repeats:
                for at in range(start, start + size * least_repeats):
                    marks[at] = True
    return marks
