"""A tiny EAGLE-3 head, trained for a moment on what its oracle says."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from oracles.heads.eagle3_config import read_eagle3
from oracles.heads.eagle3_network import Eagle3Network
from oracles.transformer.attention import CausalAttention
from specdec.cache import prefill
from specdec.contracts import Needs
from tests.support.eagle3_heads import Layout, config_of, write_head

TEXTS, LENGTH, STEPS = 64, 40, 300


def train_head(folder: Path, oracle: Any, layout: Layout) -> None:
    """Write a head that was trained to say, beside the outputs of its layers, what its oracle says next.

    Its embeddings are zero, so that it must read the features.
    """
    write_head(folder, oracle, layout)
    shape = read_eagle3(config_of(layout, oracle), "here", oracle, "outputs")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(oracle.vocab_size, (TEXTS, LENGTH), generator=generator)
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
