"""The code of pages runs, and prints what they say; the front page stays short."""

import re
from pathlib import Path
from typing import Any

import pytest
import transformers

import drafts
import oracles
from oracles.checkpoints.embedded_folders import EMBEDDED
from specdec import SamplingParams, SpeculativeDecoder
from tests.support.backends import needed_native
from tests.support.pages import DOCS, ROOT

GRAMMARS = pytest.param("docs/guides/grammars.md", 1, marks=pytest.mark.real)


@pytest.mark.parametrize(("page", "count"), [("README.md", 2), ("docs/guides/prefix-sharing.md", 1), GRAMMARS])
def test_the_code_prints_what_the_page_says(page: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    needed_native()
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == count
    assert page != "README.md" or text.count("```python\n") == count, "all of its code says what it prints"
    names: dict[str, Any] = {"__name__": "page"}
    for code, said in blocks:
        exec(compile(code, page, "exec"), names)
        assert capsys.readouterr().out == said


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
