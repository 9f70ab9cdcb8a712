"""Options of strategies: the draft model's own type of weights, what drafts beside a lookup, and refusals in words."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import drafts
import oracles
from experiments import exactness, threshold, watch
from experiments.advise import __main__ as advise
from experiments.advise.cells import Adviser, Cell
from experiments.harness.arguments import add_strategy, paired_parser, settings_of
from experiments.harness.building import build_shared
from experiments.harness.rule_choice import FILTER_OPTIONS, no_filters, sampling_of
from experiments.harness.running import COMPARE, plan_of
from experiments.harness.study import Plan
from experiments.load import __main__ as load
from experiments.strategies import STRATEGIES, head_strategies, model_strategies
from experiments.strategies.strategy import PUBLISHED_SETTINGS
from experiments.studies import batching
from experiments.studies.crossover import __main__ as crossover
from experiments.studies.crossover.batch_sizes import Crossover
from oracles.checkpoints.embedded_folders import embedded_names
from oracles.checkpoints.gguf import PUBLISHED
from oracles.factory.training.block_distillation import describe_dspark, dspark_shape, new_dspark
from oracles.factory.training.eagle3_distillation import describe_eagle3, new_eagle3
from oracles.factory.training.head_export import export_head
from oracles.factory.training.head_text import HeadText
from oracles.factory.training.lesson import Lesson
from specdec import Fixed, Threshold
from tests.support.registry import CALIBRATION

SHARED = {"oracle": "code", "device": None, "dtype": None, "backend": None, "weights": None, "temperature": 0.0}


def built(name: str, **given: Any) -> Any:
    strategy = STRATEGIES[name]
    own = {option.key: option.default for option in strategy.options}
    return strategy.build({**own, **SHARED, **given}, oracles.load("code-draft"))


def test_a_draft_model_has_weights_of_its_own_type():
    stored, rounded = (built("small_transformer", model_weights=kind).model for kind in (None, "int8"))
    assert rounded.weight_bytes < 0.7 * stored.weight_bytes
    assert built("small_transformer", weights="int8").model.weight_bytes == rounded.weight_bytes
    assert (
        built("small_transformer", weights="int8", model_weights="bfloat16").model.weight_bytes == stored.weight_bytes
    )


@pytest.mark.parametrize(("name", "kind"), [("merged", drafts.Merged), ("cascade", drafts.Cascade)])
def test_a_draft_model_may_stand_beside_the_lookup(name, kind):
    source = built(name, second="small_transformer", num_draft_tokens=3)
    assert isinstance(source, kind)
    assert [type(one) for one in source.members] == [drafts.PromptLookup, drafts.SmallTransformer]


def test_any_two_sources_may_stand_together():
    source = built("cascade", first="small_transformer", second="lookahead", num_draft_tokens=2)
    assert [type(one) for one in source.members] == [drafts.SmallTransformer, drafts.Lookahead]
    source = built("merged", first="ngram", second="tree", num_draft_tokens=2, train_on=__file__)
    assert [type(one) for one in source.members] == [drafts.NGram, drafts.SmallTransformer]


def heads(folder: Path) -> tuple[Path, Path]:
    """Return folders of an EAGLE-3 head and of a block drafter that know nothing yet."""
    oracle = oracles.load_trainable("code-draft", dtype="float32")
    text = HeadText(torch.zeros(9, dtype=torch.int32), torch.ones(9, dtype=torch.bool))
    lesson = Lesson(oracle, (0, 1), None, text, 2, "kl", 0.8, "float32")
    values = describe_eagle3(lesson, "code-draft", 24)
    export_head(new_eagle3(values, lesson, False, 0), values, folder / "eagle3", None)
    shape = dspark_shape(lesson, num_layers=1, intermediate_size=24, markov_rank=4, mask_id=5, own_head=False)
    export_head(new_dspark(shape, lesson, 0), describe_dspark(shape, "code-draft"), folder / "block", None)
    return folder / "eagle3", folder / "block"


def test_a_head_may_stand_beside_a_suffix_automaton_and_tell_when_to_stop(tmp_path, monkeypatch):
    head, block = heads(tmp_path)
    for name, kind in (("merged", drafts.Merged), ("cascade", drafts.Cascade)):
        source = built(name, first="suffix_automaton", second="eagle3", head=str(head), num_draft_tokens=3)
        assert isinstance(source, kind)
        assert [type(one) for one in source.members] == [drafts.SuffixAutomaton, drafts.Eagle3]
        source = built(name, second="block_drafter", head=str(block), num_draft_tokens=2)
        assert [type(one) for one in source.members] == [drafts.PromptLookup, drafts.BlockDrafter]
    with pytest.raises(ValueError, match=r"--head .* cannot be used: .* is made for the source 'block_drafter'"):
        built("cascade", second="eagle3", head=str(block))
    with pytest.raises(ValueError, match=r"eagle3: give --head DIR, .*: none is shipped for code"):
        built("cascade", second="eagle3")
    monkeypatch.setattr(model_strategies, "calibration", lambda *_: CALIBRATION)
    for drafter, folder, kind in (("eagle3", head, drafts.Eagle3), ("block_drafter", block, drafts.BlockDrafter)):
        source = built("threshold", drafter=drafter, head=str(folder), num_draft_tokens=2)
        assert isinstance(source, kind)
        assert isinstance(source.length, Threshold)


def test_the_script_of_policies_asks_the_head_that_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(threshold, "calibration", lambda *_: CALIBRATION)
    monkeypatch.setattr(threshold, "engine_arms", lambda _arguments, _oracle, sources: sources)
    oracle, (eagle3, block) = oracles.load("code-draft"), heads(tmp_path)
    asked, own = ["--threshold-num-draft-tokens", "2"], [f"{tmp_path}/own.py:{one}" for one in ("few", "of:longest=1")]
    policies = (
        "from specdec import Fixed\nfew = Fixed(1)\nmany = Fixed(64)\n\ndef of(longest):\n    return Fixed(longest)\n"
    )
    (tmp_path / "own.py").write_text(policies, encoding="utf-8")
    for drafter, folder, kind in (("eagle3", eagle3, drafts.Eagle3), ("block_drafter", block, drafts.BlockDrafter)):
        head = ["--threshold-drafter", drafter, "--threshold-head", str(folder)]
        given = {**parsed(*asked, *head, strategy="threshold"), "gammas": [1, 2], "lengths": own}
        sources = threshold.build(Plan("threshold", given), oracle)
        assert sources["few"].length == sources["of:longest=1"].length == Fixed(1)
        assert {type(source) for name, source in sources.items() if name != "plain"} == {kind}
        assert sources["fixed 2"].length == Fixed(2)
    (tmp_path / "other.py").write_text("from specdec import Fixed\nheuristic = Fixed(1)\n", encoding="utf-8")
    refused = {
        "two arms are called few": [own[0], own[0]],
        "two arms are called heuristic": [f"{tmp_path}/other.py:heuristic"],
        "^--lengths many: drafts of 64 tokens": [f"{tmp_path}/own.py:many"],
        "own.py:of: missing a required argument: 'longest'": [f"{tmp_path}/own.py:of"],
        "own.py:__name__: length is .* not a length policy": [f"{tmp_path}/own.py:__name__"],
        "few:longest=2: there are values, and no class or function": [f"{own[0]}:longest=2"],
    }
    for told, places in refused.items():
        with pytest.raises(ValueError, match=told):
            threshold.build(Plan("threshold", {**given, "lengths": places}), oracle)


def test_a_length_beyond_a_heads_block_names_its_option_before_anything_is_measured(tmp_path, monkeypatch):
    for module in (threshold, model_strategies):
        monkeypatch.setattr(module, "calibration", lambda *_: pytest.fail("it was measured"))
    oracle, (_, block) = oracles.load("code-draft"), heads(tmp_path)
    head = ["--threshold-drafter", "block_drafter", "--threshold-head", str(block)]
    for option, length, gammas in (("--gammas", "2", [1, 64]), ("--num-draft-tokens", "64", [1, 2])):
        arguments = {
            **parsed("--threshold-num-draft-tokens", length, *head, strategy="threshold"),
            "gammas": gammas,
            "lengths": [],
        }
        with pytest.raises(ValueError, match=f"^{option}: drafts of 64 tokens are asked for, and a block of this head"):
            threshold.build(Plan("threshold", arguments), oracle)
    with pytest.raises(ValueError, match=r"^--num-draft-tokens: drafts of 64 tokens are asked for"):
        built("threshold", drafter="block_drafter", head=str(block), num_draft_tokens=64)


def test_what_no_length_would_mend_names_no_option_of_a_length(monkeypatch):
    def refuse(length):
        raise ValueError("no drafter")

    for module in (threshold, model_strategies):
        monkeypatch.setattr(module, "confident_source", lambda *_: refuse)
    arguments = {**parsed(strategy="threshold"), "gammas": [1]}
    with pytest.raises(ValueError, match=r"^no drafter"):
        threshold.build(Plan("threshold", arguments), oracles.load("code-draft"))
    with pytest.raises(ValueError, match=r"^no drafter"):
        built("threshold")


def test_a_calibration_drafts_no_more_than_a_block_has_laws_for(tmp_path, monkeypatch):
    asked = []

    def calibrate(*_, num_draft_tokens, **options):
        asked.append(num_draft_tokens)
        return CALIBRATION

    monkeypatch.setattr(model_strategies, "calibrate", calibrate)
    own = {"rule": "rejection", **no_filters(), "batch_size": 1, "kernels": None, "train_on": __file__}
    for drafter, folder, longest in zip(("eagle3", "block_drafter"), heads(tmp_path), (8, 2), strict=True):
        built("threshold", drafter=drafter, head=str(folder), num_draft_tokens=2, **own)
        assert asked.pop() == longest


@pytest.mark.parametrize(
    ("name", "option", "text"), [("cascade", "second", "early_exit"), ("tree", "model_weights", "fp8")]
)
def test_unknown_names_are_refused(name, option, text):
    (kind,) = (one.kind for one in STRATEGIES[name].options if one.key == option)
    with pytest.raises(ArgumentTypeError, match=f"expected .*, got '{text}'"):
        kind(text)


def test_a_shape_that_is_none_names_its_option():
    with pytest.raises(ValueError, match=r"^--tree-shape: shape 'none' is none .*: give chain:4, "):
        build_shared("tree", parsed(strategy="tree"), oracles.load("code-draft"), shape="none")


@pytest.mark.parametrize(("name", "oracle"), [("eagle3", "smollm2"), ("block_drafter", "code"), ("medusa", "code")])
def test_a_shape_is_refused_beside_a_length_that_was_given_and_goes_before_a_default(name, oracle, monkeypatch):
    def refuse(*_):
        raise ValueError("no head")

    monkeypatch.setattr(head_strategies, "head_for", refuse)
    own, model = f"--{name.replace('_', '-')}", oracles.load("code-draft")
    asked = ["--oracle", oracle, f"{own}-shape", "kary:2x2"]
    for given, told in (
        ([], "^no head"),
        ([f"{own}-num-draft-tokens", "4"], f"{own}-shape .*{own}-num-draft-tokens 4"),
    ):
        with pytest.raises(ValueError, match=told):
            build_shared(name, parsed(*asked, *given, strategy=name), model)


REFUSED = {
    ("merged", "--merged-second", "early_exit"): "expected one of prompt_lookup, ",
    ("merged", "--device", "gpu"): "device is 'gpu'; give one as torch names them",
    ("merged", "--bitwise", "maybe"): "expected yes or no, got 'maybe'",
    ("quantized", "--quantized-draft-weights", "fp8"): "expected one of float32, ",
    ("threshold", "--threshold-calibrate-prompts", "0"): "must be at least 1, got 0",
}


def test_a_command_line_says_what_a_value_may_be(capsys):
    for (name, option, value), told in REFUSED.items():
        with pytest.raises(SystemExit):
            parsed(option, value, strategy=name)
        assert f"argument {option}: {told}" in capsys.readouterr().err


def parsed(*given: str, strategy: str = "merged") -> dict[str, Any]:
    parser = paired_parser("")
    add_strategy(parser, STRATEGIES[strategy], prefixed=True)
    return vars(parser.parse_args(given))


def test_a_published_oracle_has_defaults_of_its_own_and_what_is_given_stays():
    usual, published = parsed(), parsed("--oracle", "smollm2")
    assert (usual["merged.model"], usual["merged.second"]) == ("code-draft", "ngram")
    assert (published["merged.model"], published["merged.second"]) == ("smol-draft", "small_transformer")
    assert published["merged.max_ngram"] == usual["merged.max_ngram"]
    given = parsed("--merged-model", "code-draft", "--oracle", "smollm2")
    assert (given["merged.model"], given["merged.model_weights"]) == ("code-draft", "q4_0-int8")


def test_an_option_of_a_strategy_that_does_not_run_is_refused(capsys):
    compare = partial(plan_of, COMPARE)
    idle, given = ["--ngram-order", "3"], ["--prompt-lookup-max-ngram", "4"]
    for parse, *argv in (
        (compare, "--strategies", "prompt_lookup", *given),
        (compare, "--strategies", "prompt_lookup", "--oracle", "smollm2", *given),
        (compare, "--strategies", "suffix_automaton", "--peer", "transformers:lookup", *given),
        (compare, "--strategies", "suffix_automaton", "--peer", "llama.cpp:lookup", *given),
        (watch.parse, "--strategy", "prompt_lookup", *given),
        (load.parse, "--arms", "prompt_lookup:2/8", "prompt_lookup", *given),
        (exactness.parse, "--strategies", "prompt_lookup", *given),
    ):
        parse(argv)
        with pytest.raises(SystemExit):
            parse([*argv, *idle])
        told = f"argument --ngram-order: ngram does not run: name it in {argv[0]}, or leave this out"
        assert told in capsys.readouterr().err
    with pytest.raises(SystemExit):
        compare(["--eagle3-num-draft-tokens", "2"])
    assert "eagle3 does not run" in capsys.readouterr().err, "without a head"
    assert "eagle3" in compare(["--eagle3-num-draft-tokens", "2", "--eagle3-head", "smol-eagle3"]).strategies


def test_every_program_samples_by_every_filter_that_command_lines_offer(monkeypatch):
    monkeypatch.setitem(FILTER_OPTIONS, "min_p", "share of the best id's probability")
    oracle = oracles.load("code-draft")

    def arguments_of(parse: Callable[[list[str]], Any]) -> dict[str, Any]:
        found = parse(["--top-p", "0.5", "--min-p", "0.25"])
        arguments = found.arguments if isinstance(found, Plan) else found if isinstance(found, dict) else vars(found)
        return {"temperature": 0.8, "rule": "rejection", "batch_size": 1, "strategies": None, **arguments}

    compare = partial(plan_of, COMPARE)
    for parse in (compare, watch.parse, load.parse, exactness.parse, batching.parse, crossover.parse, advise.parse):
        given = arguments_of(parse)
        adviser = Adviser({**given, "strategies": None}, oracle, [])
        hot, cold = (settings_of(adviser._of_cell(Cell(0, "", 1, heat)), "prompt_lookup") for heat in (0.8, 0.0))
        asked = [sampling_of(one) for one in (given, settings_of(given, "prompt_lookup"), hot, cold)]
        own = {"strategy": "prompt_lookup", "draft_lengths": [], "kernels": None}
        asked.append(Crossover({**given, **own}, oracle, []).arms(1)[0].sampling)
        assert [(one.top_p, one.min_p) for one in asked] == [(0.5, 0.25)] * 3 + [(1.0, 0.0), (0.5, 0.25)]


def test_an_arm_that_is_named_twice_runs_once():
    plan = plan_of(COMPARE, ["--strategies", "ngram", "ngram", "--peer", "transformers", "transformers"])
    assert (plan.strategies, plan.peers) == (("ngram",), ("transformers",))
    assert advise.parse(["--strategies", "tree", "ngram", "tree"])["strategies"] == ["tree", "ngram"]


def test_weights_that_only_a_cpu_computes_are_no_default_elsewhere():
    for name, option, weights, *place in (
        ("small_transformer", "model_weights", "q4_0-int8", "--device", "cuda:1"),
        ("eagle3", "head_weights", "q4_0-int8", "--device", "cuda"),
        ("block_drafter", "head_weights", "int8-dynamic", "--dtype", "bfloat16"),
    ):
        own = f"--{name}-{option}".replace("_", "-")
        usual, there, given = (
            parsed("--oracle", "smollm2", *more, strategy=name) for more in ((), place, (*place, own, weights))
        )
        assert [one[f"{name}.{option}"] for one in (usual, there, given)] == [weights, None, weights]
        assert there[f"{name}.num_draft_tokens"] == usual[f"{name}.num_draft_tokens"]


def test_defaults_of_published_oracles_are_those_of_options_that_there_are():
    assert PUBLISHED_SETTINGS.keys() <= {*PUBLISHED, *embedded_names()}
    for settings in PUBLISHED_SETTINGS.values():
        for name, own in settings.items():
            kinds = {option.key: option.kind for option in STRATEGIES[name].options}
            assert own == {key: kinds[key](str(value)) for key, value in own.items()}
