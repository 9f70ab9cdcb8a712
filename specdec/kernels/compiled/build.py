"""Compile native code at its first use, once for a machine, and load it once in a process."""

import ctypes
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from specdec.kernels.compiled.build_cache import NAMED, cache_folder, is_whole, lock, open_whole, seal
from specdec.system import LOG, Unsafe, private_folder, warn_once

HEADERS = Path(__file__).parents[1] / "cpp"
BUILDING = "building-"  # a folder in which a library is compiled
_ABANDONED_SECONDS = 3600.0  # no build takes this long
COMPILERS = ("c++", "g++", "clang++")
WARNINGS = ("-Wall", "-Wextra")
# Contraction off: a multiplication and an addition are fused only if the code says so.
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti"),
    *("-ffp-contract=off", "-fno-math-errno"),
)

CPUINFO = Path("/proc/cpuinfo")
X86_NEEDS = ("avx2", "fma", "f16c")
TARGET_FLAGS = {"x86_64": "-march=native", "aarch64": "-mcpu=native"}
# What -march=native depends on; the other lines of cpuinfo change from one reading to the next.
TELLING = ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU implementer", "CPU part")


class NativeUnavailable(RuntimeError):
    """Compiled code is not available here. The message has the reason, and the fix if there is one."""


@dataclass(frozen=True)
class LibrarySources:
    """The sources of one library.

    Attributes:
        name: what users are told is compiled, such as "the native pass".
        source: the file that is compiled.
        headers: folders of the ``*.h`` that it may include. All of them lie in one folder when it is compiled, so no
            two may have the same name.
    """

    name: str
    source: Path
    headers: tuple[Path, ...]


_lock = threading.Lock()
_outcomes: dict[tuple[LibrarySources, tuple[str, ...]], ctypes.CDLL | NativeUnavailable] = {}


