"""What a source is worth on a record is what it is worth on the model that wrote it."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from drafts import PromptLookup, SmallTransformer
from oracles import RecordedText, TabularLM
from specdec import SpeculativeDecoder
from specdec.contracts import Needs
from specdec.stats import Stats
from tests.reference.lookup import lookup
from tests.reference.tables import law_after, random_table
from tests.support.drafting.sources import Chains
from tests.support.pairwise import chosen
from tests.support.registry import OTHERS, SHAPES, SIX_IDS, SOURCES


def reads_ids_alone(needs: Needs) -> bool:
    return not (needs.logits or needs.hidden) and needs.cache_of is None


ORACLE = TabularLM.random(6, 3, 11)
PROMPTS = [[1, 2], [3], [0, 1, 2, 3, 4, 5], [5, 5], [2, 0, 2, 0]]
OUTPUTS = SpeculativeDecoder(ORACLE).generate(PROMPTS, max_new_tokens=18).tokens
RECORDED = RecordedText(PROMPTS, OUTPUTS, vocab_size=6)
WAYS = {f"{name}, {way}": make(SIX_IDS, 3) for name, ways in SOURCES.items() for way, make in ways.items()}
WAYS |= {f"{name}, {way}": make(SIX_IDS) for name, ways in OTHERS.items() for way, make in ways.items()}
READ_IDS = {name: way for name, way in WAYS.items() if reads_ids_alone(way.needs)}
READ_IDS |= {
    f"tree, {name}": SmallTransformer(SIX_IDS.model, tree=tree, temperature=0) for name, (tree, _) in SHAPES.items()
}


def counts(stats: Stats) -> dict[str, object]:
    """Return what was counted, without times and memory."""
    return {k: v for k, v in stats.as_dict().items() if "seconds" not in k and "bytes" not in k and k != "stages"}


def test_all_kinds_of_sources_are_among_them():
    kinds = {name.partition(",")[0] for name in READ_IDS}
    assert kinds == {*SOURCES, "Forced", "tree"} - {"BlockDrafter", "Eagle3", "EarlyExit", "Medusa", "Quantized"}


@chosen(
    {"name": tuple(READ_IDS), "batch_size": (None, 2)},
    lambda name, batch_size: {name.partition(",")[0], (READ_IDS[name].offers.trees, batch_size)},
)
def test_every_source_that_reads_ids_fares_as_on_the_model_that_wrote(name, batch_size):
    source = READ_IDS[name]
    rule = "multi_draft" if source.offers.trees else "standard"
    runs = [
        SpeculativeDecoder(oracle, source, rule).generate(PROMPTS, 18, seed=3, batch_size=batch_size)
        for oracle in (RECORDED, ORACLE)
    ]
    assert runs[0].tokens == OUTPUTS
    assert counts(runs[0].stats) == counts(runs[1].stats)


@pytest.mark.parametrize("length", [1, 4, 8])
def test_acceptance_of_prompt_lookup_is_a_scalar_count_on_the_text(length):
    generator = np.random.default_rng(length)
    prompts = [generator.integers(0, 4, 12).tolist() for _ in range(6)]
    outputs = [generator.integers(0, 4, int(generator.integers(1, 40))).tolist() for _ in range(6)]
    stats = SpeculativeDecoder(RecordedText(prompts, outputs), PromptLookup(length)).generate(prompts).stats
    drafted = accepted = steps = 0
    for prompt, output in zip(prompts, outputs, strict=True):
        text, at = prompt + output, len(prompt)
        while at < len(text):
            draft = lookup(text[:at], min(length, len(text) - at - 1))
            kept = next((i for i, token in enumerate(draft) if token != text[at + i]), len(draft))
            drafted, accepted, steps, at = drafted + len(draft), accepted + kept, steps + 1, at + kept + 1
    assert (stats.num_drafted, stats.num_accepted, stats.num_steps) == (drafted, accepted, steps)
    assert stats.block_efficiency == sum(map(len, outputs)) / steps


@dataclass(frozen=True)
class Scripted(Chains):
    """Draft given ids, and declare the laws of the table that they would have been drawn from."""

    ids: tuple[int, ...] = ()

    def drawn(self, laws, depth, randomness):
        return torch.full((len(laws),), self.ids[depth])


def test_drawn_drafts_are_accepted_with_sum_p_q_which_is_below_sum_min_p_q():
    """Enumerate records under their law p and drafts under theirs q: what is measured is a lower bound."""
    p, q = (random_table(3, 1, seed) for seed in (5, 9))
    reached, products = np.zeros(2), np.zeros(2)
    for record in np.ndindex(3, 3):
        weight = law_after(p, (2,))[record[0]] * law_after(p, record[:1])[record[1]]
        oracle = RecordedText([[2]], [[*record, 0]], vocab_size=3)
        for ids in np.ndindex(3, 3):
            drawn = law_after(q, (2,))[ids[0]] * law_after(q, ids[:1])[ids[1]]
            result = SpeculativeDecoder(oracle, Scripted(q, 2, ids=ids)).generate([[2]])
            assert result.tokens == [[*record, 0]]
            reached += weight * drawn * (np.arange(2) < result.records.columns()["num_accepted"][0])
    first = law_after(p, (2,)) * law_after(q, (2,))
    second = np.array([law_after(p, (x,)) @ law_after(q, (x,)) for x in range(3)])
    products[:] = first.sum(), first @ second
    np.testing.assert_allclose(reached, products, rtol=0, atol=1e-12)
    least = np.minimum(law_after(p, (2,)), law_after(q, (2,)))
    at_hand = least @ np.array([np.minimum(law_after(p, (x,)), law_after(q, (x,))).sum() for x in range(3)])
    assert reached[0] < least.sum() - 0.2
    assert reached[1] < at_hand - 0.2
