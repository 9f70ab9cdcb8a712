"""Pictures across runs that differ in one argument: decoding alone by batch size, temperature or draft length."""

import json
from collections.abc import Sequence
from typing import Any

from experiments.arguments import measured
from experiments.arms import PLAIN
from experiments.outcome import DECODING_ALONE, END_TO_END
from experiments.report.charts import Picture, Point, Series, axis, points, with_level
from experiments.report.lengths import drafts_chains, predictions
from experiments.report.pictures import UNTIMED, number_of, over_plain
from experiments.report.runs import Run
from experiments.summary import against_rows, reason

_LENGTH = ".num_draft_tokens"
# Runs that differ in these do not make a line.
_MACHINE = ("processor", "device", "backend", "threads", "commit")
_AXES = {"batch_size": "rows in a batch", "temperature": "temperature"}
_WHICH = (
    "A picture joins timed runs that differ in one argument alone, on one kind of machine, with as many threads, by "
    "one commit; of several that differ in nothing it has the first."
)


def overview(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a row for every run: what it is of, and its fastest arm with both intervals and their verdict."""
    rows = []
    for run in runs:
        row = {"run": run.label, "experiment": run.facts.get("experiment"), "oracle": run.arguments["oracle"]}
        row |= {name.replace("_", " "): run.arguments[name] for name in ("batch_size", "temperature")}
        row["processor"] = run.facts.get("processor")
        others = [arm for arm in run.outcome.arms if arm != PLAIN]
        best = max(others, key=lambda arm: run.outcome.speedup(arm).value) if run.is_timed and others else None
        (found,) = [one for one in against_rows(run.outcome, PLAIN) if one["arm"] == best] or [{}]
        row["fastest"] = found.get("arm")
        rows.append(row | {name: found.get(name) for name in (DECODING_ALONE, END_TO_END, "bootstrap", "verdict")})
    return rows


def _axes(runs: Sequence[Run]) -> dict[str, str]:
    """Return the arguments that can lie across a picture, with their labels."""
    lengths = {name for run in runs for name in run.arguments if name.endswith(_LENGTH)}
    return _AXES | {name: f"draft length of {name.removesuffix(_LENGTH)}, tokens" for name in sorted(lengths)}


def _setting(run: Run) -> dict[str, Any]:
    """Return what a run measured, and with what: its arguments, the machine, the version."""
    return {**measured(run.arguments), **{name: run.facts.get(name) for name in ("experiment", *_MACHINE)}}


def _groups(runs: Sequence[Run], name: str) -> list[list[Run]]:
    """Return the runs that differ in one argument alone, by what they share.

    Those without a partner are left out, and of those that differ in nothing all but the first.
    """
    groups: dict[str, dict[float, Run]] = {}
    nuclei = {run.arguments["top_p"] for run in runs if run.arguments["temperature"] > 0}
    # Greedy decoding has no nucleus.
    beside = (name, "top_p") if name == "temperature" and len(nuclei) == 1 else (name,)
    for run in runs:
        if run.is_timed and name in run.arguments:
            rest = {key: value for key, value in _setting(run).items() if key not in beside}
            shared = json.dumps(rest, sort_keys=True)
            groups.setdefault(shared, {}).setdefault(run.arguments[name], run)
    return [[group[value] for value in sorted(group)] for group in groups.values() if len(group) > 1]


def _theory(group: Sequence[Run], name: str, arm: str) -> list[tuple[float, float]]:
    """Return theory's curve of an arm.

    Of draft lengths it is what the steps of the longest tell of shorter ones; of others, each run's prediction from its
    acceptance rate. Empty for arms that did not draft chains.
    """
    if name.endswith(_LENGTH):
        return [(one.length, one.speedup) for one in predictions(group[-1], arm)]
    found = [(run.arguments[name], run, run.drafting[arm]) for run in group]
    if not all(drafts_chains(stats) for _, _, stats in found):
        return []
    return [(value, reason(run.plain, stats)["from alpha"]) for value, run, stats in found]


def _drawn(group: Sequence[Run], name: str) -> list[Series]:
    """Return the arms that all runs of a group have, and that the argument is about."""
    arms = [arm for arm in group[0].drafting if all(arm in run.drafting for run in group)]
    if name.endswith(_LENGTH):
        arms = [arm for arm in arms if arm == name.removesuffix(_LENGTH)]
    found = []
    for arm in arms:
        speedups = [(run.arguments[name], run.outcome.decoding_speedup(arm)) for run in group]
        line = [Point.of(value, interval) for value, interval in speedups if interval is not None]
        found.append(Series(arm, number_of(group[0], arm), line, _theory(group, name, arm)))
    return found


def _held(run: Run, groups: Sequence[Sequence[Run]], name: str) -> str:
    """Return what a group's runs share and those of other groups do not."""
    others = [_setting(group[0]) for group in groups]
    differing = [
        f"{key.replace('_', ' ')} {value}"
        for key, value in _setting(run).items()
        if key != name and any(other.get(key, value) != value for other in others)
    ]
    return f" ({', '.join(differing)})" if differing else ""


def _picture(group: Sequence[Run], groups: Sequence[Sequence[Run]], name: str, label: str) -> Picture | None:
    drawn = _drawn(group, name)
    if not drawn:
        return None
    way = (
        "what the steps of the longest drafts tell of shorter ones"
        if name.endswith(_LENGTH)
        else "from each run's acceptance rate and costs, for arms that drafted chains"
    )
    note = f"Points: measured, with 95 % intervals{_held(group[0], groups, name)}. Dashed: theory, {way}."
    ticks = axis(label, tickvals=[run.arguments[name] for run in group])
    title = f"Decoding alone by {label.partition(',')[0]}"
    return with_level(points(title, note, label, over_plain(DECODING_ALONE), drawn, True, xaxis=ticks), 1.0)


def across(runs: Sequence[Run]) -> list[Picture | str]:
    """Return the pictures of what the runs vary, or a sentence in the place of each."""
    if not any(run.is_timed for run in runs):
        return [f"No picture across the runs: {UNTIMED}"]
    found: list[Picture | str] = []
    drawn: set[str] = set()
    left = {run.folder: run.label for run in runs}
    for name, label in _axes(runs).items():
        groups = _groups(runs, name)
        for group in groups:
            picture = _picture(group, groups, name, label)
            if picture is not None:
                found.append(picture)
                drawn.add(_subject(name))
                left = {folder: left[folder] for folder in left if folder not in {run.folder for run in group}}
    lacking = [subject for subject in map(_subject, (*_AXES, _LENGTH)) if subject not in drawn]
    told = [f"No picture of speed by {subject}: no runs differ in that alone." for subject in lacking]
    return [*found, *told, *([f"In none of these pictures: {', '.join(left.values())}. {_WHICH}"] if left else [])]


def _subject(name: str) -> str:
    """Return what lies across the pictures of an argument."""
    return "draft length" if name.endswith(_LENGTH) else _AXES[name]
