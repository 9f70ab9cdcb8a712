"""The picture of loss curves, and the table beside it."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.studies import loss_curves


def log(folder: Path, num_steps: int) -> Path:
    folder.mkdir()
    rows = [
        {"step": i, "tokens": 100 * i, "loss": 8 / i, "tokens_per_second": 50 * (1 + i % 2)}
        for i in range(1, num_steps + 1)
    ]
    (folder / "loss.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder / "loss.jsonl"


def test_it_writes_a_picture_and_prints_what_was_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, logs = tmp_path / "pictures" / "loss.png", [log(tmp_path / name, 60) for name in ("first", "second")]
    loss_curves.main([*map(str, logs), "--out", str(out), "--smooth", "2"])
    assert out.read_bytes().startswith(b"\x89PNG")
    (first,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("`first`"))
    # 30 steps of 2 seconds and 30 of 1; the mean of the last two losses.
    assert first.split() == ["`first`", "60", "6,000", "2", f"{(8 / 59 + 8 / 60) / 2:.4f}"]


def test_the_smoothed_curve_is_the_mean_around_each_step(tmp_path: Path) -> None:
    run = loss_curves.Run.read(log(tmp_path / "run", 9))
    expected = [run.losses[max(0, i - min(i, 8 - i, 2)) : i + min(i, 8 - i, 2) + 1].mean() for i in range(9)]
    np.testing.assert_allclose(run.smooth(4), expected, rtol=1e-12)


def test_a_log_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no steps"):
        loss_curves.Run.read(log(tmp_path / "run", 0))


@pytest.mark.parametrize("content", ["no JSON", '{"step": 1}', "[1]"])
def test_a_file_that_is_no_log_is_refused_by_name(content: str, tmp_path: Path) -> None:
    path = tmp_path / "loss.jsonl"
    with pytest.raises(SystemExit, match=r"loss_curves: .*No such file or directory: '.*loss\.jsonl'"):
        loss_curves.main([str(path), "--out", str(tmp_path / "a.png")])
    path.write_text(content, encoding="utf-8")
    with pytest.raises(SystemExit, match=r"loss_curves: .*loss\.jsonl is no loss.jsonl of a training: "):
        loss_curves.main([str(path), "--out", str(tmp_path / "a.png")])
