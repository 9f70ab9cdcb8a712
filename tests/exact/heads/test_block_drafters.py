"""Block drafters and Medusa: laws are the slow references', whatever was drafted and rejected before, and the output's
law is the oracle's.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from drafts import BlockDrafter, Medusa
from oracles import load_head
from oracles.heads.block_head import DFlashHead
from oracles.heads.block_network import BlockAttention, LayerReach
from oracles.heads.markov_head import MarkovHead
from oracles.heads.medusa_head import MedusaHead
from oracles.transformer.attention import CachedAttention
from specdec import Kary, Paths, SamplingParams, SpeculativeDecoder
from specdec.drafting import HiddenStates
from specdec.drafting.block_source import _BlockModel
from specdec.drafting.lengths import Threshold
from specdec.exactness import check_lossless
from tests.support.backends import PACKS, pack_eagerly
from tests.support.drafting.head_watch import CLOSE, WatchedHead, watched_block
from tests.support.models.head_folders import LAYOUTS, MEDUSAS, MedusaReference, block_folder, medusa_folder
from tests.support.models.law_transformers import MATES, PARAMS, PROMPT
from tests.support.models.tiny_models import tiny_transformer, tiny_unpacked
from tests.support.pairwise import chosen, diagonal

PROMPTS = [[1, 2, 3, 1, 2], [0], [3, 3], [2], [1, 2, 1, 2, 1, 2], [0, 1], [3], [2, 0, 1]]
TREE = Paths([(0, 0, 0), (0, 1), (1, 0)])
DEEP = Paths([(0, 0, 0), (0, 1), (1, 0, 0, 0)])
WARM = SamplingParams(temperature=1.0)


def block_drafter(folder, oracle, **options):
    return BlockDrafter(load_head(folder.path, oracle), **options)


def medusa(folder, oracle, **options):
    return Medusa(load_head(folder.path, oracle), **options)


def watched_medusa(tmp_path, tree=None, layout=MEDUSAS["original"], pack=pack_eagerly):
    oracle, folder = tiny_transformer(pack=pack), medusa_folder(tmp_path, **layout)
    source = medusa(folder, oracle, tree=tree)
    return oracle, WatchedHead(source, MedusaReference(folder, oracle, tiny_unpacked().model.norm))


def run(oracle, source, batch_size=3, rule="standard", num_new=10, prompts=PROMPTS):
    return SpeculativeDecoder(oracle, source, rule).generate(prompts, num_new, WARM, batch_size=batch_size)


@chosen(
    {"layout": tuple(LAYOUTS), "backend": tuple(CLOSE), "batch_size": (1, 3, 5)},
    lambda layout, backend, batch_size: {(layout, backend), (backend, batch_size)},
)
def test_laws_of_blocks_are_the_references_after_any_history(layout, backend, batch_size, tmp_path):
    oracle, source = watched_block(tmp_path, layout, backend)
    result = run(oracle, source, batch_size, num_new=7, prompts=PROMPTS[:5])
    assert source.worst < CLOSE[backend]
    assert set(source.depths) == set(range(source.head.num_laws))
    assert min(source.lengths) == 2  # after one id nothing is known, and nothing drafted
    assert 0 < result.stats.num_accepted < result.stats.num_drafted
    assert result.drafter.startswith("native: ") == (backend == "native" and source.head.chains)


# Trees meet what a Markov head reads; how files are read, chains tell above.
@pytest.mark.parametrize("backend", CLOSE)
@pytest.mark.parametrize("layout", ["dflash", "dspark", "dspark gated", "dspark rnn", "few ids"])
def test_laws_in_trees_are_the_references_along_each_path(layout, backend, tmp_path):
    tree = DEEP if layout.startswith("dspark") else TREE
    oracle, source = watched_block(tmp_path, layout, backend, tree=tree)
    run(oracle, source, rule="multi_draft", num_new=6, prompts=PROMPTS[:5])
    # A sibling that was drawn before is taken out of the declared law by a flag: the law itself is the head's.
    assert source.worst < CLOSE[backend]
    assert set(source.depths) == set(range(tree.max_depth))


@diagonal({"layout": MEDUSAS, "batch_size": (1, 3, 8)})
def test_laws_of_medusas_heads_are_the_references_after_any_history(layout, batch_size, tmp_path):
    oracle, source = watched_medusa(tmp_path, layout=layout)
    result = run(oracle, source, batch_size)
    assert source.worst < 1e-12
    assert set(source.depths) == {0, 1, 2}
    assert 0 < result.stats.num_accepted < result.stats.num_drafted


@pytest.mark.parametrize("backend", ["eager", "graphed"])
def test_laws_of_medusas_trees_are_the_references(backend, tmp_path):
    oracle, source = watched_medusa(tmp_path, tree=TREE, pack=PACKS[backend])
    run(oracle, source, rule="multi_draft")
    assert source.worst < 1e-12


@diagonal({"layout": LAYOUTS, "temperature": {"as asked": None, "greedy": 0.0, "hot": 2.0}})
def test_the_output_law_is_the_oracles(layout, temperature, tmp_path):
    oracle = tiny_transformer()
    draft = block_drafter(block_folder(tmp_path, **layout), oracle, num_draft_tokens=2, temperature=temperature)
    check_lossless(SpeculativeDecoder(oracle, draft), PROMPT, 3, PARAMS, mates=MATES)


@pytest.mark.parametrize("temperature", [None, 0.0])
@pytest.mark.parametrize("layout", ["original", "vllm with fewer ids"])
def test_the_output_law_of_medusas_chains_is_the_oracles(layout, temperature, tmp_path):
    oracle = tiny_transformer()
    draft = medusa(medusa_folder(tmp_path, **MEDUSAS[layout]), oracle, num_draft_tokens=2, temperature=temperature)
    check_lossless(SpeculativeDecoder(oracle, draft), PROMPT, 3, PARAMS, mates=MATES)


@pytest.mark.parametrize("temperature", [None, 0.0])
@pytest.mark.parametrize("tree", [Paths([(0, 0), (1,)]), Kary(2, 1)], ids=str)
def test_the_output_law_of_medusas_trees_is_the_oracles(tree, temperature, tmp_path):
    oracle = tiny_transformer()
    draft = medusa(medusa_folder(tmp_path, layout="original"), oracle, tree=tree, temperature=temperature)
    decoder = SpeculativeDecoder(oracle, draft, "multi_draft")
    check_lossless(decoder, PROMPT, 3, WARM, depth=tree.max_depth, mates=MATES)


@pytest.mark.parametrize("layout", ["dflash", "dspark rnn"])
def test_the_output_law_of_a_blocks_tree_is_the_oracles(layout, tmp_path):
    oracle = tiny_transformer()
    draft = block_drafter(block_folder(tmp_path, **LAYOUTS[layout]), oracle, tree=Paths([(0, 0), (1,)]))
    check_lossless(SpeculativeDecoder(oracle, draft, "multi_draft"), PROMPT, 3, WARM, depth=2, mates=MATES)


@pytest.mark.parametrize("backend", CLOSE)
def test_a_draft_ends_with_the_heads_own_context_and_with_the_budget(backend, tmp_path):
    oracle, source = watched_block(tmp_path, "dflash", backend, {"max_position_embeddings": 12})
    result = SpeculativeDecoder(oracle, source).generate([[1, 2, 3], [2]], 30, WARM)
    assert source.worst < CLOSE[backend]
    assert max(source.lengths) == 11  # its last token stands at position 11
    assert [len(tokens) for tokens in result.tokens] == [30, 30]
    plain = SpeculativeDecoder(oracle).generate([[1, 2, 3], [2]], 30)
    assert SpeculativeDecoder(oracle, source.inner).generate([[1, 2, 3], [2]], 30).tokens == plain.tokens


def test_what_is_drafted_of_a_block_does_not_change_it(tmp_path):
    oracle, source = watched_block(tmp_path, "dspark rnn")
    for count in (1, 2):
        short = WatchedHead(replace_length(source.inner, count), source.reference)
        run(oracle, short)
        assert short.worst < 1e-12
        assert max(short.depths) == count - 1


def replace_length(source, count):
    return type(source)(source.head, num_draft_tokens=count)


@pytest.mark.parametrize("layout", ["dspark", "dspark gated", "speculators dspark not from the anchor"])
def test_confidences_are_the_references_and_know_the_ids_before_alone(layout, tmp_path):
    oracle, source = watched_block(tmp_path, layout)
    head, ids, row = source.head, [1, 2, 3, 1], np.zeros(1, dtype=np.int64)
    assert head.has_confidence
    cache, read = head.new_cache(1, 16), torch.tensor([ids[:-1]])
    scores = oracle.score(read, None, torch.tensor([3]), oracle.new_cache(1, 8), row, "none", head.layers)
    HiddenStates(head, cache, 1, 16).begin(row, [np.array(ids)], scores)
    block = head.open_block(cache, row, torch.tensor([ids[-1]]), 2)
    for depth, path in enumerate(([], [2])):
        found = block.confidence(depth, torch.tensor([[[ids[-1], *path][-1]]]))
        assert found.shape == (1, 1)
        assert abs(float(found) - source.reference.confidence(ids, path)) < 1e-12


def reads_the_pending_token_at_every_depth(original):
    def call(self, previous, above=None):
        pending = self._previous
        logits = original(self, pending, above)
        self._previous = pending
        return logits

    return call


def sees_all(original):
    """A layer that slides sees the whole context, and all of the block."""

    def visible(self):
        self._reach = LayerReach()
        return original(self)

    return visible


MUTANTS = {
    "features of the position after": (
        HiddenStates,
        "_put",
        lambda original: (
            lambda self, rows, starts, counts, scores, *path: original(
                self,
                rows,
                starts,
                counts,
                scores and replace(scores, hidden=tuple(h.roll(1, 1) for h in scores.hidden)),
                *path,
            )
        ),
        "dflash",
    ),
    "a causal block": (BlockAttention, "_visible", lambda original: CachedAttention._visible, "dflash"),
    "a window of which nothing is known": (BlockAttention, "_visible", sees_all, "dflash with a window"),
    "the pending token before every one": (_BlockModel, "_next", reads_the_pending_token_at_every_depth, "dspark"),
    "a state that begins anew": (
        MarkovHead,
        "forward",
        lambda original: lambda self, previous, stream, state: original(self, previous, stream, state * 0),
        "dspark rnn",
    ),
    "layers in another order": (
        DFlashHead,
        "put",
        lambda original: (
            lambda self, features, cache: original(self, replace(features, scored=features.scored[::-1]), cache)
        ),
        "dflash",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_runs_and_its_laws_are_not_the_references(name, tmp_path, monkeypatch):
    owner, function, make, layout = MUTANTS[name]
    monkeypatch.setattr(owner, function, make(getattr(owner, function)))
    oracle, source = watched_block(tmp_path, layout)
    run(oracle, source, num_new=5, prompts=PROMPTS[:3])
    assert source.worst > 1e-3


def test_a_head_that_tells_the_token_after_its_own_is_found_out(tmp_path, monkeypatch):
    original = MedusaHead.logits
    monkeypatch.setattr(MedusaHead, "logits", lambda self, head, normed: original(self, max(head - 1, 0), normed))
    oracle, source = watched_medusa(tmp_path)
    run(oracle, source)
    assert source.worst > 1e-3


def test_a_state_before_the_last_norm_is_found_out(tmp_path, monkeypatch):
    oracle, source = watched_medusa(tmp_path)
    monkeypatch.setattr(oracle, "last_norm", lambda stream: stream)
    run(oracle, source)
    assert source.worst > 1e-3


@pytest.mark.parametrize("backend", CLOSE)
def test_a_policy_reads_the_heads_own_confidences(backend, tmp_path):
    policy = Threshold(threshold=0.5, per_token=True, max_draft_tokens=3)
    oracle, source = watched_block(tmp_path, "dspark", backend, length=policy)
    result = run(oracle, source, num_new=12, prompts=PROMPTS[:5])
    assert not result.drafter.startswith("native: ")  # its confidences are read between the depths
    assert source.worst < CLOSE[backend]
    assert 0 < source.worst_confidence < CLOSE[backend]
    assert {1, 2, 3} <= {record["num_drafted"] for record in result.records}
    if backend == "eager":
        short = BlockDrafter(source.head, length=Threshold(threshold=0.5, per_token=True, max_draft_tokens=2))
        check_lossless(SpeculativeDecoder(oracle, short), PROMPT, 3, PARAMS, mates=MATES)
