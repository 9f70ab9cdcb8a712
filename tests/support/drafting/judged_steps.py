"""Steps for the judge: drafts and scores without an oracle, their verdicts, and what two verdicts must share."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specdec import SamplingParams
from specdec.contracts import Budget, Draft, Needs, Scores, VerificationRule
from specdec.engine import verdict as verdicts
from specdec.engine.outcome import StepOutcome
from specdec.kernels import best_kernels
from specdec.laws import Laws, argmax
from specdec.sampling import BatchWarping, ParameterTable
from specdec.sampling.randomness import Coupled, Keyed
from specdec.verify import RULES

SOURCE: Any = SimpleNamespace(name="theirs", needs=Needs())
ORACLE: Any = SimpleNamespace(eos_ids=(3,), vocab_size=20, device=torch.device("cpu"))
(EOS,) = ORACLE.eos_ids
WAYS = (
    SamplingParams(),
    SamplingParams(temperature=1),
    SamplingParams(temperature=0.7, top_k=3),
    SamplingParams(temperature=1.4, top_p=0.9),
    SamplingParams(temperature=1, min_p=0.2),
    SamplingParams(temperature=0.8, top_k=20, top_p=0.8, min_p=0.01),
    SamplingParams(temperature=0.9, repetition_penalty=1.3, presence_penalty=0.5, logit_bias={2: 1.5}),
    SamplingParams(frequency_penalty=0.7, min_new_tokens=9),
)


def frame_of(batch: int, depth: int = 99, nodes: int = 99) -> Any:
    ignores = np.arange(batch) % 3 == 0
    limits = Budget(np.full(batch, depth), np.full(batch, nodes))
    seated = SimpleNamespace(ignore_eos=ignores, requests=np.arange(batch))
    warping, randomness = SimpleNamespace(is_argmax=lambda: True), Keyed.at(np.arange(batch), np.arange(batch) + 5)
    return SimpleNamespace(
        seated=seated,
        budget=limits,
        num_committed=np.arange(batch) + 5,
        warping=warping,
        randomness=randomness,
        return_logprobs=False,
    )


@dataclass
class Step:
    """What a verdict is asked about."""

    draft: Draft
    scores: Scores
    frame: Any
    rule: VerificationRule = RULES["standard"]


def framed(step: Step, **changed: Any) -> Step:
    return replace(step, frame=SimpleNamespace(**vars(step.frame) | changed))


def chosen(generator: np.random.Generator, logits: torch.Tensor) -> torch.Tensor:
    """Return ids of which most are the likeliest, and the others any."""
    batch, nodes, size = logits.shape
    any_id = torch.from_numpy(generator.integers(0, size, (batch, nodes - 1)))
    return torch.where(torch.from_numpy(generator.random((batch, nodes - 1)) < 0.7), logits.argmax(-1)[:, :-1], any_id)


def drafted(generator: np.random.Generator, warping: BatchWarping, logits: torch.Tensor) -> tuple[torch.Tensor, Laws]:
    """Return ids and what they were drawn from: laws close to the target's, the target's own, and points."""
    batch, nodes, size = logits.shape
    noise = torch.from_numpy(generator.normal(0, 0.7, (batch, nodes - 1, size))).to(logits.dtype)
    own = warping.laws_of(logits).dense(size).to(logits.dtype)[:, :-1]
    is_own = torch.from_numpy(generator.random((batch, nodes - 1, 1)) < 0.2)
    table = torch.where(is_own, own, (logits[:, :-1] + noise).softmax(-1)).reshape(-1, size)
    ids = [int(generator.choice(size, p=p / p.sum())) for p in table.double().numpy()]
    tokens = torch.tensor(ids, dtype=torch.int64).view(batch, nodes - 1)
    index = torch.arange(len(table)).view(batch, nodes - 1)
    index = torch.where(torch.from_numpy(generator.random((batch, nodes - 1)) < 0.2), -1, index)
    return tokens, Laws(table, index, tokens)


def step_of(
    generator: np.random.Generator, batch: int, width: int, size: int, dtype: torch.dtype, is_drawn: bool
) -> Step:
    """Return ragged chains that the target often accepts, for greedy and sampled rows side by side."""
    logits = torch.from_numpy(generator.normal(0, 2, (batch, width + 1, size))).to(dtype)
    logits[torch.from_numpy(generator.random(logits.shape) < 0.1)] = -torch.inf
    logits[:, :, 0] = 0.0
    logits[:, :, EOS] += 1.5
    params = ParameterTable.of([WAYS[way] for way in generator.integers(0, len(WAYS), batch)])
    committed = np.arange(batch) + 5
    ids = generator.integers(0, size, (batch, batch + 5))
    warping = BatchWarping(params, ids, committed, committed - 1, (EOS,))
    seeds = generator.integers(-(2**62), 2**62, batch)
    frame = SimpleNamespace(**vars(frame_of(batch)) | {"warping": warping, "randomness": Keyed.at(seeds, committed)})
    tokens, laws = drafted(generator, warping, logits) if is_drawn else (chosen(generator, logits), None)
    counts = torch.from_numpy(generator.integers(0, width + 1, batch))
    return Step(Draft(tokens, counts, laws=laws), Scores(logits, likeliest=argmax(logits)), frame)


def grown(generator: np.random.Generator, step: Step) -> Step:
    """Return the step with its nodes as ragged trees of two sources, with scouts and ids drawn without replacement.

    The target gives more to what is drafted.
    """
    draft, (batch, width) = step.draft, step.draft.tokens.shape
    above = [[int(generator.integers(max(-1, node - 4), node)) for node in range(width)] for _ in range(batch)]
    parents = torch.tensor(above, dtype=torch.int64).reshape(batch, width)
    scouts, without, source = (torch.from_numpy(generator.random((batch, width)) < p) for p in (0.1, 0.6, 0.3))
    for row, node in np.ndindex(batch, width):  # no verified node stands below a scout
        scouts[row, node] |= above[row][node] >= 0 and bool(scouts[row, above[row][node]])
    draft = replace(draft, parents=parents, is_scout=scouts, without_replacement=without)
    draft = replace(draft, source=source.long(), source_names=("a", "b"))
    assert step.scores.logits is not None
    logits = step.scores.logits.clone()
    for row, node in np.ndindex(batch, width):
        logits[row, above[row][node] + 1, draft.tokens[row, node]] += 2 + np.log(logits.shape[2])
    return Step(draft, Scores(logits, likeliest=argmax(logits)), step.frame, RULES["multi_draft"])


def coupled(step: Step) -> Step:
    """Return the step with draws by races that are keyed by position, with which the rule compares ids."""
    streams, warping = step.frame.randomness, step.frame.warping
    races = Coupled(streams.seeds, warping.num_committed)
    return replace(framed(step, randomness=races), rule=RULES["coupled"])


def by_the_rule(name: str, step: Step) -> Step:
    return coupled(step) if name == "coupled" else replace(step, rule=RULES[name])


def whole() -> Step:
    """Return a step with every node real, every law a row of the table, and no logit adjusted."""
    step = step_of(np.random.default_rng(4), 3, 4, 20, torch.float64, True)
    step = framed(step, warping=replace(step.frame.warping, params=ParameterTable.of(WAYS[1:4])))
    laws = step.draft.laws
    assert laws is not None
    index = torch.arange(12).view(3, 4)
    laws = Laws(laws.table, index, laws.point)
    return replace(step, draft=replace(step.draft, num_nodes=torch.full((3,), 4), laws=laws))


def verdict_of(step: Step, return_logprobs: bool = False) -> StepOutcome:
    nodes = step.draft.after(np.zeros(len(step.draft.tokens), dtype=np.int64))
    verify = verdicts.Verifier(ORACLE, SOURCE, step.rule, best_kernels())
    frame = SimpleNamespace(**vars(step.frame) | {"return_logprobs": return_logprobs})
    return verify(step.draft, nodes, step.scores, frame, verify.pack(step.draft, nodes, frame))


def in_one_call(step: Step) -> StepOutcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdicts.Verifier, "_by_the_rule", lambda *_: pytest.fail("compiled code had no word"))
        return verdict_of(step)


def same(native: Any, general: Any) -> bool:
    if native is None or general is None:
        return native is general
    return native.dtype == general.dtype and np.array_equal(native, general)


def check(native: StepOutcome, general: StepOutcome) -> None:
    names = ("tokens", "num_nodes", "stop", "next_ids", "is_scout", "source", "logprobs")
    for name in (*names, "counts", "endings", "block", "num_accepted"):
        assert same(getattr(native, name), getattr(general, name)), name
    ours, theirs = native, general
    assert (ours.walk is None) == (theirs.walk is None)
    if ours.walk is not None and theirs.walk is not None:
        assert same(ours.walk.parents, theirs.walk.parents)
        assert same(ours.walk.depth, theirs.walk.depth)
        for row, accepted in enumerate(native.num_accepted):
            path = slice(accepted + 1)
            assert ours.walk.path[row, path].tolist() == theirs.walk.path[row, path].tolist()
