"""Calibrated quantisation: GPTQ, AWQ and SmoothQuant by what they promise, on every family."""

import hashlib

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from oracles import load_trainable
from oracles.checkpoints.tokenization import END_OF_TEXT
from oracles.factory.arithmetic.problems import split
from oracles.factory.arithmetic.tokens import encode
from oracles.quantisation import FORMATS, INT4, INT8, INT8_DYNAMIC, Format, QuantisedWeight
from oracles.quantisation.methods import METHODS, calibration_text
from oracles.quantisation.methods.awq import best_scales, clip_and_round, error_of_outputs, fold_best
from oracles.quantisation.methods.block_calibration import Inputs, blocks_with_inputs
from oracles.quantisation.methods.calibration_text import calibration_ids
from oracles.quantisation.methods.gptq import feedback_of, round_with_feedback
from oracles.quantisation.methods.smooth import smoothing_scales
from oracles.quantisation.methods.stages import Stage, fold, stages_of
from oracles.transformer.eager import Transformer
from tests.reference.feedback import rounded_by_feedback
from tests.support.backends import PACKS
from tests.support.models.scoring import append
from tests.support.models.tiny_models import FAMILIES, small_model
from tests.support.pairwise import chosen, pairwise

IDS = torch.randint(23, (12, 40), generator=torch.Generator().manual_seed(5))
OTHERS = torch.randint(23, (6, 30), generator=torch.Generator().manual_seed(6))
PAIRS = [(method, name) for method in METHODS for name in FORMATS if method != "smoothquant" or name == "int8-dynamic"]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def correlated(rows: int, inputs: int, seed: int = 1) -> torch.Tensor:
    """Return inputs ``[rows, inputs]`` that a few directions explain for the most part."""
    return normal(rows, 6, seed=seed) @ normal(6, inputs, seed=seed + 1) + 0.3 * normal(rows, inputs, seed=seed + 2)


def gram_of(x: torch.Tensor) -> torch.Tensor:
    return x.double().t() @ x.double()


def error(weight: torch.Tensor, made: QuantisedWeight, x: torch.Tensor) -> float:
    return float((x.double() @ (made.dequantise() - weight).double().t()).square().sum())


def inputs_of(x: torch.Tensor) -> Inputs:
    found = Inputs.none(x.shape[1])
    found.add(x)
    return found


def logits(model: Transformer, ids: torch.Tensor = OTHERS) -> torch.Tensor:
    with torch.no_grad():
        return model(ids)


def digest(model: Transformer) -> str:
    """Return a hash of everything that a quantised model computes with."""
    parts = list(model.state_dict().values())
    for module in model.modules():
        made = getattr(module, "quantised", None)
        parts += [] if made is None else [made.values, made.scales]
    return hashlib.sha256(b"".join(part.double().numpy().tobytes() for part in parts)).hexdigest()


# --- GPTQ ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", [INT8, Format("groups", 4, group=8), Format("uneven", 3, group=16)], ids=str)
def test_gptq_is_what_its_formulas_say(format):
    weight, x = normal(5, 40), correlated(200, 40)
    made = round_with_feedback(weight, feedback_of(gram_of(x)), "layer", format)
    expected = rounded_by_feedback(weight, gram_of(x), format.largest, format.group, 0.01)
    torch.testing.assert_close(made.dequantise().double(), expected, rtol=1e-5, atol=1e-6)


def test_gptq_is_the_same_in_spans_and_without(monkeypatch):
    weight, feedback = normal(5, 40), feedback_of(gram_of(correlated(200, 40)))
    whole = round_with_feedback(weight, feedback, "layer", INT8)
    monkeypatch.setattr("oracles.quantisation.methods.gptq._SPAN", 7)
    assert torch.equal(round_with_feedback(weight, feedback, "layer", INT8).values, whole.values)


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
def test_gptq_leaves_less_error_than_the_nearest(format):
    weight, x = normal(24, 80), correlated(400, 80)
    made = round_with_feedback(weight, feedback_of(gram_of(x)), "layer", format)
    nearest = QuantisedWeight.of(weight, "layer", format)
    assert made.values.shape == nearest.values.shape
    assert made.scales.shape == nearest.scales.shape
    assert made.values.abs().max() <= format.largest
    assert error(weight, made, x) < 0.5 * error(weight, nearest, x)


