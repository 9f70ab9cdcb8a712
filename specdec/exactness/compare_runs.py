"""Where two greedy runs part, and whether a numerical tie, a bug or the oracle itself parted them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from specdec.cache import TOLERANCES, deviation, distance, prefill
from specdec.contracts import IntArray, Oracle, check_has_laws
from specdec.engine import Result
from specdec.requests import Prompt, encode_prompt, list_prompts

_WIDTHS, _COPIES = (1, 2, 4, 8), (1, 4)

Finding = Literal["numerical tie", "state bug", "the oracle's scores depend on the pass"]


@dataclass(frozen=True)
class Divergence:
    """The first place where a request's two outputs differ.

    Attributes:
        request: index.
        position: index into the new ids.
        first: id that the first run emitted there; None if it had ended.
        second: likewise of the second run.
        margin: best minus second-best logit there, in a plain pass over the common prefix.
        gap: best logit minus the lower one of the two ids that were emitted; infinite if a run had ended.
        noise: by how much a logit there moves when the same prefix is scored in passes of other widths and batches.
        verdict: "numerical tie": noise on both logits can bridge the gap. "state bug": it cannot. "the oracle's scores
            depend on the pass": noise can, but it is more than rounding, see ``compare_runs``.
    """

    request: int
    position: int
    first: int | None
    second: int | None
    margin: float
    gap: float
    noise: float
    verdict: Finding


@dataclass(frozen=True)
class Comparison:
    """What ``compare_runs`` found.

    Attributes:
        num_requests: requests compared.
        divergences: one entry per request whose outputs differ.
    """

    num_requests: int
    divergences: tuple[Divergence, ...]

    @property
    def identical(self) -> bool:
        """Whether all outputs are equal."""
        return not self.divergences

    @property
    def num_bugs(self) -> int:
        """Divergences that numerics do not explain: of the engine's state, or of the oracle's passes."""
        return sum(item.verdict != "numerical tie" for item in self.divergences)

    def table(self) -> str:
        """Return a text table, one line per divergence."""
        lines = [f"{self.num_requests - len(self.divergences)} of {self.num_requests} requests are identical"]
        if self.divergences:
            lines.append("request position    first   second     margin        gap      noise  verdict")
        for item in self.divergences:
            ids = f"{item.first!s:>8} {item.second!s:>8}"
            numbers = f"{item.margin:10.3g} {item.gap:10.3g} {item.noise:10.3g}"
            lines.append(f"{item.request:7d} {item.position:8d} {ids} {numbers}  {item.verdict}")
        return "\n".join(lines)


def compare_runs(
    oracle: Oracle,
    prompts: Sequence[Prompt],
    first: Result | Sequence[Sequence[int]],
    second: Result | Sequence[Sequence[int]],
) -> Comparison:
    """Return the first divergence of each request of two greedy runs, with a verdict.

    Args:
        oracle: the target of both runs; sampled without penalties or bias, at temperature 0.
        prompts: as handed to ``generate``.
        first: a result, or new ids of each request.
        second: likewise.

    Raises:
        ValueError: prompts and outputs differ in number.

    Guarantee: on an oracle whose logits do not move at all (noise 0), every divergence is a state bug. Noise
        counts as rounding if the root mean square of the logits' changes is at most what ``check_oracle`` allows.
    Cost: eight passes over the prefix per request that diverges, none for the others.
    """
    one, two = (run.tokens if isinstance(run, Result) else run for run in (first, second))
    prompts = list_prompts(prompts)
    if not len(prompts) == len(one) == len(two):
        sizes = f"{len(prompts)}, {len(one)} and {len(two)}"
        raise ValueError(f"prompts, first and second have {sizes} entries; give one output of each run per prompt")
    found = []
    for request, (a, b) in enumerate(zip(one, two, strict=True)):
        if list(a) != list(b):
            prompt = encode_prompt(oracle, prompts[request], f"prompts[{request}]")
            found.append(_divergence(oracle, request, prompt, list(a), list(b)))
    return Comparison(len(prompts), tuple(found))


def _divergence(oracle: Oracle, request: int, prompt: IntArray, first: list[int], second: list[int]) -> Divergence:
    """Return the divergence of two different outputs of one prompt."""
    same = [a == b for a, b in zip(first, second, strict=False)]
    at = same.index(False) if False in same else len(same)
    plain, variants = _score_variants(oracle, np.concatenate([prompt, np.asarray(first[:at], dtype=np.int64)]))
    finite = torch.isfinite(plain)
    noise = max(float((other - plain)[finite].abs().max()) for other in variants)
    best = plain.topk(min(2, len(plain))).values
    ids = [run[at] if at < len(run) else None for run in (first, second)]
    gap = max(float(best[0] - plain[token]) if token is not None else float("inf") for token in ids)
    rows = plain.unsqueeze(0)
    moved = max(distance(other.unsqueeze(0), rows, deviation(rows)) for other in variants)
    verdict: Finding = "state bug"
    if noise > 0 and gap <= 2 * noise:
        is_rounded = moved <= TOLERANCES[oracle.dtype.itemsize]
        verdict = "numerical tie" if is_rounded else "the oracle's scores depend on the pass"
    return Divergence(request, at, ids[0], ids[1], float(best[0] - best[-1]), gap, noise, verdict)


def _score_variants(oracle: Oracle, prefix: IntArray) -> tuple[Tensor, list[Tensor]]:
    """Return the plain logits ``[V]`` after a prefix, and those of passes of other widths and batches."""
    widths = [width for width in _WIDTHS if width <= len(prefix)]
    variants = [_logits(oracle, prefix, width, copies) for width in widths for copies in _COPIES]
    return variants[0], variants


def _logits(oracle: Oracle, prefix: IntArray, width: int, copies: int) -> Tensor:
    """Return the logits after ``prefix``, its last ``width`` ids scored in one pass of ``copies`` equal rows."""
    check_has_laws(oracle, "compare_runs")
    rows: Any = np.arange(copies)
    cache = oracle.new_cache(copies, len(prefix))
    prefill(oracle, cache, rows, [prefix[: len(prefix) - width + 1]] * copies)
    tokens = torch.from_numpy(prefix[-width:]).to(oracle.device).expand(copies, -1)
    num_nodes = torch.full((copies,), width, dtype=torch.int64, device=oracle.device)
    scores = oracle.score(tokens, None, num_nodes, cache, rows, want="last")
    assert scores.logits is not None
    return scores.logits[-1, -1].double()
