"""The browsable traces of a run: a section for each arm whose nodes ``--trace`` recorded.

The page holds a trace as columns with an entry for each node, probabilities in ten-thousandths; a column whose entries
are all equal is that one number. The scripts in ``viewer/`` show it a step at a time.
"""

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.harness.tracing import NODES, TOKENS, TRACE, TokenText
from experiments.report.page import Section
from specdec.traces import NodeRecords
from specdec.verify import RULES

VIEWER = Path(__file__).parent / "viewer"
SCRIPTS = ("data.js", "tree.js", "times.js", "viewer.js")
SECONDS = "seconds_"
# What became of a node, in the order of their numbers in the page.
DECISIONS = ("accepted", "cut off", "rejected", "not reached", "scout", "recovered", "bonus")
_ACCEPTED, _CUT, _REJECTED, _UNREACHED, _SCOUT, _RECOVERED, _BONUS = range(len(DECISIONS))
# Probabilities are whole multiples of 1 / SCALE; these are not: none, one above 0 that would round to 0, and one below
# 1 that would round to 1.
SCALE, ABSENT, TINY, NEARLY_1 = 10_000, -1, -2, -3
GREEDY = (
    "Greedy: p is the target's probability of a token before temperature 0 makes it all or nothing; a drafted token "
    "stands if it is the target's likeliest. q is 1 for a token that was chosen, not drawn."
)
COUPLED = (
    "Sampled, coupled: p and q are probabilities under the warped laws of target and draft, and a drafted token stands "
    "if the target draws the same one with the noise of its position. q is 1 for a token that was chosen, not drawn."
)

DRAWN = (
    "Sampled, drawn by rule {rule}: p and q are probabilities under the warped laws of target and draft, and a drafted "
    "token stands by chance, the surer the larger p is beside q. q is 1 for a token that was chosen, not drawn."
)
TIMES = (
    "Times are those of the run that was traced, without what recording took; in a batch each request has a share of a "
    "step's, by its nodes."
)

Column = list[int] | int
# Name and ids of each request's prompt, by its number.
Prompts = Sequence[tuple[str, Sequence[int]]]


def trace_sections(run: Path, anchor: str) -> tuple[Section, ...]:
    """Return a section for each traced arm of a run, in the run's order.

    Args:
        run: folder of an experiment's results.
        anchor: of the run, which no other of the page has.

    Returns:
        Nothing if no arm was traced. A section's ``data`` is as ``trace_data`` says, its name begins with the run's
        anchor; a link ``#trace-ARM/step=17``, with the arm's name in lower-case letters, digits and dashes, opens a
        step.

    Raises:
        ValueError: records of a traced arm are unusable.
    """
    path = run / NODES / TRACE
    if not path.exists():
        return ()
    trace = json.loads(path.read_text(encoding="utf-8"))
    ended = {slug: arm for slug, arm in trace["arms"].items() if (run / NODES / slug / TOKENS).exists()}
    missing = [f"{arm} (not finished)" for slug, arm in trace["arms"].items() if slug not in ended]
    missing += [f"{name} (another program)" for name in trace["left_out"]]
    return tuple(_section(run / NODES / slug, arm, anchor, trace, missing) for slug, arm in ended.items())


def _section(folder: Path, arm: str, anchor: str, trace: Mapping[str, Any], missing: Sequence[str]) -> Section:
    """Return the section of an arm's records.

    Raises:
        ValueError: another version wrote them.
    """
    found = json.loads((folder / TOKENS).read_text(encoding="utf-8"))
    if "claim" not in found or "rules" not in trace:
        raise ValueError(f"{folder}: a trace that another version wrote; measure again")
    prompts = [(prompt["name"], prompt["ids"]) for prompt in trace["prompts"]]
    tokens = {int(one): text for one, text in found["tokens"].items()}
    notes = [_decision(trace["rules"].get(arm)), TIMES, *_differences(found)]
    if missing:
        notes.append(f"No trace of {', '.join(missing)}.")
    data = trace_data(NodeRecords(folder).columns(), prompts, tokens)
    link = f"trace-{folder.name}"
    return viewer_section(f"{anchor}-{link}", link, arm, data, notes)


