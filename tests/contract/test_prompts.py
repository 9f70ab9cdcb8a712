"""The shipped prompts: from held-out modules only, balanced, unique, and what their script makes."""

import json
import platform
from collections import Counter

import pytest
from tokenizers import Tokenizer

from experiments import make_prompts
from oracles.corpus import load_manifest, read_split

ROWS = [json.loads(line) for line in make_prompts.OUT.read_text(encoding="utf-8").splitlines()]
TOKENIZER = Tokenizer.from_file(str(make_prompts.TOKENIZER))


def test_at_least_a_hundred_prompts_in_balance() -> None:
    counts = Counter(row["kind"] for row in ROWS)
    assert set(counts) == set(make_prompts.KINDS)
    assert min(counts.values()) >= 36
    assert len(ROWS) >= 100


def test_prompts_come_from_heldout_modules_only() -> None:
    assert {row["module"] for row in ROWS} <= {entry.module for entry in load_manifest().split("heldout")}


def test_prompts_are_unique_and_of_the_stated_length() -> None:
    assert len({row["id"] for row in ROWS}) == len({row["prompt"] for row in ROWS}) == len(ROWS)
    lengths = [len(TOKENIZER.encode(row["prompt"]).ids) for row in ROWS]
    assert min(lengths) >= make_prompts.MIN_TOKENS
    assert max(lengths) <= make_prompts.MAX_TOKENS


def test_a_copy_heavy_prompt_already_holds_most_of_what_follows() -> None:
    for row in ROWS:
        if row["kind"] == "copy_heavy":
            assert make_prompts.kept_share(row["reference"], row["prompt"]) >= 0.7, row["id"]


@pytest.mark.skipif(
    platform.python_version() != load_manifest().python_version, reason="the corpus is of another Python version"
)
def test_the_script_makes_the_committed_file() -> None:
    made = make_prompts.make_prompts(read_split("heldout"), TOKENIZER)
    assert [vars(prompt) for prompt in made] == ROWS