def test_without_correlation_gptq_is_the_nearest():
    weight = normal(4, 12)
    for gram in (torch.eye(12).double(), torch.zeros(12, 12).double()):
        made = round_with_feedback(weight, feedback_of(gram), "layer", INT8)
        assert torch.equal(made.values, QuantisedWeight.of(weight, "layer").values)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_a_whole_model_is_nearer_to_itself_by_gptq(name):
    plain = logits(small_model(), IDS)
    found = {}
    for method in ("nearest", "gptq"):
        model = small_model()
        METHODS[method](model, FORMATS[name], IDS)
        found[method] = float((logits(model, IDS) - plain).square().mean())
    assert found["gptq"] < 0.8 * found["nearest"]


def test_later_blocks_see_what_earlier_ones_give_once_quantised():
    model, plain = small_model(), small_model()
    seen = [[inputs.gram.clone() for _, inputs in block] for block in blocks_with_inputs(plain, IDS)]
    for number, block in enumerate(blocks_with_inputs(model, IDS)):
        same = [torch.equal(inputs.gram, gram) for (_, inputs), gram in zip(block, seen[number], strict=True)]
        assert all(same) if number == 0 else not any(same)
        for stage, _ in block:
            for name, layer in stage.layers.items():
                layer.quantise(name, INT4)


# --- folding ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes", [*FAMILIES.values(), {"gated": False, "activation": "relu"}], ids=[*FAMILIES, "relu"]
)
def test_folding_changes_nothing_and_every_layer_has_a_stage(changes):
    model, names = small_model(dtype=torch.float64, **changes), []
    before, folded = logits(model), 0
    for number in range(model.num_layers):
        for stage in stages_of(model, number):
            names += stage.layers
            if stage.writer is not None:
                scales = torch.exp(normal(len(stage.writer.weight), seed=folded)).double()
                weights = [layer.weight.clone() for layer in stage.layers.values()]
                fold(stage, scales)
                assert not any(
                    torch.equal(w, part.weight) for w, part in zip(weights, stage.layers.values(), strict=True)
                )
                folded += 1
    curved = not model.config.gated and model.config.activation != "relu"
    assert folded == model.num_layers * (3 if curved else 4)
    linear = {name.removesuffix(".weight") for name, _ in model.named_parameters() if name.endswith("proj.weight")}
    assert set(names) == linear
    torch.testing.assert_close(logits(model), before, rtol=1e-10, atol=1e-10)


def test_query_heads_that_share_values_share_scales():
    stage = stages_of(small_model(), 0)[1]
    values = torch.arange(32.0)
    assert stage.to_channels(values).tolist() == [4 + i for i in range(8)] + [20 + i for i in range(8)]
    assert stage.to_inputs(torch.arange(16.0)).tolist() == [*range(8), *range(8), *range(8, 16), *range(8, 16)]


@pytest.mark.parametrize("scales", [torch.ones(31), torch.zeros(32), -torch.ones(32), torch.full((32,), torch.nan)])
def test_scales_that_cannot_be_folded_are_refused(scales):
    with pytest.raises(ValueError, match=r"q_proj: scales .* cannot be folded: give 32 finite positive ones"):
        fold(stages_of(small_model(), 0)[0], scales)


def test_nothing_is_folded_through_a_curved_activation():
    stage = stages_of(small_model(**FAMILIES["gpt2"]), 0)[3]
    assert stage.writer is None
    with pytest.raises(ValueError, match=r"down_proj: scales of its inputs cannot be folded"):
        fold(stage, torch.ones(48))


