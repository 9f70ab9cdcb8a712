"""Units of an experiment written by hand: what each arm's steps emitted, and how long they took."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from experiments.harness.draw_checks import LawEvidence
from specdec.stats import Stats

# A step's tokens and seconds, which its phases share as 1 : 4 : 3 : 2.
Step = tuple[list[int], float]
_SHARES = {"propose": 0.1, "score": 0.4, "verify": 0.3, "commit": 0.2}


def arm_of(steps: Sequence[Step], prefill: float, rounds: int = 1, **more: Any) -> dict[str, Any]:
    """Return what a journal keeps of an arm's rounds of one prompt: every step kept its whole draft."""
    tokens, taken = [token for step, _ in steps for token in step], sum(seconds for _, seconds in steps)
    all_steps = [(number, *step) for number in range(rounds) for step in steps]
    accepted = rounds * (len(tokens) - len(steps))
    by_source = {"source": accepted} if accepted else {}
    phases = {phase: rounds * taken * share for phase, share in _SHARES.items()}
    stats = Stats(
        num_steps=len(all_steps), num_bonus=len(all_steps), num_emitted=rounds * len(tokens), num_drafted=accepted,
        num_accepted=accepted, steps_by_depth=(len(all_steps),), tried_at_position=(accepted,),
        accepted_at_position=(accepted,), tried_at_rank=(accepted,), accepted_at_rank=(accepted,),
        drafted_by_source=by_source, tried_by_source=by_source, accepted_by_source=by_source,
        seconds={"prefill": rounds * prefill, **phases},
    )  # fmt: skip
    records = {
        "round": [number for number, *_ in all_steps],
        "request": [0] * len(all_steps),
        "tokens": [ids for _, ids, _ in all_steps],
        **{f"seconds_{phase}": [seconds * share for *_, seconds in all_steps] for phase, share in _SHARES.items()},
    }
    kept = {"num_tokens": len(tokens), "stats": stats.as_dict(), "records": records, "identical": [True]}
    ends = {"finish_reasons": [["length"]] * rounds, "claim": "exact", "repeats_plain": True}
    times = {"seconds": [prefill + taken] * rounds, "decoding": [taken] * rounds}
    return {**times, **kept, **ends, **more}


def draw_of(steps: Sequence[Step], prefill: float, **more: Any) -> dict[str, Any]:
    """Return the same of an arm whose tokens are draws of its own."""
    law = asdict(LawEvidence(len(steps), 0, 0.0, 0.0))
    return arm_of(steps, prefill, repeats_plain=False, sound=[True], law=law, **more)


def unit_of(number: int, kind: str, prompt: str, arms: Mapping[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return a journal's entry of one prompt."""
    return {"unit": number, "kind": kind, "prompts": [prompt], "error": None, "arms": dict(arms), **more}
