"""Generations in colour: every token from where it came, and a text that is the output's own."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import drafts
import oracles
from experiments import harness, watch
from experiments.colouring import BONUS, PROMPT, RECOVERED, Emitted, Palette, Piece, Pieces, coloured, steps_in
from specdec import SpeculativeDecoder
from tests.smoke.test_experiments import checkpoints, common  # noqa: F401  (a fixture)

TEXT = "def f(x):\n    return f(x"


def test_tokens_are_told_apart_by_where_they_came_from() -> None:
    assert Emitted([5, 6, 7], 2, ["a", "b"], at_leaf=True).origins() == ["a", "b", BONUS]
    assert Emitted([5], 0, [], at_leaf=False).origins() == [RECOVERED]
    assert Emitted([5], 3, ["a", "a", "b"], at_leaf=True).origins() == ["a"]  # the rest was cut off
    assert Pieces(None).of(Emitted([5, 6], 1, ["a"], at_leaf=True)) == [Piece("5 ", "a"), Piece("6 ", BONUS)]


def test_the_pieces_of_a_run_are_its_text() -> None:
    oracle = oracles.load("code-draft-tiny")
    source = drafts.Merged([drafts.PromptLookup(3), drafts.SmallTransformer(oracle, 2)])
    result = SpeculativeDecoder(oracle, source, "multi_draft").generate([TEXT, "é"], max_new_tokens=24)
    columns = result.records.columns()
    for request in range(2):
        steps, cut = list(steps_in(columns, request)), Pieces(oracle.tokenizer)
        pieces = [piece for step in steps for piece in cut.of(step)]
        assert "".join(piece.text for piece in pieces) + cut.rest() == result.texts[request]
        counts = {name: sum(step.origins().count(name) for step in steps) for name in (BONUS, RECOVERED)}
        mine = result.stats.requests[request]
        assert sum(len(step.tokens) for step in steps) == mine.num_emitted
        assert counts[BONUS] + counts[RECOVERED] == mine.num_emitted - mine.num_accepted
        assert coloured(TEXT, steps, oracle.tokenizer, Palette()).plain == TEXT + result.texts[request]


def test_no_control_character_reaches_the_terminal() -> None:
    shown = Palette().text([Piece("a\x1b]0;title\x07\x00\n\tb\x9b", "bonus")]).plain
    assert shown == "a\ufffd]0;title\ufffd\ufffd\n\tb\ufffd"


def test_several_rounds_are_shown_once() -> None:
    columns = {
        "request": [0, 0],
        "round": [0, 1],
        "tokens": [[1], [1]],
        "num_accepted": [0, 0],
        "path_sources": [[], []],
        "stopped_at_leaf": [True, True],
    }
    assert len(list(steps_in(columns, 0))) == 1


def test_sources_have_colours_of_their_own() -> None:
    palette = Palette()
    styles = [palette.style(name) for name in ("a", "b", RECOVERED, BONUS, PROMPT, "a")]
    assert styles[0] == styles[-1]
    assert len(set(styles)) == 5
    assert palette.legend().plain.split() == ["a", "b", RECOVERED, BONUS]


@pytest.mark.parametrize("temperature", ["0", "0.9"])
def test_watching_shows_the_output_and_writes_a_picture(
    temperature: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "WARM_UP_TOKENS", 2)
    argv = [TEXT, "--oracle", "code-draft-tiny", "--max-new-tokens", "12", "--temperature", temperature]
    picture = tmp_path / "watch.svg"
    assert watch.main([*argv, "--picture", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert "The same tokens as plain decoding." in printed
    assert re.search(r"prompt_lookup +[\d.]+ tokens a step +[\d,]+ tokens/s +[\d.]+ x plain decoding", printed)
    drawn = picture.read_text(encoding="utf-8")
    ElementTree.fromstring(drawn)
    assert "return" in drawn
    assert set(re.findall(r"https?://[^\s\"<]+", drawn)) == {
        "http://www.w3.org/2000/svg",
        "https://www.textualize.io",  # a comment of the library that drew it
    }


def test_a_strategy_that_does_not_fit_is_refused() -> None:
    argv = [TEXT, "--oracle", "code-draft-tiny", "--strategy", "early_exit"]
    with pytest.raises(SystemExit, match="watch: early_exit: "):
        watch.main(argv)


def test_experiments_show_their_first_outputs(
    checkpoints: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = [*common(checkpoints, tmp_path), "--strategies", "prompt_lookup", "lookahead", "--show", "1"]
    assert harness.comparison("", argv) == 0
    printed = capsys.readouterr().out
    assert [printed.count(f"\n{arm}: p") for arm in ("plain", "prompt_lookup", "lookahead")] == [0, 1, 1]
    assert "def add(a, b):" in printed
    (folder,) = tmp_path.iterdir()
    assert all(path.stat().st_size > 0 for path in folder.iterdir())
