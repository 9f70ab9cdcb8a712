"""DSpark's additions to a block drafter: logits that depend on the token before, and a confidence in each token."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from oracles.transformer.blocks import embedding
from oracles.transformer.linear import Linear

MarkovKind = Literal["vanilla", "gated", "rnn"]
MARKOV_KINDS: tuple[MarkovKind, ...] = get_args(MarkovKind)


class MarkovHead(nn.Module):
    """A low-rank bias on the logits of a token, computed from the token before it.

    With e = W1[token before], h the trunk's stream at the place that is read and s a state that begins at 0, the bias
    is W2 of e ("vanilla"), of sigmoid(G[h; e]) * e ("gated"), or of tanh(o) ("rnn"), where [g; c; o] = J[s; e; h] and
    the next state is sigmoid(g) s + (1 - sigmoid(g)) tanh(c).

    Args:
        kind: "vanilla", "gated" or "rnn".
        vocab_size: number of ids that the token before may have.
        columns: of the read-out whose logits it changes.
        rank: of e and s.
        hidden_size: of h.

    Source: DeepSpec 2026 (DSpark, arXiv 2607.05147).
    """

    def __init__(self, kind: MarkovKind, vocab_size: int, columns: int, rank: int, hidden_size: int) -> None:
        super().__init__()
        self.kind, self.rank = kind, rank
        self.markov_w1 = embedding(vocab_size, rank)
        self.markov_w2: nn.Module = Linear(rank, columns)
        if kind == "gated":
            self.gate_proj = Linear(hidden_size + rank, rank, bias=True)
        if kind == "rnn":
            self.joint_proj = Linear(hidden_size + 2 * rank, 3 * rank, bias=True)

    def first_state(self, rows: int) -> Tensor:
        """Return ``[rows, rank]`` the state before the first place."""
        return self.markov_w1.weight.new_zeros(rows, self.rank)

    def forward(self, previous: Tensor, stream: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return biases ``[R, columns]`` and next states ``[R, rank]``.

        Args:
            previous: ``[R]`` the ids before.
            stream: ``[R, hidden_size]``.
            state: ``[R, rank]``, read only by "rnn".
        """
        known = self.markov_w1(previous)
        if self.kind == "gated":
            known = torch.sigmoid(self.gate_proj(torch.cat([stream, known], dim=-1))) * known
        if self.kind == "rnn":
            joint = self.joint_proj(torch.cat([state, known, stream], dim=-1))
            gate, candidate, out = joint.chunk(3, dim=-1)
            gate = torch.sigmoid(gate)
            state, known = gate * state + (1 - gate) * torch.tanh(candidate), torch.tanh(out)
        return self.markov_w2(known), state


class ConfidenceHead(nn.Module):
    """The probability that a drafted token is accepted if all before it are, predicted before the token is drawn.

    Args:
        size: width of its input: the trunk's stream, with or without the Markov head's e.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = Linear(size, 1, bias=True)

    def forward(self, read: Tensor) -> Tensor:
        """Return ``[R]`` float64 probabilities from ``[R, size]``."""
        return torch.sigmoid(self.proj(read).double()).squeeze(-1)
