"""Programs that score and draw with the native sources: no warning, no fault for a sanitizer, the same bits always."""

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.build import FLAGS, HERE, NATIVE, PASS, SHARED, Build, builds, widths
from tests.support.pairwise import first_of

BUILDS = builds()
pytestmark = pytest.mark.skipif(not BUILDS, reason="needs a C++ compiler and a processor with fused multiply-add")

PROGRAM = (*(flag for flag in FLAGS if flag != "-shared"), "-pthread")
RECORDED = {
    "pass_driver.cpp": """\
llama 5fd0c5fb3c96f057 8a2e02e773a95e8a 3b3c0d6d63b8797e 2eb6386ad8d2e9a6 a77b388756e42e92
llama 5fd0c5fb3c96f057 8a2e02e773a95e8a 3b3c0d6d63b8797e 2eb6386ad8d2e9a6 a77b388756e42e92
llama 5fd0c5fb3c96f057 8a2e02e773a95e8a 3b3c0d6d63b8797e 2eb6386ad8d2e9a6 a77b388756e42e92
llama 5fd0c5fb3c96f057 8a2e02e773a95e8a 3b3c0d6d63b8797e 2eb6386ad8d2e9a6 a77b388756e42e92
llama d4371813e8baaeee bb5365395ccc2801 728767c4ca0e7dab d2704f24bb983a54 351fb2bdd5c3b8fa
llama fdfbaa282bcb0d4c 7c3fe905c1fb808e ddd5fc7bbc3cd80f cca0313b1bff8e36 376c62ea5fda8468
llama 5fd0c5fb3c96f057 8a2e02e773a95e8a 3b3c0d6d63b8797e 2eb6386ad8d2e9a6 a77b388756e42e92
llama d4371813e8baaeee bb5365395ccc2801 728767c4ca0e7dab d2704f24bb983a54 351fb2bdd5c3b8fa
llama d4371813e8baaeee bb5365395ccc2801 728767c4ca0e7dab d2704f24bb983a54 351fb2bdd5c3b8fa
llama 8a97184cd0d7ee89 23b6de5533508dc2 eb68a884a7b0fd33 dd1977a980bd222f 2101208af416825a
llama bd3fb1012ed200f6 4a505ee2b2765de3 2ef7eb60304f4daf 4693a8ecceb0424b af76c8c6ab4aee03
llama 2211684655557d1b bac8f6f7bf73ad59 d7a7d9189c733dfe 8dccd44dac21e6b3 21b435d66ca0eae3
window e2f4439b82d1c7b0 87814f9e6b3ab9e9 91005d7d4a124477 918b200e72054fe0 ba4afd8c2f83e214
wide window 988cca6b512ceb70 75b299eaa999da0a a61ea4d49ed2ac36 9b06379488d3b21b a8c76c7c5575e7ba
gpt2 173bfdaa5d9b2b50 d3df08524230c869 9f5f1778c9898c6e fd41f9e26e275cf8 f5ff66e15891295d
neox a93d7c31c23d1948 820c93e5148f4028 93de4220533b0604 79105c4954205bb6 31dcf7b7267bb56a
pairs eb159aae1cb089fa 568987a6b539cb4b abc93b8ca31f4571 fc18703c99adfeab 8971fc889a746ec6
pairs 7adc8512965f4942 8e87ac074fd91fa7 0617ca36cefba52c 653428d4544b700c c85089b2afcffb23
some ids 97277a29295083e1 c0b4ccc44b4a396b ab639349a3822451 d14f9721f018c437 0be946bbffa67e7b
some ids a3ed5caa17346655 31af7dffefec7fa4 51eac909d825c27d 94a6bf80b300a3e1 a0974957916bd180
odd a63d718327c65389 4e6351f4656d39db 88a612f377ae29a2 46689a1e6a3d0669 0200acc2171dbb65
odd a63d718327c65389 4e6351f4656d39db 88a612f377ae29a2 46689a1e6a3d0669 0200acc2171dbb65
odd 0c6bcd39279d0dba cc2ba9ac910da461 374f3f3f0c9fc349 6901cb2711de07cf 46ee01747e2c54cb
odd baf8b7badcef5b4a fa0715874ca3cbc1 463535e680671459 bbf2a75cae16fec0 020545339e3b8117
odd 0c6bcd39279d0dba cc2ba9ac910da461 374f3f3f0c9fc349 6901cb2711de07cf 46ee01747e2c54cb
odd 1142d1dd71fa4be4 929590db5e9b34cc bd323dc825ee09cd bdf89402932e6953 5a871affff18c3cf
odd ffc1147e8dce96c7 5930fd31eaa913ef 4728c5544557fa04 23b193693562da2e 89df9c0cdc0d35ef
""",
    "laws_driver.cpp": """\
float 8c28d09c2fdbec83 60c312f78b60cbe4
double e6936bd36e21a2ff 8b6e96a72f29d02d
judged eadda0d007f659d5
""",
}
each_driver = pytest.mark.parametrize("driver", RECORDED)
SANITIZERS = {
    "address and undefined behaviour": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
ZIG = (sys.executable, "-m", "ziglang", "c++", "-fno-sanitize=all")
# Scratch memory is handed out of one piece; here each part of it is followed by bytes that nobody may touch.
TAKEN = "        bytes_ += rounded(count * int64_t(sizeof(T)), 128);\n"
GUARDED = """\
        const int64_t size = count * int64_t(sizeof(T)), room = rounded(size, 128) + 128;
        if (at) __asan_unpoison_memory_region(at, size_t(size));  // a chain's next pass lays the same memory out anew
        if (at) __asan_poison_memory_region(at + size, size_t(room - size));
        bytes_ += room;
"""


def ran(*command: str | Path) -> str:
    """Return what a program prints."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, f"{command[0]}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-8000:]}"
    return done.stdout


def program(driver: str, folder: Path, *command: str, sources: Path = PASS) -> Path:
    """Compile a driver, by a compiler and with flags of one's choice."""
    ran(*command, *PROGRAM, f"-I{sources}", f"-I{SHARED}", HERE / driver, "-o", folder / "driver")
    return folder / "driver"


def by_ours(build: Build) -> tuple[str, ...]:
    return (build.compiler, build.level, *build.machine, f"-DSPECDEC_LANES={build.lanes}")


def needed_sanitizer(folder: Path, compiler: str, flags: tuple[str, ...]) -> None:
    """Skip the test where a sanitizer's runtime is missing, or does not start on this system."""
    (folder / "empty.cpp").write_text("int main() {}\n")
    for command in ([compiler, *flags, folder / "empty.cpp", "-o", folder / "empty"], [folder / "empty"]):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
        if done.returncode:
            pytest.skip(f"not run: {compiler} {' '.join(flags)}: {done.stderr.strip()[-300:]}")


def needed_cross_compiler() -> tuple[str, ...]:
    """Return what compiles for aarch64, without a need for its libraries: ``$AARCH64_CXX``, a cross GCC, or zig."""
    if named := os.environ.get("AARCH64_CXX"):
        return tuple(shlex.split(named))
    if shutil.which("aarch64-linux-gnu-g++"):
        return ("aarch64-linux-gnu-g++", "-static")
    if importlib.util.find_spec("ziglang"):
        return (*ZIG, "-target", "aarch64-linux-musl", "-static")
    pytest.skip("not run: nothing compiles for aarch64 (AARCH64_CXX, aarch64-linux-gnu-g++, the package ziglang)")


def needed_emulator() -> tuple[str, ...]:
    """Return what runs programs for aarch64: ``$QEMU_AARCH64``, or qemu's user mode."""
    if named := os.environ.get("QEMU_AARCH64"):
        return tuple(shlex.split(named))
    found = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    return (found,) if found else pytest.skip("not run: nothing runs aarch64 (QEMU_AARCH64, qemu-aarch64)")


# Every build of the laws' library takes a warning for an error, and the quick suite makes them all.
@pytest.mark.parametrize("driver", first_of(*RECORDED))
@pytest.mark.parametrize("build", [build for build in BUILDS if build.level == "-O3"], ids=str)
def test_the_sources_compile_without_a_warning(build, driver):
    """The drivers include the sources of both libraries whole."""
    ran(*by_ours(build), *PROGRAM, f"-I{PASS}", f"-I{SHARED}", "-fsyntax-only", HERE / driver)


@pytest.mark.long
@each_driver
@pytest.mark.parametrize("lanes", widths()[:2])
@pytest.mark.parametrize("flags", SANITIZERS.values(), ids=SANITIZERS)
def test_a_sanitizer_finds_nothing(flags, lanes, driver, tmp_path):
    needed_sanitizer(tmp_path, BUILDS[0].compiler, flags)
    sources = shutil.copytree(PASS, tmp_path / "sources", ignore=shutil.ignore_patterns("__pycache__"))
    if "address" in flags[0]:
        nodes = (sources / "nodes.h").read_text()
        assert TAKEN in nodes
        nodes = "#include <sanitizer/asan_interface.h>\n" + nodes.replace(TAKEN, GUARDED)
        (sources / "nodes.h").write_text(nodes)
    level = "-O0" if "address" in flags[0] else "-O1"  # half the time of compiling
    command = (BUILDS[0].compiler, level, "-g1", *NATIVE, f"-DSPECDEC_LANES={lanes}", *flags)
    built = program(driver, tmp_path, *command, sources=sources)
    assert ran(built) == RECORDED[driver]


@pytest.mark.long
def test_a_sanitizer_sees_the_end_of_each_part_of_scratch_memory(tmp_path):
    flags = SANITIZERS["address and undefined behaviour"]
    needed_sanitizer(tmp_path, BUILDS[0].compiler, flags)
    (tmp_path / "short.cpp").write_text(
        f"""#include <sanitizer/asan_interface.h>
        #include <cstdint>
        int64_t rounded(int64_t size, int64_t unit) {{ return (size + unit - 1) / unit * unit; }}
        int main() {{
            using T = float;
            char* at = new char[1024];
            int64_t bytes_ = 0, count = 5;
            {GUARDED}
            reinterpret_cast<volatile T*>(at)[5] = 1;
            return int(bytes_ - bytes_);
        }}"""
    )
    ran(BUILDS[0].compiler, *flags, tmp_path / "short.cpp", "-o", tmp_path / "short")
    done = subprocess.run([tmp_path / "short"], capture_output=True, text=True)
    assert "use-after-poison" in done.stderr


@pytest.mark.long
@each_driver
@pytest.mark.parametrize("build", [build for build in BUILDS if build.machine == NATIVE], ids=str)
def test_every_build_prints_the_recorded_bits(build, driver, tmp_path):
    assert ran(program(driver, tmp_path, *by_ours(build))) == RECORDED[driver]


@pytest.mark.long
@each_driver
@pytest.mark.parametrize("level", ["-O1", "-O3"])
def test_clang_prints_the_recorded_bits(level, driver, tmp_path):
    if not importlib.util.find_spec("ziglang"):
        pytest.skip("not run: the package ziglang, which brings a clang, is not installed")
    for lanes in sorted({build.lanes for build in BUILDS}):
        target = ("-target", f"{platform.machine()}-linux-gnu", "-mcpu=native")
        built = program(driver, tmp_path, *ZIG, *target, level, f"-DSPECDEC_LANES={lanes}")
        assert ran(built) == RECORDED[driver], lanes


@pytest.mark.long
@each_driver
@pytest.mark.parametrize("level", ["-O1", "-O3"])
def test_another_machine_prints_the_recorded_bits(level, driver, tmp_path):
    emulator, compiler = needed_emulator(), needed_cross_compiler()
    assert ran(*emulator, program(driver, tmp_path, *compiler, level)) == RECORDED[driver]
