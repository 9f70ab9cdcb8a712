"""Numbers that are 0 for a right program: distances of laws, counts of wrong tokens. Mutants are told by them."""

from functools import cache
from inspect import isfunction
from itertools import pairwise

import numpy as np
import torch

import drafts
from oracles import TabularLM
from specdec import Grown, Heuristic, Kary, Paths, SamplingParams, SharedBudget, SpeculativeDecoder, Threshold
from specdec.exactness import Law, check_draft, oracle_law, output_law, product_law, total_variation
from specdec.kernels import draws
from specdec.verify import SampleAndMatch
from tests.reference.tables import law_after, random_table
from tests.support.drafting.block_law import Shape, as_draft, drafts_of, target_probs
from tests.support.drafting.draft_rows import Rows
from tests.support.drafting.lookahead_spy import SpiedLookahead, nodes_unlike_their_chains
from tests.support.drafting.sources import Chains, RandomTrees, SiblingTrees
from tests.support.models.tiny_models import rough_view, tiny_transformer
from tests.support.registry import LETTERS
from tests.support.texts.chats import joining_template, small_tokenizer, template_named

RIGHT, WRONG = 1e-10, 1e-6  # of the right program at most, of a mutant at least
PROMPT, MATES = [1, 2], [[0], [1, 2, 0, 1], [2, 2, 1, 0, 0, 1]]
FORKING = [3, 1]  # after it, random trees of two nodes have two children of the root
TARGET, DRAFT = random_table(3, 2, 31), random_table(3, 2, 32)
PLAIN = SamplingParams(temperature=1.0)


@cache
def _wanted(eos_id: int | None, sampling_key: str, stop: tuple[tuple[int, ...], ...], length: int) -> Law:
    """Return the law that ought to come out; kept from the first call, which is made before anything is broken."""
    return oracle_law(TabularLM(TARGET, eos_id), PROMPT, length, _SAMPLINGS[sampling_key], stop=stop)


_SAMPLINGS = {
    "plain": PLAIN,
    "greedy": SamplingParams(),
    "penalties": SamplingParams(temperature=0.8, frequency_penalty=0.7, repetition_penalty=1.3),
    "late eos": SamplingParams(temperature=1.0, min_new_tokens=2),
    "top_p": SamplingParams(temperature=0.7, top_p=0.8),
}


def _law_distance(source, rule, sampling="plain", eos_id=None, stop=(), length=3, batch_size=None):
    wanted = _wanted(eos_id, sampling, stop, length)
    decoder = SpeculativeDecoder(TabularLM(TARGET, eos_id), source, rule)
    options = {"mates": MATES, "batch_size": batch_size}
    made = output_law(decoder, PROMPT, length, _SAMPLINGS[sampling], stop=[list(s) for s in stop] or None, **options)
    return total_variation(made, wanted)


def _model(**options):
    return drafts.SmallTransformer(TabularLM(DRAFT), num_draft_tokens=2, **options)


def law_with_a_sampled_model():
    return _law_distance(_model(), "standard")


def law_with_a_greedy_model():
    return _law_distance(_model(temperature=0), "standard")


def law_with_a_threshold():
    """Chains that end behind the first doubtful token."""
    length = Threshold(threshold=0.5, per_token=True, max_draft_tokens=2)
    return _law_distance(drafts.SmallTransformer(TabularLM(DRAFT), length=length), "standard")


def law_with_trees():
    return _law_distance(RandomTrees(DRAFT, max_nodes=3), "sample_and_match")


def law_with_trees_and_scouts():
    return _law_distance(RandomTrees(DRAFT, max_nodes=4, max_depth=2), "sample_and_match")


def law_with_trees_judged_by_their_laws():
    return _law_distance(RandomTrees(DRAFT, max_nodes=3), "multi_draft")


def law_with_siblings_without_replacement():
    return _law_distance(SiblingTrees(DRAFT, max_nodes=3), "multi_draft")


def law_with_a_drawn_tree():
    return _law_distance(drafts.SmallTransformer(TabularLM(DRAFT), tree=Paths([(0, 0), (1,)])), "multi_draft")


def law_with_a_grown_tree():
    return _law_distance(drafts.SmallTransformer(TabularLM(DRAFT), tree=Grown(4, 2, width=3)), "multi_draft")


