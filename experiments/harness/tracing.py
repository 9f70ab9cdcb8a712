"""Node records of an experiment's first prompts, decoded again after the timed rounds, for traces on the page.

``RUN/nodes/`` holds ``trace.json`` (which arms and prompts) and for each arm a folder of node records, with
``tokens.json`` (what the ids stand for, and where the records differ from the timed rounds) once they are complete.
"""

import json
import re
import shutil
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from tqdm import tqdm

from experiments.harness.arms import PLAIN, Arm, EngineArm
from experiments.harness.run_outcome import Outcome
from experiments.harness.study import Study
from specdec.drafting import piece_bytes
from specdec.prompts import NamedPrompt
from specdec.requests import encode_prompt
from specdec.system import write_whole
from specdec.traces import NodeRecords, record_nodes

TokenText = str | list[int] | None


def token_texts(tokenizer: Any | None, ids: Iterable[int]) -> dict[int, TokenText]:
    """Return, for each id, its text; its bytes if they are not UTF-8; None if the id is unknown.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``; None: all ids are unknown.
        ids: each once or more often.

    Cost: see ``piece_bytes``.
    """
    if tokenizer is None:
        return dict.fromkeys(ids)
    distinct = list(set(ids))
    pieces = zip(distinct, piece_bytes(tokenizer, distinct), strict=True)
    return {one: None if content is None else _decode(content) for one, content in pieces}


def _decode(content: bytes) -> TokenText:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return list(content)


NODES, TRACE, TOKENS = "nodes", "trace.json", "tokens.json"
OTHER_PROGRAM = "another program, which does not show its drafts"
# The tokens that a step emitted, how many it drafted, and how many of these stood.
Step = tuple[list[int], int, int]


@dataclass(frozen=True)
class Tracing:
    """What is decoded again, as the timed rounds decoded it.

    Attributes:
        study: the experiment.
        prompts: place in the experiment, prompt.
    """

    study: Study
    prompts: tuple[tuple[int, NamedPrompt], ...]

    @staticmethod
    def of(study: Study, outcome: Outcome) -> "Tracing":
        """Return what ``--trace N`` asks for: the first N prompts that were measured, no later turns among them."""
        measured = {name for entry in outcome.done for name in entry["prompts"]}
        firsts = [(number, prompt) for number, prompt in enumerate(study.prompts) if prompt.turn == 1]
        chosen = [(number, prompt) for number, prompt in firsts if prompt.name in measured]
        return Tracing(study, tuple(chosen[: study.plan.arguments["trace"]]))

    def prompt_ids(self) -> list[list[int]]:
        """Return the ids of each prompt."""
        return [encode_prompt(self.study.oracle, prompt.start, prompt.name).tolist() for _, prompt in self.prompts]

    def record(self, arm: EngineArm, folder: Path) -> NodeRecords:
        """Decode the prompts with an arm and return its node records; go on if some stand in the folder."""
        arguments = self.study.plan.arguments
        seeds, batch_size = [(arguments["seed"], number) for number, _ in self.prompts], arguments["batch_size"]
        starts = [prompt.start for _, prompt in self.prompts]
        return record_nodes(
            arm.decoder, folder, starts, arguments["max_new_tokens"], arm.sampling, seeds,
            batch_size=batch_size, logprobs=True, label=arm.name, requests_per_part=batch_size,
        )  # fmt: skip


def drop_traces(folder: Path) -> None:
    """Remove an earlier run's traces from the folder of a run that begins afresh."""
    if (folder / NODES).exists():
        shutil.rmtree(folder / NODES)


def trace_arms(study: Study, arms: Sequence[Arm], others: Iterable[str], outcome: Outcome) -> list[str]:
    """Record the nodes of every drafting arm of ours, and name the arms that cannot be recorded on stderr.

    Args:
        study: the experiment, which says how many prompts are traced.
        arms: that ran, plain decoding among them.
        others: names of those that did not run.
        outcome: of the timed rounds.

    Returns:
        What went wrong: arms that failed, and arms that claim to be exact but
        wrote other tokens than in the timed rounds. (With another claim, or if other steps made the same tokens,
        stderr says so.) Nothing if no prompt is traced.

    Guarantee: if it is killed at any moment, the next run goes on; see ``record_nodes``.
    """
    tracing = Tracing.of(study, outcome)
    if not tracing.prompts:
        return []
    drafting = [arm for arm in arms if isinstance(arm, EngineArm) and arm.name != PLAIN]
    recordable = {arm.name for arm in drafting} | {PLAIN}
    left_out = [*(arm.name for arm in arms if arm.name not in recordable), *others]
    for name in left_out:
        print(f"no trace of {name}: {OTHER_PROGRAM}", file=sys.stderr)
    slugs = slugs_of([arm.name for arm in drafting])
    rules = {arm.name: arm.decoder.rule.name for arm in drafting if arm.sampling.temperature > 0}
    _begin(tracing, slugs, left_out, rules)
    found: list[str] = []
    for arm in tqdm(drafting, desc="traces", unit="arm"):
        try:
            found += _trace(tracing, arm, tracing.study.folder / NODES / slugs[arm.name], outcome)
        except Exception:  # the other arms go on, and the run ends with status 1
            print(traceback.format_exc(), file=sys.stderr)
            found.append(f"the trace of {arm.name}: {traceback.format_exc().strip().splitlines()[-1]}")
    return found


