"""Names of models on the Hugging Face hub, which are downloaded before they are loaded."""

import re
from collections.abc import Iterable
from pathlib import Path

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_HUB_ID = re.compile(f"{_NAME}/({_NAME})")
_FILES = (".gguf", ".json", ".safetensors")


def download_hint(name_or_path: str | Path) -> str:
    """Return the end of a message: how a model is downloaded, if a name may be that of one on the hub, else nothing."""
    name = str(name_or_path)
    found = _HUB_ID.fullmatch(name)
    if found is None or name.endswith(_FILES) or Path(name).exists():
        return ""
    # With the dot it is no name of a checkpoint that is embedded.
    folder = f"./{found[1]}"
    return f"; if it is a model of the Hugging Face hub: hf download {name} --local-dir {folder}, then give {folder!r}"


def unknown_checkpoint(name_or_path: str | Path, embedded: Iterable[str], published: Iterable[str]) -> str:
    """Return what to say of a checkpoint that is not here.

    Args:
        name_or_path: as it was given.
        embedded, published: names that would have been known.
    """
    return (
        f"{str(name_or_path)!r} is neither an embedded checkpoint ({', '.join(embedded) or 'there are none'}) nor a "
        f"published one ({', '.join(published)}), neither a directory nor a GGUF file{download_hint(name_or_path)}"
    )
