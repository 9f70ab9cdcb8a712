"""The trace on the page: its data are the node records', and nothing in them can break out of it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import drafts
import oracles
from experiments.harness.tracing import token_texts
from experiments.report.page import page
from experiments.report.traces import (
    ABSENT,
    DECISIONS,
    NEARLY_1,
    SCALE,
    TINY,
    VIEWER,
    decisions_of,
    trace_data,
    trace_sections,
    viewer_section,
)
from specdec import SamplingParams, SpeculativeDecoder
from specdec.traces import record_nodes
from tests.support.runs.traces import WORDS, synthetic, synthetic_page

PROMPTS = ["def f(x):\n    return f(x", "import os\nimport "]
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "\u2028",
    "&lt;",
    "</SCRIPT >",
    "\ud800",
    "' onload='x",
]
COLUMNS = ("token", "parent", "source", "decision", "p", "q", "confidence")


def data_in(html: str, name: str) -> dict:
    (found,) = re.findall(rf'<script type="application/json" id="data-{name}">(.*?)</script>', html, flags=re.DOTALL)
    return json.loads(found)


def whole(data: dict, name: str) -> np.ndarray:
    """Return a column as the script unpacks it."""
    return np.broadcast_to(data[name], data["rows"])


@pytest.fixture(scope="module", params=["greedy", "coupled"])
def recorded(request, tmp_path_factory):
    """Records of a merged source's trees, and what the page holds of them."""
    oracle = oracles.load("code-draft-tiny")
    source = drafts.Merged([drafts.PromptLookup(3), drafts.SmallTransformer(oracle, 2)])
    greedy = request.param == "greedy"
    decoder = SpeculativeDecoder(oracle, source, "multi_draft" if greedy else "coupled")
    sampling = SamplingParams(temperature=0.0 if greedy else 0.9)
    records = record_nodes(decoder, tmp_path_factory.mktemp("nodes"), PROMPTS, 24, sampling, logprobs=True)
    columns = records.columns()
    encoded = [oracle.tokenizer.encode(text).ids for text in PROMPTS]
    ids = {int(one) for one in columns["token"]}.union(*encoded)
    texts = [*zip("ab", encoded, strict=True)], token_texts(oracle.tokenizer, ids)
    return records, columns, trace_data(columns, *texts)


def test_the_data_tell_the_output(recorded):
    records, columns, data = recorded
    ids, decision = np.asarray(data["ids"]), np.asarray(DECISIONS)[whole(data, "decision")]
    is_out = np.isin(decision, ["accepted", "recovered", "bonus"])
    step_of = np.repeat(np.arange(len(data["size"])), data["size"])
    request_of = np.repeat(np.arange(2), [prompt["steps"] for prompt in data["prompts"]])[step_of]
    for request, tokens in records.tokens.items():
        assert ids[whole(data, "token")[is_out & (request_of == request)]].tolist() == tokens
    assert [ids[prompt["tokens"]].tolist() for prompt in data["prompts"]] == [
        oracles.load("code-draft-tiny").tokenizer.encode(text).ids for text in PROMPTS
    ]
    assert sum(data["size"]) == data["rows"] == len(columns["token"])


def test_the_data_are_the_records_rounded_to_what_is_shown(recorded):
    _, columns, data = recorded
    assert np.asarray(data["ids"])[whole(data, "token")].tolist() == columns["token"].tolist()
    for name, values in {
        "p": np.exp(columns["logprob"]),
        "q": columns["q"],
        "confidence": columns["confidence"],
    }.items():
        shown = whole(data, name)
        assert ((shown == ABSENT) == np.isnan(values)).all()
        assert ((shown == TINY) == ((values > 0) & (values <= 0.5 / SCALE))).all()
        assert ((shown == NEARLY_1) == ((values < 1) & (values >= 1 - 0.5 / SCALE))).all()
        known = shown >= 0
        np.testing.assert_allclose(shown[known] / SCALE, values[known], atol=0.5001 / SCALE)
    names = [data["sources"][i] if i >= 0 else None for i in whole(data, "source")]
    assert names == columns["source"].tolist()
    assert set(data["sources"]) == {"prompt_lookup", "small_transformer"}
    drafted = columns["node"] >= 0  # places in a step are the draft's own, as its nodes stand in their order there
    assert whole(data, "parent")[drafted].tolist() == columns["parent"][drafted].tolist()


def test_what_became_of_a_node():
    # Of the pending token's children a, b, c b stands; d and e hang on b, f on a; g is a scout, h the verdict's.
    columns = {
        "kind": np.array([*["draft"] * 6, "scout", "recovered"]),
        "accepted": np.array([False, True, False, False, False, False, False, False]),
        "emitted": np.array([False, True, False, False, False, False, False, True]),
        "rank": np.array([0, 1, 2, 0, 1, 0, -1, -1]),
    }
    parent, step = np.array([-1, -1, -1, 1, 1, 0, -1, 1]), np.zeros(8, dtype=np.int64)
    told = ["rejected", "accepted", "not reached", "rejected", "rejected", "not reached", "scout", "recovered"]
    assert [DECISIONS[i] for i in decisions_of(columns, parent, step)] == told
    columns["emitted"][[1, 7]] = False
    assert DECISIONS[decisions_of(columns, parent, step)[1]] == "cut off"


