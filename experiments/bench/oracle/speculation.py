"""Speculative decoding of the embedded pair through the engine beside ``transformers``: the same drafts and prompts."""

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

import oracles
from drafts import PromptLookup, SmallTransformer
from experiments.bench.oracle.benchmark_models import STORAGES, first_layers, native_of, peer_of
from experiments.bench.oracle.benchmark_parts import BenchOptions, Measured, Part, Row
from experiments.bench.oracle.decoding import GREEDY, generate, once
from experiments.harness.arguments import PROMPTS
from experiments.harness.rounds import TimedArm
from oracles.checkpoints.loading import checkpoint_folder
from oracles.native import NativeTransformer
from specdec import SpeculativeDecoder
from specdec.contracts import DraftSource, IntArray
from specdec.prompts import load_prompts

TARGET, DRAFT, FIRST_LAYER = "code", "code-draft", "one layer of six"
DRAFTS = (FIRST_LAYER, DRAFT)


class Pair:
    """A target, its drafts and prompts; all is loaded when first asked for.

    Args:
        num_prompts: of the shipped ones.
        longest: tokens that are kept of a prompt.
    """

    def __init__(self, num_prompts: int, longest: int) -> None:
        self._num_prompts, self._longest = num_prompts, longest
        self._peers: dict[tuple[str, str], Any] = {}

    @cached_property
    def target(self) -> NativeTransformer:
        """The target, as stored: bfloat16."""
        return oracles.load(TARGET, backend="native")

    @cached_property
    def drafts(self) -> dict[str, NativeTransformer]:
        """Name -> draft model."""
        config, state = first_layers(self.target.config, _read_weights(TARGET), 1)
        first = native_of(config, state, "bfloat16")
        first.tokenizer = self.target.tokenizer
        return {FIRST_LAYER: first, DRAFT: oracles.load(DRAFT, backend="native")}

    def peer(self, name: str, storage: str) -> Any:
        """Return ``transformers``' model of the target or of a draft, in a dtype."""
        if (name, storage) not in self._peers:
            config = (self.target if name == TARGET else self.drafts[name]).config
            _, state = first_layers(config, _read_weights(DRAFT if name == DRAFT else TARGET), config.num_layers)
            self._peers[name, storage] = peer_of(config, state, storage)
        return self._peers[name, storage]

    @cached_property
    def prompts(self) -> list[list[int]]:
        """Ids of the prompts."""
        texts = [prompt.text for prompt in load_prompts(str(PROMPTS), None, self._num_prompts)]
        tokenizer = self.target.tokenizer
        assert tokenizer is not None
        return [tokenizer.encode(text).ids[-self._longest :] for text in texts]

    def close(self) -> None:
        """Free the models."""
        self._peers.clear()


def _read_weights(name: str) -> dict[str, Tensor]:
    """Return a checkpoint's weights as they are stored."""
    files = sorted(checkpoint_folder(name).glob("*.safetensors"))
    return {key: weight for file in files for key, weight in load_file(file).items()}


DRAFTED, COPIED, NGRAM = 4, 8, 2
PLAIN, LOOKUP = "plain", f"prompt lookup, {COPIED} tokens"


def settings_of(pair: Pair, strategy: str, storage: str) -> dict[str, Any]:
    """Return what ``transformers`` ``generate`` is told to draft with: the same drafts as ours."""
    if strategy == PLAIN:
        return {}
    if strategy == LOOKUP:
        return {"prompt_lookup_num_tokens": COPIED, "max_matching_ngram_size": NGRAM}
    draft = pair.peer(strategy, storage)
    # As many tokens in every step, however sure the draft is.
    draft.generation_config.num_assistant_tokens = DRAFTED
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    return {"assistant_model": draft}


def source_of(pair: Pair, strategy: str) -> DraftSource | None:
    """Return our draft source of a strategy."""
    if strategy == PLAIN:
        return None
    if strategy == LOOKUP:
        return PromptLookup(COPIED, max_ngram=NGRAM, match="first")
    return SmallTransformer(pair.drafts[strategy], DRAFTED)


def _ours(pair: Pair, source: DraftSource | None, num_new: int) -> IntArray:
    made = SpeculativeDecoder(pair.target, source).generate(pair.prompts, num_new, GREEDY, batch_size=1)
    return np.array(made.tokens)


def _theirs(peer: Any, prompts: Sequence[Sequence[int]], num_new: int, settings: dict[str, Any]) -> IntArray:
    return np.concatenate([generate(peer, torch.tensor([prompt]), num_new, **settings) for prompt in prompts])


def arms(pair: Pair, options: BenchOptions) -> Iterator[TimedArm]:
    """Yield every strategy, ours and theirs; seconds per token, all of whose ids are those of plain decoding."""
    num_new, units = options.new_tokens, options.new_tokens * len(pair.prompts)
    twin = f"{PLAIN}, native bfloat16"
    for strategy in (PLAIN, *DRAFTS, LOOKUP):
        name = f"{strategy}, native bfloat16"
        make = partial(_ours, pair, source_of(pair, strategy), num_new)
        yield TimedArm(name, partial(once, make, units), None if name == twin else twin)
        for storage in STORAGES:
            settings = settings_of(pair, strategy, storage)
            other = partial(_theirs, pair.peer(TARGET, storage), pair.prompts, num_new, settings)
            name = f"{strategy}, transformers {storage}"
            yield TimedArm(name, partial(once, other, units), twin, strict=storage == "float32")


def _fastest(measured: Measured, strategy: str) -> str | None:
    return measured.timings.fastest(*(f"{strategy}, transformers {storage}" for storage in STORAGES))


def rows(measured: Measured) -> Iterator[Row]:
    """Yield a row per strategy and program."""
    for strategy in (PLAIN, *DRAFTS, LOOKUP):
        for program in ("native bfloat16", *(f"transformers {storage}" for storage in STORAGES)):
            name = f"{strategy}, {program}"
            agreement = measured.timings.agreement.get(name)
            cells = {
                "speed over transformers": measured.ratio(_fastest(measured, strategy), name),
                "over its plain decoding": measured.ratio(f"{PLAIN}, {program}", name),
                "ids as plain": "" if agreement is None else f"{agreement:.1%}",
            }
            yield {**measured.time_row(name, strategy=strategy, program=program), **cells}


PART = Part(
    "Speculative decoding beside transformers", "pair", arms, rows,
    f"The oracle `{TARGET}` on shipped prompts, greedy, batch 1; milliseconds a token, prefill included. Both programs "
    f"draft the same: {DRAFTED} tokens in every step (a model), or up to {COPIED} after the first occurrence of the "
    f"last {NGRAM} tokens or 1 (lookup). The faster dtype of `transformers` counts.",
)  # fmt: skip
