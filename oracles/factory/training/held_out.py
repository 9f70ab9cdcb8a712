"""Held-out bits per byte of a checkpoint."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from oracles.checkpoints.tokenization import end_of_text_id
from oracles.transformer.eager import Transformer

MAX_WINDOW = 1024
# Positions in a pass.
TOKENS_AT_ONCE = 4096


def bits_per_byte(model: Transformer, tokenizer: Tokenizer, texts: Iterable[str]) -> float:
    """Return the bits that the model spends on a byte of the texts.

    Every text follows an end-of-text token; its own end is not counted. A token is predicted from at least half a
    window before it, or from all that there is.

    Args:
        model: in float32.
        tokenizer: the model's.
        texts: whole files, read in windows of up to ``MAX_WINDOW`` positions that overlap by half.

    Cost: one pass over up to twice the tokens; windows of one length share passes of ``TOKENS_AT_ONCE``.
    """
    length, end = min(MAX_WINDOW, model.config.max_context), end_of_text_id(tokenizer)
    waiting: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
    nats, num_bytes = 0.0, 0
    for text in tqdm(texts, desc="bits per byte", unit="text"):
        num_bytes += len(text.encode())
        for window, num_known in _windows(torch.tensor([end, *tokenizer.encode(text).ids]), length):
            alike = waiting[len(window), num_known]
            alike.append(window)
            if len(alike) * len(window) >= TOKENS_AT_ONCE:
                nats += _nats(model, torch.stack(alike), num_known)
                alike.clear()
    nats += sum(_nats(model, torch.stack(alike), known) for (_, known), alike in waiting.items() if alike)
    return nats / math.log(2) / num_bytes


def _windows(ids: Tensor, length: int) -> Iterator[tuple[Tensor, int]]:
    """Yield windows of up to ``length + 1`` ids, and how many predictions of each the window before has made."""
    stride = length // 2
    for start in range(0, max(1, len(ids) - 1 - stride), stride):
        yield ids[start : start + length + 1], length - stride if start else 0


@torch.no_grad()
def _nats(model: Transformer, windows: Tensor, num_known: int) -> float:
    """Return the summed loss of windows ``[B, T + 1]``, without each one's first ``num_known`` predictions."""
    rows = windows.to(model.device)
    logits = model.read_out(model.streams(rows[:, :-1])[-1][:, num_known:])
    losses = functional.cross_entropy(logits.flatten(0, 1), rows[:, num_known + 1 :].flatten(), reduction="none")
    return losses.double().sum().item()
