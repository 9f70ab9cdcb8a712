"""The command ``exactspec``: what it lists and runs, and its helps, which load no library."""

import json
import os
import re
import signal
import subprocess
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from itertools import chain

import pytest

import exactspec
from exactspec import console, ending, stand_ins
from exactspec.console import main
from exactspec.listing import GROUPS, listing, module_of, modules
from exactspec.parser import Parser, command_like_this
from experiments.harness import running
from experiments.strategies import STRATEGIES
from tests.support.processes import ROOT, python

# What runs for us alone, or for another program: found by its module's name.
UNLISTED = {
    "experiments.studies.inference_stack.fresh",
    "oracles.factory.train_arithmetic",
    "oracles.factory.corpus",
    "oracles.checkpoints.tokenization",
}
LIBRARIES = (
    "torch", "numpy", "scipy", "pandas", "matplotlib", "transformers", "datasets", "pyarrow", "tokenizers", "rich",
)  # fmt: skip
HELPS = """
import contextlib, io, json, sys
from exactspec.console import main
from exactspec.listing import modules
helps = {}
for name in modules():
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        main([name, "--help"])
    helps[name] = printed.getvalue()
files = {name: str(getattr(module, "__file__", "")) for name, module in sys.modules.items()}
loaded = [name for name, file in files.items() if "site-packages" in file and not name.startswith("_")]
print(json.dumps([helps, loaded]))
"""


