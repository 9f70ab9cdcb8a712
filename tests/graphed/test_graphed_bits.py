"""With ``bitwise=True`` a node's bits depend on its path only, in every dtype; and the check sees what does not."""

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import drafts
from experiments.harness.arguments import add_placement
from experiments.harness.models import load_model, load_oracle
from experiments.strategies import STRATEGIES
from oracles.graphed import GraphedTransformer, graphed_bits, graphed_passes
from oracles.graphed import graphed_transformer as graphed_transformer
from oracles.graphed.buckets import ROWS, WIDTHS
from oracles.graphed.calls import Calls
from oracles.graphed.chunks import CHUNK
from oracles.graphed.graphed_attention import MaskedAttention
from oracles.graphed.graphed_passes import Passes, PassMode
from oracles.graphed.tiles import by_tiles
from oracles.graphed.upload import Call, PassIntegers
from specdec import Kary, SamplingParams, SpeculativeDecoder
from specdec.cache import prefill
from tests.graphed.histories import PROMPTS, VOCAB, Recorded, asked, close, fill, history
from tests.support.models.scoring import append, path_to, random_tree
from tests.support.models.tiny_models import FAMILIES, small_model
from tests.support.pairwise import first_of

DTYPES = [torch.float32, torch.bfloat16]
CONTEXT = {"max_context": 2048}


@pytest.fixture(scope="module")
def checked() -> list[tuple[GraphedTransformer, tuple[int, ...]]]:
    """Bitwise oracles of each dtype, and what they had counted by the end of their check."""
    models = [made(dtype, **CONTEXT) for dtype in DTYPES]
    return [(model, counted_by(model)) for model in models]


@pytest.fixture(scope="module")
def models(checked) -> dict[torch.dtype, GraphedTransformer]:
    """Bitwise oracles that were checked, by dtype."""
    return {model.dtype: model for model, _ in checked}


def counted_by(model: GraphedTransformer) -> tuple[int, ...]:
    counts = model.counts
    return counts.passes_in_graphs, counts.passes_outside, counts.graphs, model.uploads


def made(dtype: torch.dtype = torch.float32, **changes: object) -> GraphedTransformer:
    return GraphedTransformer(small_model(dtype=dtype, **changes).pack(), bitwise=True)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GraphedTransformer, "_check_bits", lambda self: None)


def some_ids(count: int, seed: int) -> torch.Tensor:
    return torch.randint(VOCAB, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES)
