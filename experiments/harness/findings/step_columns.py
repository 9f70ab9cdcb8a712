"""What the steps of arms did, in columns of tables: parts and reasons, acceptance, stages, the work of a device."""

from collections import Counter
from dataclasses import replace
from typing import Any

from experiments.advise.advice_parts import Parts
from experiments.harness.arms import PLAIN
from experiments.harness.run_outcome import DECODING_ALONE, Outcome, decoding_time
from specdec.contracts import PHASES
from specdec.stats import Stats, Table


def of_drafts(stats: Stats) -> dict[str, Any]:
    """Return what an arm's drafts are worth: tokens of a verify pass, shares accepted, the width of a pass."""
    return {
        "tau": stats.block_efficiency,
        "tau full": stats.block_efficiency_full,
        "alpha": stats.acceptance_rate,
        "used": stats.draft_utilisation,
        "nodes": stats.num_scored_nodes / stats.target_calls,
    }


def branches(stats: Stats) -> bool:
    """Tell whether an arm's drafts had siblings on which a verdict was given: they are trees, not chains."""
    return len(stats.tried_at_rank) > 1


def reason(plain: Stats, stats: Stats) -> dict[str, Any]:
    """Return why an arm is as fast as it is: the parts of its speed-up, and what they predict.

    A step of the arm costs v + propose / T + other / T, one of plain decoding 1 + its own other / T, with T the time of
    a scoring pass of plain decoding in this run. A step emits tau tokens for each of its rows; there are fewer rows
    than in plain decoding if they end at different times. Prefill is left out.
    """
    parts, once = Parts.of(plain, stats), plain.seconds_per_call("score") or float("nan")
    expected = None if branches(stats) else stats.theoretical_block_efficiency()
    return {
        **of_drafts(stats),
        "T ms": 1e3 * once,
        "v": parts.scoring,
        "c": stats.draft_cost_ratio(once),
        "propose/T": parts.drafting,
        "other/T": parts.rest,
        "rows": parts.rows,
        "predicted": parts.speedup,
        "from alpha": None if expected is None else replace(parts, tokens=expected).speedup,
        **{f"{phase} ms": 1e3 * (stats.seconds_per_call(phase) or 0.0) for phase in (*PHASES, "other")},
    }


_MILLISECONDS = ", ".join(f"{phase} ms" for phase in (*PHASES, "other"))
REASONS = {
    "tau": "tokens per verify pass of a row",
    "tau full": "the same over steps whose draft the budget did not shorten",
    "alpha": "of the draft tokens that the verdict reached, the share accepted",
    "used": "accepted / drafted",
    "nodes": "width of a pass, the pending token and padding included",
    "T ms": "T, a pass of plain decoding, in milliseconds",
    "v": "time of a verify pass, over T",
    "c": "time to draft one token (of a tree: one level), over T",
    "propose/T": "drafting time of a step, over T",
    "other/T": "time of a step that is neither drafting nor scoring, over T",
    "rows": "rows in flight, over plain decoding's: less than 1 if rows end at different times",
    "predicted": f"{DECODING_ALONE}, computed from these parts",
    "from alpha": "the same, with tau from the theory of chains; of trees: -",
    _MILLISECONDS: "of a step by phase, all its rows together; other: what no phase covers",
    DECODING_ALONE: "as measured, prefill left out, as in theory",
}
_REASONS_NOTE = (
    "Why: predicted = tau rows (1 + plain's propose/T + other/T) / (v + propose/T + other/T); "
    "T is a pass of plain decoding."
)


def reason_table(outcome: Outcome) -> Table:
    """Return the reasons of every arm of ours, and the ratio that they explain."""
    plain, rows = outcome.stats(PLAIN), []
    assert plain is not None
    for arm in outcome.arms:
        stats, alone = outcome.stats(arm), outcome.decoding_speedup(arm)
        if stats is not None and alone is not None:
            rows.append({"arm": arm, **reason(plain, stats), DECODING_ALONE: alone.value})
    brief = ("arm", "tau", "v", "propose/T", "other/T")
    return Table("Parts of a step", rows, _REASONS_NOTE, "reasons", brief, REASONS)


# Positions that have columns; a summary holds all of them, by arm.
_MOST = 8
_ACCEPTANCE = {
    "accept_len": "tokens that a verify pass of a row emits, the recovered or bonus token included (tau)",
    "accept_rate@k": "of the steps that proposed more than k tokens in a row, the share that kept more than k "
    "(0-based, survival of the prefix)",
    "verify_rate": "(accepted + steps) / (proposed + steps), the share of verified nodes that became tokens, a step's "
    "last one included",
    "proposed": "draft tokens per step",
    "tokens/answer": "output tokens per prompt",
    "cond_accept@k": "of those steps that kept the first k, the share that kept more (given the tokens before)",
    "drafts": "steps that proposed something",
    "drafted": "tokens that they proposed, in all rounds",
    "cut": "steps that lost tokens to the end of the text; accept_len does not count these tokens, verify_rate does",
    "ends": "how the first round's answers ended",
}


def acceptance_table(outcome: Outcome) -> Table:
    """Return how the drafts of every arm of ours were accepted, in all columns; without them, only tokens."""
    found = {arm: stats for arm in outcome.arms if (stats := outcome.stats(arm)) is not None}
    depth = min(max((len(stats.steps_by_depth) - 1 for stats in found.values()), default=0), _MOST)
    rows = [{"arm": arm, **_row(outcome, arm, stats, depth)} for arm, stats in found.items()]
    brief = ("arm", "accept_len", "accept_rate@0", "verify_rate", "proposed")
    return Table("Acceptance", rows, "", "acceptance", brief, _ACCEPTANCE)


