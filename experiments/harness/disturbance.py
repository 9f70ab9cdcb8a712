"""Units of a run whose times were spoilt by other work on the machine, as far as plain decoding's times show."""

import shlex
from pathlib import Path
from statistics import median
from typing import Any

from experiments.harness.arms import PLAIN
from experiments.harness.run_outcome import Outcome
from specdec.stats import Stats

# So many times the median is no matter of a prompt's length or of a batch's size.
SUSPICIOUS = 3.0


def disturbed_units(outcome: Outcome) -> list[dict[str, Any]]:
    """Return the entries of the units where a pass of plain decoding took over ``SUSPICIOUS`` times its median."""
    plain = [(entry, Stats.from_dict(entry["arms"][PLAIN]["stats"])) for entry in outcome.done]
    times = [(entry, seconds) for entry, stats in plain if (seconds := stats.seconds_per_call("score")) is not None]
    most = SUSPICIOUS * median([seconds for _, seconds in times] or [0.0])
    return [entry for entry, seconds in times if seconds > most]


def disturbance_warning(outcome: Outcome) -> str | None:
    """Return how many units were disturbed, as a sentence without its full stop; None: no unit was."""
    found = disturbed_units(outcome)
    if not found:
        return None
    return (
        f"Other work seems to have disturbed {len(found)} of {len(outcome.done)} units, where a pass of plain decoding "
        f"took over {SUSPICIOUS:g} times its median"
    )


def disturbance_note(outcome: Outcome, units: Path, journal: Path, way: str | None = None) -> str | None:
    """Return which units were disturbed, and how to measure these again; None: no unit was.

    Args:
        outcome: of a run that is complete.
        units: file of its entries.
        journal: from which the next run with its arguments goes on.
        way: the command that goes on with it; None: the one that made it.
    """
    found = disturbed_units(outcome)
    if not found:
        return None
    names = ", ".join(f"{entry['unit']} ({', '.join(entry['prompts'])})" for entry in found)
    numbers = "|".join(str(entry["unit"]) for entry in found)
    kept = shlex.join(["grep", "-vE", f'^."unit": ({numbers}),', str(units)])
    return (
        f"{disturbance_warning(outcome)}: {names}. To measure these again: "
        f"{kept} > {shlex.quote(str(journal))}; then give {way or 'the same command, without --fresh'}"
    )
