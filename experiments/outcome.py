"""The finished units of an experiment: what its tables are made of.

Intervals are clustered: units that hold the turns of one conversation count as one.
"""

from collections.abc import Callable, Sequence
from typing import Any

from experiments.arms import PLAIN
from experiments.outside_loops import OutsideLoops
from experiments.settings import Settings
from specdec.intervals import FEWEST_UNITS, Interval, paired_ratio
from specdec.stats import Stats, pool

ALL = "all"


def decoding_seconds(stats: Stats) -> float:
    """Return the time per emitted token, prefill left out."""
    return (stats.total_seconds - stats.seconds["prefill"]) / stats.num_emitted


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

    def stats(self, arm: str, kind: str = ALL) -> Stats | None:
        """Return the pooled statistics of an arm; None for a peer."""
        kept = [entry["arms"][arm]["stats"] for entry in self.done if kind in (ALL, entry["kind"])]
        return None if None in kept else pool([Stats.from_dict(stats) for stats in kept])

    def clusters(self, kind: str = ALL) -> list[list[dict[str, Any]]]:
        """Return the entries of a kind, later turns with those in which their conversations began."""
        found: dict[int, list[dict[str, Any]]] = {}
        for place, entry in enumerate(self.done):
            if kind in (ALL, entry["kind"]):
                found.setdefault(entry.get("began", entry.get("unit", -1 - place)), []).append(entry)
        return list(found.values())

    def settings(self, arm: str) -> Settings | None:
        """Return how an arm computed its first unit; None: units of an earlier version do not say."""
        kept = self.done[0]["arms"][arm].get("settings")
        return None if kept is None else Settings(**kept)

    def records(self, arm: str) -> list[dict[str, Any]]:
        """Return the records of every unit, columns with ``round``; they are empty for a peer."""
        return [entry["arms"][arm]["records"] for entry in self.done]

    def scored_nodes(self, arm: str) -> int:
        """Return the nodes that an arm of ours scored, each row's as many as the widest's of its pass."""
        return sum(sum(records["num_nodes"]) for records in self.records(arm))

    def seconds(self, arm: str, kind: str = ALL) -> list[float]:
        """Return an arm's time per cluster, its rounds together."""
        return [sum(sum(entry["arms"][arm]["seconds"]) for entry in cluster) for cluster in self.clusters(kind)]

    def rounds(self, arm: str, kind: str = ALL) -> list[float]:
        """Return an arm's time per round, all units together."""
        kept = [entry["arms"][arm]["seconds"] for entry in self.done if kind in (ALL, entry["kind"])]
        return [sum(seconds) for seconds in zip(*kept, strict=True)]

    @property
    def by_rounds(self) -> bool:
        """Whether times are paired by round: there are too few units, and enough rounds."""
        return len(self.clusters()) < FEWEST_UNITS <= len(self.rounds(PLAIN))

    def _times(self, arm: str, kind: str) -> list[float]:
        return self.rounds(arm, kind) if self.by_rounds else self.seconds(arm, kind)

    def speedup(
        self, arm: str, kind: str = ALL, against: str = PLAIN, method: Callable[..., Interval] = paired_ratio
    ) -> Interval:
        """Return another arm's time over this arm's, paired by unit, or by round if ``by_rounds``."""
        return method(self._times(against, kind), self._times(arm, kind))

    def decoding_speedup(self, arm: str) -> Interval | None:
        """Return plain decoding's time over the arm's, for as many tokens, prefill left out, clustered by unit.

        None for a peer.
        """
        if any(entry["arms"][arm]["stats"] is None for entry in self.done):
            return None
        both = [(_pooled(cluster, PLAIN), _pooled(cluster, arm)) for cluster in self.clusters()]
        as_many = [decoding_seconds(plain) * own.num_emitted for plain, own in both]
        return paired_ratio(as_many, [decoding_seconds(own) * own.num_emitted for _, own in both])

    def calibrations(self, arm: str) -> list[dict[str, Any]]:
        """Return the calibrations that an arm's draft lengths depended on; a resumed run has measured another."""
        measured = [entry["arms"][arm]["calibration"] for entry in self.done]
        return [one for i, one in enumerate(measured) if one is not None and one not in measured[:i]]

    def block_efficiency(self, arm: str, kind: str = ALL, method: Callable[..., Interval] = paired_ratio) -> Interval:
        """Return the tokens that an arm of ours emitted per verify pass of a row, clustered by unit."""
        kept = [[entry["arms"][arm]["stats"] for entry in cluster] for cluster in self.clusters(kind)]
        return method(*([sum(one[name] for one in part) for part in kept] for name in ("num_emitted", "num_steps")))

    def _outside(self, arm: str) -> list[OutsideLoops]:
        return [
            OutsideLoops.total([OutsideLoops.of(entry["arms"][arm]["records"]) for entry in cluster])
            for cluster in self.clusters()
        ]

    def speedup_outside(self, arm: str) -> Interval | None:
        """Return plain decoding's time over the arm's, for as many tokens, both in steps outside loops.

        None for a peer, or if everything stands in loops.
        """
        pairs = zip(self._outside(PLAIN), self._outside(arm), strict=True)
        both = [(plain, own) for plain, own in pairs if plain.tokens and own.tokens]
        as_many = [plain.seconds / plain.tokens * own.tokens for plain, own in both]
        return paired_ratio(as_many, [own.seconds for _, own in both]) if both else None

    def block_efficiency_outside(self, arm: str) -> Interval | None:
        """Return ``block_efficiency`` over the steps outside loops; None as above."""
        found = self._outside(arm)
        tokens, steps = [unit.tokens for unit in found], [unit.steps for unit in found]
        return paired_ratio(tokens, steps) if sum(steps) else None

    def identical(self, arm: str) -> list[bool]:
        """Return for each prompt whether every round of the arm emitted plain decoding's ids."""
        return [same for entry in self.done for same in entry["arms"][arm]["identical"]]

    def tokens_per_second(self, arm: str) -> float:
        """Return new tokens over wall time, prefill included."""
        made = sum(entry["arms"][arm]["num_tokens"] * len(entry["arms"][arm]["seconds"]) for entry in self.done)
        return float(made / sum(self.seconds(arm)))

    def problems(self) -> list[str]:
        """Return what went wrong: failed prompts, and outputs that differ although they are claimed to be exact.

        Of a failure the last line; the journal keeps the whole traceback.
        """
        failed = [entry for entry in self.entries if entry["error"] is not None]
        found = [f"prompts {entry['prompts']}: {entry['error'].strip().splitlines()[-1]}" for entry in failed]
        for entry in self.done:
            for arm, kept in entry["arms"].items():
                if kept["claim"] == "exact" and not all(kept["identical"]):
                    found.append(f"prompts {entry['prompts']}: the output of {arm} differs from plain decoding's")
        return found


def _pooled(cluster: Sequence[dict[str, Any]], arm: str) -> Stats:
    return pool([Stats.from_dict(entry["arms"][arm]["stats"]) for entry in cluster])
