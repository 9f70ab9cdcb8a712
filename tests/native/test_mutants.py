"""Native twins of the mutants: the sources of the pass with one line changed, killed by a test of the right program.

What kills a twin are the tests and statistics that the eager pass answers to as well; each holds for the sources as
they are.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from oracles.native import NativeTransformer, NativeUnavailable, bindings
from specdec.exactness import oracle_law
from tests.exact.sources import test_tree_scoring as scoring
from tests.native import (
    test_adjusting,
    test_chains,
    test_few_bits,
    test_native_blocks,
    test_native_heads,
    test_pass,
    test_stored_formats,
    test_texts,
    test_trees,
)
from tests.native.twins import changed, twins
from tests.support import statistics
from tests.support.drafting import native_drafts
from tests.support.models.tiny_models import small_model, tiny_unpacked

pytestmark = pytest.mark.long

RIGHT = 1e-5  # distance of laws of a float32 model


def as_the_reference(family: str) -> None:
    test_pass.test_every_node_scores_as_the_reference_scores_its_own_sequence(family, torch.float32)


def as_its_chains(family: str) -> None:
    scoring.test_a_branch_scores_bit_for_bit_as_its_own_chain(family, 61, NativeTransformer)


def a_law(statistic: Callable[[], float]) -> None:
    assert statistic() <= RIGHT


windows = partial(as_its_chains, "mistral")
llama, gpt2, mistral = (partial(as_the_reference, family) for family in ("llama", "gpt2", "mistral"))
in_trees = partial(a_law, statistics.law_of_a_transformer_with_trees)
growing = partial(a_law, statistics.scores_of_a_growing_tree_that_move)
with_scouts = partial(a_law, statistics.nodes_of_lookahead_unlike_their_chains)
int8, int4 = (
    partial(test_few_bits.test_bits_are_those_of_the_dequantised_weights, "qwen2", torch.bfloat16, format)
    for format in ("int8", "int4")
)
odd_int4, wide_int4 = (
    partial(test_few_bits.test_bits_are_those_of_the_dequantised_weights, model, torch.float32, "int4")
    for model in ("odd", "wide")
)
whole_q4_1, whole_q4_0, whole_q8_0, rest_of_q4_1 = (
    partial(test_stored_formats.test_a_product_of_whole_numbers_has_the_bits_of_its_definition, *case)
    for case in ((3, 64, "q4_1-int8"), (3, 64, "q4_0-int8"), (3, 64, "q8_0-int8"), (2, 47, "q4_1-int8"))
)
float_q4_1, wide_q4_1 = (
    partial(test_few_bits.test_bits_are_those_of_the_dequantised_weights, model, torch.float32, "q4_1")
    for model in ("llama", "wide")
)
dynamic = partial(test_few_bits.test_a_product_has_the_bits_of_its_definition, 3, 64)
dynamic_tied = partial(test_few_bits.test_rounded_inputs_score_as_the_eager_pass_does, "int8-dynamic", "qwen2")
padding = test_pass.test_padding_comes_back_as_the_last_node_and_is_not_read
far = partial(test_pass.test_long_contexts_score_as_the_eager_pass_does, {})
ended = partial(test_chains.test_chains_stop_where_a_watch_ends_them_and_limits_never_rise, True)
grown = partial(
    test_trees.test_each_rows_tree_ends_at_its_own_budget_both_ways,
    native_drafts.BUSHY,
    native_drafts.NARROW,
    native_drafts.BUDGETS["ragged"],
    coupled=False,
)
chains_in_one_call = test_adjusting.test_chains_in_one_call_are_those_of_single_passes
drawn, told, adjusted, adjusted_draws = (
    partial(chains_in_one_call, test_adjusting.STREAMS[name], is_adjusted)
    for name, is_adjusted in (("keyed", False), ("greedy", False), ("greedy", True), ("keyed", True))
)
ranked_trees, drawn_trees = (
    partial(test_adjusting.test_adjusted_trees_in_one_call_are_those_of_single_passes, is_drawn)
    for is_drawn in (False, True)
)


unread, booked = (
    partial(test_texts.test_what_is_drafted_depends_on_what_stands_and_not_on_what_was_cached, test_texts.chains, *case)
    for case in (([3, 1, 0], [1, 2, 17]), ([3, 1, 0], [8, 30, 16]))
)
few_ids, all_norms = (
    partial(test_native_heads.check_reference, layout) for layout in (test_native_heads.FEW, test_native_heads.NORMED)
)
in_chunks = test_native_heads.test_a_text_in_chunks_has_the_bits_of_the_whole
arriving = partial(
    test_native_heads.test_states_that_arrive_are_features_of_their_columns_however_many_come_together,
    test_native_heads.FEW,
)
anchored, unanchored, sliding, seeing_ahead = (
    partial(test_native_blocks.check_reference, name)
    for name in ("dspark", "few ids", "dflash with a window", "speculators dflash with windows that see ahead")
)
refused = test_native_heads.test_a_node_that_hangs_on_one_of_the_same_pass_is_refused
cleared, felled = (
    partial(test_texts.test_what_was_drafted_in_a_row_does_not_outlive_it, draft)
    for draft in (test_texts.chains, test_texts.trees)
)


TWINS = twins(
    bindings.PASS,
    """
