"""The house rules on imports: who may import whom, and that importing changes nothing but one list of finders."""

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from specdec.verify import RULES

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("exactspec", "specdec", "drafts", "oracles", "experiments", "tests")
MAY_IMPORT = {
    "exactspec": set(),
    "specdec": set(),
    "drafts": {"specdec"},
    "oracles": {"specdec", "exactspec"},
    "experiments": {"specdec", "drafts", "oracles", "exactspec"},
    "tests/reference": set(),
}
FILES = {folder: sorted((ROOT / folder).rglob("*.py")) for folder in MAY_IMPORT}
# What type checkers read in place of code, and the packages whose second names two of these are.
STUBS = {folder: sorted((ROOT / folder).rglob("*.pyi")) for folder in MAY_IMPORT}
SECOND_NAMES = {"specdec/drafts.pyi": "drafts", "specdec/oracles.pyi": "oracles"}

# The rooms and the modules of the ground floor of specdec, and on which of them each may stand: on none below it here.
STANDS_ON = {
    "transfers": set(),
    "system": set(),
    "theory": set(),
    "prompts": {"theory"},
    "laws": {"transfers"},
    "contracts": {"laws", "theory", "transfers"},
    "cache": {"contracts", "transfers"},
    "stats": {"contracts", "theory"},
    "kernels": {"contracts", "laws", "system", "transfers"},
    "grammars": {"contracts"},
    "sampling": {"contracts", "grammars", "kernels", "laws", "transfers"},
    "requests": {"contracts", "grammars", "sampling", "system", "theory"},
    "verify": {"contracts", "kernels", "laws", "theory", "transfers"},
    "engine": {
        *("contracts", "laws", "cache", "stats", "kernels", "sampling", "requests", "verify", "theory", "transfers")
    },
    "drafting": {"contracts", "laws", "cache", "theory", "transfers"},
    "calibration_run": {"contracts", "theory", "sampling", "requests", "engine", "drafting"},
    "exactness": {"contracts", "laws", "theory", "cache", "grammars", "sampling", "requests", "engine"},
    "traces": {
        *("contracts", "laws", "theory", "sampling", "requests", "verify"),
        *("transfers", "engine", "drafting", "stats", "system"),
    },
    "drafts": {"contracts", "laws", "theory", "verify", "drafting", "transfers", "system"},
    "oracles": {"contracts", "cache", "kernels", "prompts", "theory", "transfers", "system"},
    "factory": {"contracts", "cache", "sampling", "engine", "drafting", "prompts", "stats", "system"},
}
# What lets an oracle write text, trains and measures it stands higher than the models do.
FACTORY = "factory"
ROOMS = {path.parent.name for path in (ROOT / "specdec").glob("*/__init__.py")}
# A room may have rooms within it: ``specdec.drafting.shapes``.
DOORS = {".".join(path.relative_to(ROOT).parts[:-1]) for path in (ROOT / "specdec").rglob("__init__.py")}


@cache
def imports_of(path: Path) -> frozenset[tuple[str, str]]:
    """Return (module, name) for every name that a file imports, wherever in it; the name is "" for a whole module."""
    found: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = ".".join(path.relative_to(ROOT).parts[: -node.level]) if node.level else ""
            module = ".".join(part for part in (package, node.module) if part)
            found |= {(module, alias.name) for alias in node.names}
    return frozenset(found)


def imported_by(path: Path) -> set[str]:
    """Return the full names of the modules that a file imports, wherever in it, and of what it takes from them."""
    found = imports_of(path)
    return {module for module, _ in found} | {f"{module}.{name}" for module, name in found if name}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def ours(path: Path) -> set[str]:
    return {name for name in imported_by(path) if name.split(".")[0] in PACKAGES}


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_packages_import_only_what_they_may(folder):
    assert FILES[folder], "the folder was found"
    own = folder.split("/")[0]
    for path in [*FILES[folder], *STUBS[folder]]:
        where = path.relative_to(ROOT).as_posix()
        for name in ours(path):
            top = name.split(".")[0]
            inside = top == own and (own != "tests" or name.startswith("tests.reference"))
            assert inside or top in MAY_IMPORT[folder] or top == SECOND_NAMES.get(where), f"{where} imports {name}"


SHARED = ("registry", "native_judge", "chain_verdicts", "tree_verdicts")


