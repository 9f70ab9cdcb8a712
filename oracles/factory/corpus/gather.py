"""Gathering the corpus: the wheels of the manifest, by pinned version and hash."""

import hashlib
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from oracles.factory.corpus.corpus_reading import GATHER
from oracles.factory.corpus.manifest import Manifest, Package

# The wheels of the manifest are those of one platform, whatever machine gathers them.
PYTHON = "3.11"
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17)),
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
    "any",
)
ABIS = ("cp311", "abi3", "none")


def gather(manifest: Manifest, folder: Path) -> None:
    """Download the wheels of a manifest that the folder lacks.

    Raises:
        ValueError: a download fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [package for package in manifest.packages if not (folder / package.wheel).is_file()]
    if missing:
        pins = folder / "requirements.txt"
        pins.write_text(requirements(missing), encoding="utf-8")
        try:
            subprocess.run(download_command(pins, folder), check=True)
        except subprocess.CalledProcessError as error:
            raise ValueError(
                f"pip could not download the corpus, and says why above; run `{shlex.join(error.cmd)}` again with a "
                f"network, or elsewhere, and put the wheels into {folder}"
            ) from error


def verify(manifest: Manifest, folder: Path) -> None:
    """Check every wheel of a manifest by its hash.

    Raises:
        ValueError: a wheel is absent or differs; names it and the fix.
    """
    for package in manifest.packages:
        wheel = folder / package.wheel
        if not wheel.is_file():
            raise ValueError(f"wheel {wheel} does not exist; {GATHER}")
        if hashlib.sha256(wheel.read_bytes()).hexdigest() != package.sha256:
            raise ValueError(f"wheel {wheel} differs from its hash in the manifest; delete it and {GATHER}")


def requirements(packages: Iterable[Package]) -> str:
    """Return a requirements file that pins packages by version and by the hash of the one wheel meant."""
    return "".join(f"{package.requirement}\n" for package in packages)


def download_command(pins: Path, folder: Path) -> list[str]:
    """Return the command that downloads pinned wheels into a folder, without their dependencies."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    command += ["--python-version", PYTHON, "--implementation", "cp"]
    command += [part for abi in ABIS for part in ("--abi", abi)]
    command += [part for platform in PLATFORMS for part in ("--platform", platform)]
    return [*command, "--dest", str(folder), "--requirement", str(pins)]