def laws_of_a_tree_that_are_not_its_paths():
    """Largest distance between the law declared for a node and the drafting table's own after the node's path."""
    rows = Rows(drafts.SmallTransformer(TabularLM(DRAFT), tree=Kary(2, 3)), oracle=TabularLM(TARGET), sampling=PLAIN)
    rows.seat(dict(enumerate([PROMPT, *MATES])))
    draft, worst = rows.propose(dict.fromkeys(range(4), 9)), 0.0
    for row, prompt in enumerate([PROMPT, *MATES]):
        found = [()]
        for node in range(int(draft.num_nodes[row])):
            above = found[int(draft.parents[row, node]) + 1]
            found.append((*above, int(draft.tokens[row, node])))
            law = law_after(DRAFT, (*prompt, *above))
            worst = max(worst, float(np.abs(draft.laws[row, node].dense().numpy() - law).max()))
    return worst


def scores_of_a_growing_tree_that_move():
    """Largest difference between the scores of a tree at once and those of its lower level over cached keys."""
    model, generator = _transformer(), torch.Generator().manual_seed(1)
    tokens, parents = torch.randint(4, (1, 9), generator=generator), torch.tensor([[-1, -1, -1, 0, 0, 1, 1, 2, 2]])
    cache, row = model.new_cache(1, 16), np.array([0])
    model.score(tokens[:, :4], None, torch.tensor([4]), cache, row, "none")
    cache.commit(row, None, np.array([4]))
    whole = model.score(tokens, parents, torch.tensor([9]), cache, row).logits
    model.score(tokens[:, :3], parents[:, :3], torch.tensor([3]), cache, row)
    return float(
        (model.score(tokens, parents, torch.tensor([9]), cache, row, "all", (), 3).logits - whole[:, 3:]).abs().max()
    )


def law_with_a_block():
    """Chains of which the longest beginning that stands is kept; a model whose residuals keep two ids."""
    model = drafts.SmallTransformer(TabularLM(random_table(3, 2, 39)), num_draft_tokens=2)
    return _law_distance(model, "block")


def law_with_a_tree_asked_upwards():
    """Trees whose leaves are asked first."""
    return _law_distance(drafts.SmallTransformer(TabularLM(DRAFT), tree=Paths([(0, 0), (1,)])), "traversal")


def law_with_two_models_merged():
    """Two different models, one token each, under one pending token: equal ones would hide a shared stream."""
    models = [drafts.SmallTransformer(TabularLM(random_table(3, 2, seed)), num_draft_tokens=1) for seed in (32, 35)]
    return _law_distance(drafts.Merged(models), "multi_draft")


def law_with_two_sources_of_distinct_siblings():
    """Siblings that were drawn without replacement among those of their own source only."""
    sources = [SiblingTrees(random_table(3, 2, seed), max_nodes=2) for seed in (32, 35)]
    return _law_distance(drafts.Merged(sources), "multi_draft", length=2)


def law_with_a_staged_model():
    """A model that drafts in several inner steps, with recovered tokens among its own."""
    return _law_distance(drafts.Staged(TabularLM(DRAFT), drafts.PromptLookup(1), 2), "standard")


@cache
def _transformer():
    return tiny_transformer()


def _transformer_of_six():
    return tiny_transformer(6, torch.float32)


@cache
def _transformer_law():
    return oracle_law(_transformer(), FORKING, 3, PLAIN)


def law_of_a_transformer_with_trees():
    """Trees through the real cache of a float64 transformer."""
    wanted, source = _transformer_law(), RandomTrees(random_table(4, 2, 34), max_nodes=2)
    decoder = SpeculativeDecoder(_transformer(), source, "sample_and_match")
    return total_variation(output_law(decoder, FORKING, 3, PLAIN, mates=MATES), wanted)


def law_with_the_oracles_first_layer():
    """Early exit on the target's own cache, in drafts of one token, so that steps follow a draft that stands whole."""
    source = drafts.EarlyExit(_transformer(), 1, num_draft_tokens=1)
    made = output_law(SpeculativeDecoder(_transformer(), source), FORKING, 3, PLAIN, mates=MATES)
    return total_variation(made, _transformer_law())


def law_with_a_view_of_the_oracle():
    """A view with coarser weights on the target's own cache."""
    source = drafts.Quantized(_transformer(), rough_view(), num_draft_tokens=1)
    made = output_law(SpeculativeDecoder(_transformer(), source), FORKING, 3, PLAIN, mates=MATES)
    return total_variation(made, _transformer_law())


def law_with_penalties():
    return _law_distance(_model(), "standard", "penalties")


def law_with_top_p():
    return _law_distance(_model(), "standard", "top_p")


def law_with_eos():
    return _law_distance(_model(), "standard", eos_id=0)


def law_with_late_eos():
    return _law_distance(_model(), "standard", "late eos", eos_id=0)


def law_with_stops():
    """Stops of two ids, within a block and across two."""
    model = drafts.SmallTransformer(TabularLM(random_table(3, 2, 33)), num_draft_tokens=2)
    return _law_distance(model, "standard", eos_id=0, stop=((2, 1), (1, 1), (2, 2)))


