"""How drafts were accepted, in the columns that papers print; ``docs/start/glossary.md`` defines each."""

from collections import Counter
from typing import Any

from experiments.harness.run_outcome import Outcome
from specdec.stats import Stats

# What matters most.
BRIEF = ("arm", "accept_len", "accept_rate@0", "verify_rate", "proposed")
# Positions that have columns; a summary holds all of them, by arm.
_MOST = 8

ACCEPTANCE = {
    "accept_len": "tokens that a verify pass of a row emits, the recovered or bonus token included (tau)",
    "accept_rate@k": "of the steps that proposed more than k tokens in a row, those that kept more than k (0-based, "
    "survival of the prefix)",
    "verify_rate": "(accepted + steps) / (proposed + steps), the share of verified nodes that became tokens, a step's "
    "last one included",
    "proposed": "draft tokens of a step",
    "tokens/answer": "of a prompt",
    "cond_accept@k": "kept more than k of those steps that kept k (the tokens before it given)",
    "drafts": "steps that proposed something",
    "drafted": "tokens that they proposed, of all rounds",
    "cut": "steps of which the end of the text cut tokens off, which accept_len does not count and verify_rate does",
    "ends": "how the first round's answers ended",
}


def acceptance_rows(outcome: Outcome) -> list[dict[str, Any]]:
    """Return how the drafts of every arm of ours were accepted, in all columns; without them, only tokens."""
    found = {arm: stats for arm in outcome.arms if (stats := outcome.stats(arm)) is not None}
    depth = min(max((len(stats.steps_by_depth) - 1 for stats in found.values()), default=0), _MOST)
    return [{"arm": arm, **_row(outcome, arm, stats, depth)} for arm, stats in found.items()]


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
    """Return how many steps emitted fewer tokens than they accepted and drew: the end of the text cut these off."""
    both = zip(records["num_accepted"], records["num_emitted"], strict=True)
    return sum(emitted < accepted + 1 for accepted, emitted in both)


def ends_of(outcome: Outcome, arm: str) -> str | None:
    """Return how many answers of an arm's first round ended in which way; None: units of an earlier version."""
    kept = [entry["arms"][arm].get("finish_reasons") for entry in outcome.done]
    if any(one is None for one in kept):
        return None
    counts = Counter(reason for rounds in kept for reason in rounds[0])
    return ", ".join(f"{reason} {counts[reason]}" for reason in sorted(counts))
