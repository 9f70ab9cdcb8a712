"""The contract of an oracle, a model that scores trees, and that of its cache."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from specdec.contracts.arrays import IntArray
from specdec.laws import argmax
from specdec.transfers import on_device


class ChatEncoder(Protocol):
    """Turns conversations into prompts; ``specdec.prompts.chat.ChatTemplate`` is one."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids that end an answer; empty if none is known."""

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts that end an answer too, and are cut off."""

    def encode(self, messages: Any) -> list[int]:
        """Return the ids of a list of messages, up to where the answer begins.

        Raises:
            ValueError: a message is unusable; gives its number.
        """


Want = Literal["all", "last", "none"]

# Nodes of a row in one pass, the pending token included, up to which ``Oracle.bitwise`` speaks.
BITWISE_NODES = 128


# Ids of the largest logits, and these logits.
Likeliest = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Scores:
    """What a scoring pass returns.

    Attributes:
        logits: ``[B, N+1, V]`` for ``want="all"``, ``[B, 1, V]`` for ``"last"``, None for ``"none"``. Never below
            float32. -inf is legal (a banned id). None too from a ``RecordedOracle``, which gives ``likeliest`` alone.
        hidden: one ``[B, N+1, D]`` tensor per layer asked for.
        likeliest: the ids of the largest logits and these logits, each of the shape of the logits without V: the lowest
            of equals, the first NaN. None: the model did not search for them; ``best`` does.
        path: ``[B, M]`` the node after which each of a row's new ids came, so that ``path[b, 0]`` is the root; any
            node after the last id. Told to ``DraftSession.sync``, whose M it is, if the source reads hidden layers.
    """

    logits: Tensor | None
    hidden: tuple[Tensor, ...] = ()
    likeliest: Likeliest | None = None
    path: IntArray | None = None

    @property
    def best(self) -> Likeliest:
        """``likeliest``; if the model did not search for them, they are searched for here. Cost: then O(V) a node."""
        if self.likeliest is not None:
            return self.likeliest
        assert self.logits is not None
        return argmax(self.logits)

    def detach(self) -> "Scores":
        """Return scores that no gradients are taken of, for a model that is still being trained."""
        logits = None if self.logits is None else self.logits.detach()
        likeliest = None if self.likeliest is None else (self.likeliest[0], self.likeliest[1].detach())
        return Scores(logits, tuple(layer.detach() for layer in self.hidden), likeliest)

    def gather(self, nodes: IntArray) -> "Scores":
        """Return the scores of some nodes ``[B, K]`` of each row, without a path. Cost: a copy, O(B K V)."""

        def along(values: Tensor) -> Tensor:
            at = on_device(nodes, values.device)
            return values.gather(1, at.unsqueeze(-1).expand(-1, -1, values.shape[-1]))

        likeliest = None
        if self.likeliest is not None:
            ids, best = self.likeliest
            likeliest = ids.gather(1, on_device(nodes, ids.device)), best.gather(1, on_device(nodes, best.device))
        layers = tuple(along(layer) for layer in self.hidden)
        return Scores(None if self.logits is None else along(self.logits), layers, likeliest)

    @staticmethod
    def concat(parts: Sequence["Scores"]) -> "Scores":
        """Return the scores of successive nodes of the same rows side by side. Cost: a copy of all of them."""
        logits = [part.logits for part in parts if part.logits is not None]
        hidden = tuple(torch.cat(layers, dim=1) for layers in zip(*(part.hidden for part in parts), strict=True))
        return Scores(torch.cat(logits, dim=1) if logits else None, hidden)


class Cache(Protocol):
    """Keys and values (or whatever a model remembers) of ``num_rows`` sequences, preallocated.

    ``lengths[r]`` counts the tokens of row r whose keys are cached; the pending token is not among them, so
    ``num_committed = lengths + 1`` between steps. Rollback is "the length did not advance".
    """

    @property
    def num_rows(self) -> int:
        """Sequences that it has room for."""

    @property
    def capacity(self) -> int:
        """Slots per row; a scoring call of M nodes on row r needs ``lengths[r] + M <= capacity``."""

    @property
    def lengths(self) -> IntArray:
        """``[num_rows]`` on the host. Read-only for callers."""

    @property
    def bytes(self) -> int:
        """Memory of the payload."""

    def commit(self, rows: IntArray, path: Tensor | None, num_kept: IntArray) -> None:
        """Keep the first ``num_kept[b]`` nodes of ``path[b]`` of the last scoring call, root first.

        ``path`` ``[B, M]``, on the host, holds node indices of the scoring call, increasing along a row; None: a chain
        (node i is the i-th): then only lengths change and no memory moves.
        """

    def truncate(self, rows: IntArray, lengths: IntArray) -> None:
        """Roll ``rows`` ``[B]`` back to ``lengths`` ``[B]`` (never longer than they are)."""

    def reset(self, rows: IntArray) -> None:
        """Empty ``rows`` ``[B]`` for new occupants; nothing a predecessor left, NaN included, can reach them."""


class Oracle(Protocol):
    """A model that scores trees of tokens on its own cache (target or draft model alike).

    One of your own derives from ``OracleDefaults``, which supplies what it need not say, and writes ``new_cache`` and
    ``score``; ``oracles.TabularLM`` is a short one.
    """

    @property
    def vocab_size(self) -> int:
        """True vocabulary: padded logits are cut to it before they are returned."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a request; empty if there is none."""

    @property
    def max_context(self) -> int:
        """Positions that it can serve: prompt and output together."""

    @property
    def tokenizer(self) -> Any | None:
        """A ``tokenizers.Tokenizer`` or None (prompts must then be ids)."""

    @property
    def chat_template(self) -> ChatEncoder | None:
        """How conversations become prompts; None: prompts are texts or ids. An oracle that does not say so has none."""

    @property
    def device(self) -> torch.device:
        """Where its tensors lie, and where those handed to ``score`` must lie, except ids: see ``ids_device``."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of its arithmetic."""

    @property
    def backend(self) -> str:
        """Name of the code that computes its passes ("native", "eager", ...); results report it."""

    @property
    def bitwise(self) -> bool:
        """Whether scores were checked to be bitwise independent of width, tree, batch and chunking.

        It speaks of passes of at most ``BITWISE_NODES`` nodes a row, the pending token included; wider ones may differ.
        """

    @property
    def weight_bytes(self) -> int:
        """Memory of its weights."""

    @property
    def num_layers(self) -> int:
        """Layers between which a pass can be cut, as ``LayeredOracle`` spells out; 0: it cannot be cut."""

    @property
    def chains(self) -> bool:
        """Whether it drafts chains and trees by itself, as ``ChainingOracle`` spells out."""

    @property
    def is_recorded(self) -> bool:
        """Whether it repeats recorded texts, as ``RecordedOracle`` spells out; one that does not say so is a model."""

    @property
    def cache_format(self) -> Hashable | None:
        """What its caches hold, and how: oracles of equal formats can score on each other's. None: only it can."""

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> Any:
        """Return an empty cache. Raises ValueError if it would exceed ``max_cache_bytes``."""

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
    ) -> Scores:
        """Score trees of nodes in one pass.

        Node i of row b stands at position ``cache.lengths[rows[b]] + depth[i]`` and sees the committed prefix, its
        ancestors and itself. The nodes' keys are left in the cache after the prefix; ``cache.commit`` keeps some.

        Tensors that are given are read and never written: the walk through the draft compares these very ids. What is
        returned is the caller's: no later pass writes to it, so a buffer that passes share is copied first.
        ``specdec.exactness.check_oracle`` checks an oracle of one's own.

        Args:
            tokens: ``[B, M]`` int64; node 0 is the pending token. Padding nodes may hold any valid id. They, parents
                and counts lie on the oracle's device, see ``ids_device``.
            parents: ``[B, M]`` int64, -1 for a root (it follows the committed prefix: node 0, and others if a draft
                grows after a pending token that is cached), else below the node's own index; None for chains.
            num_nodes: ``[B]`` int64, how many nodes of each row are real (1..M).
            cache: one that ``new_cache`` returned, or that of an oracle with an equal ``cache_format``.
            rows: ``[B]`` the cache rows, distinct.
            want: logits of all nodes, of the last real node of each row, or none.
            hidden: layers whose outputs are returned beside the logits.
            first: how many of every row's first nodes were scored by calls since the last commit, so that their keys
                lie after the prefix; only the others are scored, and M - first nodes are returned. So a tree grows
                level by level.

        Cost: a pass over the model's weights and the rows' keys; O(B M V) memory for the logits of all nodes. Nothing
        waits for the device.
        """