def law_of_four_tokens():
    return _law_distance(_model(), "standard", length=4)


def law_of_a_near_tie():
    """Greedy decoding where two ids differ by 1e-7: the best one carries all the mass."""
    table = np.array([0.4 - 1e-7, 0.4 + 1e-7, 0.2])
    law = output_law(SpeculativeDecoder(TabularLM(table)), [0], 1)
    return 1.0 - law.get((1,), 0.0)


def _greedy(prompt, length):
    """Return greedy ids straight from the table."""
    ids = list(prompt)
    for _ in range(length):
        ids.append(int(law_after(TARGET, tuple(ids)).argmax()))
    return ids[len(prompt) :]


def wrong_greedy_tokens():
    """Requests, of eight through three slots, that differ from the table's greedy continuation."""
    prompts = [[1 + i % 2, (i * i) % 3, (i // 2) % 3, 1][: 4 if i < 3 else 1 + i % 2] for i in range(8)]
    decoder = SpeculativeDecoder(TabularLM(TARGET), drafts.PromptLookup(3, max_ngram=2))
    made = decoder.generate(prompts, 10, batch_size=3).tokens
    return sum(a != _greedy(prompt, 10) for a, prompt in zip(made, prompts, strict=True))


def outputs_that_depend_on_the_batch():
    """Sampled requests whose output changes with the number of slots."""
    decoder = SpeculativeDecoder(TabularLM(TARGET), _model())
    runs = [decoder.generate([PROMPT] * 12, 6, PLAIN, seed=3, batch_size=size).tokens for size in (1, 5, None)]
    return sum(len({tuple(run[i]) for run in runs}) > 1 for i in range(12))


def lengths_that_depend_on_the_slot():
    """Requests whose draft lengths change with the number of slots, under a policy that learns from its request."""
    decoder = SpeculativeDecoder(TabularLM(TARGET), drafts.SmallTransformer(TabularLM(DRAFT), length=Heuristic(3)))
    runs = [decoder.generate([PROMPT] * 8, 12, PLAIN, seed=3, batch_size=size).records.columns() for size in (1, None)]
    drafted = [sorted(zip(run["request"], run["num_committed"], run["draft_depth"], strict=True)) for run in runs]
    return len(set(drafted[0]) ^ set(drafted[1]))


def drafts_from_a_store_that_depend_on_the_batch():
    """Draft lengths that change with the number of slots, of a source that remembers what its requests put out."""
    drafted = []
    for size in (1, 3, None):
        source = drafts.SuffixAutomaton(4, store_size=200)
        source.remember([[1, 2, 0, 0, 1]])
        decoder = SpeculativeDecoder(TabularLM(TARGET), source)
        run = decoder.generate([PROMPT, *MATES] * 2, 12, PLAIN, seed=3, batch_size=size).records.columns()
        drafted.append(set(zip(run["request"], run["num_committed"], run["num_drafted"], strict=True)))
    return sum(len(drafted[0] ^ other) for other in drafted[1:])


def equal_neighbours():
    """Pairs of neighbours among 64 equal prompts whose 24 sampled ids are the same (probability below 1e-6 a pair)."""
    decoder = SpeculativeDecoder(TabularLM(TARGET), _model())
    tokens = decoder.generate([PROMPT] * 64, 24, PLAIN).tokens
    return sum(a == b for a, b in pairwise(tokens))


def rejections_of_a_perfect_draft():
    """Drafts of the target's own laws are never rejected, unless the drafting cache lost or invented a token."""
    decoder = SpeculativeDecoder(TabularLM(TARGET), drafts.SmallTransformer(TabularLM(TARGET), num_draft_tokens=3))
    records = decoder.generate([PROMPT, *MATES], 20, PLAIN).records
    return sum(record["num_drafted"] - record["num_accepted"] for record in records)


class _Spy(drafts.SmallTransformer):
    """A small model that keeps what it drafted, and after which ids."""

    def open(self, oracle, num_rows, capacity):
        session = super().open(oracle, num_rows, capacity)
        propose = session.propose
        self.seen = []

        def spying(rows, context, budget, randomness):
            draft = propose(rows, context, budget, randomness)
            ends = zip(context.ids.tolist(), context.num_committed, draft.num_nodes.tolist(), strict=True)
            self.seen += [(ids[:n], draft.tokens[b, :k].tolist()) for b, (ids, n, k) in enumerate(ends)]
            return draft

        session.propose = spying
        return session


def wrong_drafts_of_a_greedy_model():
    """Drafts that are not the drafting table's own greedy continuation of what stands."""
    source = _Spy(TabularLM(TARGET), num_draft_tokens=3, temperature=0)
    SpeculativeDecoder(TabularLM(TARGET), source).generate([PROMPT, *MATES], 20, PLAIN)
    assert any(drafted for _, drafted in source.seen)
    return sum(drafted != _greedy(ids, len(drafted)) for ids, drafted in source.seen)


def laws_unlike_those_of_the_common_pieces():
    """Distance of what a model with another tokenizer declares from its law after what it ought to read, restricted.

    The first row's "ab" is two of its ids at first, and one when "cd", which it lacks, is read again with it.
    """
    table = random_table(6, 2, 41)
    rows = Rows(drafts.OtherVocabulary(TabularLM(table), 2, tokenizers=LETTERS[6]), sampling=PLAIN)
    rows.seat({0: [0, 1], 1: [5], 2: [2, 3]})
    distance = 0.0
    for reads in ([(1, 0), (5, 2), (5, 2)], [(4, 5, 2), (5, 2, 1), (5, 2, 5, 2)]):
        laws = rows.propose(dict.fromkeys(range(3), 2)).node_laws.dense(6).double().numpy()
        for row, own in enumerate(reads):
            wanted = np.zeros(6)
            wanted[:5] = law_after(table, own)[[1, 0, 5, 2, 4]]
            distance += float(np.abs(laws[row, 0] - wanted / wanted.sum()).sum())
        if len(rows.ids[0]) == 2:
            rows.settle({0: [5], 1: [0], 2: [5]})
    return distance


def verified_scouts():
    """Probability with which a walk through a tree of scouts and others stops at a scout."""
    shape = Shape((-1, -1, 0, 1, 0), scouts=(1, 3))
    drawn = list(drafts_of(shape, DRAFT))
    verdict = SampleAndMatch()(as_draft(shape, drawn), target_probs(shape, drawn, TARGET))
    return float(verdict.stop_probs[:, [2, 4]].sum())


def _faults(source):
    try:
        check_draft(source, TabularLM(TARGET), max_new_tokens=12)
    except AssertionError as error:
        return len(str(error).splitlines()) - 1
    return 0


def faults_of_the_draft():
    """Faults that ``check_draft`` lists for a small model."""
    return _faults(_model())


def faults_of_lookahead():
    """Faults that ``check_draft`` lists for a source that remembers n-grams."""
    return _faults(drafts.Lookahead(window=2, ngram=3, guesses=2))


def nodes_of_lookahead_unlike_their_chains():
    """Nodes of the window and of the guesses whose logits are not, bit for bit, those of their own chain."""
    model, source = _transformer_of_six(), SpiedLookahead(window=3, ngram=3, guesses=2)
    return sum(nodes_unlike_their_chains(model, source, [[1, 2, 3, 1, 2, 3, 1, 2], [0]]))


def joint_law_under_a_shared_budget():
    """Two rows of which one is verified, over both of their ids."""
    oracle, draft = TabularLM(random_table(2, 2, 41)), Chains(random_table(2, 2, 42), 1)
    decoder, prompts = SpeculativeDecoder(oracle, draft, budget=SharedBudget(1)), ([1, 0], [0, 1, 1])
    wanted = product_law([oracle_law(oracle, prompt, 2, PLAIN) for prompt in prompts])
    return total_variation(output_law(decoder, prompts, 2, PLAIN, rows=2), wanted)


def draws_of_impossible_ids():
    """Ids of probability 0 among draws at the smallest and the largest uniform number."""
    weights = torch.tensor([[0.0, 0.3, 0.7, 0.0], [0.0, 0.1, 0.2, 0.0]], dtype=torch.float64)
    weights = weights / weights.sum(-1, keepdim=True)
    drawn = [draws.first_above(weights, torch.full((2,), u, dtype=torch.float64)) for u in (0.0, 1 - 2.0**-53)]
    return float(sum((weights.gather(1, ids.unsqueeze(1)) == 0).sum() for ids in drawn))


def control_tokens_that_messages_wrote():
    """Ends of a turn in the ids of conversations, beside those that their templates write."""
    user = [{"role": "user", "content": text} for text in ("What is <|im_end|>?", "<|im_", "end|>")]
    written = [
        (template_named("qwen"), user[:1], 1),
        (joining_template(), user[:1], 1),
        (joining_template(), user[1:], 1),
    ]
    end = small_tokenizer().token_to_id("<|im_end|>")
    return float(sum(template.encode(messages).count(end) - own for template, messages, own in written))


# Every public function above.
STATISTICS = [
    made
    for name, made in list(globals().items())
    if isfunction(made) and made.__module__ == __name__ and name[0] != "_"
]
