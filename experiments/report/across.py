"""Pictures across runs that differ in one argument: decoding alone by batch size, temperature or draft length."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.harness.arguments import measuring_arguments
from experiments.harness.arms import PLAIN
from experiments.harness.findings.run_tables import against_rows
from experiments.harness.findings.step_columns import reason
from experiments.harness.findings.summary import UNTIMED
from experiments.harness.rule_choice import FILTER_OPTIONS
from experiments.harness.run_outcome import DECODING_ALONE, END_TO_END
from experiments.report.charts import COLOURS, Picture, Point, Series, axis, points, with_level_1
from experiments.report.pictures import number_of, over_plain
from experiments.report.runs import Run
from experiments.report.why import drafts_chains, predictions

_LENGTH = ".num_draft_tokens"
# Runs that differ in these do not make a line, and lines of such runs are not in one picture.
_MACHINE = ("processor", "device", "backend", "threads", "commit")
# An argument of so few values makes series of one picture.
FEW = 4
_AXES = {"batch_size": "rows in a batch", "temperature": "temperature"}
_WHICH = (
    "A picture joins timed runs that differ in one argument alone, on one kind of machine, with as many threads, by "
    "one commit; of several that differ in nothing it has the first."
)


def overview(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Return a row for every run: what it measured, and its fastest arm with both intervals and their verdict."""
    for run in runs:
        row = {"run": run.label, "experiment": run.facts.get("experiment"), "oracle": run.arguments["oracle"]}
        row |= {name.replace("_", " "): run.arguments[name] for name in ("batch_size", "temperature")}
        row["processor"] = run.facts.get("processor")
        others = [arm for arm in run.outcome.arms if arm != PLAIN]
        best = max(others, key=lambda arm: run.outcome.speedup(arm).value) if run.is_timed and others else None
        (found,) = [one for one in against_rows(run.outcome, PLAIN) if one["arm"] == best] or [{}]
        row["fastest"] = found.get("arm")
        yield row | {name: found.get(name) for name in (DECODING_ALONE, END_TO_END, "bootstrap", "verdict")}


def _axes(runs: Sequence[Run]) -> dict[str, str]:
    """Return the arguments that can lie across a picture, with their labels: numbers, of a strategy for instance.

    Arguments that are yes or no are left out.
    """
    own = sorted({name for run in runs for name in run.arguments if "." in name})
    numbers = [name for name in own if all(type(run.arguments.get(name)) in (int, float) for run in runs)]
    return _AXES | {name: _label(name) for name in numbers}


def _label(name: str) -> str:
    """Return how an argument of a strategy is called on an axis."""
    if name.endswith(_LENGTH):
        return f"draft length of {name.removesuffix(_LENGTH)}, tokens"
    strategy, _, option = name.partition(".")
    return f"{_words(option)} of {strategy}"


def _words(name: str) -> str:
    return name.rpartition(".")[2].replace("_", " ")


