"""What reaches other programs: every argument by which one of them could be hampered unseen.

Models are fakes with the defaults of the programs, and record what they are asked.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import torch

import oracles
from experiments.bench.oracle import decoding
from experiments.bench.oracle.benchmark_models import Models
from experiments.bench.oracle.llama_cpp_arm import LlamaCpp
from experiments.peers import PEERS, with_llama_cpp, with_transformers
from experiments.peers.with_llama_cpp import LlamaCppArm
from experiments.peers.with_transformers import TransformersArm
from oracles.tabular import TabularLM
from specdec.prompts import NamedPrompt
from tests.support.line_mutants import Differences, differences, line_mutants
from tests.support.runs.hand_clock import HandClock, clock_of

ARGUMENTS = {
    "oracle": "code",
    "weights": None,
    "arithmetic": None,
    "batch_size": 1,
    "temperature": 0.0,
    "small_transformer.model": "code-draft",
    "small_transformer.num_draft_tokens": 5,
    "prompt_lookup.max_ngram": 3,
    "prompt_lookup.num_draft_tokens": 7,
}
NEW = 6


class _Single(TabularLM):
    """An oracle in single precision, whose id 2 ends a text."""

    dtype = torch.float32


class _Generation:
    """The settings of a model, with the library's defaults."""

    def __init__(self) -> None:
        self.num_assistant_tokens, self.num_assistant_tokens_schedule = 20, "heuristic"
        self.assistant_confidence_threshold, self.repetition_penalty = 0.4, 1.0


class _Model:
    """A model of ``transformers`` that answers 1, 1, 2, 3, ... to everything, in 2 s."""

    calls: ClassVar[list[dict[str, Any]]] = []
    clock: ClassVar[HandClock | None] = None

    def __init__(self, name: str, dtype: Any) -> None:
        self.name, self.dtype, self.device, self.generation_config = name, dtype, None, _Generation()
        # As a checkpoint may ask for.
        self.generation_config.repetition_penalty = 1.3

    @staticmethod
    def from_pretrained(folder: Path, dtype: Any) -> "_Model":
        return _Model(folder.name, dtype)

    def to(self, device: Any) -> "_Model":
        self.device = str(device)
        return self

    def eval(self) -> "_Model":
        return self

    def generate(self, ids: torch.Tensor, **options: Any) -> torch.Tensor:
        mine = {"model": self.name, "dtype": str(self.dtype), "ids": ids.tolist(), **_settings(self)}
        self.calls.append(mine | {name: _plain(value) for name, value in options.items()})
        if self.clock is not None:
            self.clock.spend(2.0)
        return torch.cat([ids, torch.tensor([[1, 1, 2, 3, 3, 3]] * len(ids))], dim=1)


def _settings(model: _Model) -> dict[str, Any]:
    return {"repetition_penalty": model.generation_config.repetition_penalty}


def _plain(value: Any) -> Any:
    if isinstance(value, _Model):
        return {"model": value.name, "dtype": str(value.dtype), **vars(value.generation_config)}
    return value.tolist() if isinstance(value, torch.Tensor) else value


def _oracle() -> Any:
    return _Single(torch.full((4, 4), 0.25, dtype=torch.float64), 2, 40)


def _arm(name: str) -> Any:
    return PEERS[name](ARGUMENTS, _oracle())


@contextmanager
def _fakes(**modules: Any) -> Iterator[None]:
    """Put fakes in the places of modules that may not be installed."""
    found = {}
    for name, parts in modules.items():
        module = ModuleType(name.replace("__", "."))
        vars(module).update(parts)
        found[module.__name__] = module
    with patch.dict(sys.modules, found):
        yield


