"""From laws to drawn verdicts: by a rule, or by the compiled judge that it declares."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import Budget, Draft, DraftKernels, Randomness, Verdict, VerificationRule
from specdec.kernels.compiled import Fault, NativeWalks, OtherKind, PackedDrafts, Way
from specdec.laws import Laws
from specdec.transfers import all_on_host, on_host
from specdec.verify.native_judge import confirm_judge


@dataclass(frozen=True)
class DrawnVerdict:
    """A verdict and the draws from it, on the device of the draft.

    Attributes:
        stops: ``[B]`` laws over the nodes, as the rule gave them.
        drawn_stop: ``[B]`` drawn from them; a point may lie anywhere, so it must be checked before it counts as a node.
        stop: ``[B]`` the same, within the nodes.
        next_law: ``[B]`` of the token after the stop.
        next_ids: ``[B]`` drawn from it.
    """

    stops: Laws
    drawn_stop: Tensor
    stop: Tensor
    next_law: Laws
    next_ids: Tensor


def verify(rule: VerificationRule, draft: Draft, laws: Laws, randomness: Randomness) -> DrawnVerdict:
    """Verify a draft by a rule, and draw where the walk stops and what follows there.

    Args:
        rule: gives the law of the decision.
        draft: trees of ``[B, N]`` nodes.
        laws: ``[B, N+1]`` of the model that verifies. In coupled mode ids are drawn from them, and compared.
        randomness: of the rows; draws for "target", "stop" and "next".

    Raises:
        ValueError: the rule returns no verdict on these nodes.

    Cost: that of the rule, and two draws (in coupled mode N + 1 more). No host synchronisation.
    """
    tree = draft.tree
    if randomness.coupled:
        laws = Laws.points(randomness.choose(laws, np.arange(tree.size), tree.depth, "target"))
    if rule.lossless and not draft.width:
        return _verify_without_nodes(draft, laws[:, 0], randomness)
    verdict = rule(draft, laws)
    _check_form(rule, verdict, draft)
    drawn = randomness.choose(verdict.stops, 0, 0, "stop")
    stop = drawn.clamp(0, draft.width)
    next_law = verdict.next_law(stop)
    next_ids = randomness.choose(next_law, 0, tree.depth_of(stop), "next")
    return DrawnVerdict(verdict.stops, drawn, stop, next_law, next_ids)


def _verify_without_nodes(draft: Draft, law: Laws, randomness: Randomness) -> DrawnVerdict:
    """Verify drafts without a node, as every lossless rule does: stop at the root, draw from ``law`` ``[B]``."""
    root = torch.zeros_like(draft.num_nodes)
    return DrawnVerdict(Laws.points(root), root, root, law, randomness.choose(law, 0, root, "next"))


def _check_form(rule: VerificationRule, verdict: Verdict, draft: Draft) -> None:
    """Raise ValueError if a verdict cannot be drawn from; reads no tensor."""
    if not isinstance(verdict, Verdict):
        raise ValueError(f"rule {rule.name!r} returned {type(verdict).__name__}; return a Verdict")
    stops, wanted = verdict.stops, (len(draft.num_nodes), draft.width + 1)
    shape = (*stops.shape, wanted[1] if stops.all_points else stops.table.shape[1])
    if shape != wanted:
        raise ValueError(
            f"rule {rule.name!r}: stops have the shape {shape}, not that of the nodes, root first: {wanted}"
        )


class ChainVerifier:
    """Verify chains by given laws, for a model that is not a decoder's target.

    Args:
        rule: a lossless rule.
        kernels: whose compiled judge verifies if the rule declares one that decides as it does, and numbers lie on the
            CPU; else the rule does.

    Warns:
        JudgeDiffers: see ``confirm_judge``.
    """

    def __init__(self, rule: VerificationRule, kernels: DraftKernels) -> None:
        self._rule, self._walks, self._judge = rule, kernels.walks, confirm_judge(rule, kernels.walks)

    def __call__(
        self, draft: Draft, laws: Laws, randomness: Randomness, columns: Mapping[str, Tensor | None]
    ) -> dict[str, Any]:
        """Return what becomes of chains ``[B, N]``, on the host.

        Args:
            draft: what was drafted; its faults are not reported.
            laws: ``[B, N+1]`` of the model.
            randomness: of the rows.
            columns: what else comes to the host.

        Returns:
            ``tokens`` ``[B, N+1]``, those accepted and the next one (what follows is arbitrary); ``counts`` ``[B]``
            how many these are; ``num_nodes`` ``[B]`` of the draft; and the columns.

        Cost: see the rule; one copy to the host.
        """
        found = self._natively(draft, laws, randomness)
        if found is not None:
            numbers = {"tokens": found.block, "counts": found.accepted + 1, "num_nodes": found.num_nodes}
            return numbers | all_on_host(columns)
        made = verify(self._rule, draft, laws, randomness)
        stop = made.stop.unsqueeze(1)
        tokens = torch.nn.functional.pad(draft.tokens, (0, 1)).scatter(1, stop, made.next_ids.unsqueeze(1))
        own = {"tokens": tokens, "counts": made.stop + 1, "num_nodes": draft.num_nodes}
        return all_on_host(own | dict(columns))

    def _natively(self, draft: Draft, laws: Laws, randomness: Randomness) -> PackedDrafts | None:
        """Return what becomes of chains in one call; None if no compiled judge can."""
        if self._judge is None or self._walks is None or not draft.tokens.is_cpu or not laws.index.is_cpu:
            return None
        numbers = None
        try:
            way = Way.RACED if randomness.coupled else Way(self._judge)
            packed = _pack(self._walks, draft, laws, way, self._rule.name)
            if packed.way is not None:
                numbers = randomness.verdict_numbers(len(draft.tokens), packed)
                if numbers is None:
                    return None
            packed.draw(numbers)
        except (Fault, OtherKind):
            return None
        return packed


def _pack(walks: NativeWalks, draft: Draft, laws: Laws, way: Way, rule: str) -> PackedDrafts:
    """Return drafts as compiled code reads them, with given laws ``[B, N+1]``, ready to be drawn.

    Raises:
        OtherKind: numbers are of other kinds than compiled code reads.
    """
    nodes = draft.after(np.zeros(len(draft.num_nodes), dtype=np.int64))
    batch, width = nodes.tokens.shape
    most, ends = np.full(batch, width), np.zeros(batch, dtype=np.bool_)
    decides: dict[str, Any] = {} if laws.all_points else {"way": way, "laws": laws, "rule": rule}
    packed = PackedDrafts(walks, replace(draft, undefined=None), nodes, Budget(most, most), ends, **decides)
    packed.take(on_host(laws.point), np.zeros((batch, width), on_host(laws.table[:0]).dtype))
    return packed
