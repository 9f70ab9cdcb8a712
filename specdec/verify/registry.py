"""The registry of rules, ``RULES``: a new one is a file beside this one, an entry of ``_ALL`` and an export."""

from specdec.contracts import VerificationRule
from specdec.verify.block import BlockVerification
from specdec.verify.multi_draft import MultiDraft
from specdec.verify.sample_and_match import CoupledMatch, SampleAndMatch
from specdec.verify.standard import Standard
from specdec.verify.traversal import Traversal
from specdec.verify.typical import Typical

_ALL: tuple[VerificationRule, ...] = (
    Standard(),
    SampleAndMatch(),
    CoupledMatch(),
    MultiDraft(),
    BlockVerification(),
    Traversal(),
    Typical(),
)
RULES: dict[str, VerificationRule] = {rule.name: rule for rule in _ALL}


def resolve_rule(rule: str | VerificationRule) -> VerificationRule:
    """Return the rule of that name, or the object itself.

    Raises:
        ValueError: an unknown name, or something that cannot judge, such as a class; lists the known names.
    """
    if callable(rule) and not isinstance(rule, type):
        return rule
    if not isinstance(rule, str) or rule not in RULES:
        raise ValueError(f"rule={rule!r} is unknown; choose one of {', '.join(sorted(RULES))} or pass a rule object")
    return RULES[rule]
