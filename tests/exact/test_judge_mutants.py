"""The compiled judge with one line changed, killed by the enumerator: by the law that comes out, or at a breakpoint."""

import pytest

from specdec.engine import verdict
from specdec.kernels import NativeKernels
from specdec.kernels.compiled import NativeWalks
from specdec.kernels.compiled.laws import LAWS
from tests.native.twins import Twin, changed
from tests.support.backends import kernels_are, needed_kernels
from tests.support.statistics import (
    RIGHT,
    WRONG,
    law_of_four_tokens,
    law_with_a_block,
    law_with_a_drawn_tree,
    law_with_a_sampled_model,
    law_with_a_tree_asked_upwards,
    law_with_eos,
    law_with_siblings_without_replacement,
    law_with_trees,
    law_with_trees_and_scouts,
    law_with_trees_judged_by_their_laws,
    law_with_two_sources_of_distinct_siblings,
)

pytestmark = pytest.mark.long

# The law that a mutant tells is the law that it draws from, and it is not the target's.
OF_LAWS = [
    Twin(
        "11",
        "the last child's residual is not left",
        "verdicts.h",
        "return left_.law();",
        "return target;",
        law_with_a_sampled_model,
    ),
    Twin("11", "the residual is the target's law", "verdicts.h", " - pending_.probs[id]", "", law_with_a_sampled_model),
    Twin(
        "11",
        "each child meets the target's law",
        "verdicts.h",
        "if (normalise(rest)) left_ = LawOf<T>(static_cast<const T*>(rest));",
        "normalise(rest);",
        law_with_trees_judged_by_their_laws,
    ),
    Twin(
        "1",
        "accepted by p alone",
        "verdicts.h",
        "p / std::max(double(drawn.of(id)),",
        "p / std::max(1.0,",
        law_with_a_sampled_model,
    ),
    Twin(
        "26",
        "another's children are offered",
        "verdicts.h",
        "parent(child) == node && ",
        "",
        law_with_trees_judged_by_their_laws,
    ),
    Twin(
        "5b",
        "without replacement is ignored",
        "verdicts.h",
        " || !row.without[child]) return law;",
        " || true) return law;",
        law_with_siblings_without_replacement,
    ),
    Twin(
        "5b",
        "another source's siblings leave the law",
        "verdicts.h",
        " && (!sources || sources[elder] == sources[node])",
        "",
        law_with_two_sources_of_distinct_siblings,
    ),
    Twin("11", "ids of children may follow", "matching.h", "            mass = 0;\n", "", law_with_trees),
    Twin(
        "11",
        "twins are entered both",
        "matching.h",
        "tell(child, double(mass));",
        "tell(child, double(target.of(id)));",
        law_with_trees_and_scouts,
    ),
    Twin(
        "31",
        "a row ends one token early",
        "walks.h",
        "count <= length && !is_end",
        "count < length && !is_end",
        law_with_eos,
    ),
    Twin(
        "11",
        "the law of the node before the stop",
        "verify.h",
        "if (at != at_) {",
        "if (at_ < 0) {",
        law_with_a_sampled_model,
    ),
    Twin(
        "13",
        "no weight is carried on",
        "standing.h",
        "ratio = weight * double(law.of(id))",
        "ratio = double(law.of(id))",
        law_with_a_block,
    ),
    Twin("13", "what is left is of the whole law", "standing.h", "T part = T(weight)", "T part = 1", law_with_a_block),
    Twin(
        "13",
        "what follows has no weight",
        "standing.h",
        "left_.drawn_from(row, child), taken_[size_t(child)]);",
        "left_.drawn_from(row, child), 1);",
        law_with_a_block,
    ),
    Twin(
        "11",
        "children leave the weight as it was",
        "standing.h",
        "weight = more / std::max(more + (1 - weight), LEAST);",
        "weight *= 1;",
        law_with_a_tree_asked_upwards,
    ),
    Twin(
        "11",
        "an elder child takes nothing",
        "standing.h",
        "left_.take(drawn, taken_[size_t(child)] = weight);",
        "taken_[size_t(child)] = weight;",
        law_with_a_tree_asked_upwards,
    ),
]
# A mutant draws from another law than it tells, or otherwise, or the law that it tells is none.
OF_DRAWS = [
    Twin(
        "13",
        "longer beginnings are not asked first",
        "standing.h",
        "            above *= none_[size_t(child + 1)];\n",
        "            above = 1;\n",
        law_with_a_block,
    ),
    Twin(
        "13",
        "what is below counts for nothing",
        "standing.h",
        "none_[size_t(row.parent(child))] *= none_[size_t(child + 1)];",
        "none_[size_t(row.parent(child))] *= 1;",
        law_with_a_block,
    ),
    Twin(
        "10",
        "one number draws the stop and the next id",
        "verify.h",
        "draw(number(0))",
        "draw(number(1))",
        law_with_a_block,
    ),
    Twin(
        "11", "all children are offered at once", "verdicts.h", "waiting *= 1 - accept;", "", law_with_a_sampled_model
    ),
    Twin("1", "children share no whole", "matching.h", "(left + entered)", "(1 + entered)", law_with_trees),
    Twin(
        "39",
        "one row's laws for all drafts",
        "verify.h",
        "of_.sizes[row_] - 1, by_.drawn, first}",
        "of_.sizes[row_] - 1, by_.drawn, 0}",
        law_with_a_sampled_model,
    ),
    Twin(
        "11",
        "padding is accepted",
        "verify.h",
        "of_.sizes[row_] - 1, by_.drawn, first}",
        "of_.width - 1, by_.drawn, first}",
        law_with_eos,
    ),
    Twin(
        "6",
        "a breakpoint draws the id before it",
        "draws.h",
        "sum > threshold ||",
        "sum >= threshold ||",
        law_with_trees,
    ),
    Twin("6", "the sum need not be reached", "draws.h", "uniform * total()", "uniform", law_with_trees),
    Twin(
        "6",
        "an id of weight 0 is drawn",
        "draws.h",
        "if (ends(sum)) return id;",
        "if (ends(sum)) return id + (id + 1 < size_);",
        law_with_trees,
    ),
    Twin("6", "a margin below 0", "verify.h", "sum > part + MARGIN", "sum > part - MARGIN", law_with_a_sampled_model),
    Twin(
        "6",
        "nodes beyond a close sum count for nothing",
        "verify.h",
        "is_close |= sum > part - MARGIN;",
        "is_close |= false;",
        law_with_a_sampled_model,
    ),
    Twin(
        "6",
        "the walk stops one node early",
        "verify.h",
        "MARGIN) return node;",
        "MARGIN) return std::max<int64_t>(node - 1, 0);",
        law_with_trees,
    ),
    Twin(
        "11",
        "the next id is drawn from the target's law",
        "verify.h",
        "rule.after(drafted(), stop, target).probs",
        "target.probs",
        law_with_a_sampled_model,
    ),
    Twin(
        "10",
        "the stop's number draws the next id",
        "verify.h",
        "draw(number(1))",
        "draw(number(0))",
        law_with_a_sampled_model,
    ),
    Twin(
        "9",
        "one row's numbers for all",
        "verify.h",
        "by_.uniforms[2 * row_ + draw]",
        "by_.uniforms[draw]",
        law_of_four_tokens,
    ),
]
# The records of the run break an identity before the law is known.
OF_RECORDS = [
    Twin(
        "26",
        "a way skips nodes",
        "walks.h",
        "node = parent(node), --at",
        "node = node - 1, --at",
        law_with_a_drawn_tree,
    ),
    Twin(
        "27",
        "scouts are entered",
        "verdicts.h",
        " && !(scouts && scouts[child])",
        "",
        law_with_trees_and_scouts,
    ),
]
KILLED = [
    *((twin, None) for twin in OF_LAWS),
    *(
        (twin, r"rule '\w+', row \d+, node \d+: (for the (stop|next) the number|the compiled judge)")
        for twin in OF_DRAWS
    ),
    *((twin, "num_accepted <= draft_depth: broken|verdicts over ranks = verdicts over sources") for twin in OF_RECORDS),
]


@pytest.mark.parametrize(("twin", "told"), KILLED, ids=[f"{twin.pitfall} {twin.name}" for twin, _ in KILLED])
def test_a_mutant_of_the_compiled_judge_is_killed(twin, told, tmp_path, monkeypatch):
    needed_kernels()
    assert twin.kill() <= RIGHT
    kernels = NativeKernels()
    kernels.walks = NativeWalks(changed(LAWS, twin, tmp_path))
    monkeypatch.setattr(verdict, "confirm_judge", lambda rule, _: rule.native_judge)  # it would notice the mutant
    with kernels_are(kernels):
        if told is None:
            assert twin.kill() > WRONG
            return
        with pytest.raises(AssertionError, match=told):
            twin.kill()
