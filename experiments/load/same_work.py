"""Whether the arms of a load did the same work: the same outputs, or outputs of the same lengths."""

from collections.abc import Sequence

from experiments.harness.arms import PLAIN
from experiments.load.load_tables import Load


def differing(loads: Sequence[Load], only_lengths: bool) -> dict[str, int]:
    """Return arm -> how many of its outputs are not plain decoding's of the same rate, or not as long."""
    plain = {load.rate: [request.tokens for request in load.served.requests] for load in loads if load.arm == PLAIN}
    found: dict[str, int] = {}
    for load in loads:
        pairs = zip((request.tokens for request in load.served.requests), plain[load.rate], strict=True)
        unlike = sum(len(a) != len(b) if only_lengths else a != b for a, b in pairs)
        found[load.arm] = found.get(load.arm, 0) + unlike
    return found


def told_of_work(loads: Sequence[Load], repeats_plain: bool) -> str:
    """Return what is said of the outputs.

    Args:
        loads: of all arms and rates.
        repeats_plain: whether outputs are to be plain decoding's: greedily, and coupled.
    """
    unlike = differing(loads, only_lengths=not repeats_plain)
    total = sum(len(load.served.requests) for load in loads if load.arm != PLAIN)
    what = "are plain decoding's, token for token" if repeats_plain else "are as long as plain decoding's"
    said = f"{total - sum(unlike.values()):,} of {total:,} outputs, of {len(unlike) - 1} arms, {what}"
    others = [f"{arm} {count}" for arm, count in unlike.items() if count]
    return f"{said} (the others: {', '.join(others)})." if others else f"{said}."


def problems_of_work(loads: Sequence[Load], repeats_plain: bool) -> list[str]:
    """Return a line for each arm that did other work than plain decoding, and was to do the same.

    Arms that are exact up to numerics may write other ids; those that are lossy may write others, and as many.
    """
    claims = {load.arm: load.served.claim for load in loads}
    what = "plain decoding's" if repeats_plain else "as long as plain decoding's"
    unlike = differing(loads, only_lengths=not repeats_plain)
    counts = {arm: count for arm, count in unlike.items() if count and (claims[arm] == "exact" or not repeats_plain)}
    return [f"{arm}: outputs that are not {what}: {count}" for arm, count in counts.items()]
