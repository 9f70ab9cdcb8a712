"""What is continued, how it is written, and how it is shown."""

import json

import pytest
from tokenizers import Tokenizer

from oracles import TabularLM
from oracles.factory.evaluation.commands import code_block, format_section
from oracles.factory.evaluation.continuations import GREEDY, NUCLEUS, write
from oracles.factory.evaluation.passages import PROMPT_TOKENS, excerpts, read_passages
from oracles.factory.train import TOKENIZER

CODE = Tokenizer.from_file(str(TOKENIZER))


def text(num_lines: int) -> str:
    return "".join(f"value_{i} = {i}\n" for i in range(num_lines))


@pytest.mark.parametrize("sampling", [GREEDY, NUCLEUS])
def test_continuations_do_not_depend_on_the_batch(sampling):
    oracle = TabularLM.random(vocab_size=7, order=2, seed=3, eos_id=0)
    prompts = [(1,), (2, 3), (4, 5, 6), (2, 3), (6,)]
    found = write(oracle, prompts, sampling, num_tokens=12, batch_size=2)
    assert found == write(oracle, prompts, sampling, num_tokens=12, batch_size=5)
    assert [one.prompt for one in found] == prompts
    assert all(len(one.new) == 12 or one.new[-1] == 0 for one in found)


def test_passages_of_a_file_keep_prompt_and_reference_together(tmp_path):
    rows = [{"id": f"row {i}", "kind": "ab"[i % 2], "prompt": f"x = {i}", "reference": f" + {i}"} for i in range(6)]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = read_passages(path, CODE, 4)
    assert len(found) == 4
    for passage in found:
        number = passage.name.removeprefix("row ")
        assert CODE.decode(list(passage.prompt)) == f"x = {number}"
        assert CODE.decode(list(passage.reference)) == f" + {number}"


def test_excerpts_are_runs_from_the_middle_of_texts_that_are_long_enough():
    texts = [text(200), text(3), text(150), text(400)]
    found = excerpts(texts, CODE, num_passages=2, num_tokens=20)
    assert [passage.name for passage in found] == ["text 0", "text 2"]
    for passage, source in zip(found, (texts[0], texts[2]), strict=True):
        assert (len(passage.prompt), len(passage.reference)) == (PROMPT_TOKENS, 20)
        before, run, after = source.partition(CODE.decode([*passage.prompt, *passage.reference]))
        assert run
        assert abs(len(before) - len(after)) < 0.1 * len(source)
    with pytest.raises(ValueError, match="no text has the 276 tokens"):
        excerpts([text(3)], CODE, 2, 20)


def test_a_shown_continuation_is_a_section_with_the_end_of_its_prompt():
    section = format_section("1. `name`", text(20), {"greedy": "a = 1", "sampled": "```"})
    assert section.startswith("### 1. `name`\n")
    assert "value_12 = 12\n" not in section
    assert "value_13 = 13\n" in section
    assert "greedy:\n\n```python\na = 1\n```" in section
    assert section.endswith("sampled:\n\n````python\n```\n````")
    assert code_block("`x` and ``````") == "```````python\n`x` and ``````\n```````"
