"""What recorded texts cannot answer is refused, by name and before anything is computed."""

import json
import re

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from drafts import Cascade, EarlyExit, Lookahead, Merged, PromptLookup, SmallTransformer, Staged
from oracles import RecordedText, TabularLM
from specdec import SamplingParams, SpeculativeDecoder, calibrate
from specdec.calibration_run import pass_seconds
from specdec.exactness import compare_runs, oracle_law
from tests.support.models.tiny_models import tiny_transformer
from tests.support.texts.records import OUTPUTS, PROMPTS, TOKENIZER, recorded, rows_of


class Untouchable(RecordedText):
    def score(self, *arguments, **options):
        raise AssertionError("something was computed")


BAD_RECORDS = {
    "same prompt": (([[1], [2], [1]], [[2], [3], [4]]), {}, "rows 0 and 2 have the same prompt; keep one"),
    "same prompt and output": (([[1], [1]], [[2], [2]]), {}, "rows 0 and 1 have the same prompt"),
    "a prompt within a record": (([[1], [4], [1, 2]], [[2, 3], [1], [5]]), {}, "rows 0 and 2 part after the same ids"),
    "the same, later first": (([[1, 2], [1]], [[5], [2, 3]]), {}, "rows 0 and 1 part after the same ids"),
    "empty prompt": (([[]], [[1]]), {}, "row 0: its prompt is empty; leave the row out"),
    "empty output": (([[1], [2]], [[1], []]), {}, "row 1: its output is empty; leave the row out"),
    "empty text": ((["a"], [""]), {"tokenizer": TOKENIZER}, "row 0: its output is empty"),
    "text without tokenizer": (([[1], "a"], [[1], [2]]), {}, "row 1 is text, and there is no tokenizer; give"),
    "nested": (([[[1]]], [[1]]), {}, "row 0: its prompt is neither text nor a list of ids"),
    "fractions": (([[1]], [[1.5]]), {}, "row 0: its output is neither text nor a list of ids"),
    "negative": (([[1]], [[-1]]), {}, "row 0: its output has id -1, outside the vocabulary"),
    "beyond": (([[1]], [[5]]), {"vocab_size": 5}, r"row 0: its output has id 5, outside the vocabulary 0\.\.4"),
    "no vocabulary": (([[1]], [[0]]), {"vocab_size": 0}, "row 0: its prompt has id 1, outside the vocabulary"),
    "goes on after its end": (([[1]], [[2, 8, 8]]), {"eos_id": 8}, "row 0: its output has eos_id 8 at place 1"),
    "an end outside the vocabulary": (
        ([[1]], [[2]]),
        {"eos_id": 3, "vocab_size": 3},
        r"eos_id=3 is no id of the vocabulary 0\.\.2: give",
    ),
    "a negative end": (([[1]], [[2]]), {"eos_id": -1, "vocab_size": 5}, r"eos_id=-1 is no id of the vocabulary 0\.\.4"),
    "text as an end": (([[1]], [[2]]), {"eos_id": "</s>"}, "eos_id='</s>' is no id of the vocabulary"),
    "other counts": (([[1]], []), {}, "1 prompts and 0 outputs"),
    "none": (([], []), {}, "0 prompts and 0 outputs"),
}


@pytest.mark.parametrize(("records", "options", "message"), BAD_RECORDS.values(), ids=BAD_RECORDS)
def test_unusable_records_are_refused_by_row(records, options, message):
    with pytest.raises(ValueError, match=message):
        RecordedText(*records, **options)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"temperature": 0.7}, "temperature=0.7"),
        ({"repetition_penalty": 1.1}, "repetition_penalty=1.1"),
        ({"presence_penalty": 0.1}, "presence_penalty=0.1"),
        ({"frequency_penalty": 0.1}, "frequency_penalty=0.1"),
        ({"logit_bias": {1: 1.0}}, "logit_bias={1: 1.0}"),
        ({"min_new_tokens": 1}, "min_new_tokens=1"),
    ],
)
def test_sampling_that_reads_logits_is_refused(options, name):
    decoder = SpeculativeDecoder(Untouchable(PROMPTS, OUTPUTS), PromptLookup(2))
    sampling = [SamplingParams(top_k=3, top_p=0.5, min_p=0.1, ignore_eos=True), SamplingParams(**options)]
    with pytest.raises(ValueError, match=r"sampling\[1\] has ") as refused:
        decoder.generate(PROMPTS[:2], sampling=sampling)
    assert f"{name}, which needs the oracle's logits, and recorded text has none: leave it at its default" in str(
        refused.value
    )


