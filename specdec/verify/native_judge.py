"""Whether the compiled judge that a rule declares has the law of its ``__call__``: compared before it is used."""

import warnings
from functools import cache
from typing import Any

import numpy as np
import torch

from specdec.contracts import BoolArray, Budget, Draft, NativeJudge, VerificationRule
from specdec.kernels.compiled import FILTERS, NEUTRAL, Fault, NativeWalks, PackedDrafts, Way
from specdec.laws import Laws
from specdec.transfers import HOST, on_host
from specdec.verify.registry import RULES

_BATCH, _WIDTH, _SIZE = 24, 6, 4
_NEAR = 1e-12


class JudgeDiffers(UserWarning):
    """A rule declares a compiled judge that decides otherwise than its ``__call__``, which is used instead."""


def confirm_judge(rule: VerificationRule, native: NativeWalks | None) -> NativeJudge | None:
    """Return the compiled judge that a rule declares, if kernels have it and its law is that of ``__call__``.

    Warns:
        JudgeDiffers: its law is a different one.

    Cost: some verdicts on two dozen small drafts, a few milliseconds; once in a process for the rules known by name.
    """
    if native is None or rule.native_judge is None:
        return None
    kind: Any = type(rule)
    if RULES.get(rule.name) is rule:
        why = _cached_disagreement(rule.name, kind.__call__, rule.native_judge, rule.trees, native)
    else:
        why = _disagreement(rule, native)
    if why is None:
        return rule.native_judge
    warnings.warn(
        f"rule {rule.name!r} declares the native judge {rule.native_judge.name}, but {why}; __call__ judges. If that "
        "is meant, declare native_judge = None",
        JudgeDiffers,
        stacklevel=4,
    )
    return None


@cache
def _cached_disagreement(name: str, call: Any, declared: NativeJudge, trees: bool, native: NativeWalks) -> str | None:
    """Return ``_disagreement`` of the rule of a name; equal arguments are compared once."""
    return _disagreement(RULES[name], native)


def _disagreement(rule: VerificationRule, native: NativeWalks) -> str | None:
    """Return how a rule and the judge that it declares disagree; None: they agree."""
    some, every = np.arange(_BATCH) % 4 == 3, np.full(_BATCH, True)
    forms = [
        (is_tree, *how) for is_tree in {False, rule.trees} for how in ((True, some), (False, some), (False, every))
    ]
    found = (_difference(rule, native, _draft(is_tree, is_drawn), greedy) for is_tree, is_drawn, greedy in forms)
    return next((why for why in found if why is not None), None)


def _difference(rule: VerificationRule, native: NativeWalks, draft: Draft, is_greedy: BoolArray) -> str | None:
    """Return how verdicts on the same drafts, in rows that are greedy or not, differ; None: they do not."""
    logits = _logits()
    try:
        told = _native_law(rule, native, logits, draft, is_greedy)
    except Fault as fault:
        return f"it refuses drafts that are sound: {fault}"
    try:
        return _distance(rule, _target(logits, is_greedy), draft, *(torch.from_numpy(part) for part in told))
    except Exception as error:  # whatever a user's rule raises here, a run with it raises again
        return f"__call__ raises {type(error).__name__}: {error}"


def _distance(
    rule: VerificationRule, target: Laws, draft: Draft, stops: torch.Tensor, following: torch.Tensor
) -> str | None:
    """Return how a rule's verdict differs from a law; None: it does not."""
    verdict = rule(draft, target)
    if not torch.allclose(verdict.stop_probs, stops, rtol=0, atol=_NEAR):
        return "its law of the stop is another one than that of __call__"
    for node in range(_WIDTH + 1):
        reached = stops[:, node] > 0
        law = verdict.next_law(torch.full((_BATCH,), node, device=HOST)).dense(_SIZE)[reached].double()
        own = following[reached, node]
        if not torch.allclose(law, own / own.sum(-1, keepdim=True), rtol=0, atol=_NEAR):
            return "its law of the next token is another one than that of __call__"
    return None