def with_library() -> Differences:
    """What each arm of ``transformers`` is asked, for two prompts of different lengths."""
    found, expected = {}, {}
    prompts = [NamedPrompt("a", "k", [1, 3, 1]), NamedPrompt("b", "k", [3])]  # type: ignore[arg-type]
    common = {
        "model": "code",
        "dtype": "torch.float32",
        "repetition_penalty": 1.0,
        "ids": [[1, 3, 1], [0, 0, 3]],
        "attention_mask": [[1, 1, 1], [0, 0, 1]],
        "max_new_tokens": NEW,
        "do_sample": False,
        "eos_token_id": [2],
        "pad_token_id": 0,
    }
    draft = {"model": "code-draft", "dtype": "torch.float32", "repetition_penalty": 1.0, "num_assistant_tokens": 5}
    drafting = {
        "transformers": {},
        "transformers:bfloat16": {"dtype": "torch.bfloat16"},
        "transformers:lookup": {"prompt_lookup_num_tokens": 7, "max_matching_ngram_size": 3},
        "transformers:assisted": {
            "assistant_model": {
                **draft,
                "num_assistant_tokens_schedule": "constant",
                "assistant_confidence_threshold": 0.0,
            }
        },
        "transformers:assisted-heuristic": {
            "assistant_model": {
                **draft,
                "num_assistant_tokens_schedule": "heuristic",
                "assistant_confidence_threshold": 0.4,
            }
        },
    }
    library: dict[str, Any] = {"transformers": {"AutoModelForCausalLM": _Model}, "transformers__quantizers": {}}
    for name, own in drafting.items():
        _Model.calls.clear()
        with _fakes(**library), clock_of(with_transformers) as clock:
            arm = _arm(name)
            with patch.object(_Model, "clock", clock):
                measured = arm.run(prompts, [(0, 0)] * 2, NEW)
        found |= {name: _Model.calls[0], f"{name}, calls": len(_Model.calls)}
        found[f"{name}, told"] = (measured.seconds, measured.tokens, measured.settings.dtype, measured.claim)
        expected |= {name: common | own, f"{name}, calls": 1}
        dtype = expected[name]["dtype"].removeprefix("torch.")
        expected[f"{name}, told"] = (2.0, [[1, 1, 2]] * 2, dtype, "another program")
    return differences(found, expected)


class _Llama:
    """The binding's model: it answers 1, 1, 1, ..., and records how it was made and asked."""

    made: ClassVar[list["_Llama"]] = []

    def __init__(self, path: str, **options: Any) -> None:
        self.options, self.asked, self.resets = options, list[Any](), 0
        self.made.append(self)

    def reset(self) -> None:
        self.resets += 1

    def generate(self, ids: list[int], **options: Any) -> Iterator[int]:
        self.asked.append((ids, options))
        while True:
            yield 1


def _lookup(max_ngram_size: int = 2, num_pred_tokens: int = 10) -> tuple[int, int]:
    return max_ngram_size, num_pred_tokens


@contextmanager
def _binding() -> Iterator[None]:
    fakes = {"llama_cpp": {"Llama": _Llama}, "llama_cpp__llama_speculative": {"LlamaPromptLookupDecoding": _lookup}}
    weights = SimpleNamespace(config=None, state_dict=dict)
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(_fakes(**fakes))
        enter(patch.object(with_llama_cpp, "missing", list))
        enter(patch.object(oracles, "load_trainable", lambda folder, storage, device: weights))
        enter(patch.object(with_llama_cpp, "temporary_gguf", _file))
        enter(patch.object(torch, "get_num_threads", lambda: 3))
        yield


@contextmanager
def _file(config: Any, state: Any, storage: str) -> Iterator[Path]:
    yield Path(f"{storage}.gguf")


