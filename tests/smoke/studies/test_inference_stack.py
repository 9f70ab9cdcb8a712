"""The inference study from its command line, on a tiny shape: its gate, its tables, its files, its refusals."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments.harness import rounds
from experiments.studies.inference_stack import __main__ as stack
from experiments.studies.inference_stack import stack_registry, stack_study, stack_tables, stack_timing, study_frame
from experiments.studies.inference_stack.fresh import CACHE, in_new_process, peak_bytes
from experiments.studies.inference_stack.fresh import main as first_call
from experiments.studies.inference_stack.stack_arms import Generate, naive, prepare_compiler
from experiments.studies.inference_stack.stack_registry import ABLATIONS, NAIVE, StackArm, arms_of
from experiments.studies.inference_stack.stack_study import StackOptions, StackStudy
from experiments.studies.inference_stack.stack_timing import batches_of, generation, judge, least_seconds, write_ids
from experiments.studies.inference_stack.study_frame import Results
from experiments.studies.inference_stack.subjects import Subject, arithmetic, build_subject
from experiments.studies.limits import limit_timing
from oracles.factory.arithmetic.problems import NUM_HELD_OUT
from tests.support.pairwise import first_of
from tests.support.runs.experiments import table_rows

pytestmark = pytest.mark.usefixtures("documents")

CPU = torch.device("cpu")
PASSED = {"prompts": 2, "same": 2, "exact": None}
TINY = ["--subject", "tiny", "--threads", "1", "--rounds", "2", "--warm-ups", "1", "--round-seconds", "0.001"]
SIZES = ["--num-prompts", "5", "--gate-prompts", "5", "--side-gate-prompts", "2"]
EAGER = ["--arms", NAIVE, "cache", "prefill", "packed weights"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path))  # which a run changes
    monkeypatch.setattr(rounds, "PAUSE", 0.0)
    monkeypatch.setattr(study_frame, "take_threads", torch.set_num_threads)
    monkeypatch.setattr(limit_timing, "SIDES", (16, 32))
    monkeypatch.setattr(limit_timing, "REPEATS", 1)


@pytest.fixture
def _traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have torch.compile trace whole graphs, and run them without a C++ compiler."""
    compiled = torch.compile

    def traced(function: Callable[..., object], *, options: object = None, **settings: object) -> object:
        return compiled(function, backend="eager", **settings)

    monkeypatch.setattr(torch, "compile", traced)
    torch._dynamo.reset()
    prepare_compiler()


def tiny(num_prompts: int = 6) -> Subject:
    return build_subject("tiny", "cpu", num_prompts, num_prompts)


def studied(results: Results, batch: int, names: Iterable[str]) -> StackStudy:
    subject = tiny()
    arms = arms_of(subject)
    return StackStudy(StackOptions("tiny", (batch,)), results, subject, {name: arms[name] for name in names})


@pytest.mark.parametrize("batch", first_of(3, 1))
@pytest.mark.usefixtures("_traced_only")
def test_every_arm_writes_what_the_naive_one_does(batch):
    subject = replace(tiny(), num_new=3)
    wanted = write_ids(naive(subject, batch), subject, batch, 6, "naive")
    assert len({tuple(row) for row in wanted.tolist()}) > 1
    ran, built = 0, set()
    for name, arm in arms_of(subject).items():
        if arm.build in built:  # one way may be an arm of several groups
            continue
        built.add(arm.build)
        try:
            generate = arm.build(subject, batch)
        except (ImportError, ValueError):
            assert name.startswith(("native", "transformers"))
            continue
        marks: list[int] = []
        with torch.inference_mode():
            ids = generate(subject.gate[:batch], lambda marks=marks: marks.append(1))
        assert ids.shape == (batch, subject.num_new)
        assert marks
        assert "bfloat16" in name or torch.equal(ids, wanted[:batch]), name
        ran += 1
    assert ran > 17


def test_draft_models_compute_as_the_oracle_does_on_a_device(monkeypatch):
    asked: list[tuple[str, object]] = []

    def load(name: str, *, device: torch.device, backend: str | None = None, weights: str | None = None) -> object:
        asked.append((device.type, backend))
        return tiny().oracle

    monkeypatch.setattr("oracles.load", load)
    for device in ("cpu", "cuda"):
        arithmetic(torch.device(device), 2, 2).sources["draft model, 6 ahead"]()
    assert asked == [("cpu", None), ("cuda", "eager")]