class OracleDefaults:
    """What an oracle says of itself unless it says otherwise.

    An oracle that does not derive from it need not have these: see ``capability_of``. To override what is a property
    here, use an attribute of the class or a property, not an attribute that ``__init__`` sets.

    Attributes:
        chat_template, is_recorded: see ``Oracle``.
        num_experts: how many a layer chooses from: the wider a pass, the more of them it reads.
        ids_device: where the ids, parents and counts that ``score`` takes lie, if it brings them to its device by
            itself.
        chains_on_device: whether it drafts chains on its device, as ``DeviceChainingOracle`` spells out.
        adjusts: see ``ChainingOracle``.
        counts: an object with its counts of passes, under the names that ``specdec.engine.metering`` lists; None: it
            counts none.
    """

    chat_template: Any = None
    is_recorded: bool = False
    num_experts: int = 1
    ids_device: torch.device | None = None
    chains_on_device: bool = False
    adjusts: bool = False
    counts: Any = None

    @property
    def prefix_key(self) -> Hashable | None:
        """See ``specdec.contracts.PrefixOracle``; None: its caches cannot share beginnings."""
        return None

    @property
    def hidden_layers(self) -> int:
        """How many layers there are whose outputs ``score(hidden=...)`` returns."""
        return 0

    @property
    def hidden_size(self) -> int:
        """The width of these outputs; 0: it does not say."""
        return 0

    @property
    def num_layers(self) -> int:
        """See ``Oracle``; 0: a pass cannot be cut."""
        return 0

    @property
    def chains(self) -> bool:
        """See ``Oracle``; False: it drafts nothing by itself."""
        return False

    @property
    def cache_format(self) -> Hashable | None:
        """See ``Oracle``; None: no other oracle scores on its caches."""
        return None


_DEFAULTS = OracleDefaults()


def capability_of(oracle: object, part: str) -> Any:
    """Return what an oracle says of one of the attributes of ``OracleDefaults``, or the default if it does not say."""
    return getattr(oracle, part, getattr(_DEFAULTS, part))


def ids_device(oracle: Oracle) -> torch.device:
    """Return the device of the ids, parents and counts that an oracle's ``score`` takes."""
    device: torch.device = capability_of(oracle, "ids_device") or oracle.device
    return device


def describe_oracle(oracle: Oracle, *more: str) -> str:
    """Return what a user wants to know of an oracle, on one line: vocabulary, context, how passes are run, weights.

    Args:
        oracle: is named by its class.
        more: what else there is to say.
    """
    parts = [
        f"vocabulary {oracle.vocab_size:,}",
        f"context {oracle.max_context:,}",
        f"{oracle.backend} passes in {str(oracle.dtype).removeprefix('torch.')} on {oracle.device}",
        f"weights of {oracle.weight_bytes / 1e6:,.1f} MB",
    ]
    bits = ["bitwise"] if oracle.bitwise else []
    return f"{type(oracle).__name__}({', '.join([*parts, *more, *bits])})"
