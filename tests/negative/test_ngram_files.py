"""What ``NGram.load`` refuses: a broken file is a ValueError that names it, before anything of its sizes is made."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from drafts import NGram
from specdec.drafting import NGramModel

CORPUS = [[0, 1, 2, 0, 1, 3, 0, 1, 2, 4], [5, 5, 5, 0, 1], [2]]
META = {"order": "3", "vocab_size": "6"}
Arrays = dict[str, Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A saved model that loads."""
    file = tmp_path / "model.safetensors"
    NGram.train(CORPUS, 6, order=3, progress=False).save(file)
    return file


def assert_refused(path: Path, *parts: str) -> None:
    with pytest.raises(ValueError, match="is no n-gram model") as caught:
        NGram.load(path)
    for part in (str(path), *parts, "give a file that NGram.save wrote"):
        assert part in str(caught.value)


def change(path: Path, metadata: dict[str, str] | None = None, **arrays: Any) -> None:
    kept: Arrays = load_file(path) | arrays
    save_file({k: v for k, v in kept.items() if v is not None}, path, META if metadata is None else metadata)


@pytest.mark.parametrize("order", [1, 2, 3, 8])
@pytest.mark.parametrize("corpus", [CORPUS, [[0]], [[0, 0, 0]], [list(range(6)) * 9]], ids=str)
def test_whatever_was_saved_is_loaded(tmp_path: Path, order: int, corpus: list[list[int]]) -> None:
    for vocab_size in (6, 200_000):
        source = NGram.train(corpus, vocab_size, order=order, progress=False)
        source.save(tmp_path / "model.safetensors")
        loaded = NGram.load(tmp_path / "model.safetensors").model
        assert (loaded.order, loaded.vocab_size) == (order, vocab_size)
        for name, array in vars(source.model).items():
            np.testing.assert_array_equal(getattr(loaded, name), array)


def test_the_largest_discounts_are_loaded(tmp_path: Path) -> None:
    for discount in (1e-9, 1 - 1e-9):
        NGram.train(CORPUS, 6, discount=discount, progress=False).save(tmp_path / "model.safetensors")
        NGram.load(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("metadata", "what"),
    [
        ({}, "order"),
        ({"order": "3"}, "vocab_size"),
        (META | {"order": str(10**9)}, str(10**9)),
        (META | {"order": str(10**30)}, "order"),
        (META | {"order": "9" * 5000}, "order"),
        (META | {"order": "0"}, "order"),
        (META | {"order": "-3"}, "order"),
        (META | {"order": "2"}, "order is 2"),
        (META | {"order": "three"}, "'three'"),
        (META | {"order": "³"}, "order"),
        (META | {"vocab_size": "0"}, "vocab_size"),
        (META | {"vocab_size": str(10**18)}, str(10**18)),
        (META | {"vocab_size": "5"}, "order is 3, but keys hold contexts of 3 ids"),
        (META | {"vocab_size": "7"}, "tokens follow a context"),
        (META | {"more": "1"}, "more"),
    ],
)
def test_broken_numbers(path: Path, metadata: dict[str, str], what: str) -> None:
    change(path, metadata)
    assert_refused(path, what)


def test_absurd_numbers_are_refused_before_an_array_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(path, META | {"order": str(10**9)})

    def opened(*arguments: Any, **options: Any) -> Any:
        class Spy:
            file = safe_open(*arguments, **options)

            def __enter__(self) -> "Spy":
                return self

            def __exit__(self, *ended: Any) -> None:
                pass

            def __getattr__(self, name: str) -> Any:
                assert name != "get_tensor", "an array was read"
                return getattr(self.file, name)

        return Spy()

    monkeypatch.setattr("drafts.ngram.safe_open", opened)
    assert_refused(path, str(10**9))


def test_training_makes_no_order_that_could_not_be_loaded() -> None:
    with pytest.raises(ValueError, match=r"order .* 1000000000"):
        NGramModel.train(CORPUS, 6, order=10**9, progress=False)


