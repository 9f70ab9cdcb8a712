"""Generations in colour: every token from where it came, and a text that is the output's own."""

import re
from dataclasses import replace
from functools import partial
from io import StringIO
from xml.etree import ElementTree

import pytest
from rich.console import Console
from rich.text import Text

import drafts
import oracles
from experiments import watch
from experiments.harness import running as harness
from experiments.harness.findings.colouring import (
    BONUS,
    PROMPT,
    RECOVERED,
    Palette,
    Pieces,
    TextPiece,
    colour_text,
    step_output,
    steps_in,
)
from experiments.harness.findings.screen_picture import write_picture
from experiments.strategies import STRATEGIES
from specdec import SpeculativeDecoder
from tests.support.runs.experiments import common, write_rows

TEXT = "def f(x):\n    return f(x"


def test_tokens_are_told_apart_by_where_they_came_from():
    assert step_output([5, 6, 7], 2, ["a", "b"], at_leaf=True) == [(5, "a"), (6, "b"), (7, BONUS)]
    assert step_output([5], 0, [], at_leaf=False) == [(5, RECOVERED)]
    assert step_output([5], 3, ["a", "a", "b"], at_leaf=True) == [(5, "a")]  # the rest was cut off
    assert Pieces(None).of([(5, "a"), (6, BONUS)]) == [TextPiece("5 ", "a"), TextPiece("6 ", BONUS)]


def test_the_pieces_of_a_run_are_its_text():
    oracle = oracles.load("code-draft-tiny")
    source = drafts.Merged([drafts.PromptLookup(3), drafts.SmallTransformer(oracle, 2)])
    result = SpeculativeDecoder(oracle, source, "multi_draft").generate([TEXT, "é"], max_new_tokens=24)
    columns = result.records.columns()
    for request in range(2):
        steps, cut = list(steps_in(columns, request)), Pieces(oracle.tokenizer)
        pieces = [piece for step in steps for piece in cut.of(step)]
        assert "".join(piece.text for piece in pieces) + cut.rest() == result.texts[request]
        origins = [origin for step in steps for _, origin in step]
        counts = {name: origins.count(name) for name in (BONUS, RECOVERED)}
        mine = result.stats.requests[request]
        assert len(origins) == mine.num_emitted
        assert counts[BONUS] + counts[RECOVERED] == mine.num_emitted - mine.num_accepted
        assert colour_text(TEXT, steps, oracle.tokenizer, Palette()).plain == TEXT + result.texts[request]


def test_no_control_character_reaches_the_terminal():
    shown = Palette().text([TextPiece("a\x1b]0;title\x07\x00\n\tb\x9b", "bonus")]).plain
    assert shown == "a\ufffd]0;title\ufffd\ufffd\n\tb\ufffd"


def test_several_rounds_are_shown_once():
    columns = {"request": [0, 0], "round": [0, 1], "tokens": [[1], [1]], "num_accepted": [0, 0]}
    columns |= {"path_sources": [[], []], "stopped_at_leaf": [True, True]}
    assert len(list(steps_in(columns, 0))) == 1


def test_sources_have_colours_of_their_own():
    palette = Palette()
    styles = [palette.style(name) for name in ("a", "b", RECOVERED, BONUS, PROMPT, "a")]
    assert styles[0] == styles[-1]
    assert len(set(styles)) == 5
    assert palette.legend().plain.split() == ["a", "b", RECOVERED, BONUS]


@pytest.mark.parametrize(
    ("way", "said"),
    [
        (["--temperature", "0"], "The same tokens as plain decoding."),
        (["--temperature", "0.9"], "Another draw of the same law as plain decoding's"),
    ],
)
def test_watching_shows_the_output_and_writes_a_picture(way, said, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(harness, "WARM_UP_TOKENS", 2)
    argv = [TEXT, "--oracle", "code-draft-tiny", "--max-new-tokens", "12", *way]
    picture = tmp_path / "watch.svg"
    assert watch.main([*argv, "--picture", str(picture)]) == 0
    printed = capsys.readouterr().out.replace("\n", " ")
    assert said in printed
    assert re.search(r"prompt_lookup +[\d.]+ tokens a step +[\d,]+ tokens/s ", printed)
    assert re.search(r"Decoding alone: .*\. End to end: .*\. That is the median of 6 interleaved pairs", printed)
    drawn = picture.read_text(encoding="utf-8")
    ElementTree.fromstring(drawn)
    assert "return" in drawn
    assert re.findall(r"https?://[^\s\"<]+", drawn) == ["http://www.w3.org/2000/svg"]


def test_the_first_prompt_of_a_file_is_its_first_whatever_its_kind(tmp_path):
    rows = [{"kind": kind, "body": kind} for kind in "ba"]
    prompts = write_rows(tmp_path / "prompts.jsonl", rows)
    assert watch.prompt_of(watch.parse(["--prompts", str(prompts), "--column", "body"])).text == "b"


def test_what_is_shown_while_it_runs_is_no_part_of_the_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "WARM_UP_TOKENS", 2)
    terminal = StringIO()
    monkeypatch.setattr(watch, "Console", partial(Console, force_terminal=True, file=terminal))
    picture = tmp_path / "watch.svg"
    assert watch.main(["a = 1", "--oracle", "code-draft-tiny", "--max-new-tokens", "6", "--picture", str(picture)]) == 0
    texts = "".join(ElementTree.fromstring(picture.read_text(encoding="utf-8")).itertext())
    assert terminal.getvalue().count("recovered") > 1
    assert texts.count("recovered") == texts.count("The same tokens") == 1


