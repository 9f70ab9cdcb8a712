"""The pictures of one run; if it lacks what a picture needs, a sentence in its place."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from experiments.advise.calibrating import Trees, best_of
from experiments.harness.arms import PLAIN
from experiments.harness.findings.summary import UNTIMED, by_kind, phase_times
from experiments.harness.run_outcome import DECODING_ALONE, SPEEDS
from experiments.report.charts import (
    LINE,
    THEORY,
    Picture,
    Point,
    Series,
    axis,
    colour,
    dots_by_name,
    mix,
    points,
    stack_bars,
    with_level_1,
)
from experiments.report.runs import Run, read_json
from experiments.report.tree_maps import tree_map
from experiments.report.why import drafts_chains, longest_of, predictions
from specdec.stats.report import Interval, Points, paired_ratio
from specdec.theory import expected_tree_tokens

# Steps with more accepted tokens are counted together.
_MANY = 8
_SHARES: dict[str, Any] = {"tickformat": ".0%", "range": [0.0, 1.03]}


def number_of(run: Run, arm: str) -> int:
    """Return an arm's number, which decides its colour: its place among the page's arms other than plain decoding."""
    return THEORY if arm == PLAIN else (run.page_arms or [one for one in run.outcome.arms if one != PLAIN]).index(arm)


def over_plain(ratio: str) -> str:
    """Return the label of an axis of one of the two ratios."""
    return f"{ratio}, over plain decoding"


def speeds(run: Run) -> list[Picture | str]:
    """Return both ratios of speed of all arms by kind of prompt."""
    others = [arm for arm in run.outcome.arms if arm != PLAIN]
    if not run.is_timed or not others:
        return [f"No picture of speed: {UNTIMED if others else 'plain decoding ran alone.'}"]
    return [_speed(run, ratio, meaning) for ratio, meaning in SPEEDS.items()]


def _speed(run: Run, ratio: str, meaning: str) -> Picture | str:
    found = by_kind(run.outcome, ratio)
    if not found:
        return f"No picture of {ratio}: other programs do not report their prefill."
    note = f"{meaning[0].upper()}{meaning[1:]}, by kind of prompt, with 95 % intervals."
    title, numbers = f"{ratio.capitalize()} by kind of prompt", {arm: number_of(run, arm) for arm in found}
    return with_level_1(dots_by_name(title, note, over_plain(ratio), found, numbers), "x")


def by_length(run: Run) -> Picture | str:
    """Return decoding alone by draft length, measured beside theory's curve, of the arms that drafted chains."""
    if not run.is_timed:
        return f"No picture of speed by draft length: {UNTIMED}"
    chains = [arm for arm, stats in run.drafting.items() if drafts_chains(stats)]
    drawn = []
    for arm in chains:
        found, at = run.outcome.decoding_speedup(arm), longest_of(run.drafting[arm])
        curve = [(length, parts.speedup) for length, parts in predictions(run, arm).items()]
        assert found is not None
        drawn.append(Series(arm, number_of(run, arm), [Point.of(at, found)], curve))
    if not drawn:
        return "No picture of speed by draft length: no arm drafted chains."
    note = (
        "Points: measured at the arm's longest draft, with 95 % intervals. Dashed: theory for drafts cut shorter, from "
        "the same steps. It takes a pass's cost to be linear in its nodes, from plain decoding's to the arm's, and "
        "drafting's to be proportional to length."
    )
    title = "Decoding alone by draft length"
    return with_level_1(points(title, note, "longest draft, tokens", over_plain(DECODING_ALONE), drawn))


def by_phase(run: Run) -> Picture | str:
    """Return where the time of an emitted token goes."""
    if not run.is_timed:
        return f"No picture of time by phase: {UNTIMED}"
    times = phase_times(run.outcome)
    phases = list(dict.fromkeys(phase for by in times.values() for phase in by))
    # Light to dark: the phases of an arm are shades of its colour.
    colours = {phase: shades(run, times, (1 + number) / len(phases)) for number, phase in enumerate(phases)}
    note = "Wall time per emitted token over all prompts, each arm in shades of its colour; peers do not report theirs."
    return stack_bars("Time by phase", note, "milliseconds per emitted token", times, colours, ".3f")


def _rates(run: Run, arm: str, by: str) -> list[Point]:
    """Return the acceptance at every position or rank, with its interval over prompts, or conversations."""
    kept = [[entry["arms"][arm]["stats"] for entry in cluster] for cluster in run.outcome.clusters()]
    found = []
    for place in range(max(len(stats[f"tried_at_{by}"]) for cluster in kept for stats in cluster)):
        tried, stood = (
            [sum(stats[name][place] for stats in cluster if place < len(stats[name])) for cluster in kept]
            for name in (f"tried_at_{by}", f"accepted_at_{by}")
        )
        if sum(tried):
            one = paired_ratio(stood, tried) if sum(stood) else Interval(0.0, None, None, len(tried))
            high = None if one.high is None else min(one.high, 1.0)
            found.append(Point(place + 1, one.value, one.low, high))
    return found


