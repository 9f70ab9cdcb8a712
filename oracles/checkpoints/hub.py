"""Names of models on the Hugging Face hub, which are downloaded before they are loaded."""

import re
from pathlib import Path

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_HUB_ID = re.compile(f"{_NAME}/({_NAME})")
_FILES = (".gguf", ".json", ".safetensors")


def download_hint(name_or_path: str | Path) -> str:
    """Return the end of a message: how to download a model, if a name may be one on the hub, else an empty string."""
    name = str(name_or_path)
    found = _HUB_ID.fullmatch(name)
    if found is None or name.endswith(_FILES) or Path(name).exists():
        return ""
    # The dot keeps the path from being taken for the name of an embedded checkpoint.
    folder = f"./{found[1]}"
    return f"; if it is a model of the Hugging Face hub: hf download {name} --local-dir {folder}, then give {folder!r}"
