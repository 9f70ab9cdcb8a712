"""Native twins of the mutants: laws, verdicts, walks and penalties with one line changed, killed by tests."""

from functools import partial

import pytest
import torch

from specdec.engine import verdict
from specdec.kernels import NativeKernels
from specdec.kernels.compiled.laws import LAWS
from specdec.verify import BlockVerification, MultiDraft, Standard, Traversal
from tests.native import test_judging, test_laws, test_penalties, test_verdicts, test_walks
from tests.native.twins import Twin, changed
from tests.support.backends import kernels_are, needed_kernels

pytestmark = pytest.mark.long


along_chains, along_trees, past_scouts = (
    partial(test_walks.test_walks_are_those_of_the_general_way, form, pytest.MonkeyPatch())
    for form in ("chains", "trees", "trees with scouts")
)
within_budgets = partial(test_walks.test_budgets_are_kept_to_the_node, "trees", pytest.MonkeyPatch())
judged, weighed, branching, standing, standing_trees = (
    partial(test_verdicts.test_laws_are_those_of_the_rules, 33, is_drawn, rule, torch.float64)
    for is_drawn, rule in (
        (False, Standard()),
        (True, Standard()),
        (True, MultiDraft()),
        (True, BlockVerification()),
        (True, Traversal()),
    )
)
of_two_ids = partial(test_verdicts.test_laws_are_those_of_the_rules, 2, True, MultiDraft(), torch.float64)
sweep, wide_sweep, ties_of_top_p, ties_of_top_k, keyed, without_replacement, raced = (
    partial(test_laws.test_laws_are_those_of_torch_operations, 33, torch.float64),
    partial(test_laws.test_laws_are_those_of_torch_operations, 300, torch.float64),
    partial(test_laws.test_equal_ids_alone_are_cut_where_the_mass_is_reached, torch.float64),
    partial(test_laws.test_top_k_keeps_all_that_tie_with_the_last_and_the_two_zeros_tie, torch.float64),
    partial(test_laws.test_keyed_draws_are_the_ids_of_the_torch_operations, 47, 1, torch.float64),
    partial(test_laws.test_keyed_draws_are_the_ids_of_the_torch_operations, 47, 6, torch.float64),
    partial(test_laws.test_races_are_those_of_the_torch_operations, 1, torch.float64),
)
whole, matched, drawn_by_race = (
    partial(test_judging.test_a_call_says_what_the_general_way_does, rule, 37, True, torch.float64)
    for rule in ("standard", "sample_and_match", "coupled")
)


def of_all_sizes() -> None:
    for size in (4, 16, 37, 300):
        for is_drawn in (False, True):
            test_judging.test_a_call_says_what_the_general_way_does("standard", size, is_drawn, torch.float64)


whole_trees, matched_trees, raced_trees = (
    partial(test_judging.test_a_call_says_of_trees_what_the_general_way_does, rule, 37, True, torch.float64)
    for rule in ("multi_draft", "sample_and_match", "coupled")
)
penalised = partial(test_penalties.test_penalties_are_those_of_torch_operations, 17, torch.float64)
impossible = test_judging.test_a_law_that_cannot_give_its_token_is_told
unfit = partial(test_judging.test_both_ways_name_a_fault_alike, "standard", "a law of 0.9")

