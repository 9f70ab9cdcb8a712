"""Other programs on the same prompts and weights, for the sake of comparison."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.arms import Arm, Measurement
from experiments.models import path_of
from specdec import Oracle, SamplingParams
from specdec.prompts import NamedPrompt


class TransformersArm:
    """Decode greedily with ``transformers`` ``generate`` on the oracle's own checkpoint, dtype and device.

    Prompts of a batch are padded on the left. Its arithmetic is its own, so near ties may fall otherwise than here.
    """

    name = "transformers"

    def __init__(self, folder: Path, oracle: Oracle) -> None:
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=oracle.dtype)
        # The checkpoint's own settings may hold a repetition penalty, which greedy decoding would obey.
        model.generation_config = type(model.generation_config)()
        self._model, self._oracle = model.to(oracle.device).eval(), oracle

    def run(self, prompts: Sequence[NamedPrompt], seeds: Sequence[tuple[int, int]], max_new_tokens: int) -> Measurement:
        """Decode the prompts together and say what it took."""
        tokenizer, ends = self._oracle.tokenizer, list(self._oracle.eos_ids)
        assert tokenizer is not None
        began = time.perf_counter()
        ids = [tokenizer.encode(prompt.text).ids for prompt in prompts]
        width = max(map(len, ids))
        padded = torch.tensor([[0] * (width - len(row)) + row for row in ids], device=self._oracle.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids], device=self._oracle.device)
        made = self._model.generate(
            padded, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=ends or None,
            pad_token_id=0,
        )  # fmt: skip
        rows = made[:, width:].tolist()
        seconds = time.perf_counter() - began
        return Measurement(seconds, [_until_end(row, ends) for row in rows], "another program")


def _until_end(row: list[int], ends: Sequence[int]) -> list[int]:
    """Return the ids up to and including the first that ends a text."""
    at = next((i for i, token in enumerate(row) if token in ends), len(row))
    return row[: at + 1]


def _transformers(arguments: Mapping[str, Any], oracle: Oracle, sampling: SamplingParams) -> Arm:
    if sampling.temperature > 0:
        raise ValueError("--peer transformers: its sampling cannot be paired with ours; use --temperature 0")
    return TransformersArm(path_of(arguments["oracle"]), oracle)


PEERS: dict[str, Callable[[Mapping[str, Any], Oracle, SamplingParams], Arm]] = {"transformers": _transformers}