def _decision(rule: str | None) -> str:
    """Return when a drafted token is accepted, by the rule of a sampled arm; None: greedily."""
    if rule is None:
        return GREEDY
    return COUPLED if rule in RULES and RULES[rule].coupled else DRAWN.format(rule=rule)


def _differences(found: Mapping[str, Any]) -> list[str]:
    """Return how a trace differs from what was timed, a sentence each."""
    told, claim = [], found["claim"]
    if found["other_tokens"]:
        why = "although the arm is claimed to be exact" if claim == "exact" else f"as the arm's claim allows ({claim})"
        told.append(f"Other tokens than in the timed rounds on {', '.join(found['other_tokens'])}, {why}.")
    if found["other_steps"]:
        names = ", ".join(found["other_steps"])
        told.append(f"Other steps than in the timed rounds on {names}: the same tokens from other drafts.")
    return told


def viewer_section(name: str, link: str, arm: str, data: Mapping[str, Any], notes: Sequence[str]) -> Section:
    """Return a section that steps through a trace.

    Args:
        name: anchor.
        link: what a link to a step begins with, if no other section of the page has it; else the anchor does.
        arm: whose trace it is.
        data: of ``trace_data``.
        notes: sentences about it.
    """
    read = {name: (VIEWER / name).read_text(encoding="utf-8") for name in (*SCRIPTS, "viewer.html", "viewer.css")}
    paragraph = html.escape(" ".join(notes))
    frame = f'<div class="trace" data-trace="{html.escape(name)}">\n{read["viewer.html"]}</div>'
    body = f'<p class="muted">{paragraph}</p>\n{frame}'
    script = "\n".join(read[one] for one in SCRIPTS)
    return Section(name, f"Trace: {arm}", body, read["viewer.css"], script, {**data, "arm": arm, "link": link})


def trace_data(
    columns: Mapping[str, NDArray[Any]], prompts: Prompts, tokens: Mapping[int, TokenText]
) -> dict[str, Any]:
    """Return what the page holds of node records.

    Args:
        columns: ``[R]`` each: ``NodeRecords.columns()``, with log-probabilities, of R nodes.
        prompts: of the requests.
        tokens: id -> text, the bytes of a part of a character, or None.

    Returns:
        ``ids`` and ``texts`` of the tokens that occur, a text, bytes or None for each; ``sources``; ``decisions``;
        ``prompts`` with name, tokens and number of steps each; ``size``, the nodes of each step; and of each node
        ``token`` (place in ``ids``), ``parent`` (place in its step, -1: the pending token), ``source`` (-1: drawn by
        the verdict), ``decision``, ``p``, ``q`` and ``confidence`` (see ``SCALE``).

    Cost: O(nodes), a few bytes of JSON for each number.
    """
    count = len(columns["request"])
    first, step = _steps(columns["request"], columns["step"])
    every = np.asarray(sorted(tokens), dtype=np.int64)
    names = [str(name) for name in dict.fromkeys(columns.get("source", ())) if name is not None]
    head = {
        "ids": every.tolist(),
        "texts": [tokens[int(one)] for one in every],
        "sources": names,
        "decisions": list(DECISIONS),
        "prompts": _prompts(prompts, every, columns["request"][first]),
        "rows": count,
        "size": np.diff(np.append(first, count)).tolist(),
        **_times(columns, first),
    }
    if not count:
        return head | dict.fromkeys(("token", "parent", "source", "decision", "p", "q", "confidence"), ABSENT)
    parent, code = _parents(columns, step), {name: i for i, name in enumerate(names)}
    whole = {
        "token": np.searchsorted(every, columns["token"]),
        "parent": np.where(parent < 0, -1, parent - first[step]),
        "source": np.asarray([code.get(name, -1) for name in columns["source"]]),
        "decision": decisions_of(columns, parent, step),
        "p": _scale(np.exp(columns["logprob"])),
        "q": _scale(columns["q"]),
        "confidence": _scale(columns["confidence"]),
    }
    return head | {name: _compact(values) for name, values in whole.items()}


