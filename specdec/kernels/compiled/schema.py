"""What crosses to C++: structures whose fields are read from the headers, and arrays that are checked against them.

A field is declared by its line in a header alone::

    const int64_t* parents;  // [batch][width] or null: chains

The type is that of the array's numbers (``void``: float32 or float64, whichever the call is in); what is not ``const``
is written to. Sizes are names of sizes of the call, or numbers; "or null" lets an array be absent.
"""

import ctypes
import re
from collections.abc import Callable, Mapping
from functools import cache
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = Tensor | NDArray[Any]

# Typed by what it is given here: a cast at every use would be one more call of Python.
_first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer


def place(array: NDArray[Any]) -> int:
    """Return the address of a contiguous array ``[...]``, which must outlive its use.

    Asking numpy for it costs about a microsecond, and several after a pass; asking ctypes costs less.

    Raises:
        TypeError: the array can be written, and is not contiguous.
    """
    if array.flags.writeable and array.size:
        return ctypes.addressof(_first_byte(array))
    return array.ctypes.data


class Kind(NamedTuple):
    """A kind of numbers, as numpy and torch name it."""

    of_arrays: np.dtype[Any]
    of_tensors: torch.dtype


_KINDS = {
    "int64_t": Kind(np.dtype(np.int64), torch.int64),
    "int32_t": Kind(np.dtype(np.int32), torch.int32),
    "uint8_t": Kind(np.dtype(np.bool_), torch.bool),
    "double": Kind(np.dtype(np.float64), torch.float64),
    "float": Kind(np.dtype(np.float32), torch.float32),
}
_NUMBERS: dict[str, Any] = {
    "int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "double": ctypes.c_double, "float": ctypes.c_float
}  # fmt: skip
_READ = ("int64_t", "uint8_t", "double", "void")  # what may be handed over as bytes
_FLOATS = {kind: _KINDS[name] for name in ("float", "double") for kind in _KINDS[name]}


class OtherKind(ValueError):
    """Numbers are of another kind than compiled code reads, or lie elsewhere."""


class Array(NamedTuple):
    """What an array of a structure must be.

    Attributes:
        kind: of its numbers; None: that of the call's floats.
        shape_of: returns its shape, given the sizes of the call by name; a number for one dimension.
        is_optional: it may be absent.
        is_written: it is written to, so that a copy will not do.
    """

    kind: Kind | None
    shape_of: Callable[[Mapping[str, int]], Any]
    is_optional: bool
    is_written: bool


_SMALL = 4096  # bytes; copying this many costs less than asking numpy for an address
LATER: Any = object()  # in place of an array that ``Crossing.fill`` brings


class Crossing(ctypes.Structure):
    """A structure of a header; see ``structure``.

    Attributes:
        members: its fields by name, but for ``is_double``: what an array must be; None for numbers and structures.
        neutral: the numbers that fields have unless they are given, if the header says so.
        tells_kind: whether it has a field ``is_double``.
        kept: what it points to, which must not go before it does.
    """

    members: ClassVar[dict[str, Array | None]] = {}
    neutral: ClassVar[dict[str, float]] = {}
    tells_kind: ClassVar[bool] = False
    kept: list[Any]

    @classmethod
    def of(cls, sizes: Mapping[str, int], floats: Kind | None, /, **values: Any) -> Any:
        """Return the structure of some values: arrays, nested structures and numbers; sizes fill fields of their names.

        Args:
            sizes: of the call, by name.
            floats: the kind of its floats; None: it is not known yet, and none of them is given.
            values: of the fields, LATER for an array that is not known yet.

        Raises:
            ValueError: an array has another shape, or is absent though it must not be, or cannot be written to.
            OtherKind: an array's numbers are of another kind.
            TypeError: a field has no value.

        Cost: half a microsecond an array.
        """
        for name in cls.members.keys() - values.keys():
            if cls.members[name] is not None or name not in sizes:
                raise TypeError(f"{cls.__name__} lacks its {name}")
            values[name] = sizes[name]
        made = cls()
        made.kept = []
        made.fill(sizes, floats, **values)
        return made

    def fill(self, sizes: Mapping[str, int], floats: Kind | None, /, **values: Any) -> None:
        """Set some fields; arguments and errors as in ``of``."""
        if self.tells_kind:
            self.is_double = floats is _KINDS["double"]
        self.kept += values.values()
        for name, value in values.items():
            array = self.members[name]
            if array is None:
                setattr(self, name, value)
                continue
            kind, shape_of, is_optional, is_written = array
            if value is LATER:
                continue
            if value is None and is_optional:
                setattr(self, name, None)
                continue
            kind, wanted = kind or floats, shape_of(sizes)
            assert kind is not None
            if not isinstance(wanted, tuple):
                wanted = (wanted,)
            # The two usual cases; anything else is looked at closely.
            if isinstance(value, Tensor):
                if value.dtype is kind[1] and value.shape == wanted and value.is_cpu and value.is_contiguous():
                    setattr(self, name, value.data_ptr())
                    continue
            elif value is None or is_written or value.nbytes > _SMALL:
                pass
            elif value.dtype == kind[0] and value.shape == wanted:
                setattr(self, name, value.tobytes())
                continue
            value = _whole(f"{type(self).__name__}.{name}", value, kind, wanted, is_written)
            self.kept.append(value)
            setattr(self, name, value.data_ptr() if isinstance(value, Tensor) else place(value))


