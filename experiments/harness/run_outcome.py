"""The finished units of an experiment: what its tables are made of.

Intervals are clustered: units that hold the turns of one conversation count as one, and so do those of one prompt with
several seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.harness.arms import PLAIN
from experiments.harness.draw_checks import REFUTED, LawEvidence, e_value_text, sum_of
from experiments.harness.settings import Settings
from oracles.factory.evaluation.loops import loop_mask
from specdec.stats import Stats, pool
from specdec.stats.report import FEWEST_UNITS, Interval, paired_ratio

_PHASES = ("seconds_propose", "seconds_score", "seconds_verify", "seconds_commit")
# What ``Result`` says of who did which part of a run.
PERFORMERS = ("judge", "drafter", "kernels")


@dataclass(frozen=True)
class OutsideLoops:
    """The steps of a unit that have no token in a loop, summed over its rounds and requests.

    Attributes:
        steps: of rows.
        tokens: that they emitted.
        seconds: the rows' shares of the phases; neither prefill nor what lies between steps.
        emitted: tokens of all steps.
        looped: those of them that are in loops.
    """

    steps: int
    tokens: int
    seconds: float
    emitted: int = 0
    looped: int = 0

    @staticmethod
    def of(records: Mapping[str, Sequence[Any]]) -> "OutsideLoops":
        """Return them from an arm's records (columns, with ``round``) of one unit. Cost: O(tokens)."""
        if not records:
            return OutsideLoops(0, 0, 0.0)
        counts = np.asarray([len(tokens) for tokens in records["tokens"]])
        texts: dict[tuple[int, int], list[int]] = {}
        for row, text in enumerate(zip(records["round"], records["request"], strict=True)):
            texts.setdefault(text, []).append(row)
        outside, num_looped = np.zeros(len(counts), dtype=np.bool_), 0
        for rows in texts.values():
            mask = loop_mask([token for row in rows for token in records["tokens"][row]])
            num_looped += int(mask.sum())
            outside[rows] = [not part.any() for part in np.split(mask, np.cumsum(counts[rows])[:-1])]
        seconds = sum(float(np.asarray(records[phase])[outside].sum()) for phase in _PHASES)
        return OutsideLoops(int(outside.sum()), int(counts[outside].sum()), seconds, int(counts.sum()), num_looped)


ALL = "all"
# The two ratios of speed, by the names that they have everywhere, and in the words of docs/start/glossary.md.
DECODING_ALONE, END_TO_END = "decoding alone", "end to end"
SPEEDS = {
    DECODING_ALONE: "plain decoding's seconds per emitted token over the arm's, prefill left out",
    END_TO_END: "plain decoding's wall time over the arm's for as many tokens, prefill included",
}


def decoding_time(stats: Stats) -> float:
    """Return the seconds of a run, prefill left out."""
    return stats.total_seconds - stats.seconds["prefill"]


def decoding_seconds(stats: Stats) -> float:
    """Return the time per emitted token, prefill left out."""
    return decoding_time(stats) / stats.num_emitted


def in_flight(plain: Stats, stats: Stats) -> float:
    """Return the mean rows of an arm's calls over those of plain decoding's."""
    return (stats.num_steps / stats.target_calls) / (plain.num_steps / plain.target_calls)