def _renew_lock() -> None:
    """Give a forked child a lock of its own: the thread that held the parent's does not exist there."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def library(unit: LibrarySources, *extra: str) -> ctypes.CDLL:
    """Return a unit's library, compiled if this machine has no build of it yet, loaded once in this process.

    The library is kept in ``cache_folder()``. If that cannot be written, or others could put code there, it is compiled
    for this process alone, in a temporary folder; a warning says so.

    Args:
        unit: what is compiled.
        extra: further flags of the compiler, after ours; each choice of flags is a library of its own.

    Raises:
        NativeUnavailable: no compiler, another kind of machine, a failed compilation (with the command and the
            compiler's message), no folder that only this user can write to, a library that does not load. The reason is
            remembered: later calls in this process raise it again without another attempt.

    Cost: some seconds if it compiles, else 5 ms at the first call (the compiler tells its version), then none.
    """
    wanted = (unit, extra)
    with _lock:
        if wanted not in _outcomes:
            try:
                _outcomes[wanted] = _library(unit, extra)
            except NativeUnavailable as error:
                _outcomes[wanted] = error
        outcome = _outcomes[wanted]
    if isinstance(outcome, NativeUnavailable):
        raise NativeUnavailable(str(outcome))
    return outcome


def _library(unit: LibrarySources, extra: tuple[str, ...]) -> ctypes.CDLL:
    """Return the library from the cache, or from a private folder if none can be kept there, or not safely."""
    flags = (*FLAGS, *WARNINGS, target_flag(), *extra)
    chosen = compiler()
    try:
        return _load(build(unit, cache_folder(), chosen, flags))
    except OSError as error:
        if os.environ.get(NAMED) and not isinstance(error, Unsafe):
            raise NativeUnavailable(
                f"no library can be written below the folder that {NAMED} names: {error}; name another one"
            ) from error
        way = f"name a folder in {NAMED}"
        warn_once(f"specdec: no library can be kept ({error}): it is compiled for this process alone; {way}")
    try:
        # A loaded library outlives its file.
        with private_folder() as private:
            return _load(build(unit, private, chosen, flags))
    except OSError as error:
        raise NativeUnavailable(f"no library can be written, not even to a temporary folder: {error}") from error


def _load(path: Path) -> ctypes.CDLL:
    """Load a library by the very descriptor through which it was checked.

    Raises:
        NativeUnavailable: it does not load. It is whole, so to compile it again would not help.
        Unsafe: it was changed since it was built.
    """
    file = open_whole(path)
    if file is None:
        raise Unsafe(f"{path} was changed by somebody while it was loaded")
    try:
        # It stays open: the loader takes a name that it has seen before for the library that had it.
        return ctypes.CDLL(f"/proc/self/fd/{file}")
    except OSError as error:
        os.close(file)
        raise NativeUnavailable(
            f"{path} does not load: {error}; if its file system forbids execution (noexec), name a folder elsewhere in "
            f"{NAMED}; if a system library has changed, delete the file; /proc has to be mounted"
        ) from error


def compiler() -> tuple[str, ...]:
    """Return the compiler's command: ``$CXX``, which may hold arguments, else the first of COMPILERS on the path.

    Raises:
        NativeUnavailable: there is none.
    """
    named = os.environ.get("CXX", "")
    try:
        words = shlex.split(named)
    except ValueError as error:
        raise NativeUnavailable(f"CXX is {named!r}, which is no command: {error}") from error
    for name in words[:1] or COMPILERS:
        if found := shutil.which(name):
            return (os.path.abspath(found), *words[1:])
    if words:
        raise NativeUnavailable(f"CXX is {named!r}, and there is no program {words[0]!r}; mend CXX, or unset it")
    raise NativeUnavailable(
        f"no C++ compiler found: none of {', '.join(COMPILERS)} is on PATH; install one, or name one in CXX"
    )


def cpu() -> str:
    """Return the lines of /proc/cpuinfo that tell one kind of CPU from another, each once; "" without such a file."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(sorted({line for line in lines if line.partition(":")[0].strip() in TELLING}))


def target_flag() -> str:
    """Return the flag that makes a compiler use all that this CPU has.

    Raises:
        NativeUnavailable: the native code is not written for this machine.
    """
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in TARGET_FLAGS:
        known = " and ".join(TARGET_FLAGS)
        raise NativeUnavailable(f"the native code is written for Linux on {known}, and this is {system} on {machine}")
    flags = cpu().split()
    missing = [name for name in X86_NEEDS if name not in flags]
    if machine == "x86_64" and missing:
        raise NativeUnavailable(f"the native code needs a CPU with {', '.join(X86_NEEDS)}; this one lacks {missing}")
    return TARGET_FLAGS[machine]


def build(unit: LibrarySources, cache: Path, compiler: Sequence[str], flags: Sequence[str]) -> Path:
    """Return the path of the compiled library, after compiling if the cache has none of this key.

    The key is the SHA-256 of the sources (names and bytes), the command, what the compiler says to ``--version``, the
    CPU and the C library: machines that share a home each have their own. Many processes may call at once: one
    compiles, the others wait for it. The library takes its name only when it is complete; one that was damaged since
    (a full disk, a killed copy) is compiled again.

    Args:
        unit: what is compiled.
        cache: folder of libraries, which only this user may write.
        compiler: command, with its arguments.
        flags: of the compiler.

    Raises:
        NativeUnavailable: no sources, or the compiler cannot be run or fails.
        OSError: the cache cannot be read or written.
    """
    content = _read(unit)
    version = _run([*compiler, "--version"])
    hashes = {name: hashlib.sha256(text).hexdigest() for name, text in content.items()}
    parts = [hashes, *compiler, *flags, version, cpu(), *platform.libc_ver()]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    path = cache / f"{key}.so"
    if not is_whole(path):
        with lock(cache / "lock") as is_alone:
            if not is_whole(path):
                if is_alone:
                    _remove_old(cache)
                with _announce(unit.name, version.partition("\n")[0]):
                    _compile(content, path, [*compiler, *flags, unit.source.name])
    return path


def _remove_old(cache: Path) -> None:
    """Remove what killed builds left; a recent one may still run on another host, where our locks are not known."""
    for left in cache.glob(f"{BUILDING}*"):
        with suppress(OSError):
            if left.stat().st_mtime < time.time() - _ABANDONED_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def _read(unit: LibrarySources) -> dict[str, bytes]:
    """Return the sources by their names. What is hashed is what is compiled, should somebody edit them meanwhile."""
    try:
        headers = [path for folder in unit.headers for path in sorted(folder.glob("*.h"))]
        return {path.name: path.read_bytes() for path in [unit.source, *headers]}
    except OSError as error:
        raise NativeUnavailable(f"the sources of {unit.name} cannot be read: {error}; install it again") from error


def _compile(content: dict[str, bytes], path: Path, command: list[str]) -> None:
    """Compile a copy of the sources in a folder beside the path, seal the library, and give it its name."""
    with TemporaryDirectory(prefix=BUILDING, dir=path.parent, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for file, text in content.items():
            (folder / file).write_bytes(text)
        _run([*command, "-o", path.name], folder)
        seal(folder / path.name)
        os.replace(folder / path.name, path)


def _run(command: list[str], folder: Path | None = None) -> str:
    """Return what a compiler prints, in English wherever it is run.

    Raises:
        NativeUnavailable: it cannot be started, or fails.
    """
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError as error:
        raise NativeUnavailable(f"{shlex.join(command)} cannot be run: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise NativeUnavailable(f"the compiler failed with the status {done.returncode}: {shlex.join(command)}\n{said}")
    return done.stdout.decode(errors="replace")


@contextmanager
def _announce(name: str, version: str) -> Iterator[None]:
    """Tell the user, who has to wait, what is being compiled; log how long it took."""
    start, outcome = time.monotonic(), "failed after"
    LOG.warning(f"specdec: compiling {name} with {version}, once for this machine ...")
    try:
        yield
        outcome = "took"
    finally:
        LOG.info(f"specdec: compiling {name} {outcome} {time.monotonic() - start:.1f} s")
