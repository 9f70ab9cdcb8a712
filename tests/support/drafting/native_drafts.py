"""Draft models that draft by one native call or pass by pass, and all that their runs say."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from oracles.native import NativeTransformer
from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import NEVER, BoolArray, FloatArray, IntArray
from specdec.drafting import ChainSampler, TreeSampler
from specdec.drafting.lengths import LengthPolicy, LengthSession
from specdec.drafting.shapes import Paths
from tests.support.backends import needed_native
from tests.support.models.tiny_models import tiny_transformer, tiny_unpacked

needed_native()

VOCAB = 12
PROMPTS = [[(5 * i + 2 * j) % VOCAB for j in range(1 + 4 * (i % 4))] for i in range(9)]
MIXED = [SamplingParams(temperature=0.9 * (i % 2), frequency_penalty=0.0) for i in range(9)]
MANY = [
    SamplingParams(temperature=0.6 + i / 4, top_k=i % 3 * 4, top_p=1 - i % 2 / 10, min_p=i % 4 / 50) for i in range(9)
]
WARM = SamplingParams(temperature=0.8, top_p=0.95)


class PassByPass:
    """A model that does not offer to follow its ids, and counts its passes."""

    chains = False

    def __init__(self, model: NativeTransformer) -> None:
        self.model, self.num_passes = model, 0

    def __getattr__(self, name):
        return getattr(self.model, name)

    def score(self, *args, **options):
        self.num_passes += 1
        return self.model.score(*args, **options)


class Counted(PassByPass):
    chains = True


def model(seed: int, **options) -> NativeTransformer:
    return tiny_transformer(VOCAB, torch.float32, seed, pack=NativeTransformer, **options)


ORACLE, DRAFT = model(1), model(2)
VIEW = NativeTransformer(tiny_unpacked(VOCAB, torch.float32, 1).quantise())

ENDING = model(1)
ENDING.eos_ids = (2, 7)
ADJUSTED = {
    "repetition": {"repetition_penalty": 1.4},
    "presence": {"presence_penalty": 0.8},
    "frequency": {"frequency_penalty": -0.5},
    "bias": {"logit_bias": {3: 1.5, 7: 0.7, 5: -math.inf}},
    "ban": {"min_new_tokens": 11},
}
ADJUSTED["all"] = {name: value for options in ADJUSTED.values() for name, value in options.items()}
BY_ROW = [{}, *ADJUSTED.values(), {"repetition_penalty": 0.6, "logit_bias": {0: 2.0}}, {"min_new_tokens": 3}]
HEATS = {"greedy": {}, "sampled": {"temperature": 0.9, "top_p": 0.95}}


def adjusted_requests(heat, adjusted):
    """Return the sampling of nine requests: all adjusted alike, or each in its own way, some not at all."""
    own = BY_ROW if adjusted == "by row" else [ADJUSTED[adjusted]] * 9
    return [SamplingParams(**HEATS[heat], **options) for options in own]


def chain_bits(draft):
    """Return a draft as values that compare bit for bit."""
    laws = None if draft.laws is None else draft.laws.dense(VOCAB).numpy().tobytes()
    points = None if draft.laws is None else ((draft.laws.index < 0).tolist(), draft.laws.point.tolist())
    confidence = None if draft.confidence is None else draft.confidence.contiguous().numpy().tobytes()
    # None: no row
    undefined = torch.full((len(draft.tokens), 1), NEVER) if draft.undefined is None else draft.undefined
    whole = draft.tokens.tolist(), draft.num_nodes.tolist(), undefined.tolist()
    return *whole, laws, points, confidence


def asked(sampling, batch_size):
    """Return prompts and how to sample after them: one row at a time needs each length of a prompt once."""
    count = len(PROMPTS) if batch_size > 1 else len({len(prompt) for prompt in PROMPTS})
    return PROMPTS[:count], sampling[:count] if isinstance(sampling, list) else sampling


def run_of_chains(source, sampling, batch_size, rule="coupled", oracle=ORACLE):
    prompts, sampling = asked(sampling, batch_size)
    drafts, original = [], ChainSampler.__call__

    def noting(self, *args):
        draft = original(self, *args)
        if draft.width:
            drafts.append(chain_bits(draft))
        return draft

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChainSampler, "__call__", noting)
        result = SpeculativeDecoder(oracle, source, rule).generate(
            prompts, 18, sampling, batch_size=batch_size, seed=3, return_logprobs=True
        )
    return result.tokens, result.logprobs, drafts, untimed(result)


def untimed(result):
    """Return the columns of a run's records but for its times."""
    columns = result.records.columns()
    return {name: values for name, values in columns.items() if not name.startswith("seconds")}


