"""Write one HTML page of runs: what they conclude and why, tables, pictures, provenance.

The page needs no network and no other file. It has light and dark colours, and can be printed. A RUN is a folder that
an experiment wrote and named in its last line. A sweep's folder means the runs of all its units that ended well.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from exactspec.ending import as_program
from exactspec.parser import Parser, refusing
from experiments.report import PAGE, markup
from experiments.report.across import across, overview
from experiments.report.one_run import section_of
from experiments.report.page import Section, figures_of, page, plotly_source, section_with
from experiments.report.runs import Run, load_runs
from experiments.report.traces import trace_sections
from experiments.sweep.sweep_results import is_sweep, runs_of
from specdec.system import write_whole


def together(runs: Sequence[Run]) -> Section:
    """Return what several runs say beside one another."""
    pictures, rows = across(runs), [*overview(runs)]
    contents = {"Runs": markup.table(rows, "Runs"), "Pictures": figures_of(pictures, "across")}
    return section_with("across", "Across the runs", contents, pictures, {"overview": rows})


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments."""
    parser = Parser(__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder that an experiment or a sweep wrote")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"the page ({PAGE} in the first RUN)")
    return parser.parse_args(argv)


def place_of(out: Path | None, first: Path) -> Path:
    """Return where the page goes.

    Raises:
        ValueError: nothing can be written there.
    """
    place = first / PAGE if out is None else out
    if place.is_dir():
        raise ValueError(f"--out {place}: a folder; name a file in it, such as {place / PAGE}")
    if not place.parent.is_dir():
        raise ValueError(f"--out {place}: there is no folder {place.parent}; make it first")
    return place


def write_page(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of some runs and return where it lies.

    Raises:
        ValueError: a folder that holds no run at its end, a place that cannot be written, or the charting library is
            missing; with the reason and the fix.
    """
    plotly_source()
    sweeps = {folder: runs_of(folder) for folder in folders if is_sweep(folder)}
    for one in (one for _, left_out in sweeps.values() for one in left_out):
        print(f"left out: {one}", file=sys.stderr)
    units = {run: label for labels, _ in sweeps.values() for run, label in labels.items()}
    runs = load_runs([run for one in folders for run in (sweeps[one][0] if one in sweeps else [one])], units)
    place = place_of(out, folders[0].resolve())
    sections = [together(runs)] if len(runs) > 1 else []
    for run in runs:
        sections += [section_of(run), *trace_sections(run.folder, run.anchor)]
    title = runs[0].label if len(runs) == 1 else f"{len(runs)} runs" + (f" of {folders[0].name}" if units else "")
    write_whole(place, page(f"specdec: {title}", sections))
    return place


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page and say where it lies."""
    arguments = parse(argv)
    with refusing("report"):
        place = write_page(arguments.runs, arguments.out)
    here = Path.cwd()
    shown = place.relative_to(here) if place.is_relative_to(here) else place
    print(f"Written: {shown} ({place.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    as_program(main)
