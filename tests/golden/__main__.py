"""The golden file from the command line: see docs/internals/golden.md."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import specdec
from oracles.native import NativeTransformer, NativeUnavailable
from tests.golden import hashes
from tests.golden.cases import CASES, Case
from tests.golden.running import content, lines, run

BACKENDS = ("native", "eager", "no-compiler")
NO_SUCH_PROGRAM = "no-compiler"
# Cases that are added to the file at once.
_AT_ONCE = 50


def main(arguments: Sequence[str] | None = None) -> str | None:
    """Do what the command line says; return what ends the process with the status 1."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.backend == "no-compiler":
        os.environ["CXX"] = NO_SUCH_PROGRAM
    cases = [case for case in CASES if fnmatchcase(str(case), options.only)]
    if not cases:
        return f"no case is called {options.only!r}"
    told: str | None = options.do(cases, options)
    return told


def _write(cases: Sequence[Case], options: argparse.Namespace) -> str | None:
    NativeTransformer.check()
    hashes.write(lines(CASES, "native"))
    return None


def _add(cases: Sequence[Case], options: argparse.Namespace) -> str | None:
    NativeTransformer.check()
    kept = hashes.read()
    missing = [case for case in CASES if str(case) not in kept]
    for at in range(0, len(missing), _AT_ONCE):  # what is killed goes on from there
        hashes.add(lines(missing[at : at + _AT_ONCE], "native"))
    return None


def _check(cases: Sequence[Case], options: argparse.Namespace) -> str | None:
    try:
        NativeTransformer.check()
    except NativeUnavailable as reason:
        print(f"tables only, no native pass here: {reason}")
        cases = [case for case in cases if case.world == "table"]
    return _verdict([*hashes.gaps(), *hashes.changes(cases)], len(cases))


def _show(cases: Sequence[Case], options: argparse.Namespace) -> str | None:
    for case in cases:
        print(json.dumps({str(case): content(run(case, _passes(options.backend)))}, indent=1))
    return None


def _record(cases: Sequence[Case], options: argparse.Namespace) -> str | None:
    root = Path(specdec.__file__).parents[1]
    if root != Path.cwd():
        return f"specdec was imported from {root}, not from {Path.cwd()}"
    options.file.write_text(json.dumps(lines(cases, _passes(options.backend))), encoding="utf-8")
    return None


def _compare(cases: Sequence[Case], options: argparse.Namespace) -> str | None:
    with TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("other", "this")]
        roots = [options.checkout.resolve(), Path.cwd()]
        started = [_start(root, file, options) for root, file in zip(roots, files, strict=True)]
        failed = [str(root) for root, process in zip(roots, started, strict=True) if process.wait()]
        if failed:
            return f"golden cases do not run in {', '.join(failed)}"
        other, this = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    return _verdict(hashes.differences(other, this), len(this))


def _start(root: Path, file: Path, options: argparse.Namespace) -> "subprocess.Popen[bytes]":
    """Start the cases of a checkout in its folder, by its own interpreter if it has one."""
    own = root / ".venv" / "bin" / "python"
    command = [str(own) if own.exists() else sys.executable, "-m", "tests.golden", "record", str(file)]
    chosen = ["--backend", options.backend, "--only", options.only, "--threads", str(options.threads)]
    return subprocess.Popen([*command, *chosen], cwd=root)


def _passes(backend: str) -> str:
    return "native" if backend == "native" else "eager"


def _verdict(told: Sequence[str], count: int) -> str | None:
    print(f"{count} cases, {len(told)} differ")
    return "\n".join(told) or None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    added = {
        name: commands.add_parser(name, help=text, description=text)
        for name, text in (
            ("check", "run the cases by the native pass, and compare them with the committed hashes"),
            ("write", "replace the committed hashes of all cases"),
            ("add", "write the hashes of the cases that the file lacks, and leave the others as they are"),
            ("compare", "run the cases in this checkout and in another one, on this machine"),
            ("record", "write the hashes of the cases to a file"),
            ("show", "print what cases give, to be compared with what they give elsewhere"),
        )
    }
    doing = {
        "check": _check, "write": _write, "add": _add, "compare": _compare, "record": _record, "show": _show,
    }  # fmt: skip
    for name, do in doing.items():
        command = added[name]
        command.set_defaults(do=do, backend="native", only="*")
        command.add_argument("--threads", type=int, default=1, help="that torch and the native pass run on")
        if name not in ("write", "add"):
            command.add_argument("--only", metavar="PATTERN", help="cases whose name matches, such as 'tiny/Staged*'")
        if name in ("compare", "record", "show"):
            command.add_argument("--backend", choices=BACKENDS, help="what computes passes, laws and draws")
    added["compare"].add_argument("checkout", type=Path, help="folder of the other checkout")
    added["record"].add_argument("file", type=Path, help="is replaced")
    return parser


if __name__ == "__main__":
    sys.exit(main())
