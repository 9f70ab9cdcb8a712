"""Measure what the second turn of a conversation costs if its beginning is not read again.

It uses the prompts that have a second turn. Each arm decodes the first turn and then, after its answer, the second,
once with ``prefix_sharing`` and once without. Decoding is greedy, so --seed changes nothing.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from tqdm import tqdm

import drafts
from exactspec.ending import as_program
from exactspec.parser import refusing
from experiments.harness.arguments import PROMPTS, common_parser, prompts_of
from experiments.harness.arms import decodable_prompts
from experiments.harness.models import AnyModel, load_model
from experiments.harness.study import Plan, Study
from specdec import Result, SpeculativeDecoder
from specdec.contracts import DraftSource, Oracle
from specdec.prompts import NamedPrompt, load_prompts
from specdec.stats import Table
from specdec.stats.report import paired_ratio, show

Row = dict[str, Any]
LEGEND = {
    "prompt": "tokens of a second turn's prompt",
    "read": "of these, tokens that the oracle read: the others were in its cache",
    "by the draft": "of these, tokens that the draft model read",
    "first ms": "milliseconds to the first token of the second turn",
    "ratio": "that time without prefix sharing over that with it",
}


@dataclass
class SecondTurns:
    """What an arm did in second turns.

    Attributes:
        tokens: of their prompts.
        read, read_by_drafts: of these, read by the oracle and by the draft model.
        first: seconds to the first token, an entry a question.
        outputs: ids of both turns, of every question.
    """

    tokens: int = 0
    read: int = 0
    read_by_drafts: int = 0
    first: list[float] = field(default_factory=list)
    outputs: list[list[list[int]]] = field(default_factory=list)

    def add(self, first: Result, second: Result, num_tokens: int) -> None:
        """Add a question: the results of both turns, and the length of the second one's prompt."""
        stats = second.stats
        self.tokens += num_tokens
        self.read += num_tokens - stats.num_prefix_tokens
        self.read_by_drafts += num_tokens - stats.num_draft_prefix_tokens
        self.first.append(stats.first_token_seconds)
        self.outputs.append([first.tokens[0], second.tokens[0]])


def choose(arguments: Mapping[str, Any]) -> list[NamedPrompt]:
    """Return as many prompts with a second turn as are asked for, evenly spaced.

    Raises:
        ValueError: there is none.
    """
    count, prompts = arguments["num_prompts"], load_prompts(prompts_of(arguments), arguments["column"])
    found = [prompt for prompt in prompts if prompt.later_turns]
    if not found:
        raise ValueError("--prompts: none of them has a second turn")
    return found[:: max(1, len(found) // count)][:count]


def with_room(oracle: Oracle, prompts: Sequence[NamedPrompt], max_new_tokens: int) -> list[NamedPrompt]:
    """Return those whose second turn can be decoded after the longest answer; the rest as of ``decodable_prompts``."""
    longest = [0] * max_new_tokens
    whole = [replace(prompt, messages=tuple(second_turn(prompt, longest))) for prompt in prompts]
    fitting = {prompt.name for prompt in decodable_prompts(oracle, whole, max_new_tokens)}
    return [prompt for prompt in prompts if prompt.name in fitting]


def second_turn(prompt: NamedPrompt, answer: Sequence[int]) -> list[Mapping[str, Any]]:
    """Return a conversation up to its second question, after an answer of these ids."""
    asked = {"role": "user", "content": prompt.later_turns[0]}
    return [*prompt.messages, {"role": "assistant", "content": [*answer]}, asked]


def sources(model: AnyModel | None) -> dict[str, DraftSource | None]:
    """Return the arms; ``model``: the draft model, None: there is none."""
    arms: dict[str, DraftSource | None] = {"plain": None, "prompt_lookup": drafts.PromptLookup(3)}
    if model is not None:
        arms["small_transformer"] = drafts.SmallTransformer(model, 3)
    return arms


def ask(decoder: SpeculativeDecoder, prompt: NamedPrompt, max_new_tokens: int) -> tuple[Result, Result, int]:
    """Return the results of both turns of a conversation, and the length of the second one's prompt."""
    first = decoder.generate([prompt.start], max_new_tokens)
    result = decoder.generate([second_turn(prompt, first.tokens[0])], max_new_tokens)
    return first, result, int(result.records[0]["num_committed"])


def measure(
    oracle: Oracle, source: DraftSource | None, prompts: Sequence[NamedPrompt], max_new_tokens: int
) -> dict[bool, SecondTurns]:
    """Return what an arm did without prefix sharing (False) and with it (True).

    Raises:
        ValueError: prefix sharing changed an answer.
    """
    found = {sharing: SecondTurns() for sharing in (False, True)}
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


def rows_of(name: str, found: Mapping[bool, SecondTurns]) -> list[Row]:
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


def parse(argv: Sequence[str] | None) -> dict[str, Any]:
    """Return the arguments."""
    usual = "the shipped conversations"
    parser = common_parser(__doc__, 20, 64, resumes=False, usual_prompts=usual, spread="at equal distances")
    parser.set_defaults(oracle="smollm2", prompts=str(PROMPTS.with_name("conversations.jsonl")))
    parser.add_argument("--draft", help="name or folder of a draft model (none: no such arm)")
    return vars(parser.parse_args(argv))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print a table of the arms.

    Raises:
        SystemExit: the oracle has no chat template, an answer changed, or the arguments cannot be run; with the reason.
    """
    arguments = parse(argv)
    with ExitStack() as stack:
        with refusing("second_turns"):
            study = Study.open(Plan("second_turns", arguments), stack, choose=choose)
            oracle, draft, new = study.oracle, arguments["draft"], arguments["max_new_tokens"]
            if oracle.chat_template is None:
                raise ValueError("second turns need a chat template: name one by --template, which is not 'none'")
            arms = sources(None if draft is None else load_model(draft, arguments))
            study = replace(study, prompts=with_room(oracle, study.prompts, new))
            measured = {
                name: measure(oracle, source, study.prompts, new) for name, source in tqdm(arms.items(), disable=None)
            }
        rows = [row for name, found in measured.items() for row in rows_of(name, found)]
        note = f"Greedy, batch 1, {len(study.prompts)} questions, {new} new tokens a turn; {study.machine}."
        study.write("second_turns.json", {"rows": rows})
        show([Table("Second turns with prefix sharing", rows, note, legend=LEGEND)])
        return study.tell([])


if __name__ == "__main__":
    as_program(main)
