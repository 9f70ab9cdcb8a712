"""Native laws and draws: those of the torch operations, whatever else the batch holds, and the same bits everywhere."""

import hashlib
import threading
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from specdec import SamplingParams
from specdec.drafting.chain_sampler import confidence_of, entropy_of
from specdec.kernels import FILTERS, REFERENCE, NativeKernels, best_kernels
from specdec.kernels.compiled import NATIVE_DTYPES
from specdec.kernels.filters import torch_probs
from specdec.laws import Laws
from specdec.sampling import ParameterTable
from specdec.sampling.randomness import Coupled, Keyed, seed_keys
from tests.native.build import SHARED, builds
from tests.support.backends import laws_by, needed_kernels
from tests.support.pairwise import pairwise

BUILDS = builds()
# What the recorded bits are of.
GRID = {"temperature": (0.3, 1.0), "top_k": (0, 7), "top_p": (1.0, 0.8), "min_p": (0.0, 0.01)}
RECORDED = "faeb16657171dbe302ac1204df18fd822ffe3d1cda9d063ad4d1890be3436c0e"
RECORDED_ENTROPIES = "8726810f330ddccaa91202fcc601dbc6f8e79dd0f1163da342274ccddb80e0be"
INF, NAN = float("inf"), float("nan")
# Distance of a law from that of float64 torch operations.
NEAR = {torch.float64: 1e-14, torch.float32: 4e-7}
both_types = pytest.mark.parametrize("dtype", NATIVE_DTYPES, ids=str)

needed_kernels()


def law_of(logits: Tensor, **params: float) -> Tensor:
    """Return the native law of one row of logits ``[V]``."""
    table = ParameterTable.of([SamplingParams(**{"temperature": 1.0, **params})])
    return best_kernels().laws(logits.view(1, 1, -1), table)[0, 0]


def kept_by(logits: Tensor, **params: float) -> list[int]:
    return law_of(logits, **params).nonzero().flatten().tolist()


def integers(count: int, seed: int = 0) -> np.ndarray:
    """Return integers below 2^16, made by integer arithmetic."""
    return (((np.arange(count, dtype=np.uint64) + 977 * seed) * 2654435761 % 2**32) >> 16).astype(np.int64)


# ---- Laws ----


@both_types
@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 33, 300, 3072])
def test_laws_are_those_of_torch_operations(size, dtype):
    generator = np.random.default_rng(size)
    for _ in range(60):
        params = [
            SamplingParams(
                temperature=float(generator.choice([0.05, 0.7, 1.0, 3.0])),
                top_k=int(generator.choice([0, 1, 2, 5, size, size + 1, 40])),
                top_p=float(generator.choice([1.0, 1e-9, 0.31, 0.87, 0.9513, 1 - 1e-9])),
                min_p=float(generator.choice([0.0, 1e-3, 0.07, 1.0])),
            )
            for _ in range(2)
        ]
        logits = torch.from_numpy(generator.normal(size=(2, 2, size)) * generator.choice([0.1, 1, 5])).to(dtype)
        logits[torch.from_numpy(generator.random(logits.shape) < generator.choice([0, 0.3]))] = -INF
        logits[..., generator.integers(size)] = 1.0
        table = ParameterTable.of(params)
        wanted, found = (
            torch_probs(logits.double(), table.filters, torch.tensor(table.filters)),
            best_kernels().laws(logits, table),
        )
        assert found.dtype == dtype
        off, kept = (found - wanted).abs().amax(-1), (found > 0) == (wanted > 0)
        told = f"{params}: rows off by {off.tolist()}; kept otherwise [row, node, id]: {(~kept).nonzero().tolist()}"
        assert off.max() <= NEAR[dtype], told
        assert kept[wanted > 1e-30].all(), told
        assert (found[wanted == 0] == 0).all(), f"what is dropped has probability exactly 0: {told}"
        assert (found.double().sum(-1) - 1).abs().max() <= 2 * NEAR[dtype], told


@pytest.mark.parametrize(
    ("row", "top_k", "dtype"),
    [
        ([torch.finfo(torch.float32).max, 0, 1], 1, torch.float32),
        ([1e308] * 3, 2, torch.float64),
        ([torch.finfo(torch.float64).max, 0, 1], 2, torch.float64),
    ],
)
def test_the_largest_logits_are_filtered_as_by_torch(row: list[float], top_k: int, dtype: torch.dtype) -> None:
    logits = torch.tensor([[row]], dtype=dtype)
    table = ParameterTable.of([SamplingParams(temperature=1, top_k=top_k)])
    wanted = torch_probs(logits, table.filters, torch.tensor(table.filters))
    assert torch.equal(best_kernels().laws(logits, table), wanted)


