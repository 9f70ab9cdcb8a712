"""Names and paths of models and heads: what ships with the project, and what the Hugging Face hub may have."""

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from oracles.checkpoints.config_keys import read_json

EMBEDDED = Path(__file__).parents[1] / "embedded"
# What describes an exit head; all else that ships has a ``config.json``.
EXIT_HEAD = "head.json"
# By kind of a head in the format of ``speculators``: the source that it is for.
_DRAFTERS = {"eagle3": "eagle3", "dflash": "block_drafter", "dspark": "block_drafter"}

# The name of a model on the hub, which is downloaded before it is loaded.
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/([A-Za-z0-9][A-Za-z0-9._-]*)")
_FILES = (".gguf", ".json", ".safetensors")


def head_origin(values: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the draft source and the model of the head that a ``config.json`` describes; None: not a format of ours.

    Returns:
        The draft source that the head is for, and the model that it was trained on, by name or path.
    """
    if "medusa_num_heads" in values:
        return "medusa", str(values.get("base_model_name_or_path", ""))
    kind = values.get("speculators_model_type")
    if kind not in _DRAFTERS:
        return None
    told = values.get("speculators_config", {})
    return _DRAFTERS[kind], str(told.get("verifier", {}).get("name_or_path", ""))


def embedded_names() -> tuple[str, ...]:
    """Return the names of the embedded checkpoints of models."""
    return tuple(name for name, origin in _origins_in(EMBEDDED).items() if origin is None)


def head_names() -> tuple[str, ...]:
    """Return the names of the embedded heads, exit heads among them."""
    exits = [path.parent.name for path in EMBEDDED.glob(f"*/{EXIT_HEAD}")]
    return tuple(sorted([*exits, *(name for name, origin in _origins_in(EMBEDDED).items() if origin is not None)]))


def given_path(name_or_path: str | Path) -> Path:
    """Return the given path as a ``Path``.

    Raises:
        ValueError: it is no path, or one that the system refuses, such as one that is too long.
    """
    if not isinstance(name_or_path, str | os.PathLike):
        raise ValueError(f"name_or_path is {name_or_path!r:.80}; give a name or a path")
    path = Path(name_or_path)
    try:
        path.exists()
    except OSError as error:
        raise ValueError(f"{str(path)!r:.80} is no name that is known, and as a path: {error.strerror}") from error
    return path


def download_hint(name_or_path: str | Path) -> str:
    """Return the end of a message: how to download a model, if a name may be one on the hub, else an empty string."""
    name = str(name_or_path)
    found = _HUB_ID.fullmatch(name)
    if found is None or name.endswith(_FILES) or Path(name).exists():
        return ""
    # The dot keeps the path from being taken for the name of an embedded checkpoint.
    folder = f"./{found[1]}"
    return f"; if it is a model of the Hugging Face hub: hf download {name} --local-dir {folder}, then give {folder!r}"


def embedded_folder(name_or_path: str | Path) -> Path | None:
    """Return the folder of an embedded model by its name; None: no embedded model has that name."""
    known = isinstance(name_or_path, str) and name_or_path in embedded_names()
    return EMBEDDED / name_or_path if known else None


def heads_of(oracle: str) -> dict[str, str]:
    """Return the embedded heads of a named oracle, draft source -> head's name, without exit heads."""
    origins = _origins_in(EMBEDDED).items()
    return {origin[0]: name for name, origin in origins if origin is not None and origin[1] == oracle}


def head_folder(name_or_path: str | Path) -> Path:
    """Return the folder of a head by its embedded name or its path; the name wins over a folder of that name.

    Raises:
        ValueError: there is no such head.
    """
    if isinstance(name_or_path, str) and name_or_path in head_names():
        return EMBEDDED / name_or_path
    folder = given_path(name_or_path)
    if not any((folder / name).is_file() for name in (EXIT_HEAD, "config.json")):
        raise ValueError(
            f"{str(name_or_path)!r} is neither an embedded head ({', '.join(head_names()) or 'there are none'}) nor a "
            f"folder with {EXIT_HEAD}, or with the config.json of a published head"
        )
    return folder


@cache
def _origins_in(folder: Path) -> dict[str, tuple[str, str] | None]:
    """Return the ``head_origin`` of each ``config.json``, by the name of the folder it is in; None: it is a model's."""
    return {path.parent.name: head_origin(_values(path)) for path in sorted(folder.glob("*/config.json"))}


def _values(path: Path) -> Mapping[str, Any]:
    """Return the contents of a ``config.json``; empty if it is invalid, which loading the folder will report."""
    try:
        return read_json(path)
    except ValueError:
        return {}