def test_widths_and_chunked_prefill_change_no_bit(dtype, models):
    model, ids = models[dtype], some_ids(CHUNK + 44, 1)
    whole = append(model, model.new_cache(1, 300), 0, ids, width=300)
    for width in (17, 64, 65, 100, 128):
        assert torch.equal(append(model, model.new_cache(1, 300), 0, ids, width=width), whole), width
    for start, width in ((1, 1), (CHUNK - 6, 1), (CHUNK - 6, 2), (CHUNK - 6, 4)):  # and over the end of a chunk
        cache, stop = model.new_cache(1, 300), start + 12
        append(model, cache, 0, ids[:start])
        assert torch.equal(append(model, cache, 0, ids[start:stop], width=width), whole[start:stop]), width


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", first_of(*range(3)))
def test_every_node_of_random_trees_has_the_bits_of_its_chain(seed, dtype, models):
    model, generator = models[dtype], torch.Generator().manual_seed(seed)
    for size, prefix in ((5, 3), (13, CHUNK - 4), (40, 61), (128, CHUNK - 60)):
        ids, parents = some_ids(prefix, seed), random_tree(2, size, generator)
        tokens, cache = torch.randint(VOCAB, (2, size), generator=generator), model.new_cache(2, prefix + size)
        for row in range(2):
            append(model, cache, row, ids)
        logits = model.score(tokens, parents, torch.tensor([size, size]), cache, np.array([1, 0])).logits
        for node in {0, size // 2, size - 2, size - 1}:
            path = tokens[0, path_to(parents[0], node)]
            chain = append(model, model.new_cache(1, 512), 0, torch.cat([ids, path]), width=64)
            assert torch.equal(logits[0, node], chain[-1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_places_and_buckets_of_rows_change_no_bit(dtype, models):
    model, generator = models[dtype], torch.Generator().manual_seed(11)
    for cache_rows in (20, 65):
        cache, found = model.new_cache(cache_rows, 300), []
        fill([model], [cache], [(37 * row + 1) % (280 if row < 20 else 70) for row in range(cache_rows)], generator)
        tokens = torch.randint(VOCAB, (1, 6), generator=generator)
        for rows in ([7], [2, 7], [7, 4, 19, 0, 3], list(range(20)), list(reversed(range(17))), range(cache_rows)):
            call = asked(len(rows), 6, False, np.array(rows), generator)
            call.tokens[list(rows).index(7)], call.num_nodes[list(rows).index(7)] = tokens, 6
            found.append(call.of(model, cache).logits[list(rows).index(7)])
        assert all(torch.equal(logits, found[0]) for logits in found[1:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_capacities_change_no_bit(dtype, models):
    model, ids = models[dtype], some_ids(50, 3)
    found = [
        append(model, model.new_cache(rows, capacity), 0, ids) for rows, capacity in ((1, 50), (3, 257), (1, 2000))
    ]
    assert all(torch.equal(logits, found[0]) for logits in found[1:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_prompts_of_a_batch_leave_the_keys_that_they_leave_alone(dtype, models):
    model, lengths = models[dtype], (300, 2, 129, 65)
    prompts, cache = [some_ids(length, length).numpy() for length in lengths], model.new_cache(4, 320)
    prefill(model, cache, np.arange(4), prompts)
    for row, prompt in enumerate(prompts):
        own = model.new_cache(1, len(prompt))
        append(model, own, 0, torch.from_numpy(prompt[:-1]), width=1 if len(prompt) < 100 else 7)
        assert torch.equal(cache.payload[:, :, row, :, : lengths[row] - 1], own.payload[:, :, 0, :, : lengths[row] - 1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_of_a_pass_and_their_readers_have_the_bits_of_a_whole_one(dtype, models):
    model, generator, rows = models[dtype], torch.Generator().manual_seed(5), np.array([1, 0])
    cache = model.new_cache(3, 160)
    fill([model], [cache], [30, 77, 5], generator)
    call = asked(2, 70, True, rows, generator, hidden=(0, 1))
    whole = call.of(model, cache)
    cache.reserve(rows, 70)
    upper = model.score(
        call.tokens, call.parents, call.num_nodes, cache, rows, layers=(1, 2), stream=whole.hidden[0], hidden=(1,)
    )
    assert torch.equal(call.real(upper.logits), call.real(whole.logits))
    stream = call.real(whole.hidden[1])
    assert torch.equal(model.read_out(stream), call.real(whole.logits))
    assert torch.equal(model.read_out(stream[40:41]), call.real(whole.logits)[40:41])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_the_eager_oracles(family):
    eager = small_model(dtype=torch.float64, **FAMILIES[family]).pack()
    model = made(torch.float64, **FAMILIES[family])
    for call, (wanted, found) in history([eager, model], 5, 12, 3):
        real = call.real if call.given["want"] == "all" else torch.Tensor.squeeze
        close(real(found.logits), real(wanted.logits))


@pytest.mark.parametrize(
    ("batch_size", "sampling"), [(1, SamplingParams()), (3, SamplingParams(temperature=0.8, top_p=0.95))]
)
def test_every_strategy_writes_plain_decodings_tokens(sampling, batch_size, models):
    """In bfloat16, where logits often tie or nearly do; sampled runs are coupled."""
    model, small = models[torch.bfloat16], GraphedTransformer(small_model(dtype=torch.bfloat16, num_layers=1).pack())
    plain = SpeculativeDecoder(model, rule="coupled").generate(PROMPTS, 8, sampling, batch_size=1)
    assert plain.exactness == "exact"
    for source in (
        drafts.PromptLookup(4),
        drafts.SmallTransformer(small, 3),
        drafts.SmallTransformer(small, tree=Kary(2, 2)),
        drafts.EarlyExit(model, 1, num_draft_tokens=3),
    ):
        found = SpeculativeDecoder(model, source, "coupled").generate(PROMPTS, 8, sampling, batch_size=batch_size)
        assert (found.tokens, found.exactness) == (plain.tokens, "exact")


@pytest.mark.usefixtures("unchecked")
def test_graphs_compute_what_their_passes_would():
    plain = made(max_context=256)
    recorded = GraphedTransformer(small_model().pack(), new_capture=Recorded, bitwise=True)
    for call, (wanted, found) in history([plain, recorded], 5, 50, 7):
        real = call.real if call.given["want"] == "all" else torch.Tensor.squeeze
        assert torch.equal(real(found.logits), real(wanted.logits))
    assert recorded.counts.passes_in_graphs > 10


def test_the_check_leaves_no_trace(checked):
    for model, traces in checked:
        assert traces == (0, 0, 0, 0)
        _, outside, _, uploads = counted_by(model)
        append(model, model.new_cache(1, 64), 0, some_ids(3, 0))
        assert counted_by(model) == (0, outside + 1, 0, uploads + 1)


@pytest.mark.parametrize("tree", [False, True], ids=["chains", "trees"])
@pytest.mark.parametrize("num_rows", [1, 2, 4, 64])
def test_the_check_has_every_path_in_every_bucket(num_rows, tree, monkeypatch, models):
    """Buckets of few rows take several batches."""
    seen: list[tuple[int, int, int]] = []

    def same(self: object, rows: np.ndarray, width: int, is_tree: bool) -> bool:
        seen.append((len(rows), width, is_tree))
        return (len(rows), is_tree) != (num_rows, tree) or width < 12

    monkeypatch.setattr(graphed_bits._Check, "_same", same)
    calls = models[torch.float32]._calls
    monkeypatch.setattr(calls, "passes", replace(calls.passes, way=PassMode(calls.passes.way.attention, True)))
    found = graphed_bits.differing_bucket(calls, models[torch.float32].config, torch.float32, torch.device("cpu"))
    assert found == f"{'a tree' if tree else 'a chain'} of 12 nodes in each of {num_rows} rows"
    assert seen[-1] == (num_rows, 12, tree)
    if num_rows > 1:
        assert {width for rows, width, _ in seen if rows == 1} == set(WIDTHS)
        assert {rows for rows, *_ in seen} == {rows for rows in ROWS if rows <= num_rows}


def mixing(tile: torch.Tensor) -> torch.Tensor:
    """Return rows that feel, in their last bits, how many there are beside them."""
    return tile * (1 + torch.finfo(torch.float32).eps * len(tile))


@pytest.mark.parametrize("broken", ["products", "attention", "trees"])
def test_a_pass_whose_bits_depend_on_its_shape_is_refused_by_its_bucket(broken, monkeypatch):
    if broken == "products":
        monkeypatch.setattr(graphed_passes, "by_tiles", lambda part, *rows: mixing(part(*rows)))
        bucket = "a chain of .* nodes in each of 1 rows"
    elif broken == "attention":
        way = PassMode(MaskedAttention, True)
        monkeypatch.setattr(graphed_transformer, "way_of", lambda *_: way)
        bucket = "a (chain|tree) of .* nodes in each of . rows"
    else:
        paths = torch.Tensor.gather
        monkeypatch.setattr("oracles.graphed.chunks.Tensor.gather", lambda x, dim, at: paths(x, dim, at).flip(1))
        bucket = "a tree of .* nodes in each of 1 rows"
    with pytest.raises(ValueError, match=f"^bitwise is True, and on cpu in torch.float32 .*: {bucket}; leave it out$"):
        made()


@pytest.mark.parametrize("rows", graphed_bits.FULL)
def test_a_full_batch_whose_bits_differ_is_refused(rows, monkeypatch):
    """It is not gathered from the cache: each row stands at its own place there."""
    run = Calls._run

    def broken(self: Calls, asked: Call, packed: PassIntegers, *given: Any) -> tuple[torch.Tensor, ...]:
        outputs, bucket = run(self, asked, packed, *given), packed.bucket
        return tuple(map(mixing, outputs)) if bucket.whole and bucket.rows == rows else outputs

    monkeypatch.setattr(Calls, "_run", broken)
    with pytest.raises(ValueError, match=f": a chain of 1 nodes in each of {rows} rows, all those of a cache; leave"):
        made()


def test_a_reader_whose_bits_depend_on_its_rows_is_refused(monkeypatch):
    tiles = Passes.in_tiles
    monkeypatch.setattr(
        Passes, "in_tiles", lambda self, compute: lambda rows: mixing(tiles(self, compute)(rows[: len(rows)]))
    )
    with pytest.raises(
        ValueError, match=r"depend on the pass: passes of several lengths, rows and trees; leave it out"
    ):
        made()


def test_the_default_mode_promises_nothing_and_pays_nothing(monkeypatch):
    monkeypatch.setattr(GraphedTransformer, "_check_bits", lambda self: pytest.fail("nobody asked for a check"))
    monkeypatch.setattr(graphed_passes, "by_tiles", lambda *_: pytest.fail("nobody asked for tiles"))
    model = GraphedTransformer(small_model().pack())
    append(model, model.new_cache(1, 64), 0, some_ids(9, 0))
    assert not model.bitwise
    assert SpeculativeDecoder(model).generate([[1, 2]], 2).exactness == "exact up to numerics"


@pytest.mark.usefixtures("unchecked")
def test_the_command_line_asks_it_of_the_oracle_alone():
    """What drafts pays nothing for it; a view of the oracle has the backend that the oracle chose."""
    parser = argparse.ArgumentParser()
    add_placement(parser)
    for words, bitwise in (("", False), ("--bitwise", True), ("--bitwise yes", True), ("--bitwise no", False)):
        assert parser.parse_args(words.split()).bitwise == bitwise
    given = {**vars(parser.parse_args(["--dtype", "bfloat16", "--bitwise"])), "oracle": "code-draft-tiny"}
    oracle, draft = load_oracle(given), load_model("code-draft-tiny", given)
    assert (oracle.backend, oracle.bitwise, draft.backend, draft.bitwise) == ("graphed", True, "eager", False)
    settings = {**given, "draft_weights": "int8", "num_draft_tokens": 2}
    found = SpeculativeDecoder(oracle, STRATEGIES["quantized"].build(settings, oracle)).generate([[1, 2, 3]], 8)
    assert (found.tokens, found.exactness) == (SpeculativeDecoder(oracle).generate([[1, 2, 3]], 8).tokens, "exact")


def test_tiles_hand_back_the_rows_that_they_were_given():
    rows, sizes = torch.arange(130.0).unsqueeze(1), []

    def compute(tile: torch.Tensor, absent: None, other: torch.Tensor) -> torch.Tensor:
        sizes.append((len(tile), len(other)))
        return tile + other

    assert torch.equal(by_tiles(compute, rows, None, 2 * rows), 3 * rows)
    assert sizes == [(64, 64)] * 3
    assert by_tiles(compute, rows[:0], None, rows[:0]).shape == (0, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "flash"}, "attention is 'flash'; choose one of 'masked', 'chunked', 'triton', or None"),
        (
            {"attention": "triton"},
            "attention='triton': its kernels run on CUDA devices, and the oracle is on cpu; leave",
        ),
        ({"attention": "masked", "bitwise": True}, "attention='masked' .* leave it out, or bitwise=True"),
    ],
)
def test_attentions_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GraphedTransformer(small_model().pack(), **options)
