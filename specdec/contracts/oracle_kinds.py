"""Contracts of oracles that can do more, or know less: passes cut between layers, shared prompts, recorded texts."""

from collections.abc import Hashable, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from torch import Tensor

from specdec.contracts.arrays import IntArray
from specdec.contracts.oracle import Cache, Oracle, Scores, Want, capability_of


class LayeredOracle(Oracle, Protocol):
    """An oracle whose pass can be cut between two of its ``num_layers``: the parts give the bits of the whole."""

    def read_out(self, stream: Tensor) -> Tensor:
        """Return logits ``[R, V]`` from a residual stream ``[R, D]``, read as if it came after the last layer."""

    def last_norm(self, stream: Tensor) -> Tensor:
        """Return a residual stream ``[R, D]`` as the head reads one that comes after the last layer: normed."""

    def score(
        self,
        tokens: Tensor,
        parents: Tensor | None,
        num_nodes: Tensor,
        cache: Any,
        rows: IntArray,
        want: Want = "all",
        hidden: Sequence[int] = (),
        first: int = 0,
        *,
        layers: tuple[int, int] | None = None,
        stream: Tensor | None = None,
    ) -> Scores:
        """Score trees of nodes in one pass, or in a part of one.

        Args:
            tokens, parents, num_nodes, cache, rows, hidden, first: see ``Oracle.score``.
            want: "none" if the last layer is not among those run.
            layers: (lowest, last): run the layers lowest .. last - 1, which write their own keys only. The layers below
                must have scored the same nodes of the same rows, in one pass or in several. None: all.
            stream: ``[B, M, D]`` the residual stream of the nodes before layer ``lowest``, if that is above 0;
                finite for padding too.
        """


@runtime_checkable
class LayerHead(Protocol):
    """A head that was made for one place in a stack of layers, and says which."""

    @property
    def num_layers(self) -> int:
        """How many layers are below it: it reads the residual stream after these."""

    def __call__(self, stream: Tensor) -> Tensor:
        """Return logits ``[R, V]`` from a residual stream ``[R, D]``."""


class RecordedOracle(Oracle, Protocol):
    """An oracle whose output is known beforehand, because somebody recorded it.

    Its ``score`` returns no logits but ``Scores.likeliest`` alone, so nothing of the vocabulary's size is ever made. A
    node whose whole path (ids that stand, ancestors, itself) is the beginning of a record with its whole prompt has the
    recorded id that follows; any other node may have any id, for it cannot stand: one of its ancestors, or the node
    itself, is not what was recorded, so no verdict enters it.

    What reads logits is refused: temperatures above 0, penalties and biases, ``return_logprobs``, sources that need
    them, and drafting with such an oracle.
    """

    def recorded_length(self, prompt: IntArray, name: str) -> int:
        """Return how many ids, of prompt and output together, the record of a prompt ``[L]`` has: its row ends there.

        Args:
            prompt: ids.
            name: of the prompt, for the message.

        Raises:
            ValueError: no record has this prompt.
        """


def as_recorded(oracle: Oracle) -> RecordedOracle | None:
    """Return an oracle of recorded texts as such; None: it is a model."""
    return cast(RecordedOracle, oracle) if capability_of(oracle, "is_recorded") else None


def check_model(model: object, argument: str) -> None:
    """Raise ValueError, naming the argument, if something other than a model is given, such as a name."""
    if isinstance(model, type) or not hasattr(model, "vocab_size"):
        raise ValueError(f"{argument}={model!r} is no model: give what oracles.load returns")


def check_has_laws(oracle: Oracle, who: str) -> None:
    """Raise ValueError if an oracle of recorded texts is given to what reads laws or times of passes."""
    if as_recorded(oracle) is not None:
        raise ValueError(f"{who} needs a model, and recorded text is none: give the model that wrote it")


class PrefixOracle(Oracle, Protocol):
    """An oracle whose caches are tables of pages of a memory that they may share."""

    @property
    def prefix_key(self) -> Hashable:
        """What the contents of pages depend on beside ids: the model, its weights, their dtype, the arithmetic."""

    @property
    def page_bytes(self) -> int:
        """Bytes of a page of a memory."""

    def new_memory(self, num_pages: int) -> Any:
        """Return an empty ``specdec.cache.PageMemory``."""

    def cache_on(self, memory: Any, num_rows: int, capacity: int) -> Any:
        """Return a ``specdec.cache.PagedCache`` on a memory of ``new_memory``, whose rows have no pages yet."""


class PromptRows(Protocol):
    """The rows of a draft model's cache in one run: they may begin with what is known of a text."""

    @property
    def cache(self) -> Cache:
        """Their cache."""

    def begin(self, rows: IntArray, texts: Sequence[IntArray]) -> None:
        """Empty rows for new occupants; ``cache.lengths`` says how many ids of each text are already there.

        Args:
            rows: ``[B]`` of the cache.
            texts: ids ``[L]`` that each row is about to read.
        """

    def keep(self, rows: IntArray, texts: Sequence[IntArray]) -> None:
        """Learn what stands in rows. Later rows may find it, so these rows are not cut back into its full pages.

        Args:
            rows: ``[B]`` of the cache.
            texts: ids ``[L]`` that stand in each row, from its first slot on.
        """

    def end(self, rows: IntArray, texts: Sequence[IntArray]) -> None:
        """Learn what stands in rows ``[B]`` whose requests have ended; arguments as in ``keep``."""


class DraftPrefixes(Protocol):
    """What a decoder keeps, from one run to the next, of the texts that draft models have read."""

    def rows_of(self, model: Oracle, num_rows: int, num_slots: int) -> PromptRows | None:
        """Return rows for a run of a model; None: the rows of its caches are not tables of pages."""
