"""Heads in training: they learn a frozen oracle's laws of the tokens that they will draft."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from oracles.factory.training.head_losses import PairedPredictions, mix, read_mixture
from oracles.factory.training.head_text import HeadText
from oracles.factory.training.lesson import Lesson, eager_reader
from oracles.factory.training.precision import autocast
from oracles.transformer.draft_vocabulary import column_of_id
from oracles.transformer.linear import linear_layers


@dataclass(frozen=True)
class Roots:
    """The pending tokens after which a head drafts in training.

    Attributes:
        row: ``[N]`` the window of each.
        at: ``[N]`` its place in that window, 1 at least: hidden states are known of the places before it.
    """

    row: Tensor
    at: Tensor


# Logits ``[M, R]`` over the ids that a head writes, and its confidences ``[M]`` if it has any.
Drafted = tuple[Tensor, Tensor | None]


class HeadDistillation(ABC):
    """A head that learns a frozen oracle's laws (``oracles.factory.training.tasks.Task``).

    Rows are T + 1 successive places in a text, not ids. Features and laws come from one pass of the oracle over a
    window, however many drafts begin in it. Drafted token j is learned after the text's own tokens, and counts
    ``discount ** j``.

    Args:
        lesson: what it learns from; the oracle's weights stay as they are.
        network: in training form.

    Source: total variation as a loss: Zhou et al. 2023 (arXiv 2310.08461).
    """

    def __init__(self, lesson: Lesson, network: nn.Module) -> None:
        oracle, ids = lesson.oracle.requires_grad_(False), lesson.target_ids
        self.lesson, self.oracle, self.model, self.text = lesson, oracle, network, lesson.text
        self.num_steps, self._mixture = lesson.num_steps, read_mixture(lesson.loss)
        self.weights = [lesson.discount**offset for offset in self.offsets.values()]
        for _, layer in (found for part in self.rounded_modules for found in linear_layers(part)):
            layer.learns_as = lesson.learn_as
        self._read = eager_reader(oracle, lesson.layers) if lesson.read is None else lesson.read
        self.target_ids = (torch.arange(oracle.vocab_size) if ids is None else ids).to(oracle.device)
        self.column_of = column_of_id(self.target_ids, oracle.vocab_size)

    @property
    @abstractmethod
    def identity(self) -> str:
        """What a resumed run must share besides recipe and batches."""

    @property
    def rounded_modules(self) -> Sequence[nn.Module]:
        """The parts of the network whose weights serving can round: all of it."""
        return [self.model]

    @property
    def offsets(self) -> dict[str, int]:
        """What ``draft`` yields, by its name in figures: the number of tokens between a root and the predicted one."""
        return {str(step + 1): step for step in range(self.num_steps)}

    def roots(self, counts: Tensor) -> Roots:
        """Return where drafts begin in windows; ``counts`` ``[B, T + 1]`` says which of their ids count.

        The last token of a draft is one of the T + 1 ids. By default, drafts begin at every place except the first.
        """
        num_rows, reach = len(counts), counts.shape[1] - 1 - self.num_steps
        row = torch.arange(num_rows, device=counts.device).repeat_interleave(reach)
        return Roots(row, torch.arange(1, 1 + reach, device=counts.device).repeat(num_rows))

    @abstractmethod
    def draft(
        self, layers: Sequence[Tensor], inputs: Tensor, roots: Roots, known: Sequence[Tensor]
    ) -> Iterator[Drafted]:
        """Yield the head's predictions of the tokens after N roots, in the order of ``offsets``.

        Args:
            layers: the oracle's hidden states ``[B, T, D]``, one for each layer.
            inputs: ``[B, T]`` ids.
            roots: from ``roots``.
            known: of each prediction, ``[N]`` bool, which M of the roots it is asked for: those whose draft counts up
                to its token.

        Returns:
            Of each, logits ``[M, R]`` over the ids that the head writes, and its confidences ``[M]``, or None.
        """

    def loss(self, rows: Tensor) -> Tensor:
        """Return the loss of places ``[B, T + 1]``, in the mixture's units per counted token."""
        parts = [
            weight * mix(self._mixture, said)
            for weight, said in zip(self.weights, self.predictions(rows, self.text), strict=True)
            if len(said.learnt)
        ]
        nothing = next(self.model.parameters()).sum() * 0
        return torch.stack(parts).sum() / sum(self.weights) if parts else nothing

    @torch.no_grad()
    def acceptance(self, text: HeadText, places: Tensor) -> dict[str, float]:
        """Return, by drafted position, how often the head's token is accepted if all before it are the text's.

        Args:
            text: the text of the places.
            places: ``[N, T + 1]`` of windows.

        Returns:
            By the names j of ``offsets``: "greedy_j", the share of places at which the likeliest ids of both are the
            same, and "drawn_j", the probability that a drawn token is accepted; NaN if nothing counts. For a head with
            confidences also "miscalibrated_j", see ``calibration_error``. "covered", the oracle's mass on the ids that
            the head writes, right after the roots.
        """
        parts: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
        for row in torch.split(places, 1):
            said_of = self.predictions(row.to(self.oracle.device), text)
            for (name, offset), said in zip(self.offsets.items(), said_of, strict=True):
                parts["same", name].append(said.learnt.argmax(-1) == said.likeliest_column)
                parts["stands", name].append(said.stands)
                if said.believed is not None:
                    parts["believed", name].append(said.believed)
                if offset == 0:
                    parts["covered", ""].append(said.taught.double().exp().sum(-1))
        whole = {key: torch.cat(part).double().cpu() for key, part in parts.items()}
        found = {}
        for name in self.offsets:
            found[f"greedy_{name}"] = whole["same", name].mean().item()
            found[f"drawn_{name}"] = whole["stands", name].mean().item()
            if ("believed", name) in whole:
                found[f"miscalibrated_{name}"] = calibration_error(whole["believed", name], whole["stands", name])
        return found | {"covered": whole["covered", ""].mean().item()}

    def predictions(self, rows: Tensor, text: HeadText) -> Iterator[PairedPredictions]:
        """Yield the predictions of head and oracle at each drafted position, see ``PairedPredictions``.

        A draft is followed as long as its ids count.

        Args:
            rows: ``[B, T + 1]`` successive places in the text: B windows, on the oracle's device.
            text: the text of the places.
        """
        places = rows.cpu()
        ids, counts = text.ids[places].long().to(rows.device), text.counts[places].to(rows.device)
        inputs = ids[:, :-1]
        with autocast(rows.device.type, self.lesson.precision):
            with torch.no_grad():
                found = [(*self._taught(logits), *layers) for layers, logits in self._read(inputs)]
                taught, likeliest, *layers = (torch.stack(part) for part in zip(*found, strict=True))
            roots, known = self.roots(counts), list[Tensor]()
            for offset in self.offsets.values():
                does_count = counts[roots.row, roots.at + 1 + offset]
                known.append(does_count & known[-1] if known else does_count)
            drafts = zip(self.offsets.values(), known, self.draft(layers, inputs, roots, known), strict=True)
            for offset, chosen, (logits, believed) in drafts:
                # The token after the root and ``offset`` others, of which the oracle says its law one place before.
                row, at = roots.row[chosen], roots.at[chosen] + offset
                after = self.column_of[ids[row, at + 1]]
                likely = self.column_of[likeliest[row, at]]
                yield PairedPredictions(logits.float().log_softmax(-1), taught[row, at], after, likely, believed)

    def _taught(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the oracle's log-probabilities ``[T, R]`` of the written ids and its likeliest ids ``[T]``."""
        return logits[:, self.target_ids] - logits.logsumexp(-1, keepdim=True), logits.argmax(-1)


def calibration_error(told: Tensor, found: Tensor) -> float:
    """Return the expected calibration error of confidences ``[M]``: over ten bins, the mean distance from outcomes.

    Args:
        told: confidences in 0..1.
        found: ``[M]`` their outcomes: 0 and 1, or probabilities.

    Returns:
        The sum over bins of share * abs(mean of told - mean of found); NaN if M is 0.

    Source: Guo et al. 2017 (arXiv 1706.04599).
    """
    if not len(told):
        return float("nan")
    bins = 10
    index = (told * bins).long().clamp(max=bins - 1)
    gaps = torch.zeros(bins, dtype=torch.float64).index_add(0, index, (told - found).double())
    return gaps.abs().sum().item() / len(told)