def _times(columns: Mapping[str, NDArray[Any]], first: NDArray[np.int64]) -> dict[str, Any]:
    """Return the phases of a step, and of each the microseconds of every step; none if the records have no times."""
    phases = [name.removeprefix(SECONDS) for name in columns if name.startswith(SECONDS)]
    sums = (np.add.reduceat(columns[SECONDS + name], first) if len(first) else np.zeros(0) for name in phases)
    return {"phases": phases, "micros": [np.rint(1e6 * taken).astype(np.int64).tolist() for taken in sums]}


def _prompts(prompts: Prompts, every: NDArray[np.int64], requests: NDArray[Any]) -> list[dict[str, Any]]:
    """Return name, tokens and number of steps of each prompt, from the request of each step."""
    counts = np.bincount(requests, minlength=len(prompts))
    return [
        {"name": name, "tokens": np.searchsorted(every, ids).tolist(), "steps": int(steps)}
        for (name, ids), steps in zip(prompts, counts, strict=True)
    ]


def _steps(request: NDArray[Any], step: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first row of each step, and for each row the number of its step in the whole trace."""
    key = np.stack([request, step])
    begins = np.append(True, (key[:, 1:] != key[:, :-1]).any(0))[: len(request)]
    return np.flatnonzero(begins), np.cumsum(begins) - 1


def _parents(columns: Mapping[str, NDArray[Any]], step: NDArray[Any]) -> NDArray[np.int64]:
    """Return the row of each node's parent, -1 for the pending token."""
    width = int(columns["node"].max()) + 2
    node, above = step * width + columns["node"], step * width + columns["parent"]
    drafted = np.flatnonzero(columns["node"] >= 0)
    at = np.searchsorted(node[drafted], above)
    found = np.append(drafted, -1)[at]
    return np.where(columns["parent"] < 0, -1, found)


def decisions_of(columns: Mapping[str, NDArray[Any]], parent: NDArray[Any], step: NDArray[Any]) -> NDArray[np.int64]:
    """Return ``[R]`` what became of each node, as a place in ``DECISIONS``.

    Children are tried in the order of their ranks: those after the accepted one are not reached, and neither are those
    of nodes that are not accepted.

    Args:
        columns: ``[R]`` each, of the records; R is at least 1.
        parent: ``[R]`` row of each node's parent, -1 for the pending token.
        step: ``[R]`` number of each row's step in the trace.
    """
    kind, accepted, count = np.asarray(columns["kind"]).astype(str), columns["accepted"], len(step)
    above = np.where(parent < 0, count + step, parent)  # the pending token of a step has a place of its own
    stands = np.append(accepted, np.ones(step[-1] + 1, dtype=np.bool_))
    last_tried = np.full(len(stands), np.iinfo(np.int64).max)
    last_tried[above[accepted]] = columns["rank"][accepted]
    tried = stands[above] & (columns["rank"] < last_tried[above])
    drafted = np.where(accepted, np.where(columns["emitted"], _ACCEPTED, _CUT), np.where(tried, _REJECTED, _UNREACHED))
    others = {"scout": _SCOUT, "recovered": _RECOVERED, "bonus": _BONUS}
    return np.select([kind == name for name in others], [*others.values()], drafted)


def _scale(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return probabilities as multiples of 1 / ``SCALE``, ``ABSENT``, ``TINY`` or ``NEARLY_1``."""
    known = np.where(np.isnan(values), 0.0, values)
    whole = np.rint(known * SCALE).astype(np.int64)
    is_special = [np.isnan(values), (known > 0) & (whole == 0), (known < 1) & (whole == SCALE)]
    return np.select(is_special, [ABSENT, TINY, NEARLY_1], whole)


def _compact(values: NDArray[np.int64]) -> Column:
    """Return a column as a list, or as one number if all entries are equal."""
    return int(values[0]) if (values == values[0]).all() else values.tolist()