def _whole(where: str, value: Numbers | None, kind: Kind, wanted: tuple[int, ...], is_written: bool) -> Numbers:
    """Return an array that fits its line, with numbers that lie side by side: as it is, or a copy.

    A line with one size takes that many numbers in any shape.
    """
    if value is None:
        raise ValueError(f"{where} is absent")
    if value.dtype not in kind or (isinstance(value, Tensor) and not value.is_cpu):
        raise OtherKind(f"{where} is {value.dtype} on {value.device}, and {kind.of_arrays} on the CPU is read")
    if value.shape != wanted and not (len(wanted) == 1 and prod(value.shape) == wanted[0]):
        raise ValueError(f"{where} has the shape {tuple(value.shape)}, not {wanted}")
    if is_written and not isinstance(value, Tensor) and not value.flags.writeable:
        raise ValueError(f"{where} is written to, and cannot be")
    if value.is_contiguous() if isinstance(value, Tensor) else value.flags.c_contiguous:
        return value
    if is_written:
        raise ValueError(f"{where} is written to, and is not contiguous")
    return value.contiguous() if isinstance(value, Tensor) else np.ascontiguousarray(value)


def kind_of(numbers: Numbers) -> Kind:
    """Return the kind of float numbers. Raises OtherKind if compiled code does not read it."""
    if numbers.dtype not in _FLOATS:
        raise OtherKind(f"{numbers.dtype} is neither float32 nor float64")
    return _FLOATS[numbers.dtype]


_CALLBACK = re.compile(r"void \(\*(\w+)\)\((int64_t \w+, )*int64_t \w+\);")
_FUNCTION = re.compile(r"\w+ \(\*(\w+)\)\(")
_SHAPE = re.compile(r"\s*((?:\[(?:\w+|\w+ - \d+)\])+)( or null)?")


class _FieldDeclaration(NamedTuple):
    """A field as a header declares it.

    Attributes:
        name: of the field.
        kind: its type, or that of what it points to.
        is_pointer, is_const: what is said of it beside that.
        value: what it is unless it is given, "" for nothing.
        comment: after it.
    """

    name: str
    kind: str
    is_pointer: bool
    is_const: bool
    value: str
    comment: str


def _declarations(header: Path, structure: str) -> list[_FieldDeclaration]:
    """Return the fields of a structure, which end with the first blank line.

    Raises:
        ValueError: neither the header nor one beside it that it includes has a structure of that name.
    """
    body = _body(header, rf"^struct {structure} {{\n(.*?)^(?:}};)?$")
    if body is None:
        raise ValueError(f"{header} has no structure {structure}")
    fields: list[_FieldDeclaration] = []
    for line in body.splitlines():
        code, _, comment = (part.strip() for part in line.partition("//"))
        function = _FUNCTION.match(code)
        if function is not None:
            fields.append(_FieldDeclaration(function[1], code, True, False, "", comment))
            continue
        words = code.removesuffix(";").replace("*", " * ").replace(",", " , ").split()
        kind, *rest = [word for word in words if word != "const"] or [""]
        for one in " ".join(rest).split(" , ") if kind else ():
            declarator, _, value = one.partition(" = ")
            *stars, name = declarator.split()
            fields.append(_FieldDeclaration(name, kind, bool(stars), words[0] == "const", value, comment))
    return fields


