"""The house rules on imports: who may import whom, and that importing changes nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("specdec", "drafts", "oracles", "experiments", "tests")
MAY_IMPORT = {
    "specdec": set(),
    "drafts": {"specdec"},
    "oracles": {"specdec"},
    "experiments": {"specdec", "drafts", "oracles"},
    "tests/reference": set(),
}
FILES = {folder: sorted((ROOT / folder).rglob("*.py")) for folder in MAY_IMPORT}


def imported_by(path: Path) -> set[str]:
    """Return the full names of the modules that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = ".".join(path.relative_to(ROOT).parts[: -node.level]) if node.level else ""
            module = ".".join(part for part in (package, node.module) if part)
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return names


def ours(path: Path) -> set[str]:
    return {name for name in imported_by(path) if name.split(".")[0] in PACKAGES}


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_packages_import_only_what_they_may(folder):
    assert FILES[folder], "the folder was found"
    own = folder.split("/")[0]
    for path in FILES[folder]:
        for name in ours(path):
            top = name.split(".")[0]
            inside = top == own and (own != "tests" or name.startswith("tests.reference"))
            assert inside or top in MAY_IMPORT[folder], f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("folder", ["drafts", "specdec/rules"])
def test_siblings_do_not_import_each_other(folder):
    package = folder.replace("/", ".")
    siblings = {f"{package}.{path.stem}": path for path in (ROOT / folder).glob("*.py") if path.stem != "__init__"}
    assert siblings, "the folder was found"
    for name, path in siblings.items():
        others = set(siblings) - {name}
        found = {i for i in imported_by(path) if i == package or any(i == o or i.startswith(f"{o}.") for o in others)}
        assert not found, f"{path.relative_to(ROOT)} imports {found}"


def test_the_reader_of_imports_sees_every_form_of_them(tmp_path):
    path = ROOT / "specdec" / "rules" / "standard.py"
    assert {"dataclasses", "torch", "specdec.laws", "specdec.laws.Laws"} <= imported_by(path)
    hidden = tmp_path / "hidden.py"
    hidden.write_text("def f():\n    import drafts.ngram\n    from oracles import tabular\n")
    assert {"drafts.ngram", "oracles.tabular"} <= imported_by(hidden)


MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for folder in ("specdec", "drafts", "oracles")
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
changed = [name for name in before if before[name] != after[name]]
assert not changed, changed
print("unchanged")
"""
# Third-party libraries are imported first: what they do to the process is not ours.
LIBRARIES = ["scipy.stats", "tokenizers", "safetensors.torch", "tqdm"]


def test_importing_everything_changes_no_global_state_and_needs_no_optional_library():
    probe = PROBE % (LIBRARIES, MODULES)
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "unchanged", done.stderr[-2000:]
