"""The enumerated law through the real cache: two layers, float64, a vocabulary of 4."""

from threading import Thread

import pytest
import torch

from drafts import SmallTransformer
from oracles.transformer.rotary import RotaryTable
from specdec import SamplingParams, SpeculativeDecoder
from specdec.exactness import check_lossless, oracle_law
from tests.reference.tables import random_table
from tests.support.drafting.sources import RandomTrees
from tests.support.models.law_transformers import MATES, PARAMS, PROMPT, SHAPES
from tests.support.models.tiny_models import tiny_transformer
from tests.support.pairwise import diagonal

TREES = RandomTrees(random_table(4, 2, 51), max_nodes=2)


@diagonal({"shape": SHAPES, "sampling": {"w": PARAMS, "1": SamplingParams(temperature=1.0), "0": SamplingParams()}})
def test_trees_through_the_real_cache_follow_the_oracles_law(shape, sampling):
    decoder = SpeculativeDecoder(tiny_transformer(**shape), TREES, "sample_and_match")
    check_lossless(decoder, PROMPT, 3, sampling, depth=2, mates=MATES)


@pytest.mark.parametrize("temperature", [None, 0.0, 2.0])
def test_a_small_model_with_its_own_cache_drafts_for_the_oracles_law(temperature):
    draft = SmallTransformer(tiny_transformer(seed=5), num_draft_tokens=2, temperature=temperature)
    check_lossless(SpeculativeDecoder(tiny_transformer(), draft), PROMPT, 3, PARAMS, depth=2, mates=MATES)


def test_reused_rows_follow_the_oracles_law():
    draft = SmallTransformer(tiny_transformer(seed=5), num_draft_tokens=2, temperature=0.0)
    check_lossless(
        SpeculativeDecoder(tiny_transformer(), draft), PROMPT, 3, PARAMS, depth=2, mates=MATES, batch_size=25
    )


def test_float32_laws_agree_to_their_precision(any_pack):
    draft = SmallTransformer(tiny_transformer(dtype=torch.float32, seed=5, pack=any_pack), num_draft_tokens=2)
    oracle = tiny_transformer(dtype=torch.float32, pack=any_pack)
    check_lossless(SpeculativeDecoder(oracle, draft), PROMPT, 2, PARAMS, depth=1, tolerance=1e-6)
    trees = SpeculativeDecoder(oracle, TREES, "sample_and_match")
    check_lossless(trees, PROMPT, 3, PARAMS, depth=2, mates=MATES, tolerance=1e-6)


def test_the_laws_are_far_from_uniform():
    law = oracle_law(tiny_transformer(), PROMPT, 2, SamplingParams(temperature=1.0))
    assert max(law.values()) > 4 * min(law.values())


def test_threads_that_make_tables_of_positions_at_once_turn_alike(monkeypatch):
    config = tiny_transformer().config
    asked, combine, found = (torch.arange(5), 5, torch.float64), torch.complex, []
    table, wanted = RotaryTable(config, as_complex=True), RotaryTable(config, as_complex=True).rows(*asked)

    def interrupted(*parts):
        monkeypatch.undo()
        other = Thread(target=lambda: found.append(table.rows(*asked)))
        other.start()
        other.join()
        return combine(*parts)

    monkeypatch.setattr(torch, "complex", interrupted)
    found.append(table.rows(*asked))
    assert len(found) == 2
    assert all(torch.equal(one, wanted) for one in found)