class Outcome:
    """The finished units of an experiment, seen by arm and kind.

    Args:
        arms: names, plain decoding among them.
        entries: of the journal, one per unit.
    """

    def __init__(self, arms: Sequence[str], entries: Sequence[dict[str, Any]]) -> None:
        self.arms, self.entries = tuple(arms), tuple(entries)
        self.done = [entry for entry in entries if entry["error"] is None]
        self.kinds = tuple(dict.fromkeys(entry["kind"] for entry in self.done))
        self._loops: dict[tuple[str, str], list[OutsideLoops]] = {}

    def of_kind(self, kind: str = ALL) -> list[dict[str, Any]]:
        """Return the entries of a kind."""
        return [entry for entry in self.done if kind in (ALL, entry["kind"])]

    def stats(self, arm: str, kind: str = ALL) -> Stats | None:
        """Return the pooled statistics of an arm; None for a peer."""
        kept = [entry["arms"][arm]["stats"] for entry in self.of_kind(kind)]
        return None if None in kept else pool([Stats.from_dict(stats) for stats in kept])

    def clusters(self, kind: str = ALL) -> list[list[dict[str, Any]]]:
        """Return the entries of a kind, later turns and seeds with those in which their conversations began."""
        found: dict[int, list[dict[str, Any]]] = {}
        for entry in self.of_kind(kind):
            found.setdefault(entry.get("began", entry["unit"]), []).append(entry)
        return list(found.values())

    def settings(self, arm: str) -> Settings:
        """Return how an arm computed its first unit."""
        return Settings(**self.done[0]["arms"][arm]["settings"])

    def records(self, arm: str) -> list[dict[str, Any]]:
        """Return the records of every unit, columns with ``round``; they are empty for a peer."""
        return [entry["arms"][arm]["records"] for entry in self.done]

    def tree(self, arm: str) -> tuple[tuple[int, ...], ...] | None:
        """Return the nodes of the tree that branches and that an arm's source drafts; None: it declares none."""
        found = self.done[0]["arms"][arm].get("tree")
        return None if found is None else tuple(map(tuple, found))

    def num_scored_nodes(self, arm: str) -> int:
        """Return the nodes that an arm of ours scored, each row's as many as the widest's of its pass."""
        return sum(sum(records["num_nodes"]) for records in self.records(arm))

    def seconds(self, arm: str, kind: str = ALL) -> list[float]:
        """Return an arm's time per cluster, its rounds together."""
        return [sum(sum(entry["arms"][arm]["seconds"]) for entry in cluster) for cluster in self.clusters(kind)]

    def rounds(self, arm: str, kind: str = ALL, what: str = "seconds") -> list[float]:
        """Return an arm's time per round, all units together; of an arm of ours "decoding": prefill left out."""
        kept = [entry["arms"][arm][what] for entry in self.of_kind(kind)]
        return [sum(seconds) for seconds in zip(*kept, strict=True)]

    @property
    def by_rounds(self) -> bool:
        """Whether times are paired by round: there are too few units, and enough rounds."""
        return len(self.clusters()) < FEWEST_UNITS <= len(self.rounds(PLAIN))

    def repeats_plain(self, arm: str) -> bool:
        """Whether an arm must emit plain decoding's tokens; if not, its tokens are draws of the same law."""
        return all(entry["arms"][arm]["repeats_plain"] for entry in self.done)

    @property
    def has_draws(self) -> bool:
        """Whether some arm draws its own outputs, so that arms emit different texts, of different lengths."""
        return not all(map(self.repeats_plain, self.arms))

    def _times(self, arm: str, kind: str) -> list[float]:
        return self.rounds(arm, kind) if self.by_rounds else self.seconds(arm, kind)

    def _scaled_times(self, against: str, arm: str, kind: str) -> list[float]:
        """Return another arm's times for as many tokens as this arm emitted: decoding scaled, prefill as it is.

        A peer does not report its prefill: all of its time is scaled.
        """
        clusters = [[entry["arms"] for entry in cluster] for cluster in self.clusters(kind)]
        prefill = [sum(_prefill(arms[against]) for arms in cluster) for cluster in clusters]
        own, others = (
            [sum(arms[name]["num_tokens"] for arms in cluster) for cluster in clusters] for name in (arm, against)
        )
        counts = [*zip(own, others, strict=True)]
        times = self._times(against, kind)
        if self.by_rounds:
            counts, prefill = [(sum(own), sum(others))] * len(times), [sum(prefill) / len(times)] * len(times)
        return [
            seconds if more == fewer else before + (seconds - before) * more / fewer
            for seconds, before, (more, fewer) in zip(times, prefill, counts, strict=True)
        ]

    def times(self, arm: str, kind: str = ALL, against: str = PLAIN) -> tuple[list[float], list[float]]:
        """Return another arm's times for as many tokens, and this arm's: by unit, or by round if ``by_rounds``."""
        return self._scaled_times(against, arm, kind), self._times(arm, kind)

    def speedup(
        self, arm: str, kind: str = ALL, against: str = PLAIN, method: Callable[..., Interval] = paired_ratio
    ) -> Interval:
        """Return the ratio "end to end": another arm's wall time over this arm's, with an interval; see ``times``."""
        return method(*self.times(arm, kind, against))

    def decoding_speedup(
        self, arm: str, kind: str = ALL, against: str = PLAIN, method: Callable[..., Interval] = paired_ratio
    ) -> Interval | None:
        """Return the ratio "decoding alone": another arm's time per emitted token over this arm's, prefill left out.

        Paired by unit, or by round if ``by_rounds``. None if one of the two is a peer.
        """
        if any(entry["arms"][name]["stats"] is None for entry in self.done for name in (arm, against)):
            return None
        if self.by_rounds:
            others, own = (self.rounds(name, kind, "decoding") for name in (against, arm))
            entries = self.of_kind(kind)
            more = _pool_arm(entries, arm).num_emitted / _pool_arm(entries, against).num_emitted
            return method([seconds * more for seconds in others], own)
        both = [(_pool_arm(cluster, against), _pool_arm(cluster, arm)) for cluster in self.clusters(kind)]
        as_many = [decoding_seconds(theirs) * ours.num_emitted for theirs, ours in both]
        return method(as_many, [decoding_time(ours) for _, ours in both])

    def performers(self, arm: str) -> dict[str, str | None]:
        """Return who judged an arm's drafts, who drafted and whose kernels computed, of all units; None: a peer.

        The words are those of ``Result``.
        """
        found = {did: {name for entry in self.done if (name := entry["arms"][arm][did])} for did in PERFORMERS}
        apart = {did: {part for name in names for part in name.split("; ")} for did, names in found.items()}
        return {did: "; ".join(sorted(parts)) or None for did, parts in apart.items()}

    def calibrations(self, arm: str) -> list[dict[str, Any]]:
        """Return the calibrations that an arm's draft lengths depended on; a resumed run measures one more."""
        measured = [entry["arms"][arm]["calibration"] for entry in self.done]
        return [one for i, one in enumerate(measured) if one is not None and one not in measured[:i]]

    def tokens_and_steps(self, arm: str, kind: str = ALL) -> tuple[list[int], list[int]]:
        """Return the tokens that an arm of ours emitted, and its verify passes of a row, by unit."""
        kept = [[entry["arms"][arm]["stats"] for entry in cluster] for cluster in self.clusters(kind)]
        tokens, steps = ([sum(one[name] for one in part) for part in kept] for name in ("num_emitted", "num_steps"))
        return tokens, steps

    def block_efficiency(self, arm: str, kind: str = ALL, method: Callable[..., Interval] = paired_ratio) -> Interval:
        """Return the tokens that an arm of ours emitted per verify pass of a row, clustered by unit."""
        return method(*self.tokens_and_steps(arm, kind))

    def _outside(self, arm: str, kind: str = ALL) -> list[OutsideLoops]:
        """Return them by cluster; texts are searched for loops once."""
        if (arm, kind) not in self._loops:
            units = [[entry["arms"][arm]["records"] for entry in cluster] for cluster in self.clusters(kind)]
            self._loops[arm, kind] = [sum_of([OutsideLoops.of(records) for records in unit]) for unit in units]
        return self._loops[arm, kind]

    def loop_share(self, arm: str, kind: str = ALL) -> float | None:
        """Return the share of an arm's tokens that are in loops; None for a peer."""
        found = sum_of(self._outside(arm, kind))
        return found.looped / found.emitted if found.emitted else None

    def speedup_outside(self, arm: str, kind: str = ALL) -> Interval | None:
        """Return plain decoding's time over the arm's, for as many tokens, both in steps outside loops.

        None for a peer, or if everything is in loops.
        """
        pairs = zip(self._outside(PLAIN, kind), self._outside(arm, kind), strict=True)
        both = [(plain, own) for plain, own in pairs if plain.tokens and own.tokens]
        as_many = [plain.seconds / plain.tokens * own.tokens for plain, own in both]
        return paired_ratio(as_many, [own.seconds for _, own in both]) if both else None

    def block_efficiency_outside(self, arm: str) -> Interval | None:
        """Return ``block_efficiency`` over the steps outside loops; None as above."""
        found = [unit for unit in self._outside(arm) if unit.steps]
        return paired_ratio([unit.tokens for unit in found], [unit.steps for unit in found]) if found else None

    def check_results(self, arm: str) -> list[bool]:
        """Return, for each prompt, whether its outputs passed their check.

        For an arm that ``repeats_plain``: whether every round emitted plain decoding's ids. For draws: whether each
        output has its length and the same ids in every round.
        """
        name = "identical" if self.repeats_plain(arm) else "sound"
        return [passed for entry in self.done for passed in entry["arms"][arm][name]]

    def law(self, arm: str) -> LawEvidence | None:
        """Return the evidence of an arm's draws against the oracle's law.

        None if its tokens are plain decoding's, or if no unit was held against the law.
        """
        kept = [LawEvidence(**law) for entry in self.done if (law := entry["arms"][arm].get("law"))]
        return None if self.repeats_plain(arm) or not kept else sum_of(kept)

    def tokens_per_second(self, arm: str) -> float:
        """Return new tokens over wall time, prefill included."""
        made = sum(entry["arms"][arm]["num_tokens"] * len(entry["arms"][arm]["seconds"]) for entry in self.done)
        return float(made / sum(self.seconds(arm)))

    def problems(self) -> list[str]:
        """Return what went wrong: failed prompts, and outputs that differ although they are claimed to be exact.

        Of a failure it gives the last line; the journal keeps the whole traceback.
        """
        failed = [entry for entry in self.entries if entry["error"] is not None]
        found = [f"prompts {entry['prompts']}: {entry['error'].strip().splitlines()[-1]}" for entry in failed]
        for entry in self.done:
            for arm, kept in entry["arms"].items():
                is_draw = not kept["repeats_plain"]
                if kept["claim"] == "exact" and not all(kept["sound" if is_draw else "identical"]):
                    what = "lacks its length, or is another one in another round" if is_draw else _DIFFERS
                    found.append(f"prompts {entry['prompts']}: the output of {arm} {what}")
        return [*found, *self._refutations()]

    def _refutations(self) -> list[str]:
        """Return which arms' draws refute that they follow the oracle's law, although they are claimed to."""
        found = []
        for arm in self.arms if self.done else ():
            law, claims = self.law(arm), {entry["arms"][arm]["claim"] for entry in self.done}
            if law is None or any(claim.startswith("lossy") for claim in claims):
                continue
            if law.impossible and claims == {"exact"}:
                found.append(f"{arm} emitted {law.impossible} tokens that the oracle's law excludes")
            if law.e_value >= REFUTED:
                found.append(f"the tokens of {arm} do not follow the oracle's law: e-value {law.e_value:.3g}")
        return found


