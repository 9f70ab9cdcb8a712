"""Speculative decoding through the engine beside ``transformers``, with the same drafts, prompts and lengths."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from drafts import PromptLookup, SmallTransformer
from experiments.bench.oracle.bench_options import BenchOptions
from experiments.bench.oracle.benchmark_models import STORAGES
from experiments.bench.oracle.benchmark_parts import Goal, Measured, Part, Row, goals_of
from experiments.bench.oracle.decoding import GREEDY, generate, once
from experiments.bench.oracle.pair import DRAFTS, FIRST_LAYER, TARGET, Pair
from experiments.bench.oracle.rounds import TimedArm
from specdec import SpeculativeDecoder
from specdec.contracts import DraftSource, IntArray

DRAFTED, COPIED, NGRAM = 4, 8, 2
PLAIN, LOOKUP = "plain", f"prompt lookup, {COPIED} tokens"
OVER_TRANSFORMERS = {FIRST_LAYER: ("3", "5"), LOOKUP: ("3", "5")}


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


def arms(pair: Pair, options: BenchOptions) -> list[TimedArm]:
    """Return every strategy, ours and theirs; seconds per token, all of whose ids are those of plain decoding."""
    num_new, units = options.new_tokens, options.new_tokens * len(pair.prompts)
    found, twin = [], f"{PLAIN}, native bfloat16"
    for strategy in (PLAIN, *DRAFTS, LOOKUP):
        name = f"{strategy}, native bfloat16"
        make = partial(_ours, pair, source_of(pair, strategy), num_new)
        found.append(TimedArm(name, partial(once, make, units), None if name == twin else twin))
        for storage in STORAGES:
            settings = settings_of(pair, strategy, storage)
            other = partial(_theirs, pair.peer(TARGET, storage), pair.prompts, num_new, settings)
            name = f"{strategy}, transformers {storage}"
            found.append(TimedArm(name, partial(once, other, units), twin, strict=storage == "float32"))
    return found


def _fastest(measured: Measured, strategy: str) -> str | None:
    return measured.timings.fastest(*(f"{strategy}, transformers {storage}" for storage in STORAGES))


def rows(measured: Measured) -> list[Row]:
    """Return a row per strategy and program."""
    found: list[Row] = []
    for strategy in (PLAIN, *DRAFTS, LOOKUP):
        for program in ("native bfloat16", *(f"transformers {storage}" for storage in STORAGES)):
            name = f"{strategy}, {program}"
            agreement = measured.timings.agreement.get(name)
            cells = {
                "speed over transformers": measured.ratio(_fastest(measured, strategy), name),
                "over its plain decoding": measured.ratio(f"{PLAIN}, {program}", name),
                "ids as plain": "" if agreement is None else f"{agreement:.1%}",
            }
            found.append({**measured.time_row(name, strategy=strategy, program=program), **cells})
    return found


def goals(measured: Measured) -> list[Goal]:
    """Return the speed over ``transformers`` with the same drafts."""
    found = []
    for strategy in (*DRAFTS, LOOKUP):
        ratio = measured.ratio(_fastest(measured, strategy), f"{strategy}, native bfloat16")
        what = strategy if strategy == LOOKUP else f"draft model ({strategy}), k = {DRAFTED}"
        found += goals_of(f"{what}, over transformers", OVER_TRANSFORMERS, strategy, ratio)
    return found


PART = Part(
    "Speculative decoding beside transformers", "pair", arms, rows, goals,
    f"The oracle `{TARGET}` on shipped prompts, greedy, batch 1; milliseconds a token, prefill included. Both programs "
    f"draft the same: {DRAFTED} tokens in every step (a model), or up to {COPIED} after the first occurrence of the "
    f"last {NGRAM} tokens or 1 (lookup). The faster dtype of `transformers` counts.",
)  # fmt: skip
