"""llama.cpp on an oracle's weights, through ``llama-cpp-python``; what all that drive this binding share."""

import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import oracles
from experiments.harness.arms import Measurement
from experiments.harness.models import path_of
from experiments.harness.settings import Settings
from experiments.peers.gguf_file import temporary_gguf
from experiments.peers.refusing import PeerRefusal, refusal_of, words_of
from specdec import Oracle
from specdec.prompts import NamedPrompt
from specdec.requests import encode_prompt

PACKAGES = ("llama_cpp", "gguf")
# Type of keys and values (GGML_TYPE_F32, GGML_TYPE_F16) and flash attention (off, on). Flash
# attention rounds queries to half precision: float32 arithmetic does without it and agrees to rounding; products of
# bfloat16 weights round activations to bfloat16 anyway, and run as llama.cpp does by default.
ATTENTION = {"float32": (0, 0), "bfloat16": (1, 1)}


def missing() -> list[str]:
    """Return the packages that llama.cpp needs here and that are not installed."""
    return [name for name in PACKAGES if find_spec(name) is None]


class LlamaCppArm:
    """Decode greedily with the binding's own ``Llama.generate`` on the oracle's checkpoint, written as GGUF.

    What the binding keeps of a prompt for its next call is dropped: every run scores its whole prompt. An output ends
    at the oracle's context, as ours do.

    Args:
        name: of the arm.
        folder: of the checkpoint.
        oracle: whose tokenizer is used, on a CPU, with torch's present number of threads.
        storage: "float32" (float32 arithmetic, as ``oracle``'s) or "bfloat16" (products round activations to it).
        lookup: the longest n-gram and the number of tokens of the binding's prompt lookup; None: plain decoding.

    Raises:
        ImportError: the packages are missing.
        PeerRefusal: another shape than plain Llama's, type or device, or what ``_load`` says.
    """

    def __init__(
        self, name: str, folder: Path, oracle: Oracle, storage: str, lookup: tuple[int, int] | None = None
    ) -> None:
        if names := missing():
            raise ImportError(f"{' and '.join(names)} not installed: pip install 'exactspec[llamacpp]'")
        if storage not in ATTENTION or oracle.device.type != "cpu":
            raise PeerRefusal(
                f"{storage} on {oracle.device}: only float32 and bfloat16 on a CPU, see --dtype, --device"
            )
        self.name, self._oracle, self._storage = name, oracle, storage
        source = oracles.load_trainable(folder, storage, "cpu")
        with temporary_gguf(source.config, source.state_dict(), storage) as path:
            self._model = _load(path, oracle.max_context, storage, lookup)

    def refusal(self, batch_size: int) -> str | None:
        """Return what the binding says to a batch of so many short prompts; None if it decodes them."""
        words = refusal_of(lambda: self._row([[1] * 4] * batch_size, 1), TypeError)
        return words and f"Llama.generate takes one prompt a call ({words})"

    def _row(self, ids: Sequence[Any], max_new_tokens: int) -> list[int]:
        """Return the new ids after a prompt, up to and including the first that ends a text."""
        self._model.reset()
        made: list[int] = []
        for token in self._model.generate(ids, temp=0.0, repeat_penalty=1.0):
            made.append(int(token))
            if len(made) == max_new_tokens or token in self._oracle.eos_ids:
                break
        return made

    def run(self, prompts: Sequence[NamedPrompt], seeds: Sequence[tuple[int, int]], max_new_tokens: int) -> Measurement:
        """Decode the prompts one after the other and say what it took."""
        began = time.perf_counter()
        encoded = [encode_prompt(self._oracle, prompt.start, prompt.name).tolist() for prompt in prompts]
        rows = [self._row(ids, min(max_new_tokens, self._oracle.max_context - len(ids))) for ids in encoded]
        settings = Settings.of(self._oracle, 1, backend="llama.cpp", dtype=self._storage, bitwise=None)
        return Measurement(time.perf_counter() - began, rows, "another program", settings)


def _load(path: Path, capacity: int, storage: str, lookup: tuple[int, int] | None) -> Any:
    """Return the binding's model of a file.

    Raises:
        PeerRefusal: llama.cpp cannot load it, or has no memory for so many tokens.
    """
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    (kind, flash), threads = ATTENTION[storage], torch.get_num_threads()
    try:
        return Llama(
            str(path), n_ctx=capacity, n_threads=threads, n_threads_batch=threads, type_k=kind, type_v=kind,
            flash_attn=flash != 0, no_perf=True, verbose=False,
            # A drafted token needs its logits, and the binding has room for them only if it is told so.
            logits_all=lookup is not None,
            draft_model=None if lookup is None else LlamaPromptLookupDecoding(*lookup),
        )  # fmt: skip
    except (ValueError, MemoryError) as error:
        raise PeerRefusal(words_of(error)) from error


def llama_cpp_arm(
    name: str, arguments: Mapping[str, Any], oracle: Oracle, storage: str, drafts: bool = False
) -> LlamaCppArm:
    """Return the arm that a command line asks for, its weights of that dtype.

    It drafts with the lengths of ``prompt_lookup``. Errors as of ``LlamaCppArm``.
    """
    lengths = (arguments["prompt_lookup.max_ngram"], arguments["prompt_lookup.num_draft_tokens"])
    return LlamaCppArm(name, path_of(arguments["oracle"]), oracle, storage, lengths if drafts else None)
