"""Native twins of the mutants: laws, verdicts, walks and penalties with one line changed, killed by tests.

Those of the judge that the enumerator kills stand in ``tests/exact/rules/test_judge_mutants.py`` alone.
"""

from functools import partial

import pytest
import torch

from specdec.engine import verdict
from specdec.kernels import NativeKernels
from specdec.kernels.compiled.compiled_laws import LAWS
from specdec.verify import BlockVerification, MultiDraft, Standard, Traversal
from tests.native import test_judging, test_laws, test_penalties, test_verdicts, test_walks
from tests.native.twins import changed, long_but_first, twins
from tests.support.backends import kernels_are, needed_kernels

along_chains, along_trees, past_scouts = (
    partial(test_walks.test_walks_are_those_of_the_general_way, form, pytest.MonkeyPatch())
    for form in ("chains", "trees", "trees with scouts")
)
within_budgets = partial(test_walks.test_budgets_are_kept_to_the_node, "trees", pytest.MonkeyPatch())
judged, branching, standing, standing_trees = (
    partial(test_verdicts.test_laws_are_those_of_the_rules, 33, is_drawn, rule, torch.float64)
    for is_drawn, rule in (
        (False, Standard()),
        (True, MultiDraft()),
        (True, BlockVerification()),
        (True, Traversal()),
    )
)
sweep, wide_sweep, ties_of_top_p, ties_of_top_k, keyed, without_replacement, raced = (
    partial(test_laws.test_laws_are_those_of_torch_operations, 33, torch.float64),
    partial(test_laws.test_laws_are_those_of_torch_operations, 300, torch.float64),
    partial(test_laws.test_equal_ids_alone_are_cut_where_the_mass_is_reached, torch.float64),
    partial(test_laws.test_top_k_keeps_all_that_tie_with_the_last_and_the_two_zeros_tie, torch.float64),
    partial(test_laws.test_keyed_draws_are_the_ids_of_the_torch_operations, 47, 1, torch.float64),
    partial(test_laws.test_keyed_draws_are_the_ids_of_the_torch_operations, 47, 6, torch.float64),
    partial(test_laws.test_races_are_those_of_the_torch_operations, 1, torch.float64),
)
whole, drawn_by_race, whole_trees, raced_trees = (
    partial(test_judging.test_a_call_says_what_the_general_way_does, *test_judging.FORMS[form], 37, True, torch.float64)
    for form in ("standard", "coupled", "trees, multi_draft", "trees, coupled")
)
penalised = partial(test_penalties.test_penalties_are_those_of_torch_operations, 17, torch.float64)
impossible = test_judging.test_a_law_that_cannot_give_its_token_is_told
unfit = partial(test_judging.test_both_ways_name_a_fault_alike, "standard", "a law of 0.9")

