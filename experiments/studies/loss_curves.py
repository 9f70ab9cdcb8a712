"""Draw loss curves, and say what each run read.

``python -m experiments.studies.loss_curves runs/code/loss.jsonl --out a.png`` makes a picture.

A run is called by the folder of its ``loss.jsonl``. The smoothed curve is the mean of the steps around each. The
minutes are those of the steps alone, without reading the corpus and saving.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from exactspec.parser import Parser, positive, refusing
from specdec.stats import Table
from specdec.stats.report import Panel, panels, show


@dataclass(frozen=True)
class Run:
    """The log of a training: per step the tokens read so far, the loss in nats, and the seconds that it took."""

    name: str
    tokens: NDArray[np.float64]
    losses: NDArray[np.float64]
    seconds: NDArray[np.float64]

    @classmethod
    def read(cls, path: Path) -> "Run":
        """Return the run of a ``loss.jsonl``.

        Raises:
            ValueError: it is no such file, or has no steps.
        """
        keys = ("tokens", "loss", "tokens_per_second")
        try:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            tokens, losses, rates = (np.array([row[key] for row in rows]) for key in keys)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no loss.jsonl of a training: {error!r}") from error
        if not rows:
            raise ValueError(f"{path} holds no steps; give the loss.jsonl of a run that has begun")
        seconds = np.diff(tokens, prepend=0) / np.maximum(rates, 1)
        return cls(path.absolute().parent.name, tokens, losses, seconds)

    def smooth(self, num_steps: int) -> NDArray[np.float64]:
        """Return the mean loss of the ``num_steps`` around every step, of as many before as after it."""
        sums, at = np.concatenate([[0.0], np.cumsum(self.losses)]), np.arange(len(self.losses))
        reach = np.minimum(np.minimum(at, at[::-1]), num_steps // 2)
        means: NDArray[np.float64] = (sums[at + reach + 1] - sums[at - reach]) / (2 * reach + 1)
        return means

    def panel(self, num_steps: int) -> Panel:
        """Return the axes of every step and of the smoothed curve."""
        losses = {"every step": self.losses, f"mean of {num_steps} steps": self.smooth(num_steps)}
        lines = {f"{self.name}, {name}": self.points(values) for name, values in losses.items()}
        return Panel("million tokens read", "loss in nats per token", lines, log_across=False)

    def points(self, losses: NDArray[np.float64]) -> list[tuple[float, float]]:
        """Return losses of every step over the tokens read, in millions."""
        return list(zip(self.tokens / 1e6, losses, strict=True))

    def row(self, num_steps: int) -> dict[str, str]:
        """Return what a table says of the run."""
        return {
            "run": f"`{self.name}`",
            "steps": f"{len(self.losses):,}",
            "tokens read": f"{int(self.tokens[-1]):,}",
            "minutes": f"{self.seconds.sum() / 60:.0f}",
            f"last loss (mean of {num_steps} steps)": f"{self.losses[-num_steps:].mean():.4f}",
        }


def main(argv: Sequence[str] | None = None) -> None:
    """Write the picture and print a table of the runs."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("logs", type=Path, nargs="+", metavar="LOG", help="the loss.jsonl of each run")
    add("--out", type=Path, required=True, help="PNG to write")
    add("--smooth", type=positive, default=20, help="steps of the mean (default %(default)s)")
    args = parser.parse_args(argv)
    with refusing("loss_curves"):
        runs = [Run.read(path) for path in args.logs]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    panels(args.out, [run.panel(args.smooth) for run in runs])
    show([Table("Training runs", [run.row(args.smooth) for run in runs])])


if __name__ == "__main__":
    main()
