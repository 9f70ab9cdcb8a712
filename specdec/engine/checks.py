"""What the engine refuses: pairs that cannot work together, malformed drafts, laws and verdicts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specdec.contracts import (
    NEVER,
    BoolArray,
    Draft,
    DraftSource,
    IntArray,
    Offers,
    Oracle,
    Tree,
    VerificationRule,
    as_recorded,
    check_rule,
    check_source,
    check_vocabulary,
    form_fault,
    with_root,
)
from specdec.engine.outcome import StepOutcome
from specdec.engine.state import Frame
from specdec.engine.verification import SUM_TOLERANCE, Evidence
from specdec.kernels.compiled import Fault, FaultCode
from specdec.transfers import on_host

_OF_ORACLES = (
    *("vocab_size", "eos_ids", "max_context", "tokenizer", "device", "dtype", "new_cache", "score"),
    *("backend", "bitwise", "weight_bytes"),
)


def check_oracle(oracle: Oracle) -> None:
    """Raise ValueError if an oracle lacks an attribute that steps or results read."""
    missing = [part for part in _OF_ORACLES if not hasattr(oracle, part)]
    if missing:
        raise ValueError(
            f"oracle={oracle!r} lacks {', '.join(missing)}: give what oracles.load returns, or an object that fulfils "
            "specdec.contracts.Oracle"
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
            f"draft {draft.name!r} branches and rule {rule.name!r} judges chains only; use rule='multi_draft', "
            "'traversal' or 'sample_and_match'"
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
    """Raise ValueError if ``return_logprobs`` is not a bool, or if the oracle has no log-probabilities."""
    if not isinstance(return_logprobs, bool | np.bool_):
        raise ValueError(f"return_logprobs={return_logprobs!r} must be True or False")
    if return_logprobs and as_recorded(oracle) is not None:
        raise ValueError("return_logprobs=True needs the oracle's laws, and recorded text has none: leave it False")


def check_form(source: DraftSource, offers: Offers, draft: Draft, batch: int, oracle: Oracle) -> None:
    """Raise ValueError if a draft's shapes, its types or (on the host) its ids show that it cannot be scored."""
    fault, size = form_fault(draft, batch), oracle.vocab_size
    if fault is None and draft.tokens.shape[1] > offers.max_nodes:
        fault = f"{draft.width} nodes a row are over the {offers.max_nodes} of offers.max_nodes"
    if fault is None and draft.resume is not None and draft.resume.oracle is not oracle:
        fault = "resume goes on with the pass of another oracle than the decoder's"
    if fault is None and draft.laws is not None:
        rows, *width = draft.laws.table.shape
        if rows and width != [size]:
            fault = f"laws.table {(rows, *width)} must hold a probability for each of the oracle's {size} ids"
    if fault is not None:
        raise ValueError(f"draft {source.name!r} is malformed: {fault}")
    if draft.tokens.is_cpu:
        ids = draft.tokens.numpy()
        numbers = ids.reshape(-1).tolist()
        if numbers and not 0 <= min(numbers) <= max(numbers) < size:
            row, node = _first((ids < 0) | (ids >= size))
            raise _foreign_id(source, int(ids[row, node]), node, size)


def _foreign_id(source: DraftSource, token: int, node: int, vocab_size: int) -> ValueError:
    return ValueError(
        f"draft {source.name!r} is malformed: id {token} of node {node}, padding included, must lie in "
        f"0..{vocab_size - 1}"
    )


def scores_error(oracle: Oracle, logits: Tensor, wanted: tuple[int, ...]) -> ValueError:
    """Return the error to raise for logits whose shape is not the one that a pass asked for.

    Args:
        oracle: that scored them.
        logits: as it returned them.
        wanted: the shape asked for, that of ``[B, N+1, V]``.
    """
    return ValueError(
        f"oracle of type {type(oracle).__name__} scored logits of the shape {tuple(logits.shape)}, not {wanted}: give "
        "one for each row, each node and each of the vocab_size ids; cut those that pad the vocabulary"
    )