def test_prompts_without_a_record_and_log_probabilities_are_refused():
    decoder = SpeculativeDecoder(Untouchable(PROMPTS, OUTPUTS), PromptLookup(2))
    for prompt in ([1], [1, 2, 3], [9, 9]):
        with pytest.raises(ValueError, match=r"prompts\[1\] selects no record: its \d ids are none of the 3 recorded"):
            decoder.generate([PROMPTS[0], prompt])
    with pytest.raises(ValueError, match="return_logprobs=True needs the oracle's laws"):
        decoder.generate(PROMPTS, return_logprobs=True)


@pytest.mark.parametrize(
    "source", [Lookahead(), Merged([PromptLookup(2), Lookahead()]), Cascade([PromptLookup(2), Lookahead()])]
)
def test_sources_that_read_logits_are_refused(source):
    with pytest.raises(
        ValueError, match=rf"draft '{re.escape(source.name)}' reads the oracle's logits .* reads ids alone"
    ):
        SpeculativeDecoder(recorded(), source, "multi_draft")


def test_sources_on_the_oracles_own_cache_are_refused():
    with pytest.raises(ValueError, match="drafts on the cache of the oracle that it was made with"):
        SpeculativeDecoder(recorded(), EarlyExit(tiny_transformer(10, num_layers=3), 1))


@pytest.mark.parametrize("wrap", [lambda m: SmallTransformer(m, 2), lambda m: Staged(m, PromptLookup(2), 3)])
def test_recorded_text_does_not_draft(wrap):
    decoder = SpeculativeDecoder(TabularLM.random(10, 1, 0), wrap(recorded()))
    with pytest.raises(ValueError, match="a draft needs a model, and recorded text is none"):
        decoder.generate([[1]], max_new_tokens=4)


NEEDS_A_MODEL = {
    "calibrate": lambda: calibrate(recorded(), lambda length: PromptLookup(length=length), PROMPTS),
    "pass_seconds": lambda: pass_seconds(recorded(), [1]),
    "the law of an output": lambda: oracle_law(recorded(), PROMPTS[0], 2),
    "compare_runs": lambda: compare_runs(recorded(), PROMPTS[:1], [[3, 4]], [[3, 5]]),
}


@pytest.mark.parametrize("who", NEEDS_A_MODEL)
def test_what_reads_laws_or_times_of_a_model_is_refused(who):
    with pytest.raises(ValueError, match=f"{who} needs a model, and recorded text is none"):
        NEEDS_A_MODEL[who]()


def test_another_vocabulary_is_refused_by_size_and_by_meaning():
    with pytest.raises(ValueError, match="drafts from a vocabulary of 6 ids, but the oracle's has 10"):
        SpeculativeDecoder(recorded(), SmallTransformer(TabularLM.random(6, 1, 0), 2)).generate(PROMPTS)
    words = [
        Tokenizer(WordLevel({word: i for i, word in enumerate(order)}, unk_token=order[0])) for order in ("ab", "ba")
    ]
    model = TabularLM.random(2, 1, 0)
    model.tokenizer = words[0]
    oracle = RecordedText([[1]], [[0]], tokenizer=words[1])
    with pytest.raises(ValueError, match="their tokenizers give the ids other meanings"):
        SpeculativeDecoder(oracle, SmallTransformer(model, 2)).generate([[1]])


def test_unusable_files_are_refused(tmp_path):
    def load(rows, **options):
        path = tmp_path / "records.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        return RecordedText.load(path, **options)

    for name in ("nowhere.jsonl", "x" * 300):
        with pytest.raises(ValueError, match=f"the file .*{name} does not exist"):
            RecordedText.load(tmp_path / name)
    with pytest.raises(ValueError, match=r"not one of \['completion', .*name one as output_column"):
        load([{"prompt": "a"}])
    with pytest.raises(ValueError, match="not 'text'; name one as column"):
        load([{"prompt": "a", "output": "b"}], column="text")
    with pytest.raises(ValueError, match="row 1, column 'output' holds None; give it text or a list of ids"):
        load([{"prompt": "a", "output": "b"}, {"prompt": "b"}])
    with pytest.raises(ValueError, match="row 0, column 'output' holds"):
        load([{"prompt": "a", "output": [1, "b"]}])


def test_bad_calls_are_refused():
    model = recorded()
    cache = model.new_cache(1, 2)
    good, rows = (torch.tensor([[0]]), None, torch.tensor([1]), cache), rows_of(0)
    with pytest.raises(ValueError, match="hidden"):
        model.score(*good, rows, hidden=(0,))
    with pytest.raises(ValueError, match="want"):
        model.score(*good, rows, want="some")
    for token in (-1, 10):
        with pytest.raises(ValueError, match="outside"):
            model.score(torch.tensor([[token]]), None, torch.tensor([1]), cache, rows)
    with pytest.raises(ValueError, match="capacity"):
        model.score(torch.tensor([[0, 1, 2]]), None, torch.tensor([3]), cache, rows)
    with pytest.raises(ValueError, match="max_cache_bytes"):
        model.new_cache(10, 10, max_cache_bytes=100)
