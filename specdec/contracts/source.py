"""The contract of a draft source: the context it reads, its needs and offers, and its sessions."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np

from specdec.contracts.arrays import IntArray
from specdec.contracts.draft import Budget, Draft, form_fault
from specdec.contracts.drawing import Randomness, Warping
from specdec.contracts.oracle import Cache, Oracle, Scores
from specdec.contracts.oracle_kinds import DraftPrefixes
from specdec.theory import Calibration


@dataclass(frozen=True)
class Context:
    """What a source may read of the rows of one call.

    The arrays are the source's own: what it writes to them changes no output. What ``warping`` gives is the engine's.

    Attributes:
        ids: ``[B, L]`` prompt and output of each row; columns from ``num_committed[b]`` on are undefined.
        num_committed: ``[B]`` ids that stand, the pending token (the last of them) included.
        warping: the requests' warping, restricted to these rows.
        cache: the target's, for sources whose ``needs.cache_of`` asks for it. They may score and commit on it, and hand
            it back with the lengths that it had.
    """

    ids: IntArray
    num_committed: IntArray
    warping: Warping
    cache: Cache | None = None

    @property
    def pending(self) -> IntArray:
        """``[B]`` the last id of each row."""
        last: IntArray = self.ids[np.arange(len(self.ids)), self.num_committed - 1]
        return last

    def select(self, rows: IntArray) -> "Context":
        """Return what may be read of some rows ``[R]`` (indices into this batch)."""
        return replace(
            self, ids=self.ids[rows], num_committed=self.num_committed[rows], warping=self.warping.select(rows)
        )


@dataclass(frozen=True)
class Needs:
    """What a source asks of the engine: target logits, or hidden layers, handed to ``begin`` and ``sync``.

    Attributes:
        logits: those of every scored node.
        hidden: layers.
        prompt: ``begin`` gets those of the prompt, O(L V) memory for logits; False: it gets none.
        cache_of: the oracle on whose cache the source drafts, handed to ``propose`` in the context; the decoder's must
            be the same object. Such a source cannot serve inside another one.
    """

    logits: bool = False
    hidden: tuple[int, ...] = ()
    prompt: bool = True
    cache_of: Oracle | None = field(default=None, repr=False)

    @property
    def reads_prompts(self) -> bool:
        """Whether ``begin`` gets scores of whole prompts."""
        return self.prompt and (self.logits or bool(self.hidden))


@dataclass(frozen=True)
class Offers:
    """What a source declares.

    Attributes:
        trees: drafts may branch.
        laws: nodes are drawn from real laws (else: point masses).
        confidence: drafts carry confidences.
        reproducible: a request's output does not depend on its batch-mates, its slot or scheduling.
        adaptive: drafts depend on how the request's earlier drafts fared, not on its ids alone.
        calibration: measured figures that draft lengths depend on; stored in the result.
        max_depth: longest path ever drafted; a step whose budget is below it counts as shortened.
        max_nodes: upper bound of a draft's nodes (a chain's is its depth), for the cache's slack.
        nested: a draft within a smaller limit is the beginning of one within a larger limit; replays rely on it.
        paths: every node of the tree that it drafts within no limit, as the ranks of the siblings on its path (see
            ``TreeShape.paths``); None: not known beforehand. Reports draw acceptance by node from it.
    """

    trees: bool = False
    laws: bool = False
    confidence: bool = False
    reproducible: bool = True
    adaptive: bool = False
    calibration: Calibration | None = None
    max_depth: int = 0
    max_nodes: int = 0
    nested: bool = True
    paths: tuple[tuple[int, ...], ...] | None = None


class DraftSession(Protocol):
    """A source at work on one run: it holds the state of every row between calls.

    A class that names this one as its base need only write ``propose``: the rest is for sessions with a memory.

    ``rows`` are slots ``[B]`` of the run, as the cache numbers them; ``live``, ``places`` and what ``select`` takes are
    indices into the batch of a call. The arrays of a call are the session's own: writing to them changes no
    output.
    """

    def share(self, prefixes: DraftPrefixes) -> None:
        """Have draft models read only what is new in prompts: called before the first ``begin``, or not at all.

        Guarantee: drafts are the same as without.
        """
        return

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        """Take in new requests, after their prefill; what the rows held before is forgotten.

        Args:
            rows: ``[B]`` slots.
            prompts: ids ``[L]`` of each row.
            scores: those of the prompts without their last ids, ``[B, L, ...]`` as long as the longest, arbitrary
                beyond a row's own, if ``Needs`` asks for them and a prompt has two ids; else None.
        """
        return

    @abstractmethod
    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        """Draft a tree per row.

        Args:
            rows: ``[B]`` slots, distinct.
            context: of those rows.
            budget: of those rows; their trees stay within it.
            randomness: of those rows; whatever is drawn is drawn by it.

        Returns:
            A draft of ``[B, N]`` nodes, of any width N; 0 if no row drafts anything.
        """

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        """Learn what stands: the first ``keep[b]`` ids of the row, then ``new_ids[b]`` (``[B, M]``, -1 = padding).

        ``keep`` may be shorter than what the session has seen, by any amount. ``scores`` are those of the nodes drafted
        last, root first (of the root alone if the session was not asked for a draft; of a chain without its end if a
        shared budget has dropped that); None if the model that is drafted for has not scored them since. The root is
        the id before ``new_ids[:, 0]``: ``context.pending`` in ``propose``, else known to a session that keeps ids.
        A source that reads hidden layers is told in ``scores.path`` after which node each new id came.
        """
        return

    def end(self, rows: IntArray) -> None:
        """Forget finished requests, which sat in slots ``rows`` ``[B]``."""
        return

    def close(self) -> None:
        """Leave to later runs what they may know of this one: all its requests have ended.

        It is not called for a run that was abandoned, and it may be called again. A source that remembers across runs
        is read when a session is opened, and never in mid-run.
        """
        return


def close_session(session: DraftSession) -> None:
    """Close a session; one of another base, without a method of this name, leaves nothing to later runs."""
    getattr(session, "close", _nothing)()


def share_prefixes(session: DraftSession, prefixes: DraftPrefixes) -> None:
    """Let a session's models share what they read; one of another base, without a ``share``, reads all by itself."""
    getattr(session, "share", _nothing)(prefixes)