def draft_error(fault: Fault, source: DraftSource, draft: Draft, frame: Frame, vocab_size: int = 0) -> Exception:
    """Return the error to raise for a fault of a step, whoever found it.

    Args:
        fault: what is wrong, and where.
        source, draft: who drafted, and what.
        frame: the step's.
        vocab_size: the oracle's; read only if an id is wrong.
    """
    code, row, node = fault.code, fault.row, fault.node
    request, position = frame.seated.requests[row], frame.num_committed[row]
    names = draft.source_names or (source.name,)
    if code is FaultCode.LOGITS:
        return FloatingPointError(
            f"request {request}: the oracle's logits at node {node} of the step that begins at position {position} "
            "hold NaN or +inf, or allow no token (all -inf after warping)"
        )
    if code is FaultCode.MODEL:
        assert draft.undefined is not None
        return FloatingPointError(
            f"draft {source.name!r}, request {request}: the model of {names[node]!r} gave logits that hold NaN or "
            f"+inf for position {position + int(draft.undefined[row, node])}; check its weights"
        )
    if code is FaultCode.TOKEN:
        return _foreign_id(source, int(draft.tokens[row, node - 1]), node - 1, vocab_size)
    if code is FaultCode.BUDGET:
        return ValueError(
            f"draft {source.name!r} drafted {int(draft.num_nodes[row])} nodes, {node} deep, over the budget of "
            f"{frame.budget.max_nodes[row]} nodes and depth {frame.budget.max_depth[row]}; its session must respect "
            "the budget"
        )
    told = _describe_row(code, draft, row, node - 1, len(names))
    return ValueError(f"draft {source.name!r}, request {request}: {told}")


def _describe_row(code: FaultCode, draft: Draft, row: int, node: int, num_names: int) -> str:
    """Return what the message says of a draft node's fault, besides source and request."""
    if code is FaultCode.COUNT:
        return f"num_nodes must lie in 0..{draft.width}"
    if code is FaultCode.PARENT:
        return "a parent, of padding too, must be -1 or a smaller index"
    if code is FaultCode.SCOUT:
        return "a verified node hangs on a scout"
    if code is FaultCode.SOURCE:
        return f"source must lie in 0..{num_names - 1}, an index into source_names"
    assert draft.laws is not None
    if code is FaultCode.TABLE:
        index, rows = int(draft.laws.index[row, node]), draft.laws.table.shape[0]
        return f"laws.index of draft node {node}, padding included, is {index}, and laws.table has {rows} rows"
    return (
        f"the law declared for draft node {node} does not sum to 1 (or holds NaN), or gives the node's own token no "
        "probability; declare the law that the token was drawn from"
    )


def check_decision(
    source: DraftSource, rule: VerificationRule, draft: Draft, outcome: StepOutcome, evidence: Evidence, frame: Frame
) -> None:
    """Raise if a step's numbers mean nothing. Oracle and source are checked before the rule, which may rely on them.

    Raises:
        FloatingPointError: a law of the target is undefined, or one of a model that the source drafts with.
        ValueError: a draft's tree, one of its laws or the rule's verdict is broken, or the draft is over its budget.
    """
    bad = evidence.bad_nodes
    if np.count_nonzero(bad) and (bad := bad & (np.arange(bad.shape[1]) <= outcome.num_nodes[:, None])).any():
        raise draft_error(Fault(FaultCode.LOGITS, *_first(bad)), source, draft, frame)
    if evidence.undefined is not None and (evidence.undefined < NEVER).any():
        raise draft_error(Fault(FaultCode.MODEL, *_first(evidence.undefined < NEVER)), source, draft, frame)
    walk, width = outcome.walk, outcome.tokens.shape[1]
    trees = outcome.num_nodes, width, None if walk is None else walk.parents, outcome.is_scout, outcome.source
    _refuse(source, draft, frame, _broken_trees(*trees, len(draft.source_names) or 1))
    if evidence.bad_laws is not None and evidence.bad_laws.any():
        row, node = _first(evidence.bad_laws)
        raise draft_error(Fault(FaultCode.LAW, row, node + 1), source, draft, frame)
    for what, wrong in _broken_verdicts(outcome, evidence).items():
        if np.count_nonzero(wrong):
            raise ValueError(f"rule {rule.name!r}, request {frame.seated.requests[_first(wrong)[0]]}: its {what}")
    depth = outcome.draft_depth
    over = (depth > frame.budget.max_depth) | (outcome.num_nodes > frame.budget.max_nodes)
    if np.count_nonzero(over):
        row = _first(over)[0]
        raise draft_error(Fault(FaultCode.BUDGET, row, int(depth[row])), source, draft, frame)


