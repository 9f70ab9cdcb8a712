"""GGUF files that cannot be: a ValueError that names the file and what is wrong, before memory is taken."""

import re
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import oracles.checkpoints.gguf.gguf_model
from oracles.checkpoints.gguf import GGUFFile
from oracles.checkpoints.gguf.storages import OTHER_STORAGES
from oracles.checkpoints.loading import load, load_trainable
from tests.support.models.gguf_files import TOKENS, Kind, family_model, tokenizer_keys, write_gguf
from tests.support.pairwise import first_of

STRING, ARRAY, UINT8, UINT32, BOOL = 8, 9, 0, 4, 7
F32, Q8_0 = 0, 8
TINY = {"num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "hidden_size": 32, "head_dim": 32, "intermediate_size": 32}
# What reading a file of a few kilobytes may take.
MOST_BYTES = 4_000_000


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def key(name: str | bytes, kind: int = UINT32, value: bytes = b"\1\0\0\0") -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str = "w", shape=(2, 4), kind: int = F32, offset: int = 0) -> bytes:
    sides = struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + struct.pack("<I", len(shape)) + sides + struct.pack("<IQ", kind, offset)


def header(*parts: bytes, tensors: int = 0, keys: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts)


def with_data(content: bytes, size: int, alignment: int = 32) -> bytes:
    return content + b"\0" * (-len(content) % alignment) + b"\0" * size


def refused(content: bytes, words: str, tmp_path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=words) as caught:
            GGUFFile(path)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)