@cache
def _logits() -> torch.Tensor:
    """Return the target's logits ``[B, N+1, V]``, some of which are bans."""
    generator = np.random.default_rng(7)
    logits = generator.normal(0, 1.5, (_BATCH, _WIDTH + 1, _SIZE))
    logits[generator.random(logits.shape) < 0.1] = -np.inf
    logits[:, :, 0] = 0.0
    return torch.from_numpy(logits)


@cache
def _draft(is_tree: bool, is_drawn: bool) -> Draft:
    """Return ragged drafts: trees with scouts, two sources and ids drawn without replacement, or chains."""
    generator = np.random.default_rng(8)
    nodes = _BATCH, _WIDTH
    probs = generator.random((_BATCH * _WIDTH, _SIZE)) + 0.05
    probs[generator.random(probs.shape) < 0.1] = 0
    probs[:, 1] += 0.1
    table = torch.from_numpy(probs / probs.sum(1, keepdims=True))
    drawn = [int(generator.choice(_SIZE, p=law)) for law in probs / probs.sum(1, keepdims=True)]
    tokens = torch.tensor(drawn, device=HOST).view(nodes)
    laws = Laws(table, torch.arange(_BATCH * _WIDTH, device=HOST).view(nodes), tokens) if is_drawn else None
    sizes = torch.from_numpy(
        np.where(np.arange(_BATCH) < 3, np.arange(_BATCH), generator.integers(3, _WIDTH + 1, _BATCH))
    )
    if not is_tree:
        return Draft(tokens, sizes, laws=laws)
    above = np.array(
        [[generator.integers(max(-1, node - 4), max(node - 1, 0)) for node in range(_WIDTH)] for _ in range(_BATCH)]
    )
    scouts = generator.random(nodes) < 0.15
    for row, node in np.ndindex(nodes):  # no verified node stands below a scout
        scouts[row, node] |= above[row, node] >= 0 and bool(scouts[row, above[row, node]])
    source, without = (torch.from_numpy(generator.random(nodes) < share) for share in (0.4, 0.8))
    return Draft(
        tokens,
        sizes,
        torch.from_numpy(above),
        laws=laws,
        is_scout=torch.from_numpy(scouts),
        source=source.long(),
        source_names=("a", "b"),
        without_replacement=without if is_drawn else None,
    )


def _target(logits: torch.Tensor, is_greedy: BoolArray) -> Laws:
    """Return the laws of logits: the points of the likeliest ids in greedy rows."""
    if is_greedy.all():
        return Laws.points(logits.argmax(-1))
    table = logits.softmax(-1).flatten(0, 1)
    index = torch.arange(len(table), device=HOST).view(logits.shape[:2])
    return Laws(table, index.masked_fill(torch.from_numpy(is_greedy).unsqueeze(1), -1), logits.argmax(-1))


def _native_law(
    rule: VerificationRule,
    native: NativeWalks,
    logits: torch.Tensor,
    draft: Draft,
    is_greedy: BoolArray,
) -> tuple[Any, Any]:
    """Return the law of the judge that a rule declares; see ``PackedDrafts.law``. Raises Fault."""
    assert rule.native_judge is not None
    nodes, most = draft.after(np.zeros(_BATCH, dtype=np.int64)), np.full(_BATCH, _WIDTH)
    filters = np.repeat([[NEUTRAL[name]] for name in FILTERS], _BATCH, axis=1)
    filters[FILTERS.index("temperature"), is_greedy] = 0
    rows, way = (Budget(most, most), np.zeros(_BATCH, np.bool_)), Way(rule.native_judge)
    packed = PackedDrafts(native, draft, nodes, *rows, way=way, filters=filters, tolerance=1e-9)
    peaks, ids = logits.max(-1)
    packed.take(on_host(ids), on_host(peaks), logits)
    return packed.law()
