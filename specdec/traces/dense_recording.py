"""Making dense records: decoding plainly, with a draft at every position that is kept and not used.

The engine is handed an empty draft at each position and emits one token. Greedy and coupled outputs are the same for
every draft, so the output says what the target thinks of each drafted token. Other sampled outputs come from the same
law, but a run with drafts would draw others. What such a run does on its way to a given output can still be computed
(``specdec/traces/expecting.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from specdec.contracts import (
    BoolArray,
    DraftSession,
    DraftSource,
    FloatArray,
    IntArray,
    Needs,
    Oracle,
    VerificationRule,
    WatchedSource,
)
from specdec.drafting.lengths import LengthPolicy
from specdec.drafting.shapes import TreeShape
from specdec.engine import Result, SpeculativeDecoder
from specdec.requests import Prompt, Stops, list_prompts, make_requests
from specdec.sampling import SamplingParams, Seed
from specdec.stats import stack_rows
from specdec.traces.asking import Asking, Confiding, Longest, LongestHearing, StepDrafts, WatchedPaths
from specdec.traces.dense import DenseRecords, Path_
from specdec.traces.output_laws import ACCEPTED, OutputLaws
from specdec.verify import RULES, resolve_rule


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
    kernels: str | None = None,
) -> DenseRecords:
    """Decode prompts plainly, and record the longest chain that a source drafts at every position of the outputs.

    Args:
        oracle: the target.
        make_source: makes the source with a length policy: ``lambda length: SmallTransformer(model, length=length)``.
            A shorter draft of it is the beginning of a longer one.
        prompts, max_new_tokens, sampling, seed, stop, batch_size: as in ``SpeculativeDecoder.generate``.
        num_draft_tokens: of the longest drafts; replays may ask for up to as many.
        rule: by which a run judges. Coupled runs write the recorded outputs, as greedy ones do; for other sampled runs
            a replay tells what they did given these outputs: exactly if drafts are chosen, else in expectation.
        entropies: record those of the laws that tokens are drawn from too, for policies that read them.
        kernels: see ``SpeculativeDecoder``.

    Raises:
        ValueError: as ``generate``; sampled requests under a rule that is not one of ours; a source whose drafts depend
            on more than the ids before them and the position: one that adapts, that learns from scores, or is not
            reproducible; one that drafts otherwise within a smaller limit; a source with stages, one that joins the
            drafts of several members, or one that does not ask the policy in one session; for sampled requests that
            are not coupled also one whose drawn tokens follow other laws at other depths.

    Cost: a plain run, and at each of its steps a draft of ``num_draft_tokens``; O(P N) memory for P output tokens, and
        for drawn drafts of sampled requests that are not coupled N laws of O(V) for each of the last N tokens of a row.
    """
    policy = (LongestHearing if entropies else Longest)(num_draft_tokens, with_confidence=True)
    asked = (list_prompts(prompts), max_new_tokens, sampling, seed, stop, batch_size)
    paths = tuple((0,) * depth for depth in range(1, num_draft_tokens + 1))
    source = make_source(policy)
    if source.offers.trees:
        raise ValueError(f"draft {source.name!r} branches: a length cuts chains; record_trees records trees of a shape")

    def check() -> None:
        if len(policy.opened) != 1:
            raise ValueError(f"the source asked its length policy in {len(policy.opened)} sessions: a record is of one")

    return _record(oracle, source, rule, kernels, asked, paths, check, policy.heard, entropies)


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
    kernels: str | None = None,
) -> DenseRecords:
    """Decode prompts plainly, and record the tree that a source drafts at every position of the outputs.

    Args:
        make_source: makes the source with a shape: ``lambda tree: SmallTransformer(model, tree=tree)``.
        shape: one whose nodes are known beforehand; replays may ask for any part of it.
        oracle, prompts, max_new_tokens, sampling, seed, stop, batch_size, rule: as in ``record_chains``.
        confidences: record those of the nodes too, for shapes that are decided by them as a tree grows. Trees are
            drafted level by level then.
        kernels: see ``SpeculativeDecoder``.

    Raises:
        ValueError: as ``record_chains``; a shape that is decided as it grows, or that the source does not read;
            siblings that are drawn for requests at temperature 0, because they are drawn anew for another shape;
            siblings that are drawn from several laws; confidences of a source that has none.

    Cost: a plain run, and a tree at each of its steps. Drawn siblings that are not coupled take O(V) more for each of
        the first two ranks, and a few milliseconds for each further one (``specdec/traces/siblings.py``).
    """
    if shape.paths is None:
        raise ValueError(f"{shape} is decided as it grows: record a shape whose nodes are known, such as Kary or Paths")
    asked = (list_prompts(prompts), max_new_tokens, sampling, seed, stop, batch_size)
    told = Confiding(shape.paths) if confidences else WatchedPaths(shape.paths)
    source = make_source(told)
    if confidences and not source.offers.confidence:
        raise ValueError(f"draft {source.name!r} has no confidences: leave confidences=False, or give another source")

    def check() -> None:
        if not told.was_read:
            raise ValueError(f"draft {source.name!r} does not read the shape that make_source is given: hand it on")

    return _record(oracle, source, rule, kernels, asked, shape.paths, check, [], False)


def _record(
    oracle: Oracle,
    source: DraftSource,
    rule: str,
    kernels: str | None,
    asked: tuple[Any, ...],
    paths: tuple[Path_, ...],
    check: Callable[[], None],
    heard: list[FloatArray],
    entropies: bool,
) -> DenseRecords:
    """Return the records of a plain run.

    ``asked``: the first six arguments of ``generate``; ``check`` refuses, once it has drafted, a bad source.
    """
    blocks: list[StepDrafts] = []
    requests = make_requests(oracle, *asked[:5])
    hot = np.array([request.sampling.temperature > 0 for request in requests], dtype=np.bool_)
    repeats = resolve_rule(rule).coupled or not hot.any()
    laws = None if repeats else OutputLaws(paths, resolve_rule(rule).name, source.name)

    def watch(session: DraftSession, oracle: Oracle, num_rows: int) -> DraftSession:
        return Asking(session, blocks, heard, decoder.rule.coupled, laws, check)

    kind = _ScoredSource if laws is not None and laws.branches and source.offers.laws else WatchedSource
    decoder = SpeculativeDecoder(oracle, kind(source, watch), rule, kernels=kernels)
    _check(source, decoder.rule, repeats)
    whole: tuple[Any, ...] = (*asked, not repeats)  # and whether log-probabilities are returned
    result = decoder.generate(*whole)
    lengths = np.array([len(request.prompt) for request in requests], dtype=np.int64)
    records = replace(
        _drafts_in_order(blocks, result, lengths, paths, entropies), rule=decoder.rule.name, repeats=repeats
    )
    return records if laws is None or records.is_chosen else _with_laws(records, result, laws, hot)


def _check(source: DraftSource, rule: VerificationRule, repeats: bool) -> None:
    """Raise ValueError if drafts at each position of a plain output are not those of another run."""
    offers, needs = source.offers, source.needs
    # A class that derives from one of ours has its name; if it judges by a `__call__` of its own, it loses the judge.
    is_ours = rule.name in ACCEPTED and rule.native_judge is RULES[rule.name].native_judge
    if not repeats and not is_ours:
        raise ValueError(
            f"rule={rule.name!r} ({type(rule).__name__}): a sampled run with drafts writes other outputs than the "
            f"recorded ones, and what it does on its way to these is known of {', '.join(ACCEPTED)} alone: give one of "
            "these, or 'coupled'"
        )
    if offers.adaptive or not offers.reproducible:
        raise ValueError(f"draft {source.name!r} depends on earlier drafts or on its batch-mates: no dense record")
    if not offers.nested:
        raise ValueError(f"draft {source.name!r} drafts otherwise within a smaller limit: no dense record")
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
    order, by_rank = _order(result), None
    if laws.branches:
        by_rank = np.concatenate(laws.by_rank)[order]
        by_rank = by_rank[:, :1] if (by_rank == by_rank[:, :1]).all() else by_rank
    confidence = records.confidence if laws.says_q else None
    return replace(records, p=p, q=np.concatenate(laws.q)[order], by_rank=by_rank, confidence=confidence)


class _ScoredSource(WatchedSource):
    """A watched source that is told the target's logits."""

    @property
    def needs(self) -> Needs:
        """What it asks of the engine."""
        return replace(self.inner.needs, logits=True, prompt=False)


