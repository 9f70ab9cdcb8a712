"""Load a checkpoint, embedded or from a Hugging Face directory, as an oracle."""

import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, overload

import torch
from tokenizers import Tokenizer

from oracles.chat_files import checkpoint_template, give_template
from oracles.graphed import GraphedTransformer
from oracles.hf_config import CheckpointShape, parse_config
from oracles.native import NativeMissing, NativeTransformer, NativeUnavailable
from oracles.quantisation import INT8_DYNAMIC
from oracles.transformer import Transformer
from oracles.weights import StoredTensors, check_names, check_sizes, fill, is_there

EMBEDDED = Path(__file__).parent / "embedded"
DTYPES = {str(t).removeprefix("torch."): t for t in (torch.float64, torch.float32, torch.bfloat16, torch.float16)}

Backend = Literal["native", "eager", "graphed"]
WeightType = Literal["float32", "bfloat16", "float16", "int8", "int4", "int8-dynamic"]
LoadedOracle = Transformer | NativeTransformer | GraphedTransformer


def embedded_names() -> tuple[str, ...]:
    """Return the names of the embedded checkpoints."""
    return tuple(sorted(path.parent.name for path in EMBEDDED.glob("*/config.json")))


@overload
def load(
    name_or_path: str | Path,
    dtype: torch.dtype | str | None = ...,
    device: torch.device | str | None = ...,
    max_context: int | None = ...,
    *,
    backend: Literal["eager"],
    weights: WeightType | None = ...,
    bitwise: bool = ...,
) -> Transformer: ...
@overload
def load(
    name_or_path: str | Path,
    dtype: torch.dtype | str | None = ...,
    device: torch.device | str | None = ...,
    max_context: int | None = ...,
    *,
    backend: Literal["native"],
    weights: WeightType | None = ...,
    bitwise: bool = ...,
) -> NativeTransformer: ...
@overload
def load(
    name_or_path: str | Path,
    dtype: torch.dtype | str | None = ...,
    device: torch.device | str | None = ...,
    max_context: int | None = ...,
    *,
    backend: Literal["graphed"],
    weights: WeightType | None = ...,
    bitwise: bool = ...,
) -> GraphedTransformer: ...
@overload
def load(
    name_or_path: str | Path,
    dtype: torch.dtype | str | None = ...,
    device: torch.device | str | None = ...,
    max_context: int | None = ...,
    backend: Backend | None = ...,
    weights: WeightType | None = ...,
    bitwise: bool = ...,
) -> LoadedOracle: ...
def load(
    name_or_path: str | Path,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    max_context: int | None = None,
    backend: Backend | None = None,
    weights: WeightType | None = None,
    bitwise: bool = False,
) -> LoadedOracle:
    """Return a checkpoint as an oracle, its weights packed for inference.

    Args:
        name_or_path: the name of an embedded checkpoint ("code", "code-draft"), or a Hugging Face directory with
            ``config.json``, one or several ``*.safetensors`` and, if it has them, ``tokenizer.json`` (without it
            prompts must be ids) and a chat template (``chat_template.jinja``, or in ``tokenizer_config.json``). An
            embedded name wins over a folder of that name: write "./code" for the folder.
        dtype: of the arithmetic, a torch dtype or its name; None: float32 on the CPU, the file's own on CUDA.
        device: where the oracle lives; None: torch's default device.
        max_context: caps the context that the checkpoint declares.
        backend: "native" computes a pass in one call of compiled code (float32 on a CPU; weights stay as they are
            stored); "eager" as torch operations (any dtype and device; weights become ``dtype``); "graphed" as the same
            operations in few shapes, which are replayed as CUDA graphs (see docs/cuda.md). None: "native" if it can
            run, else "eager", with a warning if this machine could not build it.
        weights: what linear layers and a tied embedding are rounded to, to the nearest; None: nothing, they stay as
            they are stored. A float dtype; "int8", with a scale for each output; "int4", with one for each 32 inputs of
            an output; "int8-dynamic", as "int8", and inputs of products are rounded to int8 too, with a scale for each
            row (float32 arithmetic on a CPU only, but for the sums, which are exact). See ``oracles.quantisation``. The
            native pass reads them as they are; others read the numbers that they stand for, as ``dtype``.
        bitwise: whether scores must not depend on the width of a pass, its tree and its batch, bit for bit, so that
            every lossless run writes plain decoding's tokens. "native" and, in float32 on a CPU, "eager" hold that
            anyway; "graphed" takes slower passes for it (docs/cuda.md). False: nothing is asked for.

    Returns:
        The oracle; its ``backend`` says which it is. Its vocabulary is the tokenizer's if there is one: logits of
        padding are cut. Its ``chat_template`` is the directory's, or None. Its ``eos_ids`` are those of
        ``generation_config.json``, else of ``config.json``, and the token that the template writes after an answer; an
        id beyond the vocabulary, which can never be drawn, is left out.

    Raises:
        ValueError: an unknown name, architecture, config key, dtype, backend, type of weights; a backend that cannot
            run here; bits that cannot be kept; weights that cannot be rounded so, or not with this dtype or device; a
            size that no tensor bears out; a missing, unexpected or misshapen tensor; an index that leaves the folder;
            pickled weights. The message names the file and the key, the layer or the argument.

    Cost: the weights are resident once; loading needs one stored tensor more. The first native oracle on a machine
        waits for the compiler, about fifteen seconds.
    """
    folder, where = checkpoint_folder(name_or_path), checkpoint_place(device)
    _check_context(max_context)
    _check_weights(weights, checkpoint_dtype(dtype), where)
    chosen = _backend_of(backend, checkpoint_dtype(dtype), where, bitwise)
    model = _model(folder, dtype, where, max_context, as_stored=chosen == "native" or weights is not None)
    arithmetic = _dtype(dtype, model.dtype, where)
    if weights is not None:
        model.store(weights)
    if chosen == "native":
        return _checked(NativeTransformer(model), bitwise)
    packed = model.dequantise().to(arithmetic).eval().pack()
    return GraphedTransformer(packed, bitwise=bitwise) if chosen == "graphed" else _checked(packed, bitwise)


