"""What is read of headers: fields lie where the compiler puts them, and arrays that do not fit a line are refused."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oracles.native import bindings
from specdec.contracts import NativeJudge
from specdec.kernels.compiled import HEADERS, FaultCode, LibrarySources, Way, enumeration
from specdec.kernels.compiled.build import build, compiler, target_flag
from specdec.kernels.compiled.build_cache import cache_folder
from specdec.kernels.compiled.schema import OtherKind, kind_of, structure
from tests.native.twins import FLAGS
from tests.support.backends import needed_kernels

OF_LAWS = {"verify.h": ("Drafts", "Laws", "Target"), "penalties.h": ("Before",), "laws.cpp": ("Warp", "Drawing")}


def layout(kind: Any) -> list[int]:
    return [ctypes.sizeof(kind), *(getattr(kind, name).offset for name, _ in kind._fields_)]


def compiled(kinds: list[Any], folder: Path) -> list[list[int]]:
    """Return the sizes and the places of fields that a compiler gives structures."""
    needed_kernels()
    lines = [
        (HEADERS / "laws.cpp").read_text(encoding="utf-8"),
        '#include "model.h"',
        "#include <cstddef>",
        "using namespace specdec;",
        'extern "C" __attribute__((visibility("default"))) void tell(int64_t* to) {',
    ]
    for kind in kinds:
        lines.append(f"*to++ = sizeof({kind.__name__});")
        lines += [f"*to++ = offsetof({kind.__name__}, {name});" for name, _ in kind._fields_]
    source = folder / "layout.cpp"
    source.write_text("\n".join([*lines, "}"]), encoding="utf-8")
    room = (ctypes.c_int64 * sum(len(layout(kind)) for kind in kinds))()
    unit = LibrarySources("layouts", source, (HEADERS, bindings.SOURCES))
    ctypes.CDLL(str(build(unit, cache_folder(), compiler(), (*FLAGS, target_flag())))).tell(room)
    numbers = iter(room)
    return [[next(numbers) for _ in layout(kind)] for kind in kinds]


def test_fields_lie_where_the_compiler_puts_them(tmp_path):
    kinds = [structure(HEADERS / header, name) for header, names in OF_LAWS.items() for name in names]
    kinds += bindings.Mirror.__subclasses__()
    assert compiled(kinds, tmp_path) == [layout(kind) for kind in kinds]


def test_numbers_that_stand_for_names_are_those_of_the_headers():
    assert enumeration(HEADERS / "walks.h", "FaultCode") == {code.name: code for code in FaultCode}
    assert enumeration(HEADERS / "verify.h", "Way") == {way.name: way for way in Way}
    assert {judge.name: judge for judge in NativeJudge}.items() <= {way.name: way for way in Way}.items()


def before(**changed: Any) -> Any:
    """Return a structure of one row with two nodes over five ids, but for what is changed."""
    logits, ids = torch.zeros(1, 2, 5), np.zeros((1, 3), np.int64)
    three = np.full(1, 3)
    given = {
        "ids": ids, "ends": three, "prompts": three, "drafted": torch.zeros(1, 1, dtype=torch.int64),
        "paths": np.ones((1, 2, 1), np.bool_), "strengths": np.ones((3, 1)), "logits": logits,
    }  # fmt: skip
    sizes = {"rows": 1, "stride": 3, "nodes": 2, "width": 1, "size": 5}
    return structure(HEADERS / "penalties.h", "Before").of(sizes, kind_of(logits), **given | changed)


def test_a_structure_holds_addresses_of_arrays_and_tensors_and_the_sizes():
    ids, logits = np.arange(1, 12)[None, ::4], torch.zeros(1, 2, 5)
    made = before(ids=ids, logits=logits)
    assert (made.rows, made.stride, made.is_double, made.logits) == (1, 3, 0, logits.data_ptr())
    assert np.frombuffer(ctypes.string_at(addresses(made)["ids"], 24), np.int64).tolist() == [1, 5, 9]


@pytest.mark.parametrize("size", [8, 9000], ids=["small", "large"])
@pytest.mark.parametrize("is_tensor", [False, True], ids=["array", "tensor"])
def test_what_is_only_read_may_be_a_copy(is_tensor, size):
    numbers = np.arange(2.0 * size)[None, ::2]
    given = torch.from_numpy(numbers) if is_tensor else numbers
    index = np.zeros(1, np.int64)
    made = structure(HEADERS / "verify.h", "Laws").of(
        {"rows": 1, "size": size, "batch": 1, "nodes": 1}, kind_of(given), table=given, index=index[None], point=None
    )
    found = np.frombuffer(ctypes.string_at(addresses(made)["table"], 8 * size))
    assert found.tolist() == numbers[0].tolist()
    assert addresses(made)["point"] == 0


def addresses(made: Any) -> dict[str, int]:
    """Return what the pointers of a structure hold: to read one of bytes would follow it."""
    numbers = np.frombuffer(bytes(made), np.int64)
    return {name: int(number) for (name, _), number in zip(made._fields_, numbers, strict=True)}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ids", np.zeros((1, 2), np.int64), r"Before.ids has the shape \(1, 2\), not \(1, 3\)"),
        ("paths", np.ones((1, 1, 1), np.bool_), r"Before.paths has the shape \(1, 1, 1\), not \(1, 2, 1\)"),
        ("strengths", None, "Before.strengths is absent"),
        ("logits", torch.zeros(1, 5, 2).mT, "Before.logits is written to, and is not contiguous"),
        ("logits", np.broadcast_to(np.zeros(5, np.float32), (1, 2, 5)), "Before.logits is written to, and cannot be"),
    ],
)
def test_an_array_that_does_not_fit_its_line_is_refused(name, value, message):
    with pytest.raises(ValueError, match=message) as caught:
        before(**{name: value})
    assert not isinstance(caught.value, OtherKind)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ids", np.zeros((1, 3), np.int32)),
        ("drafted", torch.zeros(1, 1, dtype=torch.int64, device="meta")),
        ("logits", torch.zeros(1, 2, 5).double()),
    ],
)
def test_numbers_of_another_kind_are_told_apart(name, value):
    with pytest.raises(OtherKind, match=f"Before.{name} is"):
        before(**{name: value})
    with pytest.raises(OtherKind, match="neither float32 nor float64"):
        kind_of(torch.zeros(1).half())


def test_what_is_not_said_or_not_there_is_an_error():
    with pytest.raises(TypeError, match=r"Laws lacks its (table|index|point)"):
        structure(HEADERS / "verify.h", "Laws").of({"rows": 0, "size": 0, "batch": 0}, kind_of(torch.zeros(1)))
    with pytest.raises(ValueError, match="has no structure Nothing"):
        structure(HEADERS / "laws.h", "Nothing")
    with pytest.raises(ValueError, match="has no enumeration Nothing"):
        enumeration(HEADERS / "laws.h", "Nothing")
