"""Node records: every node of a run in one row, whatever kills the run and however often."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import drafts
from experiments.harness import tracing
from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import WatchedSession, WatchedSource
from specdec.system import whole_file
from specdec.traces import NodeRecords, nodes, record_nodes, recording
from tests.support.pairwise import chosen
from tests.support.processes import started, status_of
from tests.support.registry import OTHERS, SIX_IDS, SOURCES

PROMPTS = [[i % 6, (i * i) % 6, 2, 3] for i in range(5)]
NEW = 16
SAMPLED = SamplingParams(temperature=1.0)
# All but the greedy one with an end inside. The first stands in most cases.
WAYS = {
    "sampled": ("sample_and_match", SAMPLED),
    "greedy": ("sample_and_match", SamplingParams()),
    "coupled": ("coupled", SamplingParams(temperature=0.8, top_p=0.9)),
}
ALL = {
    **{f"{name}, {way}": make(SIX_IDS, 3) for name, ways in SOURCES.items() for way, make in ways.items()},
    **{f"{name}, {way}": make(SIX_IDS) for name, ways in OTHERS.items() for way, make in ways.items()},
    "plain": None,
}


class Killed(BaseException):
    """What no part of the program catches."""


class Dying(WatchedSession):
    """A session that dies in its so manyth draft, over all that share a list of calls."""

    def __init__(self, inner, limit, calls):
        super().__init__(inner)
        self.limit, self.calls = limit, calls

    def propose(self, *arguments):
        self.calls.append(1)
        if len(self.calls) == self.limit:
            raise Killed
        return self.inner.propose(*arguments)


def dying(source, limit: int) -> WatchedSource:
    calls: list[int] = []
    return WatchedSource(source, lambda session, oracle, num_rows: Dying(session, limit, calls))


def recorded(folder: Path, source, **options) -> NodeRecords:
    # A table gives the same bits in every batch.
    decoder = SpeculativeDecoder(SIX_IDS.other, source)
    return record_nodes(decoder, folder, PROMPTS, NEW, SAMPLED, batch_size=2, **options)


def decoder_of(source, rule="standard") -> SpeculativeDecoder:
    return SpeculativeDecoder(SIX_IDS.layered, source, rule)


def without_seconds(records: NodeRecords) -> dict[str, list]:
    return {name: values.tolist() for name, values in records.columns().items() if not name.startswith("seconds")}


def same(one: NodeRecords, other: NodeRecords) -> bool:
    # NaN is no number that equals another.
    return json.dumps(without_seconds(one)) == json.dumps(without_seconds(other)) and one.tokens == other.tokens


def assert_tells_the_run(columns, result):
    """Check that the rows are those of a run: its outputs, and what its statistics count."""
    for request, output in enumerate(result.tokens):
        own = np.flatnonzero((columns["request"] == request) & columns["emitted"])
        own = own[np.lexsort((columns["depth"][own], columns["step"][own]))]
        assert columns["token"][own].tolist() == output
        assert np.unique(columns["step"][columns["request"] == request]).tolist() == [
            *range(result.stats.requests[request].num_steps)
        ]
    stats = result.stats
    counted = {kind: int((columns["kind"] == kind).sum()) for kind in ("draft", "scout", "recovered", "bonus")}
    assert (counted["draft"], counted["scout"]) == (stats.num_drafted, stats.num_scouts)
    assert columns["accepted"].sum() == stats.num_accepted
    assert counted["recovered"] + counted["bonus"] <= stats.num_steps
    assert ((columns["node"] >= 0) == np.isin(columns["kind"], ("draft", "scout"))).all()
    assert ((columns["rank"] >= 0) == (columns["kind"] == "draft")).all()
    by_source = {name: int((columns["source"] == name).sum()) for name in stats.drafted_by_source}
    assert sum(by_source.values()) == stats.num_drafted + stats.num_scouts


@chosen(
    {"name": tuple(ALL), "way": tuple(WAYS)},
    lambda name, way: {name.partition(", ")[0], (ALL[name] is not None and ALL[name].offers.trees, way)},
)
def test_rows_are_the_nodes_of_the_run(name, way, tmp_path):
    rule, sampling = WAYS[way]
    decoder = decoder_of(ALL[name], rule)
    stop = None if way == "greedy" else [[2, 2]]
    result = decoder.generate(PROMPTS[:3], 12, sampling, stop=stop, batch_size=2, return_logprobs=True)
    records = record_nodes(decoder, tmp_path, PROMPTS[:3], 12, sampling, stop=stop, batch_size=2, logprobs=True)
    assert records.complete
    assert list(records.tokens.values()) == result.tokens
    assert list(records.finish_reasons.values()) == result.finish_reasons
    columns = records.columns()
    assert_tells_the_run(columns, result)
    emitted = columns["emitted"]
    order = np.lexsort((columns["depth"][emitted], columns["step"][emitted], columns["request"][emitted]))
    expected = np.concatenate(result.logprobs)
    np.testing.assert_allclose(columns["logprob"][emitted][order], expected, rtol=1e-12, atol=1e-12)
    if way == "greedy":
        assert set(columns["p"].tolist()) <= {0.0, 1.0}
        assert (columns["p"][emitted] == 1).all()
    else:
        np.testing.assert_allclose(np.exp(columns["logprob"]), columns["p"], rtol=1e-9)


def test_accepted_tokens_behind_a_stop_are_not_emitted(tmp_path):
    decoder = decoder_of(drafts.SmallTransformer(SIX_IDS.layered, 4))
    for number, (stop, cut) in enumerate({(4,): 3, (5, 4): 1}.items()):
        options = {"max_new_tokens": 8, "stop": [list(stop)]}
        result = decoder.generate(PROMPTS[:1], **options)
        assert result.stats.truncated["stop"] == cut
        records = record_nodes(decoder, tmp_path / str(number), PROMPTS[:1], **options)
        assert_tells_the_run(records.columns(), result)


def test_nodes_hang_on_their_parents(tmp_path):
    decoder = decoder_of(ALL["Merged, nested"], "sample_and_match")
    columns = record_nodes(decoder, tmp_path, PROMPTS, NEW, SAMPLED).columns()
    step = np.stack([columns["request"], columns["step"]], axis=1)
    found = 0
    for key in np.unique(step, axis=0):
        own = np.flatnonzero((step == key).all(1))
        node = {int(columns["node"][i]): i for i in own if columns["node"][i] >= 0}
        for i in own:
            parent = int(columns["parent"][i])
            assert columns["depth"][i] == (1 if parent < 0 else columns["depth"][node[parent]] + 1)
            found += parent >= 0 and bool(columns["accepted"][i])
            assert not columns["accepted"][i] or parent < 0 or columns["accepted"][node[parent]]
        elder = {}
        for i in [node[n] for n in sorted(node)]:
            assert columns["rank"][i] == elder.get(columns["parent"][i], 0)
            elder[columns["parent"][i]] = columns["rank"][i] + 1
    assert found > 3


def test_q_is_the_probability_by_which_a_token_was_drawn_and_seconds_add_up(tmp_path):
    source = drafts.SmallTransformer(SIX_IDS.model, 3)
    columns = record_nodes(decoder_of(source), tmp_path, PROMPTS, NEW, SAMPLED).columns()
    drawn = columns["node"] >= 0
    assert ((columns["q"][drawn] > 0) & (columns["q"][drawn] < 1)).all()
    assert np.isnan(columns["q"][~drawn]).all()
    assert (columns["seconds_score"] > 0).all()
    lookup = record_nodes(decoder_of(drafts.PromptLookup(3)), tmp_path / "other", PROMPTS, NEW, SAMPLED).columns()
    assert (lookup["q"][lookup["node"] >= 0] == 1).all()


def test_times_are_without_what_recording_took(tmp_path, monkeypatch):
    seen = nodes.ranks_of

    def slowly(*given):
        time.sleep(0.02)
        return seen(*given)

    monkeypatch.setattr(nodes, "ranks_of", slowly)
    columns = record_nodes(decoder_of(drafts.PromptLookup(3)), tmp_path, PROMPTS, NEW, batch_size=1).columns()
    _, step = np.unique(np.stack([columns["request"], columns["step"]]), axis=1, return_inverse=True)
    taken = np.bincount(step.reshape(-1), columns["seconds_commit"])
    assert (taken > 0).all()
    assert np.median(taken) < 0.01


def test_requests_without_room_have_an_output_and_no_rows(tmp_path):
    records = record_nodes(decoder_of(drafts.PromptLookup(3)), tmp_path, PROMPTS, 0)
    assert records.complete
    assert records.tokens == {i: [] for i in range(5)}
    assert not len(records.columns()["request"])
    assert record_nodes(decoder_of(None), tmp_path / "none", [], 4).complete
    assert tracing._steps_of_records(records.columns(), 5) == [[]] * 5


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> NodeRecords:
    return recorded(tmp_path_factory.mktemp("whole"), drafts.SmallTransformer(SIX_IDS.model, 3), requests_per_part=2)


def test_a_run_that_is_killed_in_any_step_goes_on(whole, tmp_path):
    source, kills = drafts.SmallTransformer(SIX_IDS.model, 3), 0
    for limit in (1, 4, 9, 14, 19):
        try:
            recorded(tmp_path, dying(source, limit), requests_per_part=2)
        except Killed:
            kills += 1
    assert kills >= 3
    assert same(recorded(tmp_path, source, requests_per_part=2), whole)


def test_a_run_that_is_killed_at_any_byte_of_a_file_goes_on(whole, tmp_path, monkeypatch):
    source = drafts.SmallTransformer(SIX_IDS.model, 3)
    replace, written = os.replace, []

    def dies_after(count):
        def replaced(beside, path):
            written.append(Path(beside).read_bytes())
            if len(written) > count:
                cut = len(written[-1]) * (count + 1) // 5
                Path(f"{beside}.new").write_bytes(written[-1][:cut])  # an error leaves nothing, a kill does
                raise Killed
            replace(beside, path)

        return replaced

    for count in range(4):  # run.json, then parts; each call gets one file further
        written.clear()
        monkeypatch.setattr(whole_file.os, "replace", dies_after(min(count, 1)))
        with pytest.raises(Killed):
            recorded(tmp_path, source, requests_per_part=1)
    monkeypatch.setattr(whole_file.os, "replace", replace)
    assert list(tmp_path.glob("*.new"))
    assert same(recorded(tmp_path, source, requests_per_part=1), whole)


def test_a_run_that_is_killed_after_a_file_was_named_has_it_once(whole, tmp_path, monkeypatch):
    source, replace = drafts.SmallTransformer(SIX_IDS.model, 3), os.replace

    def replaced(beside, path):
        replace(beside, path)
        raise Killed

    monkeypatch.setattr(whole_file.os, "replace", replaced)
    for _ in range(3):
        with pytest.raises(Killed):
            recorded(tmp_path, source, requests_per_part=2)
    assert len(list(tmp_path.glob("nodes-*.parquet"))) == 2
    monkeypatch.setattr(whole_file.os, "replace", replace)
    assert not NodeRecords(tmp_path).complete
    assert same(recorded(tmp_path, source, requests_per_part=2), whole)


def record_and_die(folder):
    try:
        recorded(folder, dying(drafts.SmallTransformer(SIX_IDS.model, 3), 16), requests_per_part=1)
    except Killed:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(os.name != "posix", reason="there is no SIGKILL")
def test_a_process_that_is_killed_goes_on(whole, tmp_path):
    assert status_of(started(record_and_die, tmp_path)) == -signal.SIGKILL
    assert 0 < len(NodeRecords(tmp_path).tokens) < len(PROMPTS)
    assert same(recorded(tmp_path, drafts.SmallTransformer(SIX_IDS.model, 3)), whole)


def test_a_finished_run_is_not_decoded_again(whole, tmp_path):
    source = drafts.SmallTransformer(SIX_IDS.model, 3)
    recorded(tmp_path, source)
    assert same(recorded(tmp_path, dying(source, 1)), whole)


def test_a_folder_is_for_one_run(tmp_path):
    source = drafts.PromptLookup(3)
    recorded(tmp_path, source)
    with pytest.raises(ValueError, match=r"holds another run .*draft: 'prompt_lookup', not 'small_transformer'"):
        recorded(tmp_path, drafts.SmallTransformer(SIX_IDS.model, 3))
    with pytest.raises(ValueError, match="label: '', not 'other'"):
        recorded(tmp_path, source, label="other")
    with pytest.raises(ValueError, match="requests: "):
        record_nodes(SpeculativeDecoder(SIX_IDS.other, source), tmp_path, PROMPTS, NEW + 1, SAMPLED)
    with pytest.raises(ValueError, match="no node records"):
        NodeRecords(tmp_path / "nothing")


def test_equal_arguments_of_other_types_are_one_run_and_wrong_ones_make_no_folder(tmp_path):
    decoder = decoder_of(drafts.PromptLookup(np.int64(3)))
    plain = SamplingParams(temperature=1.0, logit_bias={1: 0.5, 2: -1.0})
    other = SamplingParams(temperature=1, top_p=np.float64(1), logit_bias={2: -1, np.int64(1): np.float64(0.5)})
    made, again = (record_nodes(decoder, tmp_path / "run", PROMPTS, 4, one) for one in (plain, other))
    assert made.tokens == again.tokens
    assert repr(recording._plain(plain)) == repr(plain), "the hash of plain floats is as it was"
    for wrong in ({"batch_size": 0}, {"requests_per_part": 0}, {"requests_per_part": 2.5}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            record_nodes(decoder, tmp_path / "none", PROMPTS, 4, **wrong)
    assert not (tmp_path / "none").exists()


def test_a_request_in_two_parts_is_an_error(tmp_path):
    recorded(tmp_path, drafts.PromptLookup(3))
    part = tmp_path / "nodes-000000.parquet"
    (tmp_path / "nodes-000009.parquet").write_bytes(part.read_bytes())
    with pytest.raises(ValueError, match=r"request 0 stands in .* and in another part"):
        NodeRecords(tmp_path)


def test_parts_are_what_datasets_reads(whole, tmp_path):
    from datasets import Dataset

    recorded(tmp_path / "run", drafts.SmallTransformer(SIX_IDS.model, 3), requests_per_part=2)
    files = [str(path) for path in sorted((tmp_path / "run").glob("nodes-*.parquet"))]
    read = Dataset.from_parquet(files, cache_dir=str(tmp_path / "cache"))
    assert sorted(read["token"]) == sorted(whole.columns()["token"].tolist())
