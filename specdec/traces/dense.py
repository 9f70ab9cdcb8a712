"""Dense records: what a source drafts at every position of an output, so that any step may begin anywhere.

The output is decoded plainly. At each position the source is asked for the longest draft, which is kept and not used:
the engine is handed an empty draft and emits one token. Greedy and coupled outputs are the same for every draft, so the
output says what the target thinks of each drafted token. Other sampled outputs are draws that a run with drafts would
not repeat, from the same law: what such a run did on its way to an output, given that output, can still be told
(``specdec/traces/expecting.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from specdec.contracts import (
    BoolArray,
    DraftSession,
    DraftSource,
    FloatArray,
    IntArray,
    Oracle,
    VerificationRule,
    WatchedSource,
)
from specdec.draft_length import LengthPolicy
from specdec.engine import Result, SpeculativeDecoder
from specdec.randomness import Seed
from specdec.requests import Prompt, SamplingParams, Stops, make_requests
from specdec.rules import RULES, resolve_rule
from specdec.shapes import TreeShape
from specdec.traces.asking import Asking, Block, Confiding, Longest
from specdec.traces.output_laws import ACCEPTED, OutputLaws
from specdec.traces.tables import read_columns, read_note, write_table

Path_ = tuple[int, ...]


@dataclass(frozen=True)
class DenseRecords:
    """Drafts at every position of some outputs; request r's positions are rows ``starts[r]`` to ``starts[r + 1]``.

    Attributes:
        outputs: new ids of each request.
        prompt_lengths: ids before them.
        starts: ``[R + 1]``.
        tokens, parents: ``[P, N]`` of the draft before each output token, parents -1 for the pending token.
        counts: ``[P]`` nodes; a budget or the source ended some early.
        confidence: ``[P, N]`` of the nodes, 0 beyond; None: not recorded.
        entropy: ``[P, N]`` in nats of the laws that chains' tokens were drawn from, 0 beyond; None: not recorded.
        paths: the nodes of a whole draft, as the ranks of the siblings on their paths.
        exactness: of the run: "exact" or "exact up to numerics".
        is_chosen: whether all tokens were chosen as the likeliest, or copied; none was drawn.
        rule: by which a run judges.
        repeats: whether runs with drafts write these outputs: greedy and coupled ones do.
        p, q: ``[P]`` of each output token, under the target's law and under the law that a draft that begins there
            draws from; None: tokens were chosen, or outputs repeat.
    """

    outputs: list[list[int]]
    prompt_lengths: IntArray
    starts: IntArray
    tokens: IntArray
    parents: IntArray
    counts: IntArray
    confidence: FloatArray | None
    entropy: FloatArray | None
    paths: tuple[Path_, ...]
    exactness: str
    is_chosen: bool = False
    rule: str = "standard"
    repeats: bool = True
    p: FloatArray | None = None
    q: FloatArray | None = None

    @property
    def is_chain(self) -> bool:
        """Whether no node of a whole draft has a sibling."""
        return all(path[-1] == 0 for path in self.paths)

    def save(self, path: str | Path) -> None:
        """Write the records as one parquet file, a row for each position; the file is replaced as a whole."""
        columns: dict[str, Any] = {
            "request": np.repeat(np.arange(len(self.outputs)), np.diff(self.starts)),
            "output": np.concatenate([np.zeros(0, dtype=np.int64), *map(np.asarray, self.outputs)]).astype(np.int64),
            "count": self.counts,
        }
        values = {name: getattr(self, name) for name in _OF_NODES}
        columns |= {name: _cut(value, self.counts) for name, value in values.items() if value is not None}
        columns |= {name: getattr(self, name) for name in ("p", "q") if getattr(self, name) is not None}
        note = {
            "outputs": self.outputs,
            "prompt_lengths": self.prompt_lengths.tolist(),
            "paths": self.paths,
            "exactness": self.exactness,
            "is_chosen": self.is_chosen,
            "rule": self.rule,
            "repeats": self.repeats,
            "given": [name for name, value in values.items() if value is not None],
        }
        write_table(Path(path), columns, note)

    @staticmethod
    def load(path: str | Path) -> "DenseRecords":
        """Return what ``save`` wrote.

        Raises:
            ValueError: the file holds something else.
        """
        note, columns = read_note(Path(path)), read_columns(Path(path))
        if "paths" not in note:
            raise ValueError(f"{path} holds no dense records")
        counts = np.asarray(columns["count"], dtype=np.int64)
        width = int(counts.max(initial=0))
        fills: dict[str, Any] = {"tokens": 0, "parents": -1, "confidence": 0.0, "entropy": 0.0}
        given = {name: _padded(columns[name], width, fills[name]) for name in note["given"]}
        return DenseRecords(
            outputs=note["outputs"],
            prompt_lengths=np.asarray(note["prompt_lengths"], dtype=np.int64),
            starts=_starts(note["outputs"]),
            counts=counts,
            paths=tuple(map(tuple, note["paths"])),
            exactness=note["exactness"],
            is_chosen=note.get("is_chosen", False),
            rule=note.get("rule", "standard"),
            repeats=note.get("repeats", True),
            p=columns.get("p"),
            q=columns.get("q"),
            **{"confidence": None, "entropy": None, **given},
        )


_OF_NODES = ("tokens", "parents", "confidence", "entropy")


def _cut(values: Any, counts: IntArray) -> list[Any]:
    return [row[:count].tolist() for row, count in zip(values, counts, strict=True)]


def _padded(lists: Sequence[Sequence[Any]], width: int, fill: Any) -> Any:
    return np.array([[*row, *[fill] * (width - len(row))] for row in lists]).reshape(len(lists), width)


def _starts(outputs: Sequence[Sequence[int]]) -> IntArray:
    return np.cumsum([0, *map(len, outputs)])


def record_chains(
    oracle: Oracle,
    make_source: Callable[[LengthPolicy], DraftSource],
    prompts: Sequence[Prompt],
    num_draft_tokens: int = 16,
    max_new_tokens: int = 128,
    sampling: SamplingParams | Sequence[SamplingParams] | None = None,
    seed: int | Sequence[Seed] = 0,
    stop: Stops = None,
    batch_size: int | None = None,
    *,
    rule: str = "standard",
    entropies: bool = False,
) -> DenseRecords:
    """Decode prompts plainly, and record the longest chain that a source drafts at every position of the outputs.

    Args:
        oracle: the target.
        make_source: makes the source with a length policy: ``lambda length: SmallTransformer(model, length=length)``.
            A shorter draft of it is the beginning of a longer one.
        prompts, max_new_tokens, sampling, seed, stop, batch_size: as in ``SpeculativeDecoder.generate``.
        num_draft_tokens: of the longest drafts; replays may ask for as many.
        rule: by which a run judges. Coupled runs write the recorded outputs, as greedy ones do; of other sampled runs a
            replay tells what they did given these outputs: exactly if drafts are chosen, else in expectation.
        entropies: record those of the laws that tokens are drawn from too, for policies that read them.

    Raises:
        ValueError: as ``generate``; sampled requests under a rule that is not one of ours; a source whose drafts depend
            on more than the ids before them and the position: one that adapts, that learns from scores, or is not
            reproducible; a source with stages, or with several members that ask the policy; for sampled requests that
            are not coupled also one whose drawn tokens follow other laws at other depths.

    Cost: a plain run, and at each of its steps a draft of ``num_draft_tokens``; O(P N) memory for P output tokens, and
        for drawn drafts of sampled requests that are not coupled N laws of O(V) for each of the last N tokens of a row.
    """
    policy = Longest(num_draft_tokens, entropies)
    asked = (prompts, max_new_tokens, sampling, seed, stop, batch_size)
    paths = tuple((0,) * depth for depth in range(1, num_draft_tokens + 1))
    source = make_source(policy)
    if source.offers.trees:
        raise ValueError(f"draft {source.name!r} branches: a length cuts chains; record_trees records trees of a shape")
    records = _record(oracle, source, rule, asked, paths, policy.heard, entropies)
    if len(policy.opened) != 1:
        raise ValueError(f"the source asked its length policy in {len(policy.opened)} sessions: a record is of one")
    return records


def record_trees(
    oracle: Oracle,
    make_source: Callable[[TreeShape], DraftSource],
    prompts: Sequence[Prompt],
    shape: TreeShape,
    max_new_tokens: int = 128,
    sampling: SamplingParams | Sequence[SamplingParams] | None = None,
    seed: int | Sequence[Seed] = 0,
    stop: Stops = None,
    batch_size: int | None = None,
    *,
    rule: str = "sample_and_match",
    confidences: bool = False,
) -> DenseRecords:
    """Decode prompts plainly, and record the tree that a source drafts at every position of the outputs.

    Args:
        make_source: makes the source with a shape: ``lambda tree: SmallTransformer(model, tree=tree)``.
        shape: one whose nodes are known beforehand; replays may ask for any part of it.
        oracle, prompts, max_new_tokens, sampling, seed, stop, batch_size, rule: as in ``record_chains``.
        confidences: record those of the nodes too, for shapes that are decided by them as a tree grows. Trees are
            drafted level by level then.

    Raises:
        ValueError: as ``record_chains``; a shape that is decided as it grows; siblings that are drawn in other ways
            than coupled, because they are drawn anew for another shape; confidences of a source that has none.

    Cost: a plain run, and a tree at each of its steps.
    """
    if shape.paths is None:
        raise ValueError(f"{shape} is decided as it grows: record a shape whose nodes are known, such as Kary or Paths")
    asked = (prompts, max_new_tokens, sampling, seed, stop, batch_size)
    source = make_source(Confiding.of(shape) if confidences else shape)
    if confidences and not source.offers.confidence:
        raise ValueError(f"draft {source.name!r} has no confidences: leave confidences=False, or give another source")
    return _record(oracle, source, rule, asked, shape.paths, [], False)


def _record(
    oracle: Oracle,
    source: DraftSource,
    rule: str,
    asked: tuple[Any, ...],
    paths: tuple[Path_, ...],
    heard: list[Tensor],
    entropies: bool,
) -> DenseRecords:
    """Return the records of a plain run; ``asked``: the first six arguments of ``generate``."""
    blocks: list[Block] = []
    requests = make_requests(oracle, *asked[:5])
    hot = np.array([request.sampling.temperature > 0 for request in requests], dtype=np.bool_)
    repeats = resolve_rule(rule).coupled or not hot.any()
    laws = None if repeats else OutputLaws(max(map(len, paths), default=0), source.name)

    def watch(session: DraftSession, oracle: Oracle, num_rows: int) -> DraftSession:
        return Asking(session, blocks, heard, decoder.rule.coupled, laws)

    decoder = SpeculativeDecoder(oracle, WatchedSource(source, watch), rule)
    _check(source, decoder.rule, repeats)
    whole: tuple[Any, ...] = (*asked, not repeats)  # and whether log-probabilities are returned
    result = decoder.generate(*whole)
    lengths = np.array([len(request.prompt) for request in requests], dtype=np.int64)
    records = replace(_ordered(blocks, result, lengths, paths, entropies), rule=decoder.rule.name, repeats=repeats)
    return records if laws is None or records.is_chosen else _with_laws(records, result, laws, hot)


def _check(source: DraftSource, rule: VerificationRule, repeats: bool) -> None:
    """Raise ValueError if drafts at each position of a plain output are not those of another run."""
    offers, needs = source.offers, source.needs
    # A class that derives from one of ours has its name, and may judge as it likes.
    is_ours = rule.name in ACCEPTED and type(rule) is type(RULES[rule.name])
    if not repeats and not is_ours:
        raise ValueError(
            f"rule={rule.name!r} ({type(rule).__name__}): a sampled run with drafts writes other outputs than the "
            f"recorded ones, and what it does on its way to these is known of {', '.join(ACCEPTED)} alone: give one of "
            "these, or 'coupled'"
        )
    if offers.adaptive or not offers.reproducible:
        raise ValueError(f"draft {source.name!r} depends on earlier drafts or on its batch-mates: no dense record")
    if needs.logits or needs.hidden:
        raise ValueError(
            f"draft {source.name!r} learns from the scores of what it drafts: what it drafts at a position depends on "
            "which steps came before, and these are others in every replay: no dense record"
        )


def _with_laws(records: DenseRecords, result: Result, laws: OutputLaws, hot: BoolArray) -> DenseRecords:
    """Return records with p and q of the output's tokens; ``hot``: which requests are sampled.

    Raises:
        ValueError: q at the beginning of a draft does not stand for the laws at other depths.
    """
    if laws.fault is not None:
        raise ValueError(laws.fault)
    assert result.logprobs is not None
    pairs = zip(result.logprobs, hot, strict=True)
    p = np.concatenate([np.exp(own) if is_hot else np.ones(len(own)) for own, is_hot in pairs])
    return replace(records, p=p, q=np.concatenate(laws.q)[_order(result)])


def _order(result: Result) -> IntArray:
    """Return the places of a plain run's records by request and position."""
    columns = result.records.columns()
    order: IntArray = np.lexsort((columns["num_committed"], columns["request"]))
    return order


