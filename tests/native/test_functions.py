"""The native lanes and functions: close to float64 references, right at specials, the same bits in every build."""

import ctypes
import hashlib
import math

import numpy as np
import pytest
import torch
from scipy import special

from tests.native.build import HERE, NATIVE, Build, builds

BUILDS = builds()
DRIVER = HERE / "functions_driver.cpp"
pytestmark = pytest.mark.skipif(not BUILDS, reason="needs a C++ compiler and a processor with fused multiply-add")

INF, NAN = math.inf, math.nan
SQRT_8_OVER_PI = math.sqrt(8 / math.pi)
REFERENCES = {
    "exp": np.exp,
    "log": np.log,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x / 2 * special.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: x / (1 + np.exp(-SQRT_8_OVER_PI * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
}
RECORDED = "26f499c07ab395ad52b787ecc3d6d02fe80a21260a703bb2b65b497de9c6799e"  # of `digest`
RECORDED64 = "43cbea5760162199c9c03f0198427cfc24896b00017c0523ae14a2600da159cd"  # of `digest64`
OF_THREE = ("fma", "multiply_then_add", "subtract", "divide", "max", "min", "select")


@pytest.fixture(scope="session")
def libraries() -> dict[str, ctypes.CDLL]:
    return {str(build): build.library(DRIVER) for build in BUILDS}


@pytest.fixture(scope="session")
def library(libraries) -> ctypes.CDLL:
    return next(iter(libraries.values()))


def call(function, *arrays: np.ndarray, count: int) -> None:
    function(*(ctypes.c_void_p(array.ctypes.data) for array in arrays), ctypes.c_long(count))


def apply(library: ctypes.CDLL, name: str, *inputs: np.ndarray) -> np.ndarray:
    """Map float32 `inputs` of one length, padded with ones to whole groups of 16 floats."""
    size = len(inputs[0])
    padded = [np.concatenate([x, np.ones(-size % 16, np.float32)]) for x in inputs]
    out = np.empty_like(padded[0])
    call(getattr(library, f"map_{name}"), *(padded * 3)[:3], out, count=len(out))
    return out[:size]


def reduce(library: ctypes.CDLL, name: str, rows: np.ndarray) -> np.ndarray:
    out = np.empty(len(rows), np.float32)
    call(getattr(library, f"rows_{name}"), np.ascontiguousarray(rows, np.float32), out, count=len(rows))
    return out


def floats(low: float, high: float, count: int) -> np.ndarray:
    """Return about `count` floats between two of one sign, evenly among all floats there, so in every binade."""
    ends = np.array([low, high], np.float32).view(np.uint32).astype(np.int64)
    codes = np.arange(ends.min(), ends.max() + 1, max(1, (ends.max() - ends.min()) // count))
    return codes.astype(np.uint32).view(np.float32)


def every_kind() -> np.ndarray:
    """Floats of every exponent and sign, subnormals, zeros, infinities and NaNs among them, made from integers."""
    codes = np.arange(0, 2**32, 16381, dtype=np.uint64).astype(np.uint32)
    edges = np.float32([0, -0.0, INF, -INF, NAN, 1e-45, -1e-45, 88.72283, 88.72284, -87.33654, -87.33655, 1, -1])
    moderate = (np.arange(-(2**17), 2**17) * 2.0**-13).astype(np.float32)  # -16 to 16, exact
    return np.concatenate([codes.view(np.float32), edges, moderate])


def bits(array: np.ndarray) -> np.ndarray:
    """The bits, one pattern for all NaNs: their sign and payload are the processor's."""
    return np.where(np.isnan(array), np.float32(NAN), array).view(np.uint32)


# ---- Accuracy ----


@pytest.mark.parametrize(
    ("name", "low", "high", "bound"),
    [
        ("exp", -87.33654, -1e-9, 1.05),
        ("exp", 1e-9, 88.72283, 1.05),
        ("log", 1e-45, 3.4e38, 0.95),
        ("log", 0.5, 2.0, 0.95),
        ("sigmoid", -87.3, -1e-9, 2.5),
        ("sigmoid", 1e-9, 3e38, 1.6),
        ("silu", -87.3, -1e-9, 2.5),
        ("silu", 1e-9, 3e38, 1.6),
        ("gelu", -3.0, -1e-9, 5),
        ("gelu", -12.8, -3.0, 12.5),
        ("gelu", 1e-9, 3e38, 4.5),
        ("gelu_tanh", -3.0, -1e-9, 13.5),
        ("gelu_tanh", 1e-9, 3e38, 2),
        ("relu", 1e-9, 3e38, 0),
    ],
)
def test_the_error_in_units_in_the_last_place(library, name, low, high, bound):
    x = floats(low, high, 400_000)
    with np.errstate(over="ignore"):
        exact = REFERENCES[name](x.astype(np.float64))
    ulp = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(apply(library, name, x) - exact) / ulp) <= bound


@pytest.mark.parametrize("name", ["sigmoid", "silu", "gelu", "gelu_tanh", "relu"])
def test_activations_stay_as_close_to_the_exact_value_as_those_of_torch(library, name):
    x = np.linspace(-20, 20, 400_001).astype(np.float32)
    theirs = {
        "sigmoid": torch.sigmoid,
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
        "relu": torch.relu,
    }[name](torch.from_numpy(x)).numpy()
    exact = REFERENCES[name](x.astype(np.float64))
    scale = np.maximum(1, np.abs(x))
    ours, torchs = (np.max(np.abs(y - exact) / scale) for y in (apply(library, name, x), theirs))
    assert ours <= 1.3e-7
    assert ours <= 2 * torchs


def test_sines_and_cosines_are_exact_to_a_few_units_of_1e_16(library):
    turns = np.arange(1, 4e7, 997) * (math.pi / 4)  # the hardest: beside the ends and the zeros of a quarter
    angle = np.concatenate([np.arange(0, 2**26, 331.0), np.linspace(0, 100, 200_000), turns])
    sine, cosine = np.empty_like(angle), np.empty_like(angle)
    call(library.map_sincos, angle, sine, cosine, count=len(angle))
    assert np.max(np.abs(sine - np.sin(angle))) <= 3e-16
    assert np.max(np.abs(cosine - np.cos(angle))) <= 3e-16
    assert (sine[0], cosine[0]) == (0, 1)


def apply64(library: ctypes.CDLL, name: str, x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    call(getattr(library, f"map_{name}"), x, out, count=len(x))
    return out


def doubles(low: int, high: int, step: int) -> np.ndarray:
    """Return the doubles whose bits, as an integer, lie so far apart; in every binade."""
    return np.arange(low, high, step, dtype=np.uint64).view(np.float64)


UNIFORMS = (np.arange(300_000) * 29_000_000_000 + 0.5) * 2.0**-53
ARGUMENTS = {
    "exp64": np.concatenate([-np.linspace(0, 708.39, 300_001), -doubles(1 << 61, 0x4086000000000000, 2**43 + 12345)]),
    "log64": np.concatenate([UNIFORMS, 1 - UNIFORMS / 1000, doubles(2**52, 2**62, 2**44 + 12345)]),
}


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="needs numbers of more than double precision")
@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_error_of_double_functions_in_units_in_the_last_place(library, name):
    x = ARGUMENTS[name]
    exact = {"exp64": np.exp, "log64": np.log}[name](x.astype(np.longdouble))
    ulp = np.spacing(np.abs(exact.astype(np.float64)))
    assert np.max(np.abs(apply64(library, name, x) - exact) / ulp) <= 1


# ---- Special values ----


def test_special_values_of_double_functions(library):
    x = np.array([0, -0.0, INF, -INF, NAN, 709.79, -708.3965, -1e300, 1])
    assert np.array_equal(apply64(library, "exp64", x)[:-1], [1, 1, INF, 0, NAN, INF, 0, 0], equal_nan=True)
    assert apply64(library, "log64", np.array([1.0, 2.0**-54])).tolist() == [0, math.log(2.0**-54)]


@pytest.mark.parametrize(
    ("name", "x", "y"),
    [
        ("exp", [0, -0.0, INF, -INF, NAN, 88.72284, 1e30, -1e30], [1, 1, INF, 0, NAN, INF, INF, 0]),
        ("exp", [-87.33655, -88, -100, -103], [0, 0, 0, 0]),
        ("log", [1, 0, -0.0, INF, -INF, NAN, -1, -1e-45], [0, -INF, -INF, INF, NAN, NAN, NAN, NAN]),
        ("sigmoid", [0, -0.0, INF, -INF, NAN, 100, -100], [0.5, 0.5, 1, 0, NAN, 1, 0]),
        ("silu", [0, -0.0, INF, -INF, NAN, 100, -100], [0, -0.0, INF, NAN, NAN, 100, -0.0]),
        ("gelu", [0, -0.0, INF, -INF, NAN, 100, -100, -3e38], [0, -0.0, INF, NAN, NAN, 100, -0.0, -0.0]),
        ("gelu_tanh", [0, -0.0, INF, -INF, NAN, 100, -100, -3e38], [0, -0.0, INF, NAN, NAN, 100, -0.0, -0.0]),
        ("relu", [0, INF, -INF, NAN, 3, -3], [0, INF, 0, NAN, 3, 0]),
    ],
)
def test_special_values(library, name, x, y):
    got = apply(library, name, np.float32(x))
    assert np.array_equal(bits(got), bits(np.float32(y))), got


def test_an_exponential_is_never_subnormal(library):
    y = apply(library, "exp", floats(-80, -200, 300_000))
    assert np.all((y == 0) | (y >= np.finfo(np.float32).tiny))


def test_no_largest_or_smallest_hides_a_nan(library):
    values = np.float32([NAN, INF, -INF, 0, -0.0, 1, -2])
    a, b = (grid.ravel() for grid in np.meshgrid(values, values))
    assert np.array_equal(apply(library, "max", a, b), np.maximum(a, b), equal_nan=True)
    assert np.array_equal(apply(library, "min", a, b), np.minimum(a, b), equal_nan=True)
    rows = np.tile(np.arange(16, dtype=np.float32), (32, 1))
    rows[np.arange(16), np.arange(16)] = NAN
    rows[np.arange(16, 32), np.arange(16)] = 99
    assert np.array_equal(reduce(library, "hmax", rows), np.float32([NAN] * 16 + [99] * 16), equal_nan=True)


# ---- Lanes ----


def test_arithmetic_rounds_once_and_fuses_only_where_told(library):
    a, b, c = (np.float32(x) for x in np.random.default_rng(0).uniform(-2, 2, (3, 4096)))
    assert np.array_equal(apply(library, "multiply_then_add", a, b, c), a * b + c)
    fused = (a.astype(np.float64) * b + c).astype(np.float32)  # the product is exact
    assert np.array_equal(apply(library, "fma", a, b, c), fused)
    assert not np.array_equal(fused, a * b + c)
    assert np.array_equal(apply(library, "subtract", a, b, c), a - b)
    assert np.array_equal(apply(library, "divide", a, b, c), a / b)
    assert np.array_equal(apply(library, "select", a, b, c), np.where(a < b, a, c))


def test_the_sum_of_lanes_is_one_tree(library):
    rows = np.float32(np.random.default_rng(1).normal(size=(500, 16)))
    tree = rows
    for width in (8, 4, 2, 1):
        tree = tree[:, :width] + tree[:, width:]
    assert np.array_equal(reduce(library, "hsum", rows), tree[:, 0])


def test_stored_weights_widen_exactly(libraries):
    codes = np.arange(2**16, dtype=np.uint16)
    halves = codes.view(np.float16).astype(np.float32)
    columns = (codes.astype(np.uint32) << 16).view(np.float32).reshape(-1, 32)
    pairs = np.stack([codes.reshape(-1, 32)[:, :16], codes.reshape(-1, 32)[:, 16:]], axis=2)  # column i beside i + 16
    for name, library in libraries.items():
        out = np.empty(2**16, np.float32)
        call(library.widen_f16, codes, out, count=len(codes))
        assert np.array_equal(bits(out), bits(halves)), name
        call(library.widen_bf16_pairs, np.ascontiguousarray(pairs), out, count=len(codes))
        assert np.array_equal(bits(out), bits(columns.ravel())), name


def test_the_float_mode_keeps_subnormals_and_puts_the_old_mode_back(libraries):
    for name, library in libraries.items():
        inside, after = ctypes.c_float(), ctypes.c_float()
        factors = ctypes.c_float(2.0**-100), ctypes.c_float(2.0**-40)
        library.multiply_in_float_mode(*factors, ctypes.byref(inside), ctypes.byref(after))
        assert (inside.value, after.value) == (2.0**-140, 0), name


# ---- The same bits everywhere ----


def digest(library: ctypes.CDLL) -> str:
    """The hash of all functions' bits on every kind of float, and of double-precision sines and cosines."""
    x = every_kind()
    y, z = (np.roll(x, shift) for shift in (12_345, 67_891))
    found = hashlib.sha256()
    for name in REFERENCES:
        found.update(bits(apply(library, name, x)))
    for name in OF_THREE:
        found.update(bits(apply(library, name, x, y, z)))
    rows = x[-(2**18) :].reshape(-1, 16)
    for name in ("hsum", "hmax"):
        found.update(bits(reduce(library, name, rows)))
    angle = np.arange(2**16) * 1021.0078125
    sine, cosine = np.empty_like(angle), np.empty_like(angle)
    call(library.map_sincos, angle, sine, cosine, count=len(angle))
    found.update(sine)
    found.update(cosine)
    return found.hexdigest()


def digest64(library: ctypes.CDLL) -> str:
    """The hash of exp and log in double precision."""
    found = hashlib.sha256(apply64(library, "exp64", np.arange(-(2**17), 2**9) * 0.00537109375))
    found.update(apply64(library, "log64", (np.arange(2**17) * 68_719_476_767 + 0.5) * 2.0**-53))
    return found.hexdigest()


def test_every_build_and_every_machine_gives_the_recorded_bits(libraries):
    digests = {name: (digest(library), digest64(library)) for name, library in libraries.items()}
    assert digests == dict.fromkeys(libraries, (RECORDED, RECORDED64))


def test_a_compiler_that_fuses_on_its_own_is_noticed():
    contracting = Build(BUILDS[0].lanes, "-O3", BUILDS[0].compiler, (*NATIVE, "-ffp-contract=fast"))
    assert digest(contracting.library(DRIVER)) != RECORDED


def test_each_build_has_the_lanes_it_names(libraries):
    assert [library.lanes() for library in libraries.values()] == [build.lanes for build in BUILDS]
