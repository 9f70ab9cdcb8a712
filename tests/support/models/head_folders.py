"""Tiny block drafters and Medusa heads, written under the names in which published ones lie on disk."""

import json
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from oracles import load_head
from oracles.checkpoints.config_keys import ConfigKeys
from oracles.checkpoints.hf_config import read_layers
from oracles.heads import DFlashHead, GraphedBlockHead, MedusaHead, NativeBlockHead
from tests.reference import block_drafter, medusa
from tests.support.drafting.hidden_watch import whole_features

WIDTH, BLOCK = 16, 4  # the width of ``tiny_transformer``
LAYOUTS = {
    "dflash": {"layout": "dflash"},
    "dspark": {"layout": "dspark", "markov": "vanilla", "confidence": "plain"},
    "dspark gated": {"layout": "dspark", "markov": "gated", "confidence": "with markov"},
    "dspark rnn": {"layout": "dspark", "markov": "rnn"},
    "dspark without markov": {"layout": "specforge", "kind": "dspark"},
    "dspark of SpecForge, as it was": {
        "layout": "specforge", "kind": "dspark", "markov": "gated", "confidence": "with markov", "deeper": True,
    },
    "speculators dflash": {"layout": "speculators"},
    "speculators dflash from the anchor": {"layout": "speculators", "from_anchor": True, "draft_vocab": 3},
    "speculators dspark": {
        "layout": "speculators", "kind": "dspark", "markov": "gated", "draft_vocab": 3, "from_anchor": True,
    },
    "speculators dspark not from the anchor": {
        "layout": "speculators", "kind": "dspark", "markov": "rnn", "from_anchor": False,
        "confidence": "with markov",
    },
    "few ids": {"layout": "speculators", "kind": "dspark", "markov": "vanilla", "draft_vocab": 3},
    "dflash with a window": {"layout": "dflash", "windows": (3, None)},
    "speculators dflash with windows that see ahead": {"layout": "speculators", "windows": (2, 2), "sees_ahead": True},
}  # fmt: skip
MEDUSAS = {
    "original": {"layout": "original"},
    "two residual blocks": {"layout": "original", "num_layers": 2},
    "vllm": {"layout": "vllm"},
    "vllm with biases": {"layout": "vllm", "bias": True, "prefix": "medusa_heads."},
    "vllm with fewer ids": {"layout": "vllm", "token_map": [3, 0, 1]},
    "vllm with one head": {"layout": "vllm", "shared": True, "num_layers": 2},
}


