"""A published model beside llama.cpp: on the same GGUF file, and on other storages of its weights.

Our arms compute with the file in whole numbers (``arithmetic="int8"``) or in float products, or with its weights in
bfloat16. llama.cpp reads the file itself, and files written from the weights that it encodes. Arms are interleaved in
one process.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import oracles
from exactspec.ending import as_program
from exactspec.parser import Parser, positive, refusing
from experiments.bench.oracle.benchmark_passes import CONTEXT, WIDTHS, Passes, llama_pass
from experiments.bench.oracle.decoding import engine, once, one_row
from experiments.bench.oracle.llama_cpp_arm import MAX_BATCH, LlamaCpp
from experiments.bench.sections import machine
from experiments.harness.arguments import PROMPTS
from experiments.harness.rounds import TimedArm, Timings, measure
from experiments.harness.thread_check import take_threads
from experiments.peers.gguf_file import write_gguf
from experiments.peers.with_llama_cpp import missing
from oracles.checkpoints.gguf import PUBLISHED
from specdec import Oracle
from specdec.contracts import IntArray
from specdec.prompts import load_prompts
from specdec.requests import encode_prompt
from specdec.stats import Table
from specdec.stats.report import Shown, show

OURS: Mapping[str, Mapping[str, Any]] = {
    "ours, int8": {"arithmetic": "int8"},
    "ours, float products": {},
    "ours, bfloat16": {"weights": "bfloat16"},
}
FILE = "llama.cpp, the file"
# Other storages of the weights that the file stands for.
WRITTEN = {f"llama.cpp, {storage}": storage for storage in ("q4_0", "q8_0", "bfloat16")}
BASE = "ours, int8"
CONVERSATIONS = PROMPTS.with_name("conversations.jsonl")


class Beside:
    """All arms of one model: whole greedy calls, passes after a context, and prompts.

    Args:
        path: of the GGUF file.
        prompt: ids ``[L]`` of a prompt, which is decoded.
        ids: ``[M]`` that passes and prefills score.
        num_new: ids that a call adds to its prompt.
        repeats: passes a round at most.
    """

    def __init__(self, path: Path, prompt: IntArray, ids: IntArray, num_new: int, repeats: int) -> None:
        self.path, self.prompt, self.ids = path, prompt, ids
        self.num_new, self.repeats = num_new, repeats
        self.capacity = max(len(ids), len(prompt) + num_new) + MAX_BATCH

    def ours(self, name: str) -> list[TimedArm]:
        """Return the arms of one of our ways to read the file."""
        oracle = oracles.load(self.path, **OURS[name])
        decode = partial(engine, oracle, torch.from_numpy(self.prompt)[None], self.num_new)
        after, fresh = Passes(oracle, self.ids, CONTEXT), Passes(oracle, self.ids, 0)
        return [
            TimedArm(f"decode, {name}", partial(once, decode, self.num_new)),
            *(TimedArm(f"{w}, {name}", partial(after.run, w, "all", self.repeats)) for w in WIDTHS),
            TimedArm(f"prompt, {name}", partial(fresh.run, MAX_BATCH, "last", 5)),
        ]

    def theirs(self, name: str, model: LlamaCpp) -> list[TimedArm]:
        """Return the arms of one of llama.cpp's models."""
        model.set_threads(torch.get_num_threads())
        decode = partial(one_row, model.decode, self.prompt, self.num_new)
        whole = partial(llama_pass, model, self.ids, 0, MAX_BATCH, 5, every=False)
        return [
            TimedArm(f"decode, {name}", partial(once, decode, self.num_new)),
            *(TimedArm(f"{w}, {name}", partial(llama_pass, model, self.ids, CONTEXT, w, self.repeats)) for w in WIDTHS),
            TimedArm(f"prompt, {name}", whole),
        ]

    @contextmanager
    def models(self) -> Iterator[dict[str, LlamaCpp]]:
        """Give llama.cpp's models by the names of their arms."""
        trained = oracles.load_trainable(self.path, "float32", "cpu")
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            places = {FILE: (self.path, "stored")}
            for name, storage in WRITTEN.items():
                places[name] = folder / f"{storage}.gguf", storage
                write_gguf(places[name][0], trained.config, trained.state_dict(), storage)
            found = {}
            for name, (path, storage) in places.items():
                found[name] = LlamaCpp(path, trained.vocab_size, storage, self.capacity)
                stack.callback(found[name].close)
            yield found


