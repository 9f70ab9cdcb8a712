"""Load a checkpoint as an oracle: embedded, published, from a Hugging Face directory or from a GGUF file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, overload

import torch
from tokenizers import Tokenizer

from oracles.checkpoints.chat_files import checkpoint_template, ends_within, give_template
from oracles.checkpoints.config_keys import errors_of, read_json
from oracles.checkpoints.embedded_folders import download_hint, embedded_folder, embedded_names, given_path, head_names
from oracles.checkpoints.gguf import PUBLISHED, GGUFFile, is_gguf, load_gguf, read_vocabulary
from oracles.checkpoints.hf_config import CheckpointShape, check_unquantised_beside, parse_config
from oracles.checkpoints.placement import (
    Arithmetic,
    Backend,
    WeightType,
    backend_of,
    check_arithmetic,
    check_context,
    check_device,
    check_weights,
    checkpoint_dtype,
    checkpoint_place,
    dtype_to_load,
)
from oracles.checkpoints.tokenizer_files import checkpoint_tokenizer
from oracles.checkpoints.weights import StoredTensors, Take, check_names, check_sizes, fill, is_there
from oracles.graphed import GraphedTransformer
from oracles.native import NativeTransformer
from oracles.transformer.blocks import check_formats
from oracles.transformer.config import TransformerConfig
from oracles.transformer.draft_vocabulary import DraftHead, give_tables, read_written_ids
from oracles.transformer.eager import Transformer
from oracles.transformer.linear import round_inputs
from specdec.theory import check_flag

LoadedOracle = Transformer | NativeTransformer | GraphedTransformer
# Returns a part of a model of that shape, on the meta device, and the share of every parameter that it holds.
Split = Callable[[TransformerConfig], tuple[Transformer, Take]]


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
    arithmetic: Arithmetic | None = ...,
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
    arithmetic: Arithmetic | None = ...,
) -> NativeTransformer: ...
@overload
def load(
    name_or_path: str | Path,
    dtype: torch.dtype | str | None = ...,
    device: torch.device | str | None = ...,
    max_context: int | None = ...,
    backend: Backend | None = ...,
    weights: WeightType | None = ...,
    bitwise: bool = ...,
    arithmetic: Arithmetic | None = ...,
) -> LoadedOracle: ...
def load(
    name_or_path: str | Path,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    max_context: int | None = None,
    backend: Backend | None = None,
    weights: WeightType | None = None,
    bitwise: bool = False,
    arithmetic: Arithmetic | None = None,
) -> LoadedOracle:
    """Return a checkpoint as an oracle, its weights packed for inference.

    Args:
        name_or_path: the name of an embedded checkpoint ("code", "code-draft") or of a published one ("smollm2", once
            ``python -m oracles.smollm2`` has fetched it); a Hugging Face directory with ``config.json``, one or several
            ``*.safetensors`` and, if it has them, ``tokenizer.json`` (without it prompts must be ids) and a chat
            template (``chat_template.jinja``, or in ``tokenizer_config.json``); or a GGUF file, see
            docs/start/gguf.md. A name wins over a folder of that name: write "./code" for the folder.
        dtype: of the arithmetic, a torch dtype or its name; None: float32 on the CPU, the file's own on CUDA.
        device: where the oracle lives; None: torch's default device.
        max_context: caps the context that the checkpoint declares.
        backend: "native" computes a pass in one call of compiled code (float32 on a CPU; weights stay as they are
            stored); "eager" computes it as torch operations (any dtype and device; weights become ``dtype``); "graphed"
            runs the same operations in a few shapes, replayed as CUDA graphs (see docs/internals/cuda.md). None:
            "graphed" on CUDA; elsewhere "native" if it can run, else "eager", with a warning if this machine could not
            build it; "graphed" also if ``bitwise`` is asked for and "eager" cannot hold it.
        weights: the type to which linear layers and a tied embedding are rounded, to the nearest; None: they stay as
            stored. A float dtype; "int8", with a scale for each output; "int4", with a scale for each 32 inputs of an
            output; "int8-dynamic", as "int8" with the inputs of products rounded to int8 too, a scale for each row
            (float32 arithmetic on a CPU only, except the sums, which are exact); "q4_0-int8", as GGUF's Q4_0 in
            ``arithmetic="int8"``, 4.5 bits each, for drafts trained with this rounding. See ``oracles.quantisation``.
            The native pass reads rounded weights directly; other backends first widen them to ``dtype``.
        bitwise: whether scores must be bit for bit independent of the width of a pass, its tree and its batch, so that
            every lossless run writes plain decoding's tokens. "native" always holds this, and so does "eager" in
            float32 on a CPU; "graphed" takes slower passes for it (docs/internals/cuda.md). False: no such demand.
        arithmetic: of products with weights that a GGUF file stores as whole numbers. "float32": of the dequantised
            weights; "int8": of whole numbers, with inputs rounded to 8 bits in groups, as ``QuantisedWeight.product``
            defines it (float32 between products, on a CPU only). None: "float32".

    Returns:
        The oracle; its ``backend`` says which one was taken. Its vocabulary is the tokenizer's if there is one: logits
        of padding are cut. Its ``chat_template`` is the directory's or file's, or None. Its ``eos_ids`` are those of
        ``generation_config.json``, else of ``config.json`` (of a GGUF file: its ends of text, turn and message), and
        the token that the template writes after an answer; an id beyond the vocabulary can never be drawn and is left
        out. Other sampling settings of ``generation_config.json`` (temperature, repetition penalty) are ignored.

    Raises:
        ValueError: an unknown name, architecture, config key, dtype, device, backend, type of weights or arithmetic; a
            ``max_context`` that is not a positive integer; a ``bitwise`` that is not a bool; a published model that was
            not fetched; a backend that cannot run here; ``bitwise`` with a backend that cannot hold it; weights that
            cannot be rounded so, or not with this dtype or device; an arithmetic that the weights cannot have; a size
            that no tensor confirms; a missing, unexpected or misshapen tensor; an index that leaves the folder; pickled
            weights. The message names the file and the key, the layer or the argument.

    Warns:
        EndsBeyond: all ids that end a text lie beyond the vocabulary.

    Cost: memory of the weights once, plus one stored tensor while loading. The first native oracle on a machine waits
        for the compiler, about fifteen seconds.
    """
    where, asked = checkpoint_place(device), checkpoint_dtype(dtype)
    check_context(max_context)
    check_flag("bitwise", bitwise)
    check_weights(weights, asked, where)
    check_arithmetic(arithmetic, weights, asked, where)
    place = find_checkpoint(name_or_path)
    chosen = backend_of(backend, asked, where, bitwise)
    check_device(where)
    as_stored = chosen == "native" or weights is not None or arithmetic == "int8"
    model = checkpoint_model(place, asked, where, max_context, as_stored)
    computing = dtype_to_load(asked, model.dtype, where)
    if weights is not None:
        model.dequantise().store(weights)
    if arithmetic == "int8":
        with errors_of(f"{place}: arithmetic='int8' cannot be had"):
            round_inputs(model)
            check_formats(model.model, chosen == "native")
    if chosen == "native":
        return _check_bitwise(NativeTransformer(model), bitwise)
    packed = model.dequantise().to(computing).eval().pack()
    return GraphedTransformer(packed, bitwise=bitwise) if chosen == "graphed" else _check_bitwise(packed, bitwise)


def _check_bitwise(oracle: LoadedOracle, bitwise: bool) -> LoadedOracle:
    """Return the oracle, after checking that its bits do not depend on the pass if ``bitwise`` is True.

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
    """Return a checkpoint's transformer for training: parameters as Hugging Face lays them out, nothing packed.

    ``Transformer.pack`` makes it an oracle. Arguments and errors are those of ``load``; ``dtype`` is the weights'.
    """
    where, asked = checkpoint_place(device), checkpoint_dtype(dtype)
    check_context(max_context)
    check_device(where)
    return checkpoint_model(find_checkpoint(name_or_path), asked, where, max_context, as_stored=False)


