"""Draft with a model that is itself decoded speculatively, paired with plain decoding and with the same model unstaged.

The unstaged arm, small_transformer, has the same draft model and draft depth.
"""

from collections.abc import Sequence

from exactspec.ending import as_program
from experiments.harness.arguments import add_strategy, paired_parser
from experiments.harness.recorded_runs import add_record_options
from experiments.harness.running import run
from experiments.harness.study import Plan
from experiments.strategies import STRATEGIES
from experiments.strategies.strategy import default_of

UNSTAGED = "small_transformer"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment; 1 if something failed."""
    parser = paired_parser(__doc__)
    add_strategy(parser, STRATEGIES["staged"], prefixed=False)
    add_record_options(parser)
    arguments = vars(parser.parse_args(argv))
    for option in STRATEGIES[UNSTAGED].options:
        usual = default_of(UNSTAGED, option, arguments)
        arguments[f"{UNSTAGED}.{option.key}"] = arguments.get(f"staged.{option.key}", usual)
    return run(Plan("staged", arguments, (UNSTAGED, "staged")))


if __name__ == "__main__":
    as_program(main)
