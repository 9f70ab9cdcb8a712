"""Trees of a small model, exactly: what may be accepted, and bits of greedy runs through real caches."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from drafts import SmallTransformer
from oracles import TabularLM
from specdec import Kary, ReRanked, SamplingParams, SpeculativeDecoder
from specdec.contracts import Budget, Draft, Randomness
from specdec.exactness import check_lossless
from specdec.laws import Laws
from specdec.verify import MultiDraft, SampleAndMatch, Traversal
from tests.reference.tables import law_after, random_table, sequence_law
from tests.support.drafting.draft_rows import Rows
from tests.support.models.tiny_models import tiny_transformer
from tests.support.pairwise import diagonal
from tests.support.registry import LARGE_SHAPES, SMALL_SHAPES, temperature_of

PROMPT = (1, 2)
TARGET, MODEL = random_table(3, 2, 51), random_table(3, 2, 52)
SOURCES = {
    name: SmallTransformer(TabularLM(MODEL), tree=shape, temperature=temperature_of(shape))
    for name, shape in (SMALL_SHAPES | {"fan": Kary(3, 1), "wide ReRanked": ReRanked(4, 2, 2)}).items()
}


class Scripted(Randomness):
    """Randomness of one row that draws what a script says, extends the script where it ends, and keeps the odds."""

    def __init__(self, script: tuple[int, ...]) -> None:
        self.script, self.used, self.probability = list(script), 0, 1.0
        self.open: list[tuple[int, ...]] = []

    def choose(self, laws: Laws, node, depth, purpose, k=1):
        drawn = torch.full((*laws.shape, k), -1)
        for column in range(laws.shape[1]):
            law = laws[0, column].dense(3).double()
            for rank in range(k if int(laws.index[0, column]) >= 0 else 0):
                if float(law.sum()) > 0:
                    drawn[0, column, rank] = token = self._next(law / law.sum())
                    law[token] = 0.0
        return drawn if k > 1 else drawn.squeeze(-1)

    def _next(self, law) -> int:
        if self.used == len(self.script):
            options = law.nonzero().flatten().tolist()
            self.open += [(*self.script, token) for token in options[1:]]
            self.script.append(options[0])
        token = self.script[self.used]
        self.used += 1
        self.probability *= float(law[token])
        return token


def all_drafts(source, sampling) -> Iterator[tuple[Draft, float]]:
    """Yield every draft that a source can make after the prompt, and its probability."""
    queue: list[tuple[int, ...]] = [()]
    while queue:
        rows = Rows(source, 1, oracle=TabularLM(TARGET), sampling=sampling)
        rows.seat({0: list(PROMPT)})
        randomness = Scripted(queue.pop())
        at, context = np.array([0]), rows.context(np.array([0]))
        draft = rows.session.propose(at, context, Budget(at + 9, at + 99), randomness)
        yield draft, randomness.probability
        queue += randomness.open


def paths_of(draft: Draft) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for node in range(int(draft.num_nodes[0])):
        parent = node - 1 if draft.parents is None else int(draft.parents[0, node])
        found.append((*(found[parent] if parent >= 0 else ()), int(draft.tokens[0, node])))
    return found


@pytest.mark.parametrize("rule", [MultiDraft(), SampleAndMatch(), Traversal()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_no_path_is_accepted_more_often_than_the_target_or_the_draft_allow(source, rule):
    accepted, drafted, total = {}, {}, 0.0
    for draft, probability in all_drafts(source, SamplingParams(temperature=1.0)):
        found, total = paths_of(draft), total + probability
        laws = torch.from_numpy(np.stack([law_after(TARGET, PROMPT + path) for path in [(), *found]]))
        stop_probs = rule(draft, laws.unsqueeze(0)).stop_probs[0]
        for node, path in enumerate(found):
            drafted[path] = drafted.get(path, 0.0) + probability
            for n in range(1, len(path) + 1):
                accepted[path[:n]] = accepted.get(path[:n], 0.0) + probability * float(stop_probs[node + 1])
    assert total == pytest.approx(1.0, abs=1e-12)
    assert len(drafted) >= 3
    for path, mass in accepted.items():
        assert mass <= min(sequence_law(TARGET, PROMPT, len(path))[path], drafted[path]) + 1e-12


@diagonal({"name": ("Paths", "Grown"), "rule": ("multi_draft", "sample_and_match", "traversal")})
def test_trees_through_two_real_caches_follow_the_oracles_law(name, rule):
    source = SmallTransformer(tiny_transformer(3, seed=5), tree=SMALL_SHAPES[name])
    decoder = SpeculativeDecoder(tiny_transformer(3), source, rule)
    check_lossless(decoder, [2, 1], 3, SamplingParams(temperature=0.7), mates=[[0], [1, 2, 0, 1], [2, 2, 1]])


VOCAB = 9
PROMPTS = [[(5 * i + 2 * j) % VOCAB for j in range(1 + 3 * (i % 3))] for i in range(9)]


@diagonal({"shape": LARGE_SHAPES, "rule": ("multi_draft", "sample_and_match", "traversal", "coupled")})
def test_runs_on_a_float32_transformer_are_plain_decoding_bit_for_bit(shape, rule):
    oracle, model = tiny_transformer(VOCAB, torch.float32), tiny_transformer(VOCAB, torch.float32, seed=3)
    sampling = SamplingParams(temperature=0.8, top_p=0.9) if rule == "coupled" else SamplingParams()
    plain = SpeculativeDecoder(oracle, None, rule).generate(PROMPTS, 12, sampling, return_logprobs=True)
    source = SmallTransformer(model, temperature=temperature_of(shape), tree=shape)
    for batch_size in (1, 8):
        count = len(PROMPTS) if batch_size > 1 else 3  # a prompt of each length
        made = SpeculativeDecoder(oracle, source, rule).generate(
            PROMPTS[:count], 12, sampling, batch_size=batch_size, return_logprobs=True
        )
        assert made.exactness == "exact"
        assert made.tokens == plain.tokens[:count]
        assert made.logprobs == plain.logprobs[:count]
        assert made.stats.block_efficiency > 1.05
