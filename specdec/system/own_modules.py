"""``specdec.drafts`` and ``specdec.oracles``: second names of the packages ``drafts`` and ``oracles``.

The modules are the same ones, not copies. A folder of the user's called ``drafts`` or ``oracles`` would hide ours from
``import drafts``; by the second names ours are found, because they lie beside ``specdec``.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType

# Links are not followed: what lies beside the package is what its user has put there.
ROOT = Path(__file__).absolute().parents[2]
SECOND_NAMES = ("drafts", "oracles")
PREFIX = "specdec."


class OwnModules(MetaPathFinder, InspectLoader):
    """Find our packages by their second names, and those that are kept ours by their first.

    Attributes:
        kept: packages that are looked for only beside ``specdec``.
    """

    def __init__(self) -> None:
        self.kept: set[str] = set()

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        """Return how a module of ours is loaded; None: it is no concern of this finder.

        Raises:
            ModuleNotFoundError: a folder of the user's has the module, and the name of a package that is kept ours.
        """
        top, _, below = fullname.partition(".")
        if top in self.kept and not below:
            return PathFinder.find_spec(fullname, [str(ROOT)])
        if (
            top in self.kept
            and PathFinder.find_spec(fullname, path) is None
            and (hidden := find_hidden_module(fullname))
        ):
            words = f"{hidden} is hidden by specdec's package {top!r}: call your folder by another name"
            raise ModuleNotFoundError(f"No module named {fullname!r}; {words}", name=fullname)
        if fullname.startswith(PREFIX) and below.partition(".")[0] in SECOND_NAMES:
            return self._second_name(fullname)
        return None

    def _second_name(self, fullname: str) -> ModuleSpec | None:
        """Return the spec of a second name, if there is a module of the first."""
        name = fullname.removeprefix(PREFIX)
        self.keep(name.partition(".")[0])
        first = importlib.util.find_spec(name)
        if first is None:
            return None
        inside = first.submodule_search_locations
        return ModuleSpec(fullname, self, origin=first.origin, is_package=inside is not None)

    def exec_module(self, module: ModuleType) -> None:
        """Let the module of the first name take the place of the one that was to be loaded."""
        sys.modules[module.__name__] = importlib.import_module(module.__name__.removeprefix(PREFIX))

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code, for ``python -m specdec.oracles.smollm2``."""
        spec = importlib.util.find_spec(fullname.removeprefix(PREFIX))
        loader: Loader | None = None if spec is None else spec.loader
        return loader.get_code(fullname.removeprefix(PREFIX)) if isinstance(loader, InspectLoader) else None

    def get_source(self, fullname: str) -> str | None:
        """Return None: the source is that of the first name."""
        return None

    def keep(self, package: str) -> None:
        """Look for a package only beside ``specdec`` from here on.

        Raises:
            ImportError: another package of that name is loaded.
        """
        loaded = sys.modules.get(package)
        places = [] if loaded is None else [Path(place).resolve() for place in getattr(loaded, "__path__", [])]
        if loaded is not None and places != [(ROOT / package).resolve()]:
            raise ImportError(
                f"a package {package!r} that is not specdec's is loaded, from {', '.join(map(str, places))}: "
                f"import specdec.{package} before it, or call it by another name"
            )
        self.kept.add(package)


def find_hidden_module(fullname: str) -> str | None:
    """Return where a module of a package of the user's lies that has the name of one of ours; None: there is none."""
    top, _, below = fullname.partition(".")
    for place in map(Path, sys.path):
        package = PathFinder.find_spec(top, [str(place)]) if place.resolve() != ROOT.resolve() else None
        inside = None if package is None else package.submodule_search_locations
        found = PathFinder.find_spec(f"{top}.{below.partition('.')[0]}", inside) if inside else None
        if found is not None:
            return found.origin
    return None


_OWN = OwnModules()


def register() -> None:
    """Let the second names be imported."""
    if _OWN not in sys.meta_path:
        sys.meta_path.insert(0, _OWN)


def keep_ours(*packages: str) -> None:
    """Let packages be ours, whatever folders of their names come first where Python looks.

    Raises:
        ImportError: another package of such a name is loaded.
    """
    for package in packages:
        _OWN.keep(package)