OF_LAWS = twins(
    LAWS,
    """
11 what was rejected may come again (verdicts.h, judged)
- [pending_.point - size] = 0;
+ [pending_.point - size] *= 1;
5b elder siblings stay in the law (verdicts.h, branching)
- narrowed[row.tokens[elder]] = 0;
11 a narrowed law does not sum to 1 (verdicts.h, branching)
- narrowed && normalise(narrowed)
+ narrowed
11 each child meets the target's law (verdicts.h, branching)
- left_ = LawOf<T>(static_cast<const T*>(rest));
+ {}
13 groups of ids leave nothing (standing.h, standing)
- begin < full;
+ begin < 0;
11 children take no weight (standing.h, standing_trees)
- if (law.probs || !is_whole) weight
+ if (false) weight
8 one number for all nodes (laws.cpp, keyed)
- nodes[entry % period]
+ nodes[0]
8 one number for all ranks (draws.h, without_replacement)
- extended(key, uint64_t(rank))
+ extended(key, 0)
5b what was drawn stays (draws.h, without_replacement)
- &= ~(uint32_t(1) << (id % GROUP));
+ &= ~uint32_t(0);
9 one stream for all rows (draws.h, keyed)
- uint64_t(path[stream])
+ uint64_t(path[0])
6 a race without weights (draws.h, raced)
- double(weights[id]) / waiting
+ 1.0 / waiting
39 one row's parameters for all (laws.cpp, sweep)
- i / warp.nodes)
+ 0 * i)
45b all equals stay (laws.h, ties_of_top_p)
- if (double(equals) > kept.equals) {
+ if (false) {
45b the id that crosses is dropped (crossing.h, ties_of_top_p)
- return {low, above}
+ return {low + 1, above}
45b one of a few is dropped (crossing.h, sweep)
- return {key, above}
+ return {key + 1, above}
45b best ids that fall short (laws.h, wide_sweep)
- (1 - MARGIN) < bound
+ (1 - MARGIN) < 0
45b too high a floor of groups (laws.h, wide_sweep)
- low = kth(groups, low);
+ low = kth(groups, low) + 1;
45b the last ids are passed over (laws.h, wide_sweep)
- i < size; ++i) {
-         bits
+ i < full; ++i) {
+         bits
45b ties with the k-th are dropped (laws.h, ties_of_top_k)
- x[i] < floor ?
+ x[i] <= floor ?
39 min_p of the whole (laws.h, sweep)
- {T(ask.min_p), double(size)}
+ {T(ask.min_p * mass), double(size)}
20 padding is entered (walks.h, along_chains)
- from + 2) && node < size;
+ from + 2) && node < of.width;
26 walks enter others' children (walks.h, along_trees)
- parent(node) == from &&
+ true &&
27 walks enter scouts (walks.h, past_scouts)
- && !is_scout(node)) return node
+ ) return node
39 one row's EOS for all (walks.h, along_trees)
- !of.ignores_eos[row]
+ !of.ignores_eos[0]
39 one row's size for all (walks.h, along_chains)
- size = of.sizes[row], *
+ size = of.sizes[0], *
39 deeper than allowed (walks.h, within_budgets)
- deepest > of.max_depth[row]
+ deepest > of.max_depth[row] + 1
9 one stream for all judged rows (verify.h, whole)
- by_.words - 2, of_.batch, row_)
+ by_.words - 2, of_.batch, 0)
39 one row's parameters for all judged rows (verify.h, whole)
- by_.filters, of_.batch, row_)
+ by_.filters, of_.batch, 0)
8 one race for all positions (verify.h, drawn_by_race)
- uint64_t(positions[row_]) + uint64_t(depth)
+ uint64_t(positions[row_])
9 one race for all rows (verify.h, drawn_by_race)
- keys[row_]
+ keys[0]
39 one row's positions for all races (verify.h, raced_trees)
- positions[row_]
+ positions[0]
26 a way of another length (walks.h, whole_trees)
- to.depths ? nodes(to.depths)[stop] : stop
+ stop
1 declared laws are not looked at (verify.h, impossible)
- if (!(law.of(token(node)) > 0)) return false;
1 sums of declared laws are not looked at (verify.h, unfit)
- return !law.probs || std::abs
+ return true || std::abs
39 one row's strengths for all (penalties.h, penalised)
- T(by[row])
+ T(by[0])
39 paths of the first node (penalties.h, penalised)
- before.paths + at * before.width
+ before.paths
39 what was met stays (penalties.h, penalised)
- --produced_[size_t(id)];
39 prompts count as output (penalties.h, penalised)
- add(ids[i], i >= prompt)
+ add(ids[i], true)
39 a row's ids stay for the next one (penalties.h, penalised)
- met.forget();
""",
    globals(),
)


@pytest.mark.parametrize("twin", long_but_first(OF_LAWS))
def test_a_twin_of_the_laws_is_killed(twin, tmp_path, monkeypatch):
    needed_kernels()
    twin.kill()
    library = changed(LAWS, twin, tmp_path)
    monkeypatch.setattr(verdict, "confirm_judge", lambda rule, _: rule.native_judge)  # it would notice the mutant
    with kernels_are(NativeKernels(library)), pytest.raises((AssertionError, pytest.fail.Exception)):
        twin.kill()