@dataclass
class HeadFolder:
    """A head on disk, and what its reference is computed from."""

    path: Path
    config: dict[str, Any]
    weights: dict[str, Tensor]
    facts: dict[str, Any]
    deeper: bool = False  # Markov and confidence heads are stored below ``logit_head``

    def save(self) -> Path:
        """Write what ``config`` and ``weights`` hold now."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "config.json").write_text(json.dumps(self.config), encoding="utf-8")
        own = ("markov_head.", "confidence_head.") if self.deeper else ()
        named = {f"logit_head.{name}" if name.startswith(own) else name: self.weights[name] for name in self.weights}
        save_file({name: value.contiguous() for name, value in named.items()}, self.path / "model.safetensors")
        return self.path


def drawn(shape: tuple[int, ...], generator: np.random.PCG64, scale: float = 0.5) -> Tensor:
    """Return numbers up to twice a scale, the same on every machine."""
    raw = generator.random_raw(int(np.prod(shape)))
    return torch.from_numpy(((raw >> 11) % 2048).astype(np.float64).reshape(shape) - 1024) / 512 * scale


def layers_config(vocab_size: int) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "intermediate_size": 24,
        "max_position_embeddings": 64,
        "vocab_size": vocab_size,
        "rms_norm_eps": 1e-6,
        "rope_theta": 100.0,
        "attention_bias": False,
        "layer_types": ["full_attention", "full_attention"],
        "sliding_window": None,
    }


def layers_that_slide(windows: tuple[int | None, ...]) -> dict[str, Any]:
    """Return the keys of a config whose layers have windows, all of one size; None: a layer attends in full."""
    sizes = {window for window in windows if window is not None}
    if not sizes:
        return {}
    types = ["full_attention" if window is None else "sliding_attention" for window in windows]
    return {"layer_types": types, "sliding_window": sizes.pop(), "use_sliding_window": True, "max_window_layers": 2}


def trunk_weights(config: dict[str, Any], num_states: int, generator: np.random.PCG64) -> dict[str, Tensor]:
    size, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    shapes = {"fc.weight": (size, num_states * size), "hidden_norm.weight": (size,), "norm.weight": (size,)}
    for layer in range(config["num_hidden_layers"]):
        name = f"layers.{layer}."
        shapes |= {name + f"{norm}.weight": (size,) for norm in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {name + f"self_attn.{part}_norm.weight": (head,) for part in "qk"}
        shapes |= {
            name + f"self_attn.{part}_proj.weight": (rows, size)
            for part, rows in zip("qkv", (queries, keys, keys), strict=True)
        }
        shapes |= {name + "self_attn.o_proj.weight": (size, queries), name + "mlp.down_proj.weight": (size, inner)}
        shapes |= {name + f"mlp.{part}_proj.weight": (inner, size) for part in ("gate", "up")}
    return {
        name: 1 + drawn(shape, generator, 0.3) if "norm" in name else drawn(shape, generator)
        for name, shape in shapes.items()
    }


def block_folder(
    path: Path,
    vocab_size: int = 4,
    *,
    layout: str,
    kind: str = "dflash",
    markov: str | None = None,
    confidence: str | None = None,
    from_anchor: bool | None = None,
    draft_vocab: int | None = None,
    layers: tuple[int, ...] = (0, 1),
    mask_id: int = 0,
    rank: int = 3,
    block_size: int = BLOCK,
    seed: int = 0,
    windows: tuple[int | None, ...] = (None, None),
    sees_ahead: bool = False,
    target_layers: int = 2,
    deeper: bool = False,
    **changes: Any,
) -> HeadFolder:
    """Write a block drafter for ``tiny_transformer(vocab_size)``.

    Args:
        layers: those whose outputs it reads.
        windows: of its own layers.
        sees_ahead: where there are windows, so do places of a block (``speculators``).
        target_layers: of the oracle, as configs tell it.
        deeper: see ``HeadFolder``.
    """
    generator = np.random.PCG64(seed)
    plain = layers_config(vocab_size) | changes
    inner = plain | layers_that_slide(windows)
    weights = trunk_weights(inner, len(layers), generator)
    columns, is_dspark, width = draft_vocab or vocab_size, "dspark" in (layout, kind), inner["hidden_size"]
    if markov:
        weights["markov_head.markov_w1.weight"] = drawn((vocab_size, rank), generator, 1.0)
        weights["markov_head.markov_w2.weight"] = drawn((columns, rank), generator, 1.0)
        if markov != "vanilla":
            part, rows, read = (
                ("gate", rank, width + rank) if markov == "gated" else ("joint", 3 * rank, width + 2 * rank)
            )
            weights[f"markov_head.{part}_proj.weight"] = drawn((rows, read), generator)
            weights[f"markov_head.{part}_proj.bias"] = drawn((rows,), generator)
    if confidence:
        weights["confidence_head.proj.weight"] = drawn((1, width + rank * (confidence == "with markov")), generator)
        weights["confidence_head.proj.bias"] = drawn((1,), generator)
    if layout == "dspark" or draft_vocab:
        weights["lm_head.weight"] = drawn((columns, width), generator)
    if layout == "dspark":
        weights["embed_tokens.weight"] = drawn((vocab_size, width), generator, 1.0)
    target_ids = list(range(vocab_size))[-columns:]
    if draft_vocab:
        weights["d2t"] = torch.tensor([target - i for i, target in enumerate(target_ids)])
        weights["t2d"] = torch.tensor([i in target_ids for i in range(vocab_size)])
    added = {
        "markov_rank": rank if markov else 0,
        "markov_head_type": markov or "vanilla",
        "enable_confidence_head": confidence is not None,
        "confidence_head_with_markov": confidence == "with markov",
    }
    if layout == "dflash":
        config = inner | {
            "architectures": ["DFlashDraftModel"],
            "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
            "num_target_layers": target_layers,
            "dflash_config": {
                "block_size": block_size,
                "mask_token_id": mask_id,
                "target_layer_ids": list(layers),
                **({} if any(windows) else {"causal": False}),
            },
        }
    elif layout == "specforge":
        told = {"projector_type": "dspark", "mask_token_id": mask_id, "target_layer_ids": list(layers)}
        config = inner | {
            "architectures": ["DSparkDraftModel"],
            "block_size": block_size,
            "num_target_layers": target_layers,
            "dflash_config": told | added | {"attention_mode": "gqa", "confidence_head_alpha": 1.0},
        }
    elif layout == "dspark":
        config = (
            inner
            | added
            | {
                "architectures": ["Qwen3DSparkModel"],
                "block_size": block_size,
                "num_target_layers": target_layers,
                "num_anchors": 512,
                "mask_token_id": mask_id,
                "target_layer_ids": list(layers),
            }
        )
    else:
        config = {
            "architectures": ["DFlashDraftModel" if kind == "dflash" else "DSparkDraftModel"],
            "speculators_model_type": kind,
            "speculators_version": "0.6.0",
            "speculators_config": {"algorithm": kind, "proposal_methods": [], "verifier": {}},
            "transformer_layer_config": inner,
            "draft_vocab_size": columns,
            "block_size": block_size,
            "aux_hidden_state_layer_ids": [layer + 1 for layer in layers],
            "mask_token_id": mask_id,
            "max_anchors": 512,
            "sliding_window_non_causal": sees_ahead,
        } | (added if is_dspark else {})
        config |= {} if from_anchor is None else {"sample_from_anchor": from_anchor}
    anchored = layout in ("dspark", "specforge") if from_anchor is None else from_anchor
    facts = {
        "layers": layers,
        "mask": mask_id,
        "markov": markov,
        "from_anchor": anchored,
        "with_markov": confidence == "with markov",
        "target_ids": target_ids,
        "shape": read_layers(ConfigKeys(plain, "test")),
        "reaches": [(window, window is None or sees_ahead) for window in windows],
    }
    folder = HeadFolder(path, config, weights, facts, deeper)
    folder.save()
    return folder


def medusa_folder(
    path: Path,
    vocab_size: int = 4,
    *,
    layout: str,
    num_heads: int = 3,
    num_layers: int = 1,
    bias: bool = False,
    prefix: str = "",
    token_map: list[int] | None = None,
    shared: bool = False,
    width: int = WIDTH,
    seed: int = 0,
) -> HeadFolder:
    """Write Medusa's heads for ``tiny_transformer(vocab_size)``."""
    generator = np.random.PCG64(seed)
    weights: dict[str, Tensor] = {}
    for head in range(num_heads):
        for layer in range(num_layers):
            name = f"{head}.{layer}.linear" if layout == "original" else f"blocks.{head}.layers.{layer}"
            weights[f"{name}.weight"] = drawn((width, width), generator)
            if bias or layout == "original":
                weights[f"{name}.bias"] = drawn((width,), generator)
        if layout == "original":
            weights[f"{head}.{num_layers}.weight"] = drawn((vocab_size, width), generator)
        elif not shared or head == 0:
            rows = len(token_map) if token_map else vocab_size
            weights[f"lm_heads.{head}.weight"] = drawn((rows, width), generator)
    if token_map:
        weights["token_map"] = torch.tensor(token_map)
    facts = {"layout": layout, "num_layers": num_layers, "num_heads": num_heads, "weights": dict(weights)}
    if layout == "original":
        # Published files say two, whatever there are.
        config = {"medusa_num_heads": 2, "medusa_num_layers": num_layers, "base_model_name_or_path": "tiny"}
    else:
        config = {
            "model_type": "medusa",
            "architectures": ["MedusaModel"],
            "hidden_size": width,
            "vocab_size": vocab_size,
            "truncated_vocab_size": len(token_map) if token_map else vocab_size,
            "num_heads": num_heads,
            "num_hidden_layers": num_layers,
            "medusa_fc_bias": bias,
            "original_lm_head": shared,
            "logit_scale": 1.0,
        }
        weights = {prefix + name: value for name, value in weights.items()}
    folder = HeadFolder(path, config, weights, facts)
    folder.save()
    return folder


