"""What computes laws and draws by torch operations: the definition, and what runs if nothing is compiled."""

from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from specdec.contracts import Adjustments, FloatArray, IntArray
from specdec.kernels import draws
from specdec.kernels.compiled import NativeWalks
from specdec.kernels.draws import Streams
from specdec.kernels.filters import torch_probs
from specdec.laws import Laws
from specdec.transfers import on_device

PENALTIES = ("repetition", "presence", "frequency")


def _counts(ids: Tensor, counted: Tensor, drafted: Tensor) -> Tensor:
    """Return ``[R, M, V]`` occurrences: those of ids ``[R, L]`` marked by ``counted``, and the paths' ``drafted``."""
    base = torch.zeros(len(ids), drafted.shape[-1], dtype=drafted.dtype, device=drafted.device)
    return base.scatter_add_(1, ids, counted.to(drafted.dtype)).unsqueeze(1) + drafted


class Filters(Protocol):
    """The FILTERS of R rows, in the forms in which they are read; temperatures are above 0."""

    @property
    def filters(self) -> FloatArray:
        """``[F, R]`` on the host."""

    def filters_on(self, device: torch.device) -> list[Tensor]:
        """The same on a device, each of ``[R]`` float64."""


class Kernels:
    """What computes laws, penalties and draws: here by torch operations, which define them.

    A decoder has one object of them, which everything in it calls; see ``SpeculativeDecoder(kernels=...)``.

    Attributes:
        name: as users choose them.
        are_compiled: whether compiled code may make laws and drafts by itself, as these would be made here.
        walks: the compiled judges, which rules declare; None: rules judge by their ``__call__``.
    """

    name: ClassVar[str] = "reference"
    are_compiled: ClassVar[bool] = False
    walks: NativeWalks | None = None

    def laws(self, logits: Tensor, filters: Filters) -> Tensor:
        """Return the laws of logits ``[R, M, V]`` after temperature and filters.

        A row with NaN or +inf, or of -inf alone, gives a row of NaN.

        Guarantee: rows sum to 1 up to rounding; what a filter drops has probability exactly 0; the dtype is kept; a
            row's bits do not depend on what the other rows ask for.
        Cost: O(R M V).
        """
        return torch_probs(logits, filters.filters, filters.filters_on(logits.device))

    def penalise(self, logits: Tensor, tokens: Tensor, mask: Tensor, past: Adjustments) -> None:
        """Apply repetition, presence and frequency penalties in place.

        Args:
            logits: ``[B, M, V]``, contiguous.
            tokens: ``[B, N]`` drafted ids.
            mask: ``[B, M, N]`` bool, those on the path to each node.
            past: what stands before them, and the penalties.

        Cost: O(R (L + M V)) for R rows with penalties.
        """
        at, before, ends, prompts, penalties = (
            on_device(part, logits.device)
            for part in (past.rows_with_penalties, past.ids, past.num_committed, past.prompt_lengths, past.penalties)
        )
        columns = torch.arange(before.shape[1], device=logits.device)
        stands = columns < ends[at].unsqueeze(1)
        is_output = stands & (columns >= prompts[at].unsqueeze(1))
        standing = torch.where(stands, before[at], 0)
        shape = (len(at), mask.shape[1], logits.shape[-1])
        drafted = torch.zeros(shape, dtype=logits.dtype, device=logits.device)
        ids = tokens[at].unsqueeze(1).expand(-1, mask.shape[1], -1)
        drafted.scatter_add_(2, ids, mask[at].to(logits.dtype))
        produced = _counts(standing, is_output, drafted)
        seen = _counts(standing, stands, drafted) > 0
        repetition, presence, frequency = penalties[:, at].to(logits.dtype).unsqueeze(-1).unsqueeze(-1)
        values = logits[at]
        scaled = torch.where(values > 0, values / repetition, values * repetition)
        values = torch.where(seen & (repetition != 1), scaled, values)
        logits[at] = values - presence * (produced > 0) - frequency * produced

    def draw(self, laws: Laws, k: int, streams: Streams, purpose: int, node: Any) -> Tensor:
        """Return one id per law, or ``k`` without replacement in drawing order, along the running sums of the laws.

        Args:
            laws: ``[B]`` or ``[B, M]``.
            k: ids for each; -1 once a law is exhausted.
            streams: one per row.
            purpose: its code.
            node: an int, or integers that broadcast to the laws' shape.

        Returns:
            int64 of the laws' shape, with one dimension more for k > 1: ``[B, k]`` or ``[B, M, k]``.

        Cost: O(V) a law that is no point mass.
        """
        return draws.draw(laws, k, streams, purpose, node)

    def race(self, laws: Laws, k: int, keys: IntArray, positions: IntArray, depth: Any) -> Tensor:
        """Return one id per law, or the ``k`` best, by a race of exponentials keyed by position.

        Args:
            laws, k: see ``draw``.
            keys, positions: ``[B]``.
            depth: an int, or integers that broadcast to the laws' shape, added to the positions.

        Cost: O(V) a law, and a hash for each id that it allows.
        """
        return draws.race(laws, k, keys, positions, depth)

    def softmax(self, logits: Tensor) -> Tensor:
        """Return the float64 laws at temperature 1 of logits ``[..., V]``."""
        return logits.double().softmax(-1)

    def entropies(self, probs: Tensor) -> Tensor:
        """Return the entropies in nats, float64, of probabilities ``[..., V]``."""
        found: Tensor = torch.special.entr(probs.double()).sum(-1)
        return found
