"""Published heads off the disk: what is known loads, the layers are those meant, and all else is refused by name."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

import drafts
from experiments.strategies import head_strategies
from oracles import HuggingFaceLM, Transformer, load_head
from oracles.heads import Eagle3Head, convention_check, head_loading
from oracles.heads.aux_layers import aux_layers_of
from oracles.heads.convert import convert, main
from oracles.heads.eagle3_config import read_eagle3
from oracles.heads.eagle3_network import Eagle3Network
from oracles.transformer.attention import CausalAttention
from specdec import SpeculativeDecoder
from specdec.cache import prefill
from specdec.contracts import Needs
from tests.support.models.eagle3_heads import Layout, config_of, write_head
from tests.support.models.head_folders import medusa_folder
from tests.support.models.hf_models import random_model
from tests.support.models.tiny_models import tiny_transformer, tiny_unpacked

ORACLE = tiny_transformer(11, num_layers=8, max_context=64)
# What a strategy is told of a run, and its own options.
RUN = {
    "oracle": "code",
    "dtype": "float32",
    "device": "cpu",
    "weights": None,
    "aux_layers": None,
    "check_layers": False,
}


def rewritten(folder: Path, **changes) -> None:
    path = folder / "config.json"
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in values.items() if value != "absent"}))


def resaved(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("layout", "asked", "outputs", "said"),
    [
        (Layout(), None, (1, 3, 4), "default: inputs of 2, 4, 5"),
        (Layout(), "outputs", (2, 4, 5), "aux_layers: outputs of 2, 4, 5"),
        (Layout("specforge", ids=(0, 3, 6)), None, (0, 3, 6), "format: outputs of 0, 3, 6"),
        (Layout("specforge", ids=(1, 3, 4)), None, (1, 3, 4), "usual numbers: outputs of 1, 3, 4"),
        (Layout("specforge", ids=(2, 4, 5)), None, (1, 3, 4), "usual numbers: inputs of 2, 4, 5"),
        (Layout("specforge", ids=(5, 2, 4)), None, (1, 3, 4), "usual numbers: inputs of 2, 4, 5"),
        (Layout("specforge", ids=(4, 6, 8)), None, (3, 5, 7), "numbers: inputs of 4, 6, 8"),
        (Layout("specforge", ids=(1, 3, 6)), "inputs", (0, 2, 5), "aux_layers: inputs of 1, 3, 6"),
        (Layout("speculators", ids=(1, 3, 6)), None, (0, 2, 5), "format: inputs of 1, 3, 6"),
        (Layout("vllm", ids=(1, 3, 6)), None, (0, 2, 5), "format: inputs of 1, 3, 6"),
        (Layout("speculators"), None, (1, 3, 4), "default: inputs of 2, 4, 5"),
    ],
)
def test_layers_are_those_that_are_meant_and_the_head_says_by_whose_word(layout, asked, outputs, said, tmp_path):
    write_head(tmp_path, ORACLE, layout)
    head = load_head(tmp_path, ORACLE, aux_layers=asked)
    assert isinstance(head, Eagle3Head)
    assert head.layers == outputs
    assert f"outputs of layers {', '.join(map(str, outputs))} ({said})" in repr(head)


def test_a_head_may_say_twice_how_many_ids_it_writes(tmp_path):
    write_head(tmp_path, ORACLE, Layout(written=(0, 4, 7)))
    rewritten(tmp_path, truncated_vocab_size=3)
    assert "writes 3 of 11 ids" in repr(load_head(tmp_path, ORACLE))


def test_a_head_says_what_it_is(tmp_path):
    write_head(tmp_path, ORACLE, Layout("speculators", written=(0, 4, 7)))
    head = load_head(tmp_path, ORACLE)
    assert repr(head).startswith("Eagle3Head(speculators eagle3, reads outputs of layers 1, 3, 4 (default")
    assert "writes 3 of 11 ids" in repr(head)
    assert head.weight_bytes > 10_000


def test_layers_that_the_oracle_lacks_are_refused(tmp_path):
    write_head(tmp_path, ORACLE, Layout("specforge", ids=(0, 3, 6)))
    with pytest.raises(ValueError, match=r"config.json: the head reads the inputs of layers \(0, 3, 6\)"):
        load_head(tmp_path, ORACLE, aux_layers="inputs")
    with pytest.raises(ValueError, match=r"outputs of layers \(0, 3, 6\).*outputs of layers 0\.\.2"):
        load_head(tmp_path, tiny_transformer(11, num_layers=3))
    with pytest.raises(ValueError, match="aux_layers is 'both'"):
        aux_layers_of(None, 8, "inputs", "both", "here")


def _drop(name):
    return lambda tensors: tensors.pop(name)


def _set(name, value):
    return lambda tensors: tensors.update({name: value})


BROKEN = {
    "missing": (_drop("midlayer.self_attn.q_proj.weight"), r"'midlayer.self_attn.q_proj.weight' is missing"),
    "no fc": (_drop("fc.weight"), r"'fc.weight' is missing"),
    "a second layer": (
        _set("layers.1.mlp.up_proj.weight", torch.ones(2)),
        r"model.safetensors: tensor 'layers.1.mlp.up_proj.weight' is un",
    ),
    "shape": (_set("fc.weight", torch.ones(16, 40)), r"'fc.weight' has shape \(16, 40\), the config implies"),
    "whole numbers": (_set("norm.weight", torch.ones(16, dtype=torch.int64)), r"tensor 'norm.weight' is I64"),
    "no offsets": (_drop("d2t"), r"'d2t' is missing"),
    "an id twice": (_set("d2t", torch.tensor([0, 9, -2, 4])), r"column r writes id r \+ d2t\[r\]; these must differ"),
    "offsets as ids": (_set("d2t", torch.tensor([0, 9, 3, 4])), r"'t2d' names other ids than 'd2t'"),
    "offsets of floats": (_set("d2t", torch.zeros(4)), r"'d2t' is torch.float32"),
    "no mask": (_set("t2d", torch.ones(7)), r"'t2d' names other ids"),
    "head of all ids": (_set("lm_head.weight", torch.ones(11, 16)), r"'lm_head.weight' has shape \(11, 16\)"),
    "no head": (_drop("lm_head.weight"), r"'lm_head.weight' is missing.*4 rows"),
}


@pytest.mark.parametrize(("change", "message"), BROKEN.values(), ids=BROKEN)
def test_tensors_that_do_not_fit_are_named(change, message, tmp_path):
    write_head(tmp_path, ORACLE, Layout(written=(0, 2, 5, 9)))
    resaved(tmp_path, change)
    with pytest.raises(ValueError, match=message):
        load_head(tmp_path, ORACLE)


CONFIGS = {
    "another width": ({"target_hidden_size": 20}, r"config.json describes a head on hidden_size 20"),
    "another vocabulary": ({"vocab_size": 12}, r"and vocab_size 12; the oracle.s are 16 and 11"),
    "a window of no size": (
        {"layer_types": ["sliding_attention"], "sliding_window": 0},
        r"config.json: sliding_window is 0; it is at least",
    ),
    "unknown key": ({"more_layers": True}, r"'more_layers' \(= True\) is unknown"),
    "another number of written ids": (
        {"truncated_vocab_size": 3},
        r"'truncated_vocab_size' contradicts the ids .*, 11",
    ),
    "another depth": ({"num_target_layers": 5}, r"'num_target_layers' is 5; the oracle has \d layers: load it with"),
    "huge": ({"intermediate_size": 10**12}, r"has shape .*, the config implies \(1000000000000, 16\)"),
    "more ids than there are": ({"draft_vocab_size": 12}, r"draft_vocab_size is 12"),
    "a module of its model": ({"architectures": ["DeepseekV3MTPModel"]}, r"'DeepseekV3MTPModel' is a multi-token"),
    "a class that is a number": ({"architectures": 5}, r"'architectures' is 5; it must be of type list"),
    "EAGLE-1": ({"architectures": ["LlamaForCausalLMEagle"]}, r"no known kind of head"),
    "a plain model": ({"draft_vocab_size": "absent"}, r"no known kind of head"),
    "last states alone": (
        {"eagle_config": {"use_aux_hidden_state": False}, "architectures": ["LlamaForCausalLMEagle3"]},
        r"'use_aux_hidden_state' is False",
    ),
    "layers of text": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["1", "2"]}},
        r"'eagle_aux_hidden_state_layer_ids' is \['1', '2'\]; it must be a list of whole numbers",
    ),
}


@pytest.mark.parametrize(("changes", "message"), CONFIGS.values(), ids=CONFIGS)
def test_configs_that_do_not_fit_are_named(changes, message, tmp_path):
    write_head(tmp_path, ORACLE, Layout())
    rewritten(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        load_head(tmp_path, ORACLE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculators_model_type": "mtp"}, "'mtp' is a multi-token prediction module"),
        ({"speculators_model_type": "mlp"}, "speculators_model_type 'mlp'"),
        ({"transformer_layer_config": "absent"}, "lacks 'transformer_layer_config'"),
        ({"num_aux_hidden_states": 4}, "'num_aux_hidden_states' contradicts"),
        ({"surprise": 1}, r"'surprise' \(= 1\) is unknown"),
    ],
)
def test_configs_of_speculators_that_do_not_fit_are_named(changes, message, tmp_path):
    write_head(tmp_path, ORACLE, Layout("speculators"))
    rewritten(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        load_head(tmp_path, ORACLE)


def test_what_is_no_head_is_refused(tmp_path):
    with pytest.raises(ValueError, match="neither an embedded head"):
        load_head(tmp_path, ORACLE)
    (tmp_path / "config.json").write_text("[]")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"config.json holds no JSON object"):
        load_head(tmp_path, ORACLE)
    with pytest.raises(ValueError, match="aux_layers, check, backend and weights are for published heads"):
        load_head("code-exit", ORACLE, check=True)


def test_a_head_that_borrows_must_have_the_oracles_width(tmp_path):
    narrow = {"hidden_size": 12, "head_dim": 4}
    write_head(tmp_path, ORACLE, Layout(own_embedding=False, layer=narrow))
    with pytest.raises(ValueError, match=r"'embed_tokens.weight' is missing.*16 wide where the head is 12"):
        load_head(tmp_path, ORACLE)


def test_pickled_weights_are_converted_by_a_command_that_runs_no_code(tmp_path, capsys):
    folder = tmp_path / "a head"
    tensors = write_head(folder, ORACLE, Layout(written=(0, 2, 5, 9)))
    wanted = load_head(folder, ORACLE)
    (folder / "model.safetensors").unlink()
    shared = {**tensors, "t2d": tensors["t2d"][:]}
    torch.save(shared, folder / "pytorch_model.bin")
    for kept in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state_0.pth"):
        torch.save(Harmful(), folder / kept)
    with pytest.raises(ValueError, match=rf"only \(pytorch_model\.bin\), .* oracles\.heads\.convert '{folder}' reads"):
        load_head(folder, ORACLE)
    main([str(folder)])
    assert capsys.readouterr().out.strip() == str(folder / "model.safetensors")
    found = load_head(folder, ORACLE)
    for one, other in zip(found._network.parameters(), wanted._network.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match="is there already"):
        convert(folder)


class Harmful:
    def __reduce__(self):
        return print, ("run",)


def test_pickles_of_anything_but_tensors_are_refused(tmp_path, capsys):
    for content, message in (
        (Harmful(), "cannot be read as tensors alone"),
        ([1], "holds a list, not tensors by name"),
    ):
        torch.save(content, tmp_path / "pytorch_model.bin")
        with pytest.raises(ValueError, match=message):
            convert(tmp_path)
    with pytest.raises(SystemExit, match="holds a list"):
        main([str(tmp_path)])
    assert capsys.readouterr().out == ""
    torch.save({"a": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    torch.save({"a": torch.ones(1)}, tmp_path / "more.pt")
    with pytest.raises(ValueError, match="'a' stands in another file"):
        convert(tmp_path)
    with pytest.raises(ValueError, match="holds no"):
        convert(tmp_path / "nowhere")


def test_a_head_drafts_for_a_model_of_transformers(tmp_path):
    oracle = HuggingFaceLM(random_model("llama", num_hidden_layers=6))
    wide = {"hidden_size": 32, "head_dim": 8}
    layout = Layout("specforge", ids=(0, 2, 5), own_embedding=False, own_head=False, layer=wide)
    write_head(tmp_path, oracle, layout, dtype=torch.float32)
    head = load_head(tmp_path, oracle)
    prompts = [[1, 2, 3], [4]]
    wanted = SpeculativeDecoder(oracle).generate(prompts, 12).tokens
    made = SpeculativeDecoder(oracle, drafts.Eagle3(head, 3)).generate(prompts, 12)
    assert made.tokens == wanted
    assert made.stats.num_drafted > 20


TEXTS, LENGTH, STEPS, VOCAB = 8, 40, 120, 23


def stepping_oracle() -> Transformer:
    """Return an oracle that writes one long cycle of all ids; every layer says in a code of its own where it is."""
    model = tiny_unpacked(VOCAB, num_layers=8, max_context=128)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "o_proj" in name:
                parameter.zero_()  # a layer reads its own token alone
            elif "down_proj" in name:
                parameter.mul_(5.0 ** int(name.split(".")[2]))  # and writes over what stood there
        codes = model.model.norm(model.streams(torch.arange(VOCAB).unsqueeze(1))[-1])[:, 0]
        assert model.lm_head is not None
        model.lm_head.weight.copy_(codes.roll(1, 0))
    return model.pack()


def train_head(folder: Path, oracle: Transformer, layout: Layout) -> None:
    """Write a head that was trained to say, beside the outputs of its layers, what its oracle says next.

    Its embeddings are zero, so that it must read the features.
    """
    write_head(folder, oracle, layout)
    shape = read_eagle3(config_of(layout, oracle), "here", oracle, "outputs")
    generator = torch.Generator().manual_seed(0)
    ids = (torch.randint(VOCAB, (TEXTS, 1), generator=generator) + torch.arange(LENGTH)) % VOCAB  # what it writes
    texts = [row.numpy() for row in ids]
    cache = oracle.new_cache(TEXTS, LENGTH)
    scores, _ = prefill(oracle, cache, np.arange(TEXTS), texts, Needs(logits=True, hidden=shape.layers.outputs))
    wanted = scores.logits.argmax(-1)
    torch.manual_seed(0)
    network = Eagle3Network(shape, own_embedding=True, own_head=True, target_ids=None).double()
    for name, parameter in network.named_parameters():
        nn.init.zeros_(parameter) if name.startswith("embed") else None
        if "norm" not in name and not name.startswith("embed"):
            nn.init.normal_(parameter, 0.0, 0.1, generator=generator)
    learns = [parameter for name, parameter in network.named_parameters() if not name.startswith("embed")]
    optimiser = torch.optim.Adam(learns, 1e-2)
    length = LENGTH - 2
    positions = torch.arange(length).expand(TEXTS, -1)
    attend = CausalAttention(shape.config, length, ids.device)
    for _ in range(STEPS):
        feature = network.combine(tuple(layer[:, :length] for layer in scores.hidden))
        rope = network.rotary.rows(positions, length, feature.dtype)
        stream = network.layer(network.embed_tokens(ids[:, 1 : length + 1]), feature, rope, attend)
        logits = network.lm_head(network.norm(stream))
        loss = functional.cross_entropy(logits.flatten(0, 1), wanted[:, 1 : length + 1].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    names = {name: name.replace("layer.", f"{layout.prefix}.", 1) if name.startswith("layer.") else name
             for name, _ in network.named_parameters()}  # fmt: skip
    tensors = {names[name]: parameter.detach().clone() for name, parameter in network.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, object]:
    """Return a head that was trained on the outputs of layers 1, 3 and 4, and its oracle."""
    folder, oracle = tmp_path_factory.mktemp("trained"), stepping_oracle()
    train_head(folder, oracle, Layout("specforge", ids=(1, 3, 4)))
    return folder, oracle


def test_a_trained_head_shifted_by_one_layer_is_found(trained):
    folder, oracle = trained
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rates = convention_check.check_convention(load_head(folder, oracle), oracle)
    assert rates["as loaded"] > 0.9
    assert rates["as loaded"] > 1.5 * max(rates["one layer lower"], rates["one layer higher"])
    with pytest.warns(
        UserWarning, match=r"accepts \d+\.\d% of its drafts reading outputs of layers 0, 2, 3.*and \d+\.\d%"
    ):
        shifted = load_head(folder, oracle, aux_layers="inputs", check=True)
    assert shifted.layers == (0, 2, 3)
    assert load_head(folder, oracle, check=True).layers == (1, 3, 4)


def test_a_head_that_accepts_next_to_nothing_is_told(trained, monkeypatch):
    folder, oracle = trained
    monkeypatch.setattr(convention_check, "acceptance", lambda *read: 0.04)
    with pytest.warns(UserWarning, match=r"accepts 4\.0% of its drafts reading outputs of .*: it was trained"):
        load_head(folder, oracle, check=True)


def test_the_check_leaves_out_layers_that_are_not_there(trained):
    folder, oracle = trained
    head = load_head(folder, oracle)
    edge = head.reading(replace(head.aux_layers, ids=(0, 2, 3)))
    with pytest.warns(UserWarning, match="one layer higher"):
        rates = convention_check.check_convention(edge, oracle)
    assert set(rates) == {"as loaded", "one layer higher"}


def test_the_check_names_a_context_that_is_too_short_for_its_texts_and_laws_that_are_none(tmp_path):
    oracle = tiny_transformer(11, num_layers=6, max_context=34)
    write_head(tmp_path, oracle, Layout())
    with pytest.raises(ValueError, match="max_context 34 is short"):
        load_head(tmp_path, oracle, check=True)
    resaved(tmp_path, lambda tensors: tensors["fc.weight"].fill_(float("nan")))
    with pytest.raises(ValueError, match="the head's logits are NaN"):
        load_head(tmp_path, ORACLE, check=True)


def test_a_kind_of_ones_own_is_known_by_its_architecture(tmp_path, monkeypatch):
    medusa_folder(tmp_path, layout="original")
    (tmp_path / "config.json").write_text('{"architectures": ["TwoAhead"]}')
    loader = head_loading.Loader(lambda folder, values, oracle, options: values["architectures"], ())
    monkeypatch.setitem(head_loading.LOADERS, "TwoAhead", loader)
    assert load_head(tmp_path, ORACLE) == ["TwoAhead"]


def test_the_command_says_what_a_head_of_another_kind_is_for(tmp_path):
    settings = {**RUN, "head": medusa_folder(tmp_path, layout="original").path, "head_weights": None}
    with pytest.raises(ValueError, match=r"^eagle3: --head .* cannot be used: .* is made for the source 'medusa'"):
        head_strategies.EAGLE3.build(settings, tiny_transformer())


@pytest.mark.parametrize("options", [(), ("weights",)], ids=["never rounded", "rounded"])
def test_usual_weights_are_asked_of_no_head_that_has_no_choice_of_them(options, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"architectures": ["own"]}')
    oracle, taken, own = tiny_transformer(dtype=torch.float32), [], SimpleNamespace(drafter="eagle3")
    loader = head_loading.Loader(lambda folder, values, oracle, given: taken.append(given) or own, options)
    monkeypatch.setitem(head_loading.LOADERS, "own", loader)

    def build(strategy, **given):
        head_strategies.head_for("eagle3", {**RUN, "head": tmp_path, "weights": "int8", **given}, oracle, strategy)

    # What --weights says, what smollm2's strategies usually do, and what is asked for.
    build(None, head_weights=None)
    build(None, head_weights="q4_0-int8", oracle="smollm2")
    build("threshold", head_weights="q4_0-int8", oracle="smollm2")
    assert [given.weights for given in taken] == (["int8", "q4_0-int8", "q4_0-int8"] if options else [None] * 3)
    assert {given.backend for given in taken} == {"eager"}
    if not options:
        with pytest.raises(ValueError, match=r"^eagle3: --head .* cannot be used: .*: leave out weights$"):
            build(None, head_weights="int4")
    del own.drafter
    with pytest.raises(
        ValueError, match="given SimpleNamespace, which has no drafter: that of a head for this source is 'eagle3'"
    ):
        build(None, head_weights=None)


def test_the_command_names_the_strategy_whose_head_has_fewer_laws(tmp_path):
    settings = {"head": medusa_folder(tmp_path, layout="original").path, "num_draft_tokens": 99, "shape": None}
    with pytest.raises(ValueError, match=r"^medusa: drafts of 99 tokens are asked for"):
        head_strategies.MEDUSA.build(settings, tiny_transformer())
