"""The wheel holds the packages with checkpoints and prompts, and works outside the checkout."""

import configparser
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from specdec.kernels.compiled.build_cache import lock

ROOT = Path(__file__).parents[2]
EMBEDDED = ROOT / "oracles" / "embedded"
PACKAGES = ("exactspec", "specdec", "drafts", "oracles", "experiments")
SHIPPED = (*PACKAGES, "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "NOTICE")
# What a user of the package, of the command and of a script does, each part printed behind a mark.
PROGRAM = """
import contextlib, io, runpy, sys
import specdec, drafts, oracles
from exactspec.console import main

def printed(program, *arguments, **options):
    text = io.StringIO()
    try:
        with contextlib.redirect_stdout(text):
            program(*arguments, **options)
    except SystemExit as end:
        assert not end.code, end.code
    print(text.getvalue(), end="====")
    return text.getvalue()

def script(module, *arguments):
    sys.argv = [module, *arguments]
    return printed(runpy.run_module, module, run_name="__main__", alter_sys=True)

oracle = oracles.load("code")
decoder = specdec.SpeculativeDecoder(oracle, drafts.PromptLookup(num_draft_tokens=4))
result = decoder.generate(["import os\\nimport os\\nimport"], max_new_tokens=4)
same = oracles.load("code-draft").vocab_size == oracle.vocab_size
layers = oracles.load_head("code-exit", oracle).num_layers
printed(print, oracles.__file__, len(result.tokens[0]), same, layers)
told = script("experiments.prompt_lookup", *sys.argv[1:])
script(*told.splitlines()[-1].partition("python -m ")[2].split())
printed(main, ["watch", "--help"])  # with which a process ends
"""


def of_all_workers(factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all workers of this run of the tests share."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel, which one worker builds."""
    folder = of_all_workers(tmp_path_factory)
    with lock(folder / "wheel.lock"):
        if not (folder / "wheel").exists():
            built_in(tmp_path_factory.mktemp("copy")).rename(folder / "wheel")
    (built,) = (folder / "wheel").glob("*.whl")
    return built


def built_in(copy: Path) -> Path:
    """Return the folder of the wheel. It is built in a copy: a build folder left in the checkout would be shipped."""
    for name in SHIPPED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--quiet", "-w", "out"]
    stored = "--config-settings=--build-option=--compression=stored"  # to deflate weights takes seconds
    subprocess.run([*command, stored], cwd=copy, check=True)
    return copy / "out"


@pytest.fixture(scope="session")
def site(wheel: Path) -> Path:
    """Return what the wheel installs, which one worker unpacks."""
    folder = wheel.parents[1]
    with lock(folder / "wheel.lock"):
        if not (folder / "site").exists():
            zipfile.ZipFile(wheel).extractall(folder / "unpacking")
            (folder / "unpacking").rename(folder / "site")
    return folder / "site"


def read_config(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(path)
    return parser


def test_the_wheel_holds_the_packages_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == set(PACKAGES)
    sources = {
        str(p.relative_to(ROOT))
        for top in tops
        for kind in ("py", "cpp", "h", "jsonl", "js", "css", "html")
        for p in (ROOT / top).rglob(f"*.{kind}")
    }
    embedded = {str(p.relative_to(ROOT)) for p in EMBEDDED.rglob("*") if p.suffix in (".json", ".safetensors", ".xz")}
    assert sources | embedded <= set(names)
    assert {f"{package}/py.typed" for package in PACKAGES} | {"specdec/drafts.pyi", "specdec/oracles.pyi"} <= set(names)


def test_the_wheel_works_outside_the_checkout(site, tmp_path):
    (entries,) = site.glob("*.dist-info/entry_points.txt")
    (place,) = read_config(entries)["console_scripts"].items()
    assert place == ("exactspec", "exactspec.console:main")
    sizes = ["--oracle", "code-draft-tiny", "--num-prompts", "2", "--max-new-tokens", "4", "--threads", "1"]
    command, environment = [sys.executable, "-c", PROGRAM, *sizes], {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    package, experiment, page, usage, rest = done.stdout.split("====")
    location, count, same, exit_layers = package.split()
    assert Path(location).is_relative_to(site)
    assert (count, same, exit_layers, rest) == ("4", "True", "2", "")
    assert usage.startswith("usage: exactspec watch [OPTIONS] prompt")
    assert "2/2" in experiment
    (folder,) = (tmp_path / "runs").iterdir()
    assert experiment.splitlines()[-1].endswith(f"python -m experiments.report runs/{folder.name}")
    assert page.startswith(f"Written: runs/{folder.name}/page.html (")
    assert json.loads((folder / "summary.json").read_text(encoding="utf-8"))["provenance"]["commit"] is None


@pytest.mark.parametrize("name", ["prompt_lookup", "sweep", "watch"])
def test_the_usage_of_a_script_is_the_command_that_starts_it(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    for imported in (f"experiments.{name}", f"experiments.{name}.__main__"):  # runpy warns of one that was imported
        monkeypatch.delitem(sys.modules, imported, raising=False)
    with pytest.raises(SystemExit) as stop:
        runpy.run_module(f"experiments.{name}", run_name="__main__", alter_sys=True)
    assert stop.value.code == 0
    assert re.match(rf"usage: python -m experiments\.{name} \[(-h|OPTIONS)\]", capsys.readouterr().out)