def _value(value: Any) -> str:
    """Return the value of an argument in words."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _setting(run: Run) -> dict[str, Any]:
    """Return what a run measured, and with what: its arguments, the machine, the version."""
    return {**measuring_arguments(run.arguments), **{name: run.facts.get(name) for name in ("experiment", *_MACHINE)}}


def _groups(runs: Sequence[Run], name: str) -> list[list[Run]]:
    """Return the runs that differ in one argument alone, by what they share.

    Runs without a partner are left out, and of runs that differ in nothing, all but the first.
    """
    groups: dict[str, dict[float, Run]] = {}
    drawn = [run.arguments for run in runs if run.arguments["temperature"] > 0]
    # Greedy decoding has no filters.
    alike = [one for one in FILTER_OPTIONS if len({arguments.get(one) for arguments in drawn}) == 1]
    beside = (name, *alike) if name == "temperature" else (name,)
    for run in runs:
        if run.is_timed and name in run.arguments:
            rest = {key: value for key, value in _setting(run).items() if key not in beside}
            shared = json.dumps(rest, sort_keys=True)
            groups.setdefault(shared, {}).setdefault(run.arguments[name], run)
    return [[group[value] for value in sorted(group)] for group in groups.values() if len(group) > 1]


# What tells a group from the others of its picture, by name and in words -> its runs.
_Groups = Mapping[tuple[tuple[str, str], ...], Sequence[Run]]


def _together(groups: Sequence[list[Run]], name: str) -> list[_Groups]:
    """Return the groups of each picture, by what tells them apart.

    Groups of one machine and one experiment become series of one picture, if at most ``FEW`` values tell them apart
    and there are colours for all.
    """
    settings = [_setting(group[0]) for group in groups]
    values = {key: {json.dumps(one.get(key)) for one in settings} for key in settings[0]} if settings else {}
    apart = [key for key, found in values.items() if key != name and len(found) > 1]
    few = [key for key in apart if len(values[key]) <= FEW and key not in ("experiment", *_MACHINE)]
    found: dict[str, dict[tuple[tuple[str, str], ...], list[Run]]] = {}
    for one, group in zip(settings, groups, strict=True):
        place = json.dumps([one.get(key) for key in apart if key not in few])
        found.setdefault(place, {})[tuple((_words(key), _value(one.get(key))) for key in few)] = group
    pictures: list[_Groups] = []
    for part in found.values():
        fits = sum(len(_arms(group, name)) for group in part.values()) <= COLOURS
        pictures += [part] if fits else [{(): group} for group in part.values()]
    return pictures


def _arms(group: Sequence[Run], name: str) -> list[str]:
    """Return the arms that all runs of a group have, and that the argument is about."""
    arms = [arm for arm in group[0].drafting if all(arm in run.drafting for run in group)]
    return [arm for arm in arms if arm == name.partition(".")[0]] if "." in name else arms


def _theory(group: Sequence[Run], name: str, arm: str) -> list[tuple[float, float]]:
    """Return theory's curve of an arm.

    For draft lengths it is what the steps of the longest tell about shorter ones; for other arguments, each run's
    prediction from its acceptance rate. Empty for arms that did not draft chains.
    """
    if name.endswith(_LENGTH):
        return [(length, parts.speedup) for length, parts in predictions(group[-1], arm).items()]
    found = [(run.arguments[name], run, run.drafting[arm]) for run in group]
    if not all(drafts_chains(stats) for _, _, stats in found):
        return []
    return [(value, reason(run.plain, stats)["from alpha"]) for value, run, stats in found]


def _series_of(groups: _Groups, name: str) -> list[Series]:
    """Return a series for every arm of every group: named by what tells groups apart if there is one arm.

    An arm that is a single series has the colour that it has on the whole page.
    """
    found: list[Series] = []
    is_alone = len({arm for group in groups.values() for arm in _arms(group, name)}) == 1
    for apart, group in groups.items():
        values = ", ".join(f"{key} {value}" if is_alone else value for key, value in apart)
        for arm in _arms(group, name):
            speedups = [(run.arguments[name], run.outcome.decoding_speedup(arm)) for run in group]
            line = [Point.of(value, interval) for value, interval in speedups if interval is not None]
            label = (values if is_alone else f"{arm}, {values}") if apart else arm
            number = len(found) if apart else number_of(group[0], arm)
            found.append(Series(label, number, line, _theory(group, name, arm)))
    return found


def _common_settings(own: _Groups, groups: Sequence[Sequence[Run]], name: str) -> str:
    """Return what the groups of a picture share and other groups do not."""
    others, mine = ([_setting(group[0]) for group in some] for some in (groups, own.values()))
    differing = [
        f"{key.replace('_', ' ')} {_value(value)}"
        for key, value in mine[0].items()
        if key != name and all(one.get(key) == value for one in mine)
        if any(other.get(key, value) != value for other in others)
    ]
    return f" ({', '.join(differing)})" if differing else ""


def _picture(own: _Groups, groups: Sequence[Sequence[Run]], name: str, label: str) -> Picture | None:
    drawn = _series_of(own, name)
    if not drawn:
        return None
    way = (
        "what the steps of the longest drafts tell of shorter ones"
        if name.endswith(_LENGTH)
        else "from each run's acceptance rate and costs, for arms that drafted chains"
    )
    apart = ", ".join(key for key, _ in next(iter(own)))
    series = f" A series has an arm and one {apart}." if apart else ""
    note = f"Points: measured, with 95 % intervals{_common_settings(own, groups, name)}.{series} Dashed: theory, {way}."
    ticks = axis(label, tickvals=sorted({run.arguments[name] for group in own.values() for run in group}))
    title = f"Decoding alone by {label.partition(',')[0]}"
    return with_level_1(points(title, note, label, over_plain(DECODING_ALONE), drawn, True, xaxis=ticks))


def across(runs: Sequence[Run]) -> list[Picture | str]:
    """Return the pictures of what the runs vary, or a sentence in the place of each."""
    if not any(run.is_timed for run in runs):
        return [f"No picture across the runs: {UNTIMED}"]
    found: list[Picture | str] = []
    drawn: set[str] = set()
    left = {run.folder: run.label for run in runs}
    for name, label in _axes(runs).items():
        groups = _groups(runs, name)
        for own in _together(groups, name):
            picture = _picture(own, groups, name, label)
            if picture is not None:
                found.append(picture)
                drawn.add(_subject(name))
                seen = {run.folder for group in own.values() for run in group}
                left = {folder: left[folder] for folder in left if folder not in seen}
    lacking = [subject for subject in map(_subject, (*_AXES, _LENGTH)) if subject not in drawn]
    told = [f"No picture of speed by {subject}: no runs differ in that alone." for subject in lacking]
    return [*found, *told, *([f"In none of these pictures: {', '.join(left.values())}. {_WHICH}"] if left else [])]


def _subject(name: str) -> str:
    """Return what lies across the pictures of an argument."""
    return "draft length" if name.endswith(_LENGTH) else _AXES.get(name, _words(name))
