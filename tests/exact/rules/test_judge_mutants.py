"""The compiled judge with one line changed, killed by the enumerator: by the law that comes out, or at a breakpoint."""

import pytest

from specdec.engine import verdict
from specdec.kernels import NativeKernels
from specdec.kernels.compiled import NativeWalks
from specdec.kernels.compiled.compiled_laws import LAWS
from tests.native.twins import changed, long_but_first, twins
from tests.support import statistics
from tests.support.backends import kernels_are, needed_kernels
from tests.support.statistics import RIGHT, WRONG

# The law that a mutant tells is the law that it draws from, and it is not the target's.
OF_LAWS = twins(
    LAWS,
    """
11 the last child's residual is not left (verdicts.h, law_with_a_sampled_model)
- return left_.law();
+ return target;
11 the residual is the target's law (verdicts.h, law_with_a_sampled_model)
-  - pending_.probs[id]
11 each child meets the target's law (verdicts.h, law_with_trees_judged_by_their_laws)
- if (normalise(rest)) left_ = LawOf<T>(static_cast<const T*>(rest));
+ normalise(rest);
1 accepted by p alone (verdicts.h, law_with_a_sampled_model)
- p / std::max(double(drawn.of(id)),
+ p / std::max(1.0,
26 another's children are offered (verdicts.h, law_with_trees_judged_by_their_laws)
- parent(child) == node &&
+ true &&
5b without replacement is ignored (verdicts.h, law_with_siblings_without_replacement)
-  || !row.without[child]) return law;
+  || true) return law;
5b another source's siblings leave the law (verdicts.h, law_with_two_sources_of_distinct_siblings)
-  && (!sources || sources[elder] == sources[node])
11 ids of children may follow (matching.h, law_with_trees)
-             mass = 0;
11 twins are entered both (matching.h, law_with_trees_and_scouts)
- tell(child, double(mass));
+ tell(child, double(target.of(id)));
31 a row ends one token early (walks.h, law_with_eos)
- count <= length && !is_end
+ count < length && !is_end
11 the law of the node before the stop (verify.h, law_with_a_sampled_model)
- if (at != at_) {
+ if (at_ < 0) {
13 no weight is carried on (standing.h, law_with_a_block)
- ratio = weight * double(law.of(id))
+ ratio = double(law.of(id))
13 what is left is of the whole law (standing.h, law_with_a_block)
- T part = T(weight)
+ T part = 1
13 what follows has no weight (standing.h, law_with_a_block)
- left_.drawn_from(row, child), taken_[size_t(child)]);
+ left_.drawn_from(row, child), 1);
11 children leave the weight as it was (standing.h, law_with_a_tree_asked_upwards)
- weight = more / std::max(more + (1 - weight), LEAST);
+ weight *= 1;
11 an elder child takes nothing (standing.h, law_with_a_tree_asked_upwards)
- left_.take(drawn, taken_[size_t(child)] = weight);
+ taken_[size_t(child)] = weight;
""",
    vars(statistics),
)
# A mutant draws from another law than it tells, or otherwise, or the law that it tells is none.
OF_DRAWS = twins(
    LAWS,
    """
13 longer beginnings are not asked first (standing.h, law_with_a_block)
-             above *= none_[size_t(child + 1)];
+             above = 1;
13 what is below counts for nothing (standing.h, law_with_a_block)
- none_[size_t(row.parent(child))] *= none_[size_t(child + 1)];
+ none_[size_t(row.parent(child))] *= 1;
10 one number draws the stop and the next id (verify.h, law_with_a_block)
- part = number(0)
+ part = number(1)
11 all children are offered at once (verdicts.h, law_with_a_sampled_model)
- waiting *= 1 - accept;
1 children share no whole (matching.h, law_with_trees)
- (left + entered)
+ (1 + entered)
39 one row's laws for all drafts (verify.h, law_with_a_sampled_model)
- of_.sizes[row_] - 1, by_.drawn, first}
+ of_.sizes[row_] - 1, by_.drawn, 0}
11 padding is accepted (verify.h, law_with_eos)
- of_.sizes[row_] - 1, by_.drawn, first}
+ of_.width - 1, by_.drawn, first}
6 a breakpoint draws the id before it (draws.h, law_with_trees)
- sum > threshold ||
+ sum >= threshold ||
6 the sum need not be reached (draws.h, law_with_trees)
- uniform * total()
+ uniform
6 an id of weight 0 is drawn (draws.h, law_with_trees)
- if (ends(sum)) return id;
+ if (ends(sum)) return id + (id + 1 < size_);
6 a margin below 0 (verify.h, law_with_a_sampled_model)
- sum > part + MARGIN
+ sum > part - MARGIN
6 nodes beyond a close sum count for nothing (verify.h, law_with_a_sampled_model)
- is_close |= sum > part - MARGIN;
+ is_close |= false;
6 the walk stops one node early (verify.h, law_with_trees)
- MARGIN) return node;
+ MARGIN) return std::max<int64_t>(node - 1, 0);
11 the next id is drawn from the target's law (verify.h, law_with_a_sampled_model)
- rule.after(drafted(), stop, target).probs
+ target.probs
10 the stop's number draws the next id (verify.h, law_with_a_sampled_model)
- draw(number(1))
+ draw(number(0))
9 one row's numbers for all (verify.h, law_of_four_tokens)
- by_.uniforms[2 * row_ + draw]
+ by_.uniforms[draw]
""",
    vars(statistics),
)
# The records of the run break an identity before the law is known.
OF_RECORDS = twins(
    LAWS,
    """
26 a way skips nodes (walks.h, law_with_a_drawn_tree)
- node = parent(node), --at
+ node = node - 1, --at
27 scouts are entered (verdicts.h, law_with_trees_and_scouts)
-  && !(scouts && scouts[child])
""",
    vars(statistics),
)
KILLED = [
    *((twin, None) for twin in OF_LAWS),
    *(
        (twin, r"rule '\w+', row \d+, node \d+: (for the (stop|next) the number|the compiled judge)")
        for twin in OF_DRAWS
    ),
    *((twin, "num_accepted <= draft_depth: broken|verdicts over ranks = verdicts over sources") for twin in OF_RECORDS),
]


@pytest.mark.parametrize(("twin", "told"), long_but_first(*zip(*KILLED, strict=True)))
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