@pytest.mark.parametrize(("folder", "shared"), [("drafts", ()), ("specdec/verify", SHARED)])
def test_siblings_do_not_import_each_other(folder, shared):
    package, apart = folder.replace("/", "."), ("__init__", *shared)
    siblings = {f"{package}.{path.stem}": path for path in (ROOT / folder).glob("*.py") if path.stem not in apart}
    assert siblings, "the folder was found"
    rules = {type(rule).__module__ for rule in RULES.values()}  # beside what looks them up and runs them
    for name, path in siblings.items():
        if folder == "specdec/verify" and name not in rules:
            continue
        others = set(siblings) - {name}
        found = {i for i in imported_by(path) if i == package or any(i == o or i.startswith(f"{o}.") for o in others)}
        way_out = "share through chain_verdicts.py or tree_verdicts.py" if shared else "share through specdec.drafting"
        assert not found, f"{path.relative_to(ROOT)} imports {found}: files of {folder} stand alone; {way_out}"


# What may be an import of a test module: to parse all files takes seconds.
PERHAPS = re.compile(r"\b(from|import)\s[^\n(]*(\([^)]*)?\btest_")


def test_a_file_has_a_name_of_its_own_but_the_script_of_a_source():
    files = (path for folder in PACKAGES[:-1] for path in FILES[folder] if not path.stem.startswith("__"))
    named = Counter(path.stem for path in files)
    twice = {stem for stem, count in named.items() if count > 1}
    sources, scripts = ({path.stem for path in (ROOT / folder).glob("*.py")} for folder in ("drafts", "experiments"))
    assert twice == sources & scripts - {"__init__"}
    assert max(named.values()) == 2


def test_no_test_module_imports_another():
    """What tests share is in ``tests/support``; mutants alone name the tests that kill them."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if not PERHAPS.search(path.read_text()):
            continue
        names = {name for name in imported_by(path) if re.match(r"tests\.(\w+\.)*test_", name)}
        assert not names or path.stem.endswith("mutants"), f"{path} imports {names}"


def part_of(path: Path) -> str:
    """Return the room or the module of the ground floor that a file of specdec belongs to; of others the folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[:2] == ("oracles", FACTORY):
        return FACTORY
    return parts[1] if parts[0] == "specdec" else parts[0]


def parts_used(part: str) -> set[str]:
    """Return the other parts of specdec that a part imports; "specdec" where it imports the package as a whole."""
    files = [path for paths in FILES.values() for path in paths if part_of(path) == part]
    assert files, f"{part} was found"
    found: set[str] = set()
    for module, name in (pair for path in files for pair in imports_of(path)):
        names = f"{module}.{name}".split(".")
        if names[0] == "specdec":
            found.add(names[1] if names[1] in STANDS_ON else "specdec")
    return found - {part}


def standing_on(part: str) -> set[str]:
    """Return everything below a part."""
    return STANDS_ON[part].union(*map(standing_on, STANDS_ON[part]))


@pytest.mark.parametrize("part", STANDS_ON)
def test_a_part_stands_on_what_it_may(part):
    assert parts_used(part) == STANDS_ON[part]


def test_every_part_has_its_place_and_none_stands_on_one_below_it():
    entries = {part_of(path) for path in FILES["specdec"]} - {"__init__"}
    assert entries == set(STANDS_ON) - {"drafts", "oracles", FACTORY}
    order = list(STANDS_ON)
    assert [(a, b) for a in order for b in STANDS_ON[a] if order.index(b) >= order.index(a)] == []


def test_contracts_stand_on_laws_theory_and_transfers_alone_and_a_step_on_nothing_that_drafts_measures_or_proves():
    assert standing_on("contracts") == {"laws", "theory", "transfers"}
    assert standing_on("engine").isdisjoint({"drafting", "calibration_run", "exactness", "traces", "prompts"})
    assert standing_on("oracles") == {
        *("laws", "theory", "contracts", "cache", "kernels", "prompts", "transfers", "system")
    }
    assert standing_on("drafts").isdisjoint({"engine", "sampling", "exactness", "prompts"})


