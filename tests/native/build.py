"""Compile the native headers with a test driver, for several widths of registers, optimisations and compilers."""

import ctypes
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from specdec.kernels.compiled.build import LibrarySources, build
from specdec.kernels.compiled.build_cache import cache_folder

HERE = Path(__file__).parent
SHARED, PASS = HERE.parents[1] / "specdec" / "kernels" / "cpp", HERE.parents[1] / "oracles" / "native" / "cpp"
FLAGS = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-shared", "-fPIC")
NATIVE = ("-march=native",) if platform.machine() == "x86_64" else ()  # elsewhere the base set has all that is used
COMPILERS = tuple(name for name in ("g++", "clang++") if shutil.which(name)) or (
    ("c++",) if shutil.which("c++") else ()
)


@dataclass(frozen=True)
class Build:
    """One way to compile: the lanes of a register, the optimisation, the compiler and what else the machine is told."""

    lanes: int
    level: str
    compiler: str
    machine: tuple[str, ...] = NATIVE

    def __str__(self) -> str:
        return " ".join((self.compiler, self.level, f"{self.lanes} lanes", *self.machine))

    def library(self, source: Path) -> ctypes.CDLL:
        """Load the library of `source`, compiled if no run of the tests on this machine has compiled these sources."""
        unit = LibrarySources(f"a library of tests ({self})", source, (SHARED,))
        flags = (*FLAGS, self.level, *self.machine, f"-DSPECDEC_LANES={self.lanes}")
        return ctypes.CDLL(str(build(unit, cache_folder(), (self.compiler,), flags)))


def widths() -> list[int]:
    """The numbers of lanes that this processor runs; none where it lacks a fused multiply-add."""
    if platform.machine() in ("aarch64", "arm64"):
        return [4]
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    needs = {16: {"avx512f", "avx2", "fma"}, 8: {"avx2", "fma", "f16c"}, 4: {"fma"}}
    return [lanes for lanes, need in needs.items() if need <= flags]


def builds() -> list[Build]:
    """Return every width at -O1 and -O3 by every compiler; on x86-64 also one without AVX2 and F16C."""
    found = [Build(lanes, level, name) for name in COMPILERS for lanes in widths() for level in ("-O3", "-O1")]
    if platform.machine() == "x86_64" and widths():
        found += [Build(4, "-O2", name, ("-mfma",)) for name in COMPILERS]
    return found