def _checked(oracle: LoadedOracle, bitwise: bool) -> LoadedOracle:
    """Return an oracle whose bits do not depend on the pass, if that is asked for.

    Raises:
        ValueError: they do.
    """
    if bitwise and not oracle.bitwise:
        raise ValueError(
            f"bitwise is True, and the check at load found that the bits of backend {oracle.backend!r} depend on the "
            "pass on this machine: give backend='graphed'"
        )
    return oracle


def load_trainable(
    name_or_path: str | Path,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    max_context: int | None = None,
) -> Transformer:
    """Return a checkpoint's transformer as it trains: parameters as Hugging Face lays them out, nothing packed.

    ``Transformer.pack`` makes an oracle of it. Arguments and errors as of ``load``; the dtype is that of the weights.
    """
    folder, where = checkpoint_folder(name_or_path), checkpoint_place(device)
    _check_context(max_context)
    return _model(folder, dtype, where, max_context, as_stored=False)


def checkpoint_place(device: torch.device | str | None) -> torch.device:
    """Return the device of that name; None: torch's default device."""
    return torch.get_default_device() if device is None else torch.device(device)


def _check_context(max_context: int | None) -> None:
    if max_context is not None and max_context < 1:
        raise ValueError(f"max_context is {max_context}; give at least 1, or None for the checkpoint's own")


def _check_weights(weights: str | None, dtype: torch.dtype | None, device: torch.device) -> None:
    """Refuse a type of weights that is unknown, or that another arithmetic than float32 on a CPU cannot have.

    Raises:
        ValueError: the message names the argument and what to give.
    """
    if weights not in (None, *get_args(WeightType)):
        known = ", ".join(map(repr, get_args(WeightType)))
        raise ValueError(f"weights is {weights!r}; choose one of {known}, or None for weights as they are stored")
    if weights != INT8_DYNAMIC.name or (device.type == "cpu" and dtype in (None, torch.float32)):
        return
    has = f"dtype is {str(dtype).removeprefix('torch.')!r}" if dtype else "dtype is the file's own"
    raise ValueError(
        f"weights={weights!r} needs float32 arithmetic on a CPU, and {has}, device {str(device)!r}: give "
        "dtype='float32' and device='cpu', or other weights"
    )


def _model(
    folder: Path, dtype: torch.dtype | str | None, device: torch.device, max_context: int | None, as_stored: bool
) -> Transformer:
    """Return a checkpoint's transformer with its tokenizer and the ids that end a text."""
    values = _read_json(folder / "config.json")
    tokenizer = checkpoint_tokenizer(folder / "tokenizer.json")
    size = None if tokenizer is None else 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    shape = parse_config(values, str(folder / "config.json"), size, max_context)
    eos_ids = _eos_ids(folder, values, shape.config.vocab_size)
    model = _filled(folder, shape, dtype, device, as_stored)
    model.tokenizer, model.eos_ids = tokenizer, eos_ids
    give_template(model, checkpoint_template(folder, tokenizer))
    return model


