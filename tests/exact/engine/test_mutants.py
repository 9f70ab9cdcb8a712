"""The bugs of docs/internals/pitfalls.md put back, one function each.

The program still runs, and a named statistic moves.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import drafts.early_exit
import drafts.lookahead
import drafts.merged
import drafts.other_vocabulary
import drafts.staged
import drafts.suffix_automaton
import oracles.tabular
import oracles.transformer.attention
import oracles.transformer.eager
import specdec.cache
import specdec.drafting.chain_sampler
import specdec.drafting.lengths.heuristic
import specdec.drafting.lent_cache
import specdec.drafting.levels
import specdec.drafting.model
import specdec.drafting.spelling
import specdec.drafting.tree_sampler
import specdec.engine.checks
import specdec.engine.decoder
import specdec.engine.outcome
import specdec.engine.shared_budget
import specdec.engine.slots
import specdec.engine.state
import specdec.engine.verdict
import specdec.engine.verification
import specdec.kernels.filters
import specdec.prompts.chat.hiding
import specdec.sampling.randomness
import specdec.sampling.warping
import specdec.verify.block
import specdec.verify.chain_verdicts
import specdec.verify.multi_draft
import specdec.verify.sample_and_match
import specdec.verify.traversal
import specdec.verify.tree_verdicts
from specdec.contracts import Randomness
from specdec.drafting.shapes import ReRanked
from specdec.laws import Laws
from tests.support import statistics as by
from tests.support.backends import laws_by
from tests.support.drafting import sources
from tests.support.statistics import RIGHT, STATISTICS, WRONG


@dataclass(frozen=True)
class Renamed(Randomness):
    """Randomness whose draws all bear one name."""

    inner: Any
    purpose: str | None = None

    @property
    def coupled(self):
        return self.inner.coupled

    def select(self, rows):
        return Renamed(self.inner.select(rows), self.purpose)

    def extend(self, part):
        return Renamed(self.inner.extend(part), self.purpose)

    def choose(self, laws, node, depth, purpose, k=1):
        return self.inner.choose(laws, 0, depth, self.purpose or purpose, k)


@dataclass(frozen=True)
class Ascending(Renamed):
    """Randomness whose draws without replacement are handed over in ascending order."""

    def choose(self, laws, node, depth, purpose, k=1):
        drawn = self.inner.choose(laws, node, depth, purpose, k)
        return drawn.sort(dim=-1).values if k > 1 else drawn


def reorders_siblings(original):
    return lambda self, ids, depth, nodes, randomness: original(self, ids, depth, nodes, Ascending(randomness))


def believes_its_own_token(original):
    return lambda draft, belief: (original(draft, belief)[0],) * 2


def removes_siblings_of_any_source(original):
    return lambda draft, size: original(dataclasses.replace(draft, source=None), size)


def never_becomes_the_residual(original):
    return lambda p, q: (p, original(p, q)[1])


def stops_at_the_first_rejection(original):
    def call(stands, last):
        reached = torch.nn.functional.pad(stands[:, 1:].cumprod(1), (1, 0), value=1.0)
        return reached * (1 - torch.nn.functional.pad(stands[:, 1:], (0, 1)))

    return call


def forgets_the_weight(original):
    return lambda p, q, weight: original(p, q, torch.ones_like(weight))


def carries_no_weight_on(original):
    def call(draft, target):
        p, q = target.probs_of(draft.tokens), draft.node_laws.probs_of(draft.tokens)
        return torch.nn.functional.pad((p / q).clamp(max=1), (1, 0), value=1.0)

    return call


def removes_siblings_without_renormalising(original):
    def call(law, ids, removed):
        gone = torch.zeros_like(law.dense()).scatter_reduce_(-1, ids, removed.double(), "amax")
        return Laws.from_probs(law.dense() * (1 - gone))

    return call


@dataclass(frozen=True)
class OwnersStream(Renamed):
    """The stream of whoever owns a staged draft, in every stage, under the owner's names."""

    def select(self, rows):
        return OwnersStream(self.inner.select(rows))

    def extend(self, part):
        return self

    def choose(self, laws, node, depth, purpose, k=1):
        return self.inner.choose(laws, node, depth, purpose.removeprefix("inner "), k)


