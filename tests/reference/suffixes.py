"""Drafts by counts of suffixes, one row and one place at a time."""

from collections import Counter
from dataclasses import dataclass, field


def ends_of(text: list[int], part: list[int]) -> list[int]:
    """Return where a part of a text ends, that it ends at the end of the text included."""
    size = len(part)
    return [end for end in range(size, len(text) + 1) if text[end - size : end] == part]


def children_of(text: list[int], part: list[int]) -> list[tuple[int, float, int]]:
    """Return what follows a part: ids, shares and last places, the best first; -1 in a text ends one of several."""
    places = [(text[end], end) for end in ends_of(text, part) if end < len(text)]
    counts = Counter(one for one, _ in places)
    found = [(one, n / len(places), max(end for o, end in places if o == one)) for one, n in counts.items() if one >= 0]
    return sorted(found, key=lambda child: (-counts[child[0]], -child[2]))


@dataclass
class Guess:
    """Nodes: ids, parents, shares given the parent, and how many may stand."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    beliefs: list[float] = field(default_factory=list)
    value: float = 0.0


def grow(text: list[int], part: list[int], size: int, depth: int, least: float, branches: bool) -> Guess:
    """Return up to ``size`` nodes below a part, the one with the largest product of shares next, then the latest."""
    guess = Guess()
    paths: list[tuple[list[int], float]] = []
    open_nodes: list[tuple[float, int, int, int, float]] = []  # share, place, parent, id, belief

    def expand(parent: int, path: list[int], share: float) -> None:
        found = children_of(text, part + path)
        for one, belief, place in found if branches else found[:1]:
            if share * belief >= least and len(path) < depth:
                open_nodes.append((share * belief, place, parent, one, belief))

    expand(-1, [], 1.0)
    while open_nodes and len(guess.tokens) < size:
        best = max(open_nodes, key=lambda node: (node[0], node[1]))
        open_nodes.remove(best)
        share, _, parent, one, belief = best
        paths.append(([*(paths[parent][0] if parent >= 0 else []), one], share))
        guess.tokens.append(one)
        guess.parents.append(parent)
        guess.beliefs.append(belief)
        guess.value += share
        expand(len(paths) - 1, *paths[-1])
    return guess


def suffix_draft(
    ids: list[int],
    depth: int,
    outputs: list[list[int]] | None = None,
    tokens_per_match: float = 2.0,
    min_ngram: int = 1,
    max_nodes: int | None = None,
    min_confidence: float = 0.0,
) -> Guess:
    """Return what the suffix of ``ids`` drafts that promises most tokens; earlier outputs are searched too."""
    store = [one for output in outputs or [] for one in (*output, -1)]
    best = Guess()
    for text in (ids, store):
        seen: list[list[int]] = []
        for length in range(len(ids) - (text is ids), min_ngram - 1, -1):
            part = ids[len(ids) - length :]
            ends = ends_of(text, part)
            if len(ends) < (2 if text is ids else 1) or ends in seen:
                continue
            seen.append(ends)
            size = min(depth if max_nodes is None else max_nodes, int(tokens_per_match * length))
            guess = grow(text, part, size, depth, min_confidence, max_nodes is not None)
            if guess.value > best.value:
                best = guess
    return best