def fields_of(header: Path, name: str, known: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the ``_fields_`` of a structure of a header.

    Args:
        header, name: of the structure; see ``structure``.
        known: the classes of the structures in it, by name.

    Returns:
        Numbers and structures as they are, a function of integers as its type, and other pointers as addresses. A
        pointer to numbers that are only read also takes bytes, which the structure keeps.
    """
    return [(field.name, _ctype(field, known)) for field in _declarations(header, name)]


def _ctype(field: _FieldDeclaration, known: Mapping[str, Any]) -> Any:
    if field.is_pointer:
        if _CALLBACK.match(field.kind):
            return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * field.kind.count("int64_t"))
        return ctypes.c_char_p if field.is_const and field.kind in _READ else ctypes.c_void_p
    return _NUMBERS.get(field.kind) or known[field.kind]


@cache
def structure(header: Path, name: str) -> Any:
    """Return the class of a structure, a ``Crossing`` with the fields that the header's lines declare.

    Raises:
        ValueError: neither the header nor one beside it that it includes has a structure of that name.
    """
    declarations = _declarations(header, name)
    nested = {one.kind for one in declarations if not one.is_pointer} - _NUMBERS.keys()
    fields = fields_of(header, name, {kind: structure(header, kind) for kind in nested})
    shapes = {one.name: _SHAPE.match(one.comment) for one in declarations if one.is_pointer}
    members = {one.name: None for one in declarations if not one.is_pointer} | {
        one.name: _array_of(one, shape) for one in declarations if (shape := shapes.get(one.name)) is not None
    }
    neutral = {one.name: float(one.value) for one in declarations if one.value}
    tells_kind = members.pop("is_double", LATER) is None
    named = {"_fields_": fields, "members": members, "neutral": neutral, "tells_kind": tells_kind}
    return type(name, (Crossing,), named)


def _array_of(field: _FieldDeclaration, shape: re.Match[str]) -> Array:
    return Array(_KINDS.get(field.kind), _shape_of(shape[1]), shape[2] is not None, not field.is_const)


@cache
def enumeration(header: Path, name: str) -> dict[str, int]:
    """Return the names of an enumeration of a header, or of one beside it that it includes, and their numbers.

    Raises:
        ValueError: there is none of that name.
    """
    body = _body(header, rf"enum {name} : \w+ {{(.*?)}};")
    if body is None:
        raise ValueError(f"{header} has no enumeration {name}")
    numbers: dict[str, int] = {}
    for part in re.sub(r"//.*", "", body).split(","):
        if part.strip():
            word, _, number = part.partition("=")
            numbers[word.strip()] = int(number) if number else max(numbers.values(), default=-1) + 1
    return numbers


def _body(header: Path, pattern: str) -> str | None:
    """Return what a pattern's group finds in a header, or in one beside it that it includes."""
    text = header.read_text(encoding="utf-8")
    found = re.search(pattern, text, re.M | re.S)
    if found is not None:
        return found[1]
    included = (header.parent / file for file in re.findall(r'^#include "(.*)"$', text, re.M))
    return next((body for file in included if file.exists() and (body := _body(file, pattern)) is not None), None)


def _shape_of(text: str) -> Callable[[Mapping[str, int]], Any]:
    """Return what makes a shape of ``[batch][width - 1][2]``, given the sizes by name; a number if it has one part."""
    parts = text[1:-1].split("][")
    if all(part.isidentifier() for part in parts):
        return itemgetter(*parts)
    split = [(name, int(less or 0)) for name, _, less in (part.partition(" - ") for part in parts)]
    return lambda sizes: tuple([int(name) if name.isdigit() else sizes[name] - less for name, less in split])
