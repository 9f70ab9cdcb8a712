"""What the engine refuses: pairs that cannot work together, malformed drafts, laws and verdicts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.contracts import (
    NEVER,
    BoolArray,
    Budget,
    Draft,
    DraftSource,
    IntArray,
    NativeJudge,
    Offers,
    Oracle,
    Tree,
    VerificationRule,
    as_recorded,
    check_source,
    check_tensors,
    check_vocabulary,
    with_root,
)
from specdec.engine.outcome import Decision
from specdec.engine.state import Frame
from specdec.engine.verification import SUM_TOLERANCE, Evidence
from specdec.transfers import on_host, to_list

_OF_ORACLES = ("vocab_size", "eos_ids", "max_context", "tokenizer", "device", "dtype", "new_cache", "score")


def check_oracle(oracle: Oracle) -> None:
    """Raise ValueError if an oracle lacks what every step reads of it."""
    missing = [part for part in _OF_ORACLES if not hasattr(oracle, part)]
    if missing:
        raise ValueError(
            f"oracle={oracle!r} lacks {', '.join(missing)}: give what oracles.load returns, or an object that fulfils "
            "specdec.contracts.Oracle"
        )


def check_rule(rule: VerificationRule) -> None:
    """Raise ValueError if a rule does not declare what the engine must know of it."""
    missing = [part for part in ("name", "lossless", "trees", "coupled", "native_judge") if not hasattr(rule, part)]
    if missing or not callable(rule):
        lacks = ", ".join(missing or ["__call__"])
        raise ValueError(
            f"rule {type(rule).__name__} lacks {lacks}: derive it from specdec.Rule, or declare what "
            "specdec.contracts.VerificationRule lists"
        )
    if not (rule.native_judge is None or isinstance(rule.native_judge, NativeJudge)):
        raise ValueError(
            f"rule {rule.name!r}: native_judge is {rule.native_judge!r}; give a member of specdec.NativeJudge, or None"
        )


def check_pair(oracle: Oracle, draft: DraftSource, rule: VerificationRule) -> None:
    """Raise ValueError, with the reason, if source, rule and oracle cannot work together."""
    check_oracle(oracle)
    check_source(draft, "draft")
    check_rule(rule)
    offers = draft.offers
    if offers.max_nodes < (min(offers.max_depth, 1) if offers.trees else offers.max_depth):
        raise ValueError(
            f"draft {draft.name!r} offers paths of {offers.max_depth} tokens in at most {offers.max_nodes} nodes: "
            "declare offers.max_nodes (a chain's is its max_depth)"
        )
    if offers.trees and not rule.trees:
        raise ValueError(
            f"draft {draft.name!r} branches and rule {rule.name!r} judges chains only; use rule='multi_draft' or "
            "rule='sample_and_match'"
        )
    if as_recorded(oracle) is not None and (draft.needs.logits or draft.needs.hidden):
        raise ValueError(
            f"draft {draft.name!r} reads the oracle's logits or hidden layers, and recorded text has none: use a "
            "source that reads ids alone (PromptLookup, NGram, ...) or has a model of its own (SmallTransformer, ...)"
        )
    if draft.needs.cache_of is not None and draft.needs.cache_of is not oracle:
        raise ValueError(
            f"draft {draft.name!r} drafts on the cache of the oracle that it was made with, and the decoder has "
            "another one: give the same object to both"
        )
    if draft.vocab_size is not None:
        check_vocabulary(draft.name, draft.vocab_size, None, oracle)


def check_logprobs(oracle: Oracle, return_logprobs: bool) -> None:
    """Raise ValueError if log-probabilities are asked of an oracle that knows none."""
    if return_logprobs and as_recorded(oracle) is not None:
        raise ValueError("return_logprobs=True needs the oracle's laws, and recorded text has none: leave it False")


def check_form(source: DraftSource, offers: Offers, draft: Draft, batch: int, oracle: Oracle) -> None:
    """Raise ValueError if a draft cannot be scored, as far as its shapes and types tell."""
    check_tensors(source, draft, batch)
    fault = None
    if draft.width > offers.max_nodes:
        fault = f"{draft.width} nodes a row are over the {offers.max_nodes} of offers.max_nodes"
    if draft.resume is not None and draft.resume.oracle is not oracle:
        fault = "resume goes on with the pass of another oracle than the decoder's"
    if fault is not None:
        raise ValueError(f"draft {source.name!r} is malformed: {fault}")


def check_ids(source: DraftSource, nodes: Tree, vocab_size: int) -> None:
    """Raise ValueError if the vocabulary lacks an id of a draft; those on a device are not waited for."""
    if not nodes.tokens.is_cpu:
        return
    ids = on_host(nodes.tokens)[:, 1:]
    numbers = to_list(ids.reshape(-1))
    if numbers and not 0 <= min(numbers) <= max(numbers) < vocab_size:
        row, node = (int(x[0]) for x in ((ids < 0) | (ids >= vocab_size)).nonzero())
        raise ValueError(
            f"draft {source.name!r} is malformed: id {ids[row, node]} of node {node}, padding included, must lie in "
            f"0..{vocab_size - 1}"
        )


def check_decision(
    source: DraftSource, rule: VerificationRule, draft: Draft, decision: Decision, evidence: Evidence, frame: Frame
) -> None:
    """Raise if the step's numbers mean nothing; oracle and source first, for a rule may rely on them.

    Raises:
        FloatingPointError: a law of the target is undefined, or one of a model that the source drafts with.
        ValueError: a draft's tree or one of its laws is broken, or the rule's verdict.
    """
    bad = evidence.bad_nodes
    if np.count_nonzero(bad) and (bad := bad & (np.arange(bad.shape[1]) <= decision.num_nodes[:, None])).any():
        row, node = (int(x[0]) for x in np.nonzero(bad))
        raise FloatingPointError(
            f"request {frame.requests[row]}: the oracle's logits at node {node} of the step that begins at position "
            f"{frame.context.num_committed[row]} hold NaN or +inf, or allow no token (all -inf after warping)"
        )
    names = draft.source_names or (source.name,)
    if evidence.undefined is not None and (evidence.undefined < NEVER).any():
        row, column = (int(x[0]) for x in np.nonzero(evidence.undefined < NEVER))
        raise FloatingPointError(
            f"draft {source.name!r}, request {frame.requests[row]}: the model of {names[column]!r} gave logits that "
            f"hold NaN or +inf for position {frame.context.num_committed[row] + evidence.undefined[row, column]}; "
            "check its weights"
        )
    walk, width = decision.walk, decision.tokens.shape[1]
    trees = decision.num_nodes, width, None if walk is None else walk.parents, decision.is_scout, decision.source
    _refuse(source, frame, _broken_trees(*trees, len(names)))
    if evidence.bad_laws is not None and evidence.bad_laws.any():
        row, node = (int(x[0]) for x in np.nonzero(evidence.bad_laws))
        raise ValueError(
            f"draft {source.name!r}, request {frame.requests[row]}: the law declared for draft node {node} does not "
            "sum to 1 (or holds NaN), or gives the node's own token no probability; declare the law that the token "
            "was drawn from"
        )
    for fault, wrong in _broken_verdicts(decision, evidence).items():
        if np.count_nonzero(wrong):
            raise ValueError(f"rule {rule.name!r}, request {frame.requests[_first_row(wrong)]}: its {fault}")


def check_trees(source: DraftSource, draft: Draft, nodes: Tree, frame: Frame) -> None:
    """Raise ValueError if a tree on the host is broken, before a rule relies on it; one on a device is not read."""
    if not nodes.tokens.is_cpu:
        return
    tokens, parents, num_nodes = nodes.arrays()
    scouts, sources = (None if part is None else on_host(with_root(part)) for part in (draft.is_scout, draft.source))
    faults = _broken_trees(num_nodes - 1, tokens.shape[1] - 1, parents, scouts, sources, len(draft.source_names) or 1)
    _refuse(source, frame, faults)


def _refuse(source: DraftSource, frame: Frame, faults: dict[str, BoolArray]) -> None:
    """Raise ValueError if some row has one of the faults of a source's trees."""
    for fault, wrong in faults.items():
        if np.count_nonzero(wrong):
            raise ValueError(f"draft {source.name!r}, request {frame.requests[_first_row(wrong)]}: {fault}")


