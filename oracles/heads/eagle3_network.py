"""The network of an EAGLE-3 head: one layer over a token's embedding and the feature of the position before it."""

import torch
from torch import Tensor, nn

from oracles.heads.eagle3_config import Eagle3Shape
from oracles.transformer.attention import Attend
from oracles.transformer.blocks import MLP, Norm, SelfAttention, at_once, embedding, pack_parts
from oracles.transformer.config import TransformerConfig
from oracles.transformer.draft_vocabulary import DraftHead
from oracles.transformer.linear import Linear
from oracles.transformer.rotary import Rope, RotaryTable


class Eagle3Layer(nn.Module):
    """A layer of attention and MLP whose queries, keys and values read two normed streams side by side."""

    def __init__(self, config: TransformerConfig, norm_before_residual: bool) -> None:
        super().__init__()
        self.norm_before_residual = norm_before_residual
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            Norm(config.hidden_size, config.norm, config.norm_eps) for _ in range(3)
        )
        self.self_attn = SelfAttention(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(self.self_attn, name)
            setattr(self.self_attn, name, Linear(2 * config.hidden_size, narrow.out_features, config.qkv_bias))
        self.mlp = MLP(config)

    def forward(self, embedded: Tensor, feature: Tensor, rope: Rope, attend: Attend) -> Tensor:
        """Return the stream ``[R, H]`` after the layer, from embeddings and features ``[R, H]``."""
        normed = self.hidden_norm(feature)
        residual = normed if self.norm_before_residual else feature
        both = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        attended = self.self_attn.o_proj(attend(0, *self.self_attn.heads(both, rope, at_once)), residual)
        out: Tensor = self.mlp(self.post_attention_layernorm(attended), attended)
        return out


class Eagle3Network(nn.Module):
    """The parts of a head with weights of their own; it borrows the others from the oracle.

    Args:
        shape: of the head.
        own_embedding, own_head: whether it has such a table.
        target_ids: ``[R]`` the ids that its own head writes; None: all.

    Deviations: a window slides with each drafted token, as in servers; ``speculators`` trains with the window of the
        pending token, and the whole of what was drafted after it.
    Source: Li et al. 2025 (EAGLE-3, arXiv 2503.01840); norms of the features and of the fed-back ones as in the files
        of EAGLE-3.1 and ``speculators``.
    """

    def __init__(self, shape: Eagle3Shape, own_embedding: bool, own_head: bool, target_ids: Tensor | None) -> None:
        super().__init__()
        config, count = shape.config, len(shape.layers.ids)
        size, kind = config.hidden_size, (config.norm, config.norm_eps)
        self.norm_output = shape.norm_output
        self.fc_norm = nn.ModuleList(Norm(shape.target_size, *kind) for _ in range(count if shape.fc_norm else 0))
        self.input_norm = Norm(count * shape.target_size, *kind) if shape.norm_before_fc else None
        self.fc = Linear(count * shape.target_size, size)
        self.layer = Eagle3Layer(config, shape.norm_before_residual)
        self.norm = Norm(size, *kind)
        self.embed_tokens = embedding(config.embedding_rows, size) if own_embedding else None
        self.lm_head: Linear | None = None
        if own_head:
            rows = config.vocab_size
            self.lm_head = Linear(size, rows) if target_ids is None else DraftHead(size, target_ids, rows)
        self.rotary = RotaryTable(config)

    def combine(self, layers: tuple[Tensor, ...]) -> Tensor:
        """Return features ``[R, H]`` from the oracle's hidden states, one ``[R, D]`` for each layer."""
        normed = [norm(layer) for norm, layer in zip(self.fc_norm, layers, strict=True)] if self.fc_norm else layers
        whole = torch.cat(list(normed), dim=-1)
        out: Tensor = self.fc(whole if self.input_norm is None else self.input_norm(whole))
        return out

    def num_written(self, vocab_size: int) -> int:
        """Return how many of an oracle's ids it writes; ids that pad the vocabulary do not count."""
        if isinstance(self.lm_head, DraftHead):
            return int((self.lm_head.target_ids < vocab_size).sum())
        return vocab_size

    @torch.no_grad()
    def pack(self) -> "Eagle3Network":
        """Prepare for inference, once, in place; see ``Transformer.pack``."""
        pair = self.norm.weight.itemsize >= 4
        self.rotary = RotaryTable(self.layer.self_attn.config, as_complex=pair)
        self.layer.self_attn.pack(pair)
        return pack_parts(self)