def with_binding() -> Differences:
    """How llama.cpp's model is made, on all threads, what it is asked for each prompt, one near its context's end."""
    found, expected = {}, {}
    asked = [[1, 3], [3], [1] * 36]
    prompts = [NamedPrompt(str(number), "k", ids) for number, ids in enumerate(asked)]  # type: ignore[arg-type]
    for name, own in {
        "llama.cpp": {"type_k": 0, "type_v": 0, "flash_attn": False, "logits_all": False, "draft_model": None},
        "llama.cpp:lookup": {"type_k": 0, "type_v": 0, "flash_attn": False, "logits_all": True, "draft_model": (3, 7)},
        "llama.cpp:bfloat16": {"type_k": 1, "type_v": 1, "flash_attn": True, "logits_all": False, "draft_model": None},
    }.items():
        _Llama.made.clear()
        with _binding():
            measured = _arm(name).run(prompts, [(0, 0)] * 3, NEW)
        (model,) = _Llama.made
        found |= {name: model.options, f"{name}, asked": model.asked, f"{name}, resets": model.resets}
        found[f"{name}, told"] = (measured.tokens, measured.claim)
        expected[name] = own | {"n_ctx": 40, "n_threads": 3, "n_threads_batch": 3, "no_perf": True, "verbose": False}
        greedy = {"temp": 0.0, "repeat_penalty": 1.0}
        expected |= {f"{name}, asked": [(ids, greedy) for ids in asked], f"{name}, resets": 3}
        expected[f"{name}, told"] = ([[1] * NEW, [1] * NEW, [1] * 4], "another program")
    return differences(found, expected)


class _Library:
    """llama.cpp's library: it records on how many threads it runs."""

    def __init__(self) -> None:
        self.threads: tuple[int, int] | None = None

    def llama_set_n_threads(self, _context: Any, number: int, of_batches: int) -> None:
        self.threads = number, of_batches


def benched() -> Differences:
    """What the benchmark of passes asks of other programs: greedy ids, on the same threads."""
    _Model.calls.clear()
    made = decoding.generate(_Model("code", "float32"), torch.tensor([[1, 2, 3]]), NEW)
    found: dict[str, Any] = {"asked": _Model.calls[0], "made": made.tolist()}
    asked = {"model": "code", "dtype": "float32", "ids": [[1, 2, 3]], "attention_mask": [[1, 1, 1]], "pad_token_id": 0}
    asked |= {
        "max_new_tokens": NEW,
        "do_sample": False,
        "repetition_penalty": 1.3,
        "eos_token_id": None,
        "use_cache": True,
    }
    model, models = LlamaCpp.__new__(LlamaCpp), Models("tiny", None, 9)
    model._lib, model._context, model._silence = _Library(), None, lambda *_: None
    models._made["llama.cpp", "float32"] = model
    with patch.object(torch, "get_num_threads", lambda: 3):
        models.llama_cpp("float32")
    found["threads"] = model._lib.threads
    return differences(found, {"asked": asked, "made": [[1, 1, 2, 3, 3, 3]], "threads": (3, 3)})


STATISTICS = (with_library, with_binding, benched)
MUTANTS = line_mutants(
    (
        with_transformers._assistant_settings,
        "assistant_confidence_threshold = 0.0",
        "assistant_confidence_threshold = 0.4",
        with_library,
        "transformers:assisted",
    ),
    (with_transformers._lookup, 'arguments["prompt_lookup.max_ngram"]', "1", with_library, "transformers:lookup"),
    (with_transformers.load_peer, "dtype=dtype", "dtype=torch.float64", with_library, "transformers"),
    (with_transformers.transformers_arm, "DTYPES[storage]", "oracle.dtype", with_library, "transformers:bfloat16"),
    (TransformersArm._generate, "max_new_tokens=new", "max_new_tokens=2 * new", with_library, "transformers"),
    (
        TransformersArm.run,
        "[0] * (width - len(row)) + [1]",
        "[1] * (width - len(row)) + [1]",
        with_library,
        "transformers",
    ),
    (with_transformers._until_end, "row[: at + 1]", "row", with_library, "transformers, told"),
    (with_llama_cpp._load, "n_threads=threads", "n_threads=1", with_binding, "llama.cpp"),
    (
        with_llama_cpp.llama_cpp_arm,
        "lengths if drafts else None",
        "lengths[::-1] if drafts else None",
        with_binding,
        "llama.cpp:lookup",
    ),
    (LlamaCppArm._row, "self._model.reset()", "pass", with_binding, "llama.cpp, resets"),
    (decoding.generate, "do_sample=False", "do_sample=True", benched, "asked"),
    (LlamaCpp.set_threads, "number, number)", "1, number)", benched, "threads"),
    (Models.llama_cpp, "model.set_threads(torch.get_num_threads())", "pass", benched, "threads"),
)