def shares_its_owners_stream(original):
    def call(self, rows, context, budget, randomness):
        return original(self, rows, context, budget, OwnersStream(dataclasses.replace(randomness, path=())))

    return call


def drops_an_unlikely_last_token(original):
    def call(self, *args):
        draft = original(self, *args)
        if not draft.width:
            return draft
        last = (draft.num_nodes - 1).clamp(min=0)
        likely = draft.node_laws.probs_of(draft.tokens).gather(1, last.unsqueeze(1)).squeeze(1) > 0.4
        return dataclasses.replace(draft, num_nodes=torch.where(likely, draft.num_nodes, last))

    return call


def declares_other_laws(original):
    def call(self, *args):
        draft = original(self, *args)
        hot = draft.node_laws.dense(3).double() ** 0.5
        return dataclasses.replace(draft, laws=Laws.from_probs(hot / hot.sum(-1, keepdim=True)))

    return call


def declares_soft_laws_for_greedy_tokens(original):
    def call(self, *args):
        draft = original(self, *args)
        soft = 0.5 * torch.nn.functional.one_hot(draft.tokens, 3).double() + 0.5 / 3
        return dataclasses.replace(draft, laws=Laws.from_probs(soft))

    return call


def drops_unlikely_tokens(original):
    def call(self, *args):
        draft = original(self, *args)
        kept = (draft.node_laws.probs_of(draft.tokens) > 0.4).long().cumprod(1).sum(1)
        return dataclasses.replace(draft, num_nodes=torch.minimum(draft.num_nodes, kept))

    return call


def drops_the_token_it_stops_at(original):
    return lambda length, limits, depth, goes_on: original(length, limits, depth - 1, goes_on)


def remembers_the_last_request(original):
    return lambda self, rows: original(self, rows[self.length[rows] == 0])


def reuses_one_number_for_all_positions(original):
    def call(self, rows, context, limits, randomness, *ways):
        return original(self, rows, context, limits, Renamed(randomness), *ways)

    return call


def shares_numbers_with_the_draft(original):
    def call(rule, draft, scores, frame, *others):
        shared = Renamed(frame.randomness.extend("draft"), "draft")
        return original(rule, draft, scores, frame._replace(randomness=shared), *others)

    return call


def replays_numbers_in_later_steps(original):
    def call(self, state):
        frame = original(self, state)
        keys = state.keys[frame.seated.requests]
        return frame._replace(randomness=self.randomness(keys, np.zeros_like(keys)))

    return call


def keys_by_row(original):
    def call(self, state):
        frame = original(self, state)
        keys = specdec.sampling.randomness.seed_keys([int(row) for row in frame.seated.rows])
        return frame._replace(randomness=self.randomness(keys, frame.context.num_committed))

    return call


def one_shared_offset(original):
    def call(self, rows, path, num_kept):
        return original(self, rows, path, np.full_like(num_kept, num_kept.min()))

    return call


def keeps_the_first_nodes(original):
    return lambda self, rows, path, num_kept: original(self, rows, None, num_kept)


def stops_one_token_early(original):
    def call(block, counts, eos_ids, ignore):
        first = original(block, counts, eos_ids, ignore)
        return np.where(first < counts - 1, block.shape[1], first)

    return call


def sees_stops_in_one_block_only(original):
    return lambda request, tokenizer, output, num_new: original(request, tokenizer, output[-num_new:], num_new)


def siblings_see_each_other(original):
    """Each node of a pass sees every node before it; the engine's own tree stays as it is."""

    class Broken(original):
        @property
        def ancestors(self):
            batch, size = self.tokens.shape
            return torch.ones(size, size, dtype=torch.bool).tril().expand(batch, -1, -1)

    return Broken


def position_by_index(original):
    class Broken(original):
        @property
        def depth(self):
            return torch.arange(self.size).expand(self.tokens.shape)

    return Broken


def reads_the_next_row(original):
    return lambda self, row: original(self, (row + 1) % len(self.occupants))


def leaves_one_stale_token(original):
    return lambda self, rows: self.truncate(rows, np.minimum(self.lengths[rows], 1))