def _row(outcome: Outcome, arm: str, stats: Stats, depth: int) -> dict[str, Any]:
    survival, conditional = stats.survival_by_position, stats.acceptance_by_position
    kept = [entry["arms"][arm] for entry in outcome.done]
    num_answers = sum(len(entry["prompts"]) for entry in outcome.done)
    return {
        "accept_len": stats.block_efficiency,
        "accept_rate@0": survival.get(1),
        "verify_rate": stats.verify_rate,
        "proposed": stats.num_drafted / stats.num_steps,
        "tokens/answer": sum(one["num_tokens"] for one in kept) / num_answers,
        **{f"accept_rate@{k}": survival.get(k + 1) for k in range(1, depth)},
        **{f"cond_accept@{k}": conditional.get(k + 1) for k in range(depth)},
        "drafts": sum(stats.steps_by_depth[1:]),
        "drafted": stats.num_drafted,
        "steps": stats.num_steps,
        "cut": sum(cut_steps(one["records"]) for one in kept),
        "ends": ends_of(outcome, arm),
    }


def cut_steps(records: dict[str, list[Any]]) -> int:
    """Return how many steps emitted fewer tokens than they accepted and drew: the end of the text cut the rest off."""
    both = zip(records["num_accepted"], records["num_emitted"], strict=True)
    return sum(emitted < accepted + 1 for accepted, emitted in both)


def ends_of(outcome: Outcome, arm: str) -> str:
    """Return how many answers of an arm's first round ended in each way."""
    kept = [entry["arms"][arm]["finish_reasons"] for entry in outcome.done]
    counts = Counter(reason for rounds in kept for reason in rounds[0])
    return ", ".join(f"{reason} {counts[reason]}" for reason in sorted(counts))


_STAGES = {
    "passes": "of the stage's model",
    "tokens/step": "emitted per pass of a row",
    "used": "accepted / drafted of its inner source",
    "ms/pass": "model and verdict",
    "inner ms/pass": "the inner source, deeper stages included",
}


def stage_table(outcome: Outcome) -> Table | None:
    """Return what each stage inside the arms' sources did; None: there is none."""
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
    note = "Drafting models that are decoded speculatively themselves, outermost first."
    brief = ("arm", "stage", "tokens/step", "used", "ms/pass")
    return Table("Stages", rows, note, "", brief, _STAGES) if rows else None


_DEVICE_NOTE = (
    "Per step. Eager passes, and those of transformers, also copy and wait by themselves, which is not counted."
)
_DEVICE = {
    "copies up, copies down": "to the device and back, a drafting model's included",
    "waits": "times that the host waited, for copies back and captures of graphs",
    "idle ms, idle": "time from the end of a wait to the next copy, in milliseconds and as a share of decoding (the "
    "device is idle at least that long: gaps between the operations of a pass are not seen)",
    "passes": "of the oracle, prompts left out",
    "in graphs": "the share of these that were replays of a graph",
    "captures": "graphs captured in the whole run",
    "padding": "the share of computed nodes that fill a pass up to its widest row or to the shape of a graph",
}
# Its columns, and of these the shares, which are printed in percent.
_COUNTED = ("copies up", "copies down", "waits", "idle ms", "idle", "passes", "in graphs", "captures", "padding")
_SHARES = ("idle", "in graphs", "padding")


def device_work(stats: Stats, nodes: int) -> dict[str, Any] | None:
    """Return what a step made a device do, by the columns of its table; None for what was not counted.

    Args:
        stats: of an arm.
        nodes: of its scoring calls, in all rows, each row counted as wide as the widest.

    Returns:
        None if nothing was counted.
    """
    counts, steps = stats.device, max(stats.target_calls, 1)
    if not counts:
        return None
    found: dict[str, Any] = dict.fromkeys(_COUNTED)
    passes = counts.get("passes_in_graphs", 0) + counts.get("passes_outside", 0)
    if passes:
        in_graphs = counts["passes_in_graphs"] / passes
        found |= {"passes": passes / steps, "in graphs": in_graphs, "captures": counts["captures"]}
    if "uploads" in counts:
        waits, idle = counts["downloads"] + counts.get("captures", 0), counts["idle_seconds"]
        found |= {"copies up": counts["uploads"] / steps, "copies down": counts["downloads"] / steps}
        found |= {"waits": waits / steps, "idle ms": 1e3 * idle / steps, "idle": idle / decoding_time(stats)}
    ragged = nodes - stats.num_drafted - stats.num_scouts - stats.num_steps
    padded = counts.get("padded_nodes", 0)
    found["padding"] = (padded + ragged) / counts.get("computed_nodes", nodes + padded)
    return found


def device_table(outcome: Outcome) -> Table | None:
    """Return what a step of each arm of ours made the device do; None: that was not counted."""
    rows = []
    for arm in outcome.arms:
        stats = outcome.stats(arm)
        work = None if stats is None else device_work(stats, outcome.num_scored_nodes(arm))
        if work is not None:
            shares = {name: None if work[name] is None else f"{work[name]:.0%}" for name in _SHARES}
            rows.append({"arm": arm, **work, **shares})
    brief = ("arm", "waits", "idle", "in graphs", "padding")
    return Table("Device", rows, _DEVICE_NOTE, "device", brief, _DEVICE) if rows else None
