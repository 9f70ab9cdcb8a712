"""Exit heads in training: adapters on several layers of a frozen oracle learn its laws from one pass of it."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from oracles.heads import Adapter
from oracles.tokenization import end_of_text_id
from oracles.transformer import Transformer


class ExitDistillation:
    """Adapters that learn to say after k layers what the oracle says after all of them.

    The loss is KL(oracle || head), averaged over tokens and summed over the heads, which share nothing but the pass.

    Args:
        oracle: in training form, on the device; its weights stay as they are.
        exits: the layers below each head.
        inner_size: width of every adapter.
        seed: of the adapters' initial weights.
    """

    def __init__(self, oracle: Transformer, exits: Iterable[int], inner_size: int, seed: int) -> None:
        self.oracle = oracle.requires_grad_(False)
        adapters = {str(k): Adapter(oracle.config, inner_size, seed) for k in exits}
        self.adapters = adapters
        self.model = nn.ModuleDict(adapters).to(oracle.device)
        self.identity = f"exit heads of width {inner_size} behind layers {', '.join(adapters)}"

    def loss(self, rows: Tensor) -> Tensor:
        """Return the summed divergences, in nats per token; the rows' last ids are not read."""
        with torch.autocast(rows.device.type, torch.bfloat16):
            with torch.no_grad():
                streams = self.oracle.streams(rows[:, :-1])
                taught = _log_probs(self.oracle.read_out(streams[-1]))
            parts = [_log_probs(self._logits(key, streams)) for key in self.adapters]
        divergences = [functional.kl_div(x, taught, reduction="batchmean", log_target=True) for x in parts]
        return torch.stack(divergences).sum()

    def _logits(self, key: str, streams: list[Tensor]) -> Tensor:
        return self.oracle.read_out(self.adapters[key](streams[int(key) - 1]))

    @torch.no_grad()
    def agreement(self, tokenizer: Tokenizer, texts: Iterable[str], length: int) -> dict[str, "Agreement"]:
        """Return how well each head agrees with the oracle on texts, and how well it would without its adapter.

        Args:
            tokenizer: the oracle's.
            texts: read in windows that do not overlap.
            length: of a window.

        Returns:
            By the heads' layers; those without the adapter under "k, bare".
        """
        total: dict[str, Agreement] = {}
        for text in texts:
            ids = torch.tensor([end_of_text_id(tokenizer), *tokenizer.encode(text).ids], device=self.oracle.device)
            for window in torch.split(ids, length):
                streams = self.oracle.streams(window[None])
                taught = self.oracle.read_out(streams[-1])
                for key in self.adapters:
                    for name, logits in (
                        (key, self._logits(key, streams)),
                        (f"{key}, bare", self.oracle.read_out(streams[int(key) - 1])),
                    ):
                        total[name] = total.get(name, Agreement()) + Agreement.between(taught, logits)
        return total


@dataclass(frozen=True)
class Agreement:
    """Sums over tokens of what a head and the oracle have in common.

    Attributes:
        num_tokens: positions looked at.
        same_best: those at which both have the same likeliest id: what greedy drafts get accepted, if the draft so far
            is what the text says.
        overlap: sum of Σ min(p, q), the same for draws at temperature 1.
        divergence: sum of KL(oracle || head) in nats.
    """

    num_tokens: int = 0
    same_best: float = 0.0
    overlap: float = 0.0
    divergence: float = 0.0

    @staticmethod
    def between(taught: Tensor, logits: Tensor) -> "Agreement":
        """Return the sums for logits ``[..., V]`` of both."""
        target, draft = (x.double().flatten(0, -2).log_softmax(-1) for x in (taught, logits))
        same = (target.argmax(-1) == draft.argmax(-1)).sum().item()
        overlap = torch.minimum(target, draft).exp().sum().item()
        divergence = functional.kl_div(draft, target, reduction="sum", log_target=True).item()
        return Agreement(len(target), same, overlap, divergence)

    def __add__(self, other: "Agreement") -> "Agreement":
        return Agreement(
            self.num_tokens + other.num_tokens,
            self.same_best + other.same_best,
            self.overlap + other.overlap,
            self.divergence + other.divergence,
        )


def _log_probs(logits: Tensor) -> Tensor:
    """Return ``[tokens, V]`` float32 log-probabilities."""
    return logits.float().flatten(0, -2).log_softmax(-1)
