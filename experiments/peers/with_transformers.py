"""``transformers`` on an oracle's own checkpoint, plain and with its own drafts."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments.harness.arms import Measurement
from experiments.harness.models import path_of
from experiments.harness.settings import Settings
from experiments.peers.refusing import PeerRefusal, refusal_of
from oracles.huggingface.huggingface_loading import auto_models
from specdec import Oracle
from specdec.prompts import NamedPrompt
from specdec.requests import encode_prompt


class TransformersArm:
    """Decode greedily with ``transformers`` ``generate`` on the oracle's own checkpoint, dtype and device.

    Prompts of a batch are padded on the left. Its arithmetic is its own, so near ties may fall otherwise than here.

    Args:
        name: of the arm.
        folder: of the checkpoint.
        oracle: whose tokenizer, dtype and device are used.
        drafting: what ``generate`` is told to draft with; nothing: plain decoding.
    """

    def __init__(self, name: str, folder: Path, oracle: Oracle, drafting: Mapping[str, Any] | None = None) -> None:
        self.name, self._model, self._oracle, self._drafting = name, _load(folder, oracle), oracle, drafting or {}

    def refusal(self, batch_size: int) -> str | None:
        """Return what the library says to a batch of so many short prompts; None if it decodes them."""
        ids = torch.ones(batch_size, 4, dtype=torch.int64, device=self._oracle.device)
        return refusal_of(lambda: self._generate(ids, 2), ValueError)

    def _generate(self, ids: torch.Tensor, new: int, mask: torch.Tensor | None = None, ends: Any = None) -> Any:
        return self._model.generate(
            ids, attention_mask=torch.ones_like(ids) if mask is None else mask, max_new_tokens=new, do_sample=False,
            eos_token_id=ends, pad_token_id=0, **self._drafting,
        )  # fmt: skip

    def run(self, prompts: Sequence[NamedPrompt], seeds: Sequence[tuple[int, int]], max_new_tokens: int) -> Measurement:
        """Decode the prompts together and say what it took."""
        ends = list(self._oracle.eos_ids)
        began = time.perf_counter()
        ids = [encode_prompt(self._oracle, prompt.start, prompt.name).tolist() for prompt in prompts]
        width = max(map(len, ids))
        padded = torch.tensor([[0] * (width - len(row)) + row for row in ids], device=self._oracle.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids], device=self._oracle.device)
        made = self._generate(padded, max_new_tokens, mask, ends or None)
        rows = made[:, width:].tolist()
        seconds = time.perf_counter() - began
        settings = Settings.of(self._oracle, len(prompts), backend="transformers", bitwise=None)
        return Measurement(seconds, [_until_end(row, ends) for row in rows], "another program", settings)


def _until_end(row: list[int], ends: Sequence[int]) -> list[int]:
    """Return the ids up to and including the first that ends a text."""
    at = next((i for i, token in enumerate(row) if token in ends), len(row))
    return row[: at + 1]


def _load(folder: Path, oracle: Oracle) -> Any:
    """Return ``transformers``' model of a checkpoint, with the oracle's dtype and on its device."""
    if not folder.is_dir():
        raise PeerRefusal(f"it reads checkpoint directories here, and {folder} is none")
    model: Any = auto_models().from_pretrained(folder, dtype=oracle.dtype)
    # The checkpoint's own settings may hold a repetition penalty, which greedy decoding would obey.
    model.generation_config = type(model.generation_config)()
    return model.to(oracle.device).eval()


Drafting = Callable[[Mapping[str, Any], Oracle], dict[str, Any]]


def _assistant_settings(arguments: Mapping[str, Any], oracle: Oracle, schedule: str) -> dict[str, Any]:
    """Return the settings of assisted decoding with the draft model and the length of ``small_transformer``.

    With the constant schedule a draft has that length, however sure the model is; with the heuristic one the library
    changes it from step to step and stops a draft of whose tokens the model is not sure.
    """
    draft = _load(path_of(arguments["small_transformer.model"]), oracle)
    draft.generation_config.num_assistant_tokens = arguments["small_transformer.num_draft_tokens"]
    draft.generation_config.num_assistant_tokens_schedule = schedule
    if schedule == "constant":
        draft.generation_config.assistant_confidence_threshold = 0.0
    return {"assistant_model": draft}


def _lookup(arguments: Mapping[str, Any], oracle: Oracle) -> dict[str, Any]:
    """Return the settings of prompt lookup with the lengths of ``prompt_lookup``."""
    return {
        "prompt_lookup_num_tokens": arguments["prompt_lookup.num_draft_tokens"],
        "max_matching_ngram_size": arguments["prompt_lookup.max_ngram"],
    }


DRAFTING: dict[str, Drafting | None] = {
    "transformers": None,
    "transformers:assisted": partial(_assistant_settings, schedule="constant"),
    "transformers:assisted-heuristic": partial(_assistant_settings, schedule="heuristic"),
    "transformers:lookup": _lookup,
}


def transformers_arm(name: str, arguments: Mapping[str, Any], oracle: Oracle) -> TransformersArm:
    """Return the arm of that name, a key of ``DRAFTING``, that a command line asks for."""
    make = DRAFTING[name]
    drafting = None if make is None else make(arguments, oracle)
    return TransformersArm(name, path_of(arguments["oracle"]), oracle, drafting)
