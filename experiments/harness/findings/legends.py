"""What the columns of the common tables mean, and which of them matter most."""

from experiments.harness.arms import PLAIN
from experiments.harness.draw_checks import EVERY, TILT
from experiments.harness.run_outcome import ALL, DECODING_ALONE, END_TO_END, Outcome
from specdec.stats.report import WIDEST_PRINTED

UNTIMED = "no model ran, so that times mean nothing."


def columns_of_kinds(outcome: Outcome) -> dict[str, str]:
    """Return the column of each kind of prompt, if there are several: its name, or another if tables use that one."""
    kinds = outcome.kinds if len(outcome.kinds) > 1 else ()
    own = {"arm", "tokens/s", *SPEEDS, *_SPEED, *_SAME_CHECK, *_DRAWN_CHECKS, *WORK}
    return {kind: f"kind {kind}" if kind in own else kind for kind in kinds}


def speed_legend(outcome: Outcome) -> dict[str, str]:
    """Return what the columns of the table of speed mean."""
    first, checks = (_DRAWN_TIMES, _DRAWN_CHECKS) if outcome.has_draws else (_SAME_TIMES, _SAME_CHECK)
    names = columns_of_kinds(outcome).values()
    of_kinds = {", ".join(names): f"{END_TO_END}, for the prompts of one kind"} if names else {}
    return {**first, **_SPEED, **of_kinds, **checks}


def speed_brief(outcome: Outcome) -> tuple[str, ...]:
    """Return the columns of the table of speed that matter most."""
    if outcome.has_draws:
        return ("arm", DECODING_ALONE, END_TO_END, "checked", "law e")
    return ("arm", "tokens/s", DECODING_ALONE, END_TO_END, "identical")


# The two ratios of speed, in the words of docs/start/glossary.md.
ALONE_IS = "plain decoding's seconds per emitted token over the arm's, prefill left out"
WHOLE_IS = "plain decoding's wall time over the arm's for as many tokens, prefill included"
SPEEDS = {DECODING_ALONE: ALONE_IS, END_TO_END: WHOLE_IS}

SPEED_NOTE = (
    "Ratios with 95 % intervals; n: the number of units, if they are too few for an interval; wide: an interval whose "
    f"bounds lie more than a factor of {WIDEST_PRINTED:g} apart."
)
_SAME_TIMES = {**SPEEDS, DECODING_ALONE: f"{ALONE_IS} (-: a peer does not report its prefill)"}
_DRAWN_TIMES = {**_SAME_TIMES, END_TO_END: f"{WHOLE_IS}; every arm draws a text of its own"}
_SPEED = {
    "bootstrap": f"{END_TO_END} over all prompts, with the interval of the cluster bootstrap",
    "no loops": "plain decoding's time per token over the arm's, prefill left out, in steps whose tokens are in no "
    "loop (a block of up to 16 tokens, three times or more in a row)",
}
_SAME_CHECK = {"identical": "prompts whose output ids are plain decoding's"}
_DRAWN_CHECKS = {
    "checked": "in place of equal ids: prompts whose output has the length asked for, or ends with its text, and is "
    "the same in every round (with one round, the first prompts are decoded once more)",
    "law e": "how many times likelier the tokens are under the oracle's law to the power of 1 -+ "
    f"{TILT:g}, which flattens or sharpens it, than under the law itself, over every {EVERY}th prompt or batch; if the "
    "tokens are drawn from the law, this reaches x with a probability of at most 1/x",
}

REASONS_NOTE = (
    "Why: predicted = tau rows (1 + plain's other/T) / (v + propose/T + other/T); T is a pass of plain decoding."
)
REASONS = {
    "tau": "tokens per verify pass of a row",
    "tau full": "the same over steps whose draft the budget did not shorten",
    "alpha": "of the draft tokens that the verdict reached, the share accepted",
    "used": "accepted / drafted",
    "nodes": "width of a pass, the pending token and padding included",
    "T ms": "T, a pass of plain decoding, in milliseconds",
    "v": "time of a verify pass, over T",
    "c": "time to draft one token, over T",
    "propose/T": "drafting time of a step, over T",
    "other/T": "time of a step that is neither drafting nor scoring, over T",
    "rows": "rows in flight, over plain decoding's: less than 1 if rows end at different times",
    "predicted": f"{DECODING_ALONE}, computed from these parts",
    "from alpha": "the same, with tau from theory",
    DECODING_ALONE: "as measured, prefill left out, as in theory",
}
REASONS_BRIEF = ("arm", "tau", "v", "propose/T", "other/T")

AGAINST_BRIEF = ("arm", DECODING_ALONE, END_TO_END, "verdict", "to tell")


def against_note(against: str) -> str:
    """Return the note of the table of pairs with an arm."""
    return (
        f"Pairs with {against}, on the same prompts. The verdict goes by {END_TO_END}: both of its intervals, the "
        "bootstrap's too, must agree."
    )


def against_legend(against: str) -> dict[str, str]:
    """Return what the columns of the table of pairs with an arm mean."""
    of_plain = "plain decoding"
    ratios = {name: is_.replace(of_plain, of_plain if against == PLAIN else against) for name, is_ in SPEEDS.items()}
    return {
        **ratios,
        "bootstrap": f"{END_TO_END} with the interval of the cluster bootstrap",
        "to tell": "how many units would tell the arms apart with even odds, if the ratio is as measured",
    }


WORK = {
    ALL: "tokens emitted per verify pass of a row (plain decoding: 1), with 95 % intervals clustered by prompt or "
    "batch; columns of kinds likewise",
    "bootstrap": "the same with the interval of the bootstrap",
    "no loops": "the same outside loops",
    "drafted": "nodes of a pass that are verified, the pending token not counted",
    "scouts": "nodes that are scored, never verified",
    "extra nodes": "drafted nodes and scouts together",
    "drafter": "who drafted: the source, or its model in one call of compiled code (native)",
    "judge": "who judged: the rule, or the compiled judge that it declares (native)",
}
WORK_BRIEF = ("arm", ALL, "no loops", "extra nodes", "judge")

SPEC_BENCH_ALONE, SPEC_BENCH_WHOLE = f"Spec-Bench, {DECODING_ALONE}", f"Spec-Bench, {END_TO_END}"
# Tables that only one experiment has, by their titles.
OWN_TABLES = {
    SPEC_BENCH_ALONE: {
        DECODING_ALONE: f"{ALONE_IS}, with 95 % intervals clustered by question, its turns and seeds together",
        "no loops": "the same, in steps whose tokens are in no loop",
        "in loops": "the share of the arm's tokens that are in loops",
        "accepted": "mean accepted tokens as Spec-Bench counts them: all that a verify pass emits, the recovered or "
        "bonus token included",
        "bootstrap": f"{DECODING_ALONE} with the interval of the cluster bootstrap",
        "tokens/s, plain": "the arm's speed and plain decoding's, over all tokens",
    },
    SPEC_BENCH_WHOLE: {
        END_TO_END: f"{WHOLE_IS}, with 95 % intervals clustered by question, its turns and seeds together",
        "Spec-Bench ratio": "as its speed.py computes it: mean tokens per second of a question, over plain decoding's "
        "mean, so that a question of few tokens counts as much as one of many (-: in batches); clustered likewise",
        "answers": "over all turns and seeds",
        "bootstrap": f"{END_TO_END} with the interval of the cluster bootstrap",
        "tokens/s, plain": "the arm's speed and plain decoding's, means over questions",
    },
}
