"""Pictures: the roofline with the passes on it, and passes and gains by context."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.limits.limit_timing import Passes
from specdec.stats.report import Panel, panels
from specdec.theory.limits import best_draft_length


def draw_roofline(path: Path, groups: Sequence[Passes]) -> None:
    """Write a PNG: of each batch size after its shortest and longest context, the roof and the measured passes."""
    lines, dots = {}, {}
    for group in _ends(groups):
        name, roofline = f"batch {group.batch} after {group.context:,}", group.roofline
        reached = {w: cost.flops / group.seconds[w].median / 1e9 for w, cost in group.costs.items()}
        dots[name] = [(cost.intensity, reached[width]) for width, cost in group.costs.items()]
        ends = [roofline.ridge / 8, *(cost.intensity for cost in group.costs.values()), roofline.ridge * 8]
        across = np.geomspace(min(ends), max(ends), 200)
        lines[name] = [(float(x), roofline.attainable(float(x)) / 1e9) for x in across]
    panels(path, [Panel("FLOPs a byte (a dot for each width)", "GFLOP/s; the line is the roof", lines, dots)])


def _ends(groups: Sequence[Passes]) -> list[Passes]:
    """Return the groups of the shortest and the longest context, of each batch size."""
    contexts = {group.context for group in groups}
    return [group for group in groups if group.context in (min(contexts), max(contexts))]


def draw_contexts(
    path: Path, groups: Sequence[Passes], windowed: Sequence[Passes], width: int, alphas: Sequence[float], cost: float
) -> None:
    """Write a PNG of one batch size: times of passes by context and gains; lines are what the roofline allows.

    Args:
        path: of the file.
        groups: passes by context.
        windowed: the same with a sliding window.
        width: of the wide passes that are drawn.
        alphas: acceptance rates.
        cost: of a draft token, over a pass of one node.
    """
    lines, dots = {}, {}
    for kind, passes in (("", groups), (", windowed", windowed)):
        for nodes in dict.fromkeys((1, width)):
            name = f"width {nodes}{kind}"
            dots[name] = [(group.context, group.seconds[nodes].median * 1e3) for group in passes]
            lines[name] = [(group.context, group.roofline.seconds(group.costs[nodes]) * 1e3) for group in passes]
    times = Panel("tokens in the cache", "ms a pass (lines: the least by the roofline)", lines, dots)
    measured, least = (_gains(groups, alphas, cost, kind) for kind in ("measured", "roofline"))
    label = "gain of the best draft length (lines: by the roofline)"
    panels(path, [times, Panel("tokens in the cache", label, least, measured, log_up=False)])


def _gains(
    groups: Sequence[Passes], alphas: Sequence[float], cost: float, kind: str
) -> dict[str, list[tuple[float, float]]]:
    """Return acceptance rate -> (context, gain), by one of the curves of the passes."""
    return {
        f"alpha {alpha}": [
            (group.context, best_draft_length(alpha, group.curves[kind], cost, max(group.seconds) - 1).gain)
            for group in groups
        ]
        for alpha in alphas
    }
