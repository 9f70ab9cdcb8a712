"""Every strategy at a size where the law of its output can be enumerated: three ids, drafts of a token or two."""

from dataclasses import replace
from typing import TypeVar

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from torch import nn

import drafts
from oracles import TabularLM, Transformer, TransformerConfig
from oracles.heads import (
    AuxLayers,
    BlockNetwork,
    BlockShape,
    DFlashHead,
    Eagle3Head,
    Eagle3Network,
    Eagle3Shape,
    MedusaHead,
    MedusaNetwork,
    MedusaShape,
)
from specdec import Calibration, DraftSource, Oracle, Paths, Threshold

Network = TypeVar("Network", bound=nn.Module)


def tiny_transformer(step: float | None = None) -> Transformer:
    """Return a random two-layer transformer in float64 whose laws are far from uniform.

    ``step``: round the same weights to its multiples; 0.5 is coarse enough to change the laws.
    """
    config = TransformerConfig(
        vocab_size=3, hidden_size=16, intermediate_size=24, num_layers=2, num_heads=2, max_context=64
    )
    model = Transformer(config, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(20)
                if step is not None:
                    parameter.div_(step).round_().mul_(step)
    return model.double().pack()


def tiny_head(oracle: Transformer) -> Eagle3Head:
    """Return a random EAGLE-3 head on both layers of an oracle."""
    layers = AuxLayers((0, 1), "outputs", "the harness", oracle.num_layers)
    shape = Eagle3Shape(replace(oracle.config, num_layers=1), oracle.hidden_size, layers)
    network = _random(Eagle3Network(shape, own_embedding=True, own_head=True, target_ids=None))
    return Eagle3Head(network, shape, oracle, "random")


def tiny_block(oracle: Transformer) -> DFlashHead:
    """Return a random block drafter with a Markov head, on both layers of an oracle."""
    config = replace(oracle.config, num_layers=1)
    shape = BlockShape(
        config, (0, 1), 3, 0, from_anchor=True, columns=oracle.vocab_size, markov="vanilla", markov_rank=2
    )
    return DFlashHead(shape, _random(BlockNetwork(shape, oracle.hidden_size)), oracle, None)


def tiny_medusa(oracle: Transformer) -> MedusaHead:
    """Return two random heads of Medusa."""
    shape = MedusaShape(2, 1, oracle.hidden_size, oracle.vocab_size)
    return MedusaHead(shape, _random(MedusaNetwork(shape)), oracle, None)


def _random(network: Network) -> Network:
    """Return a network in float64 whose weights, except norms, are large and random."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.4, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()
    return network.double()


def letters(*pieces: str) -> Tokenizer:
    """Return a tokenizer of these pieces, of one or two letters; the longer ones are read in place of the letters."""
    merges = [(piece[0], piece[1]) for piece in pieces if len(piece) > 1]
    return Tokenizer(BPE({piece: one for one, piece in enumerate(pieces)}, merges))


def tiny_strategies() -> list[tuple[str, Oracle, DraftSource]]:
    """Return the strategies by name, some more than once, each with an oracle that it can draft for."""
    target, model = TabularLM.pair(3, order=2, alpha=0.7, seed=0)
    other = TabularLM.random(3, order=2, seed=1)
    text = torch.randint(0, 3, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    ngrams = drafts.NGram.train([text], 3, order=2, progress=False).model
    layered = tiny_transformer()
    costs = Calibration.independent(alpha=0.7, draft_cost=0.2)
    words = letters("a", "b", "ab")  # the last of which the model reads as two
    lookup = drafts.PromptLookup(num_draft_tokens=2, max_ngram=2)
    sources: list[tuple[str, DraftSource]] = [
        ("small_transformer", drafts.SmallTransformer(model, num_draft_tokens=2)),
        ("other_vocabulary", drafts.OtherVocabulary(model, 2, tokenizers=(letters("b", "a", "f"), words))),
        ("tree", drafts.SmallTransformer(model, tree=Paths([(0, 0), (1,)]))),
        ("threshold", drafts.SmallTransformer(model, length=Threshold(costs, max_draft_tokens=2))),
        ("ngram", drafts.NGram(ngrams, num_draft_tokens=2)),
        ("ngram", drafts.NGram(ngrams, num_draft_tokens=2, sampled=True)),
        ("prompt_lookup", lookup),
        ("suffix_automaton", drafts.SuffixAutomaton(2)),
        ("suffix_automaton", drafts.SuffixAutomaton(2, tokens_per_match=3, max_nodes=3)),
        ("lookahead", drafts.Lookahead(window=2, ngram=3, guesses=2)),
        ("merged", drafts.Merged([lookup, drafts.SmallTransformer(model, num_draft_tokens=1)])),
        ("cascade", drafts.Cascade([lookup, drafts.SmallTransformer(model, num_draft_tokens=2)])),
        ("staged", drafts.Staged(model, drafts.SmallTransformer(other, num_draft_tokens=1), num_draft_tokens=2)),
    ]
    return [
        *((name, target, source) for name, source in sources),
        ("early_exit", layered, drafts.EarlyExit(layered, 1, num_draft_tokens=2)),
        ("quantized", layered, drafts.Quantized(layered, tiny_transformer(step=0.5), num_draft_tokens=2)),
        ("eagle3", layered, drafts.Eagle3(tiny_head(layered), num_draft_tokens=2)),
        ("eagle3", layered, drafts.Eagle3(tiny_head(layered), tree=Paths([(0, 0), (1,)]))),
        ("block_drafter", layered, drafts.BlockDrafter(tiny_block(layered), num_draft_tokens=2)),
        ("block_drafter", layered, drafts.BlockDrafter(tiny_block(layered), tree=Paths([(0, 0), (1,)]))),
        ("medusa", layered, drafts.Medusa(tiny_medusa(layered))),
        ("medusa", layered, drafts.Medusa(tiny_medusa(layered), tree=Paths([(0, 0), (1,)]))),
    ]
