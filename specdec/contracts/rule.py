"""The contract of a rule, which judges a draft, and the law of its decision."""

from dataclasses import Field, dataclass, field, fields, is_dataclass
from enum import Enum, IntEnum
from typing import Any, ClassVar, Protocol

from torch import Tensor

from specdec.contracts.draft import Draft
from specdec.laws import Laws


@dataclass(frozen=True)
class Verdict:
    """The law of a decision: where the walk through the draft stops, and what follows there.

    Attributes:
        stops: laws of shape ``[B]`` over scoring nodes 0..N (root first); scouts and padding have probability 0,
            and so has every stop whose next law would be undefined.
        width: N + 1, padding included.
    """

    stops: Laws
    width: int
    _next: Any = field(repr=False)

    @property
    def stop_probs(self) -> Tensor:
        """``[B, N+1]`` float64, rows sum to 1. Cost: O(B N), a copy."""
        return self.stops.dense(self.width).double()

    def next_law(self, stop: Tensor) -> Laws:
        """Return the law of the token after node ``stop[b]``, shape ``[B]``. Evaluated at the drawn stop only.

        Cost: the rule's; O(B V) if the residual of sampled rows is needed.
        """
        laws: Laws = self._next(stop)
        return laws


class NativeJudge(IntEnum):
    """A judge in compiled code: ``Way`` of ``specdec/kernels/cpp/verify.h``.

    OFFERED: the children of a node are offered one after the other, as ``MultiDraft`` does, and ``Standard`` on chains.
    MATCHED: an id is drawn from the target's law and matched with the children's, as ``SampleAndMatch`` does.
    STANDING: whole paths are asked whether they stand, as ``Traversal`` does, and ``BlockVerification`` on chains.
    """

    OFFERED = 0
    MATCHED = 1
    STANDING = 3


class Reads(Enum):
    """What the stops of a rule follow from; a replay whose records say too little for a rule refuses it in these words.

    DRAFTED: p and q of the drafted tokens; a replay gives the target's laws as tables, also where p is 1.
    SIBLINGS: if siblings were drawn from laws, whole laws too.
    DRAWN: if a token was drawn from a law, whole laws too.
    LAWS: whole laws.
    """

    DRAFTED = "p and q of the drafted tokens suffice"
    SIBLINGS = "siblings were drawn from laws, and what one leaves of the target's for the next takes whole laws"
    DRAWN = "what a drawn token leaves of the target's law takes whole laws"
    LAWS = "it may read whole laws: its class declares nothing else as `reads`"


class VerificationRule(Protocol):
    """A pure function from a draft and the target's laws to the law of the decision.

    What a rule can do is declared by its class, and is no constructor argument.
    """

    @property
    def name(self) -> str:
        """Its name, by which users choose it."""

    @property
    def lossless(self) -> bool:
        """Whether the output law is exactly the target's."""

    @property
    def trees(self) -> bool:
        """Whether the rule has a meaning on drafts that branch."""

    @property
    def coupled(self) -> bool:
        """Whether draws are keyed by absolute position alone, and target laws become the points so drawn.

        Sampled output then equals, token for token, that of plain decoding under the same rule, but not under another.
        """

    @property
    def native_judge(self) -> NativeJudge | None:
        """Which compiled judge has the law of ``__call__``; None: none has.

        A decoder compares the two before it uses the judge, which reads logits and draws by itself. A class that
        overrides ``__call__`` declares it anew: see ``Rule``.
        """

    def __call__(self, draft: Draft, target_laws: Laws | Tensor) -> Verdict:
        """Judge a draft.

        Args:
            draft: as proposed.
            target_laws: shape ``[B, N+1]``, the target's law at every node, or its probabilities ``[B, N+1, V]``.

        Raises:
            ValueError: the rule has no meaning on this draft; the message names one that has.
        """


class Rule:
    """What a rule says of itself unless it says otherwise: chains only, never coupled, judged by ``__call__``.

    A class that has a ``__call__`` of its own loses the native judge and the ``reads`` of the class that it derives
    from. ``reads`` says what a replay of the rule has to read; a rule without it is taken for one that reads all.
    """

    trees: ClassVar[bool] = False
    coupled: ClassVar[bool] = False
    native_judge: ClassVar[NativeJudge | None] = None
    reads: ClassVar[Reads] = Reads.LAWS

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if _declares_late(cls, "native_judge"):
            cls.native_judge = None
        if _declares_late(cls, "reads"):
            cls.reads = Reads.LAWS


def _declares_late(cls: type, name: str) -> bool:
    """Tell whether a class has its ``__call__`` from a nearer base than its attribute of this name."""
    own = [{"__call__", name} & vars(one).keys() for one in cls.__mro__]
    return next(filter(None, own)) == {"__call__"}


# What a rule says of itself; some say it in fields.
_DECLARED = ("name", "lossless", "trees", "coupled", "native_judge", "reads")


def rule_label(rule: VerificationRule) -> str:
    """Return a rule's name, with the parameters that it was made with: "typical(epsilon=0.09, delta=0.3)"."""
    given: tuple[Field[Any], ...] = fields(rule) if is_dataclass(rule) else ()
    told = ", ".join(f"{one.name}={getattr(rule, one.name)!r}" for one in given if one.name not in _DECLARED)
    return f"{rule.name}({told})" if told else rule.name


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
