"""The native pass: every family and storage against a plain reference, and bits that nothing moves."""

import hashlib
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from oracles.native import NativeTransformer, native_model
from specdec import SamplingParams
from specdec.contracts import ChainKeys, Draws, Scores
from specdec.kernels import FILTERS
from specdec.kernels.compiled import NEUTRAL
from specdec.sampling import ParameterTable
from tests.support.backends import needed_native
from tests.support.drafting.whole_drafts import as_tensors
from tests.support.models.native_models import ODD, SHAPES, STORAGES, digest, integer_model, use_build
from tests.support.models.scoring import append, assert_nodes_score_as_the_reference, path_to, random_tree
from tests.support.models.tiny_models import small_model

needed_native()

WIDE = 600  # more than two chunks of 256 positions


@pytest.mark.parametrize("storage", STORAGES.values(), ids=STORAGES)
@pytest.mark.parametrize("family", SHAPES)
def test_every_node_scores_as_the_reference_scores_its_own_sequence(family, storage):
    model = small_model(dtype=storage, **SHAPES[family])
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert_nodes_score_as_the_reference(NativeTransformer(model), weights, 2e-5, step=2)


def test_storage_is_widened_exactly():
    model = small_model(**ODD).to(torch.bfloat16)
    ids = torch.randint(23, (50,), generator=torch.Generator().manual_seed(2))
    wide = NativeTransformer(small_model(**ODD).to(torch.bfloat16).float())
    narrow = NativeTransformer(model)
    assert narrow.weight_bytes < wide.weight_bytes
    found, expected = (append(m, m.new_cache(1, 64), 0, ids) for m in (narrow, wide))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("family", SHAPES)
def test_trees_across_chunks_score_bit_for_bit_as_chains(family):
    model = NativeTransformer(small_model(max_context=1024, **SHAPES[family]))
    generator = torch.Generator().manual_seed(3)
    for prefix in (250, 256, 505):
        ids = torch.randint(23, (prefix,), generator=generator)
        tokens, parents = torch.randint(23, (1, 60), generator=generator), random_tree(1, 60, generator)
        cache = model.new_cache(2, WIDE)
        append(model, cache, 0, ids, width=128)
        append(model, cache, 1, ids, width=37)
        logits = model.score(tokens, parents, torch.tensor([60]), cache, np.array([0])).logits[0]
        for node in (0, 7, 31, 59):
            path = path_to(parents[0], node)
            own = append(model, cache, 1, tokens[0, path], width=1)
            cache.truncate(np.array([1]), np.array([prefix]))
            assert torch.equal(logits[path], own), (prefix, node)


@pytest.mark.parametrize("changes", [{}, {"sliding_window": 300}], ids=["full", "window"])
def test_long_contexts_score_as_the_eager_pass_does(changes):
    wide = small_model(dtype=torch.float64, max_context=1024, **changes)
    narrow = small_model(max_context=1024, **changes)
    narrow.load_state_dict(wide.state_dict())
    ids = torch.randint(23, (WIDE,), generator=torch.Generator().manual_seed(7))
    expected, native = wide(ids[None])[0].detach(), NativeTransformer(narrow)
    found = append(native, native.new_cache(1, WIDE), 0, ids)
    torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("changes", [{}, {"sliding_window": 300}], ids=["full", "window"])
