"""Measure what the second turn of a conversation costs if its beginning is not read again.

``python -m experiments.studies.second_turns --prompts question.jsonl`` asks every question with two turns. Each arm
decodes the first turn, and then the second one after the answer, with ``prefix_sharing`` and without, one after the
other.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

import drafts
from exactspec.parser import Parser, positive, refusing
from experiments.harness.arguments import add_placement
from experiments.harness.models import AnyModel, load_model, load_oracle
from experiments.harness.thread_check import take_threads
from specdec import Result, SpeculativeDecoder
from specdec.contracts import DraftSource, Oracle
from specdec.prompts import NamedPrompt, load_prompts
from specdec.stats import Table
from specdec.stats.report import paired_ratio, provenance, show
from specdec.system import write_whole

Row = dict[str, Any]


@dataclass
class Turns:
    """What an arm did in second turns.

    Attributes:
        tokens: of their prompts.
        read, read_by_drafts: of these by the oracle, and by the draft model.
        first: seconds to the first token, a question an entry.
        outputs: ids of both turns, of every question.
    """

    tokens: int = 0
    read: int = 0
    read_by_drafts: int = 0
    first: list[float] = field(default_factory=list)
    outputs: list[list[list[int]]] = field(default_factory=list)

    def add(self, first: Result, second: Result, num_tokens: int) -> None:
        """Take in a question: the results of both turns, and how long the second one's prompt is."""
        stats = second.stats
        self.tokens += num_tokens
        self.read += num_tokens - stats.num_prefix_tokens
        self.read_by_drafts += num_tokens - stats.num_draft_prefix_tokens
        self.first.append(stats.first_token_seconds)
        self.outputs.append([first.tokens[0], second.tokens[0]])


def choose(prompts: Sequence[NamedPrompt], count: int) -> list[NamedPrompt]:
    """Return up to ``count`` prompts with a second turn, at equal distances.

    Raises:
        ValueError: there is none.
    """
    found = [prompt for prompt in prompts if prompt.later_turns]
    if not found:
        raise ValueError("--prompts: none of them has a second turn")
    return found[:: max(1, len(found) // count)][:count]


def sources(model: AnyModel | None) -> dict[str, DraftSource | None]:
    """Return the arms; ``model``: the draft model, None: there is none."""
    arms: dict[str, DraftSource | None] = {"plain": None, "prompt_lookup": drafts.PromptLookup(3)}
    if model is not None:
        arms["small_transformer"] = drafts.SmallTransformer(model, 3)
    return arms


def ask(decoder: SpeculativeDecoder, prompt: NamedPrompt, max_new_tokens: int) -> tuple[Result, Result, int]:
    """Return the results of both turns of a conversation, and the length of the second one's prompt."""
    said: list[Row] = [{"role": "user", "content": prompt.text}]
    first = decoder.generate([said], max_new_tokens)
    answer = {"role": "assistant", "content": first.tokens[0]}
    second = [*said, answer, {"role": "user", "content": prompt.later_turns[0]}]
    result = decoder.generate([second], max_new_tokens)
    return first, result, int(result.records[0]["num_committed"])


def measure(
    oracle: Oracle, source: DraftSource | None, prompts: Sequence[NamedPrompt], max_new_tokens: int
) -> dict[bool, Turns]:
    """Return what an arm did without prefix sharing (False) and with it (True)."""
    found = {sharing: Turns() for sharing in (False, True)}
    decoders = {sharing: SpeculativeDecoder(oracle, source, prefix_sharing=sharing) for sharing in found}
    for i, prompt in enumerate(prompts):
        for sharing in (False, True) if i % 2 else (True, False):
            found[sharing].add(*ask(decoders[sharing], prompt, max_new_tokens))
    if found[False].outputs != found[True].outputs:
        raise ValueError(
            "prefix sharing changed an answer: where passes are equal up to numerics only (eager passes) that happens; "
            "with the native backend please report it, with the oracle's name"
        )
    return found


def rows_of(name: str, found: Mapping[bool, Turns]) -> list[Row]:
    """Return the rows of an arm."""
    count = len(found[True].first)
    return [
        {
            "arm": name,
            "sharing": "yes" if sharing else "no",
            "prompt": f"{turns.tokens / count:.0f}",
            "read": f"{turns.read / count:.0f}",
            "by the draft": f"{turns.read_by_drafts / count:.0f}" if name == "small_transformer" else "",
            "first ms": f"{1e3 * sum(turns.first) / count:.1f}",
            "ratio": str(paired_ratio(found[False].first, turns.first)) if sharing else "",
        }
        for sharing, turns in found.items()
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table of the arms, and write it if a folder is named."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--oracle", default="smollm2", help="embedded or published name, folder or GGUF file (smollm2)")
    add("--draft", default=None, help="name or folder of a draft model (none: no such arm)")
    add("--prompts", type=Path, required=True, help="questions with turns, such as Spec-Bench's question.jsonl")
    add("--num-prompts", type=positive, default=20, help="questions that are asked (20)")
    add("--max-new-tokens", type=positive, default=64, help="of an answer at most (64)")
    add("--out", type=Path, help="folder for second_turns.json")
    add_placement(parser)
    options = parser.parse_args(argv)
    take_threads(options.threads)
    with refusing("second_turns"):
        oracle = load_oracle(vars(options))
        arms = sources(None if options.draft is None else load_model(options.draft, vars(options)))
        prompts = choose(load_prompts(options.prompts), options.num_prompts)
        measured = {
            name: measure(oracle, source, prompts, options.max_new_tokens)
            for name, source in tqdm(arms.items(), disable=None)
        }
    rows = [row for name, found in measured.items() for row in rows_of(name, found)]
    legend = {
        "prompt": "tokens of a second turn's prompt",
        "read": "of these by the oracle: the others stood in its cache",
        "by the draft": "of these by the draft model",
        "first ms": "milliseconds to the first token of the second turn",
        "ratio": "of these times, without sharing over with it",
    }
    note = f"Greedy, batch 1, {len(prompts)} questions, {options.max_new_tokens} new tokens a turn, {oracle.backend}."
    show([Table("Second turns with prefix sharing", rows, note, legend=legend)])
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        about = provenance(vars(options), oracle.device, oracle.backend)
        found = json.dumps({"provenance": about, "rows": rows}, indent=1)
        write_whole(options.out / "second_turns.json", found + "\n")


if __name__ == "__main__":
    main()