def scripts() -> set[str]:
    """Return the modules of ours that run as programs."""
    found = set()
    for folder in ("experiments", "oracles"):
        for path in (ROOT / folder).rglob("*.py"):
            if '__name__ == "__main__"' in path.read_text(encoding="utf-8"):
                found.add(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__"))
    return found


@pytest.fixture(scope="module")
def helps() -> tuple[dict[str, str], list[str]]:
    """Return the help of every command, made in one process, and what that process had loaded in the end."""
    done = python("-c", HELPS)
    assert done.returncode == 0, done.stderr[-2000:]
    texts, loaded = json.loads(done.stdout)
    return texts, loaded


def test_every_script_is_listed_once():
    listed = list(modules().values())
    assert len(listed) == len(set(listed)) == sum(map(len, GROUPS.values()))
    assert scripts() - set(listed) == UNLISTED
    assert set(listed) <= scripts()


def test_the_list_has_a_line_for_each_command_that_fits_a_terminal(capsys):
    assert main(["--help"]) == main([]) == 0
    printed = capsys.readouterr().out
    assert printed == f"{listing()}\n" * 2
    assert max(map(len, listing().splitlines())) < 80
    assert re.findall(r"^  (\w+)  +\S", listing(), flags=re.MULTILINE) == list(modules())


@pytest.mark.parametrize(
    ("name", "meant"), [("cmpare", "compare"), ("spec-benhc", "spec_bench"), ("evalute", "evaluate")]
)
def test_an_unknown_command_names_the_nearest(name, meant, capsys):
    assert main([name, "--help"]) == 2
    assert capsys.readouterr().err.startswith(f"exactspec: error: no command '{name}'; did you mean {meant}?\n")


def test_an_unknown_command_that_is_like_none_names_none_and_a_module_that_is_none_is_unknown(capsys):
    assert main(["zzzz"]) == 2
    assert capsys.readouterr().err.startswith("exactspec: error: no command 'zzzz'\n")
    for name in ("experiments.nosuch", "oracles.nosuch.inner", "experiments.harness", "experiments.compare.inner"):
        assert main([name]) == 2
        assert capsys.readouterr().err.startswith(f"exactspec: error: no command '{name}'")


def test_ctrl_c_ends_a_program_with_one_line_whichever_way_it_was_started(monkeypatch, capsys, tmp_path):
    press = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"
    for library in LIBRARIES:
        (tmp_path / f"{library}.py").write_text(press, encoding="utf-8")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
    compare, demo = "python -m experiments.compare", "exactspec demo"
    for options, name in (
        ("-m experiments.compare", compare),
        ("-Bmexperiments.compare", compare),
        ("-m exactspec demo", demo),
    ):
        done = python(*options.split(), first=tmp_path)
        assert (done.returncode, done.stderr) == (130, f"{name}: interrupted\n")
    words = [sys.executable, "-m", "experiments.compare"]
    reader, unread = os.pipe()
    os.close(reader)
    first = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    assert subprocess.run(words, cwd=ROOT, stderr=unread, env=os.environ | first, check=False).returncode == 130
    os.close(unread)
    signal.signal(signal.SIGINT, before)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(console, "run", interrupted)
    assert main(["compare"]) == 130
    assert capsys.readouterr().err == "exactspec compare: interrupted\n"
    monkeypatch.setattr(ending, "command", lambda: "python -m experiments.compare")
    with pytest.raises(SystemExit) as stop:
        ending.as_program(interrupted, "given")
    assert stop.value.code == 130
    assert capsys.readouterr().err == "python -m experiments.compare: interrupted\n"
    sources = ((ROOT / folder).rglob("*.py") for folder in ("experiments", "oracles"))
    ends = (path.read_text(encoding="utf-8").partition('__name__ == "__main__":\n')[2] for path in chain(*sources))
    assert [end for end in ends if end and not end.startswith("    as_program(")] == []


@pytest.mark.parametrize(
    "words", [["exactspec"], ["exactspec", "compare", "--help"], ["experiments.compare", "--help"]]
)
def test_output_that_nobody_reads_any_more_ends_a_program_without_a_word(words):
    command = [sys.executable, "-m", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == ending.UNREAD


@pytest.mark.parametrize("says", ["'a reason'", "None"])
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_program_whose_output_goes_nowhere_tells_its_reason_all_the_same(says, is_closed):
    program = f"def main():\n print('x')\n if {says}: raise SystemExit({says})"
    words = f"import sys, os; from exactspec.ending import as_program\n{program}\nsys.stdin.read(); as_program(main)"
    if is_closed:
        words = f"import os, sys; os.close(1); sys.stdout = None\n{words}"
    command = [sys.executable, "-c", words]
    pipe = subprocess.PIPE
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, env=buffered, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == ("" if says == "None" else "a reason\n")
    assert process.returncode == (1 if says != "None" else 0 if is_closed else ending.UNREAD)


def test_another_pipe_that_breaks_is_an_error(monkeypatch, tmp_path):
    def broken(*_):
        raise BrokenPipeError("of a worker")

    monkeypatch.setattr(console, "run", broken)
    with (tmp_path / "printed").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(BrokenPipeError, match="of a worker"):
            main(["compare"])


def test_names_may_have_hyphens_and_modules_that_are_not_listed_run():
    assert module_of("spec-bench") == module_of("spec_bench") == "experiments.spec_bench"
    assert module_of("oracles.factory.corpus") == "oracles.factory.corpus"
    assert module_of("json.tool") is None


def test_helps_load_no_library(helps):
    texts, loaded = helps
    assert loaded == []
    for name, text in texts.items():
        assert re.match(rf"usage: exactspec {re.escape(name)} \[(-h|OPTIONS)\]", text), name
        assert "``" not in text, name


def test_helps_are_the_same_with_libraries(helps, monkeypatch, capsys):
    monkeypatch.setattr(stand_ins, "put_up", lambda: None)
    monkeypatch.setattr(sys, "argv", ["exactspec"])
    monkeypatch.setenv("COLUMNS", "80")
    texts = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of runpy, about what was imported
        for name in modules():
            with suppress(SystemExit):
                main([name, "--help"])
            texts[name] = capsys.readouterr().out
    assert texts == helps[0]


def test_options_of_strategies_are_printed_by_name(capsys):
    def told(*words):
        with pytest.raises(SystemExit):
            running.plan_of("compare", words)
        return capsys.readouterr()

    short, one, all_of_them = (told("--help", *name).out for name in ((), ("cascade",), ("all",)))
    assert "the options of small_transformer, " in " ".join(short.split())
    assert "--temperature" in short
    assert "-max-ngram" not in short
    assert {line.split()[0] for line in one.splitlines() if line.startswith("  --")} == {
        f"--cascade-{option.name}" for option in STRATEGIES["cascade"].options
    }
    flags = [f"--{name.replace('_', '-')}-{own.name} " for name, its in STRATEGIES.items() for own in its.options]
    assert [flag for flag in flags if flag not in all_of_them] == []
    assert "--help medusas: it is one of small_transformer, " in told("--help", "medusas").err


@pytest.mark.parametrize(
    "arguments",
    [
        ("exactspec", "compare", "--help"),
        ("experiments.compare", "-h"),
        ("experiments.sweep", "--help"),
        ("oracles.factory.evaluate", "bits", "--help"),
    ],
    ids=" ".join,
)
def test_a_help_does_not_touch_the_libraries_that_are_there(arguments, tmp_path):
    for library in LIBRARIES:
        (tmp_path / f"{library}.py").write_text("raise SystemExit(f'{__name__} was loaded')")
    done = python("-m", *arguments, first=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {'' if arguments[0] == 'exactspec' else 'python -m '}{arguments[0]}")
    if arguments[0] == "exactspec":
        asked_for_no_help = python("-m", "exactspec", "compare", first=tmp_path)
        assert asked_for_no_help.stderr.endswith(" was loaded\n"), "the probe sees what is loaded"


def test_programs_of_others_keep_their_libraries(tmp_path):
    (tmp_path / "mine.py").write_text("import experiments.harness.journal, oracles, torch; print(torch.__version__)")
    done = python("-m", "mine", "-m", "experiments.compare", "--help", first=tmp_path)
    assert done.stdout[0].isdigit(), done.stderr
    (tmp_path / "mine.py").write_text("import experiments, numpy; print(numpy.__version__)")
    done = python("mine.py", "-m", "experiments.compare", "--help", cwd=tmp_path)
    assert done.stdout[0].isdigit(), done.stderr


def test_what_stands_after_two_dashes_asks_for_no_help():
    assert stand_ins.asks_for_help(["a", "-h"])
    assert not stand_ins.asks_for_help(["--", "--help"])


def test_a_help_that_is_not_printed_is_no_run_with_stand_ins(monkeypatch):
    monkeypatch.setattr(stand_ins, "are_up", lambda: True)
    with pytest.raises(RuntimeError, match="asked for its help"):
        Parser().parse_args([])


def test_an_error_stands_first_and_a_short_usage_last(capsys):
    parser = Parser("Do.", prog="do")
    parser.add_argument("--number", type=int)
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(["--number", "x"])
    assert stop.value.code == 2
    words = "do: error: argument --number: invalid int value: 'x'\n\nusage: do [-h] [--number NUMBER]\n"
    assert capsys.readouterr().err == words


def test_a_factory_makes_no_less_than_one_and_counts_seeds_from_zero(monkeypatch, capsys):
    for name, words, told in [
        ("own_text", "--out x.safetensors --texts 0", "--texts: must be at least 1, got 0"),
        ("evaluate", "arithmetic --threads 0", "--threads: must be at least 1, got 0"),
        ("dialogues.__main__", "count --tokens 0", "--tokens: must be at least 1, got 0"),
        ("own_text", "--out x.safetensors --seed -1", "--seed: must be at least 0, got -1"),
        ("dialogues.__main__", "count --seed -1", "--seed: must be at least 0, got -1"),
        ("train", "tiny --out x --seed -1", "--seed: must be at least 0, got -1"),
    ]:
        monkeypatch.setattr(sys, "argv", ["", *words.split()])
        with pytest.raises(SystemExit) as stop:
            import_module(f"oracles.factory.{name}").main()
        assert stop.value.code == 2
        assert f"argument {told}" in capsys.readouterr().err


def test_a_long_usage_is_where_the_help_is(capsys):
    parser = Parser("Do.", prog="do")
    for number in range(60):
        parser.add_argument(f"--option-of-number-{number}")
    with pytest.raises(SystemExit):
        parser.parse_args(["--wrong"])
    expected = "do: error: unrecognized arguments: --wrong\n\nusage: do [OPTIONS]; do --help lists them\n"
    assert capsys.readouterr().err == expected


def test_every_program_has_the_shared_parser():
    sources = [path for folder in ("experiments", "oracles") for path in (ROOT / folder).rglob("*.py")]
    assert [path.name for path in sources if "ArgumentParser(" in path.read_text(encoding="utf-8")] == []


def test_the_commands_package_says_where_the_library_is():
    with pytest.raises(AttributeError, match=r"exactspec has no 'load': .*the library is `import specdec`"):
        getattr(exactspec, "load")  # noqa: B009, mypy knows that it raises


def test_other_programs_are_named_as_this_one_was_started(monkeypatch):
    assert command_like_this("experiments.report") == "python -m experiments.report"
    monkeypatch.setattr(sys.modules["__main__"], "STARTED_AS", "exactspec compare", raising=False)
    assert command_like_this("experiments.report") == "exactspec report"
    assert command_like_this("oracles.factory.corpus") == "exactspec oracles.factory.corpus"