def test_the_end_of_a_long_text_is_seen_while_it_is_written(monkeypatch):
    monkeypatch.setattr(harness, "WARM_UP_TOKENS", 2)
    console = Console(force_terminal=True, height=10, width=80, file=StringIO())
    argv = ["x = 1\n" * 60, "--oracle", "code-draft-tiny", "--max-new-tokens", "6", "--repeats", "1"]
    watch.watch(watch.parse(argv), console)
    live = console.file.getvalue()
    assert live.count("tokens a step") > 2  # rich shows all of a picture once, in the end


def test_busy_cores_are_told_and_pairs_can_be_few(monkeypatch, capsys):
    monkeypatch.setattr(harness, "WARM_UP_TOKENS", 2)
    monkeypatch.setattr(watch, "take_threads", lambda _: print("warning: busy"))
    assert watch.main(["a = 1", "--oracle", "code-draft-tiny", "--max-new-tokens", "6", "--repeats", "1"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("warning: busy")
    assert "Decoding alone: not told apart from plain decoding, " in printed
    assert "over 1 interleaved pair, on this prompt and this machine; fewer than 6 have no interval." in printed


def test_the_last_lines_of_a_prompt_are_shown():
    assert watch.last_lines("a\nb\nc\n", 2) == "...\nb\nc\n"
    assert watch.last_lines("a\nb", 2) == watch.last_lines("a\nb", None) == "a\nb"


def test_pictures_show_a_screen_and_the_same_screen_alike(tmp_path):
    shown = Text.assemble(("  in", "black on cyan"), (" <&> ", "bold red"), ("\nx = $1$", "dim"))
    paths = [tmp_path / f"{number}.svg" for number in range(2)]
    for path in paths:
        write_picture(path, shown, "a title")
    assert paths[0].read_bytes() == paths[1].read_bytes()
    drawn = ElementTree.fromstring(paths[0].read_text(encoding="utf-8"))
    texts = {node.text: float(node.get("x", "0")) for node in drawn.iter("{http://www.w3.org/2000/svg}text")}
    # "in" after two cells of 6.622 points, "<&>" after another three.
    wanted = {"in": 12 + 2 * 6.622, "<&>": 12 + 5 * 6.622, "x = $1$": 12}
    assert texts == {text: pytest.approx(x, abs=0.01) for text, x in wanted.items()}
    assert drawn[0].text == "a title"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--picture", "watch.jpg"], "must end in .svg"),
        (["--picture", "nowhere/watch.svg"], "there is no folder 'nowhere'"),
        (["--strategy", "early_exit"], "watch: early_exit: give --early-exit-head none"),
        (
            ["--strategy", "suffix_automaton", "--suffix-automaton-store-size", "99"],
            "watch: --suffix-automaton-store-size: the timed pairs would copy the answer from it",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused(argv, message, capsys):
    with pytest.raises(SystemExit) as stop:
        watch.main([TEXT, "--oracle", "code-draft-tiny", *argv])
    assert message in f"{capsys.readouterr().err} {stop.value}"


def test_a_strategy_declares_what_it_remembers(monkeypatch):
    for strategy in STRATEGIES.values():
        assert strategy.remembers in {"", *(option.key for option in strategy.options)}
    monkeypatch.setitem(STRATEGIES, "ngram", replace(STRATEGIES["ngram"], remembers="order"))
    with pytest.raises(SystemExit, match="watch: --ngram-order: the timed pairs would copy the answer from it"):
        watch.main([TEXT, "--oracle", "code-draft-tiny", "--strategy", "ngram"])


def test_experiments_show_their_first_outputs(checkpoints, tmp_path, capsys):
    argv = [*common(checkpoints, tmp_path), "--strategies", "prompt_lookup", "lookahead", "--show", "1"]
    assert harness.script("compare", "", argv) == 0
    printed = capsys.readouterr().out
    assert [printed.count(f"\n{arm}: p") for arm in ("plain", "prompt_lookup", "lookahead")] == [0, 1, 1]
    assert "def add(a, b):" in printed
    (folder,) = tmp_path.iterdir()
    assert all(path.stat().st_size > 0 for path in folder.iterdir())
