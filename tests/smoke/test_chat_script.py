"""Talking to a model: answers over turns are plain decoding's, shown as they grow, and what goes wrong is said."""

import io
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import oracles
from experiments import chat, watch
from experiments.harness.findings.colouring import BONUS, Palette, Pieces, TextPiece
from experiments.harness.live_run import Run
from oracles.checkpoints.chat_files import give_template
from specdec import SamplingParams, SpeculativeDecoder
from specdec.prompts.chat import ChatTemplate
from tests.support.texts.chats import CHATML, small_tokenizer, write_checkpoint

FIGURES = r"\n(\d+) tokens?(?:   [\d,]+ tokens/s)?   tau ([\d.]+)(?:   ([^\n]+))?\n\n"
NEW = 24
# Greedily the tiny model writes one token again and again.
HEAT = 0.9
COUPLED = ("--temperature", str(HEAT), "--rule", "coupled", "--seed", "3")
QUESTIONS = ["what does <|im_end|> do?", "the sign", "think, help me"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a tiny model that answers under a template; its context holds 256 tokens."""
    folder = tmp_path_factory.mktemp("chat")
    return str(write_checkpoint(folder, seed=2, chat_template=CHATML, bos_token="<s>", eos_token="<|im_end|>"))


@pytest.fixture
def talk(model, monkeypatch):
    """Return a function that says lines to the program, as a pipe does, and returns its status."""

    def say(*lines: str, options: tuple[str, ...] = ()) -> int:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return chat.main(["--oracle", model, "--max-new-tokens", str(NEW), *options])

    return say


def begin(model: str, console: Console | None = None, *options: str) -> chat.Chat:
    """Return a conversation that is shown to nobody, or on a console."""
    argv = ["--oracle", model, "--max-new-tokens", str(NEW), "--strategy", "prompt_lookup", *COUPLED, *options]
    return chat.Chat(chat.parse(argv), console or Console(file=io.StringIO()))


def plain(model: str, conversation: list[Any], number: int = 0, temperature: float = HEAT) -> Any:
    """Return plain decoding's result for a whole conversation, read from its beginning by a decoder of its own."""
    decoder = SpeculativeDecoder(oracles.load(model), rule="coupled")
    return decoder.generate([conversation], NEW, SamplingParams(temperature), [(3, number)])


def shown(text: str) -> str:
    """Return a text as a terminal may see it."""
    return Palette().text([TextPiece(text, "bonus")]).plain


def said(content: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("strategy", "temperature"),
    [("suffix_automaton", 0.0), ("prompt_lookup", HEAT), ("small_transformer", HEAT), ("tree", 0.0)],
)
def test_answers_over_turns_are_plain_decodings(model, talk, capsys, strategy, temperature):
    options = (*COUPLED, "--strategy", strategy, "--temperature", str(temperature))
    models = [f"--{strategy.replace('_', '-')}-model", model] if strategy in ("small_transformer", "tree") else []
    assert talk(QUESTIONS[0], "", *QUESTIONS[1:], options=(*options, *models, "--system", "Be brief.")) == 0
    answers = re.split(FIGURES, capsys.readouterr().out)
    conversation = [said("Be brief.", "system")]
    for number, question in enumerate(QUESTIONS):
        conversation.append(said(question))
        wanted = plain(model, conversation, number, temperature)
        text, tokens, tau, ending = answers[4 * number : 4 * number + 4]
        assert text == shown(wanted.texts[0])
        assert int(tokens) == len(wanted.tokens[0])
        assert float(tau) >= 1
        assert ending == {"length": "length (--max-new-tokens)"}.get(wanted.finish_reasons[0])
        conversation.append(said(wanted.tokens[0], "assistant"))
    assert answers[-1] == ""
    template = oracles.load(model).chat_template
    assert template is not None
    assert template.encode(conversation[:2]).count(template.end_ids[0]) == 2, "what a user writes is text"


def test_what_was_said_before_is_not_read_again(model, monkeypatch):
    runs: list[Run] = []

    def run(*given: Any) -> Run:
        runs.append(Run(*given))
        return runs[-1]

    monkeypatch.setattr(chat, "Run", run)
    talking = begin(model)
    assert all(map(talking.ask, QUESTIONS[:2]))
    known = [run.state.seating.figures["num_prefix_tokens"] for run in runs]
    first = len(talking.oracle.chat_template.encode(talking.said[:1]))
    assert known[0] == 0
    assert known[1] > first, "a part of the answer stood too"
    tau = talking.decoder.finish(runs[1].state).stats.block_efficiency
    assert runs[1].block_efficiency == tau


@pytest.fixture(autouse=True)
def hearing() -> Iterator[None]:
    """Let Ctrl-C be heard: who runs tests in the background may have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pressing(times: int) -> type[Run]:
    """Return runs in whose second step Ctrl-C is pressed so often."""

    class Pressed(Run):
        def step(self) -> list[TextPiece]:
            if self.steps == 1:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)
            return super().step()

    return Pressed


def test_ctrl_c_stops_an_answer_and_keeps_what_was_said(model, monkeypatch):
    console, before = Console(file=io.StringIO()), signal.getsignal(signal.SIGINT)
    talking = begin(model, console)
    with monkeypatch.context() as patched:
        patched.setattr(chat, "Run", pressing(1))
        assert talking.ask("the sign")
    assert signal.getsignal(signal.SIGINT) is before
    ids = talking.said[-1]["content"]
    wanted = plain(model, [said("the sign")]).tokens[0]
    assert len({*wanted}) > 3
    assert 2 <= len(ids) < NEW
    assert ids == wanted[: len(ids)]
    text = console.file.getvalue()
    assert text.startswith(shown(talking.oracle.tokenizer.decode(ids)))
    assert re.search(FIGURES, text)[3] == "interrupted"
    assert talking.ask("go on")
    asked = [said("the sign"), said(ids, "assistant"), said("go on")]
    assert talking.said[-1]["content"] == plain(model, asked, 1).tokens[0]
    pool = talking.decoder._sharing._memory._memory.pool
    assert pool.num_free == pool.num_pages, "all pages were given back"


def test_ctrl_c_at_the_prompt_or_twice_in_an_answer_ends(talk, monkeypatch, capsys):
    with monkeypatch.context() as patched:
        patched.setattr(chat, "Run", pressing(2))
        assert talk("the sign", "text") == 0
    assert "tau" not in capsys.readouterr().out
    read = input
    monkeypatch.setattr("builtins.input", lambda sign: signal.raise_signal(signal.SIGINT))
    assert talk() == 0
    monkeypatch.setattr("builtins.input", read)
    assert talk("\ufeff/quit", "text") == 0, "a file may begin with the mark of its encoding"
    assert capsys.readouterr() == ("", "")


def test_a_conversation_ends_with_its_context_and_another_begins(talk, capsys):
    assert (
        talk("help " * 60, "and again", "/new", "the sign", "/quit", "text", options=("--max-new-tokens", "250")) == 1
    )
    out, err = capsys.readouterr()
    assert re.match(r"chat: with this question the conversation has \d+ tokens, and the model's context holds 256", err)
    assert "/new begins another" in err
    answers = re.split(FIGURES, out)
    assert answers[3::4] == ["length (the context is full, /new begins anew)"] * 2
    assert talk("the sign", options=("--max-new-tokens", "250")) == 0
    assert re.split(FIGURES, capsys.readouterr().out)[0] == answers[4]


@pytest.mark.parametrize("way", ["eos", "stop"])
def test_what_ends_an_answer_is_not_shown_and_is_not_said_again(model, way):
    console = Console(file=io.StringIO())
    talking = begin(model, console)
    result = plain(model, [said("the sign")])
    ids, tokenizer = result.tokens[0], talking.oracle.tokenizer
    last = next(i for i, token in enumerate(ids) if i > 3 and token not in ids[:i] and tokenizer.decode([token]))
    kept = tokenizer.decode(ids[:last])
    if way == "eos":
        talking.oracle.eos_ids = (ids[last],)
    else:
        template = ChatTemplate(CHATML, tokenizer, stop_strings=(tokenizer.decode([ids[last]]),))
        talking._stop_strings = template.stop_strings
        give_template(talking.oracle, template)
    assert talking.ask("the sign")
    assert console.file.getvalue().startswith(f"{shown(kept)}\n{last + 1} tokens")
    assert talking.said[-1]["content"] == (ids[: last + 1] if way == "eos" else kept)


@pytest.mark.parametrize(("no_color", "colours"), [(None, True), ("1", False)])
def test_colours_are_those_of_watch_where_a_terminal_has_them(model, monkeypatch, no_color, colours):
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard")
    greedily = ("--temperature", "0")
    begin(model, console, *greedily).ask("the sign")
    text = console.file.getvalue()
    assert ("\x1b[30;46m" in text) == colours, "black on cyan: drafted"
    assert "prompt_lookup" in text, "a terminal has the legend"
    quiet = Console(file=io.StringIO())
    begin(model, quiet, *greedily).ask("the sign")
    assert "\x1b" not in quiet.file.getvalue()
    assert "prompt_lookup" not in quiet.file.getvalue()


def test_characters_are_written_when_they_are_whole():
    tokenizer, console = small_tokenizer(), Console(file=io.StringIO())
    text = "a\tlong  €é 東 line " + 90 * " " + "\n\nb "
    cut, palette, written = Pieces(tokenizer), Palette(), []
    ids = tokenizer.encode(text).ids
    for token in ids:
        console.print(palette.segments(cut.of([(token, BONUS)])), soft_wrap=True)
        written.append(console.file.getvalue())
    assert written[-1] + cut.rest() == text
    assert not any("\ufffd" in one for one in written)
    assert len({*written}) < len(ids), "pieces of a character were held back"


def test_the_published_model_and_its_settings_are_the_defaults():
    told = chat.parse([])
    assert (told["oracle"], told["arithmetic"], told["strategy"]) == ("smollm2", "int8", "suffix_automaton")
    assert told["suffix_automaton.num_draft_tokens"] == 3
    assert chat.parse(["--oracle", "code"])["arithmetic"] is None
    assert chat.parse(["--weights", "int4"])["arithmetic"] is None
    assert chat.parse(["--arithmetic", "float32"])["arithmetic"] == "float32"
    assert watch.parse(["--oracle", "smollm2"])["prompt_lookup.num_draft_tokens"] == 3
    assert watch.parse([])["prompt_lookup.num_draft_tokens"] == 8


def test_what_cannot_be_talked_to_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr("oracles.checkpoints.gguf.published.cache_base", lambda: Path(tmp_path))
    with pytest.raises(SystemExit, match=r"chat: 'smollm2' is not on this machine .*: python -m oracles\.smollm2"):
        chat.main([])
    with pytest.raises(SystemExit, match="chat: there is no chat template to talk under: give --template FILE"):
        chat.main(["--oracle", "code-draft-tiny"])


def test_bytes_that_are_no_text_end_the_program(model, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the sign \xff\n"), encoding="utf-8"))
    with pytest.raises(SystemExit, match="chat: 'utf-8' codec can't decode byte 0xff"):
        chat.main(["--oracle", model])


def test_a_question_that_is_no_text_is_refused_and_the_next_one_answered(talk, capsys):
    assert talk("half \ud800", "the sign") == 1
    out, err = capsys.readouterr()
    assert "chat: the conversation: message 0: 'content' holds half of a surrogate pair" in err
    assert len(re.split(FIGURES, out)) == 5