def checkpoint_model(
    folder: Path,
    dtype: torch.dtype | None,
    device: torch.device,
    max_context: int | None,
    as_stored: bool,
    split: Split | None = None,
) -> Transformer:
    """Return a checkpoint's transformer with its tokenizer and EOS ids; with ``split``, a part of the transformer."""
    if folder.is_file():
        model = load_gguf(folder, device, max_context)
        return model if as_stored else model.dequantise().to(dtype_to_load(dtype, model.dtype, device))
    values = read_json(folder / "config.json")
    check_unquantised_beside(folder)
    tokenizer = checkpoint_tokenizer(folder / "tokenizer.json")
    size, source = None if tokenizer is None else num_ids(tokenizer), str(folder / "config.json")
    shape, lender = parse_config(values, source, size, max_context), None
    if (lent := values.get("vocabulary_of")) is not None:
        lender = _lender(folder, lent, tokenizer)
        shape = parse_config(values, source, lender.vocab_size, max_context)
    eos_ids = _eos_ids(folder, values, shape.config.vocab_size)
    model = _load_weights(folder, shape, lender, dtype, device, as_stored, split)
    if lender is not None:
        model.tokenizer, model.eos_ids, model.chat_template = lender.tokenizer, lender.eos_ids, lender.chat_template
        return model
    model.tokenizer, model.eos_ids = tokenizer, eos_ids
    give_template(model, checkpoint_template(folder, tokenizer))
    return model


def _lender(folder: Path, name: str, tokenizer: Tokenizer | None) -> Transformer:
    """Return the model whose tokens and embeddings a checkpoint reads; the checkpoint has no tokenizer of its own.

    Raises:
        ValueError: that model is not here, or itself reads the tokens of another one.
    """
    with errors_of(f"{folder} reads the vocabulary_of {name!r}"):
        place = find_checkpoint(name)
        if place.is_dir() and read_json(place / "config.json").get("vocabulary_of") is not None:
            raise ValueError(f"{place} has no vocabulary of its own either")
        if tokenizer is not None:
            raise ValueError("there is a tokenizer.json of its own too; remove one of them")
        return checkpoint_model(place, None, torch.device("cpu"), None, as_stored=True)


