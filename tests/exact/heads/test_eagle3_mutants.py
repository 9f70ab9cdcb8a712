"""The bugs of heads put back, one function each: the program still runs, and drafts differ from the slow reference."""

from typing import Any

import numpy as np
import pytest
import torch

import oracles.heads.eagle3_loading
import specdec.drafting.head_model
from oracles import load_head
from oracles.heads.eagle3_network import Eagle3Network
from specdec.cache import FeatureCache
from specdec.drafting import HiddenStates
from tests.support.drafting.eagle3_histories import CAPACITY, history_of
from tests.support.models.eagle3_heads import Layout, write_head
from tests.support.models.tiny_models import tiny_transformer, tiny_unpacked

VOCAB = 11
PLAIN = Layout("specforge", ids=(0, 3, 4))
FEW = Layout("specforge", ids=(0, 3, 4), written=(1, 4, 5, 9))


def difference(folder: Any, layout: Layout, aux_layers: Any = None) -> float:
    """Return how far a head's logits and features are from the reference's, over a history of drafts and rollbacks."""
    shape = {"num_layers": 6, "max_context": 64}
    oracle, plain = tiny_transformer(VOCAB, **shape), tiny_unpacked(VOCAB, **shape)
    return history_of(folder, layout, oracle, plain, aux_layers=aux_layers, steps=16, slack=0).worst


def reads_offsets_as_ids(monkeypatch):
    def call(stored, shape):
        stored.take("t2d")
        return stored.take("d2t")

    monkeypatch.setattr(oracles.heads.eagle3_loading, "_take_target_ids", call)


def feeds_back_the_normed_state(monkeypatch):
    original = Eagle3Network.__init__

    def call(self, shape, *others):
        original(self, shape, *others)
        self.norm_output = not shape.norm_output

    monkeypatch.setattr(Eagle3Network, "__init__", call)


def reads_a_feature_beside_its_own_id(monkeypatch):
    monkeypatch.setattr(specdec.drafting.head_model, "own_ids", lambda ids: ids[..., :-1])


def keeps_the_keys_of_drafted_features(monkeypatch):
    """Keys of drafted tokens stand as long as their slots do; the cache would refuse that, and must not look."""

    def forget(self, rows, ends):
        self.cache.truncate(rows, np.minimum(self.cache.lengths[rows], ends + 1))
        self.known[rows] = np.minimum(self.known[rows], ends)

    monkeypatch.setattr(HiddenStates, "forget", forget)
    monkeypatch.setattr(FeatureCache, "check_put", lambda *_: None)


def goes_on_from_its_own_features(monkeypatch):
    original = FeatureCache.put

    def put(self, rows, starts, counts, features):
        guessed = self.features.clone()
        began = self.known[rows] > 0
        original(self, rows, starts, counts, features)
        for row, start, count, is_old in zip(rows, starts, counts, began, strict=True):
            if is_old:
                self.features[row, start : start + count] = guessed[row, start : start + count]

    monkeypatch.setattr(FeatureCache, "put", put)


def guesses_over_what_is_known(monkeypatch):
    original = FeatureCache.guess

    def guess(self, rows, at, positions, features):
        known, self.known = self.known, np.zeros_like(self.known)
        original(self, rows, at, positions, features)
        self.known = known

    monkeypatch.setattr(FeatureCache, "guess", guess)


def reads_siblings_features(monkeypatch):
    original = FeatureCache.read

    def read(self, rows, positions):
        slots = positions[:, :1] + torch.arange(positions.shape[1])
        return original(self, rows, slots)

    monkeypatch.setattr(FeatureCache, "read", read)


NORMED = Layout("specforge", ids=(0, 3, 4), flags={"norm_output": True})
INPUTS = Layout("specforge", ids=(1, 3, 4))
MUTANTS = {
    "46c: offsets read as ids": (reads_offsets_as_ids, FEW),
    "46d: the post-norm state fed back for the pre-norm one": (feeds_back_the_normed_state, PLAIN),
    "46d: and the reverse": (feeds_back_the_normed_state, NORMED),
    "46e: keys of drafted features kept": (keeps_the_keys_of_drafted_features, PLAIN),
    "46e: features of the draft kept after acceptance": (goes_on_from_its_own_features, PLAIN),
    "46e: guesses written over features that are known": (guesses_over_what_is_known, PLAIN),
    "a feature beside its own id": (reads_a_feature_beside_its_own_id, PLAIN),
    "the feature of the node before, in a tree": (reads_siblings_features, PLAIN),
}


@pytest.mark.parametrize("layout", [PLAIN, FEW, NORMED, INPUTS], ids=["plain", "few ids", "normed", "inputs"])
def test_the_right_head_is_the_reference(layout, tmp_path):
    assert difference(tmp_path, layout) < 1e-12


# The first of each line of the table; `make exactness` has the others too.
FIRST = {name.partition(":")[0]: name for name in reversed(MUTANTS)}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FIRST.values() else pytest.mark.long) for name in MUTANTS]
)
def test_a_mutant_is_seen(name, tmp_path, monkeypatch):
    mutate, layout = MUTANTS[name]
    mutate(monkeypatch)
    assert difference(tmp_path, layout) > 1e-2


def test_a_layer_that_is_taken_one_off_is_seen(tmp_path):
    """46b: the numbers of outputs read as inputs."""
    assert difference(tmp_path, INPUTS, "inputs") > 1e-2


def test_keys_of_drafted_features_cannot_stay_beside_the_oracles(tmp_path, monkeypatch):
    """46e: features that come under keys that stand are refused."""
    oracle = tiny_transformer(VOCAB, num_layers=6)
    write_head(tmp_path, oracle, PLAIN)
    head = load_head(tmp_path, oracle)
    cache, row = head.new_cache(1, CAPACITY), np.array([0])
    cache.reserve(row, 3)
    cache.commit(row, None, np.array([3]))
    with pytest.raises(ValueError, match="change what keys were made of"):
        cache.put(row, np.array([0]), np.array([2]), torch.zeros(1, 2, 16, dtype=torch.float64))