def slugs_of(names: Sequence[str]) -> dict[str, str]:
    """Return name -> a name of its own for folders and anchors: lower-case letters, digits and dashes."""
    slugs: dict[str, str] = {}
    for name in names:
        slug = plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "arm"
        number = 2
        while slug in slugs.values():
            slug, number = f"{plain}-{number}", number + 1
        slugs[name] = slug
    return slugs


def _begin(tracing: Tracing, slugs: dict[str, str], left_out: Sequence[str], rules: dict[str, str]) -> None:
    """Write which arms and prompts are traced, and by which rules sampled arms drew.

    Other records that an interrupted run left are dropped.
    """
    both = zip(tracing.prompts, tracing.prompt_ids(), strict=True)
    prompts = [{"name": prompt.name, "kind": prompt.kind, "ids": ids} for (_, prompt), ids in both]
    arms = {slug: name for name, slug in slugs.items()}
    wanted = {"arms": arms, "left_out": list(left_out), "rules": rules, "prompts": prompts}
    path = tracing.study.folder / NODES / TRACE
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) == wanted:
        return
    drop_traces(tracing.study.folder)
    path.parent.mkdir()
    write_whole(path, json.dumps(wanted) + "\n")


def _trace(tracing: Tracing, arm: EngineArm, folder: Path, outcome: Outcome) -> list[str]:
    """Record an arm, compare it with the timed rounds, and return what refutes its claim."""
    records = tracing.record(arm, folder)
    columns = records.columns()
    found = _differences(tracing, arm.name, records.tokens, _steps_of_records(columns, len(tracing.prompts)), outcome)
    ids = {int(token) for token in columns.get("token", ())}.union(*tracing.prompt_ids())
    texts = {str(one): text for one, text in sorted(token_texts(tracing.study.oracle.tokenizer, ids).items())}
    write_whole(folder / TOKENS, json.dumps({"tokens": texts, **found}) + "\n")
    return _report(arm.name, found)


def _differences(
    tracing: Tracing, arm: str, tokens: Mapping[int, list[int]], steps: Sequence[list[Step]], outcome: Outcome
) -> dict[str, Any]:
    """Return the arm's claim, and the prompts whose tokens, or steps, are not those of its first timed round."""
    timed, other_tokens, other_steps = _steps_of_rounds(outcome, arm), [], []
    for number, (_, prompt) in enumerate(tracing.prompts):
        wanted = timed[prompt.name]
        if tokens[number] != [token for emitted, *_ in wanted for token in emitted]:
            other_tokens.append(prompt.name)
        elif steps[number] != wanted:
            other_steps.append(prompt.name)
    claims = [entry["arms"][arm]["claim"] for entry in outcome.done]
    claim = next((one for one in claims if one != "exact"), "exact")
    return {"claim": claim, "other_tokens": other_tokens, "other_steps": other_steps}


def _report(arm: str, found: Mapping[str, Any]) -> list[str]:
    """Return what refutes the arm's claim; report other differences on stderr."""
    refuting = []
    for what in ("tokens", "steps"):
        for name in found[f"other_{what}"]:
            text = f"the trace of {arm}: other {what} than in the timed rounds on prompt {name}"
            if what == "tokens" and found["claim"] == "exact":
                refuting.append(text)
            else:
                print(text, file=sys.stderr)
    return refuting


def _steps_of_records(columns: Mapping[str, Any], num_prompts: int) -> list[list[Step]]:
    """Return the steps of each prompt, from the columns of node records."""
    names = ("request", "step", "token", "kind", "accepted", "emitted")
    rows = zip(*(columns[name].tolist() if name in columns else () for name in names), strict=True)
    found: list[list[Step]] = [[] for _ in range(num_prompts)]
    for (request, _), nodes in groupby(rows, key=itemgetter(0, 1)):
        _, _, tokens, kinds, accepted, emitted = zip(*nodes, strict=True)
        stands = [token for token, is_out in zip(tokens, emitted, strict=True) if is_out]
        found[request].append((stands, kinds.count("draft"), sum(accepted)))
    return found


def _steps_of_rounds(outcome: Outcome, arm: str) -> dict[str, list[Step]]:
    """Return the steps of each prompt in an arm's first timed round."""
    found: dict[str, list[Step]] = {}
    for entry in outcome.done:
        columns = entry["arms"][arm]["records"]
        found |= {name: [] for name in entry["prompts"]}
        names = ("request", "round", "tokens", "num_drafted", "num_accepted")
        for request, round_, tokens, drafted, accepted in zip(*(columns[name] for name in names), strict=True):
            if round_ == 0:
                found[entry["prompts"][request]].append((tokens, drafted, accepted))
    return found