def _load_weights(
    folder: Path,
    shape: CheckpointShape,
    lender: Transformer | None,
    dtype: torch.dtype | None,
    device: torch.device,
    as_stored: bool,
    split: Split | None,
) -> Transformer:
    """Return the model with its weights, after checking all names and shapes; the files are closed afterwards."""
    stored = StoredTensors(folder)
    config, few = shape.config, shape.config.draft_vocab_size
    written = None if few is None else read_written_ids(stored, few, config.vocab_size)
    if lender is not None:
        give_tables(stored, lender.model.embed_tokens.weight, written)
    check_sizes(config, stored.shapes, str(folder / "config.json"), shape.stored_positions)
    with torch.device("meta"):
        model = Transformer(config, seed=None)
    found = check_names(model, shape, stored)
    kept = stored.dtype(found["model.embed_tokens.weight"].key)
    filled = None if as_stored else dtype_to_load(dtype, kept, device)
    if split is None:
        fill(model, found, stored, filled, device)
    else:
        with torch.device("meta"):
            model, take = split(config)
        fill(model, found, stored, filled, device, take)
    if isinstance(model.lm_head, DraftHead) and written is not None:
        model.lm_head.target_ids = written.to(device)
    return model


def _locate(name_or_path: str | Path) -> Path:
    """Return the path of an embedded or published model with this name, else the given path.

    Raises:
        ValueError: a published model was not fetched (the message has the command); or as in ``given_path``.
    """
    if isinstance(name_or_path, str) and name_or_path in PUBLISHED:
        return PUBLISHED[name_or_path].locate()
    return embedded_folder(name_or_path) or given_path(name_or_path)


def find_checkpoint(name_or_path: str | Path) -> Path:
    """Return a checkpoint's directory or GGUF file by its name or path. Raises ValueError if there is none."""
    place = _locate(name_or_path)
    if is_gguf(place):
        return place
    if name_or_path in head_names():
        raise ValueError(f"{name_or_path!r} is a head, which drafts for a model: give it to oracles.load_head")
    if not place.is_dir():
        known = f"({', '.join(embedded_names()) or 'there are none'}) nor a published one ({', '.join(PUBLISHED)})"
        raise ValueError(
            f"{str(name_or_path)!r} is neither an embedded checkpoint {known}, neither a directory nor a GGUF file"
            f"{download_hint(name_or_path)}"
        )
    if not (place / "config.json").is_file():
        raise ValueError(f"{place} has no config.json; give a Hugging Face checkpoint directory")
    return place


def checkpoint_folder(name_or_path: str | Path) -> Path:
    """Return a checkpoint's directory by its name or path. Raises ValueError if there is none, or a GGUF file."""
    place = find_checkpoint(name_or_path)
    if is_gguf(place):
        raise ValueError(f"{place} is a GGUF file, and a Hugging Face directory is needed here")
    return place


def load_tokenizer(name_or_path: str | Path) -> Tokenizer:
    """Return the tokenizer of a named checkpoint, a directory, a ``tokenizer.json`` or a GGUF file.

    A draft that reads another checkpoint's vocabulary has that checkpoint's tokenizer.

    Raises:
        ValueError: there is none, or the file holds no tokenizer.
    """
    path = _locate(name_or_path)
    tokenizer = _tokenizer_at(path)
    if tokenizer is None and (path / "config.json").is_file():
        lender = read_json(path / "config.json").get("vocabulary_of")
        tokenizer = _tokenizer_at(_locate(lender)) if isinstance(lender, str) else None
    if tokenizer is None:
        known = ", ".join(embedded_names())
        words = f"{str(name_or_path)!r} has no tokenizer: give a tokenizer.json, its directory, or {known}"
        raise ValueError(words + download_hint(name_or_path))
    return tokenizer


def _tokenizer_at(path: Path) -> Tokenizer | None:
    if is_gguf(path):
        return read_vocabulary(GGUFFile(path)).tokenizer
    return checkpoint_tokenizer(path / "tokenizer.json" if path.is_dir() else path)


def num_ids(tokenizer: Tokenizer) -> int:
    """Return one more than the largest id of a tokenizer; ids may have gaps."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)


def _eos_ids(folder: Path, values: dict[str, Any], vocab_size: int) -> tuple[int, ...]:
    """Return the ids that end a text, from ``generation_config.json`` if it has them; a number or a list there."""
    path = folder / "generation_config.json"
    generation = read_json(path) if is_there(path) else {}
    source, found = path, generation.get("eos_token_id")
    if found is None:
        source, found = folder / "config.json", values.get("eos_token_id")
    ids = [] if found is None else found if isinstance(found, list) else [found]
    if not all(type(i) is int for i in ids):
        raise ValueError(f"{source}: 'eos_token_id' is {found!r}; it must be an id or a list of ids")
    return ends_within(ids, vocab_size, source)
