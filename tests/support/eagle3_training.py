"""A tiny EAGLE-3 head, trained for a moment on what its oracle says."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from oracles import Transformer
from oracles.heads.eagle3_config import read_eagle3
from oracles.heads.eagle3_network import Eagle3Network
from oracles.transformer.attention import CausalAttention
from specdec.cache import prefill
from specdec.contracts import Needs
from tests.support.eagle3_heads import Layout, config_of, write_head
from tests.support.models import tiny_unpacked

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


def train_head(folder: Path, oracle: Any, layout: Layout) -> None:
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