@both_types
@pytest.mark.parametrize("tied", [1, 2, 7, 16, 100])
def test_of_equal_ids_at_the_cut_top_p_keeps_the_lowest(tied, dtype):
    # Weights 1/2 and 1/(2 tied): with P = 1/2 + (n - 1/2) / (2 tied) the n lowest of the tied ids stay.
    logits = torch.full((3 * tied + 5,), -INF, dtype=dtype)
    places = np.sort(np.random.default_rng(tied).permutation(len(logits))[: tied + 1])
    best, others = int(places[tied // 2]), np.delete(places, tied // 2).tolist()
    logits[others] = 0.0
    logits[best] = float(np.log(tied))
    for number in range(1, tied + 1):
        kept = kept_by(logits, top_p=0.5 + (number - 0.5) / (2 * tied))
        assert kept == sorted([best, *others[:number]])
    assert kept_by(logits, top_p=0.25) == ([min(best, *others)] if tied == 1 else [best])


@both_types
def test_equal_ids_alone_are_cut_where_the_mass_is_reached(dtype):
    for number in range(1, 65):
        assert kept_by(torch.zeros(64, dtype=dtype), top_p=number / 64) == list(range(number))
        assert kept_by(torch.zeros(64, dtype=dtype), top_p=(number - 0.5) / 64) == list(range(number))


@both_types
def test_top_k_keeps_all_that_tie_with_the_last_and_the_two_zeros_tie(dtype):
    logits = torch.tensor([0.0, -0.0, 3.0, -1.0, 0.0, -INF, -7.0, 3.0], dtype=dtype)
    for top_k, kept in [(1, [2, 7]), (2, [2, 7]), (3, [0, 1, 2, 4, 7]), (5, [0, 1, 2, 4, 7]), (6, [0, 1, 2, 3, 4, 7])]:
        assert kept_by(logits, top_k=top_k) == kept
    assert kept_by(logits, top_k=8) == kept_by(logits) == [0, 1, 2, 3, 4, 6, 7]
    assert kept_by(-torch.arange(300, dtype=dtype), top_k=9, temperature=10.0) == list(range(9))


@both_types
def test_of_top_p_and_min_p_the_stricter_holds_and_at_one_floor_the_count_of_top_p(dtype):
    logits = torch.tensor([0.0, -1.0, 0.0, -1.0, -2.0, 0.0], dtype=dtype)
    assert kept_by(logits, top_p=0.9, min_p=0.5) == [0, 2, 5]
    assert kept_by(logits, top_p=0.5, min_p=0.1) == [0, 2]
    assert kept_by(logits, top_p=0.5, min_p=1.0) == [0, 2]
    assert kept_by(logits, min_p=0.2) == [0, 1, 2, 3, 5]


@both_types
def test_one_id_has_all_the_mass(dtype):
    for params in ({}, {"top_k": 1}, {"top_p": 0.1}, {"min_p": 1.0}, {"temperature": 1e-300}):
        assert law_of(torch.tensor([-3.0], dtype=dtype), **params).tolist() == [1]


@both_types
@pytest.mark.parametrize("params", [{}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}], ids=str)
def test_logits_without_a_law_give_nan_and_leave_their_neighbours_alone(params, dtype):
    rows = [[1.0, NAN, 2.0], [INF, 0.0, 1.0], [-INF, -INF, -INF], [0.0, 1.0, -INF], [-INF, 5.0, NAN]]
    table = ParameterTable.of([SamplingParams(temperature=1.0, **params)])
    laws = best_kernels().laws(torch.tensor([rows], dtype=dtype), table)[0]
    assert laws.isnan().all(-1).tolist() == [True, True, True, False, True]
    assert torch.equal(laws[3], law_of(torch.tensor(rows[3], dtype=dtype), **params))


@both_types
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_the_coldest_and_the_hottest_temperatures_give_laws(backend, dtype):
    logits = torch.tensor([1e30, 1e30, 0.0, -1e30, -INF], dtype=dtype)
    with laws_by(backend):
        for temperature in (1e-30, 1e-50, 5e-324):
            assert law_of(logits, temperature=temperature).tolist() == [0.5, 0.5, 0, 0, 0]
            others = torch.tensor([-3.0, 1e4, -INF, 1e4, 9e3, -1e4, 0.0], dtype=dtype)
            assert law_of(others, temperature=temperature).tolist() == [0, 0.5, 0, 0.5, 0, 0, 0]
        near = law_of(logits.clamp(-3, 3), temperature=1e300)
        assert law_of(logits / 1e30, temperature=1e300)[4] == 0
    assert (near - 0.2).abs().max() < 1e-6


@both_types
def test_a_law_has_the_bits_that_it_has_alone(dtype):
    generator = np.random.default_rng(3)
    params = [
        SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m)
        for t, k, p, m in [(0.8, 0, 0.95, 0.0), (1.3, 12, 1.0, 0.0), (1e-9, 0, 1.0, 0.1), (1.0, 9, 0.6, 0.02)]
    ]
    table = ParameterTable.of(params)
    for size in (3, 16, 37, 260):
        logits = torch.from_numpy(generator.normal(size=(4, 3, size)) * 3).to(dtype)
        whole = best_kernels().laws(logits, table)
        turned = best_kernels().laws(logits.transpose(1, 2).contiguous().transpose(1, 2), table)
        assert torch.equal(whole, turned), "a layout of strides gives the same"
        for row in range(4):
            alone = table.select(np.array([row]))
            for node in range(3):
                assert torch.equal(
                    best_kernels().laws(logits[row : row + 1, node : node + 1], alone)[0, 0], whole[row, node]
                )


