"""What the study of precisions tells: texts and bits, speeds, and drafts."""

from collections.abc import Iterator, Sequence
from typing import Any

from experiments.harness.rounds import Spread
from experiments.studies.inference_stack.stack_timing import medians, speed_over
from experiments.studies.inference_stack.study_frame import Finding, Results
from experiments.studies.precision.precision_arms import (
    ARMS,
    BITS,
    DRAFTS,
    EVERY_CALL,
    ORACLE,
    TEXT,
    TIME,
    PrecisionOptions,
)

Row = dict[str, Any]


def kind_rows(arms: Sequence[str]) -> Iterator[Row]:
    """Yield what weights, products and cache of each arm are."""
    for name in arms:
        arm = ARMS[name]
        how = "eager" if arm.backend == EVERY_CALL else arm.backend
        row = {"arm": name, "weights": arm.weights, "rounded": arm.method or "nearest", "pass": how}
        yield row | {"products": arm.products, "activations and cache": arm.arithmetic}


def text_rows(results: Results, batches: Sequence[int], arms: Sequence[str]) -> Iterator[Row]:
    """Yield how many of each arm's texts are the float32 oracle's, and its reference's."""
    for name in arms:
        found = {batch: results.get(TEXT, batch, name) for batch in batches}
        if results.get(BITS, 1, name) is None and not any(found.values()):
            continue
        known = next((f for f in found.values() if f is not None and "failed" not in f), None)
        row: Row = {"arm": name, "MB read": None if known is None else f"{known['bytes_read'] / 1e6:.1f}"}
        row |= {f"changed, batch {batch}": _format_changes(found[batch]) for batch in batches}
        row["as its reference"] = _reference_share(found)
        row["exact answers"] = None if known is None or known["exact"] is None else _share(known)
        bits = results.get(BITS, 1, name) or {}
        row["bits per byte of code"] = f"{bits['bits']:.4f}" if "bits" in bits else None
        yield row | {"s to make": None if known is None else f"{known['load_seconds']:.1f}"}


def _share(found: Finding) -> str:
    return f"{found['exact'] / found['prompts']:.2%}"


def _format_changes(found: Finding | None) -> str | None:
    if found is None or "failed" in found:
        return None if found is None else "failed"
    return f"{found['prompts'] - found['same']:,} of {found['prompts']:,}"


def _reference_share(found: dict[int, Finding | None]) -> str | None:
    """Return the share of outputs that equal the reference's, the lowest of all batch sizes."""
    pairs = [
        (f["as_reference"], f["prompts"]) for f in found.values() if f is not None and f.get("as_reference") is not None
    ]
    if not pairs:
        return None
    same, count = min(pairs)
    return f"{same:,} of {count:,}"


def speed_rows(results: Results, batch: int, arms: Sequence[str], num_new: int) -> Iterator[Row]:
    """Return the speeds of all timed arms at a batch size; ratios only if rounds were interleaved."""
    base = results.get(TIME, batch, ORACLE)
    for name in arms:
        times = results.get(TIME, batch, name)
        if times is None:
            continue
        middle = medians(times)
        total, first = middle["seconds"], middle["first_token_seconds"]
        row: Row = {"batch": batch, "arm": name, "tokens/s": f"{batch * num_new / total:,.0f}"}
        row |= {"ms to first": f"{first * 1e3:.2f}", "ms a token after": f"{(total - first) / (num_new - 1) * 1e3:.3f}"}
        yield row | {"over native float32": speed_over(times, base)}


def draft_rows(results: Results, subject: str, batches: Sequence[int], arms: Sequence[str]) -> Iterator[Row]:
    """Yield what views of fewer bits did as drafts of the float32 oracle."""
    for batch in batches:
        for name in arms:
            found = results.get(f"{DRAFTS}, {subject}", batch, name)
            if found is None or "failed" in found:
                continue
            why, speedup = found["why"], Spread(**found["speedup"])
            row: Row = {"batch": batch, "view": name, "MB read": f"{found['bytes_read'] / 1e6:.1f}"}
            row |= {key: f"{why[key]:.2f}" for key in ("tau", "alpha", "c", "v", "predicted")}
            yield row | {"speed-up": speedup}


def failures(results: Results, options: PrecisionOptions) -> list[str]:
    """Return a line for everything that failed, and why, including weights that do not write what they stand for."""
    places = [(f"batch {batch}", TEXT, batch, arm) for batch in options.batches for arm in options.arms]
    places += [("bits per byte", BITS, 1, arm) for arm in options.arms]
    places += [
        (f"drafts, {subject}, batch {batch}", f"{DRAFTS}, {subject}", batch, name)
        for subject in options.draft_subjects
        for batch in options.draft_batches
        for name in options.draft_names
    ]
    lines = []
    for where, part, batch, arm in places:
        found = results.get(part, batch, arm) or {}
        if "failed" in found:
            lines.append(f"{where}, {arm}: {found['failed']}")
        elif (
            part == TEXT
            and not ARMS[arm].rounds_inputs
            and found.get("as_reference") not in (None, found.get("prompts"))
        ):
            lines.append(f"{where}, {arm}: other text than the float32 numbers that its weights stand for")
    return lines