# --- AWQ and SmoothQuant ------------------------------------------------------------------------------------------


def with_outliers() -> tuple[Transformer, Stage, torch.Tensor]:
    """Return a model, its first stage and inputs of it in which three channels are forty times as large."""
    model, x = small_model(hidden_size=64), normal(300, 64, seed=8)
    x[:, [3, 17, 40]] *= 40
    return model, stages_of(model, 0)[0], x


def test_awq_finds_the_alpha_with_the_least_error_and_outliers_profit():
    _, stage, x = with_outliers()
    inputs = inputs_of(x)
    scales, gram = best_scales(stage, inputs, INT4), inputs.gram.float()
    chosen, nearest = (error_of_outputs(stage, gram, INT4, s) for s in (scales, torch.ones(64)))
    assert chosen < 0.5 * nearest
    assert scales.argsort(descending=True)[:3].sort().values.tolist() == [3, 17, 40]
    weights = [part.weight.detach() for part in stage.layers.values()]
    alone = sum(error(weight, QuantisedWeight.of(weight, "", INT4), x) for weight in weights)
    assert nearest == pytest.approx(alone, rel=1e-4)
    for step in range(21):
        other = inputs.mean_size.pow(step / 20)
        assert chosen <= 1.0001 * error_of_outputs(stage, gram, INT4, other / (other.max() * other.min()).sqrt())


def test_clipping_looks_at_inputs_as_they_are_once_scales_are_folded():
    _, stage, x = with_outliers()
    (layer, *_) = stage.layers.values()
    before = layer.weight.detach().clone()
    gram = fold_best(stage, inputs_of(x), INT4)
    scales = (layer.weight.detach() / before)[0]
    assert scales.max() > 2 * scales.min()
    torch.testing.assert_close(gram, gram_of(x / scales).float(), rtol=1e-3, atol=1e-2)


def test_without_outliers_awq_never_does_worse_than_the_nearest():
    stage, x = stages_of(small_model(), 0)[0], normal(300, 32)
    inputs = inputs_of(x)
    scales, gram = best_scales(stage, inputs, INT4), inputs.gram.float()
    assert error_of_outputs(stage, gram, INT4, scales) <= error_of_outputs(stage, gram, INT4, torch.ones(32))


@pytest.mark.parametrize("format", [INT8, INT4, Format("groups", 3, group=24)], ids=str)
def test_clipping_never_makes_a_groups_error_larger(format):
    weight, x = normal(16, 80).pow(3), correlated(200, 80)
    made, nearest = (
        clip_and_round(weight, gram_of(x).float(), "layer", format),
        QuantisedWeight.of(weight, "layer", format),
    )
    assert made.scales.shape == nearest.scales.shape
    assert (made.scales <= nearest.scales).all()
    size = format.group or 80
    totals = [0.0, 0.0]
    for first in range(0, 80, size):
        part, seen = slice(first, first + size), x[:, first : first + size].double()
        for i, one in enumerate((made, nearest)):
            off = (one.dequantise() - weight)[:, part].double()
            totals[i] += float((seen @ off.t()).square().sum())
    assert totals[0] <= totals[1] * (1 + 1e-6)
    assert format is INT8 or totals[0] < 0.9 * totals[1]


def test_smoothing_takes_outliers_out_of_inputs_that_are_rounded():
    _, stage, x = with_outliers()
    scales = smoothing_scales(stage, inputs_of(x))
    largest = torch.cat([part.weight for part in stage.layers.values()]).abs().amax(0)
    torch.testing.assert_close(scales, (x.abs().amax(0) / largest).sqrt())
    off = {}
    for name, factor in (("plain", torch.ones(64)), ("smooth", scales)):
        off[name] = sum(
            float((QuantisedWeight.of(w * factor, "", INT8_DYNAMIC).product(x / factor) - x @ w.t()).square().sum())
            for w in (part.weight.detach() for part in stage.layers.values())
        )
    assert off["smooth"] < 0.5 * off["plain"]


