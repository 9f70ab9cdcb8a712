"""What results, records, statistics, oracles and decoders say of themselves, on one line and in a notebook."""

import re
from pathlib import Path

import pytest

import drafts
from oracles import RecordedText, TabularLM
from specdec import Result, SpeculativeDecoder
from specdec.stats import RECORD_COLUMNS, Records, Stats
from specdec.stats.trace import SHOWN

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "records.md"


@pytest.fixture(scope="module")
def oracle() -> TabularLM:
    return TabularLM.random(5, 2, seed=0)


@pytest.fixture(scope="module")
def result(oracle: TabularLM) -> Result:
    return SpeculativeDecoder(oracle, drafts.PromptLookup(4)).generate([[1, 2], [3, 4, 0]], 20, return_logprobs=True)


def test_a_result_says_what_a_user_wants_to_know_on_one_line(result: Result) -> None:
    stats = result.stats
    tau, alpha = f"{stats.block_efficiency:.3g} a step", f"acceptance {stats.acceptance_rate:.3g}"
    assert repr(result).startswith(f"Result(2 requests, 40 tokens: {tau}, ")
    assert repr(result).endswith(f" a second, {alpha}; exact, table passes)")
    assert repr(stats).startswith(f"Stats(40 tokens in {stats.num_steps} steps: block_efficiency ")
    assert repr(Stats()) == "Stats(0 tokens in 0 steps)"
    rows, steps = len(result.records), stats.target_calls
    assert repr(result.records) == f"Records({rows} rows: {steps} steps of 2 requests)"


def test_one_of_a_kind_is_told_as_one(oracle: TabularLM) -> None:
    result = SpeculativeDecoder(oracle).generate([[1, 2]], 1)
    assert repr(result).startswith("Result(1 request, 1 token: ")
    assert repr(result.stats).startswith("Stats(1 token in 1 step: ")
    assert repr(result.records) == "Records(1 row: 1 step of 1 request)"


def test_an_oracle_and_a_decoder_name_what_they_are(oracle: TabularLM) -> None:
    told = "TabularLM(vocabulary 5, context 1,048,576, table passes in float64 on cpu, weights of 0.0 MB, bitwise)"
    assert repr(oracle) == told
    decoder = SpeculativeDecoder(oracle, drafts.PromptLookup(4), "sample_and_match")
    assert repr(decoder) == f"SpeculativeDecoder({told}, draft=prompt_lookup, rule=sample_and_match)"
    assert repr(RecordedText([[1, 2]], [[3]])) == "RecordedText(1 records, vocabulary 4)"


def test_records_are_a_data_frame(result: Result) -> None:
    frame = result.records.to_pandas()
    assert len(frame) == len(result.records)
    assert {name: frame[name].tolist() for name in frame} == result.records.columns()
    assert frame.groupby("request")["num_emitted"].sum().tolist() == [20, 20]


def test_every_column_of_records_has_its_meaning_in_the_docstring_and_on_the_page(result: Result) -> None:
    assert list(RECORD_COLUMNS) == list(result.records.columns())
    page = re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert dict(page) == RECORD_COLUMNS
    told = Records.to_pandas.__doc__
    assert told is not None
    assert re.findall(r"^ {12}(\w+): (.+)\.$", told.partition("Columns:")[2], re.MULTILINE) == list(
        RECORD_COLUMNS.items()
    )


def test_a_notebook_shows_the_first_rows_and_escapes_texts(result: Result) -> None:
    shown = result.records._repr_html_()
    assert shown.count("<tr>") == 1 + SHOWN
    assert f", the first {SHOWN}" in shown
    assert RECORD_COLUMNS["draft_depth"] in shown
    assert Records([])._repr_html_() == "<p>Records(0 rows: 0 steps of 0 requests)</p>"
    text = Result(
        [[1], [2, 3]], ["<b>", "漢" * 300], ["eos", "length"], Stats(requests=(Stats(), Stats())), Records([]), None,
        [(0, 0), (0, 1)], "exact", "table", "standard", "lookup", "reference",
    )._repr_html_()  # fmt: skip
    assert "<b>" not in text
    assert "&lt;b&gt;" in text
    assert f"{'漢' * 200} ..." in text, "a text without blanks is cut too"
    assert text.count("<tr>") == 3
