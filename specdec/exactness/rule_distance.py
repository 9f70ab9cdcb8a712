"""A rule's law at one position, by algebra: over many ids, and in every form in which a draft can come to it."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from specdec.contracts import Draft, VerificationRule
from specdec.laws import Laws
from specdec.theory import check_count

# How a drafted token comes to its rule, and beside whom.
FORMS = {
    "drawn": "the token is drawn from its law",
    "zeros": "the target gives some ids no probability",
    "chosen": "the token is chosen, without a law",
    "greedy": "the requests are greedy",
    "mixed": "greedy and sampled requests share a batch",
    "alone": "a request is alone in its batch",
}
_HOST = torch.device("cpu")
_ALONE = 16  # ids, each in a call of its own


def rule_distance(rule: VerificationRule, vocab_size: int = 300) -> dict[str, float]:
    """Return how far the ids that a rule lets follow are from the target's law p, for each form of a draft.

    A rule is a pure function. So for drafts of one token every id x is drafted once, and the verdicts, weighted with
    the probability q(x) of drafting it, are summed: that is the law of what follows.

    Args:
        rule: that judges; its compiled judge is not asked.
        vocab_size: ids, 2 or more. Enumeration through the engine has 3 or 4: it does not see a rule that looks at the
            50 likeliest.

    Returns:
        For each of ``FORMS`` the total variation of the next id from p, plus that of the id behind the token, if it
        stands, from its own law ("chosen", "greedy": the worst id's). A form that the rule refuses with a ValueError
        is left out.

    Guarantee: of one position. A rule that errs from the second drafted token on, or among siblings, is not seen.
    Cost: O(vocab_size ** 2); 0.1 s at 300 ids.
    """
    check_count("vocab_size", vocab_size, least=2)
    found = {}
    for form in FORMS:
        try:
            found[form] = _distance(rule, form, min(vocab_size, _ALONE) if form == "alone" else vocab_size)
        except ValueError:
            continue
    return found


def _distance(rule: VerificationRule, form: str, size: int) -> float:
    """Return the distance of one form; see ``rule_distance``."""
    target, q = _laws(size, has_zeros=form in ("zeros", "mixed", "alone"))
    ids = torch.arange(size, device=_HOST)
    kinds = {"greedy": (True,), "mixed": (False, True)}.get(form, (False,))
    is_greedy = torch.tensor(kinds, device=_HOST).repeat_interleave(size)
    tokens, points = ids.repeat(len(kinds))[:, None], target.argmax(-1)
    asked = Laws(target, torch.where(is_greedy[:, None], -1, ids[:2]), points.expand(len(tokens), 2).clone())
    asked = Laws.points(asked.point) if form == "greedy" else asked
    laws = None if form in ("chosen", "greedy") else Laws(q[None], torch.zeros_like(tokens), tokens)
    draft = Draft(tokens, torch.ones_like(tokens[:, 0]), laws=laws)
    rows = torch.arange(len(tokens), device=_HOST)
    groups = rows[:, None] if form == "alone" else rows[None]
    judged = [_judge(rule, _rows(draft, some), asked[some], size) for some in groups]
    first, stands, second = (torch.cat(parts) for parts in zip(*judged, strict=True))
    weights = one_hot(ids, size).double() if laws is None else q[None]
    found = []
    for number, greedy in enumerate(kinds):
        wanted = one_hot(points, size).double() if greedy else target
        own = slice(number * size, (number + 1) * size)
        behind = stands[own] * (second[own] - wanted[1]).abs().sum(-1)
        off = (weights @ first[own] - wanted[0]).abs().sum(-1) + weights @ behind
        found.append(off.max() / 2)
    return float(torch.stack(found).max())


def _laws(size: int, has_zeros: bool) -> tuple[Tensor, Tensor]:
    """Return the target's laws ``[2, V]`` before and behind the token, and the law ``[V]`` that it is drawn from."""
    generator = torch.Generator(device=_HOST).manual_seed(0)
    laws = torch.rand(3, size, generator=generator, dtype=torch.float64, device=_HOST) ** 3
    if has_zeros:
        laws[:2, 1::4] = 0.0
    laws /= laws.sum(-1, keepdim=True)
    return laws[:2].contiguous(), laws[2]


def _rows(draft: Draft, rows: Tensor) -> Draft:
    """Return some rows of a draft of one token."""
    return Draft(draft.tokens[rows], draft.num_nodes[rows], laws=None if draft.laws is None else draft.laws[rows])


def _judge(rule: VerificationRule, draft: Draft, target: Laws, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the law ``[B, V]`` of the next id, whether the token stands ``[B]``, and the law ``[B, V]`` behind it."""
    verdict = rule(draft, target)
    rejects, stands = verdict.stop_probs.unbind(-1)
    # The next law is only defined at stops that can be.
    instead, behind = (
        verdict.next_law(stop).dense(size).double() for stop in ((rejects == 0).long(), (stands > 0).long())
    )
    token = one_hot(draft.tokens[:, 0], size).double()
    return token * stands[:, None] + instead * rejects[:, None], stands, behind
