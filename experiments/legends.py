"""What the columns of the common tables mean."""

from experiments.arms import PLAIN
from experiments.draws import EVERY, TILT
from experiments.outcome import DECODING_ALONE, END_TO_END, Outcome
from specdec.intervals import WIDEST_PRINTED


def speed_note(outcome: Outcome) -> str:
    """Return what the columns of the table of speed mean."""
    kinds, check = (_DRAWN_TIMES, _DRAWN_CHECKS) if outcome.has_draws else (_SAME_TIMES, _SAME_CHECK)
    return f"{kinds} {_SPEED} {check}"


# The two ratios of speed, in the words of docs/start/glossary.md.
ALONE_IS = "plain decoding's seconds per emitted token over the arm's, prefill left out"
WHOLE_IS = "plain decoding's wall time over the arm's for as many tokens, prefill included"
BOTH_ARE = f"{DECODING_ALONE}: {ALONE_IS}; {END_TO_END}: {WHOLE_IS}"
_SAME_TIMES = f"{BOTH_ARE[0].upper()}{BOTH_ARE[1:]} (-: a peer does not tell its prefill);"
_DRAWN_TIMES = f"Every arm draws a text of its own. {_SAME_TIMES}"
_SPEED = (
    f"columns of kinds: {END_TO_END}; bootstrap: {END_TO_END} of all kinds with the interval of the cluster bootstrap; "
    "n: units, where they are too few for an "
    f"interval; wide: their bounds lie more than a factor of {WIDEST_PRINTED:g} apart; no loops: time per token "
    "over time per token, prefill left out, of the steps whose tokens stand in no loop (a block of up to 16 tokens, "
    "three times or more in a row);"
)
_SAME_CHECK = "identical: prompts whose ids are plain decoding's."
_DRAWN_CHECKS = (
    "checked, in place of equal ids: prompts whose output is as long as was asked for, or ends with its text, and is "
    "the same one in every round (with one round, the first prompts are decoded once more); law e: how many times "
    f"likelier the tokens are under the oracle's law flattened or sharpened to the power of 1 -+ {TILT:g} than under "
    f"itself, over every {EVERY}th prompt or batch: drawn from that law it reaches x with a probability of at most 1/x."
)

REASONS = (
    "Why: predicted = tau rows (1 + plain's other/T) / (v + propose/T + other/T); tau: tokens per verify pass of a row "
    "(full: over steps whose draft the "
    "budget did not shorten); alpha: accepted given reached; used: accepted / drafted; nodes: width of a pass, the "
    "pending token and padding included; T: a pass of plain decoding; v: a verify pass over T; c: drafting one token "
    "over T; propose, other: drafting, and all that is neither drafting nor scoring, per step; rows: in flight, over "
    "plain decoding's, less than 1 where rows end at different times; from alpha: predicted with tau by theory; "
    f"{DECODING_ALONE}: what was measured, which leaves prefill out, as theory does."
)


def against_note(against: str) -> str:
    """Return what the columns of the table of pairs with an arm mean."""
    ratios = BOTH_ARE if against == PLAIN else BOTH_ARE.replace("plain decoding", against)
    return (
        f"Pairs with {against}, on the same prompts: {ratios}. The verdict goes by {END_TO_END} and needs both of its "
        "intervals, the bootstrap's too; to tell: how many units would tell the arms apart with even odds, if the "
        "ratio is what was measured."
    )


WORK = (
    "Work: tokens emitted per verify pass of a row by kind of prompt and outside loops, with 95 % intervals clustered "
    "by prompt or batch, for all of them the bootstrap's too (plain decoding: 1), and the nodes of such a pass beside "
    "the pending token: drafted (verified), scouts (scored, never verified), both; and who judged: the "
    "rule, or the compiled judge that it declares (native)."
)

SPEC_BENCH_ALONE, SPEC_BENCH_WHOLE = f"Spec-Bench, {DECODING_ALONE}", f"Spec-Bench, {END_TO_END}"
# Of tables that one experiment alone has, by their titles.
OWN_TABLES = {
    SPEC_BENCH_ALONE: (
        f"{DECODING_ALONE}: {ALONE_IS}, with 95 % intervals clustered by question, its turns and seeds together; no "
        "loops: the same of the steps whose tokens stand in no loop; in "
        "loops: the share of the arm's tokens that do; accepted: mean accepted tokens as Spec-Bench counts them, those "
        "that a verify pass emits, the recovered or bonus token among them."
    ),
    SPEC_BENCH_WHOLE: (
        f"{END_TO_END}: {WHOLE_IS}; Spec-Bench ratio: "
        "that of its speed.py, the mean over questions of tokens per second over plain decoding's, in which a question "
        "of few tokens counts as much as one of many (-: in batches); both with 95 % intervals clustered by question, "
        "its turns and seeds together; answers: of all turns, with all seeds."
    ),
}
WIDE_OF_SPEC_BENCH = (
    "bootstrap: the first ratio with the interval of the cluster bootstrap; tokens/s, plain: the arm's and plain "
    "decoding's, of decoding alone over all tokens, end to end as a mean over questions."
)