def _first_row(wrong: BoolArray) -> int:
    """Return the first of the rows ``[B, ...]`` that hold True; one does."""
    return int(wrong.nonzero()[0][0])


def _broken_verdicts(decision: Decision, evidence: Evidence) -> dict[str, BoolArray]:
    """Return, for each fault that a verdict may have, ``[B, ...]`` bool: where the rows have it."""
    stop, probs = decision.stop, evidence.stop_probs
    outside = (stop < 0) | (stop > decision.num_nodes)
    if decision.is_scout is not None:
        node = np.clip(stop, 0, decision.is_scout.shape[1] - 1)
        outside |= np.take_along_axis(decision.is_scout, node[:, None], 1)[:, 0]
    faults = {}
    if probs is not None:
        barred = np.arange(probs.shape[1]) > decision.num_nodes[:, None]
        if decision.is_scout is not None:
            barred |= decision.is_scout
        outside = outside[:, None] | ((probs > 0) & barred)
        # NaN is told first: a draw from it may be anything.
        no_law = (probs < -SUM_TOLERANCE) | ~_is_law(probs.sum(1, keepdims=True))
        faults["stop_probs hold NaN or a negative number, or do not sum to 1"] = no_law
    faults["stop_probs give weight to padding, a scout or what is no node"] = outside
    if evidence.next_mass is not None:
        faults["next_law holds NaN, or does not sum to 1"] = ~_is_law(evidence.next_mass)
    return faults


