"""Experiments on recorded texts in place of a model: which can run, what they cost at stated prices, their tables."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.harness.arms import PLAIN, EngineArm, Measurement
from experiments.harness.findings.step_columns import REASONS, of_drafts
from experiments.harness.models import record_file
from experiments.harness.run_outcome import Outcome, check_cells, in_flight
from experiments.strategies import strategy_of
from oracles import RecordedText
from oracles.checkpoints.loading import load_tokenizer
from specdec.prompts import NamedPrompt
from specdec.requests import encode_prompt
from specdec.stats import Stats, Table
from specdec.theory import WidthCurve, predicted_speedup

NOTE = (
    "A prompt whose output is not its record fails, and is in no table.\n\n"
    "alpha and tau are the model's own if the records were written greedily. If they were drawn, that holds for drafts "
    "that are chosen, as all of these are at temperature 0; for drafts drawn from laws q they are a lower bound: "
    "sum p q in place of sum min(p, q)."
)
WORTH = {
    **{name: REASONS[name] for name in ("tau", "tau full", "alpha", "used", "nodes")},
    "tau full": "the same over steps whose draft neither the record's end nor the number of tokens shortened",
    "drafted": "passes of the source per verify pass",
    "c": "stated cost of a drafted token, over a pass of one node",
    "v": "stated cost of a pass of so many nodes (their mean), over a pass of one",
    "rows": "rows in flight, over plain decoding's",
    "speed-up": "tau rows / (v + c drafted), from stated costs: no time in it is measured",
    "identical": "prompts whose output ids are plain decoding's",
}
UNPRICED = "No speed-up: no model ran, so that times mean nothing. State what drafting and width cost: {}."
OPTIONS = "--draft-cost C and --width-cost V"
# Options of a model's runs that recorded text cannot have, and why not.
_REFUSED = {
    **dict.fromkeys(
        ("bitwise", "arithmetic"), " is of the oracle's own passes, and recorded text has none; leave it out"
    ),
    "temperature": ": recorded text has no laws to draw from; use 0, which gives the records back",
    "ignore_eos": ": what would follow the end of a record is unknown; leave it out",
    "against": " pairs wall times, and those of recorded text mean nothing; leave it out",
    "trace": ": recorded text has no laws, and so its nodes have no p to show; leave it out",
}


def add_record_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that ``--oracle recorded:FILE`` has."""
    group = parser.add_argument_group("--oracle recorded:FILE: repeat recorded texts, for sources that need no logits")
    add = group.add_argument
    add("--record-column", help="column of the recorded outputs (the first of completion, ..., reference, output_ids)")
    add("--tokenizer", help="the writer's tokenizer: tokenizer.json, its directory or an embedded name (code)")
    text = "stated cost c of a drafted token over a pass of one node: C for all arms, ARM=C for one"
    add("--draft-cost", nargs="+", metavar="C", help=text)
    add("--width-cost", metavar="V", help="stated cost of each further node of a pass, or v(1),v(2),... by width")


@dataclass(frozen=True)
class AssumedCosts:
    """What drafting and width are said to cost.

    Attributes:
        draft: c by arm; "" is for arms that are not named.
        width: v.
    """

    draft: Mapping[str, float]
    width: WidthCurve

    @staticmethod
    def of(arguments: Mapping[str, Any]) -> "AssumedCosts | None":
        """Return what a command line states; None: nothing.

        Raises:
            ValueError: one of the two options alone, or no number.
        """
        stated, width = arguments.get("draft_cost"), arguments.get("width_cost")
        if stated is None and width is None:
            return None
        if stated is None or width is None:
            raise ValueError(f"a speed-up needs both {OPTIONS}: give both, or neither")
        parts = [entry.rpartition("=") for entry in stated]
        found = {arm: _number(text, "--draft-cost") for arm, _, text in parts}
        if len(found) < len(parts):
            raise ValueError(f"--draft-cost: {' '.join(stated)} names an arm twice")
        values = [_number(text, "--width-cost") for text in width.split(",")]
        if len(values) == 1:
            return AssumedCosts(found, WidthCurve.linear(values[0]))
        try:
            return AssumedCosts(found, WidthCurve(tuple(range(1, len(values) + 1)), tuple(values)))
        except ValueError as error:
            raise ValueError(f"--width-cost: {error}") from error

    def speedup(self, arm: str, plain: Stats, stats: Stats) -> dict[str, float | None]:
        """Return c, v and the speed-up of an arm; None for an arm whose c is not stated."""
        nodes, tau = stats.num_scored_nodes / stats.target_calls, stats.block_efficiency
        v, c = float(self.width.at(nodes)), 0.0 if arm == PLAIN else self.draft.get(arm, self.draft.get(""))
        if c is None or tau is None:
            return {"c": None, "v": v, "rows": in_flight(plain, stats), "speed-up": None}
        rows = in_flight(plain, stats)
        return {"c": c, "v": v, "rows": rows, "speed-up": predicted_speedup(tau * rows, v, c * _passes_per_step(stats))}


