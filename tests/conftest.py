"""Before anything is imported: no hub, and no connection beyond this machine."""

import gc
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

# Triton decides so when it is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from oracles import Transformer
from tests.support import pairwise
from tests.support.backends import BITWISE_PACKS, PACKS, bits_checked_once, laws_by

# Before models are made as modules are collected: each worker has a thread.
torch.set_num_threads(1)
# What is collected stays: looking for garbage in it takes a fifth of the collection.
gc.disable()
_connect = socket.socket.connect
_checks = ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    """Have nothing made that would be deselected, half of all cases in each worker, and no check of bits made twice."""
    pairwise.WANTS_LONG = "not long" not in config.option.markexpr.split(" and ")
    _checks.enter_context(bits_checked_once())


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()
    _checks.close()


def _local_only(self: socket.socket, address: Any) -> Any:
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise AssertionError(f"a test tried to connect to {address}: tests must stay on this machine")
    return _connect(self, address)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "connect", _local_only)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Put torch's threads back: as many workers as cores, of several threads each, would wait for one another."""
    yield
    torch.set_num_threads(1)


@pytest.fixture
def set_threads() -> Callable[[int], None]:
    """Set the threads of torch until the test ends."""
    return torch.set_num_threads


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that no test writes to, with tiny random checkpoints, a text and prompts."""
    from tests.support.runs.experiments import write_checkpoints  # for few tests, and much to import

    return write_checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture
def documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tables printed as Markdown, with all columns."""
    monkeypatch.setenv("SPECDEC_TABLES", "markdown")


@pytest.fixture(params=BITWISE_PACKS.values(), ids=BITWISE_PACKS)
def pack(request: pytest.FixtureRequest) -> Callable[[Transformer], Any]:
    """Prepare a transformer for inference on each backend in turn whose scores are bitwise."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=PACKS.values(), ids=PACKS)
def any_pack(request: pytest.FixtureRequest) -> Callable[[Transformer], Any]:
    """Prepare a transformer for inference on each backend in turn."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=["torch", "native"], scope="module")
def laws_of_each_backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compute laws and draws on each backend in turn."""
    with laws_by(request.param):
        yield