def _order(result: Result) -> IntArray:
    """Return the places of a plain run's records by request and position."""
    columns = result.records.columns()
    order: IntArray = np.lexsort((columns["num_committed"], columns["request"]))
    return order


def _drafts_in_order(
    blocks: Sequence[StepDrafts], result: Result, lengths: IntArray, paths: tuple[Path_, ...], entropies: bool
) -> DenseRecords:
    """Return the drafts of all steps by request and position."""
    order = _order(result) if blocks else np.zeros(0, dtype=np.int64)
    counts = np.concatenate([np.zeros(0, dtype=np.int64), *(block.counts for block in blocks)])
    width = int(counts.max(initial=0))

    def stack(name: str, fill: float, dtype: type) -> Any:
        return stack_rows([getattr(block, name) for block in blocks], fill, dtype)[order, :width]

    some = all(block.confidence.shape == block.tokens.shape for block in blocks)
    return DenseRecords(
        outputs=result.tokens,
        prompt_lengths=lengths,
        tokens=stack("tokens", 0, np.int64),
        parents=stack("parents", -1, np.int64),
        counts=counts[order],
        confidence=stack("confidence", 0.0, np.float64) if some else None,
        entropy=stack("entropy", 0.0, np.float64) if entropies else None,
        paths=paths,
        exactness=result.exactness,
        is_chosen=all(block.is_chosen for block in blocks),
    )