def _backend_of(backend: Backend | None, dtype: torch.dtype | None, device: torch.device, bitwise: bool) -> Backend:
    """Decide between the backends.

    Raises:
        ValueError: an unknown backend, "native" if it cannot run here, or "eager" if it must keep bits and cannot.
    """
    if backend not in (None, *get_args(Backend)):
        raise ValueError(f"backend is {backend!r}; choose one of {', '.join(map(repr, get_args(Backend)))}, or None")
    if backend == "graphed":
        return backend
    other = None
    if device.type != "cpu":
        other = f"device is {str(device)!r}"
    elif dtype not in (None, torch.float32):
        other = f"dtype is {str(dtype).removeprefix('torch.')!r}"
    if backend == "eager" and bitwise and other is not None:
        raise ValueError(
            f"bitwise is True, backend 'eager' keeps bits in float32 on a CPU only, and {other}: give backend='graphed'"
        )
    if backend == "eager":
        return backend
    reason = None if other is None else f"it computes in float32 on a CPU, and {other}"
    if other is None:
        try:
            NativeTransformer.check()
        except NativeUnavailable as error:
            reason = str(error)
    if reason is not None and backend == "native":
        raise ValueError(f"backend 'native' cannot run: {reason}; choose 'eager', or None")
    if reason is not None and other is None:
        _warn_once(reason)
    if reason is None:
        return "native"
    return "graphed" if bitwise and other is not None else "eager"


@cache
def _warn_once(reason: str) -> None:
    warnings.warn(f"passes run eagerly, several times slower: {reason}", NativeMissing, stacklevel=4)


def _filled(
    folder: Path, shape: CheckpointShape, dtype: torch.dtype | str | None, device: torch.device, as_stored: bool
) -> Transformer:
    """Return the model with its weights, after checking all names and shapes; the files are closed again."""
    stored = StoredTensors(folder)
    check_sizes(shape, stored)
    with torch.device("meta"):
        model = Transformer(shape.config, seed=None)
    found = check_names(model, shape, stored)
    kept = stored.dtype(found["model.embed_tokens.weight"].key)
    fill(model, found, stored, None if as_stored else _dtype(dtype, kept, device), device)
    return model


def checkpoint_folder(name_or_path: str | Path) -> Path:
    """Return the directory of a checkpoint by its embedded name or its path, as ``load`` finds it."""
    if isinstance(name_or_path, str) and name_or_path in embedded_names():
        return EMBEDDED / name_or_path
    folder = Path(name_or_path)
    if not folder.is_dir():
        known = ", ".join(embedded_names()) or "there are none"
        raise ValueError(f"{str(name_or_path)!r} is neither an embedded checkpoint ({known}) nor a directory")
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} has no config.json; give a Hugging Face checkpoint directory")
    return folder


def load_tokenizer(name_or_path: str | Path) -> Tokenizer:
    """Return the tokenizer of an embedded checkpoint, of a directory with ``tokenizer.json``, or of such a file.

    Raises:
        ValueError: there is none, or the file is no tokenizer.
    """
    embedded = isinstance(name_or_path, str) and name_or_path in embedded_names()
    path = EMBEDDED / name_or_path if embedded else Path(name_or_path)
    tokenizer = checkpoint_tokenizer(path / "tokenizer.json" if path.is_dir() else path)
    if tokenizer is None:
        known = ", ".join(embedded_names())
        raise ValueError(f"{str(name_or_path)!r} has no tokenizer: give a tokenizer.json, its directory, or {known}")
    return tokenizer


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no JSON object")
    return content


def checkpoint_tokenizer(path: Path) -> Tokenizer | None:
    """Return the tokenizer of a file, without truncation and padding; None if there is no file.

    Raises:
        ValueError: the file holds no tokenizer.
    """
    if not is_there(path):
        return None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{path} is no tokenizer: {error}") from error
    # Files carry these settings over from training; a prompt is neither cut nor padded.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def checkpoint_dtype(asked: torch.dtype | str | None) -> torch.dtype | None:
    """Return a dtype by its name.

    Raises:
        ValueError: an unknown one.
    """
    if asked is None:
        return None
    name = str(asked).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"dtype is {asked!r}; choose one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _dtype(asked: torch.dtype | str | None, stored: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype to load in: the one asked for, else float32 on the CPU and the stored one elsewhere."""
    default = torch.float32 if device.type == "cpu" else stored
    return checkpoint_dtype(asked) or default


def _eos_ids(folder: Path, values: dict[str, Any], vocab_size: int) -> tuple[int, ...]:
    """Return the ids that end a text: of ``generation_config.json`` first, a number or a list."""
    path = folder / "generation_config.json"
    generation = _read_json(path) if is_there(path) else {}
    source, found = path, generation.get("eos_token_id")
    if found is None:
        source, found = folder / "config.json", values.get("eos_token_id")
    ids = [] if found is None else found if isinstance(found, list) else [found]
    if not all(type(i) is int for i in ids):
        raise ValueError(f"{source}: 'eos_token_id' is {found!r}; it must be an id or a list of ids")
    return tuple(dict.fromkeys(i for i in ids if 0 <= i < vocab_size))
