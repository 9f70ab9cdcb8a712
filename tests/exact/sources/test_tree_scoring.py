"""Trees are scored like chains: each node sees its path and nothing else, at the positions of the path."""

import numpy as np
import pytest
import torch

from tests.support.backends import PACKS, agree
from tests.support.models.scoring import append, assert_nodes_score_as_the_reference, path_to, random_tree
from tests.support.models.tiny_models import FAMILIES, small_model
from tests.support.pairwise import pairwise


@pytest.mark.parametrize("family", FAMILIES)
def test_every_node_scores_as_the_reference_scores_its_own_sequence(family):
    model = small_model(dtype=torch.float64, **FAMILIES[family])
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert_nodes_score_as_the_reference(model.pack(), weights, 1e-10)


@pairwise({"family": tuple(FAMILIES), "prefix": (1, 61, 130), "any_pack": PACKS})
def test_a_branch_scores_bit_for_bit_as_its_own_chain(family, prefix, any_pack):
    model = any_pack(small_model(**FAMILIES[family]))
    assert model.bitwise or model.backend == "graphed"
    generator = torch.Generator().manual_seed(prefix)
    ids, tokens = torch.randint(23, (prefix,), generator=generator), torch.randint(23, (1, 40), generator=generator)
    parents, cache = random_tree(1, 40, generator), model.new_cache(2, prefix + 64)
    append(model, cache, 0, ids)
    logits = model.score(tokens, parents, torch.tensor([40]), cache, np.array([0])).logits[0]
    append(model, cache, 1, ids, width=50)
    for node in range(0, 40, 3):
        path = path_to(parents[0], node)
        own = append(model, cache, 1, tokens[0, path])
        cache.truncate(np.array([1]), np.array([prefix]))
        assert agree(model, logits[path], own), f"node {node}"


def test_training_and_cached_passes_agree_in_float64():
    for changes in FAMILIES.values():
        model = small_model(dtype=torch.float64, **changes)
        ids = torch.randint(23, (80,), generator=torch.Generator().manual_seed(2))
        with torch.no_grad():
            whole = model(ids[None])[0]
        cache = model.new_cache(1, 80)
        torch.testing.assert_close(append(model, cache, 0, ids, width=13), whole, rtol=1e-10, atol=1e-10)


def test_a_full_window_is_no_window_and_a_short_one_is_felt(any_pack):
    ids = torch.randint(23, (30,), generator=torch.Generator().manual_seed(3))
    logits = {}
    for window in (None, 30, 29, 4):
        model = any_pack(small_model(sliding_window=window))
        logits[window] = append(model, model.new_cache(1, 64), 0, ids)
    assert torch.equal(logits[30], logits[None])
    assert torch.equal(logits[29][:29], logits[None][:29])
    assert not torch.equal(logits[29][29], logits[None][29])
    assert not torch.equal(logits[4][10], logits[None][10])


def test_want_and_hidden_select_what_is_returned(any_pack):
    model = any_pack(small_model())
    tokens = torch.randint(23, (2, 5), generator=torch.Generator().manual_seed(4))
    nodes, rows, cache = torch.tensor([5, 3]), np.arange(2), model.new_cache(2, 16)
    full = model.score(tokens, None, nodes, cache, rows, "all", hidden=(0, 1))
    last = model.score(tokens, None, nodes, cache, rows, "last")
    assert agree(model, last.logits[:, 0], full.logits[torch.arange(2), nodes - 1])
    assert model.score(tokens, None, nodes, cache, rows, "none").logits is None
    assert [tuple(layer.shape) for layer in full.hidden] == [(2, 5, 32)] * 2
    assert agree(model, model.read_out(full.hidden[1].flatten(0, 1))[:5], full.logits[0])
    with pytest.raises(ValueError, match="want"):
        model.score(tokens, None, nodes, cache, rows, "some")
    with pytest.raises(ValueError, match="hidden"):
        model.score(tokens, None, nodes, cache, rows, "all", hidden=(2,))


def test_padded_vocabulary_is_cut_before_and_after_packing():
    for tied in (True, False):
        model = small_model(vocab_size=21, padded_vocab_size=24, tie_embeddings=tied, dtype=torch.float64)
        ids = torch.randint(21, (6,), generator=torch.Generator().manual_seed(5))
        before = append(model, model.new_cache(1, 16), 0, ids)
        after = append(model.pack(), model.new_cache(1, 16), 0, ids)
        assert before.shape == after.shape == (6, 21)
        torch.testing.assert_close(before, after, rtol=1e-12, atol=1e-12)