def prefills_the_whole_prompt(original):
    return lambda oracle, cache, rows, prompts, needs=None: original(
        oracle, cache, rows, [np.append(prompt, prompt[-1]) for prompt in prompts], needs
    )


def warps_the_last_node_only(original):
    def call(self, adjusted, temperature=None):
        warped = original(self, adjusted, temperature).dense(adjusted.shape[-1])
        plain = adjusted.softmax(-1)
        return Laws.from_probs(torch.cat([plain[:, :-1], warped[:, -1:].to(plain.dtype)], dim=1))

    return call


def almost_greedy(original):
    def call(params, grammars):
        return original([dataclasses.replace(p, temperature=p.temperature or 1e-5) for p in params], grammars)

    return staticmethod(call)


def forgets_the_last_drafted_token(original):
    def call(self, rows, context, live, depth=1):
        ids = context.ids.copy()
        for row in live[self.cache.lengths[rows[live]] == context.num_committed[live] - 2]:
            ids[row, context.num_committed[row] - 2] = 0
        return original(self, rows, dataclasses.replace(context, ids=ids), live)

    return call


def never_takes_back(original):
    return lambda self, rows, keep, new_ids, scores=None: self.read_back()


def verifies_from_the_stream_of_the_node_before(original):
    def call(self, *args):
        draft = original(self, *args)
        if draft.resume is None:
            return draft
        stream = draft.resume.stream
        shifted = torch.cat([stream[:, :1], stream[:, :-1]], dim=1)
        return dataclasses.replace(draft, resume=dataclasses.replace(draft.resume, stream=shifted))

    return call


def leaves_the_last_drafted_token_out(original):
    def call(self, tokens, live):
        cache = self.lent.cache
        written = cache.payload[: self.num_layers].clone()
        original(self, tokens, live)
        if len(self.streams) > 1:
            cache.payload[: self.num_layers] = written

    return call


def keeps_the_keys_of_rejected_tokens(original):
    def call(self, *_):
        rejected = np.minimum(self.cache.lengths[self.rows] - self.start, 1)
        self.cache.truncate(self.rows, self.start + rejected)

    return call


def keep_top_p_without_the_crossing_id(original):
    def call(probs, top_p):
        ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
        inside = ordered.cumsum(-1) <= top_p.unsqueeze(-1)
        inside[..., 0] = True
        return torch.zeros_like(probs).scatter_(-1, ids, inside.to(probs.dtype))

    return call


@functools.cache
def by_torch(statistic):
    """Return a statistic of the torch operations and of rules by themselves: compiled code has mutants of its own."""

    @functools.wraps(statistic)
    def call():
        with laws_by("torch"):
            return statistic()

    return call


def accepts_at_zero(original):
    return lambda weights, uniform: (weights.cumsum(-1) >= uniform.unsqueeze(-1)).long().argmax(-1)


def counts_twins_twice(original):
    return lambda draft: draft.is_verified


def guesses_see_the_window(original):
    """Each node also sees the other branches above its own depth, at their positions."""

    def call(self):
        depth = self.tree.depth
        self.tree.__dict__["ancestors"] = self.tree.ancestors | (depth.unsqueeze(1) < depth.unsqueeze(2))
        return original(self)

    return call


def verifies_scouts(original):
    return lambda draft: original(dataclasses.replace(draft, is_scout=None))


def keeps_the_best_of_the_drawn(original):
    return lambda levels, shape, max_nodes: original(levels, ReRanked(2, 2, 2), max_nodes)


def hides_that_siblings_were_removed(original):
    return lambda *args: dataclasses.replace(original(*args), without_replacement=None)


def gives_each_child_another_parents_law(original):
    return lambda self, parents: original(self, parents.flip(1))


def hands_siblings_over_in_ascending_order(original):
    return lambda self, families, is_only, depth, randomness: original(
        self, families, is_only, depth, Ascending(randomness)
    )


def grows_on_the_pending_token(original):
    def call(self, rows, frontier):
        return original(self, rows, dataclasses.replace(frontier, parents=np.full_like(frontier.parents, -1)))

    return call


def cached_siblings_are_seen(original):
    return property(lambda self: original.fget(self) | (torch.arange(self.tree.size) < self.num_cached))


def hides_nothing(original):
    return lambda self, messages, private: (original(self, messages, private)[0], [messages])


