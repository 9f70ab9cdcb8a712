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
from tests.exact import test_tree_scoring as scoring
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
from tests.native.twins import Twin, changed
from tests.support import native_drafts, statistics
from tests.support.models import small_model, tiny_unpacked

pytestmark = pytest.mark.long

RIGHT = 1e-5  # distance of laws of a float32 model


def as_the_reference(family: str) -> None:
    test_pass.test_every_node_scores_as_the_reference_scores_its_own_sequence(family, torch.float32)


def as_its_chains(family: str) -> None:
    scoring.test_a_branch_scores_bit_for_bit_as_its_own_chain(family, 61, NativeTransformer)


def a_law(statistic: Callable[[], float]) -> None:
    assert statistic() <= RIGHT


llama, gpt2, mistral = (partial(as_the_reference, family) for family in ("llama", "gpt2", "mistral"))
in_trees = partial(a_law, statistics.law_of_a_transformer_with_trees)
growing = partial(a_law, statistics.scores_of_a_growing_tree_that_move)
with_scouts = partial(a_law, statistics.nodes_of_lookahead_unlike_their_chains)
int8, int4 = (
    partial(test_few_bits.test_bits_are_those_of_the_dequantised_weights, "qwen2", torch.bfloat16, format)
    for format in ("int8", "int4")
)
whole = partial(partial, test_stored_formats.test_a_product_of_whole_numbers_has_the_bits_of_its_definition, 3, 64)
dynamic = partial(test_few_bits.test_a_product_has_the_bits_of_its_definition, 3, 64)
dynamic_tied = partial(test_few_bits.test_rounded_inputs_score_as_the_eager_pass_does, "qwen2")
padding = test_pass.test_padding_comes_back_as_the_last_node_and_is_not_read
far = partial(test_pass.test_long_contexts_score_as_the_eager_pass_does, {})
drawn = partial(test_pass.test_sampled_chains_in_one_call_are_those_of_single_passes, test_pass.STREAMS["keyed"])
told = partial(test_pass.test_a_watch_is_told_what_single_passes_say, None)
ended = partial(test_chains.test_chains_stop_where_a_watch_ends_them_and_limits_never_rise, True)
grown = partial(
    test_trees.test_each_rows_tree_ends_at_its_own_budget_both_ways,
    native_drafts.BUSHY,
    native_drafts.NARROW,
    native_drafts.BUDGETS["ragged"],
    coupled=False,
)
adjusted, adjusted_draws = (
    partial(test_adjusting.test_adjusted_chains_in_one_call_are_those_of_single_passes, is_drawn)
    for is_drawn in (False, True)
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
anchored, unanchored = (partial(test_native_blocks.check_reference, name) for name in ("dspark", "few ids"))
refused = test_native_heads.test_a_node_that_hangs_on_one_of_the_same_pass_is_refused
cleared, felled = (
    partial(test_texts.test_what_was_drafted_in_a_row_does_not_outlive_it, draft)
    for draft in (test_texts.chains, test_texts.trees)
)


TWINS = [
    Twin(
        "18",
        "what stands is read from its first id on",
        "texts.h",
        "std::copy(ids + cache_.lengths[row], ids + text_.ends[b],",
        "std::copy(ids, ids + text_.ends[b] - cache_.lengths[row],",
        unread,
    ),
    Twin(
        "19",
        "keys of an id that was not scored are kept",
        "texts.h",
        "= text_.ends[b] + more(b)",
        "= text_.ends[b] + more(b) + 1",
        booked,
    ),
    Twin(
        "24",
        "slots of drafted ids are not booked",
        "texts.h",
        "cache_.written[row], slots[size_t(b)]);",
        "cache_.written[row], text_.ends[b]);",
        cleared,
    ),
    Twin(
        "24",
        "slots of a tree's nodes are not booked",
        "trees.h",
        "++all.slots, all.positions = inner.depth;",
        "all.positions = inner.depth;",
        felled,
    ),
    Twin(
        "20",
        "one length for all rows",
        "nodes.h",
        "int32_t(call.lengths[row])",
        "int32_t(call.lengths[call.rows[0]])",
        llama,
    ),
    Twin(
        "21",
        "padding is scored",
        "nodes.h",
        "nodes = call.num_nodes[b], row",
        "nodes = call.width, row",
        padding,
    ),
    Twin(
        "24",
        "keys are written to the batch's row",
        "worker.h",
        "place_of(p_.cache, m_, index, head, node.row, slot)",
        "place_of(p_.cache, m_, index, head, node.batch, slot)",
        llama,
    ),
    Twin(
        "24",
        "a thread with heads of its own writes keys of one row alone",
        "worker.h",
        "row < rows_; ++row) place_head",
        "row < 1; ++row) place_head",
        llama,
    ),
    Twin(
        "41",
        "a thread with heads of its own writes keys of the first of them alone",
        "worker.h",
        "head = heads.from; head < heads.to;",
        "head = heads.from; head < heads.from + 1;",
        llama,
    ),
    Twin(
        "26",
        "siblings see each other",
        "worker.h",
        "{vector, node.path, p_.low(node), end, node.path ? node.length : end}",
        "{vector, nullptr, p_.low(node), end + node.index - node.depth, end + node.index - node.depth}",
        in_trees,
    ),
    Twin(
        "26",
        "nodes over cached ones see all of these",
        "worker.h",
        "{vector, node.path, p_.low(node), end, node.path ? node.length : end}",
        "{vector, node.path, p_.low(node), end, call_.first || !node.path ? end : node.length}",
        growing,
    ),
    Twin(
        "27",
        "guesses see the window",
        "worker.h",
        "{vector, node.path, p_.low(node), end, node.path ? node.length : end}",
        "{vector, nullptr, p_.low(node), end + node.index - node.depth, end + node.index - node.depth}",
        with_scouts,
    ),
    Twin(
        "26",
        "rotations by index",
        "worker.h",
        "std::min(node.length + node.depth, call_.rotations - 1)",
        "std::min(node.length + node.index, call_.rotations - 1)",
        in_trees,
    ),
    Twin(
        "26",
        "siblings share a slot",
        "worker.h",
        "const int slot = node.length + node.index;",
        "const int slot = node.length + node.depth;",
        in_trees,
    ),
    Twin(
        "26",
        "positions are off by one",
        "worker.h",
        "std::min(node.length + node.depth, m_.context - 1)",
        "std::min(node.length + node.depth + 1, m_.context - 1)",
        gpt2,
    ),
    Twin(
        "26a",
        "a window by index",
        "pass.h",
        "std::max(0, node.length + node.depth + 1 - model.window)",
        "std::max(0, node.length + node.index + 1 - model.window)",
        partial(as_its_chains, "mistral"),
    ),
    Twin(
        "26a",
        "a window off by one",
        "pass.h",
        "std::max(0, node.length + node.depth + 1 - model.window)",
        "std::max(0, node.length + node.depth - model.window)",
        mistral,
    ),
    Twin(
        "28",
        "keys stay where a path was rejected",
        "api.cpp",
        "to.key[d * WIDTH] = from.key[d * WIDTH]",
        "to.key[d * WIDTH] = to.key[d * WIDTH] + 0 * from.key[d * WIDTH]",
        in_trees,
    ),
    Twin(
        "41",
        "the first slot is missed",
        "pass.h",
        "- model.window) : 0;",
        "- model.window) : std::min(1, node.length + node.depth);",
        llama,
    ),
    Twin(
        "41",
        "later chunks are dropped",
        "worker.h",
        "if (begun[i]) combine(all[i], next[i]);",
        "if (begun[i]) continue;",
        far,
    ),
    Twin(
        "41",
        "another group's keys",
        "worker.h",
        "return {keys_of(cache, m_, layer, tile.head),",
        "return {keys_of(cache, m_, layer, (tile.head + 1) % m_.kv_heads),",
        llama,
    ),
    Twin(
        "41",
        "rotations turn the other way",
        "rotary.h",
        "= float(s);",
        "= float(position % 2 ? -s : s);",
        llama,
    ),
    Twin(
        "41",
        "half of the columns have others' scales",
        "storages.h",
        "vload(layer.scales + block * BLOCK + WIDTH)",
        "vload(layer.scales + block * BLOCK)",
        int8,
    ),
    Twin(
        "41",
        "embeddings without their scales",
        "storages.h",
        "k) * BLOCK + column % BLOCK])) * layer.scales[column]",
        "k) * BLOCK + column % BLOCK])) * layer.scales[0]",
        int8,
    ),
    Twin(
        "41",
        "half of the int4 columns have others' scales",
        "storages.h",
        "8 * i + 4), high_scale, high_shift)",
        "8 * i + 4), low_scale, low_shift)",
        int4,
    ),
    Twin(
        "41",
        "the first group's scales for all",
        "linear.h",
        "++n) storage[n].open(layer, block + n, at + n * bytes);",
        "++n) if (k == 0) storage[n].open(layer, block + n, at + n * bytes);",
        int4,
    ),
    Twin(
        "41",
        "the neighbour's int4 inputs where they fill no step",
        "linear.h",
        "for (int i = 0; k < stop; ++i, ++k)",
        "for (int i = 1; k < stop; ++i, ++k)",
        partial(test_few_bits.test_bits_are_those_of_the_dequantised_weights, "odd", torch.float32, "int4"),
    ),
    Twin(
        "41",
        "embeddings with the first group's scales",
        "storages.h",
        "in_pairs(int(column % BLOCK));\n        const char* group = block + int64_t(k / GROUP)",
        "in_pairs(int(column % BLOCK));\n        const char* group = block + int64_t(k / GROUP * 0)",
        partial(test_few_bits.test_bits_are_those_of_the_dequantised_weights, "wide", torch.float32, "int4"),
    ),
    Twin(
        "41",
        "a scale for all rows of a tile",
        "linear.h",
        "weights + n * bytes, x + m * stride);",
        "weights + n * bytes, x + 0 * m);",
        dynamic,
    ),
    Twin(
        "41",
        "inputs are a step too large",
        "norm.h",
        "0x1.8p23f + 128",
        "0x1.8p23f + 129",
        dynamic,
    ),
    Twin(
        "41",
        "embeddings of rounded layers without their scales",
        "storages.h",
        "column % BLOCK * 4 + k % 4])) * layer.scales[column]",
        "column % BLOCK * 4 + k % 4])) * layer.scales[0]",
        dynamic_tied,
    ),
    Twin(
        "41",
        "q4_1 without its minimum in float arithmetic",
        "storages.h",
        "low = MINIMA ? vfma(low, low_scale, low_minimum)",
        "low = MINIMA ? vmul(low, low_scale)",
        partial(test_stored_formats.test_float_products_have_the_bits_of_the_dequantised_weights, "llama", "q4_1"),
    ),
    Twin(
        "41",
        "embeddings of q4_1 with another column's minimum",
        "storages.h",
        "of_group[which] = row[at % WIDTH];",
        "of_group[which] = row[which ? 0 : at % WIDTH];",
        partial(test_stored_formats.test_float_products_have_the_bits_of_the_dequantised_weights, "wide", "q4_1"),
    ),
    Twin(
        "41",
        "minima with the first group's shift",
        "linear.h",
        "storage[n].close(group(m, g),",
        "storage[n].close(group(m, S::ABOVE ? g : 0),",
        whole("q4_1-int8"),
    ),
    Twin(
        "41",
        "sums of groups that are larger than their numbers stand for",
        "storages.h",
        "const int32_t less = -S::ABOVE * group.sum;",
        "const int32_t less = (1 - S::ABOVE) * group.sum;",
        whole("q4_0-int8"),
    ),
    Twin(
        "41",
        "a row's first scale for all groups",
        "linear.h",
        "x + m * stride)[g]; };",
        "x + m * stride)[0]; };",
        whole("q8_0-int8"),
    ),
    Twin(
        "41",
        "the halves of a byte meet each other's inputs",
        "storages.h",
        "(words >> 4 * i) & 0x0f0f0f0fu",
        "(words >> 4 * (1 - i)) & 0x0f0f0f0fu",
        whole("q4_1-int8"),
    ),
    Twin(
        "41",
        "the last group of inputs holds what stands after them",
        "norm.h",
        "round_group(rest, *groups);",
        "round_group(x + even, *groups);",
        partial(test_stored_formats.test_a_product_of_whole_numbers_has_the_bits_of_its_definition, 2, 47, "q4_1-int8"),
    ),
    Twin(
        "8",
        "a chain draws with the number of the node before",
        "chains.h",
        "uint64_t(draws->firsts[b]) + uint64_t(step)",
        "uint64_t(draws->firsts[b]) + uint64_t(std::max<int64_t>(step, 1) - 1)",
        drawn,
    ),
    Twin("9", "one stream for the chains of all rows", "chains.h", "draws->bases[b]", "draws->bases[0]", drawn),
    Twin(
        "39",
        "one row's parameters for all chains",
        "chains.h",
        "draws->filters, call_.batch, b)",
        "draws->filters, call_.batch, 0)",
        drawn,
    ),
    Twin("3", "a row draws after its end", "chains.h", "is_drawn = step < follow_.limits[b]", "is_drawn = true", ended),
    Twin(
        "46",
        "one row's certainty for all chains",
        "chains.h",
        "unwarped(call_.logits + b * vocabulary_,",
        "unwarped(call_.logits + 0 * b,",
        told,
    ),
    Twin(
        "8",
        "one number for all nodes of a level",
        "trees.h",
        "? inner.depth : inner.node + 1",
        "? 0 : inner.depth",
        grown,
    ),
    Twin("9", "one stream for the trees of all rows", "trees.h", "draws_.bases[b]", "draws_.bases[0]", grown),
    Twin(
        "39",
        "nodes beyond a row's limit",
        "trees.h",
        "growth_.limits[b] - inner.first_child",
        "growth_.size - inner.first_child",
        grown,
    ),
    Twin("39", "children of absent nodes", "trees.h", "&& ids[inner.node] < 0", "&& ids[inner.node] < -1", grown),
    Twin(
        "38",
        "drafts are not counted",
        "adjusting.h",
        "met.produced + path.times(met.id, path.length)",
        "met.produced",
        adjusted_draws,
    ),
    Twin(
        "38", "drafts do not delay EOS", "adjusting.h", "produced(row) + path.length)", "produced(row))", adjusted_draws
    ),
    Twin(
        "38",
        "only the last id of a path is counted",
        "trees.h",
        "node >= 0; node = growth_.parents[node]",
        "node >= 0; node = -1",
        drawn_trees,
    ),
    Twin(
        "38",
        "trees are not adjusted",
        "trees.h",
        "path_to(inner, ids, room.path), room.adjusted.get());",
        "path_to(inner, ids, room.path), room.adjusted.get()), logits = given;",
        drawn_trees,
    ),
    Twin("39", "prompts count as output", "adjusting.h", "i >= given_->prompts[row])", "true)", adjusted_draws),
    Twin("39", "a row's ids stay for the next one", "adjusting.h", "met.forget();", "", adjusted_draws),
    Twin(
        "39",
        "an id that is drafted twice is penalised twice",
        "adjusting.h",
        "path.times(id, i) || stands(standing, id)",
        "stands(standing, id)",
        adjusted_draws,
    ),
    Twin(
        "39",
        "a drafted id that stands is penalised twice",
        "adjusting.h",
        "path.times(id, i) || stands(standing, id)",
        "path.times(id, i)",
        adjusted_draws,
    ),
    Twin(
        "39",
        "the first row's biases for all",
        "adjusting.h",
        "row ? given_->bias_ends[row - 1] : 0",
        "0",
        adjusted_draws,
    ),
    Twin(
        "39",
        "one row's penalties for all",
        "adjusting.h",
        "given_->penalties, batch_, row)",
        "given_->penalties, batch_, 0)",
        adjusted_draws,
    ),
    Twin("39", "one row's ban for all", "adjusting.h", "< given_->bans[row])", "< given_->bans[0])", adjusted_draws),
    Twin("46", "the adjusted logit is told", "chains.h", "given[follow_.ids[at]]", "logits[follow_.ids[at]]", adjusted),
    Twin(
        "46",
        "the largest adjusted logit is told",
        "chains.h",
        "logits == given ? peak : largest(given, vocabulary_)",
        "peak",
        adjusted_draws,
    ),
    Twin(
        "46",
        "the largest adjusted logit of a tree is told",
        "trees.h",
        "if (logits != given) *peak =",
        "if (logits == given) *peak =",
        drawn_trees,
    ),
    Twin(
        "46",
        "the feature of the node before, in a tree of a head",
        "reading.h",
        "feature_of(plan, node.row, node.after_parent());",
        "feature_of(plan, node.row, node.length + node.index);",
        few_ids,
    ),
    Twin(
        "46e",
        "a head's node leaves no feature",
        "reading.h",
        "std::copy(x, x + plan.model.hidden, feature_of(plan, node.row, position));",
        "",
        few_ids,
    ),
    Twin(
        "46e",
        "a head's own feature written over one that is known",
        "reading.h",
        "if (position < plan.cache.known[node.row]) return;",
        "",
        in_chunks,
    ),
    Twin(
        "46d",
        "the norm of a head's features left out",
        "reading.h",
        "normalise(reading.norm, x, both + size);",
        "std::copy(x, x + size, both + size);",
        few_ids,
    ),
    Twin(
        "46d",
        "a head leaves its feature before the last norm",
        "reading.h",
        "if (plan.model.reading->norms_output)",
        "if (false)",
        all_norms,
    ),
    Twin(
        "46d",
        "a head's stream begins without its norm",
        "reading.h",
        "if (reading.norms_stream)",
        "if (false)",
        all_norms,
    ),
    Twin(
        "46e",
        "the first nodes' hidden states arrive in place of those that stand",
        "arrivals.h",
        "arrival_.columns ? arrival_.columns[position.batch * arrival_.most + at] : at;",
        "at;",
        arriving,
    ),
    Twin(
        "46e",
        "hidden states after the first 256 positions never arrive",
        "arrivals.h",
        "from < all_.size(); from += AT_ONCE",
        "from < 1; from += AT_ONCE",
        arriving,
    ),
    Twin(
        "46e",
        "what arrived for a head is never taken in",
        "arrivals.h",
        "if (!cache.arrival || !cache.arrival->batch) return FINE;",
        "return FINE;",
        few_ids,
    ),
    Twin(
        "26",
        "a place of a block sees the places before it alone",
        "pass.h",
        "call.form == BLOCKS ?",
        "call.form == CONTEXT ?",
        anchored,
    ),
    Twin(
        "46d",
        "a block's context without its norm",
        "arrivals.h",
        "normalise(*arrival_.norm, row.data(), row.data());",
        "",
        anchored,
    ),
    Twin(
        "46",
        "the pending id before every place of a block",
        "blocks.h",
        "step ? follow.ids[b * follow.steps + step - 1] : blocks.pending[b]",
        "blocks.pending[b]",
        anchored,
    ),
    Twin(
        "46b",
        "laws are read from the pending id's own place on",
        "blocks.h",
        "size_t(blocks.first) + i %",
        "i %",
        unanchored,
    ),
    Twin(
        "4",
        "what the Markov head adds goes to other ids",
        "blocks.h",
        "(ids ? ids[c] : c)] +=",
        "c] +=",
        unanchored,
    ),
    Twin(
        "46",
        "a head's node may need what its parent leaves in the same pass",
        "nodes.h",
        "node.after_parent() >= cache.known[row]) return NO_FEATURE;",
        "node.after_parent() < 0) return NO_FEATURE;",
        refused,
    ),
    Twin(
        "46",
        "the largest logit of a tree is told in the likeliest's place",
        "trees.h",
        "*peak = draws_.bases ? largest",
        "*peak = true ? largest",
        ranked_trees,
    ),
]


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
