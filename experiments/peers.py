"""Other programs on the same prompts and weights, for the sake of comparison."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments.arms import Arm, Measurement
from experiments.models import path_of
from specdec import Oracle, SamplingParams
from specdec.prompts import NamedPrompt


@dataclass(frozen=True)
class RefusedArm:
    """A peer that cannot do what is asked; nothing runs, and the table says why.

    Attributes:
        name: of the peer.
        words: its own.
    """

    name: str
    words: str


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
        self.name, self._model, self._oracle, self._drafting = name, _loaded(folder, oracle), oracle, drafting or {}

    def refusal(self, batch_size: int) -> str | None:
        """Return what the library says to a batch of so many short prompts; None if it decodes them."""
        try:
            self._generate(torch.ones(batch_size, 4, dtype=torch.int64, device=self._oracle.device), 2)
        except Exception as error:  # whatever the library raises are its words
            return (str(error) or repr(error)).splitlines()[0].replace("|", "/")
        return None

    def _generate(self, ids: torch.Tensor, new: int, mask: torch.Tensor | None = None, ends: Any = None) -> Any:
        return self._model.generate(
            ids, attention_mask=torch.ones_like(ids) if mask is None else mask, max_new_tokens=new, do_sample=False,
            eos_token_id=ends, pad_token_id=0, **self._drafting,
        )  # fmt: skip

    def run(self, prompts: Sequence[NamedPrompt], seeds: Sequence[tuple[int, int]], max_new_tokens: int) -> Measurement:
        """Decode the prompts together and say what it took."""
        tokenizer, ends = self._oracle.tokenizer, list(self._oracle.eos_ids)
        assert tokenizer is not None
        began = time.perf_counter()
        ids = [tokenizer.encode(prompt.text).ids for prompt in prompts]
        width = max(map(len, ids))
        padded = torch.tensor([[0] * (width - len(row)) + row for row in ids], device=self._oracle.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids], device=self._oracle.device)
        made = self._generate(padded, max_new_tokens, mask, ends or None)
        rows = made[:, width:].tolist()
        seconds = time.perf_counter() - began
        return Measurement(seconds, [_until_end(row, ends) for row in rows], "another program")


def _until_end(row: list[int], ends: Sequence[int]) -> list[int]:
    """Return the ids up to and including the first that ends a text."""
    at = next((i for i, token in enumerate(row) if token in ends), len(row))
    return row[: at + 1]


def _loaded(folder: Path, oracle: Oracle) -> Any:
    """Return ``transformers``' model of a checkpoint, with the oracle's dtype and on its device."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=oracle.dtype)
    # The checkpoint's own settings may hold a repetition penalty, which greedy decoding would obey.
    model.generation_config = type(model.generation_config)()
    return model.to(oracle.device).eval()


Drafting = Callable[[Mapping[str, Any], Oracle], dict[str, Any]]


def _assisted(arguments: Mapping[str, Any], oracle: Oracle, schedule: str) -> dict[str, Any]:
    """Return the settings of assisted decoding with the draft model and the length of ``small_transformer``.

    With the constant schedule a draft has that length, however sure the model is; with the heuristic one the library
    changes it from step to step and stops a draft of whose tokens the model is not sure.
    """
    draft = _loaded(path_of(arguments["small_transformer.model"]), oracle)
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


_DRAFTING: dict[str, Drafting | None] = {
    "transformers": None,
    "transformers:assisted": partial(_assisted, schedule="constant"),
    "transformers:assisted-heuristic": partial(_assisted, schedule="heuristic"),
    "transformers:lookup": _lookup,
}


def _peer(name: str, arguments: Mapping[str, Any], oracle: Oracle, sampling: SamplingParams) -> Arm | RefusedArm:
    if sampling.temperature > 0:
        raise ValueError(f"--peer {name}: its sampling cannot be paired with ours; use --temperature 0")
    make, batch_size = _DRAFTING[name], arguments["batch_size"]
    drafting = None if make is None else make(arguments, oracle)
    arm = TransformersArm(name, path_of(arguments["oracle"]), oracle, drafting)
    words = arm.refusal(batch_size) if batch_size > 1 else None
    return arm if words is None else RefusedArm(name, words)


Peer = Callable[[Mapping[str, Any], Oracle, SamplingParams], Arm | RefusedArm]
PEERS: dict[str, Peer] = {name: partial(_peer, name) for name in _DRAFTING}