def _is_law(mass: NDArray[np.float64]) -> BoolArray:
    """Return bool, of the same shape: whether numbers of this sum are a law; NaN is none."""
    return np.abs(mass - 1) <= SUM_TOLERANCE


def _broken_trees(
    size: IntArray,
    width: int,
    parents: IntArray | None,
    is_scout: BoolArray | None,
    source: IntArray | None,
    num_names: int,
) -> dict[str, BoolArray]:
    """Return, for each fault that a tree may have, ``[B]`` bool: the rows that have it.

    ``size`` ``[B]`` counts draft nodes; the others are of scored nodes ``[B, N+1]``, root first.
    """
    faults: dict[str, Any] = {f"num_nodes must lie in 0..{width}": (size < 0) | (size > width)}
    if parents is None and is_scout is None and source is None:
        return faults
    nodes = np.arange(1, width + 1)
    real, above = nodes <= size[:, None], np.broadcast_to(nodes - 1, (len(size), width))
    if parents is not None:
        above = parents[:, 1:]
        faults["a parent, of padding too, must be -1 or a smaller index"] = ((above < 0) | (above >= nodes)).any(1)
    if is_scout is not None:
        below_scout = np.take_along_axis(is_scout, np.clip(above, 0, width), 1)
        faults["a verified node hangs on a scout"] = (below_scout & ~is_scout[:, 1:] & real).any(1)
    if source is not None:
        wrong = ((source[:, 1:] < 0) | (source[:, 1:] >= num_names)) & real
        faults[f"source must lie in 0..{num_names - 1}, an index into source_names"] = wrong.any(1)
    return faults


def check_budget(source: DraftSource, decision: Decision, budget: Budget) -> None:
    """Raise ValueError if a source drafted more than it was allowed."""
    nodes, depth = decision.num_nodes, decision.draft_depth
    over = (depth > budget.max_depth) | (nodes > budget.max_nodes)
    if np.count_nonzero(over):
        row = _first_row(over)
        raise ValueError(
            f"draft {source.name!r} drafted {nodes[row]} nodes, {depth[row]} deep, over the budget of "
            f"{budget.max_nodes[row]} nodes and depth {budget.max_depth[row]}; its session must respect the budget"
        )