def test_the_tables_the_file_and_the_picture(tmp_path, capsys):
    arguments = [*TINY, *SIZES, *EAGER, "--parts", "gate", "time", "--batches", "1", "2", "--out", str(tmp_path)]
    stack.main(arguments)
    printed = capsys.readouterr().out
    shown = table_rows(printed, "Batch 2")
    assert [row["arm"] for row in shown] == EAGER[1:]
    assert all(row["same ids"] == "5 of 5" and float(row["tokens/s"].replace(",", "")) > 0 for row in shown)
    assert shown[0]["over naive"] == "1.00 (1.00 .. 1.00)"
    assert (
        table_rows(printed, "Best arm over the naive one")[0]["fewer token passes"] == f"{sum(range(64, 80)) / 79:.2f}"
    )
    assert (tmp_path / "stack.png").read_bytes().startswith(b"\x89PNG")
    kept = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert kept["arguments"]["rounds"] == 2
    assert len(kept["measured"]["time, batch 1"]["cache"]["seconds"]) == 2
    assert kept["provenance"]["arguments"]["subject"] == "tiny"


def _wrong(subject: Subject, batch: int) -> Generate:
    right = naive(subject, batch)

    def generate(prompts: torch.Tensor, mark: Callable[[], None]) -> torch.Tensor:
        ids = right(prompts, mark)
        ids[-1, -1] = (ids[-1, -1] + 1) % 256
        return ids

    return generate


def _broken(subject: Subject, batch: int) -> Generate:
    raise ValueError("not here\nnor there")


