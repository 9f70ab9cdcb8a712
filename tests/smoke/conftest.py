"""Runs of these tests neither draw a picture nor collect garbage first, half of a tiny run's time, unless one asks."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest

from experiments.findings import summary
from experiments.harness import running

SHIPPED = summary.picture, running.without_full_collections


def _no_picture(path: Path, *_: object) -> None:
    path.write_bytes(b"not drawn")


@pytest.fixture(scope="package", autouse=True)
def _quick_runs() -> Iterator[None]:
    with patch.object(summary, "picture", _no_picture), patch.object(running, "without_full_collections", nullcontext):
        yield


@pytest.fixture
def as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a run do all that it does for a user."""
    monkeypatch.setattr(summary, "picture", SHIPPED[0])
    monkeypatch.setattr(running, "without_full_collections", SHIPPED[1])