def _nothing(*_: object) -> None:
    return


@runtime_checkable
class DraftSource(Protocol):
    """A way of drafting; ``open`` starts a run."""

    @property
    def name(self) -> str:
        """Its name in records and messages."""

    @property
    def needs(self) -> Needs:
        """What it asks of the engine."""

    @property
    def offers(self) -> Offers:
        """What it declares."""

    @property
    def vocab_size(self) -> int | None:
        """The vocabulary drafted from; None: whatever ids the prompts hold. Another one is refused."""

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> DraftSession:
        """Return a session for a run of ``num_rows`` slots of at most ``capacity`` ids each."""


def check_source(source: object, argument: str) -> None:
    """Raise ValueError, naming the argument, if something other than a draft source is given, such as a name."""
    check_kind(source, argument, "a draft source", _SOURCE_PARTS, "drafts.PromptLookup()")


_SOURCE_PARTS = ("name", "needs", "offers", "vocab_size", "open")


def check_kind(given: object, argument: str, kind: str, parts: Sequence[str], example: str) -> None:
    """Raise ValueError, naming the argument and what is missing, if an object lacks a part of its contract.

    A property that raises AttributeError is there; the error comes out where it is read.

    Args:
        given: what was handed in.
        argument: its name.
        kind: what it was to be, with its article.
        parts: names of the attributes and methods that such objects have.
        example: one of them.
    """
    lacks = [part for part in parts if not (hasattr(type(given), part) or hasattr(given, part))]
    if not lacks and not isinstance(given, type):
        return
    said, missing = f"of type {type(given).__name__}", ""
    if isinstance(given, type):
        said = f"the class {given.__name__}"
    elif isinstance(given, str | int | float):
        said = repr(given)
    elif len(lacks) < len(parts):
        missing = f": it lacks {', '.join(lacks)}"
    raise ValueError(f"{argument} is {said}, not {kind}{missing}; give an object, such as {example}")


def check_tensors(source: DraftSource, draft: Draft, batch: int) -> None:
    """Raise ValueError if the shapes and types of a source's answer are not those of a draft for ``batch`` rows."""
    fault = form_fault(draft, batch)
    if fault is not None:
        raise ValueError(f"draft {source.name!r} is malformed: {fault}")
