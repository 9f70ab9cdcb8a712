"""The machine that native code is compiled for: may it be, with which flags, and what tells it from others."""

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
X86_NEEDS = ("avx2", "fma", "f16c")
TARGET_FLAGS = {"x86_64": "-march=native", "aarch64": "-mcpu=native"}
# What -march=native depends on; the other lines of cpuinfo change from one reading to the next.
TELLING = ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU implementer", "CPU part")


class NativeUnavailable(RuntimeError):
    """Compiled code cannot be had here. The message is the reason, and the way out if there is one."""


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
    missing = [name for name in X86_NEEDS if name not in cpu().split()]
    if machine == "x86_64" and missing:
        raise NativeUnavailable(f"the native code needs a CPU with {', '.join(X86_NEEDS)}; this one lacks {missing}")
    return TARGET_FLAGS[machine]
