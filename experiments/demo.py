"""The demo: every strategy beside plain decoding on as many prompts as fit into two minutes, and what follows.

It takes the options of ``experiments.compare``; --num-prompts is the most prompts to decode.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from exactspec.ending import as_program
from exactspec.parser import command_like_this, refusing
from experiments.harness.arms import units_of
from experiments.harness.conversations import as_conversations
from experiments.harness.journal import command_line
from experiments.harness.models import load_oracle
from experiments.harness.run_outcome import Outcome
from experiments.harness.running import COMPARE, build_arms, measure, plan_of, run, warm_up
from experiments.harness.study import Plan, prepare
from experiments.peers import RefusedArm
from experiments.report.__main__ import write_page
from experiments.report.page import plotly_source
from specdec.stats.report import Shown

# Seconds for the prompts; loading, training the n-gram model and the native build come before.
BUDGET = 70.0
FEWEST = 8
# The page steps through the first prompt.
TRACED = ("--trace", "1")


def fitting(plan: Plan, budget: float) -> int:
    """Return how many prompts all arms decode in a budget of seconds, judged by the first one, at least ``FEWEST``."""
    prompts = prepare({**plan.arguments, "num_prompts": FEWEST})
    oracle = load_oracle(plan.arguments)
    asked = as_conversations(prompts, oracle, plan.arguments)
    arms = [arm for arm in build_arms(plan, oracle) if not isinstance(arm, RefusedArm)]
    first = units_of(asked, plan.arguments["batch_size"], seed=plan.arguments["seed"])[0]
    warm_up(arms, first)
    began = time.perf_counter()
    measure(first, arms, plan.arguments["max_new_tokens"], plan.arguments["repeats"])
    each = (time.perf_counter() - began) / len(first.prompts)
    most: int = plan.arguments["num_prompts"]
    return min(max(int(budget / each), FEWEST), most)


def main(argv: Sequence[str] | None = None) -> int:
    """Choose how many prompts fit, measure, conclude, and write the page."""
    given, folders = [*TRACED, *(sys.argv[1:] if argv is None else argv)], list[Path]()

    def remember(outcome: Outcome, folder: Path) -> list[Shown]:
        folders.append(folder)
        return []

    plan = plan_of(COMPARE, given, __doc__)
    with refusing("demo"):
        count = fitting(plan, BUDGET)
    words = [*given, "--num-prompts", str(count)]
    # Another number would fit another time: what goes on with these prompts is ``compare``.
    way = command_line(command_like_this("experiments.compare"), words)
    status = run(replace(plan_of(COMPARE, words, __doc__), way=way), report=remember)
    if status == 0:
        with refusing("demo"):
            print(page_of(folders))
    return status


def page_of(folders: Sequence[Path]) -> str:
    """Write the page of finished runs and return where it lies; without the charting library, that there is none.

    Raises:
        ValueError: see ``write_page``.
    """
    try:
        plotly_source()
    except ValueError as error:
        return f"No page: {error}"
    return f"Page: {write_page(folders)}"


if __name__ == "__main__":
    as_program(main)
