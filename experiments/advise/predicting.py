"""From runs with drafts of some lengths: what other lengths would do, which pays most, and what is in the way."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize

from experiments.advise.advice_parts import Parts
from experiments.advise.shortening import Steps, Work
from specdec.contracts import FloatArray
from specdec.stats import Stats
from specdec.theory import WidthCurve

# A smaller gain is not worth a second model or a wider pass.
WORTH = 1.02
_NAMES = {"drafting": "drafting", "rest": "all beside drafting and scoring", "scoring": "scoring"}


@dataclass(frozen=True)
class Line:
    """A time that grows with the work: its ``fixed`` part, and what each unit of each kind of work adds.

    Args:
        fixed: of every call.
        level: of a drafted level; a token of a chain.
        node: of a node of the pass, of any row.
    """

    fixed: float = 0.0
    level: float = 0.0
    node: float = 0.0

    def at(self, work: Work) -> float:
        """Return the time of calls with this work on average."""
        return self.fixed + self.level * work.levels + self.node * work.nodes


@dataclass(frozen=True)
class Costs:
    """What the parts of a step take, in plain passes.

    Args:
        nodes: time of a pass by the nodes of all its rows together, over that of one node.
        scoring: v over what ``nodes`` predicts, as (fixed, factor): a run's passes find less in the processor's caches
            than passes by themselves, and a source may have done a part of them.
        drafting, rest: lines.
        plain: what plain decoding takes besides its passes.
        once: a plain pass in seconds; 1 if nothing was timed.
    """

    nodes: WidthCurve
    drafting: Line
    rest: Line = Line()
    plain: float = 0.0
    scoring: tuple[float, float] = (0.0, 1.0)
    once: float = 1.0

    @staticmethod
    def of(plain: Stats, runs: Sequence[Stats], nodes: WidthCurve) -> "Costs":
        """Return the costs that fit some runs best, by relative error; none of them is negative.

        A single run cannot separate the fixed part from the growing one: drafting is then taken to grow with the
        levels, the rest to be fixed, and scoring to follow the curve.

        Args:
            plain: plain decoding of the same prompts.
            runs: of one source with drafts of several sizes, interleaved with plain decoding.
            nodes: of the oracle.
        """
        works, parts = [Work.of(one) for one in runs], [Parts.of(plain, one) for one in runs]
        levels, width = [one.levels for one in works], [one.nodes for one in works]
        fixed, curve = [1.0] * len(runs), nodes.at(width) / nodes.at(Work.of(plain).rows)
        level, first, node = _fit([levels, fixed, width], [one.drafting for one in parts])
        factor, beside = _fit([curve, fixed], [one.scoring for one in parts])
        rest = _fit([fixed, width, levels], [one.rest for one in parts])
        other, once = (float(np.mean([getattr(one, name) for one in parts])) for name in ("plain", "once"))
        return Costs(nodes, Line(first, level, node), Line(rest[0], rest[2], rest[1]), other, (beside, factor), once)

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "Costs":
        """Return it from what ``dataclasses.asdict`` made. Raises KeyError or TypeError for other fields."""
        lines = {name: Line(**plain[name]) for name in ("drafting", "rest")}
        fixed, factor = plain["scoring"]
        return Costs(**{**plain, **lines, "nodes": WidthCurve.from_dict(plain["nodes"]), "scoring": (fixed, factor)})

    def parts(self, work: Work, plain: Work) -> Parts:
        """Return the parts of a step with this work.

        Args:
            work: means of its calls.
            plain: of plain decoding of the same prompts.
        """
        fixed, factor = self.scoring
        width = fixed + factor * float(self.nodes.at(work.nodes) / self.nodes.at(plain.rows))
        rows, drafting, rest = work.rows / plain.rows, self.drafting.at(work), self.rest.at(work)
        return Parts(work.tokens, rows, drafting, width, rest, self.plain, self.once)


def _fit(kinds: Sequence[Sequence[float] | FloatArray], times: Sequence[float]) -> list[float]:
    """Return what a unit of each kind of work takes, at least 0; if there are fewer times, later kinds take nothing.

    Args:
        kinds: ``[K]`` the work of each kind, ``[S]`` runs each.
        times: ``[S]`` of the runs.
    """
    taken = np.maximum(np.array(times), 1e-9)
    used = np.array(kinds[: len(taken)], dtype=np.float64).T / taken[:, None]
    found: list[float] = optimize.nnls(used, np.ones(len(taken)))[0].tolist()
    return found + [0.0] * (len(kinds) - len(found))


def predict(steps: Steps, costs: Costs, lengths: Iterable[int]) -> dict[int, Parts]:
    """Return length -> the parts of steps whose drafts have it; the run's drafts must be at least as long."""
    return {length: costs.parts(steps.work(length), steps.plain()) for length in lengths}


