"""EAGLE-3 heads in training: they learn an oracle's laws by running on over their own features."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from oracles.factory.training.features import Reader, eager_reader
from oracles.factory.training.head_export import head_rows
from oracles.factory.training.head_text import HeadText
from oracles.factory.training.precision import autocast
from oracles.factory.training.unrolled import unroll
from oracles.heads import Eagle3Network
from oracles.transformer.draft_vocabulary import column_of_id
from oracles.transformer.eager import Transformer


@dataclass(frozen=True)
class Said:
    """What head and oracle say at M places.

    Attributes:
        learnt: ``[M, R]`` log-probabilities of the head, over the ids that it writes.
        taught: ``[M, R]`` those of the oracle's whole law, at the same ids.
        next_column: ``[M]`` the column of the id that the text has there, -1 if the head does not write it.
        likeliest_column: ``[M]`` that of the oracle's likeliest id, likewise.
    """

    learnt: Tensor
    taught: Tensor
    next_column: Tensor
    likeliest_column: Tensor


def kl(said: Said) -> Tensor:
    """Return KL(oracle || head) in nats a place; what the oracle expects of ids that the head cannot write is left out.

    The head's law is zero there, and the divergence infinite whatever the head learns.
    """
    probs = said.taught.exp()
    return (probs * (said.taught - said.learnt)).sum(-1).mean()


def tv(said: Said) -> Tensor:
    """Return the total variation from the oracle's whole law: 1 less the probability that a drawn token stands."""
    probs = said.taught.exp()
    return ((said.learnt.exp() - probs).abs().sum(-1) + 1 - probs.sum(-1)).mean() / 2


def ce(said: Said) -> Tensor:
    """Return the cross entropy of the text's own ids, in nats a place; ids that the head cannot write are left out."""
    written = said.next_column >= 0
    picked = said.learnt.gather(1, said.next_column.clamp(min=0).unsqueeze(1))[:, 0]
    return -(picked * written).sum() / written.sum().clamp(min=1)


LOSSES: dict[str, Callable[[Said], Tensor]] = {"kl": kl, "tv": tv, "ce": ce}