_DIFFERS = "differs from plain decoding's"


def check_cells(outcome: Outcome, arm: str) -> dict[str, str | None]:
    """Return the cells of a table that say what was checked of an arm's outputs, and how many passed.

    The evidence against the law is None for draws that were not held against it.
    """
    passed, law = outcome.check_results(arm), outcome.law(arm)
    count = f"{sum(passed)}/{len(passed)}"
    if outcome.repeats_plain(arm):
        return {"identical": count}
    return {"checked": count, "law e": None if law is None else e_value_text(law.e_value)}


def speed_cells(outcome: Outcome, arm: str, kind: str = ALL, against: str = PLAIN) -> dict[str, str | None]:
    """Return the cells of a table that say how fast an arm is: both ratios, None for the one that a peer lacks."""
    if arm == against:
        return {DECODING_ALONE: "1", END_TO_END: "1"}
    alone = outcome.decoding_speedup(arm, kind, against)
    return {DECODING_ALONE: None if alone is None else str(alone), END_TO_END: str(outcome.speedup(arm, kind, against))}


def speed_words(outcome: Outcome, arm: str) -> str:
    """Return how fast an arm is in words: both ratios by name."""
    return ", ".join(f"{name} {ratio}" for name, ratio in speed_cells(outcome, arm).items() if ratio is not None)


def _prefill(kept: dict[str, Any]) -> float:
    """Return the seconds of an arm's prefill in a unit, all rounds together; 0 for a peer, which does not report it."""
    return 0.0 if kept["stats"] is None else float(kept["stats"]["seconds"]["prefill"])


def _pool_arm(cluster: Sequence[dict[str, Any]], arm: str) -> Stats:
    return pool([Stats.from_dict(entry["arms"][arm]["stats"]) for entry in cluster])
