"""Exit heads in training: adapters on several layers of a frozen oracle learn its laws from one pass of it."""

from collections.abc import Iterable

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from oracles.checkpoints.tokenization import end_of_text_id
from oracles.factory.evaluation.agreement import Agreement
from oracles.factory.training.precision import autocast
from oracles.factory.training.tasks import forward_kl, log_probs
from oracles.transformer.blocks import Adapter
from oracles.transformer.eager import Transformer


class ExitDistillation:
    """Adapters that learn to say after k layers what the oracle says after all of them.

    The loss is KL(oracle || head), averaged over tokens and summed over the heads, which share nothing but the pass.

    Args:
        oracle: in training form, on the device; its weights stay as they are.
        exits: the layers below each head.
        inner_size: width of every adapter.
        seed: of the adapters' initial weights.
        precision: of the matrix products.
    """

    def __init__(self, oracle: Transformer, exits: Iterable[int], inner_size: int, seed: int, precision: str) -> None:
        self.oracle, self.precision = oracle.requires_grad_(False), precision
        adapters = {str(k): Adapter(oracle.config, inner_size, seed) for k in exits}
        self.adapters = adapters
        self.model = nn.ModuleDict(adapters).to(oracle.device)
        self.identity = f"exit heads of width {inner_size} behind layers {', '.join(adapters)}"

    def loss(self, rows: Tensor) -> Tensor:
        """Return the summed divergences, in nats per token; the rows' last ids are not read."""
        with autocast(rows.device.type, self.precision):
            with torch.no_grad():
                streams = self.oracle.streams(rows[:, :-1])
                taught = log_probs(self.oracle.read_out(streams[-1]))
            parts = [log_probs(self._logits(key, streams)) for key in self.adapters]
        return torch.stack([forward_kl(part, taught) for part in parts]).sum()

    def _logits(self, key: str, streams: list[Tensor]) -> Tensor:
        return self.oracle.read_out(self.adapters[key](streams[int(key) - 1]))

    @torch.no_grad()
    def agreement(self, tokenizer: Tokenizer, texts: Iterable[str], length: int) -> dict[str, Agreement]:
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
