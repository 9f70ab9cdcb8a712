"""The code of pages runs, and prints what they say; the front page stays short."""

import re
from pathlib import Path
from typing import Any

import pytest
import transformers

import drafts
import oracles
from experiments.harness import running as harness
from oracles.checkpoints.embedded_folders import EMBEDDED
from specdec import SamplingParams, SpeculativeDecoder
from tests.support.backends import needed_native
from tests.support.pages import DOCS, ROOT

GRAMMARS = pytest.param("docs/guides/grammars.md", 1, marks=pytest.mark.real)


FIRST_STEPS = "docs/start/first-steps.md"
PRINTING = [("README.md", 2), (FIRST_STEPS, 6), ("docs/guides/prefix-sharing.md", 1), GRAMMARS]


def rounded(printed: str) -> str:
    """Return a text whose numbers have six decimals at most: the last ones are the machine's."""
    return re.sub(r"\d+\.\d{7,}", lambda found: f"{float(found[0]):.6f}", printed)


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the page of the first steps, in a folder with its records alone."""
    page = (ROOT / FIRST_STEPS).read_text(encoding="utf-8")
    (records,) = re.findall(r"cat records\.jsonl\n(.*?)^\$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "records.jsonl").write_text(records, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return page


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize(("page", "count"), PRINTING)
def test_the_code_prints_what_the_page_says(page: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    needed_native()
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == count
    is_whole = page in ("README.md", FIRST_STEPS)
    assert not is_whole or text.count("```python\n") == count, "all of its code says what it prints"
    names: dict[str, Any] = {"__name__": "page"}
    for code, said in blocks:
        exec(compile(code, page, "exec"), names)
        assert rounded(capsys.readouterr().out) == rounded(said)


def test_a_source_on_recorded_text_has_the_acceptance_that_the_page_says(
    steps: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, said = re.findall(r"^\$ exactspec prompt_lookup (.*)\n\.\.\.\n(.*?)```", steps, re.M | re.S)[0]
    assert harness.script("prompt_lookup", "", command.split()) == 0
    assert said in capsys.readouterr().out


# Pages whose code prints nothing, and goes on with an oracle, a model and a run that the reader has.
RUN = (
    "guides/recorded-text.md", "guides/traces.md", "guides/records.md", "guides/limits.md", "strategies/merged.md",
    "strategies/staged.md", "strategies/trees.md", "strategies/draft_length.md", "start/transformers-models.md",
)  # fmt: skip


def test_the_code_of_other_pages_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    oracle, model = oracles.load("code-draft"), oracles.load("code-draft-tiny")
    prompts = ["def add(a, b):\n", "import os\n"]
    decoder = SpeculativeDecoder(oracle, drafts.SmallTransformer(model, 3))
    has = {
        "drafts": drafts,
        "oracles": oracles,
        "transformers": transformers,
        "SpeculativeDecoder": SpeculativeDecoder,
        "oracle": oracle,
        "model": model,
        "ngrams": drafts.NGram.train([[1, 2, 3, 1, 2]], oracle.vocab_size, progress=False).model,
        "folder": EMBEDDED / "code-draft-tiny",
        "tokenizer": oracle.tokenizer,
        "prompts": prompts,
        "sampling": SamplingParams(),
        "decoder": decoder,
        "result": decoder.generate(prompts, 16),
        "measured_seconds": 1e-3,
    }
    ran: dict[str, dict[str, Any]] = {}
    for page in RUN:
        ran[page] = {**has, "__name__": "page"}
        for code in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL):
            exec(compile(code, page, "exec"), ran[page])
    recorded = ran["guides/recorded-text.md"]["result"]
    assert recorded.tokens == [[7, 5, 6, 9]]
    assert (recorded.stats.block_efficiency, recorded.stats.acceptance_rate) == (4.0, 1.0)


def test_the_front_page_has_at_most_120_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