def _ordered(
    blocks: Sequence[Block], result: Result, lengths: IntArray, paths: tuple[Path_, ...], entropies: bool
) -> DenseRecords:
    """Return the drafts of all steps by request and position."""
    order = _order(result) if blocks else np.zeros(0, dtype=np.int64)
    counts = np.concatenate([np.zeros(0, dtype=np.int64), *(block.counts for block in blocks)])
    shape = len(counts), int(counts.max(initial=0))

    def stacked(name: str, fill: float, dtype: type) -> Any:
        parts = [getattr(block, name) for block in blocks]
        return _stacked(parts, np.full(shape, fill, dtype=dtype))[order]

    some = all(block.says_confidence for block in blocks)
    return DenseRecords(
        outputs=result.tokens,
        prompt_lengths=lengths,
        starts=_starts(result.tokens),
        tokens=stacked("tokens", 0, np.int64),
        parents=stacked("parents", -1, np.int64),
        counts=counts[order],
        confidence=stacked("confidence", 0.0, np.float64) if some else None,
        entropy=stacked("entropy", 0.0, np.float64) if entropies else None,
        paths=paths,
        exactness=result.exactness,
        is_chosen=all(block.is_chosen for block in blocks),
    )


def _stacked(parts: Sequence[Any], whole: Any) -> Any:
    """Write matrices ``[B_i, W_i]`` one below the other into ``whole``; return it."""
    first = 0
    for part in parts:
        size = min(part.shape[1], whole.shape[1])
        whole[first : first + len(part), :size] = part[:, :size]
        first += len(part)
    return whole
