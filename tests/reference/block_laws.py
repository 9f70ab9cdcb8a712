"""What sampled runs do, by definition: joint laws of outputs and of where steps begin, over all drafts and draws."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

Ids = tuple[int, ...]
LawOf = Callable[[Ids], np.ndarray]
# Of confidences of the tokens drafted so far, and the law of the next one: is it drafted?
LetsOn = Callable[[list[float], np.ndarray], bool]
Blocks = dict[Ids, float]
# Of the ids so far, the tokens left and what is remembered: the law of a step's block and of what is remembered then.
Step = Callable[[Ids, int, int], dict[tuple[Ids, int], float]]
Joint = dict[tuple[Ids, Ids], float]


def _rest(left: np.ndarray, law: np.ndarray) -> np.ndarray:
    mass = np.maximum(left - law, 0)
    return mass / mass.sum() if mass.sum() > 0 else left


def drafts(draft: LawOf, ids: Ids, limit: int, lets_on: LetsOn | None = None) -> Iterator[tuple[Ids, float]]:
    """Yield all chains that may be drafted after some ids, with their probabilities."""

    def grown(tokens: Ids, mass: float, said: list[float]) -> Iterator[tuple[Ids, float]]:
        law = draft((*ids, *tokens))
        if len(tokens) == limit or (lets_on is not None and not lets_on(said, law)):
            yield tokens, mass
            return
        for token in np.flatnonzero(law).tolist():
            yield from grown((*tokens, token), mass * law[token], [*said, float(law[token])])

    return grown((), 1.0, [])


def chain_blocks(rule: str, target: LawOf, draft: LawOf, ids: Ids, limit: int, lets_on: LetsOn | None = None) -> Blocks:
    """Return the law of the block of a step that drafts a chain."""
    found: Blocks = defaultdict(float)
    for tokens, mass in drafts(draft, ids, limit, lets_on):
        reached = mass
        for stop in range(len(tokens) + 1):
            p = target((*ids, *tokens[:stop]))
            if stop == len(tokens):
                rest = p
            elif rule == "sample_and_match":
                rest = np.where(np.arange(len(p)) == tokens[stop], 0, p)
            else:
                q = draft((*ids, *tokens[:stop]))
                rest = (1 - min(1, p[tokens[stop]] / q[tokens[stop]])) * _rest(p, q)
            for token in range(len(p)):
                found[*tokens[:stop], token] += reached * rest[token]
            reached *= 1 - rest.sum()
    return found


def tree_blocks(
    rule: str, target: LawOf, draft: LawOf, ids: Ids, paths: frozenset[Ids], without_replacement: bool
) -> Blocks:
    """Return the law of the block of a step that draws a tree with some paths; without replacement as far as ids go."""
    found: Blocks = defaultdict(float)
    count, p, q = sum(len(path) == 1 for path in paths), target(ids), draft(ids)

    def enter(rank: int, token: int, mass: float) -> None:
        below = frozenset(path[1:] for path in paths if path[0] == rank and len(path) > 1)
        blocks = tree_blocks(rule, target, draft, (*ids, token), below, without_replacement)
        for block, chance in blocks.items():
            found[(token, *block)] += mass * chance

    count = min(count, np.count_nonzero(q)) if without_replacement else count
    for siblings in itertools.product(range(len(q)), repeat=count):
        laws = []
        for rank in range(len(siblings)):
            gone = list(siblings[:rank]) if without_replacement else []
            law = np.where(np.isin(np.arange(len(q)), gone), 0, q)
            laws.append(law / max(law.sum(), 1e-300))
        mass = math.prod(law[token] for law, token in zip(laws, siblings, strict=True))
        if mass == 0:
            continue
        if rule == "sample_and_match":
            for token in range(len(p)):
                if token in siblings:
                    enter(siblings.index(token), token, mass * p[token])
                else:
                    found[(token,)] += mass * p[token]
            continue
        left = p
        for rank, (law, token) in enumerate(zip(laws, siblings, strict=True)):
            stands = min(1, left[token] / law[token])
            enter(rank, token, mass * stands)
            mass, left = mass * (1 - stands), _rest(left, law)
        for token in range(len(p)):
            found[(token,)] += mass * left[token]
    return found


def joint_law(step: Step, ids: Ids, left: int, remembered: int = 0, eos: int | None = None) -> Joint:
    """Return the joint law of an output of ``left`` tokens, or up to ``eos``, and of where its steps begin."""
    if left == 0:
        return {((), ()): 1.0}
    whole: Joint = defaultdict(float)
    for (block, then), mass in step(ids, left, remembered).items():
        end = block.index(eos) + 1 if eos in block else len(block)
        kept, rest = block[:end], 0 if eos in block else left - end
        for (after, starts), onward in joint_law(step, (*ids, *kept), rest, then, eos).items():
            whole[(*kept, *after), (0, *(start + end for start in starts))] += mass * onward
    return whole


def begins_given(law: Joint, output: Ids) -> np.ndarray:
    """Return the probability that a step begins at each position of an output, given that it is written."""
    own = {starts: mass for (written, starts), mass in law.items() if written == output}
    begins = np.zeros(len(output))
    for starts, mass in own.items():
        begins[list(starts)] += mass
    return begins / sum(own.values())