def test_the_number_of_threads_changes_no_bit(changes, set_threads):
    model = NativeTransformer(small_model(max_context=1024, **changes))
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(23, (WIDE,), generator=generator)
    tokens, parents = torch.randint(23, (2, 24), generator=generator), random_tree(2, 24, generator)
    found = []
    for count in (1, 2, 3, 7):
        set_threads(count)
        cache = model.new_cache(2, 1024)
        prompt = append(model, cache, 0, ids, width=200)
        append(model, cache, 1, ids[:11])
        one = model.score(tokens[:1, :1], None, torch.tensor([1]), cache, np.array([0])).logits
        both = model.score(tokens, parents, torch.tensor([24, 9]), cache, np.arange(2)).logits
        found.append([prompt, one, both[0], both[1, :9]])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_two_threads_of_the_program_may_score_at_once():
    model = NativeTransformer(small_model(max_context=1024))
    texts = torch.randint(23, (2, 300), generator=torch.Generator().manual_seed(5))
    expected = [append(model, model.new_cache(1, 300), 0, text, width=7) for text in texts]
    found: list[list[torch.Tensor]] = [[], []]

    def score(index: int) -> None:
        for _ in range(5):
            found[index].append(append(model, model.new_cache(1, 300), 0, texts[index], width=7))

    workers = [threading.Thread(target=score, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for own, others in zip(expected, found, strict=True):
        assert len(others) == 5
        assert all(torch.equal(own, other) for other in others)


def test_padding_comes_back_as_the_last_node_and_is_not_read():
    model = NativeTransformer(small_model())
    tokens = torch.randint(23, (2, 6), generator=torch.Generator().manual_seed(6))
    nodes, cache = torch.tensor([6, 2]), model.new_cache(2, 32)
    scores = model.score(tokens, None, nodes, cache, np.arange(2), "all", hidden=(0,))
    assert torch.equal(scores.logits[1, 2:], scores.logits[1, 1].expand(4, -1))
    assert not scores.hidden[0][1, 2:].any()
    values = cache.memory.values[:, :, cache.pages[1]].flatten(2, 3)
    assert not values[:, :, 2:].any()
    spoilt = tokens.clone()
    spoilt[1, 2:] = -1
    again = model.score(spoilt, None, nodes, cache, np.arange(2)).logits
    assert torch.equal(again, scores.logits)


@pytest.mark.parametrize("position", [0, 2])
def test_a_nan_in_a_weight_reaches_the_logits(position):
    model = small_model()
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight[position, 5] = float("nan")
    native = NativeTransformer(model)
    logits = append(native, native.new_cache(1, 16), 0, torch.arange(8))
    assert logits.isnan().any(-1).all()


@pytest.mark.parametrize("special", [-torch.inf, torch.inf, torch.nan])
def test_sampled_chains_draw_uniformly_where_logits_allow_no_law(special):
    model = small_model(vocab_size=37, head_bias=True)
    with torch.no_grad():
        model.lm_head.bias.fill_(special)
    native, one = NativeTransformer(model), np.ones(1, dtype=np.int64)
    call = torch.zeros(1, 1, dtype=torch.int64), torch.tensor([1]), native.new_cache(1, 8), np.array([0])
    draws = Draws(np.array([[NEUTRAL[name]] for name in FILTERS]), ChainKeys(False, one, one))
    _, peaks, laws = as_tensors(native.follow_ids, *call, np.array([2]), None, draws)
    assert torch.equal(laws, torch.full((1, 2, 37), 1 / 37))
    assert torch.equal(peaks.nan_to_num(7.0), torch.full((1, 2), special).nan_to_num(7.0))


def test_chains_are_not_drawn_by_the_numbers_of_other_rows():
    model, one = NativeTransformer(small_model()), np.ones(1, dtype=np.int64)
    call = torch.zeros(1, 1, dtype=torch.int64), torch.tensor([1]), model.new_cache(1, 8), np.array([0]), np.array([2])
    for filters, keys in (
        (np.ones((len(FILTERS), 2)), ChainKeys(True, one, one)),
        (np.ones((len(FILTERS), 1)), ChainKeys(True, np.ones(2, dtype=np.int64), one)),
        (np.ones((len(FILTERS), 1)), ChainKeys(True, one, np.ones(2, dtype=np.int64))),
    ):
        with pytest.raises(ValueError, match="chains of 1 rows"):
            as_tensors(model.follow_ids, *call, None, Draws(filters, keys))


@pytest.mark.parametrize("size", [1, 15, 16, 37, 100])
@pytest.mark.parametrize("special", [3.0, -torch.inf, torch.inf, torch.nan])
def test_the_likeliest_id_is_the_lowest_of_equals_and_the_first_nan(size, special):
    for places in ([0], [size - 1], [size // 2, size - 1]):
        model = small_model(vocab_size=size, head_bias=True)
        with torch.no_grad():
            model.lm_head.weight.zero_()
            model.lm_head.bias.copy_(torch.arange(size) % 3 / 2.0)
            model.lm_head.bias[places] = special
            expected = model.lm_head.bias.clone()
        native = NativeTransformer(model)
        call = torch.zeros(1, 1, dtype=torch.int64), torch.tensor([1]), native.new_cache(1, 8), np.array([0])
        ids, peaks, _ = as_tensors(native.follow_ids, *call, np.array([2]))
        assert ids.tolist() == [[int(expected.argmax())] * 2]
        assert torch.equal(peaks[0].nan_to_num(7.0), expected.max().expand(2).nan_to_num(7.0))
        scores = native.score(torch.zeros(1, 3, dtype=torch.int64), None, torch.tensor([3]), *call[2:])
        ids, peaks = scores.best
        assert ids.tolist() == [[int(expected.argmax())] * 3]
        assert torch.equal(peaks[0].nan_to_num(7.0), expected.max().expand(3).nan_to_num(7.0))
        assert torch.equal(Scores(scores.logits).best[0], ids)


def test_a_thread_that_flushes_subnormals_is_told_the_same_likeliest_ids():
    model = small_model(head_bias=True)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.copy_(torch.arange(len(model.lm_head.bias)) * 1e-42)
    native, one = NativeTransformer(model), np.array([1])
    cache, likeliest = native.new_cache(1, 8), native.vocab_size - 1
    torch.set_flush_denormal(True)
    try:
        scored = native.score(torch.zeros(1, 3).long(), None, torch.tensor([3]), cache, 0 * one).best[0]
        followed, _, _ = native.follow_ids(np.zeros((1, 1), dtype=np.int64), one, cache, 0 * one, 2 * one)
    finally:
        torch.set_flush_denormal(False)
    assert scored.tolist() == [[likeliest] * 3]
    assert followed.tolist() == [[likeliest] * 2]


@pytest.mark.parametrize(
    ("message", "changes"),
    {
        "tokens hold an id": [{"tokens": torch.tensor([[1, one, 2]])} for one in (23, -1)],
        "parents must be": [{"parents": torch.tensor([[-1, *two]])} for two in ((1, 0), (0, -2))],
        "num_nodes must lie": [{"num_nodes": torch.tensor([4])}],
        "shape": [{"num_nodes": torch.tensor([3, 3])}, {"parents": torch.tensor([-1, 0, 1])}],
        "torch.int64": [{"tokens": torch.tensor([[1.0, 2.0, 3.0]])}],
        r"rows has shape \(2,\), and tokens \(1, 3\)": [{"rows": np.array([0, 1])}],
    }.items(),
)
def test_calls_that_cannot_be_are_refused(message, changes):
    model = NativeTransformer(small_model())
    call = {"tokens": torch.tensor([[1, 2, 3]]), "parents": None, "num_nodes": torch.tensor([3]), "rows": np.array([0])}
    for change in changes:
        with pytest.raises(ValueError, match=message):
            model.score(**call | change, cache=model.new_cache(2, 8))


def test_a_cache_of_another_model_is_refused():
    """Compiled code would read and write beyond what there is."""
    model, other, eager = NativeTransformer(small_model()), NativeTransformer(small_model(num_layers=1)), small_model()
    tokens, one, ids = torch.tensor([[1]]), np.array([1]), np.array([[1, 2]])
    for cache, message in (
        (other.new_cache(1, 8), "cache is of a model of another shape: give one that new_cache of this model returned"),
        (eager.pack().new_cache(1, 8), "cache is a PagedKVCache, which no native pass reads: give one"),
    ):
        with pytest.raises(ValueError, match=message):
            model.score(tokens, None, torch.tensor([1]), cache, 0 * one)
        with pytest.raises(ValueError, match=message):
            model.follow_ids(ids, 2 * one, cache, 0 * one, one)
        assert cache.lengths.tolist() == [0]
    twin = NativeTransformer(small_model())
    model.score(tokens, None, torch.tensor([1]), twin.new_cache(1, 8), 0 * one)


def test_torchs_defaults_and_narrow_integers_change_nothing():
    model, tokens = NativeTransformer(small_model()), torch.arange(9)[None]
    call = None, torch.tensor([9]), model.new_cache(1, 16), np.array([0])
    expected, other = model.score(tokens, *call).logits, small_model()
    torch.set_default_dtype(torch.float64)
    try:
        again = NativeTransformer(other)
        found = again.score(tokens.int(), None, torch.tensor([9]), again.new_cache(1, 16), np.array([0])).logits
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


def test_a_chain_whose_later_passes_need_more_memory_than_its_first_gets_it(set_threads):
    model = NativeTransformer(small_model(num_heads=16, num_kv_heads=4, max_context=2048))
    rows, limits, found, depths = np.array([0]), np.array([3]), [], []
    watch = SimpleNamespace(limits=limits, reads_entropy=False, reads_confidence=True)
    watch.after = lambda depth, confidence: depths.append(depth)
    for threads in (1, 2):
        set_threads(threads)
        model.native._idle.clear()
        cache = model.new_cache(1, 2048)
        call = torch.tensor([[1, 2, 3]]), torch.tensor([3]), cache, rows, limits
        found.append(as_tensors(model.follow_ids, *call, watch)[0])
    assert torch.equal(found[0], found[1])
    assert depths == 2 * [0, 1, 2], "a chain goes on where it was"


def test_an_interrupt_while_memory_grows_keeps_none_that_is_gone(monkeypatch):
    def interrupted(*_: int) -> int:
        raise KeyboardInterrupt

    model, twin = (NativeTransformer(small_model(max_context=1024)) for _ in range(2))
    generator, rows = torch.Generator().manual_seed(3), np.array([0])
    call = torch.randint(23, (1, 400), generator=generator), random_tree(1, 400, generator), torch.tensor([400])
    monkeypatch.setattr(native_model, "round_up", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.score(*call, model.new_cache(1, 512), rows)
    monkeypatch.undo()
    assert not model.native._idle
    found, wanted = (one.score(*call, one.new_cache(1, 512), rows).logits for one in (model, twin))
    assert torch.equal(found, wanted)


def test_sizes_beyond_32_bits_are_not_cut():
    ids = torch.randint(23, (40,), generator=torch.Generator().manual_seed(5))
    far = {"sliding_window": 2**32 + 3, "max_context": 2**32 + 1}
    plain, wide = (NativeTransformer(small_model(**changes)) for changes in ({}, far))
    assert torch.equal(append(wide, wide.new_cache(1, 64), 0, ids), append(plain, plain.new_cache(1, 64), 0, ids))
    rows, cache = np.array([0]), wide.new_cache(1, 64)
    chains = wide.follow_ids(ids[None].numpy(), np.array([40]), cache, rows, np.array([2]))
    assert chains[0].shape == (1, 2)


def test_layers_that_were_packed_before_are_refused():
    with pytest.raises(ValueError, match="packed for eager"):
        NativeTransformer(small_model().pack())


SAMPLINGS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=5, min_p=0.01),
    SamplingParams(temperature=1.5, top_p=0.8),
]


def sampled_digest() -> str:
    """Return a hash of the ids and the laws' bits of sampled chains, keyed and raced."""
    model, found = NativeTransformer(integer_model()), hashlib.sha256()
    bases, firsts = np.array([11, 12, 13]), np.array([0, 5, 9])
    draws = Draws(ParameterTable.of(SAMPLINGS).filters, ChainKeys(False, bases, firsts))
    for chosen in (draws, draws._replace(keys=draws.keys._replace(is_race=True))):
        call = torch.arange(12).view(3, 4), torch.tensor([4, 2, 3]), model.new_cache(3, 64), np.arange(3)
        ids, _, laws = as_tensors(model.follow_ids, *call, np.array([24, 24, 7]), None, chosen)
        found.update(ids.numpy().tobytes() + laws.numpy().tobytes())
    return found.hexdigest()[:16]


HASHES = {
    "llama": "ada60d780c954730",
    "mistral": "a35cc906a136ac75",
    "qwen2": "52be63ca907a83bf",
    "qwen3": "3cd7502192704e49",
    "gpt2": "4e384fc6d841aa67",
    "neox": "ead8d0c151671dcd",
    "multi-query": "1ef8e933018b606f",
    "odd": "56345ce956aa8446",
    "relu": "83215f22cdfb4514",
}


SAMPLED_HASH = "26033653d646f5b4"


@pytest.mark.parametrize("family", SHAPES)
def test_logits_have_the_recorded_bits(family):
    assert digest(family) == HASHES[family]


def test_sampled_chains_have_the_recorded_bits():
    assert sampled_digest() == SAMPLED_HASH


@pytest.mark.long
@pytest.mark.parametrize("level", ["-O1", "-O3"])
@pytest.mark.parametrize("lanes", [16, 8, 4])
def test_every_build_has_the_recorded_bits(lanes, level, monkeypatch):
    use_build(lanes, level, monkeypatch)
    for family in SHAPES:
        assert digest(family) == HASHES[family], family
    assert sampled_digest() == SAMPLED_HASH