def test_an_arm_that_changes_an_output_is_failed_not_fast(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(stack_registry.STACK, "wrong", StackArm(_wrong, "one id is another"))
    monkeypatch.setitem(stack_registry.STACK, "broken", StackArm(_broken, "cannot run"))
    arms = ["--arms", NAIVE, "wrong", "broken"]
    assert stack.main([*TINY, *SIZES, *arms, "--parts", "gate", "time", "--batches", "2", "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    rows = {row["arm"]: row for row in table_rows(printed, "Batch 2")}
    assert rows["wrong"]["tokens/s"] == rows["wrong"]["over naive"] == "failed"
    assert rows["wrong"]["same ids"] == "3 of 5"
    assert rows["broken"]["tokens/s"] == rows["broken"]["same ids"] == "failed"
    assert "- batch 2, wrong: 2 of 5 texts differ from those of the naive arm" in printed
    assert "- batch 2, broken: ValueError: not here" in printed
    assert table_rows(printed, "Best arm over the naive one")[0]["best arm"] == NAIVE
    monkeypatch.setitem(stack_registry.STACK, NAIVE, StackArm(_broken, "cannot run"))
    afresh = ["--parts", "gate", "--batches", "2", "--out", str(tmp_path / "afresh")]
    with pytest.raises(ValueError, match="not here"):  # no arm is to blame for the one that all are compared with
        stack.main([*TINY, *SIZES, "--arms", "wrong", *afresh])


def test_an_interrupted_run_goes_on(tmp_path, capsys, monkeypatch):
    gate = [*TINY, *SIZES, *EAGER, "--parts", "gate", "--batches", "2", "--out", str(tmp_path)]
    judge, seen = stack_study.judge, []

    def third_fails(*arguments: object) -> dict[str, object]:
        seen.append(arguments)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return judge(*arguments)

    stack.main([*gate, "--parts", "time"])
    told = f"not timed at batch 2, for --parts gate comes first: {', '.join(EAGER[1:])}"
    assert told in capsys.readouterr().err
    monkeypatch.setattr(stack_study, "judge", third_fails)
    with pytest.raises(KeyboardInterrupt):
        stack.main(gate)
    stack.main(gate)
    assert len(seen) == 5
    assert [row["same ids"] for row in table_rows(capsys.readouterr().out, "Batch 2")] == ["5 of 5"] * 4
    with pytest.raises(SystemExit, match=r"figures of other arguments \(rounds was 2\)"):
        stack.main([*gate, "--rounds", "3"])
    stack.main([*gate, "--rounds", "3", "--fresh"])
    assert len(seen) == 9
    monkeypatch.setattr(study_frame, "processor", lambda: "another processor")
    with pytest.raises(SystemExit, match=r"figures of other arguments \(machine was '.*, cpu'\)"):
        stack.main([*gate, "--rounds", "3"])


def test_arms_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(SystemExit, match="--arms: turbo not among those of --groups here: naive, cache"):
        stack.main([*TINY, *SIZES, "--arms", "turbo", "--out", str(tmp_path)])


@pytest.mark.long
def test_a_first_call_in_a_new_process(tmp_path):
    found = in_new_process("tiny", "prefill", 2, "cpu", 1, tmp_path)
    assert set(found) == {"load_seconds", "first_seconds", "later_seconds", "peak_bytes"}
    assert 5e7 < found["peak_bytes"] < 4e9
    assert peak_bytes(CPU) > 5e7


def test_a_first_call_in_this_process(capsys):
    asked = ["--subject", "tiny", "--arm", "prefill", "--batch"]
    first_call([*asked, "1"])
    assert json.loads(capsys.readouterr().out)["first_seconds"] > 0
    with pytest.raises(SystemExit):
        first_call([*asked, "0"])
    assert "must be at least 1, got 0" in capsys.readouterr().err


def test_the_gate_counts_texts_and_answers():
    wanted = torch.tensor([[1, 2], [3, 4], [5, 6]])
    ids = torch.tensor([[1, 2], [3, 5]])
    assert judge(ids, wanted, None) == {"prompts": 2, "same": 1, "exact": None}
    assert judge(ids, wanted, torch.tensor([[0, 2], [3, 5], [5, 6]])) == {"prompts": 2, "same": 1, "exact": 1}


def test_arithmetic_brings_its_answers():
    subject = build_subject("arithmetic", "cpu", 7, 3)
    generate = arms_of(subject)["prefill"].build(subject, 3)
    ids = generation(generate, subject.gate, CPU)[0]
    assert judge(ids, ids, subject.answers)["exact"] == 3
    assert subject.pool.shape == (7, 9)
    assert len({tuple(row) for row in subject.pool.tolist()}) == 7
    assert len(build_subject("arithmetic", "cpu", 1, None).gate) == NUM_HELD_OUT == 3277


def test_batches_begin_again():
    prompts = torch.arange(5).view(5, 1)
    found = batches_of(prompts, 2)
    assert [next(found).flatten().tolist() for _ in range(3)] == [[0, 1], [2, 3], [0, 1]]
    assert next(batches_of(prompts[:2], 3)).flatten().tolist() == [0, 1, 0]


def test_the_least_time_counts_passes(tmp_path):
    subject, results = tiny(), Results(tmp_path, {})
    assert least_seconds(subject, results, 1, 4) is None
    results.put(stack_timing.ROOFLINE, 1, {"4": {"bytes_per_second": 1e9, "flops_per_second": 1e30}})
    weights = 2 * (4 * 32 * 32 + 3 * 32 * 64) + 32 * 256
    positions = sum(range(64, 80))  # read and written, once a pass
    wanted = 4 * (16 * weights + 3 * 2 * 2 * 32 * positions)
    assert least_seconds(subject, results, 3, 4) == pytest.approx(wanted / 1e9)


def test_when_a_first_call_pays(tmp_path):
    results = Results(tmp_path, {})
    slow, fast = (
        {"seconds": [value] * 3, "first_token_seconds": [0.1] * 3, "interleaved": "now"} for value in (2.0, 1.5)
    )
    names = ["prefill", "compiled step", "packed weights"]
    results.put("gate", 4, dict.fromkeys(names, PASSED))
    results.put("time", 4, dict(zip(names, (slow, fast, slow), strict=True)))
    first = {"load_seconds": 1.0, "first_seconds": 11.5, "later_seconds": 1.5, "peak_bytes": 1}
    results.put("first", 4, {"compiled step": first, "packed weights": first})
    rows = {row["arm"]: row for row in stack_tables.payback_rows(studied(results, 4, names))}
    assert rows["compiled step"]["pays after requests"] == "80"  # 10 s over 0.5 s a batch of 4
    assert rows["packed weights"]["pays after requests"] == "never"
    results.put("time", 4, {"compiled step": {**fast, "interleaved": "in other rounds"}})
    later = stack_tables.payback_rows(studied(results, 4, names))
    assert [row["arm"] for row in later] == ["packed weights"]


def test_each_ablation_is_compared_with_the_first_of_its_kind(tmp_path):
    results = Results(tmp_path, {})
    names = [name for name in ABLATIONS if name.startswith("fusion")]
    for name, seconds in zip(names, (1.0, 4.0), strict=True):
        times = {"seconds": [seconds], "first_token_seconds": [0.5], "interleaved": "now"}
        results.put("gate", 1, {name: PASSED})
        results.put("time", 1, {name: times})
    rows = stack_tables.ablation_rows(studied(results, 1, names))
    assert list(rows) == ["fusion"]
    assert [str(row["speed over the first"]) for row in rows["fusion"]] == [
        "1.00 (1.00 .. 1.00)",
        "0.25 (0.25 .. 0.25)",
    ]


def test_the_picture_bears_failures_and_slower_arms(tmp_path):
    bars = [("naive", 10.0), ("faster", 40.0), ("slower", 20.0), ("wrong", None), ("drafts", 80.0)]
    stack_tables.draw(tmp_path / "stack.png", {"batch 1": bars, "batch 8": bars}, chained=4)
    assert (tmp_path / "stack.png").stat().st_size > 5000


def test_times_count_only_behind_the_gate_and_beside_others_of_their_rounds(tmp_path):
    results = Results(tmp_path, {})
    times = {"seconds": [1.0], "first_token_seconds": [0.5]}
    results.put("time", 1, {NAIVE: {**times, "interleaved": "a"}, "cache": {**times, "interleaved": "a"}})
    study = studied(results, 1, ["prompt lookup"])
    assert study.times(1, "cache") is None
    results.put("gate", 1, dict.fromkeys([NAIVE, "cache", "prefill"], PASSED))
    assert str(study.over(1, "cache", NAIVE)) == "1.00 (1.00 .. 1.00)"
    results.put("time", 1, {"prefill": {**times, "interleaved": "b"}})
    assert study.over(1, "prefill", NAIVE) is None
    results.put("time", 1, {"prompt lookup": {**times, "interleaved": "a"}})
    results.put("gate", 1, {"prompt lookup": PASSED})
    (row,) = stack_tables.ratio_rows(study)
    assert [row[name] for name in ("best arm", "best without drafts", "its ratio")] == ["prompt lookup", None, None]


def test_what_is_kept_is_of_the_arguments_that_came_first(tmp_path):
    Results(tmp_path, {"rounds": 2})
    with pytest.raises(ValueError, match=r"figures of other arguments \(rounds was 2\)"):
        Results(tmp_path, {"rounds": 3})


def test_figures_that_are_damaged_are_named(tmp_path):
    for content, told in (
        ('{"measured": {', "it is no JSON"),
        ("{}", "it lacks 'arguments', 'provenance', 'measured'"),
    ):
        (tmp_path / "results.json").write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=rf"results\.json is damaged: {told}.*give another folder, or --fresh"):
            Results(tmp_path, {})


def test_an_arm_that_returns_too_few_rows_is_refused():
    subject = tiny()
    with pytest.raises(ValueError, match=r"ids of shape \(1, 16\), not \(2, 16\)"):
        write_ids(lambda prompts, mark: (mark(), prompts[:1, :16])[1], subject, 2, 6, "short")


def test_more_problems_than_there_are_is_refused(tmp_path):
    kept = tmp_path / "results.json"
    kept.write_text("{}", encoding="utf-8")
    with pytest.raises(SystemExit, match="--num-prompts: there are 2,000,000 problems, not 3,000,000"):
        stack.main(["--num-prompts", "3000000", "--fresh", "--out", str(tmp_path)])
    assert kept.exists()


def test_a_device_that_torch_does_not_name_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="inference_stack: device is 'gpu0'; give one as torch names them"):
        stack.main(["--device", "gpu0", "--out", str(tmp_path)])
