"""Drafts that write some of the ids of an oracle: laws, tokens, native passes, and a mutant of the mapping."""

import numpy as np
import pytest
import torch

from drafts import SmallTransformer
from oracles import Transformer
from oracles.native import NativeTransformer
from oracles.transformer.draft_vocabulary import DraftHead
from specdec import Chain, Kary, SamplingParams, SpeculativeDecoder
from specdec.exactness import check_lossless
from tests.support.backends import agree, needed_native
from tests.support.models.tiny_models import tiny_transformer, tiny_unpacked

PROMPT, MATES = [3, 1], [[0], [1, 2, 0, 3, 3]]
PARAMS = SamplingParams(temperature=0.8, top_p=0.95, frequency_penalty=0.3, logit_bias={2: 0.7})
ORACLE = tiny_transformer()
WIDE = 23
WRITTEN = [2, 3, 7, 11, 12, 20]


def writing(ids: list[int], vocab_size: int = 4, pack=Transformer.pack, **options) -> Transformer:
    """Return a tiny draft that writes these ids."""
    model = tiny_unpacked(vocab_size, seed=5, draft_vocab_size=len(ids), **options)
    model.lm_head.target_ids = torch.tensor(ids)
    return pack(model)


@pytest.mark.parametrize("sampling", [SamplingParams(temperature=1.0), PARAMS, SamplingParams()], ids=("1", "w", "0"))
@pytest.mark.parametrize("ids", [[1, 3], [2], [0, 2, 3]], ids=str)
def test_chains_follow_the_oracles_law(ids, sampling):
    draft = SmallTransformer(writing(ids), num_draft_tokens=2)
    check_lossless(SpeculativeDecoder(ORACLE, draft), PROMPT, 3, sampling, mates=MATES)


@pytest.mark.parametrize("rule", ["multi_draft", "sample_and_match"])
def test_drawing_without_replacement_ends_where_no_id_is_left(rule):
    draft = SmallTransformer(writing([1, 3]), tree=Kary(3, 2))
    check_lossless(SpeculativeDecoder(ORACLE, draft, rule), PROMPT, 3, SamplingParams(temperature=1.0))
    result = SpeculativeDecoder(ORACLE, draft, rule).generate([PROMPT], 9, SamplingParams(temperature=1.0))
    assert max(record["num_drafted"] for record in result.records) == 2 + 4, (
        "two siblings a node, where three were asked for"
    )


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_coupled_runs_write_plain_decodings_tokens(backend, batch_size):
    """Noise is that of the oracle's ids: two models that agree draft what is kept."""
    if backend == "native":
        needed_native()
    pack = NativeTransformer if backend == "native" else Transformer.pack
    oracle = tiny_transformer(WIDE, torch.float32, pack=pack)
    prompts = [[1, 2, 3], [20], [7, 7, 0, 5]]
    sampling = SamplingParams(temperature=1.1, frequency_penalty=0.2)
    plain = SpeculativeDecoder(oracle, None, "coupled").generate(prompts, 20, sampling, seed=3)
    for shape in (Chain(3), Kary(2, 2)):
        draft = SmallTransformer(writing(WRITTEN, WIDE, pack, dtype=torch.float32), tree=shape)
        run = SpeculativeDecoder(oracle, draft, "coupled").generate(
            prompts, 20, sampling, seed=3, batch_size=batch_size
        )
        assert run.tokens == plain.tokens


def accepted(draft: Transformer) -> float:
    """Return what is kept, coupled, of drafts for an oracle that writes the same ids with the same weights."""
    source = SmallTransformer(draft, num_draft_tokens=3)
    decoder = SpeculativeDecoder(writing(WRITTEN, WIDE), source, "coupled")
    prompts = [[i, i + 1] for i in range(12)]
    sampling = SamplingParams(temperature=1.5, logit_bias={7: 1.0})
    return decoder.generate(prompts, 16, sampling, seed=1).stats.block_efficiency


def test_noise_and_biases_are_those_of_the_oracles_ids(monkeypatch):
    assert accepted(writing(WRITTEN, WIDE)) == 4.0

    def by_column(head: DraftHead, x, add=None, times=None):
        """Give column i's logit to id i: the offsets are forgotten."""
        logits = head.columns(x)
        every = logits.new_full((*logits.shape[:-1], head.vocab_size), -torch.inf)
        every[..., : logits.shape[-1]] = logits
        return every

    draft = writing(WRITTEN, WIDE)
    monkeypatch.setattr(draft.lm_head, "forward", by_column.__get__(draft.lm_head))
    assert accepted(draft) < 2


@pytest.mark.parametrize("ids", [WRITTEN, [0], [22], list(range(WIDE))], ids=("some", "first", "last", "all"))
def test_a_native_pass_spreads_the_head_over_all_ids(ids):
    needed_native()
    eager = writing(ids, WIDE, dtype=torch.float32)
    native = writing(ids, WIDE, NativeTransformer, dtype=torch.float32)
    tokens = torch.randint(WIDE, (3, 9), generator=torch.Generator().manual_seed(2))
    parents = torch.tensor([[-1, 0, 0, 1, 1, 2, 3, 3, 5]]).expand(3, -1)
    rows = np.arange(3)
    for want in ("all", "last"):
        for tree in (None, parents):
            scores = [
                model.score(tokens, tree, torch.tensor([9, 4, 7]), model.new_cache(3, 16), rows, want)
                for model in (eager, native)
            ]
            found, wanted = scores[1].logits, scores[0].logits
            for row, count in enumerate([9, 4, 7] if want == "all" else [1, 1, 1]):
                real = found[row, :count], wanted[row, :count]
                assert torch.equal(real[0].isfinite(), real[1].isfinite())
                assert real[0].isfinite()[0].nonzero().flatten().tolist() == ids
                assert agree(eager, real[0][:, ids], real[1][:, ids]) or torch.allclose(
                    real[0][:, ids], real[1][:, ids], rtol=1e-5, atol=1e-5
                )
                assert torch.equal(scores[1].best[0][row, :count], real[0].argmax(-1))


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_native_pass_has_the_same_bits_with_any_width_and_number_of_threads(num_threads, set_threads):
    needed_native()
    native = writing(WRITTEN, WIDE, NativeTransformer, dtype=torch.float32)
    tokens, row = torch.arange(8).unsqueeze(0), np.zeros(1, dtype=np.int64)
    set_threads(num_threads)
    whole = native.score(tokens, None, torch.tensor([8]), native.new_cache(1, 16), row).logits
    cache, parts = native.new_cache(1, 16), []
    for start in range(8):
        parts.append(native.score(tokens[:, start : start + 1], None, torch.tensor([1]), cache, row).logits)
        cache.commit(row, None, np.ones(1, dtype=np.int64))
    assert torch.equal(torch.cat(parts, dim=1), whole)
