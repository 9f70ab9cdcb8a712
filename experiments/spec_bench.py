"""Spec-Bench's table: the speed-up of every strategy by category, and its mean accepted tokens, with intervals.

``python -m experiments.spec_bench --file question.jsonl`` reads the questions of Spec-Bench (Xia et al. 2024, arXiv
2401.07851), or any file with a category for each prompt. Of a conversation the first turn is decoded, or with
``--turns all`` every turn, each after plain decoding's answer to the one before.
"""

import sys
from collections.abc import Sequence
from typing import Any

from experiments.arguments import paired_parser
from experiments.arms import PLAIN
from experiments.harness import compare, comparing
from experiments.models import needing_a_model
from experiments.outcome import ALL, Outcome

CONVERSATION = "Multi-turn Conversation"
# The columns of the published table, and the categories of the file that they hold.
CATEGORIES = {
    **dict.fromkeys(
        ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"), CONVERSATION
    ),
    "translation": "Translation",
    "summarization": "Summarization",
    "qa": "Question Answering",
    "math_reasoning": "Mathematical Reasoning",
    "rag": "Retrieval-aug. Generation",
}


def rows_of(outcome: Outcome) -> dict[str, list[dict[str, Any]]]:
    """Return the table: a row for every arm beside plain decoding, a column for every category that was measured.

    Mean accepted tokens are those that a verify pass of a row emits, the recovered or bonus token among them, as
    Spec-Bench counts them.
    """
    entries = [{**entry, "kind": CATEGORIES.get(entry["kind"], entry["kind"])} for entry in outcome.entries]
    grouped = Outcome(outcome.arms, entries)
    columns = [*dict.fromkeys(name for name in CATEGORIES.values() if name in grouped.kinds)]
    columns += [name for name in grouped.kinds if name not in columns]
    rows = []
    for arm in grouped.arms:
        if arm == PLAIN:
            continue
        row: dict[str, Any] = {"arm": arm, **{name: str(grouped.speedup(arm, name)) for name in columns}}
        ours = grouped.stats(arm) is not None
        row["Mean Accepted Tokens"] = str(grouped.block_efficiency(arm, ALL)) if ours else None
        rows.append({**row, "Overall": str(grouped.speedup(arm))})
    return {"Spec-Bench": rows}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the table after those of all experiments."""
    parser = comparing(paired_parser(__doc__))
    parser.add_argument("--file", dest="prompts", help="question.jsonl; the same as --prompts")
    parser.set_defaults(prompts=None, num_prompts=None, max_new_tokens=1024)
    arguments = needing_a_model(vars(parser.parse_args(argv)), "spec_bench")
    if arguments["prompts"] is None:
        parser.error("--file: give Spec-Bench's question.jsonl, or another file with a category for each prompt")
    return compare("spec_bench", arguments, rows_of)


if __name__ == "__main__":
    sys.exit(main())
