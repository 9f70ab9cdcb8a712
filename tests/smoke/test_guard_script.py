"""The guard on true runs: of one program, and of one whose drafts were hampered."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import guard
from experiments.harness import running as harness
from experiments.strategies import STRATEGIES
from specdec import DraftSource, Oracle
from tests.support.runs.experiments import TEXT, common, the_folder, write_rows


@pytest.mark.parametrize("way", [[], ["--temperature", "0.1"]], ids=["greedy", "drawn"])
def test_a_run_beside_itself_and_beside_a_hampered_one(way, checkpoints, tmp_path, capsys, monkeypatch):
    rows = [{"id": f"p{i}", "prompt": TEXT * (1 + i % 3) + f"\n\ndef f{i}(" * (1 + i)} for i in range(12)]
    prompts = write_rows(tmp_path / "prompts.jsonl", rows)

    def measured(name: str) -> Path:
        argv = [*common(checkpoints, tmp_path / name), *way, "--strategies", "small_transformer"]
        argv += ["--small-transformer-model", str(checkpoints / "target")]
        argv[argv.index("--prompts") + 1] = str(prompts)
        argv[argv.index("--max-new-tokens") + 1] = "24"
        assert harness.script("compare", "", argv) == 0
        return the_folder(tmp_path / name)

    whole = measured("whole")

    strategy = STRATEGIES["small_transformer"]

    def hampered(settings: Any, oracle: Oracle) -> DraftSource:
        return strategy.build({**settings, "num_draft_tokens": 1}, oracle)

    monkeypatch.setitem(STRATEGIES, "small_transformer", replace(strategy, build=hampered))
    worse = measured("worse")
    capsys.readouterr()
    assert guard.main([str(whole), str(whole)]) == 0
    assert "Nothing fell." in capsys.readouterr().out
    assert guard.main([str(worse), str(whole)]) == 1
    printed = capsys.readouterr().out
    assert "FELL: accept_len of small_transformer" in printed
    assert re.search("^small_transformer  speed", printed, re.MULTILINE)