OF_LAWS = [
    Twin(
        "11",
        "what was rejected may come again",
        "verdicts.h",
        "[pending_.point - size] = 0;",
        "[pending_.point - size] *= 1;",
        judged,
    ),
    Twin(
        "11",
        "padding is accepted",
        "verify.h",
        "of_.sizes[row_] - 1, by_.drawn",
        "of_.width - 1, by_.drawn",
        judged,
    ),
    Twin("11", "the residual is the target's law", "verdicts.h", " - pending_.probs[id]", "", weighed),
    Twin("26", "another's children are offered", "verdicts.h", "parent(child) == node && ", "", branching),
    Twin("27", "scouts are offered", "verdicts.h", " && !(scouts && scouts[child])", "", branching),
    Twin("5b", "elder siblings stay in the law", "verdicts.h", "narrowed[row.tokens[elder]] = 0;", "", branching),
    Twin(
        "5b",
        "another source's siblings leave the law",
        "verdicts.h",
        " && (!sources || sources[elder] == sources[node])",
        "",
        of_two_ids,
    ),
    Twin(
        "11", "a narrowed law does not sum to 1", "verdicts.h", "narrowed && normalise(narrowed)", "narrowed", branching
    ),
    Twin(
        "11",
        "each child meets the target's law",
        "verdicts.h",
        "left_ = LawOf<T>(static_cast<const T*>(rest));",
        "{}",
        branching,
    ),
    Twin("13", "groups of ids leave nothing", "standing.h", "begin < full;", "begin < 0;", standing),
    Twin(
        "11",
        "children take no weight",
        "standing.h",
        "if (law.probs || !is_whole) weight",
        "if (false) weight",
        standing_trees,
    ),
    Twin("1", "accepted by p alone", "verdicts.h", "p / std::max(double(drawn.of(id)),", "p / std::max(1.0,", weighed),
    Twin("39", "one row's laws for all drafts", "verify.h", "by_.drawn, first}", "by_.drawn, 0}", weighed),
    Twin("8", "one number for all nodes", "laws.cpp", "nodes[entry % period]", "nodes[0]", keyed),
    Twin(
        "8",
        "one number for all ranks",
        "draws.h",
        "extended(key, uint64_t(rank))",
        "extended(key, 0)",
        without_replacement,
    ),
    Twin(
        "5b",
        "what was drawn stays",
        "draws.h",
        "&= ~(uint32_t(1) << (id % GROUP));",
        "&= ~uint32_t(0);",
        without_replacement,
    ),
    Twin("9", "one stream for all rows", "draws.h", "uint64_t(path[stream])", "uint64_t(path[0])", keyed),
    Twin("6", "a race without weights", "draws.h", "double(weights[id]) / waiting", "1.0 / waiting", raced),
    Twin("39", "one row's parameters for all", "laws.cpp", "i / warp.nodes)", "0 * i)", sweep),
    Twin("45b", "all equals stay", "laws.h", "if (double(equals) > kept.equals) {", "if (false) {", ties_of_top_p),
    Twin(
        "45b",
        "the id that crosses is dropped",
        "crossing.h",
        "return {low, above}",
        "return {low + 1, above}",
        ties_of_top_p,
    ),
    Twin("45b", "one of a few is dropped", "crossing.h", "return {key, above}", "return {key + 1, above}", sweep),
    Twin("45b", "best ids that fall short", "laws.h", "(1 - MARGIN) < bound", "(1 - MARGIN) < 0", wide_sweep),
    Twin(
        "45b",
        "too high a floor of groups",
        "laws.h",
        "low = kth(groups, low);",
        "low = kth(groups, low) + 1;",
        wide_sweep,
    ),
    Twin(
        "45b",
        "the last ids are passed over",
        "laws.h",
        "i < size; ++i) {\n        bits",
        "i < full; ++i) {\n        bits",
        wide_sweep,
    ),
    Twin("45b", "ties with the k-th are dropped", "laws.h", "x[i] < floor ?", "x[i] <= floor ?", ties_of_top_k),
    Twin(
        "39",
        "min_p of the whole",
        "laws.h",
        "{T(ask.min_p), double(size)}",
        "{T(ask.min_p * mass), double(size)}",
        sweep,
    ),
    Twin(
        "20",
        "padding is entered",
        "walks.h",
        "from + 2) && node < size;",
        "from + 2) && node < of.width;",
        along_chains,
    ),
    Twin("26", "walks enter others' children", "walks.h", "parent(node) == from && ", "", along_trees),
    Twin("27", "walks enter scouts", "walks.h", "&& !is_scout(node)) return node", ") return node", past_scouts),
    Twin("39", "one row's EOS for all", "walks.h", "!of.ignores_eos[row]", "!of.ignores_eos[0]", along_trees),
    Twin("39", "one row's size for all", "walks.h", "size = of.sizes[row], *", "size = of.sizes[0], *", along_chains),
    Twin(
        "39",
        "deeper than allowed",
        "walks.h",
        "deepest > of.max_depth[row]",
        "deepest > of.max_depth[row] + 1",
        within_budgets,
    ),
    Twin(
        "9",
        "one stream for all judged rows",
        "verify.h",
        "by_.words - 2, of_.batch, row_)",
        "by_.words - 2, of_.batch, 0)",
        whole,
    ),
    Twin("10", "the stop's number draws the next id", "verify.h", "draw(number(1))", "draw(number(0))", whole),
    Twin(
        "39",
        "one row's parameters for all judged rows",
        "verify.h",
        "by_.filters, of_.batch, row_)",
        "by_.filters, of_.batch, 0)",
        whole,
    ),
    Twin(
        "39",
        "one row's laws for all judged drafts",
        "verify.h",
        "of_.sizes[row_] - 1, by_.drawn, first}",
        "of_.sizes[row_] - 1, by_.drawn, 0}",
        whole,
    ),
    Twin(
        "11",
        "judged ids that were rejected may come again",
        "verify.h",
        "rule.after(drafted(), stop, target).probs",
        "target.probs",
        whole,
    ),
    Twin("11", "ids of children may follow", "matching.h", "            mass = 0;\n", "", matched),
    Twin(
        "11",
        "twins are entered both",
        "matching.h",
        "tell(child, double(mass));",
        "tell(child, double(target.of(id)));",
        matched_trees,
    ),
    Twin("1", "children share no whole", "matching.h", "(left + entered)", "(1 + entered)", matched_trees),
    Twin(
        "8",
        "one race for all positions",
        "verify.h",
        "uint64_t(positions[row_]) + uint64_t(depth)",
        "uint64_t(positions[row_])",
        drawn_by_race,
    ),
    Twin("9", "one race for all rows", "verify.h", "keys[row_]", "keys[0]", drawn_by_race),
    Twin("39", "one row's positions for all races", "verify.h", "positions[row_]", "positions[0]", raced_trees),
    Twin(
        "11",
        "judged padding is accepted",
        "verify.h",
        "of_.sizes[row_] - 1, by_.drawn, first}",
        "of_.width - 1, by_.drawn, first}",
        whole,
    ),
    Twin("26", "a way skips nodes", "walks.h", "node = parent(node), --at", "node = node - 1, --at", whole_trees),
    Twin("26", "a way of another length", "walks.h", "to.depths ? nodes(to.depths)[stop] : stop", "stop", whole_trees),
    Twin("11", "the law of the node before the stop", "verify.h", "if (at != at_) {", "if (at_ < 0) {", whole),
    Twin(
        "6",
        "nodes beyond a close sum count for nothing",
        "verify.h",
        "is_close |= sum > part - MARGIN;",
        "is_close |= false;",
        of_all_sizes,
    ),
    Twin(
        "1",
        "declared laws are not looked at",
        "verify.h",
        "if (!(law.of(token(node)) > 0)) return false;",
        "",
        impossible,
    ),
    Twin(
        "1",
        "sums of declared laws are not looked at",
        "verify.h",
        "return !law.probs || std::abs",
        "return true || std::abs",
        unfit,
    ),
    Twin("39", "one row's strengths for all", "penalties.h", "T(by[row])", "T(by[0])", penalised),
    Twin("39", "paths of the first node", "penalties.h", "(row * before.nodes + node) * before.width", "0", penalised),
    Twin("39", "what was met stays", "penalties.h", "--produced_[size_t(id)];", "", penalised),
    Twin("39", "prompts count as output", "penalties.h", "before.produced[i])", "true)", penalised),
    Twin("39", "a row's ids stay for the next one", "penalties.h", "met.forget();", "", penalised),
]


@pytest.mark.parametrize("twin", OF_LAWS, ids=[f"{twin.pitfall} {twin.name}" for twin in OF_LAWS])
def test_a_twin_of_the_laws_is_killed(twin, tmp_path, monkeypatch):
    needed_kernels()
    twin.kill()
    library = changed(LAWS, twin, tmp_path)
    monkeypatch.setattr(verdict, "confirm_judge", lambda rule, _: rule.native_judge)  # it would notice the mutant
    with kernels_are(NativeKernels(library)), pytest.raises((AssertionError, pytest.fail.Exception)):
        twin.kill()
