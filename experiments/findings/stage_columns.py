"""What the drafting models did that are decoded speculatively themselves."""

from typing import Any

from experiments.harness.run_outcome import Outcome

STAGES_NOTE = "Drafting models that are decoded speculatively themselves, outermost first."
STAGES = {
    "passes": "of the stage's model",
    "tokens/step": "emitted per pass of a row",
    "used": "accepted / drafted of its inner source",
    "ms/pass": "model and verdict",
    "inner ms/pass": "the inner source, deeper stages included",
}
STAGES_BRIEF = ("arm", "stage", "tokens/step", "used", "ms/pass")


def stage_rows(outcome: Outcome) -> list[dict[str, Any]]:
    """Return what each stage inside the arms' sources did."""
    rows = []
    for arm in outcome.arms:
        stats = outcome.stats(arm)
        for name, stage in {} if stats is None else stats.stages.items():
            rows.append(
                {
                    "arm": arm,
                    "stage": name,
                    "passes": stage["passes"],
                    "tokens/step": stage["emitted"] / max(stage["steps"], 1),
                    "used": stage["accepted"] / stage["drafted"] if stage["drafted"] else None,
                    "ms/pass": 1e3 * stage["seconds"] / max(stage["passes"], 1),
                    "inner ms/pass": 1e3 * stage["inner_seconds"] / max(stage["passes"], 1),
                }
            )
    return rows