class Eagle3Distillation:
    """A head that learns what a frozen oracle says (``oracles.factory.training.tasks.Task``).

    Rows are places in a text, T + 1 side by side, and no ids. Features and laws come of one pass of the oracle. The
    loss is that of the first node and of those which the head reaches by its own features, weighted ``discount ** j``.

    Args:
        oracle: in training form, on the device; its weights stay as they are.
        network: of ``new_eagle3``.
        layers: whose outputs it reads.
        target_ids: what it writes; None: all ids.
        text: what is read.
        num_steps: nodes of a chain, k.
        loss: a key of ``LOSSES``.
        discount: by which a further node counts less.
        precision: of the matrix products.
        read: the pass that features and laws come of; None: the oracle's own, in that precision.

    Raises:
        ValueError: an unknown loss.

    Source: Li et al. 2025 (EAGLE-3, arXiv 2503.01840); total variation: Zhou et al. 2023 (arXiv 2310.08461).
    """

    def __init__(
        self,
        oracle: Transformer,
        network: Eagle3Network,
        layers: tuple[int, ...],
        target_ids: Tensor | None,
        text: HeadText,
        num_steps: int,
        loss: str,
        discount: float,
        precision: str,
        read: Reader | None = None,
    ) -> None:
        if loss not in LOSSES:
            raise ValueError(f"loss is {loss!r}; choose one of {', '.join(LOSSES)}")
        ids = torch.arange(oracle.vocab_size) if target_ids is None else target_ids
        self.oracle, self.model, self.text = oracle.requires_grad_(False), network, text
        self.num_steps, self.precision = num_steps, precision
        self._read = eager_reader(oracle, layers) if read is None else read
        self._loss, self.weights = LOSSES[loss], [discount**step for step in range(num_steps)]
        self.target_ids = ids.to(oracle.device)
        self.column_of = column_of_id(self.target_ids, oracle.vocab_size)
        self._borrowed = head_rows(oracle, ids) if network.lm_head is None else None
        self.identity = (
            f"eagle3 head by {loss}, {num_steps} steps, discount {discount}, layers {layers}, {len(ids)} ids, "
            f"{'own' if self._borrowed is None else 'borrowed'} head, {len(text.ids)} tokens of text"
            f"{'' if read is None else ', served'}"
        )

    def loss(self, rows: Tensor) -> Tensor:
        """Return the loss of places ``[B, T + 1]``, in nats (total variation: a probability) per counted token."""
        parts = [
            weight * self._loss(said)
            for weight, said in zip(self.weights, self._said(rows, self.text), strict=True)
            if len(said.learnt)
        ]
        return torch.stack(parts).sum() / sum(self.weights) if parts else self.model.norm.weight.sum() * 0

    @torch.no_grad()
    def acceptance(self, text: HeadText, places: Tensor) -> dict[str, float]:
        """Return by drafted position how often the head's token stands where all before it are the text's.

        Args:
            text: that the places are in.
            places: ``[N, T + 1]`` of windows.

        Returns:
            "greedy_j", the share of places at which the likeliest ids of both are the same, and "drawn_j", the
            probability that a drawn token stands, for j = 1 .. ``num_steps``; NaN if nothing counts.
        """
        sums = torch.zeros(3, self.num_steps, dtype=torch.float64)
        for row in torch.split(places, 1):
            for step, said in enumerate(self._said(row.to(self.oracle.device), text)):
                same = said.learnt.argmax(-1) == said.likeliest_column
                kept = torch.minimum(said.learnt, said.taught).exp().sum(-1)
                sums[:, step] += torch.stack([same.sum(), kept.sum(), torch.tensor(len(kept))]).double().cpu()
        found = {}
        for step, (same_sum, kept_sum, count) in enumerate(sums.t().tolist(), start=1):
            found[f"greedy_{step}"] = same_sum / count if count else float("nan")
            found[f"drawn_{step}"] = kept_sum / count if count else float("nan")
        return found

    def _said(self, rows: Tensor, text: HeadText) -> Iterator[Said]:
        """Yield what is said after each step, at the places that count."""
        places = rows.cpu()
        ids, counts = text.ids[places].long().to(rows.device), text.counts[places].to(rows.device)
        inputs, reach = ids[:, :-1], ids.shape[1] - 1 - self.num_steps
        with autocast(rows.device.type, self.precision):
            with torch.no_grad():
                found = [(*self._taught(logits), *layers) for layers, logits in self._read(inputs)]
                taught, likeliest, *layers = (torch.stack(part) for part in zip(*found, strict=True))
            known = torch.ones_like(counts[:, :reach])
            for step, stream in enumerate(unroll(self.model, self.oracle.embed, layers, inputs, self.num_steps)):
                # Root r says token r + 2 + step, of which the oracle says its law one place before.
                known = known & counts[:, 2 + step : 2 + step + reach]
                law = slice(1 + step, 1 + step + reach)
                learnt = self._written(self.model.norm(stream[known])).float().log_softmax(-1)
                after = self.column_of[ids[:, 2 + step : 2 + step + reach][known]]
                yield Said(learnt, taught[:, law][known], after, self.column_of[likeliest[:, law][known]])

    def _taught(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the oracle's log-probabilities ``[T, R]`` of the written ids and its likeliest ids ``[T]``."""
        return logits[:, self.target_ids] - logits.logsumexp(-1, keepdim=True), logits.argmax(-1)

    def _written(self, normed: Tensor) -> Tensor:
        """Return logits ``[M, R]`` of the ids that the head writes."""
        rows = self._borrowed
        if rows is None:
            assert self.model.lm_head is not None
            assert self.model.lm_head.weight is not None
            rows = self.model.lm_head.weight[: len(self.target_ids)]
        return functional.linear(normed, rows)