def test_a_chain_is_rejected_once_and_steps_do_not_mix():
    # Two steps of a chain of three: one token stands, then none.
    columns = {
        "kind": np.array(["draft", "draft", "draft", "recovered"] * 2),
        "accepted": np.array([True, False, False, False, False, False, False, False]),
        "emitted": np.array([True, False, False, True, False, False, False, True]),
        "rank": np.array([0, 0, 0, -1] * 2),
    }
    parent, step = np.array([-1, 0, 1, 0, -1, 4, 5, -1]), np.repeat([0, 1], 4)
    first = ["accepted", "rejected", "not reached", "recovered"]
    second = ["rejected", "not reached", "not reached", "recovered"]
    assert [DECISIONS[i] for i in decisions_of(columns, parent, step)] == first + second


def test_hostile_texts_stay_texts():
    columns, _ = synthetic(3, num_words=len(HOSTILE))
    hostile = HOSTILE[0] + '"'
    columns["source"] = np.where(columns["source"] == "lookup", hostile, columns["source"])
    texts = [(hostile, [0, 1])], dict(enumerate(HOSTILE))
    html = page(hostile, [viewer_section("trace-x", "trace-x", hostile, trace_data(columns, *texts), [hostile])])
    data = data_in(html, "trace-x")
    assert [data["texts"], data["arm"], data["prompts"][0]["name"]] == [HOSTILE, hostile, hostile]
    assert hostile in data["sources"]
    assert "alert(1)</script>" not in html
    assert "\u2028" not in html


def test_scripts_put_texts_as_texts_and_load_nothing():
    scripts = "".join(path.read_text(encoding="utf-8") for path in VIEWER.glob("*.js"))
    markup = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|\beval\b|Function\("
    )
    assert not re.search(markup, scripts)
    parts = "".join(path.read_text(encoding="utf-8") for path in VIEWER.iterdir())
    assert set(re.findall(r"https?://[^\s\"'`]+", parts)) == {"http://www.w3.org/2000/svg"}  # a name, not a place
    assert not re.search(r"\bsrc=|@import|url\(|fetch\(|XMLHttpRequest|WebSocket|sendBeacon", parts)


def test_ten_thousand_steps_of_eight_nodes_are_a_page_under_20_MB():
    assert len(synthetic_page(10_000).encode()) < 5e6  # which leaves room for a charting library


def test_a_step_has_its_microseconds_by_phase(recorded):
    _, columns, data = recorded
    assert data["phases"] == ["propose", "score", "verify", "commit"]
    step_of = np.repeat(np.arange(len(data["size"])), data["size"])
    for phase, micros in zip(data["phases"], data["micros"], strict=True):
        assert micros == pytest.approx(1e6 * np.bincount(step_of, columns[f"seconds_{phase}"]), abs=0.51)
    assert min(data["micros"][1]) > 0


def test_records_without_times_show_none():
    columns, texts = synthetic(2)
    plain = {name: values for name, values in columns.items() if not name.startswith("seconds")}
    data = trace_data(plain, *texts)
    assert (data["phases"], data["micros"]) == ([], [])


def test_columns_of_one_value_are_that_value():
    columns, texts = synthetic(4)
    columns["confidence"][:] = np.nan
    data = trace_data(columns, *texts)
    assert data["confidence"] == ABSENT
    assert [len(data[name]) for name in COLUMNS[:-1]] == [data["rows"]] * 6
    assert data["texts"][: len(WORDS)] == WORDS


def test_what_is_not_quite_1_is_not_1():
    columns, texts = synthetic(1)
    columns["q"][:4] = 1.0, 0.99996, 0.99994, 0.00004
    assert trace_data(columns, *texts)["q"][:4] == [SCALE, NEARLY_1, SCALE - 1, TINY]


def test_a_trace_of_another_version_is_refused(tmp_path: Path):
    (tmp_path / "nodes" / "a").mkdir(parents=True)
    (tmp_path / "nodes" / "trace.json").write_text('{"arms": {"a": "A"}, "left_out": []}')
    (tmp_path / "nodes" / "a" / "tokens.json").write_text('{"tokens": {}, "others": []}')
    with pytest.raises(ValueError, match="a trace that another version wrote; measure again"):
        trace_sections(tmp_path, "run-1")


def test_records_without_a_step_and_runs_without_traces(tmp_path: Path):
    decoder = SpeculativeDecoder(oracles.load("code-draft-tiny"), drafts.PromptLookup(3))
    columns = record_nodes(decoder, tmp_path / "nodes", PROMPTS, 0, logprobs=True).columns()
    data = trace_data(columns, [("a", [5])], {5: "x"})
    assert (data["rows"], data["size"], data["prompts"]) == (0, [], [{"name": "a", "tokens": [0], "steps": 0}])
    assert trace_sections(tmp_path, "run-1") == ()
