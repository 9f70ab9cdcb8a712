"""Our packages by names that no folder of the user's hides: the same modules, by the command and by ``specdec``."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import drafts
import oracles
import specdec
from specdec.system.own_modules import OwnModules
from tests.support.processes import python

TINY = ("--oracle", "code-draft-tiny", "--num-prompts", "1", "--max-new-tokens", "4", "--threads", "1")
NAMES = ("drafts", "oracles", "experiments")


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """Return a folder in which packages have the names of ours, and stop whatever imports them."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit(f'a user has {__name__}')")
        (tmp_path / name / "mine.py").write_text("")
    return tmp_path


def test_second_names_are_the_same_modules():
    assert importlib.import_module("specdec.drafts") is drafts is specdec.drafts
    assert importlib.import_module("specdec.oracles") is oracles
    assert importlib.import_module("specdec.drafts.ngram") is importlib.import_module("drafts.ngram")
    from specdec.oracles.checkpoints.loading import load

    from specdec.drafts import NGram

    assert NGram is drafts.NGram
    assert load is oracles.load
    assert drafts.__spec__ is not None
    assert (drafts.__name__, drafts.__spec__.name) == ("drafts", "drafts")


def test_what_is_not_there_has_no_second_name():
    assert importlib.util.find_spec("specdec.drafts.nothing") is None
    assert importlib.util.find_spec("specdec.experiments") is None
    with pytest.raises(ModuleNotFoundError, match=r"drafts\.nothing"):
        importlib.import_module("specdec.drafts.nothing")


def test_the_command_runs_ours_among_folders_of_their_names(crowded):
    hidden = python("-m", "experiments.prompt_lookup", *TINY, cwd=crowded)
    assert hidden.stderr == "a user has experiments\n", "they do hide ours from python -m"
    done = python("-m", "exactspec", "prompt_lookup", *TINY, cwd=crowded)
    assert done.returncode == 0, done.stderr[-2000:]
    (folder,) = (crowded / "runs").iterdir()
    page = f"Why, in words, with charts and traces: exactspec report runs/{folder.name}"
    assert done.stdout.splitlines()[-1] == page
    done = python("-m", "exactspec", "oracles.factory.corpus", "--help", cwd=crowded)
    assert done.stdout.startswith("usage: exactspec oracles.factory.corpus [-h]"), done.stderr


def test_second_names_find_ours_and_run_them_among_folders_of_their_names(crowded):
    script = (
        "import runpy, sys\n"
        "import specdec\n"
        "from specdec.drafts import PromptLookup\n"
        "import specdec.oracles.checkpoints.loading\n"
        "import drafts, oracles\n"
        "assert drafts is specdec.drafts and drafts.PromptLookup is PromptLookup\n"
        "assert oracles is specdec.oracles and oracles.load is specdec.oracles.checkpoints.loading.load\n"
        "print(specdec.SpeculativeDecoder(oracles.load('code-draft-tiny'), PromptLookup(num_draft_tokens=2))"
        ".generate(['a a a'], max_new_tokens=2).tokens)\n"
        "try:\n    import drafts.mine\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
        "sys.argv = ['smollm2', '--help']\n"
        "try:\n    runpy.run_module('specdec.oracles.smollm2', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "import experiments\n"
    )
    done = python("-c", script, cwd=crowded)
    tokens, words, usage = done.stdout.splitlines()[:3]
    assert tokens.startswith("[[")
    where = crowded / "drafts" / "mine.py"
    assert words.startswith(f"No module named 'drafts.mine'; {where} is hidden by specdec's package 'drafts'")
    assert usage.startswith("usage: python -m specdec.oracles.smollm2 [-h]"), done.stderr
    assert done.stderr.splitlines()[-1] == "a user has experiments", "no name is taken that was not asked for"


def test_a_package_of_the_users_that_is_loaded_is_not_replaced(tmp_path, monkeypatch):
    theirs = ModuleType("drafts")
    theirs.__path__ = [str(tmp_path / "drafts")]
    monkeypatch.setitem(sys.modules, "drafts", theirs)
    monkeypatch.delitem(sys.modules, "specdec.drafts", raising=False)
    told = (
        rf"^a package 'drafts' that is not specdec's is loaded, from {tmp_path}/drafts: import specdec.drafts before it"
    )
    with pytest.raises(ImportError, match=told):
        importlib.import_module("specdec.drafts")
    assert sys.modules["drafts"] is theirs


def test_a_finder_that_keeps_nothing_leaves_first_names_alone():
    assert OwnModules().find_spec("drafts", None) is None
    assert OwnModules().find_spec("specdec.verify", None) is None
