"""The experiments on a checkpoint of one's own, whose tokenizer is not that of the embedded ones."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import oracles
from experiments import replay
from experiments.harness import running as harness
from experiments.load import __main__ as load
from experiments.studies import batching
from oracles.factory.training.export import export_checkpoint
from tests.support.runs.experiments import few_strategies, summary_of, the_folder

WORDS = ["<unk>", "the", "fox", "and", "dog", "saw", "a", "hill", "over", "there", "again"]
FOREIGN = (
    r"vocabulary of 3072 ids, but the oracle's has 11: use a source made for the oracle's tokenizer, "
    r"or give the model to drafts.OtherVocabulary"
)
KEPT = ("small_transformer", "early_exit", "medusa", "prompt_lookup")
NO_EXIT = r"give --{}head none, the oracle's own, or DIR, a head that was trained on this oracle: none is shipped for "


@pytest.fixture
def few() -> Iterator[None]:
    with few_strategies(*KEPT):
        yield


@pytest.fixture
def argv(tmp_path: Path, few: None) -> list[str]:
    """Return the options of a run on such a checkpoint."""
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    config = oracles.TransformerConfig(
        vocab_size=len(WORDS), hidden_size=32, num_layers=2, num_heads=2,
        intermediate_size=32, max_context=128, tie_embeddings=True,
    )  # fmt: skip
    export_checkpoint(oracles.Transformer(config).state_dict(), config, tokenizer, tmp_path / "mine")
    (tmp_path / "prompts.txt").write_text("the fox and the dog saw the fox\nover the hill\n", encoding="utf-8")
    places = {"--oracle": "mine", "--prompts": "prompts.txt", "--out": "my runs"}
    return [*(part for pair in places.items() for part in (pair[0], str(tmp_path / pair[1]))), "--max-new-tokens", "8"]


def test_compare_runs_what_the_checkpoint_can_have_and_says_why_not_the_others(argv, tmp_path, capsys):
    assert harness.script("compare", "", [*argv, "--trace", "1"]) == 0
    printed, told = capsys.readouterr()
    assert re.search(rf"^left out: small_transformer: .*{FOREIGN} \(--small-transformer-model DIR\)$", told, re.M)
    assert re.search(rf"^left out: early_exit: {NO_EXIT.format('early-exit-')}\S*mine$", told, re.M)
    assert re.search(r"^left out: medusa: give --medusa-head DIR, .*: none is shipped for \S*mine$", told, re.M)
    together = " ".join(printed.split())
    assert re.search(r" early_exit - - - refused: give --early-exit-head none, .* \.\.\. ", together)
    assert re.search(r" small_transformer - - - refused: small_transformer drafts .* \.\.\. ", together)
    assert "no trace of" not in told, "which is said of other programs"
    summary = summary_of(tmp_path / "my runs")
    assert list(summary["arms"]) == ["plain", "prompt_lookup"]
    assert re.search(FOREIGN, summary["provenance"]["refused"]["small_transformer"])
    folder = shlex.quote(str(the_folder(tmp_path / "my runs")))
    assert printed.splitlines()[-1] == f"Why, in words, with charts and traces: python -m experiments.report {folder}"


@pytest.mark.parametrize(
    "given", [["--strategies", "small_transformer"], ["--small-transformer-num-draft-tokens", "2"]]
)
def test_what_was_asked_for_is_refused_and_not_left_out(argv, given):
    with pytest.raises(SystemExit, match=rf"^compare: .*{FOREIGN} \(--small-transformer-model DIR\)$"):
        harness.script("compare", "", [*argv, *given])


def test_a_script_names_its_own_option(argv):
    with pytest.raises(SystemExit, match=rf"^small_transformer: .*{FOREIGN} \(--model DIR\)$"):
        harness.script("small_transformer", "", argv)
    with pytest.raises(SystemExit, match=f"^early_exit: {NO_EXIT.format('')}"):
        harness.script("early_exit", "", argv)


def test_batching_load_and_replay_end_with_the_reason(argv):
    with pytest.raises(SystemExit, match=rf"^batching: .*{FOREIGN}$"):
        batching.main([*argv, "--batch-sizes", "2"])
    with pytest.raises(SystemExit, match=rf"^load: .*{FOREIGN}$"):
        load.main(argv)
    with pytest.raises(SystemExit, match=rf"^replay: --model .*{FOREIGN}$"):
        replay.main(["--oracle", argv[1]])
