"""Up to which batch drafts pay: speed-up by batch size and draft length, beside the prediction from a pass's cost.

At every batch size, plain decoding and a strategy with drafts of each length decode the same prompts, interleaved, past
the ends of texts. A step is taken apart by phase: step(0) = a, step(k) = a + b [k > 0] + c k for k drafted tokens.
The prediction takes the time of each pass from separately timed passes of as many rows, and all else from these parts.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from exactspec.ending import as_program
from exactspec.parser import positive, refusing
from experiments.advise.cells import FIXED
from experiments.harness.arguments import add_strategies, common_parser
from experiments.harness.models import needing_a_model
from experiments.harness.own_places import FORMS, name_or_place
from experiments.harness.rule_choice import add_sampling
from experiments.harness.run_outcome import DECODING_ALONE, SPEEDS
from experiments.harness.study import Plan, Study
from experiments.strategies.strategy import LENGTH
from experiments.studies.crossover.batch_sizes import Crossover, Size, crossing
from specdec.stats import Table
from specdec.stats.report import Panel, Shown, panels, show

COLUMNS = {
    **SPEEDS,
    "predicted": f"{DECODING_ALONE}: tau rows (a + (n - 1) a_score) / (w a_score + what drafting and the rest take by "
    "the parts below); n, w: mean time of a pass of plain decoding and of the arm over that of a plain pass of all "
    "rows, from passes timed apart with as many rows as each step had",
    "v": "time of a pass of 1 + k nodes a row over that of a pass of 1, both timed apart",
    "tau": "measured tokens of a row's step",
    "rows": "measured rows in flight, over plain decoding's",
}
PARTS = (
    "Milliseconds of a step with all rows in flight, as sums of the phases' medians. a: a plain step; b: what a draft "
    "adds once; c: what each drafted token adds; b and c by least squares over all k above 0, in all and by phase "
    "(rest: verdict, commit, what lies between steps). k = 1 and on: the residual there, measured over a + b + c k, "
    "less 1."
)


def conclusions(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Return, for each draft length, up to which batch it pays, as measured and as predicted; rows ascend by batch."""
    for length in dict.fromkeys(row["k"] for row in rows):
        own = [row for row in rows if row["k"] == length]
        found = {name: crossing([(row["batch"], row[name]) for row in own]) for name in (DECODING_ALONE, "predicted")}
        words = {name: _until(at, own[0]["batch"], own[-1]["batch"]) for name, at in found.items()}
        yield f"k = {length}: {words[DECODING_ALONE]} as measured, {words['predicted']} as predicted."


def _until(at: float | None, smallest: int, largest: int) -> str:
    if at is None:
        return f"pays at every batch to {largest}"
    return f"does not pay at batch {smallest}" if at <= smallest else f"pays to batch {at:.0f}"


def draw(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the picture: measured speed-ups as dots, predicted ones as lines, by batch size."""
    series = {f"k = {row['k']}": [one for one in rows if one["k"] == row["k"]] for row in rows}
    dots = {name: [(one["batch"], one[DECODING_ALONE]) for one in own] for name, own in series.items()}
    lines = {name: [(one["batch"], one["predicted"]) for one in own] for name, own in series.items()}
    panels(path, [Panel("rows in a batch", f"{DECODING_ALONE}, over plain decoding", lines, dots, log_up=False)])


def report(rows: Sequence[Mapping[str, Any]], parts: Sequence[Mapping[str, Any]]) -> list[Shown]:
    """Return up to which batch size drafts pay, and the tables of all of them."""
    told = "\n".join(f"- {text}" for text in conclusions(rows))
    return [told, Table("Speed by batch size", rows, legend=COLUMNS), Table("Parts of a step", parts, PARTS)]


def _fixed(text: str) -> str:
    return name_or_place(text, FIXED, "strategy with drafts of a fixed length")


def parse(argv: Sequence[str] | None) -> dict[str, Any]:
    """Return the arguments."""
    parser = common_parser(__doc__, num_prompts=32, max_new_tokens=64)
    add = parser.add_argument
    add("--batch-sizes", type=positive, nargs="+", default=[1, 2, 4, 8, 16, 32], help="rows in flight (1 2 4 8 16 32)")
    add(
        "--draft-lengths",
        type=positive,
        nargs="+",
        default=[1, 2, 4, 8],
        help="tokens of a draft; at least two lengths (1 2 4 8)",
    )
    own = f"or your own function of the oracle and of num_draft_tokens, {FORMS}"
    text = f"what drafts, of {', '.join(FIXED)}; {own}"
    add("--strategy", type=_fixed, default="small_transformer", metavar="NAME", help=f"{text} (%(default)s)")
    add_sampling(parser)
    add_strategies(parser, FIXED, chosen=(LENGTH,))
    arguments = needing_a_model(vars(parser.parse_args(argv)), "crossover")
    return {**arguments, **{name: sorted(set(arguments[name])) for name in ("batch_sizes", "draft_lengths")}}


def check(arguments: Mapping[str, Any], num_prompts: int) -> None:
    """Refuse what cannot be measured.

    Raises:
        ValueError: one draft length, or fewer prompts than the largest batch has rows.
    """
    if len(arguments["draft_lengths"]) < 2:
        raise ValueError("--draft-lengths: two at least tell what a draft costs once from what each token costs")
    largest = max(arguments["batch_sizes"])
    if num_prompts < largest:
        raise ValueError(
            f"--num-prompts: {num_prompts} prompts fit the oracle, and the largest batch has {largest} rows: give more "
            "prompts, or smaller --batch-sizes"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the tables; 1 if a batch size failed."""
    arguments = parse(argv)
    with ExitStack() as stack:
        with refusing("crossover"):
            study = Study.open(Plan("crossover", arguments), stack)
            check(arguments, len(study.fitting))
            measuring = Crossover(arguments, study.oracle, study.fitting)
            measuring.arms(1)
        sizes = [Size(number, f"batch {size}", size) for number, size in enumerate(arguments["batch_sizes"])]
        done = study.measure(sizes, measuring.measure)
        study.write("crossover.json", {"sizes": done})
        rows = [row for entry in done for row in entry["rows"]]
        if done:
            draw(study.folder / "crossover.png", rows)
        wrong = study.finish(sizes)
        print(f"{study.machine}.\n")
        if done:
            show(report(rows, [entry["parts"] for entry in done]))
        return study.tell(wrong)


if __name__ == "__main__":
    as_program(main)