def test_a_thread_that_flushes_subnormals_gets_the_same_bits():
    logits = -torch.arange(900, dtype=torch.float32).view(1, 1, -1) / 10
    table = ParameterTable.of([SamplingParams(temperature=1.0)])
    wanted = best_kernels().laws(logits, table)
    torch.set_flush_denormal(True)
    try:
        found = best_kernels().laws(logits, table).view(torch.int32)
        assert float(torch.tensor(1e-310, dtype=torch.float64) * 1.0) == 0, "the mode is put back"
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(found, wanted.view(torch.int32))
    assert ((wanted > 0) & (wanted < torch.finfo(torch.float32).tiny)).any()


def test_threads_at_once_get_the_same_laws():
    table = ParameterTable.of([SamplingParams(temperature=0.9, top_k=500, top_p=0.9)])
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 8, 3000)))
    wanted, found = best_kernels().laws(logits, table), []
    threads = [
        threading.Thread(target=lambda: found.extend(best_kernels().laws(logits, table) for _ in range(20)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    assert all(torch.equal(laws, wanted) for laws in found)


# ---- How sure they are ----


@both_types
@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 33, 300, 3072])
def test_entropies_are_those_of_torch_operations(size, dtype):
    generator = np.random.default_rng(size)
    table = torch.from_numpy(generator.random((9, size)) ** 7 * (generator.random((9, size)) < 0.8))
    table[0], table[1], table[1, size // 2], table[2, -1] = 1e-310, 0, 1, NAN
    table = (table / table.sum(1, keepdim=True).clamp(min=1)).to(dtype)
    wanted = torch.special.entr(table.double()).sum(-1)
    torch.testing.assert_close(best_kernels().entropies(table), wanted, rtol=1e-13, atol=1e-300, equal_nan=True)


@both_types
@pytest.mark.parametrize("shape", [(5,), (5, 1), (2, 3)], ids=str)
def test_how_sure_a_model_is_of_a_token_is_what_torch_operations_say(shape, dtype):
    generator = np.random.default_rng(1)
    logits = torch.from_numpy(generator.normal(size=(*shape, 40)) * 4).to(dtype)
    logits[0, ..., 3] = -INF
    mixed = random_laws(generator, shape, 40, dtype)
    mixed = Laws(mixed.table[[0, 1, 3]], mixed.index.clamp(max=2), mixed.point)
    tokens = torch.from_numpy(generator.integers(0, 40, shape))
    for laws in (mixed, Laws.points(tokens), Laws(mixed.table, mixed.index.clamp(min=0), mixed.point)):
        found, wanted = (
            (confidence_of(laws, logits, tokens, by), entropy_of(laws, logits, by))
            for by in (best_kernels(), REFERENCE)
        )
        for own, other in zip(found, wanted, strict=True):
            assert own.dtype == torch.float64
            torch.testing.assert_close(own, other, rtol=1e-13, atol=0)
        expected = logits.double().softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        torch.testing.assert_close(found[0][laws.index < 0], expected[laws.index < 0], rtol=1e-13, atol=0)


@pytest.mark.parametrize("special", [NAN, INF])
def test_nothing_is_known_of_a_token_where_a_model_has_no_meaning(special):
    logits, token = torch.tensor([[1.0, special, 2.0]]), torch.tensor([0])
    for kernels in (REFERENCE, best_kernels()):
        assert confidence_of(Laws.points(token), logits, token, kernels).isnan()
        assert entropy_of(Laws.points(token), logits, kernels).isnan()


# ---- Draws ----


def random_laws(generator: np.random.Generator, shape: tuple[int, ...], size: int, dtype: torch.dtype) -> Laws:
    """Return laws that share rows, among them points, rows with zeros, of one id, of no id and of NaN."""
    table = generator.random((7, size)) ** generator.choice([1, 9]) * (generator.random((7, size)) < 0.6)
    table[1], table[2], table[3] = 0, 0, generator.random(size)
    table[1, generator.integers(size)] = 1
    table[4, generator.integers(size)] = NAN
    table[5, : size // 2] = 0
    index = torch.from_numpy(generator.integers(-1, 7, shape))
    return Laws(torch.from_numpy(table).to(dtype), index, torch.from_numpy(generator.integers(0, size, shape)))


def drawn_by(backend: str, streams: Keyed | Coupled, *args: object) -> Tensor:
    kernels = REFERENCE if backend == "torch" else best_kernels()
    return replace(streams, kernels=kernels).choose(*args)


@pairwise({"size": (1, 5, 16, 47, 1000), "k": (1, 2, 6), "dtype": NATIVE_DTYPES})
def test_keyed_draws_are_the_ids_of_the_torch_operations(size, k, dtype):
    generator = np.random.default_rng(size + k)
    for case in range(12):
        rows = int(generator.integers(1, 5))
        shape = (rows,) if case % 3 == 0 else (rows, 4)
        laws = random_laws(generator, shape, size, dtype)
        streams = Keyed.at(seed_keys([(case, i) for i in range(rows)]), generator.integers(0, 99, rows))
        streams = streams.extend("draft").extend(case) if case % 2 else streams.select(np.arange(rows)[::-1].copy())
        nodes = [case, np.arange(shape[-1]), generator.integers(0, 9, shape), np.int64(3), torch.arange(shape[-1])]
        nodes += [generator.integers(0, 9, (rows, 1))] if len(shape) == 2 else []
        for node in nodes:
            drawn, wanted = (drawn_by(backend, streams, laws, node, 0, "draft", k) for backend in ("native", "torch"))
            assert torch.equal(drawn, wanted)


@both_types
@pytest.mark.parametrize("k", [1, 3])
def test_races_are_those_of_the_torch_operations(k, dtype):
    generator = np.random.default_rng(k)
    for case in range(20):
        size = int(generator.choice([1, 6, 64, 700]))
        laws = random_laws(generator, (3, 2), size, dtype)
        laws = laws.with_points(laws.index == 4)  # of a law that holds NaN any id will do
        streams = Coupled(seed_keys([(case, i) for i in range(3)]), generator.integers(0, 99, 3))
        for depth in (case, np.arange(2), torch.arange(6).view(3, 2), torch.arange(3).view(3, 1)):
            drawn, wanted = (drawn_by(backend, streams, laws, 0, depth, "x", k) for backend in ("native", "torch"))
            assert torch.equal(drawn, wanted)


def test_a_race_without_a_winner_still_draws_an_id():
    for law in ([NAN, NAN], [0.0, 0.0]):
        laws = Laws.from_probs(torch.tensor([law]))
        assert Coupled(seed_keys([1]), np.array([0])).choose(laws, 0, 0, "x").tolist() == [0]


def test_draws_from_laws_of_any_layout():
    laws = random_laws(np.random.default_rng(1), (4, 6), 33, torch.float32)
    scattered = Laws(laws.table.t().contiguous().t(), laws.index.t().contiguous().t(), laws.point.t().contiguous().t())
    streams = Keyed(seed_keys([1, 2, 3, 4]))
    drawn = streams.choose(laws, np.arange(6), 0, "draft")
    assert torch.equal(streams.choose(scattered, np.arange(6), 0, "draft"), drawn)
    assert torch.equal(streams.choose(laws[:, 3], 3, 0, "draft"), drawn[:, 3])
    narrow = Laws(laws.table, laws.index.int(), laws.point)
    assert torch.equal(streams.choose(narrow, np.arange(6), 0, "draft"), drawn), "torch draws from what is not int64"


# ---- What a call must say ----


def test_calls_that_cannot_be_are_refused():
    streams, table = Keyed(seed_keys([1, 2])), ParameterTable.of([SamplingParams(temperature=1.0)])
    with pytest.raises(
        ValueError, match=rf"Warp.filters has the shape \({len(FILTERS)}, 1\), not \({len(FILTERS)}, 2\)"
    ):
        best_kernels().laws(torch.zeros(2, 1, 3), table)
    beyond = Laws(torch.full((2, 3), 1 / 3), torch.tensor([0, 2]), torch.tensor([0, 0]))
    with pytest.raises(IndexError, match="index 2, and their table has 2 rows"):
        streams.choose(beyond, 0, 0, "x")
    with pytest.raises(IndexError, match="index 2"):
        Coupled(streams.seeds, np.zeros(2, np.int64)).choose(beyond, 0, 0, "x")
    three = Laws.from_probs(torch.full((3, 4), 0.25))
    with pytest.raises(ValueError, match=r"1 draws by 2 streams from laws of index \(3,\)"):
        streams.choose(three, 0, 0, "x")
    with pytest.raises(ValueError, match="0 draws by 2 streams"):
        streams.choose(three[:2], 0, 0, "x", k=0)
    with pytest.raises(ValueError, match="broadcast"):
        streams.choose(three[:2], np.arange(3), 0, "x")
    with pytest.raises(ValueError, match="a part of 3 numbers cannot extend 2 streams"):
        Keyed(streams.seeds, (np.arange(3),)).choose(three[:2], 0, 0, "x")
    with pytest.raises(ValueError, match="2 streams take as many keys and positions"):
        Coupled(streams.seeds, np.zeros(1, np.int64)).choose(three[:2], 0, 0, "x")


# ---- The same bits everywhere ----


def digest(native: NativeKernels) -> str:
    """The hash of laws of logits made by integer arithmetic, and of what is drawn from them."""
    found = hashlib.sha256()
    assert tuple(GRID) == FILTERS, "give each sampling parameter of laws.h values in GRID, and record the bits anew"
    grid = [SamplingParams(**dict(zip(FILTERS, values, strict=True))) for values in product(*GRID.values())]
    table = ParameterTable.of(grid)
    keys = seed_keys(range(len(grid)))
    for dtype in NATIVE_DTYPES:
        for size in (1, 7, 16, 40, 1003):
            values = integers(2 * len(grid) * size, size).reshape(len(grid), 2, size)
            # Some ids tie, and some are banned.
            logits = (
                torch.from_numpy(values // 64 * 64 / 2.0**12)
                .to(dtype)
                .masked_fill(torch.from_numpy(values % 9 == 0), -INF)
            )
            logits[:, :, size // 2] = 3.0
            laws = native.laws(logits, table)
            index = torch.arange(2 * len(grid)).view(-1, 2)
            rows = Laws(laws.view(-1, size), index, torch.zeros_like(index))
            found.update(laws.numpy())
            found.update(native.draw(rows, 3, Keyed(keys), 5, 1).numpy())
            found.update(native.draw(rows, 1, Keyed(keys), 7, np.arange(2)).numpy())
            found.update(native.race(rows, 2, keys, keys, np.arange(2)).numpy())
    return found.hexdigest()


def entropy_digest(native: NativeKernels) -> str:
    """The hash of entropies of numbers made by integer arithmetic, some of which are 0."""
    found = hashlib.sha256()
    for dtype in NATIVE_DTYPES:
        for size in (1, 7, 16, 40, 1003):
            values = integers(5 * size, size).reshape(5, size)
            table = torch.from_numpy(np.where(values % 9, values, 0) / 2.0**16)
            found.update(native.entropies(table.to(dtype)).numpy())
    return found.hexdigest()


def test_every_build_and_every_machine_gives_the_recorded_bits():
    natives = {str(build): NativeKernels(build.library(SHARED / "laws.cpp")) for build in BUILDS}
    natives["shipped"] = NativeKernels()
    for found, recorded in ((digest, RECORDED), (entropy_digest, RECORDED_ENTROPIES)):
        given = {name: found(native) for name, native in natives.items()}
        assert set(given.values()) == {recorded}, "\n".join(f"{name} gives {bits}" for name, bits in given.items())