@cache
def tiny_block(oracle: Any, layout: str) -> DFlashHead | GraphedBlockHead | NativeBlockHead:
    """Return a random block drafter, of one of ``LAYOUTS``, on an oracle's first two layers."""
    with tempfile.TemporaryDirectory() as folder:
        made = block_folder(
            Path(folder), oracle.embedding_rows, hidden_size=oracle.hidden_size, block_size=7,
            target_layers=oracle.hidden_layers, **LAYOUTS[layout],
        )  # fmt: skip
        head = load_head(made.path, oracle)
    assert isinstance(head, DFlashHead | GraphedBlockHead | NativeBlockHead)
    return head


@cache
def tiny_medusa(oracle: Any) -> MedusaHead:
    """Return random heads of Medusa on an oracle."""
    with tempfile.TemporaryDirectory() as folder:
        made = medusa_folder(
            Path(folder), oracle.embedding_rows, layout="original", num_heads=6, width=oracle.hidden_size
        )
        head = load_head(made.path, oracle)
    assert isinstance(head, MedusaHead)
    return head


class BlockReference:
    """The laws that a block drafter has for an oracle's rows, slowly.

    Args:
        folder: of the head.
        oracle: a float64 ``tiny_transformer``, unpacked for its tables: ``tables`` (embeddings, read-out).
    """

    def __init__(self, folder: HeadFolder, oracle: Any, tables: tuple[Tensor, Tensor]) -> None:
        self.folder, self.oracle, self.facts = folder, oracle, folder.facts
        self.embeddings = folder.weights.get("embed_tokens.weight", tables[0])
        self.head = folder.weights.get("lm_head.weight", tables[1])
        self._streams: dict[tuple[int, ...], list[Tensor]] = {}

    def streams(self, ids: list[int]) -> list[Tensor]:
        if tuple(ids) not in self._streams:
            features = list(whole_features(self.oracle, ids[:-1], self.facts["layers"]))
            shape = self.folder.weights, self.facts["shape"], self.facts["reaches"]
            self._streams[tuple(ids)] = block_drafter.block_streams(
                *shape, self.embeddings, features, ids[-1], self.facts["mask"], BLOCK
            )
        return self._streams[tuple(ids)]

    def logits(self, ids: list[int], path: list[int]) -> Tensor:
        """Return ``[V]`` the logits of the token after ``ids`` and the drafted ``path``."""
        columns = block_drafter.drafted_logits(
            self.folder.weights,
            self.streams(ids),
            self.head,
            ids[-1],
            path,
            self.facts["markov"],
            self.facts["from_anchor"],
        )
        out = torch.full((self.oracle.vocab_size,), -torch.inf, dtype=torch.float64)
        out[self.facts["target_ids"]] = columns
        return out

    def confidence(self, ids: list[int], path: list[int]) -> float:
        place = len(path) + (not self.facts["from_anchor"])
        token = [ids[-1], *path][-1]
        return block_drafter.confidence(self.folder.weights, self.streams(ids)[place], token, self.facts["with_markov"])


class MedusaReference:
    """The laws that Medusa's heads have for an oracle's rows, slowly."""

    def __init__(self, folder: HeadFolder, oracle: Any, norm: Any) -> None:
        self.oracle, self.facts, self.norm = oracle, folder.facts, norm
        self._states: dict[tuple[int, ...], Tensor] = {}

    def state(self, ids: list[int]) -> Tensor:
        if tuple(ids) not in self._states:
            last = self.oracle.hidden_layers - 1
            self._states[tuple(ids)] = self.norm(whole_features(self.oracle, ids[:-1], (last,))[-1]).detach()
        return self._states[tuple(ids)]

    def logits(self, ids: list[int], path: list[int]) -> Tensor:
        """Return ``[V]`` the logits of the token after ``ids`` and the drafted ``path``."""
        facts, state = self.facts, self.state(ids)
        if facts["layout"] == "original":
            return medusa.head_logits(facts["weights"], len(path), facts["num_layers"], state)
        size = self.oracle.vocab_size
        return medusa.vllm_head_logits(facts["weights"], len(path), facts["num_layers"], state, size)
