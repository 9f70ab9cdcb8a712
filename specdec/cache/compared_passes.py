"""Passes of an oracle whose scores are kept, to be compared with those of whole sequences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import Cache, IntArray, Oracle, Scores, Want, ids_device, pad_rows
from specdec.transfers import on_device, together_on_device

_TWICE = "is a dropout on, or does the model remember calls, or ids that do not stand?"

# Returns the logits ``[T, V]`` of a sequence ``[T]``, and hidden layers ``[T, D]``.
Reading = Callable[[Tensor], tuple[Tensor, ...]]


class ScoresDiffer(AssertionError):
    """What an oracle gave is not what its contract says; the message says what and where."""


def distance(found: Tensor, wanted: Tensor, spread: float) -> float:
    """Return the largest root-mean-square difference of a node's numbers ``[N, V]``, divided by ``spread``.

    It is infinite if the same ids are not banned, or what is found is no number.
    """
    banned = wanted.isneginf()
    if found.shape != wanted.shape or not torch.equal(banned, found.isneginf()):
        return float("inf")
    apart = (found.double() - wanted.double()).masked_fill(banned, 0.0).square().mean(-1).sqrt().max()
    return float("inf") if apart.isnan() else float(apart) / max(spread, torch.finfo(torch.float64).tiny)


def deviation(values: Tensor) -> float:
    """Return the standard deviation of numbers ``[...]``, without banned ids."""
    return float(values[~values.isneginf()].double().std(correction=0))


@dataclass
class _Claim:
    """Numbers ``[N, ...]`` of the last nodes of a path: logits, then hidden layers."""

    what: str
    why: str
    row: int
    ids: IntArray
    values: Sequence[Tensor]


@dataclass
class Walk:
    """Passes of an oracle on one cache, what stands in its rows, and what the scores must be compared with."""

    oracle: Oracle
    cache: Cache
    layers: tuple[int, ...]
    tolerance: float
    rows: IntArray = field(default_factory=lambda: np.array([2, 0]))
    stands: dict[int, IntArray] = field(default_factory=dict)
    claims: list[_Claim] = field(default_factory=list)
    returned: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def ids(self, *lengths: int) -> list[IntArray]:
        """Return random ids ``[L]`` for each row."""
        return [self.random.integers(self.oracle.vocab_size, size=length) for length in lengths]

    def score(
        self,
        what: str,
        rows: IntArray,
        nodes: Sequence[IntArray],
        parents: IntArray | None = None,
        want: Want = "all",
        first: int = 0,
    ) -> Scores:
        """Score nodes ``[N]`` of each row in one pass, and check all but the numbers."""
        host = {"tokens": pad_rows(nodes), "num_nodes": np.array([len(ids) for ids in nodes])}
        host |= {} if parents is None else {"parents": parents}
        given = dict(zip(host, together_on_device(*host.values(), device=ids_device(self.oracle)), strict=True))
        lengths, order = self.cache.lengths.copy(), rows.copy()
        before = {name: tensor.clone() for name, tensor in given.items()}
        tree, counts = given.get("parents"), given["num_nodes"]
        scores = self.oracle.score(given["tokens"], tree, counts, self.cache, order, want, self.layers, first)
        wrote = [name for name, was in before.items() if not torch.equal(was, given[name])]
        wrote += [] if np.array_equal(order, rows) else ["rows"]
        if wrote:
            raise ScoresDiffer(f"score wrote to the {wrote[0]} of {what}: they are the caller's, copy what you change")
        if not np.array_equal(lengths, self.cache.lengths):
            raise ScoresDiffer(f"score changed cache.lengths with {what}: only commit, truncate and reset may")
        self._check_form(what, scores, before["num_nodes"], host["tokens"].shape[1] - first, want, first)
        self._check_returned()
        made = [layer for layer in (scores.logits, *scores.hidden) if layer is not None]
        self.returned = [(what, layer, layer.clone()) for layer in made]
        return scores

    def _check_returned(self) -> None:
        """Check that the results of the pass before stand as they were."""
        for what, result, copy in self.returned:
            if not torch.equal(result, copy) and not result.isnan().any():
                raise ScoresDiffer(f"a later pass wrote to the scores of {what}: return tensors that are the caller's")

    def _check_form(self, what: str, scores: Scores, counts: Tensor, size: int, want: Want, first: int) -> None:
        """Look at shapes and dtypes, and at the likeliest ids if there are any."""
        if (scores.logits is None) != (want == "none"):
            raise ScoresDiffer(f"want={want!r} gave {'no ' if scores.logits is None else ''}logits with {what}")
        shapes = [tuple(layer.shape[:2]) for layer in scores.hidden]
        if shapes != [(len(counts), size)] * len(self.layers):
            raise ScoresDiffer(
                f"hidden={self.layers} gave layers of shape {shapes} [B, N], with {what} of {size} nodes"
            )
        if scores.logits is None:
            return
        shape = (len(counts), size if want == "all" else 1, self.oracle.vocab_size)
        if tuple(scores.logits.shape) != shape or scores.logits.dtype not in (torch.float32, torch.float64):
            found = f"{tuple(scores.logits.shape)} in {scores.logits.dtype}"
            raise ScoresDiffer(f"the logits of {what} are {found}, not {shape} in float32 or float64")
        if scores.likeliest is not None:
            real = torch.arange(shape[1], device=counts.device) < (counts.unsqueeze(1) - first if want == "all" else 1)
            real = on_device(real.expand(shape[:2]), scores.logits.device)
            for told, best in zip(scores.likeliest, Scores(scores.logits).best, strict=True):
                if not torch.equal(on_device(told, best.device)[real], best[real]):
                    raise ScoresDiffer(f"likeliest of {what} are not the largest logits, the lowest id of equals")

    def claim(self, what: str, why: str, row: int, path: IntArray, values: Sequence[Tensor]) -> None:
        """Note that these are numbers ``[N, ...]`` of the last nodes of a path after what stands in a row."""
        ids = np.concatenate([self.stands[row], path])
        self.claims.append(_Claim(what, why, row, ids, [layer.clone() for layer in values]))

    def read(self, what: str, why: str, rows: IntArray, ids: Sequence[IntArray], *, twice: bool = False) -> None:
        """Score chains ``[L]``, one for each of ``rows`` ``[B]``, and keep them."""
        found = self.score(what, rows, ids)
        again = self.score(what, rows, ids) if twice else found
        for b, row in enumerate(rows.tolist()):
            values = values_of(found, b, np.arange(len(ids[b])))
            self.same(what, row, values, values_of(again, b, np.arange(len(ids[b]))))
            self.claim(what, why, row, ids[b], values)
        self.keep(what, rows, ids, None)

    def same(self, what: str, row: int, first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
        """Check that a pass gave the same numbers ``[N, ...]`` twice."""
        for one, other in zip(first, second, strict=True):
            if fault := self._fault(other, one, deviation(one)):
                raise ScoresDiffer(f"row {row} of {what}, asked for twice, differs {fault}: {_TWICE}")

    def keep(self, what: str, rows: IntArray, ids: Sequence[IntArray], paths: Sequence[IntArray] | None) -> None:
        """Commit nodes of ``rows`` ``[B]``, whose ids ``[N]`` these are."""
        path = None if paths is None else torch.from_numpy(pad_rows(paths))
        self.cache.commit(rows, path, np.array([len(kept) for kept in ids]))
        for row, kept in zip(rows.tolist(), ids, strict=True):
            self.stands[row] = np.concatenate([self.stands[row], kept])
        self.check_lengths(f"commit of {what}")

    def cut(self, rows: IntArray, num_ids: int) -> None:
        """Take back the last ids of ``rows`` ``[B]``."""
        for row in rows.tolist():
            self.stands[row] = self.stands[row][:-num_ids]
        self.cache.truncate(rows, np.array([len(self.stands[row]) for row in rows.tolist()]))
        self.check_lengths("truncate")

    def check_lengths(self, after: str) -> None:
        """Check that the cache has as many ids as stand."""
        found, wanted = self.cache.lengths.tolist(), [len(self.stands.get(row, ())) for row in range(3)]
        if found != wanted:
            raise ScoresDiffer(f"cache.lengths is {found} after {after}, not {wanted}")

    def compare(self, reading: Reading) -> None:
        """Compare all that was claimed with whole sequences, of which one at a time is kept; tell the first fault."""
        found: dict[int, str | None] = {}
        spreads: list[float] = []
        for longest in sorted(self.claims, key=lambda claim: -len(claim.ids)):
            if id(longest) in found:
                continue
            whole = reading(together_on_device(longest.ids, device=ids_device(self.oracle))[0])
            spreads = spreads or [deviation(layer) for layer in whole]
            for claim in self.claims:
                if id(claim) not in found and np.array_equal(longest.ids[: len(claim.ids)], claim.ids):
                    found[id(claim)] = self._fault_of(claim, whole, spreads)
        for claim in self.claims:
            if (fault := found[id(claim)]) is not None:
                raise ScoresDiffer(fault)

    def _fault_of(self, claim: _Claim, whole: Sequence[Tensor], spreads: Sequence[float]) -> str | None:
        """Say how what was claimed differs from a sequence that begins with the path; None: it does not."""
        end = len(claim.ids)
        for number, (found, wanted, spread) in enumerate(zip(claim.values, whole, spreads, strict=False)):
            name = f"the hidden layer {self.layers[number - 1]}" if number else "the scores"
            start = end - len(found)
            right = on_device(wanted[start:end], found.device)
            right = right if number else right[:, : self.oracle.vocab_size]
            for at in range(len(found)):
                if fault := self._fault(found[at : at + 1], right[at : at + 1], spread):
                    where = f"at position {start + at} of row {claim.row}"
                    told = f"{name} of {claim.what} differ from those of whole sequences"
                    return f"{told} {fault}, {where}: {claim.why}"
        return None

    def _fault(self, found: Tensor, wanted: Tensor, spread: float) -> str | None:
        """Say by how much numbers ``[N, ...]`` are off; None: they are as they should be."""
        if torch.equal(found, wanted):
            return None
        off = distance(found, wanted, spread)
        if self.tolerance and off <= self.tolerance:
            return None
        allowed = f"{self.tolerance:g}" if self.tolerance else "no bit: the oracle says that it is bitwise"
        return f"by {off:.2g} of their deviation (allowed: {allowed})"


def values_of(scores: Scores, row: int, nodes: IntArray) -> list[Tensor]:
    """Return the logits and hidden layers, each ``[N, ...]``, of some nodes of a row of a pass."""
    assert scores.logits is not None
    at = on_device(nodes, scores.logits.device)
    return [layer[row, at] for layer in (scores.logits, *scores.hidden)]