def hides_whole_tokens_alone(original):
    def ways(self, messages, private):
        back, hidden = original(self, messages, private)
        return back, list(hidden)[-1:]

    return ways


def remembers_at_once(original):
    def call(self, rows):
        original(self, rows)
        self.close()
        self.store = specdec.drafting.Automaton(one for output in self.source._outputs for one in (*output, -1))

    return call


def drafts_pieces_that_the_model_lacks(original):
    return lambda *arguments: original(*arguments).clamp(min=-3.0)


def indexes_laws_by_the_models_ids(original):
    return lambda logits, *_: logits


def keeps_what_was_read(original):
    def call(self, spelled):
        stable = self.stable
        original(self, spelled)
        self.stable = min(stable, len(self.own))

    return call


@dataclass(frozen=True)
class Mutant:
    """One function replaced, and the statistic that tells."""

    pitfall: str
    owner: Any
    name: str
    make: Callable[[Any], Any]
    statistic: Callable[[], float]


SAMPLER, SESSION = specdec.drafting.chain_sampler.ChainSampler, specdec.drafting.model.DraftModel
HEURISTIC = specdec.drafting.lengths.heuristic._Session
DECODER, CACHE = specdec.engine.decoder.SpeculativeDecoder, specdec.cache.PagedKVCache
BOOKS = specdec.cache.SlotCache
WARPING, FILTERS = specdec.sampling.warping, specdec.kernels.filters
MATCH, ORACLE = specdec.verify.sample_and_match, oracles.transformer.eager
MULTI, LOWER = specdec.verify.multi_draft, drafts.early_exit._LowerLayers
BLOCK, CHAINS = specdec.verify.block, specdec.verify.chain_verdicts
UPWARDS, TREES = specdec.verify.traversal, specdec.verify.tree_verdicts
LENT = specdec.drafting.lent_cache.LentCache
GROWTH, NODES = specdec.drafting.tree_sampler, specdec.drafting.levels.Candidates
STAGED, EXITS = drafts.staged._Session, drafts.early_exit._Session
OTHER, SPELLING = drafts.other_vocabulary, specdec.drafting.spelling.Spelling
SUFFIXES = drafts.suffix_automaton._Session
HIDING, BUDGET = specdec.prompts.chat.hiding.Hiding, specdec.engine.shared_budget
ATTENTION = oracles.transformer.attention.CachedAttention
# Of torch operations and of rules by themselves: see ``by_torch``.
OF_TORCH = [
    Mutant("10", specdec.engine.verdict, "decide", shares_numbers_with_the_draft, by.law_with_a_sampled_model),
    Mutant("11", CHAINS, "residual", lambda _: lambda p, q, weight: p, by.law_with_a_sampled_model),
    Mutant("11", CHAINS, "residual", lambda _: lambda p, q, weight: p, by.law_with_a_greedy_model),
    Mutant("11", MATCH, "excluding", lambda _: lambda p, ids, mask: p, by.law_with_trees),
    Mutant("11", MATCH, "_eligible", counts_twins_twice, by.law_with_trees_and_scouts),
    Mutant("11", MULTI, "residual_probs", never_becomes_the_residual, by.law_with_trees_judged_by_their_laws),
    Mutant("11", MULTI, "residual_probs", never_becomes_the_residual, by.law_with_siblings_without_replacement),
    Mutant("12", TREES, "excluding", removes_siblings_without_renormalising, by.law_with_siblings_without_replacement),
    Mutant("12", TREES, "excluding", lambda _: lambda q, *a: q, by.law_with_siblings_without_replacement),
    Mutant(
        "12", MULTI, "conditional_laws", removes_siblings_of_any_source, by.law_with_two_sources_of_distinct_siblings
    ),
    Mutant("13", BLOCK, "_stop_at_the_longest", stops_at_the_first_rejection, by.law_with_a_block),
    Mutant("13", BLOCK, "_weights", carries_no_weight_on, by.law_with_a_block),
    Mutant("13", CHAINS, "residual", lambda f: lambda p, q, weight: f(p, q), by.law_with_a_block),
    Mutant("13", UPWARDS, "_leave", forgets_the_weight, by.law_with_a_tree_asked_upwards),
    Mutant("31", specdec.engine.outcome, "first_eos", stops_one_token_early, by.law_with_eos),
    Mutant("39", WARPING.BatchWarping, "laws_of", warps_the_last_node_only, by.law_with_top_p),
    Mutant("45b", FILTERS, "keep_top_p", keep_top_p_without_the_crossing_id, by.law_with_top_p),
]
MUTANTS = [
    *(dataclasses.replace(mutant, statistic=by_torch(mutant.statistic)) for mutant in OF_TORCH),
    Mutant("1", SAMPLER, "__call__", declares_other_laws, by.law_with_a_sampled_model),
    Mutant("1", SAMPLER, "__call__", declares_other_laws, by.faults_of_the_draft),
    Mutant("1", NODES, "laws_below", gives_each_child_another_parents_law, by.laws_of_a_tree_that_are_not_its_paths),
    Mutant("2", SAMPLER, "__call__", declares_soft_laws_for_greedy_tokens, by.law_with_a_greedy_model),
    Mutant("3", SAMPLER, "__call__", drops_unlikely_tokens, by.law_with_a_sampled_model),
    Mutant("3", SAMPLER, "__call__", drops_unlikely_tokens, by.faults_of_the_draft),
    Mutant("3", GROWTH, "_assemble", keeps_the_best_of_the_drawn, by.law_with_a_grown_tree),
    Mutant("3", STAGED, "propose", drops_an_unlikely_last_token, by.law_with_a_staged_model),
    Mutant("3", specdec.drafting.chain_sampler, "cut_limits", drops_the_token_it_stops_at, by.law_with_a_threshold),
    Mutant("4", OTHER, "_restrict", drafts_pieces_that_the_model_lacks, by.laws_unlike_those_of_the_common_pieces),
    Mutant("4", OTHER, "_restrict", indexes_laws_by_the_models_ids, by.laws_unlike_those_of_the_common_pieces),
    Mutant("5b", sources.SiblingTrees, "_grow", reorders_siblings, by.law_with_siblings_without_replacement),
    Mutant("5b", NODES, "_ids", hands_siblings_over_in_ascending_order, by.law_with_a_drawn_tree),
    Mutant("6", specdec.kernels.draws, "first_above", accepts_at_zero, by.draws_of_impossible_ids),
    Mutant("8", SAMPLER, "__call__", reuses_one_number_for_all_positions, by.law_with_a_sampled_model),
    Mutant("9", specdec.engine.state, "seed_keys", lambda f: lambda s: f([0] * len(s)), by.equal_neighbours),
    Mutant("10", DECODER, "_frame", replays_numbers_in_later_steps, by.law_with_a_sampled_model),
    Mutant("10", DECODER, "_frame", replays_numbers_in_later_steps, by.law_with_a_block),
    Mutant("10a", drafts.merged, "member_stream", lambda _: lambda r, i: r, by.law_with_two_models_merged),
    Mutant("10a", STAGED, "propose", shares_its_owners_stream, by.law_with_a_staged_model),
    Mutant("10a", drafts.staged, "inner_stream", lambda _: lambda r, i: r, by.law_with_a_staged_model),
    Mutant("12", GROWTH, "_assemble", hides_that_siblings_were_removed, by.law_with_a_drawn_tree),
    Mutant("15", WARPING.ParameterTable, "of", almost_greedy, by.law_of_a_near_tie),
    Mutant("17", specdec.engine.decoder, "prefill", prefills_the_whole_prompt, by.law_with_a_sampled_model),
    Mutant("18", SESSION, "catch_up", forgets_the_last_drafted_token, by.wrong_drafts_of_a_greedy_model),
    Mutant("19", SESSION, "sync", never_takes_back, by.faults_of_the_draft),
    Mutant("19", SESSION, "sync", never_takes_back, by.laws_unlike_those_of_the_common_pieces),
    Mutant("19", SPELLING, "_read_again", keeps_what_was_read, by.laws_unlike_those_of_the_common_pieces),
    Mutant("19a", LENT, "__exit__", keeps_the_keys_of_rejected_tokens, by.law_with_the_oracles_first_layer),
    Mutant("19a", LENT, "__exit__", keeps_the_keys_of_rejected_tokens, by.law_with_a_view_of_the_oracle),
    Mutant("19a", LOWER, "feed", leaves_the_last_drafted_token_out, by.law_with_the_oracles_first_layer),
    Mutant("19a", EXITS, "draft", verifies_from_the_stream_of_the_node_before, by.law_with_the_oracles_first_layer),
    Mutant("20", BOOKS, "commit", one_shared_offset, by.law_with_a_sampled_model),
    Mutant("23", specdec.engine.slots.Slots, "output", reads_the_next_row, by.wrong_greedy_tokens),
    Mutant("24", BOOKS, "reset", leaves_one_stale_token, by.wrong_greedy_tokens),
    Mutant("26", oracles.tabular, "_slots_before", lambda f: lambda s, parents, n: f(s, None, n), by.law_with_trees),
    Mutant("26", ORACLE, "Tree", siblings_see_each_other, by.law_of_a_transformer_with_trees),
    Mutant("26", ORACLE, "Tree", position_by_index, by.law_of_a_transformer_with_trees),
    Mutant("26", SESSION, "grow", grows_on_the_pending_token, by.laws_of_a_tree_that_are_not_its_paths),
    Mutant("26", ATTENTION, "_ancestors", cached_siblings_are_seen, by.scores_of_a_growing_tree_that_move),
    Mutant("27", MATCH, "_eligible", verifies_scouts, by.verified_scouts),
    Mutant("27", ATTENTION, "_make_bias", guesses_see_the_window, by.nodes_of_lookahead_unlike_their_chains),
    Mutant("28", BOOKS, "commit", keeps_the_first_nodes, by.law_with_trees),
    Mutant("28", CACHE, "_gather", lambda _: lambda *a: None, by.law_of_a_transformer_with_trees),
    Mutant("33", specdec.engine.decoder, "first_stop", sees_stops_in_one_block_only, by.law_with_stops),
    Mutant("38", WARPING, "path_mask", lambda f: lambda *a: f(*a) & False, by.law_with_penalties),
    Mutant("38", WARPING, "path_mask", lambda f: lambda *a: f(*a) & False, by.law_with_late_eos),
    Mutant("44", DECODER, "_frame", keys_by_row, by.outputs_that_depend_on_the_batch),
    Mutant("45a", drafts.lookahead.NGramPool, "clear", lambda _: lambda self, rows: None, by.faults_of_lookahead),
    Mutant("45a", HEURISTIC, "begin", remembers_the_last_request, by.lengths_that_depend_on_the_slot),
    Mutant("45a", SUFFIXES, "end", remembers_at_once, by.drafts_from_a_store_that_depend_on_the_batch),
    Mutant("46a", BUDGET, "_beliefs", believes_its_own_token, by.joint_law_under_a_shared_budget),
    Mutant("46g", HIDING, "ways", hides_nothing, by.control_tokens_that_messages_wrote),
    Mutant("46g", HIDING, "ways", hides_whole_tokens_alone, by.control_tokens_that_messages_wrote),
]


# What the statistics give for the right program, which the laws that they keep are made by.
right = functools.cache(lambda statistic: statistic())
# The first of each pitfall; `make exactness` has the others too.
FIRST = {mutant.pitfall: mutant for mutant in reversed(MUTANTS)}


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda statistic: statistic.__name__)
def test_the_statistic_is_zero_for_the_right_program(statistic):
    assert right(statistic) <= RIGHT


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(
            mutant,
            id=f"{mutant.pitfall}-{mutant.name.strip('_')}-{mutant.statistic.__name__}",
            marks=() if mutant in FIRST.values() else pytest.mark.long,
        )
        for mutant in MUTANTS
    ],
)
def test_a_mutant_runs_and_moves_its_statistic(mutant, monkeypatch):
    right(mutant.statistic)
    original = mutant.owner.__dict__[mutant.name]
    function = original.__func__ if isinstance(original, staticmethod) else original
    monkeypatch.setattr(mutant.owner, mutant.name, mutant.make(function))
    # Some verdicts that a mutant breaks are none: the engine would refuse them before the statistic can tell.
    monkeypatch.setattr(specdec.engine.checks, "_broken_verdicts", lambda decision, evidence: {})
    assert mutant.statistic() > WRONG