def _number(text: str, option: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"{option}: {text!r} is no number of at least 0")
    return value


def _passes_per_step(stats: Stats) -> float:
    return stats.num_draft_passes / stats.target_calls


def check_recorded(strategies: Sequence[str], peers: Sequence[str], arguments: Mapping[str, Any]) -> None:
    """Refuse what recorded text cannot answer, and the options of recorded text if there is none.

    Raises:
        ValueError: names the option or the strategy, the reason and the fix.
    """
    if record_file(arguments) is None:
        given = [name for name in ("record_column", "tokenizer", "draft_cost", "width_cost") if arguments.get(name)]
        if given:
            option = given[0].replace("_", "-")
            raise ValueError(f"--{option} belongs to --oracle recorded:FILE; leave it out with a model")
        return
    for name in strategies:
        if strategy_of(name).needs_model:
            fix = "run it with the model as --oracle, or leave it out (compare: --strategies ...)"
            raise ValueError(f"{name} {strategy_of(name).needs_model}, and recorded text is no model: {fix}")
    if peers:
        raise ValueError(f"--peer {peers[0]}: it needs the model itself, and recorded text is none; leave it out")
    for name, words in _REFUSED.items():
        if arguments.get(name) not in (None, False, 0):
            raise ValueError(f"--{name.replace('_', '-')}{words}")
    _check_arms(AssumedCosts.of(arguments), strategies)


def _check_arms(costs: AssumedCosts | None, strategies: Sequence[str]) -> None:
    """Refuse costs of anything but a strategy that runs or a variant of one."""
    arms = [arm for one in map(strategy_of, strategies) for arm in (one.name, *one.variants)]
    for arm in costs.draft if costs else ():
        if arm and arm not in arms:
            raise ValueError(f"--draft-cost: {arm!r} is none of the arms: {', '.join(arms)}")


def load_recorded_text(arguments: Mapping[str, Any]) -> RecordedText:
    """Return the records that a command line names.

    Raises:
        ValueError: the file, its columns or the tokenizer are unusable.
    """
    file = record_file(arguments)
    assert file is not None
    tokenizer = load_tokenizer(arguments["tokenizer"] or "code")
    try:
        return RecordedText.load(file, arguments["column"], arguments["record_column"], tokenizer)
    except ValueError as error:
        fix = "--column names the prompts, --record-column what followed, --tokenizer the writer's"
        raise ValueError(f"--oracle recorded:{file}: {error} ({fix})") from error


class RecordedArm(EngineArm):
    """Decode with our engine, and compare every output with its record."""

    def run(self, prompts: Sequence[NamedPrompt], seeds: Sequence[tuple[int, int]], max_new_tokens: int) -> Measurement:
        """Decode the prompts together.

        Raises:
            RuntimeError: an output is not the beginning of its record, of the length asked for.
        """
        measured, oracle = super().run(prompts, seeds, max_new_tokens), self.decoder.oracle
        assert isinstance(oracle, RecordedText)
        for prompt, tokens in zip(prompts, measured.tokens, strict=True):
            ids = encode_prompt(oracle, prompt.start, prompt.name)
            if tokens != oracle.output_of(ids, prompt.name)[:max_new_tokens].tolist():
                raise RuntimeError(f"{self.name}: the output of {prompt.name} is not its record")
        return measured


def heading(outcome: Outcome, chosen: Mapping[str, Any], batches: tuple[str, str]) -> str:
    """Return what the tables are of.

    Args:
        outcome: of the run.
        chosen: arguments of the run.
        batches: their size in words, and how to fill them.
    """
    return (
        f"{sum(len(entry['prompts']) for entry in outcome.done)} texts of {record_file(chosen)}, repeated in place "
        f"of a model, {batches[0]}, up to {chosen['max_new_tokens']} new tokens; "
        f"95 % intervals clustered by {'prompt' if chosen['batch_size'] == 1 else 'batch'} (delta method). "
        f"{batches[1]}".rstrip()
    )


def worth(outcome: Outcome, costs: AssumedCosts | None) -> Table:
    """Return what each arm's drafts are worth, and the speed-up at stated costs."""
    plain, rows = outcome.stats(PLAIN), []
    assert plain is not None
    for arm in outcome.arms:
        stats = outcome.stats(arm)
        assert stats is not None
        row = {"arm": arm, **of_drafts(stats), "drafted": _passes_per_step(stats)}
        row |= costs.speedup(arm, plain, stats) if costs else {}
        rows.append({**row, **check_cells(outcome, arm)})
    note = NOTE if costs else f"{NOTE}\n\n{UNPRICED.format(OPTIONS)}"
    brief = ("arm", "tau", "alpha", "speed-up" if costs else "drafted", "identical")
    return Table("Worth of the drafts", rows, note, "worth", brief, WORTH)
