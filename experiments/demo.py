"""The demo: every strategy beside plain decoding on as many prompts as two minutes hold, and what follows from it.

Takes the options of ``experiments.compare``; --num-prompts is the most prompts that are decoded.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.arguments import refusing
from experiments.arms import PLAIN, units_of
from experiments.harness import COMPARE, WARM_UP_TOKENS, Plan, build_arms, measure, plan_of, prepare, run
from experiments.models import load_oracle
from experiments.outcome import Outcome
from experiments.peers import RefusedArm
from specdec.intervals import bootstrap_ratio, verdict

# Seconds for the prompts; loading, training the n-gram model and the native build come before.
BUDGET = 70.0
FEWEST = 8


def fitting(plan: Plan, budget: float) -> int:
    """Return how many prompts all arms decode in a budget of seconds, judged by the first one, at least ``FEWEST``."""
    prompts = prepare({**plan.arguments, "num_prompts": FEWEST})
    arms = [arm for arm in build_arms(plan, load_oracle(plan.arguments)) if not isinstance(arm, RefusedArm)]
    first, seeds = units_of(prompts, plan.arguments["batch_size"])[0], [(plan.arguments["seed"], 0)]
    for arm in arms:
        arm.run(first.prompts[:1], seeds, WARM_UP_TOKENS)
    began = time.perf_counter()
    measure(first, arms, plan.arguments["seed"], plan.arguments["max_new_tokens"], plan.arguments["repeats"])
    each = (time.perf_counter() - began) / len(first.prompts)
    most: int = plan.arguments["num_prompts"]
    return min(max(int(budget / each), FEWEST), most)


def conclusion(outcome: Outcome, folder: Path) -> str:
    """Return in two sentences what the run says, and where its picture lies."""
    speedups = {arm: outcome.speedup(arm) for arm in outcome.arms if arm != PLAIN}
    best = max(speedups, key=lambda arm: speedups[arm].value)
    if verdict(speedups[best], outcome.speedup(best, method=bootstrap_ratio)) == "faster":
        first = f"{best}, the best of {len(speedups)}, is {speedups[best]} times as fast as plain decoding."
    else:
        first = f"No strategy is told apart from plain decoding as faster here; the best is {best}, {speedups[best]}."
    same = [identical for arm in outcome.arms for identical in outcome.identical(arm)]
    second = f"{sum(same)} of {len(same)} outputs, of {len(outcome.arms)} arms, are plain decoding's, token for token."
    return f"{first}\n{second}\n\nPicture: {folder / 'picture.png'}"


def main(argv: Sequence[str] | None = None) -> int:
    """Choose how many prompts fit, measure, and conclude."""
    given = list(sys.argv[1:] if argv is None else argv)
    plan = plan_of(COMPARE, given, __doc__)
    with refusing("demo"):
        count = fitting(plan, BUDGET)
    return run(plan_of(COMPARE, [*given, "--num-prompts", str(count)], __doc__), report=conclusion)


if __name__ == "__main__":
    sys.exit(main())
