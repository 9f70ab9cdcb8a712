"""Small sources to compile, and compilers to compile them with."""

import os
import sys
from pathlib import Path

import pytest

from specdec.kernels.compiled import build as building
from specdec.kernels.compiled.build import LibrarySources, NativeUnavailable, compiler, target_flag

ANSWER = '#include "answer.h"\nextern "C" __attribute__((visibility("default"))) int answer() { return ANSWER; }\n'
# Answers to --version, notes each compilation, and copies what it is given in place of compiling it.
COMPILER = """#!/bin/sh
case "$*" in *--version) echo "{version}"; exit;; esac
echo compiled >> "{log}"
{first}
while [ "$1" != -o ]; do shift; done
cp "{output}" "$2"
"""
STRICT = ("-std=c++17", "-O1", "-fPIC", "-shared", *building.WARNINGS, "-Werror")


def needed_compiler() -> tuple[str, ...]:
    """Return the compiler; skip the test where there is none."""
    try:
        return compiler()
    except NativeUnavailable as error:
        pytest.skip(str(error))


def needed_machine() -> None:
    """Skip the test on a machine that the native code is not written for."""
    try:
        target_flag()
    except NativeUnavailable as error:
        pytest.skip(str(error))


def answer_sources(folder: Path, answer: int = 42) -> Path:
    """Return a folder of sources whose library has a function ``answer``; see ``answer_of``."""
    folder.mkdir(exist_ok=True)
    (folder / "api.cpp").write_text(ANSWER)
    (folder / "answer.h").write_text(f"#define ANSWER {answer}\n")
    return folder


def answer_of(folder: Path) -> LibrarySources:
    """Return the unit of such a folder."""
    return LibrarySources("an answer", folder / "api.cpp", (folder,))


def build_alone(folder: Path, cache: Path, command: tuple[str, ...]) -> None:
    """Build it in a group of processes of its own, which this process begins."""
    os.setsid()
    building.build(answer_of(folder), cache, command, ())


class FakeCompiler:
    """A program that passes for a compiler, and counts.

    Args:
        folder: where it is written.
        first: what it does before it writes its output, in the words of the shell.
        version: what it says to ``--version``.
    """

    def __init__(self, folder: Path, first: str = "", version: str = "fake 1.0") -> None:
        self.log, self.path = folder / "log", folder / "c++"
        (folder / "output").write_text("no library")
        text = COMPILER.format(version=version, log=self.log, first=first, output=folder / "output")
        self.path.write_text(text)
        self.path.chmod(0o755)

    @property
    def command(self) -> tuple[str, ...]:
        return (str(self.path),)

    @property
    def count(self) -> int:
        """Return how often it has compiled."""
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


def script(text: str) -> list[str]:
    """Return the command that runs a Python program in a process of its own."""
    return [sys.executable, "-W", "error", "-c", text]