def check_nodes(source: DraftSource, draft: Draft, nodes: Tree, frame: Frame) -> None:
    """Raise ValueError if a draft on the host is broken, before a rule relies on it; one on a device is not read."""
    if not nodes.tokens.is_cpu:
        return
    parents = None if nodes.parents is None else on_host(nodes.parents)
    scouts, sources = (None if part is None else on_host(with_root(part)) for part in (draft.is_scout, draft.source))
    trees = on_host(nodes.num_nodes) - 1, nodes.size - 1, parents, scouts, sources
    faults = _broken_trees(*trees, len(draft.source_names) or 1)
    _refuse(source, draft, frame, faults)
    if draft.laws is not None:
        beyond = on_host(draft.laws.index) >= draft.laws.table.shape[0]
        if beyond.any():
            row, node = _first(beyond)
            raise draft_error(Fault(FaultCode.TABLE, row, node + 1), source, draft, frame)


def _refuse(source: DraftSource, draft: Draft, frame: Frame, faults: dict[FaultCode, BoolArray]) -> None:
    """Raise ValueError if some row has one of the faults of a source's trees."""
    for code, wrong in faults.items():
        if np.count_nonzero(wrong):
            raise draft_error(Fault(code, _first(wrong)[0], 0), source, draft, frame)


def _first(wrong: BoolArray) -> tuple[int, ...]:
    """Return the place of the first True in ``[B, ...]``; there is one."""
    return tuple(int(at[0]) for at in wrong.nonzero())


def _broken_verdicts(outcome: StepOutcome, evidence: Evidence) -> dict[str, BoolArray]:
    """Return, for each fault that a verdict may have, ``[B, ...]`` bool: where the rows have it."""
    stop, probs = evidence.drawn_stop, evidence.stop_probs
    outside = (stop < 0) | (stop > outcome.num_nodes)
    if outcome.is_scout is not None:
        node = np.clip(stop, 0, outcome.is_scout.shape[1] - 1)
        outside |= np.take_along_axis(outcome.is_scout, node[:, None], 1)[:, 0]
    faults = {}
    if probs is not None:
        barred = np.arange(probs.shape[1]) > outcome.num_nodes[:, None]
        if outcome.is_scout is not None:
            barred |= outcome.is_scout
        outside = outside[:, None] | ((probs > 0) & barred)
        # NaN is reported first: a draw from it may be anything.
        no_law = (probs < -SUM_TOLERANCE) | ~_is_law(probs.sum(1, keepdims=True))
        faults["stop_probs hold NaN or a negative number, or do not sum to 1"] = no_law
    faults["stop_probs give weight to padding, a scout or what is no node"] = outside
    if evidence.next_mass is not None:
        faults["next_law holds NaN, or does not sum to 1"] = ~_is_law(evidence.next_mass)
    return faults


def _is_law(mass: NDArray[np.float64]) -> BoolArray:
    """Return bool of the same shape: whether numbers with this sum are a law; with a NaN they are not."""
    return np.abs(mass - 1) <= SUM_TOLERANCE


def _broken_trees(
    size: IntArray,
    width: int,
    parents: IntArray | None,
    is_scout: BoolArray | None,
    source: IntArray | None,
    num_names: int,
) -> dict[FaultCode, BoolArray]:
    """Return, for each fault that a tree may have, ``[B]`` bool: the rows that have it.

    ``size`` ``[B]`` counts draft nodes; the other arguments describe scored nodes ``[B, N+1]``, root first.
    """
    faults: dict[FaultCode, Any] = {FaultCode.COUNT: (size < 0) | (size > width)}
    if parents is None and is_scout is None and source is None:
        return faults
    nodes = np.arange(1, width + 1)
    real, above = nodes <= size[:, None], np.broadcast_to(nodes - 1, (len(size), width))
    if parents is not None:
        above = parents[:, 1:]
        faults[FaultCode.PARENT] = ((above < 0) | (above >= nodes)).any(1)
    if is_scout is not None:
        below_scout = np.take_along_axis(is_scout, np.clip(above, 0, width), 1)
        faults[FaultCode.SCOUT] = (below_scout & ~is_scout[:, 1:] & real).any(1)
    if source is not None:
        wrong = ((source[:, 1:] < 0) | (source[:, 1:] >= num_names)) & real
        faults[FaultCode.SOURCE] = wrong.any(1)
    return faults
