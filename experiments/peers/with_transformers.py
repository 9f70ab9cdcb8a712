"""``transformers`` on an oracle's own checkpoint, plain and with its own drafts."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import oracles
from experiments.harness.arms import Measurement
from experiments.harness.models import path_of
from experiments.harness.settings import Settings
from experiments.peers.gguf_file import check_plain_llama
from experiments.peers.refusing import PeerRefusal, refusal_of
from oracles.checkpoints.config_keys import read_json
from oracles.checkpoints.gguf import is_gguf
from oracles.checkpoints.placement import DTYPES
from oracles.factory.training.export import llama_config
from oracles.huggingface.huggingface_loading import auto_models
from oracles.transformer.config import TransformerConfig
from specdec import Oracle
from specdec.prompts import NamedPrompt
from specdec.requests import encode_prompt


class TransformersArm:
    """Decode greedily with ``transformers`` ``generate`` on the oracle's own checkpoint and device.

    Prompts of a batch are padded on the left. An output ends at the oracle's context, as ours do. Its arithmetic is its
    own, so near ties may fall otherwise than here.

    Args:
        name: of the arm.
        path: of the checkpoint, as of ``load_peer``.
        oracle: whose tokenizer and device are used.
        dtype: of weights and arithmetic.
        drafting: what ``generate`` is told to draft with; nothing: plain decoding.

    Raises:
        PeerRefusal: as of ``load_peer``.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        oracle: Oracle,
        dtype: torch.dtype,
        drafting: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self._oracle, self._dtype, self._drafting = name, oracle, dtype, drafting or {}
        self._model = load_peer(path, self._dtype, oracle.device)

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
        rooms = [min(max_new_tokens, self._oracle.max_context - len(row)) for row in ids]
        made = self._generate(padded, max(rooms), mask, ends or None)
        rows = made[:, width:].tolist()
        seconds = time.perf_counter() - began
        dtype = str(self._dtype).removeprefix("torch.")
        settings = Settings.of(self._oracle, len(prompts), backend="transformers", dtype=dtype, bitwise=None)
        tokens = [_until_end(row, ends)[:room] for row, room in zip(rows, rooms, strict=True)]
        return Measurement(seconds, tokens, "another program", settings)


def _until_end(row: list[int], ends: Sequence[int]) -> list[int]:
    """Return the ids up to and including the first that ends a text."""
    at = next((i for i, token in enumerate(row) if token in ends), len(row))
    return row[: at + 1]


def load_peer(path: Path, dtype: torch.dtype, device: torch.device | str) -> Any:
    """Return ``transformers``' model of a checkpoint, for greedy decoding.

    Args:
        path: a Hugging Face directory; or a GGUF file of a plain Llama, whose weights are read as the numbers that they
            stand for.
        dtype: what weights are rounded to, and computed in.
        device: where it runs.

    Raises:
        ImportError: ``transformers`` is not installed.
        PeerRefusal: neither of the two; another shape in a GGUF file; a draft that reads another checkpoint's
            vocabulary, which the library would load without its tables.
    """
    if path.is_dir():
        if "vocabulary_of" in read_json(path / "config.json"):
            raise PeerRefusal(f"its models have a vocabulary of their own, and {path.name} reads its oracle's")
        model: Any = auto_models().from_pretrained(path, dtype=dtype)
    elif is_gguf(path):
        source = oracles.load_trainable(path, dtype, "cpu")
        model = llama_of(source.config, source.state_dict(), dtype)
    else:
        raise PeerRefusal(f"it reads checkpoint directories and GGUF files here, and {path} is neither")
    # The checkpoint's own settings may hold a repetition penalty, which greedy decoding would obey.
    model.generation_config = type(model.generation_config)()
    return model.to(device).eval()


def llama_of(config: TransformerConfig, state: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Any:
    """Return ``transformers``' Llama of some weights, without an end of text.

    Args:
        config: plain Llama.
        state: weights under the names of Hugging Face's Llama, linear ones ``[out, in]``; without ``lm_head`` if
            embeddings are tied.
        dtype: what they are rounded to, and computed in.

    Raises:
        ImportError: ``transformers`` is not installed.
        PeerRefusal: another shape than Llama's, or weights that the library's Llama lacks.
    """
    check_plain_llama(config)
    make = auto_models().from_config
    from transformers import LlamaConfig

    model = make(LlamaConfig(**llama_config(config), bos_token_id=None, eos_token_id=None), dtype=dtype)
    # A tied head has no weights of its own.
    tied = {"lm_head.weight"} if config.tie_embeddings else set()
    if names := model.state_dict().keys() ^ (state.keys() | tied):
        raise PeerRefusal(f"its Llama has other weights than ours: {', '.join(sorted(names))}")
    model.load_state_dict(dict(state), strict=not tied)
    return model.eval()


Drafting = Callable[[Mapping[str, Any], Oracle], dict[str, Any]]


def _assistant_settings(arguments: Mapping[str, Any], oracle: Oracle, schedule: str) -> dict[str, Any]:
    """Return the settings of assisted decoding with the draft model and the length of ``small_transformer``.

    With the constant schedule a draft has that length, however sure the model is; with the heuristic one the library
    changes it from step to step and stops a draft of whose tokens the model is not sure.
    """
    draft = load_peer(path_of(arguments["small_transformer.model"]), oracle.dtype, oracle.device)
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


DRAFTING: dict[str, Drafting] = {
    "transformers:assisted": partial(_assistant_settings, schedule="constant"),
    "transformers:assisted-heuristic": partial(_assistant_settings, schedule="heuristic"),
    "transformers:lookup": _lookup,
}


def transformers_arm(name: str, arguments: Mapping[str, Any], oracle: Oracle, storage: str) -> TransformersArm:
    """Return the arm that a command line asks for, its weights and products of that dtype.

    It drafts as ``DRAFTING`` says of its name. Errors as of ``TransformersArm``.
    """
    make = DRAFTING.get(name)
    drafting = None if make is None else make(arguments, oracle)
    return TransformersArm(name, path_of(arguments["oracle"]), oracle, DTYPES[storage], drafting)