@dataclass(frozen=True)
class Curious(LengthPolicy, LengthSession):
    """Reads all that there is, gives each row a limit of its own, and notes what it is told."""

    max_depth: int = 7
    reads_confidence: bool = True
    reads_entropy: bool = True
    failure: BaseException | None = None
    told: list[Any] = field(default_factory=list)

    def open(self, num_rows: int) -> "Curious":
        return self

    def limits(self, rows: IntArray, num_committed: IntArray) -> IntArray:
        return (3 * rows + 5 * num_committed) % (self.max_depth + 1)

    def draws(self, rows: IntArray, entropy: FloatArray) -> BoolArray:
        self.told.append((rows.tolist(), entropy.tobytes(), entropy.shape))
        return np.isnan(entropy) | (entropy < 2.1)

    def continues(self, rows: IntArray, confidence: FloatArray) -> BoolArray:
        self.told.append((rows.tolist(), confidence.tobytes(), confidence.shape))
        if self.failure is not None and confidence.shape[1] == 3:
            raise self.failure
        return confidence[:, -1] > 0.05

    def note_counts(self, rows: IntArray, counts: IntArray) -> None:
        self.told.append((rows.tolist(), counts.tolist()))


BUSHY = Paths([(0, 0, 0, 0), (0, 0, 1), (0, 1), (1, 0), (1, 1, 0), (2,), (3, 0)])
NARROW = SamplingParams(temperature=0.5, top_p=0.6)  # laws of fewer ids than children


def tree_bits(draft):
    """Return a draft as values that compare bit for bit."""
    laws = None
    if draft.laws is not None:
        drawn = draft.laws.index >= 0
        laws = draft.laws.dense().numpy().tobytes(), drawn.tolist(), draft.laws.point.tolist()
    parents = None if draft.parents is None else draft.parents.tolist()
    kinds = tuple(value.dtype for value in (draft.tokens, draft.num_nodes, draft.parents) if value is not None)
    # None: no row
    undefined = torch.full((len(draft.tokens), 1), NEVER) if draft.undefined is None else draft.undefined
    without = None if draft.without_replacement is None else draft.without_replacement.tolist()
    trees = draft.tokens.tolist(), draft.num_nodes.tolist(), parents
    return trees, laws, without, undefined.tolist(), draft.confidence, kinds


def run_of_trees(source, sampling, batch_size, rule, oracle=ORACLE):
    prompts, sampling = asked(sampling, batch_size)
    drafts, original = [], TreeSampler.__call__

    def noting(self, *args):
        draft = original(self, *args)
        if draft.width:
            drafts.append(tree_bits(draft))
        return draft

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TreeSampler, "__call__", noting)
        result = SpeculativeDecoder(oracle, source, rule).generate(
            prompts, 13, sampling, batch_size=batch_size, seed=3, return_logprobs=True
        )
    return result.tokens, result.logprobs, drafts, untimed(result)


BUDGETS = {"ragged": ([9, 2, 0, 1, 3], [50, 50, 50, 50, 50]), "few nodes": ([9, 9, 9, 1, 9], [1, 4, 0, 3, 6])}


def flat(size, special):
    """Return a model that gives every prefix the same logits: 0, 1/2, 1, 0, ... and a special one here and there."""
    plain = tiny_unpacked(size, torch.float32, 2, head_bias=True)
    with torch.no_grad():
        plain.lm_head.weight.zero_()
        plain.lm_head.bias.copy_(torch.arange(size) % 3 / 2.0)
        plain.lm_head.bias[[0, size // 2, size - 1]] = special
    return NativeTransformer(plain)


def both_ways(run, model, make, sampling, batch_size, *args, policy=None, oracle=ORACLE):
    """Return what a source does if its model is asked for each pass, and the passes that it and its native call take.

    Fails unless both do the same, and a curious policy is told the same.

    Args:
        run: ``run_of_chains`` or ``run_of_trees``.
        model: drafts.
        make: returns the source, given the model and the policy.
        sampling, batch_size, args, oracle: of the run.
    """
    models = PassByPass(model), Counted(model)
    policies = [replace(policy, told=[]) if isinstance(policy, Curious) else policy for _ in models]
    makes = [make(*both) for both in zip(models, policies, strict=True)]
    found = [run(made, sampling, batch_size, *args, oracle=oracle) for made in makes]
    assert found[0] == found[1]
    if isinstance(policy, Curious):
        drafted = found[0][-1]["num_drafted"]
        assert policies[0].told == policies[1].told
        assert min(drafted) == 0 or batch_size == 1, "rows that draft nothing stand beside others"
        assert max(drafted) > 3
    return found[0], *(one.num_passes for one in models)
