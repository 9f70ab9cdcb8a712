"""Reports of experiments: provenance, pictures."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

PACKAGES = (
    "specdec", "torch", "numpy", "scipy", "datasets", "pyarrow", "tokenizers", "jinja2", "safetensors",
    "transformers", "matplotlib", "rich", "llama_cpp_python",
)  # fmt: skip


def version_of(package: str) -> str | None:
    """Return the version of an installed package; None if it is absent."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Return what git says of the checkout that this file lies in; None outside of one."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@cache
def code_commit() -> str | None:
    """Return the commit of this checkout; None outside of one; "+changes" after it if tracked files differ.

    It is read once per process, which runs the files as they were when it began: to measure for hours, ask for it
    first.
    """
    # An installed copy may lie inside somebody else's checkout: only one that git tracks has a commit.
    commit = _git("rev-parse", "HEAD") if _git("ls-files", "--error-unmatch", Path(__file__).name) else None
    changed = bool(_git("status", "--porcelain", "--untracked-files=no"))
    return f"{commit}+changes" if commit and changed else commit


def processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """Return what the processor calls itself, with its numbers of family and model.

    The name that a virtual machine shows is often vague.

    Args:
        info: where the system describes it; without it or a name there, the architecture is returned.
    """
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    numbers = ", ".join(f"{key.split()[-1]} {told[key]}" for key in ("cpu family", "model") if key in told)
    name = told.get("model name") or platform.processor() or platform.machine()
    return f"{name} ({numbers})" if numbers else name


def device_name(device: torch.device | str) -> str:
    """Return what a CUDA device calls itself; of others, and of one that is not there, how torch names it."""
    place = torch.device(device)
    is_there = place.type == "cuda" and (place.index or 0) < torch.cuda.device_count()
    return torch.cuda.get_device_name(place) if is_there else str(place)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | list) else str(value)


def provenance(
    arguments: Mapping[str, Any], device: torch.device | str = "cpu", backend: str | None = None
) -> dict[str, Any]:
    """Return what a reader needs to repeat or to judge a run, as plain types.

    Args:
        arguments: of the run.
        device: that it ran on.
        backend: of the oracle's passes.

    Returns:
        Versions of Python and the packages in use, platform, processor, cores, device, backend, threads, commit (see
        ``code_commit``), time in UTC, and the arguments.
    """
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": code_commit(),
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "platform": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device_name(device),
        "backend": backend,
        "arguments": {name: _plain(value) for name, value in arguments.items()},
    }


Points = Sequence[tuple[float, float]]


def row_of_axes(count: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """Return a figure of ``size`` in inches, and its ``count`` axes side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, count, squeeze=False)[0]


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        across, up: labels of the axes.
        lines: series -> points that a line joins.
        dots: series -> points that are marked.
        log_across, log_up: whether the axes are logarithmic.
    """

    across: str
    up: str
    lines: Mapping[str, Points] = field(default_factory=dict)
    dots: Mapping[str, Points] = field(default_factory=dict)
    log_across: bool = True
    log_up: bool = True


def panels(path: Path, drawn: Sequence[Panel]) -> None:
    """Write a PNG of panels side by side; a series that has both dots and a line has one colour.

    Args:
        path: of the file.
        drawn: at least one.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure, row = row_of_axes(len(drawn), (6.0 * len(drawn), 5.0))
    for axes, panel in zip(row, drawn, strict=True):
        colors = {name: f"C{i % 10}" for i, name in enumerate(dict.fromkeys((*panel.dots, *panel.lines)))}
        for name, points in panel.lines.items():
            label = None if name in panel.dots else name
            axes.plot(*np.transpose(points), color=colors[name], linewidth=1.2, label=label)
        for name, points in panel.dots.items():
            axes.plot(*np.transpose(points), "o", color=colors[name], markersize=4, label=name)
        axes.set_xscale("log" if panel.log_across else "linear")
        axes.set_yscale("log" if panel.log_up else "linear")
        for axis, is_log in ((axes.xaxis, panel.log_across), (axes.yaxis, panel.log_up)):
            if is_log:
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.7g}"))
                axis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(panel.across)
        axes.set_ylabel(panel.up)
        axes.grid(alpha=0.3, linewidth=0.5)
        # Below the axes names hide nothing.
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, frameon=False)
    figure.savefig(path, dpi=120)