def first_circle(files: Mapping[str, Path]) -> list[str]:
    """Return modules that import one another in a circle, types that annotations name among it; [] if none do."""
    graph: dict[str, set[str]] = {}
    for own, path in files.items():
        names = {f"{module}.{name}" if f"{module}.{name}" in files else module for module, name in imports_of(path)}
        graph[own] = {name for name in names if name in files and name != own}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_files_import_one_another_in_a_circle(tmp_path):
    files = {module_of(path): path for folder in MAY_IMPORT for path in FILES[folder]}
    assert len(files) > 400
    assert first_circle(files) == []
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.py").write_text(f"def f():\n    from {other} import g\n")
    assert set(first_circle({name: tmp_path / f"{name}.py" for name in "ab"})) == {"a", "b"}


@pytest.mark.parametrize("folder", ["specdec", "drafts", "oracles", "experiments"])
def test_rooms_are_entered_by_their_doors(folder):
    for path in FILES[folder]:
        for module, name in imports_of(path):
            top, room = (*module.split("."), "")[:2]
            if top != "specdec" or room not in ROOMS or part_of(path) == room:
                continue
            where = f"{path.relative_to(ROOT)}: {module}: {name}"
            assert module in DOORS, f"{where} comes through the wall; import it from the folder's __init__"
            assert name in importlib.import_module(module).__all__, f"{where} is not in the room's __all__"


def test_the_reader_of_imports_sees_every_form_of_them(tmp_path):
    path = ROOT / "specdec" / "verify" / "standard.py"
    assert {"dataclasses", "torch", "specdec.laws", "specdec.laws.Laws"} <= imported_by(path)
    hidden = tmp_path / "hidden.py"
    hidden.write_text("def f():\n    import drafts.ngram\n    from oracles import tabular\n")
    assert {"drafts.ngram", "oracles.tabular"} <= imported_by(hidden)
    named = tmp_path / "named.py"
    named.write_text("import a\nif TYPE_CHECKING:\n    from b import C\n")
    assert imports_of(named) == {("a", ""), ("b", "C")}


MODULES = sorted(
    module_of(path)
    for folder in ("exactspec", "specdec", "drafts", "oracles")
    for path in FILES[folder]
    if path.stem != "__main__"
)
PROBE = """
import importlib, logging, os, random, signal, sys, warnings
import numpy, torch

def look():
    return {
        "torch state": torch.random.get_rng_state().tolist(),
        "numpy state": str(numpy.random.get_state()),
        "python state": random.getstate(),
        "default dtype": torch.get_default_dtype(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "grad": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "flush": float(torch.tensor(1e-310, dtype=torch.float64) * 1.0),
        "numpy errors": numpy.geterr(),
        "print options": str(numpy.get_printoptions()) + str(torch._tensor_str.PRINT_OPTS),
        "warnings": list(warnings.filters),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "interrupt": signal.getsignal(signal.SIGINT),
        "logging": (logging.root.level, list(logging.root.handlers)),
        "finders": list(sys.meta_path),
    }

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("datasets", "transformers", "matplotlib", "experiments", "tests"):
            raise ImportError("not installed: " + name)

sys.meta_path.insert(0, Refuse())
libraries = %r
for name in libraries:
    importlib.import_module(name)
before = look()
for name in %r:
    importlib.import_module(name)
after = look()
# One finder is ours, of the second names of drafts and oracles, and stands before all others.
own, *after["finders"] = after["finders"]
assert type(own).__name__ == "OwnModules", own
changed = [name for name in before if before[name] != after[name]]
assert not changed, changed
print("unchanged")
"""
# Third-party libraries are imported first: what they do to the process is not ours.
LIBRARIES = ["scipy.stats", "tokenizers", "safetensors.torch", "tqdm", "jinja2"]


def test_importing_everything_changes_no_global_state_and_needs_no_optional_library():
    probe = PROBE % (LIBRARIES, MODULES)
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "unchanged", done.stderr[-2000:]


# What a process does, one thing after the other, and what is not loaded after that.
SPARED = {
    "import specdec": (
        *("scipy", "datasets", "pyarrow", "matplotlib", "transformers", "jinja2"),
        *("specdec.exactness", "specdec.traces"),
    ),
    "import specdec.prompts": ("datasets",),
    "import oracles, experiments.harness.models": ("transformers",),
    "oracles.load('code-draft')": ("torch._dynamo",),
}


def test_nothing_is_loaded_before_it_is_needed():
    lines = [f"{step}\nprint([name for name in {spared} if name in sys.modules])" for step, spared in SPARED.items()]
    probe = "\n".join(["import sys", *lines])
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["[]"] * len(SPARED), done.stdout + done.stderr[-2000:]