HUGE = 2**62
FILES = {
    "empty": (b"", "no GGUF file"),
    "a short magic": (b"GG", "the magic at byte 0 takes 4 bytes, and the file ends after 2"),
    "another magic": (header(magic=b"GGML"), "begins with b'GGML', and a GGUF file with b'GGUF'"),
    "version 1": (header(version=1), "version 1; known: 2, 3"),
    "version 4": (header(version=4), "version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "huge number of tensors": (header(tensors=HUGE), f"claims {HUGE} tensors, more than the 8 bytes"),
    "huge number of keys": (header(keys=HUGE), f"claims {HUGE} keys, more than the 0 bytes"),
    "more keys than there are": (header(key("a"), keys=2), "claims 2 keys|the name of key 1|length of the name"),
    "a long name": (header(struct.pack("<Q", HUGE) + b"abcdef", keys=1), f"name of key 0 .* takes {HUGE} bytes"),
    "a name that is no text": (header(key(b"\xff\xfe\xfd"), keys=1), "name of key 0 at byte .* no UTF-8"),
    "a name of a page": (header(key("a" * 300), keys=1), "the name of key 0 has 300 characters; .* 256 at most"),
    "a tensor's too": (with_data(header(tensor("w" * 300), tensors=1), 64), "the name of tensor 0 has 300 characters"),
    "a key twice": (header(key("a"), key("a"), keys=2), "key 'a' stands there twice"),
    "an unknown type": (header(key("a", 13), keys=1), "'a' is of type 13, which is unknown"),
    "a truth value of 2": (header(key("a", BOOL, b"\2"), keys=1), "'a' is a truth value, and holds the byte 2"),
    "a long string": (header(key("a", STRING, struct.pack("<Q", HUGE)), keys=1), f"'a' at byte .* takes {HUGE}"),
    "huge number of numbers": (
        header(key("a", ARRAY, struct.pack("<IQ", UINT32, HUGE)), keys=1), f"claims {HUGE} numbers in 'a'",
    ),
    "more numbers than bytes": (
        header(key("a", ARRAY, struct.pack("<IQ", UINT32, 8) + b"\0" * 31), keys=1), "'a' at byte .* takes 32 bytes",
    ),
    "huge number of strings": (
        header(key("a", ARRAY, struct.pack("<IQ", STRING, HUGE)), keys=1), f"claims {HUGE} strings in 'a'",
    ),
    "arrays in an array": (
        header(key("a", ARRAY, struct.pack("<IQIQ", ARRAY, 1, UINT8, 0)), keys=1), "'a' is an array of arrays",
    ),
    "unknown numbers": (header(key("a", ARRAY, struct.pack("<IQ", 99, 1) + b"\0"), keys=1), "'a' is of type 99"),
    "alignment 0": (header(key("general.alignment", value=b"\0" * 4), keys=1), "general.alignment is 0; it must be"),
    "alignment 24": (header(key("general.alignment", value=b"\x18\0\0\0"), keys=1), "general.alignment is 24"),
    "alignment of text": (header(key("general.alignment", STRING, text("x")), keys=1), "general.alignment is 'x'"),
    "a tensor twice": (with_data(header(tensor(), tensor(offset=32), tensors=2), 64), "tensor 'w' stands there twice"),
    "no sides": (header(tensor(shape=()) + b"\0" * 8, tensors=1), "'w' has 0 sides; known are 1 to 4"),
    "five sides": (header(tensor(shape=(1, 1, 1, 1, 1)), tensors=1), "'w' has 5 sides"),
    "huge number of sides": (
        header(text("w") + struct.pack("<I", 2**32 - 1) + b"\0" * 16, tensors=1), "has 4294967295 sides",
    ),
    "a side of 0": (header(tensor(shape=(4, 0)), tensors=1), r"'w' has the shape \(0, 4\)"),
    "huge sides": (with_data(header(tensor(shape=(HUGE, HUGE)), tensors=1), 64), "'w' ends at byte .*, and the file"),
    "part of a block": (header(tensor(shape=(33,), kind=Q8_0), tensors=1), "Q8_0 takes rows of a multiple of 32"),
    "an unread type": (header(tensor(kind=10), tensors=1), r"'w' is of type 10 \(Q2_K\), which is not read; convert"),
    "an unknown tensor type": (header(tensor(kind=4711), tensors=1), r"'w' is of type 4711 \(unknown\)"),
    "past the end": (with_data(header(tensor(offset=32), tensors=1), 63), "'w' ends at byte .*, and the file has"),
    "far past the end": (with_data(header(tensor(offset=2**63), tensors=1), 64), "'w' ends at byte"),
    "misaligned": (with_data(header(tensor(offset=4), tensors=1), 64), "offset 4, which is no multiple of .* 32"),
    "one over another": (
        with_data(header(tensor("v", (4, 4)), tensor("w", offset=32), tensors=2), 96), "'w' begins .* inside of 'v'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_is_refused_by_name(name, tmp_path):
    refused(*FILES[name], tmp_path)


@pytest.mark.parametrize(("kind", "name"), OTHER_STORAGES.items())
def test_types_that_are_not_read_are_named(kind, name, tmp_path):
    refused(header(tensor(kind=kind), tensors=1), rf"type {kind} \({name}\)", tmp_path)


def test_versions_2_and_3_are_read_with_any_alignment(tmp_path):
    path = tmp_path / "model.gguf"
    for version in (2, 3):
        for alignment in (8, 32, 4096):
            own, second = key("general.alignment", value=struct.pack("<I", alignment)), max(32, alignment)
            content = header(own, tensor(), tensor("v", offset=second), tensors=2, keys=1, version=version)
            path.write_bytes(with_data(content, second, alignment) + np.arange(8, dtype="<f4").tobytes())
            found = GGUFFile(path).blocks("v")
            assert found.reshape(-1).view("<f4").tolist() == list(range(8))


def test_numbers_of_every_type_are_read(tmp_path):
    kinds = zip((*range(7), 10, 11, 12), "BbHhIifQqd", strict=True)
    numbers = [(kind, form, 5 if form.isupper() else -5) for kind, form in kinds]
    keys = [key(form, kind, struct.pack(f"<{form}", number)) for kind, form, number in numbers]
    (tmp_path / "model.gguf").write_bytes(header(*keys, keys=len(keys)))
    assert GGUFFile(tmp_path / "model.gguf").keys == {form: number for _, form, number in numbers}


def test_no_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no GGUF file can be read"):
        GGUFFile(tmp_path / "nothing.gguf")
    with pytest.raises(ValueError, match="neither an embedded checkpoint"):
        load(tmp_path / "nothing.gguf")
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(ValueError, match=r"no config\.json"):
        load(tmp_path / "folder.gguf")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[bytes, int]:
    """Return a small file with a tokenizer, and where its tensors begin."""
    model = family_model("llama", tie_embeddings=True, **TINY)
    path = write_gguf(
        tmp_path_factory.mktemp("whole") / "model.gguf", model, kind=Kind.Q4_1, tokenizer=tokenizer_keys(),
        general={"general.name": "tiny"},
    )  # fmt: skip
    assert load_trainable(path).vocab_size == len(TOKENS)
    file = GGUFFile(path)
    return path.read_bytes(), min(tensor.start for tensor in file.tensors.values())


@pytest.mark.parametrize("step", first_of(3, 1))
def test_a_file_cut_anywhere_is_refused(step, whole, tmp_path):
    """A cut at every third size falls into every number, and on the edges of many."""
    content, begin = whole
    path = tmp_path / "model.gguf"
    for size in [*range(0, begin, step), begin + 1, len(content) - 32]:
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match=re.escape(str(path))):
            GGUFFile(path)


def error_of(path: Path) -> str | None:
    """Return what a ValueError says of a file; None if it can be loaded."""
    try:
        load_trainable(path)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("seed", first_of(*range(4)))
def test_a_header_with_flipped_bytes_is_refused_or_read(seed, whole, tmp_path):
    content, begin = whole
    path = tmp_path / "model.gguf"
    generator = np.random.default_rng(seed)
    num_refused = 0
    tracemalloc.start()
    try:
        for at in generator.permutation(begin)[:250]:
            changed = bytearray(content)
            changed[at] ^= int(generator.integers(1, 256))
            path.write_bytes(changed)
            error = error_of(path)
            num_refused += error is not None
            assert error is None or str(path) in error
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    assert num_refused > 100


KEYS = {
    "another architecture": ({"general": {"general.architecture": "gemma"}}, "'gemma'; known: llama, qwen2, qwen3"),
    "an adapter": ({"general": {"general.type": "adapter"}}, "'general.type' is 'adapter'"),
    "a part": ({"general": {"split.count": 3}}, "one of 3 parts; join them"),
    "old blocks": ({"general": {"general.quantization_version": 1}}, "'general.quantization_version' is 1"),
    "no layers": ({"keys": {"block_count": None}}, "llama lacks 'block_count'"),
    "layers of text": ({"keys": {"block_count": "two"}}, "'block_count' is 'two'; it must be of type int"),
    "huge number of layers": ({"keys": {"block_count": 2**31}}, "num_layers is 2147483648, more than the 21 stored"),
    "more layers than stored": ({"keys": {"block_count": 3}}, r"tensor 'blk\.2\..*' is missing"),
    "fewer layers than stored": ({"keys": {"block_count": 1}}, r"tensor 'blk\.1\..*' is unexpected"),
    "huge width": ({"keys": {"embedding_length": 2**31}}, "hidden_size is 2147483648, more than"),
    "another width": ({"keys": {"embedding_length": 32}}, r"has the shape \(288, 64\), and the keys imply \(288, 32\)"),
    "huge heads": ({"keys": {"attention.key_length": 2**30, "attention.value_length": 2**30,
                             "rope.dimension_count": 2**30}}, "head_dim is"),
    "no heads": ({"keys": {"attention.head_count": 0}}, "num_heads is 0"),
    "unlike heads": ({"keys": {"attention.value_length": 16}}, "contradictory"),
    "heads of each layer": ({"keys": {"attention.head_count": [4, 4]}}, "'llama.attention.head_count' is an array"),
    "part of a head": ({"keys": {"rope.dimension_count": 16}}, "must rotate"),
    "experts": ({"keys": {"expert_count": 8}}, "'expert_count' is 8; only 0"),
    "a window": ({"keys": {"attention.sliding_window": 64}}, "'attention.sliding_window' is 64.*max_context=64"),
    "longrope": ({"keys": {"rope.scaling.type": "longrope"}}, "type' is 'longrope'; known: none, linear, yarn"),
    "a factor below 1": ({"keys": {"rope.scaling.factor": 0.5}}, r"RopeScaling\.factor is 0\.5"),
    "two factors": ({"keys": {"rope.scaling.factor": 2.0, "rope.scale_linear": 3.0}}, "contradictory"),
    "an unknown key": ({"keys": {"attention.temperature": 2.0}}, "'attention.temperature' .* is unknown"),
    "no epsilon": ({"keys": {"attention.layer_norm_rms_epsilon": None}}, "lacks 'attention.layer_norm_rms_epsilon'"),
    "an infinite base": ({"keys": {"rope.freq_base": float("inf")}}, "'rope.freq_base' is inf; it must be finite"),
    "an epsilon that is no number": ({"keys": {"attention.layer_norm_rms_epsilon": float("nan")}}, "must be finite"),
    "no embedding": ({"left_out": ["token_embd.weight"]}, "'token_embd.weight' is missing"),
    "no norm": ({"left_out": ["blk.1.ffn_norm.weight"]}, r"'blk\.1\.ffn_norm\.weight' is missing"),
    "another tensor": ({"extra": {"mystery": np.zeros(4, np.float32)}}, "'mystery' is unexpected"),
    "too few factors": (
        {"extra": {"rope_freqs.weight": np.ones(4, np.float32)}}, "factors are 4; give one for each of 16",
    ),
    "factors of 0": ({"extra": {"rope_freqs.weight": np.zeros(16, np.float32)}}, "factors are positive and finite"),
    "factors and a factor": (
        {"extra": {"rope_freqs.weight": np.ones(16, np.float32)}, "keys": {"rope.scaling.factor": 2.0}}, "no other",
    ),
    "more tokens than rows": (
        {"tokenizer": tokenizer_keys(rows=300, token_type=[1] * 300)}, "has 300 ids, and .* 288 rows",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_keys_and_tensors_that_do_not_fit_are_refused_by_name(name, tmp_path, monkeypatch):
    monkeypatch.setattr(oracles.checkpoints.gguf.gguf_model, "_fill", lambda *_: pytest.fail("weights were read"))
    changes, words = KEYS[name]
    path = write_gguf(tmp_path / "model.gguf", family_model("llama"), **changes)
    with pytest.raises(ValueError, match=words) as caught:
        load_trainable(path)
    assert str(path) in str(caught.value)


def test_a_vector_in_whole_numbers_is_refused(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", family_model("llama"))
    content = path.read_bytes()
    # Sides, type and offset follow the name; 64 numbers in F32 hold those in Q8_0.
    at = content.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    path.write_bytes(content[:at] + struct.pack("<I", Q8_0) + content[at + 4 :])
    with pytest.raises(ValueError, match=r"'output_norm\.weight' is stored as Q8_0; vectors must be floats"):
        load_trainable(path)


def test_scales_that_are_not_finite_are_refused(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", family_model("llama"), kind=Kind.Q4_1)
    start = GGUFFile(path).tensors["blk.1.ffn_up.weight"].start
    content = bytearray(path.read_bytes())
    for at in (0, 2):
        for bits in (0x7C00, 0x7E00):
            changed = bytearray(content)
            changed[start + 20 + at : start + 22 + at] = struct.pack("<H", bits)
            path.write_bytes(changed)
            with pytest.raises(ValueError, match=r"'blk\.1\.ffn_up\.weight' has a scale or minimum that is not finite"):
                load_trainable(path)