def acceptance(run: Run, by: str) -> Picture | str:
    """Return acceptance by "position" or by "rank"."""
    found = {arm: _rates(run, arm, by) for arm in run.drafting}
    drawn = [Series(arm, number_of(run, arm), rates) for arm, rates in found.items() if rates]
    if not drawn:
        return f"No picture of acceptance by {by}: nothing was drafted."
    meaning = {
        "position": ("position in the draft", "Share of verdicts at a position that kept its token."),
        "rank": ("rank among siblings", "Share of verdicts on a k-th sibling that kept it, the earlier ones rejected."),
    }
    across, note = meaning[by]
    if by == "rank" and max(len(rates) for rates in found.values()) < 2:
        return "No picture of acceptance by rank: no draft branched, so that every token is its parent's first child."
    whole = {"xaxis": axis(across, dtick=1), "yaxis": axis("share accepted", **_SHARES)}
    return points(f"Acceptance by {by}", f"{note} 95 % intervals.", across, "share accepted", drawn, True, **whole)


def acceptance_histogram(run: Run) -> Picture | str:
    """Return the histogram of accepted tokens, a bar of shares an arm."""
    found, most = {}, 0
    for arm in run.drafting:
        counts = Counter(min(n, _MANY) for columns in run.outcome.records(arm) for n in columns["num_accepted"])
        found[arm] = {_tokens(n): count / counts.total() for n, count in sorted(counts.items())}
        most = max([most, *counts])
    if not most:
        return "No histogram of accepted lengths: no drafted token was accepted."
    colours = {
        _tokens(n): shades(run, found, 0.15 + 0.85 * n / most) if n else [LINE] * len(found) for n in range(most + 1)
    }
    note = (
        "Share of the steps by how many drafted tokens they kept: darker is more. The recovered or bonus token is not "
        "counted."
    )
    return stack_bars("Accepted tokens of a step", note, "share of the steps", found, colours, ".0%", **_SHARES)


def shades(run: Run, arms: Iterable[str], share: float) -> list[str]:
    """Return each arm's colour, mixed with the paper's; ``share``: the arm's part."""
    return [mix(share, colour(number_of(run, arm))) for arm in arms]


def _tokens(count: int) -> str:
    return f"{count} or more" if count == _MANY else str(count)


def _trees(run: Run) -> dict[str, Any]:
    """Return what ``experiments.studies.trees`` has written of theory; empty for other experiments."""
    path = run.folder / "trees.json"
    return read_json(path) if path.is_file() else {}


def _theory_by_size(found: Trees, largest: int, max_depth: int) -> tuple[Points, Points]:
    """Return tokens per step, and the speed-up, of theory's best tree of every size up to the largest, by its nodes."""
    rates = found.acceptance_by_rank
    trees = [best_of(rates, size, max_depth) for size in range(1, largest + 1)]
    tokens = [(tree.num_nodes, expected_tree_tokens(tree, rates)) for tree in trees]
    return tokens, [(tree.num_nodes, found.parts(tree).speedup) for tree in trees]


def tree_sizes(run: Run) -> list[Picture | str]:
    """Return tokens a step and decoding alone by tree size beside theory's best, of a run of ``studies.trees``."""
    kept = _trees(run)
    if not kept:
        return []
    try:
        found = Trees.from_dict(kept["calibration"])
    except (KeyError, TypeError):
        return ["No picture of trees by size: trees.json was written by another version."]
    rows = [row for row in kept["rows"] if row["shape"] in run.drafting and row["tau full"] is not None]
    if not rows:
        return ["No picture of trees by size: no tree took a step that its budget left whole."]
    tokens, speeds = _theory_by_size(found, max(row["nodes"] for row in rows), run.arguments["max_depth"])
    taus, times = [], []
    for row in rows:
        arm, at = row["shape"], row["nodes"]
        speedup = run.outcome.decoding_speedup(arm)
        assert speedup is not None
        taus.append(Series(arm, number_of(run, arm), [Point(at, row["tau full"])]))
        times.append(Series(arm, number_of(run, arm), [Point.of(at, speedup)]))
    note = "Dashed: theory's best tree of each size, from the calibration on the first prompts alone."
    across, best = "draft nodes", Series("best tree", THEORY)
    first = points("Tokens by tree size", note, across, "tokens of a full step", [replace(best, curve=tokens), *taus])
    up, drawn = over_plain(DECODING_ALONE), [replace(best, curve=speeds), *times]
    second = points("Decoding alone by tree size", note, across, up, drawn)
    return [first, with_level_1(second)]


def tree_maps(run: Run) -> list[Picture | str]:
    """Return the heat map of every static tree that branches."""
    maps = [
        tree_map(arm, nodes, run.outcome.records(arm), colour(number_of(run, arm)))
        for arm in run.drafting
        if (nodes := run.outcome.tree(arm)) is not None
    ]
    if maps:
        return [*maps]
    return [
        "No tree map: of no arm is a static tree that branches known (Offers.paths of its source; older runs lack it)."
    ]


def pictures_of(run: Run) -> list[Picture | str]:
    """Return all pictures of a run, or the sentences in their places."""
    common = [*speeds(run), by_length(run), by_phase(run), acceptance_histogram(run)]
    return [*common, acceptance(run, "position"), acceptance(run, "rank"), *tree_sizes(run), *tree_maps(run)]