def best(found: Mapping[int, Parts]) -> int:
    """Return the length that pays most."""
    return max(found, key=lambda length: found[length].speedup)


def obstacle(found: Mapping[int, Parts]) -> str | None:
    """Return why no length pays, in the words of ``in_the_way`` for the length that lacks least; None if one pays."""
    if found[best(found)].speedup >= WORTH:
        return None
    nearest = min(found, key=lambda length: _lacking(found[length]))
    return in_the_way(f"drafts of {nearest}", found[nearest])


def cure(parts: Parts) -> dict[str, float] | None:
    """Return which parts of a step that does not pay must shrink, and to what, in plain passes, for it to pay.

    If one part is enough by itself, it is that one. Else there are several, the largest first, all but the last at
    their minimum: nothing for drafting, one pass for scoring, plain decoding's value for the rest. None if all together
    are not enough.
    """
    excess, wastes = _excess(parts), _wastes(parts)
    found: dict[str, float] = {}
    for name in sorted(wastes, key=lambda name: -wastes[name]):
        cut = min(wastes[name], excess)
        found[name] = getattr(parts, name) - cut
        excess -= cut
        if excess <= 0:
            return found
    return None


def in_the_way(what: str, parts: Parts) -> str:
    """Return why a step does not pay: what would have to be smaller, and how small.

    Args:
        what: kind of its drafts, in the plural.
        parts: of the step, whose speed-up is below ``WORTH``.
    """
    found = cure(parts)
    if found is None:
        few = f"even free {what} yield {parts.tokens:.2f} tokens a step"
        of_rows = f", with {parts.rows:.2f} of plain decoding's rows in flight"
        return f"{few}: too few stand" if parts.tokens < WORTH else few + of_rows
    *whole, (last, limit) = found.items()
    now = getattr(parts, last)
    if whole:
        told = [f"{_NAMES[name]} {least:.2f} instead of {getattr(parts, name):.2f}" for name, least in whole]
        told.append(f"{_NAMES[last]} below {limit:.2f} instead of {now:.2f}")
        return f"{what} would pay if all of this were so, in plain passes a step: {', '.join(told)}"
    alone = {
        "drafting": f"{what} take {now:.2f} of a pass a step; they",
        "rest": f"a step costs {now:.2f} of a pass beside drafting and scoring, a plain one {parts.plain:.2f}; {what}",
        "scoring": f"a pass with {what} costs {now:.2f} plain ones for {parts.tokens:.2f} tokens a row; they",
    }
    return f"{alone[last]} would pay below {limit:.2f}"


def _excess(parts: Parts) -> float:
    """Return by how much a step is too dear to be worth it, in plain passes."""
    return parts.scoring + parts.drafting + parts.rest - parts.tokens * parts.rows * (1 + parts.plain) / WORTH


def _wastes(parts: Parts) -> dict[str, float]:
    """Return how much of each part could be saved at best."""
    return {
        "drafting": parts.drafting,
        "rest": max(parts.rest - parts.plain, 0.0),
        "scoring": max(parts.scoring - 1.0, 0.0),
    }


def _lacking(parts: Parts) -> tuple[int, float]:
    """Return how many parts are in a step's way, and which share of what they could save they must save."""
    found, wastes = cure(parts), _wastes(parts)
    if found is None:
        return len(wastes) + 1, -parts.tokens * parts.rows
    return len(found), _excess(parts) / sum(wastes[name] for name in found)