def prompt_ids(oracle: Oracle, prompts: str, length: int) -> IntArray:
    """Return the ids ``[length]`` of shipped conversations, one after the other.

    Raises:
        ValueError: they have fewer ids.
    """
    found = [encode_prompt(oracle, prompt.start, prompt.name) for prompt in load_prompts(prompts)]
    ids: IntArray = np.concatenate(found)
    if len(ids) < length:
        raise ValueError(f"--prompts {prompts} holds {len(ids)} ids, and {length} are needed")
    return ids[:length]


def tables(timings: Timings, names: Sequence[str], num_new: int, length: int) -> list[Shown]:
    """Return whole calls, passes by width and prompts."""

    def over(kind: str, name: str) -> str:
        return "1" if name == BASE else str(timings.ratio(f"{kind}, {name}", f"{kind}, {BASE}"))

    decoding = [
        {
            "arm": name,
            "tokens/s": f"{1 / timings.spread(f'decode, {name}').median:.1f}",
            "time over ours, int8": over("decode", name),
            f"prompt of {MAX_BATCH}, ms": f"{timings.spread(f'prompt, {name}').median * 1e3:.1f}",
            "over ours, int8": over("prompt", name),
        }
        for name in names
    ]
    passes = [
        {
            "arm": name,
            **{f"{w} nodes, ms": f"{timings.spread(f'{w}, {name}').median * 1e3:.2f}" for w in WIDTHS},
            **{f"{w} over ours, int8": over(str(w), name) for w in WIDTHS},
            "t(8)/t(1)": str(timings.ratio(f"8, {name}", f"1, {name}")),
        }
        for name in names
    ]
    calls = f"A prompt of {length} ids and {num_new} new ones, greedy, batch 1, prefill included; medians (range)."
    after = f"One pass after {CONTEXT} ids, logits of every node, batch 1; medians (range of the paired ratios)."
    return [Table("Whole calls and prompts", decoding, calls), Table("Passes", passes, after)]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print the tables."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--model", default="smollm2", help="name of a published model, or a GGUF file of plain Llama's shape (smollm2)")
    add("--prompts", default=str(CONVERSATIONS), help="prompts whose ids are scored (the shipped conversations)")
    add("--prompt-length", type=positive, default=100, help="ids of a prompt (%(default)s)")
    add("--new-tokens", type=positive, default=64, help="tokens that a call adds (%(default)s)")
    add("--threads", type=positive, default=2, help="threads of every program (%(default)s)")
    add("--rounds", type=positive, default=9, help="rounds, in each of which every arm runs once (%(default)s)")
    add("--repeats", type=positive, default=30, help="most passes of a round; their median counts (%(default)s)")
    asked = parser.parse_args(argv)
    if names := missing():
        parser.error(f"{' and '.join(names)} not installed: pip install 'exactspec[llamacpp]'")
    take_threads(asked.threads)
    scored = MAX_BATCH + CONTEXT
    with refusing("bench_stored"):
        path = PUBLISHED[asked.model].locate() if asked.model in PUBLISHED else Path(asked.model)
        ids = prompt_ids(oracles.load(path), asked.prompts, max(scored, asked.prompt_length))
        beside = Beside(path, ids[: asked.prompt_length], ids[:scored], asked.new_tokens, asked.repeats)
        with beside.models() as models:
            arms = [arm for name in OURS for arm in beside.ours(name)]
            arms += [arm for name, model in models.items() for arm in beside.theirs(name, model)]
            timings = measure(arms, asked.rounds)
    told: list[Shown] = [f"{machine()}; threads {asked.threads}; {asked.rounds} rounds; {path.name}."]
    show(told + tables(timings, [*OURS, *models], asked.new_tokens, asked.prompt_length))


if __name__ == "__main__":
    as_program(main)