BROKEN: dict[str, Callable[[Arrays], Arrays]] = {
    "no keys": lambda a: {"keys": None},
    "an array more": lambda a: {"more": a["keys"]},
    "another name": lambda a: {"keys": None, "kees": a["keys"]},
    "empty keys": lambda a: {"keys": a["keys"][:0]},
    "a key less": lambda a: {"keys": a["keys"][1:]},
    "a start less": lambda a: {"starts": a["starts"][1:]},
    "a prob less": lambda a: {"probs": a["probs"][1:]},
    "a best less": lambda a: {"best": a["best"][1:]},
    "keys in a matrix": lambda a: {"keys": a["keys"][:, None]},
    "keys of another type": lambda a: {"keys": a["keys"].astype(np.int32)},
    "tokens of another type": lambda a: {"tokens": a["tokens"].astype(np.int64)},
    "probs of another type": lambda a: {"probs": a["probs"].astype(np.float32)},
    "unclosed keys": lambda a: {"keys": np.append(a["keys"][:-1], 10**6)},
    "negative keys": lambda a: {"keys": np.append(-1, a["keys"][1:])},
    "unsorted keys": lambda a: {"keys": np.concatenate([a["keys"][-2::-1], a["keys"][-1:]])},
    "equal keys": lambda a: {"keys": np.concatenate([a["keys"][:1], a["keys"][:1], a["keys"][2:]])},
    "a key of a later state": lambda a: {"keys": np.concatenate([a["keys"][:-2], [10**6], a["keys"][-1:]])},
    "starts beyond the pairs": lambda a: {"starts": np.append(a["starts"][:-1], 10**9)},
    "starts before the pairs": lambda a: {"starts": np.append(-1, a["starts"][1:])},
    "starts that fall": lambda a: {"starts": np.concatenate([a["starts"][:1], a["starts"][-2:0:-1], a["starts"][-1:]])},
    "a state without pairs": lambda a: {"starts": np.concatenate([a["starts"][:1], a["starts"][:1], a["starts"][2:]])},
    "a token beyond the vocabulary": lambda a: {"tokens": np.append(a["tokens"][:-1], np.int32(6))},
    "a negative token": lambda a: {"tokens": np.append(np.int32(-1), a["tokens"][1:])},
    "equal tokens": lambda a: {"tokens": np.append(a["tokens"][:1], a["tokens"][:-1])},
    "a pair that the shorter context has not seen": lambda a: {"tokens": np.append(a["tokens"][:-1], np.int32(4))},
    "a probability of 0": lambda a: {"probs": np.append(0.0, a["probs"][1:])},
    "a negative probability": lambda a: {"probs": np.append(-0.1, a["probs"][1:])},
    "an infinite probability": lambda a: {"probs": np.append(np.inf, a["probs"][1:])},
    "no probability": lambda a: {"probs": np.append(a["probs"][:-1], np.nan)},
    "a probability over 1": lambda a: {"probs": np.append(a["probs"][:-1], 1.5)},
    "a mass that is not 1": lambda a: {"probs": np.append(a["probs"][:-1], a["probs"][-1] * 0.9)},
    "a backoff of 0": lambda a: {"backoff": np.append(0.0, a["backoff"][1:])},
    "no backoff": lambda a: {"backoff": np.append(np.nan, a["backoff"][1:])},
    "a best beyond the vocabulary": lambda a: {"best": np.append(6, a["best"][1:])},
    "a negative best": lambda a: {"best": np.append(-1, a["best"][1:])},
    "no probability of a best": lambda a: {"best_probs": np.append(np.nan, a["best_probs"][1:])},
    "a probability of a best over 1": lambda a: {"best_probs": np.append(2.0, a["best_probs"][1:])},
    "a successor beyond the states": lambda a: {"successor": np.append(a["successor"][:-1], len(a["successor"]))},
    "a negative successor": lambda a: {"successor": np.append(a["successor"][:-1], -1)},
}


@pytest.mark.parametrize("change_arrays", BROKEN.values(), ids=BROKEN)
def test_broken_arrays(path: Path, change_arrays: Callable[[Arrays], Arrays]) -> None:
    changed = change_arrays(load_file(path))
    change(path, **changed)
    assert_refused(path, next(iter(changed)))


def test_files_that_are_no_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "x"
    assert_refused(path)
    for data in (b"", b"\0" * 50, b"\xff" * 50, b"PK\3\4"):
        path.write_bytes(data)
        assert_refused(path)
    assert_refused(tmp_path)


def test_a_file_that_was_cut_off(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        assert_refused(path)


def test_bad_settings_are_no_fault_of_the_file(path: Path) -> None:
    with pytest.raises(ValueError, match="needs sampled=True"):
        NGram.load(path, temperature=0.7)
