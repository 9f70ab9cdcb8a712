"""What can be checked of outputs that are draws of a law, and not plain decoding's own: lengths, seeds, the law.

A rule that draws by rejection gives every arm its own text. The text's length is known, one seed gives one text, and
the text must look as if drawn from the oracle's law.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from experiments.harness.arms import Arm, EngineArm, Measurement, Unit
from specdec import Oracle, SamplingParams
from specdec.cache import CHUNK, prefill
from specdec.contracts import IntArray
from specdec.kernels import best_kernels
from specdec.requests import encode_prompt
from specdec.sampling import ParameterTable

# An e-value that a lossless arm reaches at most once in a million runs.
REFUTED = 1e6
# The tempered laws that the oracle's is compared with: p to the power of 1 - TILT and of 1 + TILT.
TILT = 0.2
# The law of every fourth unit is checked: an output is scored once more for it.
EVERY = 4

Sums = TypeVar("Sums")


@dataclass(frozen=True)
class LawEvidence:
    """How much better tempered laws explain some tokens than the oracle's law p does.

    Attributes:
        tokens: of positive probability.
        impossible: tokens of probability 0.
        hotter, colder: sums over tokens x of log p(x)^(1 -+ t) / (Z p(x)), with t = ``TILT`` and Z the sum over the
            vocabulary of p^(1 -+ t).
    """

    tokens: int = 0
    impossible: int = 0
    hotter: float = 0.0
    colder: float = 0.0

    @property
    def e_value(self) -> float:
        """The mean of both likelihood ratios.

        Guarantee: tokens that are drawn from p, each given those before it, reach a value of x or more with a
            probability of at most 1 / x, however many they are: either ratio is a martingale of mean 1 (Ville 1939).
        """
        return 0.5 * sum(math.exp(min(part, 700.0)) for part in (self.hotter, self.colder))


def e_value_text(value: float) -> str:
    """Return an e-value as it is printed; one too small for a float is not printed as 0."""
    return f"{value:.2g}" if value else "< 1e-300"


def evidence_of(probs: Tensor, tokens: IntArray) -> LawEvidence:
    """Return the evidence of tokens ``[M]`` against the laws ``[M, V]`` that they should be drawn from."""
    laws = probs.double()
    own = laws.gather(1, torch.from_numpy(tokens).to(laws.device).unsqueeze(1)).squeeze(1)
    possible = own > 0
    laws, logs = laws[possible], own[possible].log()
    found = []
    for sign in (-1, 1):
        # 0 to a positive power is 0: what the law excludes, the tempered ones exclude too.
        normaliser = laws.pow(1 + sign * TILT).sum(1).log()
        found.append(float((sign * TILT * logs - normaliser).sum()))
    return LawEvidence(len(logs), int((~possible).sum()), *found)


def law_evidence(oracle: Oracle, prompt: IntArray, tokens: Sequence[int], sampling: SamplingParams) -> LawEvidence:
    """Return the evidence of an output, from laws that are computed afresh, without the engine.

    Args:
        oracle: whose law it should follow.
        prompt, tokens: ids ``[L]`` and ``[N]``; the output has at least one.
        sampling: temperature above 0 and filters, without penalties.

    Cost: passes over prompt and output, 128 tokens each, on a cache of its own.
    """
    ids = np.concatenate([prompt, np.asarray(tokens, dtype=np.int64)])
    cache, row, table = oracle.new_cache(1, len(ids)), np.zeros(1, dtype=np.int64), ParameterTable.of([sampling])
    prefill(oracle, cache, row, [prompt])
    found = [LawEvidence()]
    for start in range(len(prompt) - 1, len(ids) - 1, CHUNK):
        chunk = ids[start : min(start + CHUNK, len(ids) - 1)]
        nodes = torch.tensor([len(chunk)], device=oracle.device)
        logits = oracle.score(torch.from_numpy(chunk[None]).to(oracle.device), None, nodes, cache, row).logits
        assert logits is not None
        cache.commit(row, None, np.asarray([len(chunk)], dtype=np.int64))
        found.append(evidence_of(best_kernels().laws(logits, table)[0], ids[start + 1 : start + 1 + len(chunk)]))
    return sum_of(found)


def sum_of(parts: Sequence[Sums]) -> Sums:
    """Return the sum of dataclasses of numbers, at least one, field by field."""
    return type(parts[0])(**{name: sum(vars(part)[name] for part in parts) for name in vars(parts[0])})


def soundness(runs: Sequence[Measurement]) -> list[bool]:
    """Return, for each prompt, whether its output has the right length and is the same in every round.

    An output that ends by its length has as many tokens as it has room for; any other has at least 1 and no more than
    that.
    """
    found = []
    reasons = runs[0].result.finish_reasons if runs[0].result else ()
    for number, (tokens, room, reason) in enumerate(zip(runs[0].tokens, runs[0].rooms or (), reasons, strict=True)):
        whole = len(tokens) == room if reason == "length" else 1 <= len(tokens) <= room
        found.append(whole and all(run.tokens[number] == tokens for run in runs))
    return found


def checks_of(runs: Sequence[Measurement], plain: Sequence[list[int]]) -> dict[str, Any]:
    """Return what a journal keeps of how an arm's outputs were chosen, how they ended, and which passed their check.

    Args:
        runs: rounds of the arm.
        plain: plain decoding's outputs, in its first round.
    """
    same = [all(run.tokens[i] == tokens for run in runs) for i, tokens in enumerate(plain)]
    checked = {"identical": same} if runs[0].repeats_plain else {"sound": soundness(runs)}
    ends = [run.result.finish_reasons for run in runs if run.result is not None]
    kept = {"repeats_plain": runs[0].repeats_plain, "rule": runs[0].rule}
    return {**kept, "finish_reasons": ends or None, **checked}


def texts_in(records: Mapping[str, Sequence[Any]], count: int) -> list[list[int]]:
    """Return the outputs of the first round of ``count`` requests, from an arm's records of one unit."""
    texts: list[list[int]] = [[] for _ in range(count)]
    for request, round_, tokens in zip(records["request"], records["round"], records["tokens"], strict=True):
        if round_ == 0:
            texts[request] += tokens
    return texts


def add_checks(entry: dict[str, Any], unit: Unit, arms: Sequence[Arm], max_new_tokens: int) -> None:
    """Add to a unit's journal entry the untimed checks of its draws: law and seeds.

    The law is checked in every fourth unit. In the first one, if it had one round, the seeds must also give the same
    texts again.
    """
    for arm in () if unit.index % EVERY else arms:
        kept = entry["arms"][arm.name]
        if kept["repeats_plain"] or not isinstance(arm, EngineArm):
            continue
        oracle, texts = arm.decoder.oracle, texts_in(kept["records"], len(unit.prompts))
        prompts = [encode_prompt(oracle, prompt.start, prompt.name) for prompt in unit.prompts]
        parts = [law_evidence(oracle, *pair, arm.sampling) for pair in zip(prompts, texts, strict=True)]
        kept["law"] = asdict(sum_of(parts))
        if unit.index == 0 and len(kept["seconds"]) == 1:
            again = arm.run(unit.prompts, unit.seeds, max_new_tokens).tokens
            kept["sound"] = [is_sound and a == b for is_sound, a, b in zip(kept["sound"], again, texts, strict=True)]
