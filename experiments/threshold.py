"""Draft lengths that follow the draft's confidence, beside fixed lengths and plain decoding.

A small transformer, or the head that --drafter names, drafts chains: one arm for each fixed length (--gammas), and one
for each policy: "threshold" (the moving threshold, calibrated on this machine), "constant" and "tracked" (thresholds
on each token's confidence), "entropy" and "heuristic"; and one for each policy of your own (--lengths): an object, or a
class or function that makes one, at FILE.py:NAME, with values for it at FILE.py:NAME:KEY=VALUE,KEY=VALUE.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from exactspec.ending import as_program
from experiments.harness.arguments import add_strategy, paired_parser, settings_of
from experiments.harness.arms import PLAIN, EngineArm
from experiments.harness.building import engine_arms
from experiments.harness.own_places import check_names, told_at
from experiments.harness.run_outcome import Outcome
from experiments.harness.running import run
from experiments.harness.study import Plan
from experiments.strategies import STRATEGIES
from experiments.strategies.model_strategies import calibration, confident_source, fixed_source
from experiments.strategies.own_strategies import add_own_lengths, own_lengths
from specdec import Calibration, DraftSource, Entropy, Heuristic, Oracle, Threshold
from specdec.drafting.lengths import LengthPolicy, Tracked
from specdec.stats import Table

NAME = "threshold"
_FIXED = "fixed "
NOTE = (
    "Over best: wall time of the best fixed length over the arm's, with an interval; it is the best on these very "
    "prompts, which flatters it."
)
LEGEND = {
    "counted": "tokens in the time of a plain step, if a drafted token costs what the calibration says (this run's "
    "times play no part)",
    "tau": "tokens per verify pass",
    "used": "accepted / drafted",
}


def policies(measured: Calibration, longest: int) -> dict[str, LengthPolicy]:
    """Return the policies, but for fixed lengths, by the names of their arms."""
    return {
        NAME: Threshold(measured, max_draft_tokens=longest),
        "constant": Threshold(threshold=0.4, per_token=True, max_draft_tokens=longest),
        "tracked": Threshold(threshold=Tracked(), per_token=True, max_draft_tokens=longest),
        "entropy": Entropy(max_draft_tokens=longest),
        "heuristic": Heuristic(min(5, longest), max_draft_tokens=longest),
    }


def own_sources(places: Sequence[str], make_source: Callable[[LengthPolicy], DraftSource]) -> dict[str, DraftSource]:
    """Return name -> source with the length policy at each place.

    Raises:
        ValueError: there is none at a place, or the drafter cannot have it; with the place.
    """
    return {name: told_at(f"--lengths {name}", partial(make_source, of)) for name, of in own_lengths(places).items()}


def build(plan: Plan, oracle: Oracle) -> list[EngineArm]:
    """Return plain decoding and one arm for each policy.

    Raises:
        ValueError: an option is unusable, with its name; told before anything is measured.
    """
    arguments = plan.arguments
    settings = settings_of(arguments, NAME)
    make_source, longest = confident_source(settings, oracle), settings["num_draft_tokens"]
    fixed = {f"{_FIXED}{gamma}": fixed_source(make_source, gamma, "--gammas") for gamma in arguments["gammas"]}
    fixed_source(make_source, longest, "--num-draft-tokens")
    own = own_sources(arguments["lengths"], make_source)
    chosen = policies(calibration(settings, oracle, make_source), longest)
    others = {name: make_source(length) for name, length in chosen.items()}
    check_names([PLAIN, *fixed, *others, *own])
    return engine_arms(arguments, oracle, {PLAIN: None, **fixed, **others, **own})


def compare_with_fixed(outcome: Outcome) -> list[Table]:
    """Return each policy's speed over the fixed length that was fastest on the same prompts; see ``LEGEND``."""
    fixed = [arm for arm in outcome.arms if arm.startswith(_FIXED)]
    best = max(fixed, key=lambda arm: outcome.speedup(arm).value)
    measured = Calibration.from_dict(outcome.calibrations(NAME)[0])
    over, rows = f"over best ({best})", []
    for arm in outcome.arms:
        stats = outcome.stats(arm)
        if arm == PLAIN or stats is None:
            continue
        depths = np.array(stats.steps_by_depth)
        ratio = "1" if arm == best else str(outcome.speedup(arm, against=best))
        rows.append(
            {
                "arm": arm,
                over: ratio,
                "counted": stats.num_emitted / float(measured.step_cost(np.arange(len(depths))) @ depths),
                "tau": stats.block_efficiency,
                "drafted per step": stats.num_drafted / stats.num_steps,
                "used": stats.draft_utilisation,
            }
        )
    title = "Against the best fixed length"
    return [Table(title, rows, NOTE, title, ("arm", over, "counted", "tau", "used"), LEGEND)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment."""
    parser = paired_parser(__doc__)
    add_strategy(parser, STRATEGIES[NAME], prefixed=False)
    help_text = "fixed draft lengths (%(default)s)"
    parser.add_argument("--gammas", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 8], help=help_text)
    add_own_lengths(parser)
    return run(Plan(NAME, vars(parser.parse_args(argv)), (NAME,)), build, compare_with_fixed)


if __name__ == "__main__":
    as_program(main)
