"""Runs of these tests are quick ones, unless one asks; one run of all strategies serves several tests."""

from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from experiments.harness import running, study
from experiments.strategies import STRATEGIES
from tests.support.runs.experiments import SHIPPED, all_own, common, quick_runs, the_folder


@pytest.fixture(scope="package", autouse=True)
def _quick_runs() -> Iterator[None]:
    with quick_runs():
        yield


@pytest.fixture
def as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a run do all that it does for a user."""
    monkeypatch.setattr(study, "without_full_collections", SHIPPED)


@pytest.fixture(scope="package")
def everything(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder, which no test writes to, of all strategies sampled in batches and traced; what was printed."""
    out, printed = tmp_path_factory.mktemp("everything"), StringIO()
    argv = [*common(checkpoints, out), *all_own(checkpoints, STRATEGIES), "--temperature", "0.9"]
    with redirect_stdout(printed):
        assert running.script("compare", "", [*argv, "--batch-size", "2", "--repeats", "2", "--trace", "3"]) == 0
    return the_folder(out), printed.getvalue()
