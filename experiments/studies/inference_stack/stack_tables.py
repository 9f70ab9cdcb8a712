"""What the study tells: a table of the stack for every batch size, ratios, ablations, and the picture of the stack."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness.findings.model_shapes import bytes_per_weight
from experiments.studies.inference_stack.stack_registry import ABLATIONS, NAIVE, StackArm, arms_of
from experiments.studies.inference_stack.stack_study import FIRST, GATE, StackStudy, is_passed
from experiments.studies.inference_stack.stack_timing import least_seconds, medians
from experiments.studies.inference_stack.study_frame import Finding
from experiments.studies.inference_stack.subjects import Subject
from specdec.stats.report import row_of_axes

# name, tokens a second; None: it failed at the gate
Bars = Sequence[tuple[str, float | None]]
_FIRST, _UP, _DOWN, _BESIDE = "0.35", "tab:green", "tab:red", "tab:blue"


def draw(path: Path, panels: Mapping[str, Bars], chained: int) -> None:
    """Write a PNG of tokens a second, on a logarithmic scale.

    Args:
        path: of the file.
        panels: title -> an arm after the other.
        chained: number of arms that build on one another: such a bar reaches from the speed before to its own, with
            their ratio; each other bar reaches from the last of these.
    """
    height = 1.2 + 0.32 * max(map(len, panels.values()))
    figure, row = row_of_axes(len(panels), (4.2 * len(panels), height))
    for number, (axes, (title, bars)) in enumerate(zip(row, panels.items(), strict=True)):
        _panel(axes, bars, chained)
        axes.set_title(title)
        axes.set_xscale("log")
        axes.set_xlabel("tokens/s")
        axes.set_yticks(range(len(bars)), [name for name, _ in bars] if number == 0 else [""] * len(bars))
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.3, linewidth=0.5)
    figure.savefig(path, dpi=120)


def _panel(axes: Any, bars: Bars, chained: int) -> None:
    speeds = [speed for _, speed in bars if speed is not None]
    if not speeds:
        return
    before = None
    for place, (_, speed) in enumerate(bars):
        if speed is None:
            axes.text(min(speeds), place, "failed", va="center", fontsize="small")
            continue
        start = min(speeds) / 2 if before is None else before
        colour = _FIRST if before is None else _DOWN if speed < start else _UP if place < chained else _BESIDE
        axes.barh(place, speed - start, left=start, color=colour, height=0.7)
        label = f" {speed:,.0f}" if before is None else f" {speed:,.0f}  x{speed / before:.2f}"
        axes.text(max(speed, start), place, label, va="center", fontsize="small")
        before = speed if before is None or place < chained else before
    axes.set_xlim(min(speeds) / 2, max(speeds) * 6)


Row = dict[str, Any]
# Tokens a second of the study that this one rebuilds, on an Apple M2 with JAX: batch size -> (naive, best).
ORIGINAL = {1: (31.4, 509.3), 8: (222.2, 2252.3), 32: (594.8, 4076.9), 128: (624.7, 6225.1)}
BEFORE = "prefill"  # what the compiled arms are to pay back against
FAILED = "failed"


def stack_rows(study: StackStudy, batch: int) -> list[Row]:
    """Return a row for every arm that is no ablation, of one batch size."""
    arms = arms_of(study.subject, ("stack", "side"))
    return [_row(study, batch, name, arm) for name, arm in arms.items() if study.is_measured(batch, name)]


def _row(study: StackStudy, batch: int, name: str, arm: StackArm) -> Row:
    row: Row = {"batch": batch, "arm": name}
    row |= _speed_cells(study, batch, name, arm)
    first = study.results.get(FIRST, batch, name) or {}
    row["load s"] = f"{first['load_seconds']:.2f}" if "load_seconds" in first else None
    row["first call s"] = f"{first['first_seconds']:.2f}" if "first_seconds" in first else None
    row["peak MB"] = f"{first['peak_bytes'] / 1e6:,.0f}" if "peak_bytes" in first else None
    return row | _gate_cells(study.results.get(GATE, batch, name))


def _speed_cells(study: StackStudy, batch: int, name: str, arm: StackArm) -> Row:
    times, subject = study.times(batch, name), study.subject
    names = ("tokens/s", "over naive", "ms a batch", "ms an example", "ms to first", "ms a token after", "roofline")
    if times is None:
        return dict.fromkeys(names, _no_times(study, batch, name))
    middle, new = medians(times), subject.num_new
    total, first = middle["seconds"], middle["first_token_seconds"]
    bound = least_seconds(subject, study.results, batch, arm.weight_bytes or bytes_per_weight(subject.oracle))
    values = (
        f"{batch * new / total:,.0f}", study.over(batch, name, NAIVE), f"{total * 1e3:.1f}",
        f"{total / batch * 1e3:.2f}", f"{first * 1e3:.1f}", f"{(total - first) / (new - 1) * 1e3:.2f}",
        None if bound is None else f"{bound / total:.0%}",
    )  # fmt: skip
    return dict(zip(names, values, strict=True))


def _no_times(study: StackStudy, batch: int, name: str) -> str | None:
    """Return what is shown in place of times: that the arm failed at the gate, or None."""
    gate = study.results.get(GATE, batch, name)
    return None if gate is None or is_passed(gate) else FAILED


def _gate_cells(gate: Finding | None) -> Row:
    if gate is None or "failed" in gate:
        return {"same ids": None if gate is None else FAILED, "exact answers": None}
    same = f"{gate['same']:,} of {gate['prompts']:,}"
    exact = None if gate["exact"] is None else f"{gate['exact'] / gate['prompts']:.2%}"
    return {"same ids": same, "exact answers": exact}


def ratio_rows(study: StackStudy) -> Iterator[Row]:
    """Return, for every batch size, the best arm over the naive one, and what caching could save at most."""
    subject = study.subject
    before, after = subject.prompt_length, subject.prompt_length + subject.num_new
    passes = sum(range(before, after)) / (after - 1)
    for batch in study.options.batches:
        stack = [name for name in arms_of(subject, ("stack",)) if name in study.arms]
        speeds = {name: study.over(batch, name, NAIVE) for name in stack}
        ran = {name: speed for name, speed in speeds.items() if speed is not None}
        if not ran:
            continue
        best = max(ran, key=lambda name: ran[name].median)
        undrafted = [name for name in ran if name not in subject.sources]
        plain = max(undrafted, key=lambda name: ran[name].median, default=None)
        row: Row = {"batch": batch, "best arm": best, "over naive": ran[best], "best without drafts": plain}
        row |= {"its ratio": plain and ran[plain], "fewer token passes": f"{passes:.2f}"}
        yield row | _original(subject, batch)


def _original(subject: Subject, batch: int) -> Row:
    if subject.name != "arithmetic":
        return {}
    pair = ORIGINAL.get(batch)
    return {"original study": None if pair is None else f"{pair[1] / pair[0]:.2f}"}


def ablation_rows(study: StackStudy) -> dict[str, list[Row]]:
    """Return the tables of the ablations: title -> rows, each compared with the first of its table."""
    tables: dict[str, list[Row]] = {}
    for name, arm in ABLATIONS.items():
        title, variant = name.split(": ", 1)
        base = next(other for other in ABLATIONS if other.startswith(title))
        for batch in study.options.batches:
            if study.is_measured(batch, name):
                row: Row = {"batch": batch, "variant": variant, "how": arm.idea}
                tables.setdefault(title, []).append(row | _ablation_cells(study, batch, name, base))
    return {title: sorted(rows, key=lambda row: row["batch"]) for title, rows in tables.items()}


def _ablation_cells(study: StackStudy, batch: int, name: str, base: str) -> Row:
    times, first = study.times(batch, name), study.results.get(FIRST, batch, name) or {}
    failed = _no_times(study, batch, name)
    return {
        "ms a batch": failed if times is None else f"{medians(times)['seconds'] * 1e3:.1f}",
        "speed over the first": failed if times is None else study.over(batch, name, base),
        "first call s": f"{first['first_seconds']:.2f}" if "first_seconds" in first else None,
        **_gate_cells(study.results.get(GATE, batch, name)),
    }


def loop_rows(study: StackStudy) -> Iterator[Row]:
    """Yield rows that compare who drives the loop: Python, the graph, or nobody."""
    for batch in study.options.batches:
        for name in ("compiled step", "compiled loop", "unrolled"):
            if study.is_measured(batch, name):
                yield {"batch": batch, "arm": name, **_ablation_cells(study, batch, name, "compiled step")}


def payback_rows(study: StackStudy) -> Iterator[Row]:
    """Yield after how many requests the first call of each arm has paid for itself, against eager steps."""
    for batch in study.options.batches:
        base = study.times(batch, BEFORE)
        for name in arms_of(study.subject, ("stack",)):
            times, first = study.times(batch, name), study.results.get(FIRST, batch, name)
            if (
                name not in study.arms
                or name in (NAIVE, "cache", BEFORE)
                or base is None
                or times is None
                or times["interleaved"] != base["interleaved"]
                or not first
                or "failed" in first
            ):
                continue
            extra = first["first_seconds"] - first["later_seconds"]
            saved = medians(base)["seconds"] - medians(times)["seconds"]
            after = "never" if saved <= 0 else f"{max(extra, 0) / saved * batch:,.0f}"
            row = {"batch": batch, "arm": name, "first call costs s": f"{extra:.2f}"}
            yield row | {"saves ms a batch": f"{saved * 1e3:.1f}", "pays after requests": after}


def idea_rows(study: StackStudy) -> list[Row]:
    """Return what each arm does, but for ablations, whose tables say it."""
    arms = arms_of(study.subject, ("stack", "side"))
    return [{"arm": name, "idea": arm.idea} for name, arm in arms.items() if name in study.arms]