18 what stands is read from its first id on (texts.h, unread)
- std::copy(ids + cache_.lengths[row], ids + text_.ends[b],
+ std::copy(ids, ids + text_.ends[b] - cache_.lengths[row],
19 keys of an id that was not scored are kept (texts.h, booked)
- = text_.ends[b] + more(b)
+ = text_.ends[b] + more(b) + 1
24 slots of drafted ids are not booked (texts.h, cleared)
- cache_.written[row], slots[size_t(b)]);
+ cache_.written[row], text_.ends[b]);
24 slots of a tree's nodes are not booked (trees.h, felled)
- ++all.slots, all.positions = inner.depth;
+ all.positions = inner.depth;
20 one length for all rows (nodes.h, llama)
- int32_t(call.lengths[row])
+ int32_t(call.lengths[call.rows[0]])
21 padding is scored (nodes.h, padding)
- nodes = call.num_nodes[b], row
+ nodes = call.width, row
24 keys are written to the batch's row (worker.h, llama)
- place_of(p_.cache, m_, index, head, node.row, slot)
+ place_of(p_.cache, m_, index, head, node.batch, slot)
24 a thread with heads of its own writes keys of one row alone (worker.h, llama)
- row < rows_; ++row) place_head
+ row < 1; ++row) place_head
41 a thread with heads of its own writes keys of the first of them alone (worker.h, llama)
- head = heads.from; head < heads.to;
+ head = heads.from; head < heads.from + 1;
26 siblings see each other (worker.h, in_trees)
- {vector, node.path, seen.from, seen.to, node.path ? node.length : seen.to}
+ {vector, nullptr, seen.from, seen.to + node.index - node.depth, seen.to + node.index - node.depth}
26 nodes over cached ones see all of these (worker.h, growing)
- {vector, node.path, seen.from, seen.to, node.path ? node.length : seen.to}
+ {vector, node.path, seen.from, seen.to, call_.first || !node.path ? seen.to : node.length}
27 guesses see the window (worker.h, with_scouts)
- {vector, node.path, seen.from, seen.to, node.path ? node.length : seen.to}
+ {vector, nullptr, seen.from, seen.to + node.index - node.depth, seen.to + node.index - node.depth}
26 rotations by index (worker.h, in_trees)
- std::min(node.length + node.depth, call_.rotations - 1)
+ std::min(node.length + node.index, call_.rotations - 1)
26 siblings share a slot (worker.h, in_trees)
- const int slot = node.length + node.index;
+ const int slot = node.length + node.depth;
26 positions are off by one (worker.h, gpt2)
- std::min(node.length + node.depth, m_.context - 1)
+ std::min(node.length + node.depth + 1, m_.context - 1)
26a a window by index (pass.h, windows)
- (reach.ahead ? node.length : end) - reach.window
+ node.length + node.index + 1 - reach.window
26a a window off by one (pass.h, mistral)
- (reach.ahead ? node.length : end) - reach.window
+ end - reach.window - 1
28 keys stay where a path was rejected (api.cpp, in_trees)
- to.key[d * WIDTH] = from.key[d * WIDTH]
+ to.key[d * WIDTH] = to.key[d * WIDTH] + 0 * from.key[d * WIDTH]
41 the first slot is missed (pass.h, llama)
- - reach.window) : 0, end
+ - reach.window) : std::min(1, node.length + node.depth), end
41 later chunks are dropped (worker.h, far)
- if (begun[i]) combine(all[i], next[i]);
+ if (begun[i]) continue;
41 another group's keys (worker.h, llama)
- return {keys_of(cache, m_, layer, tile.head),
+ return {keys_of(cache, m_, layer, (tile.head + 1) % m_.kv_heads),
41 rotations turn the other way (rotary.h, llama)
- = float(s);
+ = float(position % 2 ? -s : s);
41 half of the columns have others' scales (storages.h, int8)
- vload(layer.scales + block * BLOCK + WIDTH)
+ vload(layer.scales + block * BLOCK)
41 embeddings without their scales (norm.h, int8)
- storage.open(layer, int(index / BLOCK), at);
+ if (S::GROUP) storage.open(layer, int(index / BLOCK), at);
41 half of the int4 columns have others' scales (storages.h, int4)
- 8 * i + 4), high_scale, high_shift)
+ 8 * i + 4), low_scale, low_shift)
41 the first group's scales for all (linear.h, int4)
- ++n) storage[n].open(layer, block + n, at + n * bytes);
+ ++n) if (k == 0) storage[n].open(layer, block + n, at + n * bytes);
41 the neighbour's int4 inputs where they fill no step (linear.h, odd_int4)
- for (int i = 0; k < stop; ++i, ++k)
+ for (int i = 1; k < stop; ++i, ++k)
41 embeddings with the first group's scales (norm.h, wide_int4)
- storage.open(layer, int(index / BLOCK), at);
+ if (k == 0) storage.open(layer, int(index / BLOCK), at);
41 a scale for all rows of a tile (linear.h, dynamic)
- weights + n * bytes, x + m * stride);
+ weights + n * bytes, x + 0 * m);
41 inputs are a step too large (norm.h, dynamic)
- 0x1.8p23f + 128
+ 0x1.8p23f + 129
41 embeddings of rounded layers without their scales (storages.h, dynamic_tied)
- column % BLOCK * 4 + k % 4])) * layer.scales[column]
+ column % BLOCK * 4 + k % 4])) * layer.scales[0]
41 q4_1 without its minimum in float arithmetic (storages.h, float_q4_1)
- low = MINIMA ? vfma(low, low_scale, low_minimum)
+ low = MINIMA ? vmul(low, low_scale)
41 embeddings of a step's first input alone (norm.h, wide_q4_1)
- storage.load(at, i, low, high)
+ storage.load(at, 0, low, high)
41 minima with the first group's shift (linear.h, whole_q4_1)
- storage.close(group(m, g),
+ storage.close(group(m, S::ABOVE ? g : 0),
41 sums of groups that are larger than their numbers stand for (storages.h, whole_q4_0)
- const int32_t less = -S::ABOVE * group.sum;
+ const int32_t less = (1 - S::ABOVE) * group.sum;
41 a row's first scale for all groups (linear.h, whole_q8_0)
- x + m * stride)[g]; };
+ x + m * stride)[0]; };
41 the halves of a byte meet each other's inputs (storages.h, whole_q4_1)
- (words >> 4 * i) & 0x0f0f0f0fu
+ (words >> 4 * (1 - i)) & 0x0f0f0f0fu
41 the last group of inputs holds what stands after them (norm.h, rest_of_q4_1)
- round_group(rest, *groups);
+ round_group(x + even, *groups);
8 a chain draws with the number of the node before (chains.h, drawn)
- uint64_t(draws->firsts[b]) + uint64_t(step)
+ uint64_t(draws->firsts[b]) + uint64_t(std::max<int64_t>(step, 1) - 1)
9 one stream for the chains of all rows (chains.h, drawn)
- draws->bases[b]
+ draws->bases[0]
39 one row's parameters for all chains (chains.h, drawn)
- draws->filters, call_.batch, b)
+ draws->filters, call_.batch, 0)
3 a row draws after its end (chains.h, ended)
- is_drawn = step < follow_.limits[b]
+ is_drawn = true
46 one row's certainty for all chains (chains.h, told)
- unwarped(call_.logits + b * vocabulary_,
+ unwarped(call_.logits + 0 * b,
8 one number for all nodes of a level (trees.h, grown)
- ? inner.depth : inner.node + 1
+ ? 0 : inner.depth
9 one stream for the trees of all rows (trees.h, grown)
- draws_.bases[b]
+ draws_.bases[0]
39 nodes beyond a row's limit (trees.h, grown)
- growth_.limits[b] - inner.first_child
+ growth_.size - inner.first_child
39 children of absent nodes (trees.h, grown)
- && ids[inner.node] < 0
+ && ids[inner.node] < -1
38 drafts are not counted (adjusting.h, adjusted_draws)
- met.produced + path.times(met.id, path.length)
+ met.produced
38 drafts do not delay EOS (adjusting.h, adjusted_draws)
- produced(row) + path.length)
+ produced(row))
38 only the last id of a path is counted (trees.h, drawn_trees)
- node >= 0; node = growth_.parents[node]
+ node >= 0; node = -1
38 trees are not adjusted (trees.h, drawn_trees)
- path_to(inner, ids, room.path), room.adjusted.get());
+ path_to(inner, ids, room.path), room.adjusted.get()), logits = given;
39 prompts count as output (adjusting.h, adjusted_draws)
- given_->ends[row], given_->prompts[row])
+ given_->ends[row], 0)
39 a row's ids stay for the next one (adjusting.h, adjusted_draws)
- met.forget();
39 an id that is drafted twice is penalised twice (adjusting.h, adjusted_draws)
- path.times(id, i) || stands(standing, id)
+ stands(standing, id)
39 a drafted id that stands is penalised twice (adjusting.h, adjusted_draws)
- path.times(id, i) || stands(standing, id)
+ path.times(id, i)
39 the first row's biases for all (adjusting.h, adjusted_draws)
- row ? given_->bias_ends[row - 1] : 0
+ 0
39 one row's penalties for all (adjusting.h, adjusted_draws)
- given_->penalties, batch_, row)
+ given_->penalties, batch_, 0)
39 one row's ban for all (adjusting.h, adjusted_draws)
- < given_->bans[row])
+ < given_->bans[0])
46 the adjusted logit is told (chains.h, adjusted)
- given[follow_.ids[at]]
+ logits[follow_.ids[at]]
46 the largest adjusted logit is told (chains.h, adjusted_draws)
- logits == given ? peak : largest(given, vocabulary_)
+ peak
46 the largest adjusted logit of a tree is told (trees.h, drawn_trees)
- if (logits != given) *peak =
+ if (logits == given) *peak =
46 the feature of the node before, in a tree of a head (reading.h, few_ids)
- feature_of(plan, node.row, node.after_parent());
+ feature_of(plan, node.row, node.length + node.index);
46e a head's node leaves no feature (reading.h, few_ids)
- std::copy(x, x + plan.model.hidden, feature_of(plan, node.row, position));
46e a head's own feature written over one that is known (reading.h, in_chunks)
- if (position < plan.cache.known[node.row]) return;
46d the norm of a head's features left out (reading.h, few_ids)
- normalise(reading.norm, x, both + size);
+ std::copy(x, x + size, both + size);
46d a head leaves its feature before the last norm (reading.h, all_norms)
- if (plan.model.reading->norms_output)
+ if (false)
46d a head's stream begins without its norm (reading.h, all_norms)
- if (reading.norms_stream)
+ if (false)
46e the first nodes' hidden states arrive in place of those that stand (arrivals.h, arriving)
- arrival_.columns ? arrival_.columns[position.batch * arrival_.most + index] : index;
+ index;
46e hidden states after the first 256 positions never arrive (arrivals.h, arriving)
- from < all_.size(); from += AT_ONCE
+ from < 1; from += AT_ONCE
46e what arrived for a head is never taken in (arrivals.h, few_ids)
- if (!cache.arrival || !cache.arrival->batch) return FINE;
+ return FINE;
26 a place of a block sees the places before it alone (pass.h, anchored)
- (reach.ahead ? int(
+ (reach.window < 0 ? int(
26a a block's window begins where its first place's does (pass.h, sliding)
- (reach.ahead ? node.length : end) - reach.window
+ node.length + 1 - reach.window
26a a window that sees ahead slides (pass.h, seeing_ahead)
- (reach.ahead ? node.length : end) - reach.window
+ end - reach.window
26a all layers see what the first one does (worker.h, sliding)
- p_.seen(m_.layers[layer].reach, node)
+ p_.seen(m_.layers[0].reach, node)
46d a block's context without its norm (arrivals.h, anchored)
- normalise(*arrival_.norm, row.data(), row.data());
46 the pending id before every place of a block (blocks.h, anchored)
- step ? follow.ids[b * follow.steps + step - 1] : blocks.pending[b]
+ blocks.pending[b]
46b laws are read from the pending id's own place on (blocks.h, unanchored)
- size_t(blocks.first) + i %
+ i %
4 what the Markov head adds goes to other ids (blocks.h, unanchored)
- (ids ? ids[c] : c)] +=
+ c] +=
46 a head's node may need what its parent leaves in the same pass (nodes.h, refused)
- node.after_parent() >= cache.known[row]) return NO_FEATURE;
+ node.after_parent() < 0) return NO_FEATURE;
46 the largest logit of a tree is told in the likeliest's place (trees.h, ranked_trees)
- *peak = draws_.bases ? largest
+ *peak = true ? largest
""",
    globals(),
)


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statistics' transformer on the native pass, and its law as the sources give it as they are."""
    try:
        model = NativeTransformer(tiny_unpacked(dtype=torch.float32))
    except NativeUnavailable as reason:
        pytest.skip(f"no native pass here: {reason}")
    law = oracle_law(model, statistics.FORKING, 3, statistics.PLAIN)
    monkeypatch.setattr(statistics, "_transformer_law", lambda: law)
    for name, size in (("_transformer", 4), ("_transformer_of_six", 6)):
        made = partial(tiny_unpacked, size, torch.float32)
        monkeypatch.setattr(statistics, name, lambda made=made: NativeTransformer(made()))


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("kill", dict.fromkeys(twin.kill for twin in TWINS))
def test_the_right_program_lives(kill):
    kill()


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("twin", TWINS, ids=[f"{twin.pitfall} {twin.name}" for twin in TWINS])
def test_a_twin_runs_and_is_killed(twin, tmp_path, monkeypatch):
    library = changed(bindings.PASS, twin, tmp_path)
    monkeypatch.setattr(bindings, "library", lambda unit: library)
    mutant = bindings.functions.__wrapped__()
    monkeypatch.setattr(bindings, "functions", lambda: mutant)
    scores = scores_of(NativeTransformer(small_model()))
    assert bool(scores.isfinite().all())
    with pytest.raises(AssertionError):
        twin.kill()


def scores_of(model: NativeTransformer) -> torch.Tensor:
    tokens, cache = torch.arange(5)[None], model.new_cache(1, 16)
    return model.score(tokens, None, torch.tensor([5]), cache, np.array([0])).logits