@pytest.mark.parametrize(("method", "name"), [("awq", "int4"), ("smoothquant", "int8-dynamic")])
def test_a_model_with_outlier_channels_is_nearer_to_itself_when_calibrated(method, name, monkeypatch):
    def outlying() -> Transformer:
        model = small_model(hidden_size=64)
        with torch.no_grad():
            for number in range(2):
                for stage in stages_of(model, number):
                    if stage.after_norm:
                        stage.writer.weight[[3, 17, 40]] *= 60
                        for layer in stage.layers.values():
                            layer.weight[:, [3, 17, 40]] /= 20
        return model

    def distance(method: str) -> float:
        model = outlying()
        METHODS[method](model, FORMATS[name], IDS)
        return float((logits(model, IDS) - logits(outlying(), IDS)).square().mean())

    calibrated, nearest = distance(method), distance("nearest")
    assert calibrated < 0.7 * nearest
    module = {"awq": "awq", "smoothquant": "smooth"}[method]
    monkeypatch.setattr(f"oracles.quantisation.methods.{module}.fold", lambda stage, scales: None)
    if method == "awq":
        monkeypatch.setattr(
            "oracles.quantisation.methods.awq.best_scales", lambda stage, *_: torch.ones(len(stage.writer.weight))
        )
    assert distance(method) > 1.2 * calibrated


# --- all methods --------------------------------------------------------------------------------------------------


# The quick part has each method in each format, and with each family.
@chosen(
    {"method, name": {f"{method} {name}": (method, name) for method, name in PAIRS}, "family": tuple(FAMILIES)},
    lambda pair, family: {pair, (pair.partition(" ")[0], family)},
)
def test_every_method_quantises_every_family_the_same_each_time(method, name, family):
    models = [small_model(**FAMILIES[family]) for _ in range(2)]
    for model in models:
        METHODS[method](model, FORMATS[name], IDS)
    assert models[0].weight_type == name
    assert digest(models[0]) == digest(models[1])
    parts = [part for part in models[0].modules() if hasattr(part, "quantised")]
    assert all(part.quantised.format is FORMATS[name] for part in parts)
    assert all(part.quantised.values.abs().max() <= FORMATS[name].largest for part in parts)
    assert logits(models[0]).isfinite().all()


