"""llama.cpp on the same weights, through ``llama-cpp-python``'s low-level interface.

As ``llama-bench`` does, an arm decodes batches of given ids and ends with the logits at hand; no sampler runs.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.peers.with_llama_cpp import ATTENTION
from specdec.contracts import IntArray

# The widest pass that is asked for; longer prompts go in so many tokens at a time.
MAX_BATCH = 512


class LlamaCpp:
    """A model and one sequence of its cache.

    Args:
        path: of a GGUF file, which may go once this has returned.
        vocab_size: of its model.
        storage: of its matrices; float32 arithmetic for "float32", llama.cpp's own way for all others.
        capacity: tokens of the sequence.

    Raises:
        RuntimeError: llama.cpp refuses the file, or has no memory.
    """

    def __init__(self, path: Path, vocab_size: int, storage: str, capacity: int) -> None:
        import llama_cpp

        self._lib: Any = llama_cpp
        self._silence = _silence_log(llama_cpp)
        llama_cpp.llama_backend_init()
        self.vocab_size = vocab_size
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load the GGUF file that holds the {storage} weights")
        self._context = llama_cpp.llama_init_from_model(self._model, _context_parameters(llama_cpp, storage, capacity))
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot make a context of {capacity} tokens")
        self._batch = llama_cpp.llama_batch_init(MAX_BATCH, 0, 1)
        self._tokens, self._positions, self._wanted = (
            np.ctypeslib.as_array(array, (MAX_BATCH,))
            for array in (self._batch.token, self._batch.pos, self._batch.logits)
        )
        for i in range(MAX_BATCH):
            self._batch.n_seq_id[i], self._batch.seq_id[i][0] = 1, 0
        self.length = 0

    def set_threads(self, number: int) -> None:
        """Use this many threads from now on."""
        self._lib.llama_set_n_threads(self._context, number, number)

    def score(self, ids: IntArray, every: bool = True) -> NDArray[np.float32]:
        """Append ids ``[n]`` to the sequence; return the logits ``[n, V]`` of all of them, or ``[1, V]`` of the last.

        They stay in llama.cpp's memory until its next call.

        Raises:
            RuntimeError: llama.cpp refuses them.
        """
        self._append(ids, every, last=True)
        found = self._lib.llama_get_logits(self._context)
        return np.ctypeslib.as_array(found, (len(ids) if every else 1, self.vocab_size))

    def _append(self, ids: IntArray, every: bool, last: bool) -> None:
        """Append ids; logits are made of all, of the last, or of none."""
        count = len(ids)
        self._batch.n_tokens = count
        self._tokens[:count] = ids
        self._positions[:count] = np.arange(self.length, self.length + count)
        self._wanted[:count] = every
        self._wanted[count - 1] = last
        if code := self._lib.llama_decode(self._context, self._batch):
            raise RuntimeError(f"llama_decode of {count} tokens after {self.length} returns {code}")
        self.length += count

    def truncate(self, length: int) -> None:
        """Forget the tokens from a position on.

        Raises:
            RuntimeError: llama.cpp cannot.
        """
        memory = self._lib.llama_get_memory(self._context)
        if not self._lib.llama_memory_seq_rm(memory, 0, length, -1):
            raise RuntimeError(f"llama.cpp cannot forget the tokens after {length}")
        self.length = length

    def fill(self, ids: IntArray) -> None:
        """Begin anew with ids ``[n]``, in chunks."""
        self.truncate(0)
        for start in range(0, len(ids), MAX_BATCH):
            self._append(ids[start : start + MAX_BATCH], every=False, last=False)

    def decode(self, prompt: IntArray, num_new: int) -> IntArray:
        """Return ``[num_new]`` greedy ids, one pass each."""
        self.fill(prompt[:-1])
        made, pending = [], int(prompt[-1])
        for _ in range(num_new):
            pending = int(self.score(np.array([pending]), every=False)[0].argmax())
            made.append(pending)
        return np.array(made)

    def close(self) -> None:
        """Give the memory back."""
        self._lib.llama_batch_free(self._batch)
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)


def _context_parameters(lib: Any, storage: str, capacity: int) -> Any:
    parameters = lib.llama_context_default_params()
    parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = capacity, MAX_BATCH, MAX_BATCH
    kind, parameters.flash_attn_type = ATTENTION["float32" if storage == "float32" else "bfloat16"]
    parameters.type_k = parameters.type_v = kind
    parameters.no_perf = True
    return parameters


def _silence_log(lib: Any) -> Callable[..., None]:
    """Turn llama.cpp's log off; what is returned must live as long as the library is used."""
    silence: Callable[..., None] = lib.llama_log_callback(lambda level, text, data: None)
    lib.llama_log_set(silence, ctypes.c_void_p(0))
    return silence
