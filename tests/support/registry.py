"""One row per exported draft source, length policy and tree shape: the common tests run with each of them.

``tests/contract/drafts/test_registry.py`` fails for an exported one without a row. Rules need none here: the common
tests run with every rule of ``specdec.verify.RULES``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from tokenizers import Tokenizer

import drafts
from experiments.harness.tiny import letters
from oracles import Transformer
from oracles.tabular import TabularLM
from specdec import Calibration, Chain, Entropy, Grown, Heuristic, Kary, Paths, ReRanked, Threshold, TreeShape
from specdec.contracts import DraftSource, Oracle
from specdec.drafting import NGramModel
from specdec.drafting.lengths import LengthPolicy, Tracked
from specdec.theory import WidthCurve
from specdec.theory.calibration import Monotone
from tests.reference.tables import random_table
from tests.support.models.eagle3_heads import tiny_eagle3
from tests.support.models.head_folders import tiny_block, tiny_medusa
from tests.support.models.tiny_models import rough_view, tiny_transformer


@dataclass(frozen=True)
class Models:
    """What a row makes its source of: models over one vocabulary.

    Attributes:
        model: drafts.
        other: drafts inside of it, or beside it.
        layered: an oracle whose pass can be cut between layers, whose cache others can score on, and whose hidden
            states heads read.
        view: the same network with coarser weights.
        ngrams: a counted model.
    """

    model: TabularLM
    other: TabularLM
    layered: Transformer
    view: Transformer
    ngrams: NGramModel


CORPUS = [np.minimum(np.random.default_rng(i).geometric(0.4, 60) - 1, 5).tolist() for i in range(4)]
SIX_IDS = Models(
    TabularLM.random(6, 4, 3),
    TabularLM.random(6, 3, 4),
    tiny_transformer(6, num_layers=3),
    rough_view(6, num_layers=3),
    drafts.NGram.train(CORPUS, 6, progress=False).model,
)
# Few enough ids to enumerate what a run may emit.
THREE_IDS = Models(
    TabularLM(random_table(3, 2, 22)),
    TabularLM(random_table(3, 2, 23)),
    tiny_transformer(3),
    rough_view(3),
    drafts.NGram.train([[0, 1, 2, 0, 1, 1, 2, 0, 2, 2, 1, 0]], 3, 3, progress=False).model,
)


# By the size of a vocabulary: the tokenizers of a model and of its target. Of the target's pieces the model lacks the
# last one, which it reads as two; after other ids these may become one piece of its own, "ab".
LETTERS = {
    6: (letters("b", "a", "d", "f", "ab", "c"), letters("a", "b", "c", "d", "ab", "cd")),
    3: (letters("b", "a", "f"), letters("a", "b", "ab")),
}


def letters_of(model: Oracle) -> tuple[Tokenizer, Tokenizer] | None:
    """Return the tokenizers of a model and its target; None if they have their own."""
    return None if model.tokenizer is not None else LETTERS[model.vocab_size]


def rotation(ids: Sequence[int], budget: int) -> list[int]:
    return [ids[-1 - i % len(ids)] for i in range(budget)]


# Per exported name: ways to make the source, given the number of tokens to draft.
# ``tests/exact/engine/test_product.py`` enumerates the law of the first way with every rule.
SOURCES: dict[str, dict[str, Callable[[Models, int], DraftSource]]] = {
    "PromptLookup": {
        "last": lambda m, k: drafts.PromptLookup(k),
        "first": lambda m, k: drafts.PromptLookup(k, match="first", wrap=True),
    },
    "SuffixAutomaton": {
        "chain": lambda m, k: drafts.SuffixAutomaton(k),
        "likely": lambda m, k: drafts.SuffixAutomaton(k, tokens_per_match=5, min_confidence=0.3),
    },
    "NGram": {
        "greedy": lambda m, k: drafts.NGram(m.ngrams, k),
        "sampled": lambda m, k: drafts.NGram(m.ngrams, k, sampled=True),
        "hot": lambda m, k: drafts.NGram(m.ngrams, k, sampled=True, temperature=2.0),
    },
    "SmallTransformer": {
        "as asked": lambda m, k: drafts.SmallTransformer(m.model, k),
        "greedy": lambda m, k: drafts.SmallTransformer(m.model, k, temperature=0),
        "warm": lambda m, k: drafts.SmallTransformer(m.model, k, temperature=1.5),
    },
    "OtherVocabulary": {
        "as asked": lambda m, k: drafts.OtherVocabulary(m.model, k, tokenizers=letters_of(m.model)),
        "greedy": lambda m, k: drafts.OtherVocabulary(m.model, k, temperature=0, tokenizers=letters_of(m.model)),
        "warm": lambda m, k: drafts.OtherVocabulary(m.model, k, temperature=1.5, tokenizers=letters_of(m.model)),
        "text": lambda m, k: drafts.OtherVocabulary(m.model, k, mapping="text", tokenizers=letters_of(m.model)),
    },
    "EarlyExit": {
        "one layer": lambda m, k: drafts.EarlyExit(m.layered, 1, num_draft_tokens=k),
        "greedy": lambda m, k: drafts.EarlyExit(m.layered, 2, num_draft_tokens=k, temperature=0),
        "hot": lambda m, k: drafts.EarlyExit(m.layered, 2, num_draft_tokens=k, temperature=1.5),
    },
    "Eagle3": {
        "as asked": lambda m, k: drafts.Eagle3(tiny_eagle3(m.layered), k),
        "greedy": lambda m, k: drafts.Eagle3(tiny_eagle3(m.layered), k, temperature=0),
        "hot": lambda m, k: drafts.Eagle3(tiny_eagle3(m.layered), k, temperature=1.5),
    },
    "BlockDrafter": {
        "markov": lambda m, k: drafts.BlockDrafter(tiny_block(m.layered, "dspark gated"), k),
        "independent, greedy": lambda m, k: drafts.BlockDrafter(tiny_block(m.layered, "dflash"), k, temperature=0),
        "recurrent, hot": lambda m, k: drafts.BlockDrafter(tiny_block(m.layered, "dspark rnn"), k, temperature=1.5),
    },
    "Medusa": {
        "as asked": lambda m, k: drafts.Medusa(tiny_medusa(m.layered), k),
        "greedy": lambda m, k: drafts.Medusa(tiny_medusa(m.layered), k, temperature=0),
        "hot": lambda m, k: drafts.Medusa(tiny_medusa(m.layered), k, temperature=1.5),
    },
    "Quantized": {
        "as asked": lambda m, k: drafts.Quantized(m.layered, m.view, k),
        "greedy": lambda m, k: drafts.Quantized(m.layered, m.view, k, temperature=0),
        "hot": lambda m, k: drafts.Quantized(m.layered, m.view, k, temperature=1.5),
    },
    "Merged": {
        "lookup and model": lambda m, k: drafts.Merged([drafts.PromptLookup(k), drafts.SmallTransformer(m.model, k)]),
        "nested": lambda m, k: drafts.Merged(
            [
                drafts.SmallTransformer(m.model, k),
                drafts.Merged([drafts.NGram(m.ngrams, k), drafts.NGram(m.ngrams, k, sampled=True)]),
            ]
        ),
    },
    "Staged": {
        "ngram": lambda m, k: drafts.Staged(m.model, drafts.NGram(m.ngrams, 3), k),
        "lookup, greedy": lambda m, k: drafts.Staged(m.model, drafts.PromptLookup(3), k, temperature=0),
        "siblings": lambda m, k: drafts.Staged(m.model, drafts.NGram(m.ngrams, 2, sampled=True), k, width=3),
        "twice": lambda m, k: drafts.Staged(
            m.model, drafts.Staged(m.other, drafts.NGram(m.ngrams, 3), 3, temperature=1.5), k
        ),
    },
    "Cascade": {
        "lookup, then model": lambda m, k: drafts.Cascade(
            [drafts.PromptLookup(k, min_ngram=2), drafts.SmallTransformer(m.model, k)]
        )
    },
    "stateless": {"rotation": lambda m, k: drafts.stateless(num_draft_tokens=k)(rotation)},
}
# The same for sources that are no chain of so many tokens, or that remember what scores told them.
OTHERS: dict[str, dict[str, Callable[[Models], DraftSource]]] = {
    "SuffixAutomaton": {
        "tree": lambda m: drafts.SuffixAutomaton(3, tokens_per_match=3, max_nodes=6),
        "merged": lambda m: drafts.Merged(
            [drafts.SuffixAutomaton(2, max_nodes=4), drafts.SmallTransformer(m.model, 2)]
        ),
        "cascade": lambda m: drafts.Cascade(
            [drafts.SuffixAutomaton(3, min_ngram=2), drafts.SmallTransformer(m.model, 2)]
        ),
    },
    "OtherVocabulary": {
        "staged": lambda m: drafts.Staged(
            m.other, drafts.OtherVocabulary(m.model, 2, tokenizers=letters_of(m.model)), 3
        )
    },
    "Forced": {
        "merged": lambda m: drafts.Merged([drafts.Forced(3), drafts.PromptLookup(2)]),
        "nearly forced, then a model": lambda m: drafts.Cascade(
            [drafts.Forced(3, max_ids=2), drafts.SmallTransformer(m.model, 2)]
        ),
    },
    "Lookahead": {
        "default": lambda m: drafts.Lookahead(),
        "no prompt": lambda m: drafts.Lookahead(window=4, ngram=3, guesses=2, pool_size=5, from_prompt=False),
        "no window": lambda m: drafts.Lookahead(window=0, ngram=4),
    },
    "Cascade": {
        "lookahead in a merger": lambda m: drafts.Cascade(
            [drafts.PromptLookup(2, min_ngram=2), drafts.Merged([drafts.Lookahead(), drafts.PromptLookup(2)])]
        )
    },
    "Merged": {
        "lookahead in a cascade": lambda m: drafts.Merged(
            [drafts.SmallTransformer(m.model, 2), drafts.Cascade([drafts.PromptLookup(3), drafts.Lookahead(2, 3, 2)])]
        )
    },
}
# The first way of each row; a name may have rows in both tables.
ENUMERATED: dict[str, DraftSource] = {
    **{f"{name}, {next(iter(ways))}": next(iter(ways.values()))(THREE_IDS) for name, ways in OTHERS.items()},
    **{name: next(iter(ways.values()))(THREE_IDS, 2) for name, ways in SOURCES.items()},
}

CALIBRATION = Calibration(
    0.7,
    Monotone((0.1, 0.9), (0.5, 1.0)),
    Monotone((0.0, 0.4, 1.0), (0.0, 0.3, 0.8)),
    0.15,
    WidthCurve((1, 4), (1.0, 1.2)),
    1.5,
)
SHORT_CALIBRATION = Calibration(
    0.8,
    Monotone((0.2, 0.9), (0.3, 0.9)),
    Monotone((0.0, 0.6, 1.0), (0.0, 0.2, 0.8)),
    0.15,
    WidthCurve.linear(0.05),
    1.5,
)
# Per policy: one of up to six tokens; one of up to two over ``THREE_IDS``, whose law is enumerated.
POLICIES: dict[str, tuple[LengthPolicy, LengthPolicy]] = {
    "heuristic": (Heuristic(3, max_draft_tokens=6), Heuristic(1, max_draft_tokens=2)),
    "moving": (
        Threshold(CALIBRATION, max_draft_tokens=6),
        Threshold(SHORT_CALIBRATION, max_draft_tokens=2, probe_every=2),
    ),
    "calibrated constant": (
        Threshold(CALIBRATION, threshold=0.3, max_draft_tokens=6),
        Threshold(SHORT_CALIBRATION, threshold=0.5, max_draft_tokens=2),
    ),
    "constant": (Threshold(threshold=0.1, max_draft_tokens=6), Threshold(threshold=0.4, max_draft_tokens=2)),
    "per token": (
        Threshold(threshold=0.4, per_token=True, max_draft_tokens=6),
        Threshold(threshold=0.4, per_token=True, max_draft_tokens=2),
    ),
    "tracked": (
        Threshold(threshold=Tracked(0.4, step=0.5, inertia=0.5), per_token=True, max_draft_tokens=6),
        Threshold(threshold=Tracked(0.4, step=0.5, inertia=0.2), per_token=True, max_draft_tokens=2),
    ),
    "entropy": (Entropy(0.5, max_draft_tokens=6), Entropy(0.6, max_draft_tokens=2)),
    "tracked entropy": (
        Entropy(Tracked(0.5, step=0.3, inertia=0.5), max_draft_tokens=6),
        Entropy(Tracked(0.55, step=0.3, inertia=0.2), max_draft_tokens=2),
    ),
}

# Per exported shape: one of few nodes, whose law is enumerated over ``THREE_IDS``; a larger one of several levels.
SHAPES: dict[str, tuple[TreeShape, TreeShape]] = {
    "Chain": (Chain(2), Chain(5)),
    "Kary": (Kary(2, 2), Kary(2, 3)),
    "Paths": (Paths([(0, 0), (1,)]), Paths([(0, 0, 0, 0), (0, 1), (1, 0), (2,)])),
    "Grown": (Grown(4, 2, width=3, min_confidence=0.05), Grown(9, 3, width=4)),
    "ReRanked": (ReRanked(3, 2, 2), ReRanked(8, 3, 3)),
}
SMALL_SHAPES = {name: small for name, (small, _) in SHAPES.items()}
LARGE_SHAPES = {name: large for name, (_, large) in SHAPES.items()}


def temperature_of(shape: TreeShape) -> float | None:
    """Return the temperature to draft a shape with: 0 if it chooses among nodes that were made, else the request's."""
    return None if shape.num_kept is None else 0.0


def _drafted(shape: TreeShape, models: Models) -> DraftSource:
    return drafts.SmallTransformer(models.model, tree=shape, temperature=temperature_of(shape))


def _counted(shape: TreeShape, models: Models) -> DraftSource:
    return drafts.NGram(models.ngrams, tree=shape, sampled=shape.num_kept is None)


def _of_length(length: LengthPolicy, models: Models) -> DraftSource:
    return drafts.SmallTransformer(models.model, length=length)


# Every row above as a source of some models: chains of three tokens, or as long as a policy says, and larger trees.
WAYS: dict[str, Callable[[Models], DraftSource]] = {
    **{f"{name}: {way}": partial(make, k=3) for name, ways in SOURCES.items() for way, make in ways.items()},
    **{f"{name}: {way}": make for name, ways in OTHERS.items() for way, make in ways.items()},
    **{f"policy: {name}": partial(_of_length, policy) for name, (policy, _) in POLICIES.items()},
    **{f"shape: {name}": partial(_drafted, shape) for name, shape in LARGE_SHAPES.items()},
    **{f"n-gram shape: {name}": partial(_counted, shape) for name, shape in LARGE_SHAPES.items()},
}