@pairwise({"family": ("llama", "gpt2", "neox"), "method": ("gptq", "awq"), "any_pack": PACKS})
def test_a_calibrated_model_scores_packed_as_it_did_before(family, method, any_pack):
    model, ids = small_model(**FAMILIES[family]), IDS[0]
    METHODS[method](model, INT8, IDS)
    before = logits(model, ids[None])[0]
    packed = any_pack(model)
    torch.testing.assert_close(append(packed, packed.new_cache(1, 64), 0, ids), before, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("method", ["gptq", "awq", "smoothquant"])
def test_what_cannot_be_calibrated_is_refused_before_anything_changes(method):
    def refused(match: str, ids: torch.Tensor = IDS, model: Transformer | None = None) -> None:
        model = model or small_model()
        before = digest(model)
        with pytest.raises(ValueError, match=match):
            METHODS[method](model, INT8_DYNAMIC, ids)
        assert digest(model) == before

    refused(r"ids are \[0, 4\]", IDS[:0, :4])
    refused(r"ids are \[12, 0\]", IDS[:, :0])
    refused(r"ids are \[40\]", IDS[0])
    refused(r"ids are \[12, 40\] torch.float32", IDS.float())
    refused(r"ids are \[12, 40\] torch.int16", IDS.short())
    refused(r"ids are \[1, 257\], and the model has 256 positions", torch.zeros(1, 257, dtype=torch.int64))
    refused(r"ids hold 23, and the model's are 0..22", IDS + 1)
    refused(r"ids hold 1 different passages of 4 ids, and a layer has 48 inputs: give more text", IDS * 0 + 3)
    refused(r"ids hold 37 different passages of 4 ids", IDS[:1])
    refused(r"ids hold -1, and", IDS - 1)
    refused("the model is float64", model=small_model(dtype=torch.float64))
    refused(r"q_proj is bfloat16: widen", model=small_model().store("bfloat16"))
    refused(r"q_proj was quantised or packed", model=small_model().quantise())
    refused("the model was packed", model=small_model().pack())
    broken = small_model()
    with torch.no_grad():
        broken.model.layers[1].mlp.up_proj.weight[3, 4] = torch.inf
    refused(r"model\.layers\.1\.mlp\.up_proj: a weight is NaN", model=broken)
    broken = small_model()
    with torch.no_grad():
        broken.model.layers[0].input_layernorm.weight[3] = torch.nan
    refused(r"model\.layers\.0\.self_attn\.q_proj: its inputs", model=broken)


def test_smoothquant_refuses_formats_that_round_no_inputs():
    with pytest.raises(ValueError, match="'int4' rounds none: choose 'int8-dynamic'"):
        METHODS["smoothquant"](small_model(), INT4, IDS[:, :0])  # said before it reads the ids


# --- calibration text ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def arithmetic() -> Transformer:
    return load_trainable("arithmetic-draft")


@pytest.fixture(scope="module")
def code() -> Transformer:
    return load_trainable("code-draft-tiny")


def test_arithmetic_is_calibrated_on_problems_to_train_on(arithmetic):
    ids = calibration_ids(arithmetic, 2000)
    assert ids.shape == (72, 28)
    assert torch.equal(ids, calibration_ids(arithmetic, 2000))
    assert not torch.equal(ids, calibration_ids(arithmetic, 2000, seed=1))
    train, held_out = (set(numbers.tolist()) for numbers in split())
    texts = ["".join("0123456789+-=.cb?"[i] for i in row) for row in ids.tolist()]
    numbers = {("+-".index(t[4]) * 1000 + int(t[1:4])) * 1000 + int(t[5:8]) for t in texts}
    assert numbers <= train
    assert not numbers & held_out
    assert torch.equal(encode(texts), ids)


def test_code_is_calibrated_on_the_standard_librarys_part_of_train(code, monkeypatch):
    asked = []

    def read(name, **options):
        asked.append((name, {entry.package for entry in options["manifest"].files}))
        return [type("Source", (), {"text": "".join(f"x{i} = {i}\n" for i in range(3000))})()]

    monkeypatch.setattr(calibration_text, "read_split", read)
    ids = calibration_ids(code, 1000)
    assert ids.shape == (4, 256)
    assert ids.dtype == torch.int64
    assert torch.equal(ids, calibration_ids(code, 1000))
    assert not torch.equal(ids, calibration_ids(code, 1000, seed=1))
    assert asked == [("train", {"stdlib"})] * 3


def test_another_standard_library_is_refused_by_name(code, tmp_path, monkeypatch):
    monkeypatch.setattr("oracles.factory.corpus.corpus_reading.stdlib_folder", lambda: tmp_path)
    with pytest.raises(
        ValueError, match=r"no text of the split train is at hand: corpus file .* Run Python 3\.11\.7, or"
    ):
        calibration_ids(code, 2)


def test_text_that_is_not_known_is_refused(code):
    with pytest.raises(ValueError, match="it has neither the tokenizer of 'code' nor that of 'arithmetic'; give ids"):
        calibration_ids(small_model())
    other = small_model()
    other.tokenizer = Tokenizer(WordLevel({END_OF_TEXT: 0, "a": 1}, "a"))
    with pytest.raises(ValueError, match="it has neither the tokenizer of 'code'"):
        calibration_ids(other)
    with pytest.raises(ValueError, match="num_tokens is 0"):
        calibration_ids(small_model(), 0)
