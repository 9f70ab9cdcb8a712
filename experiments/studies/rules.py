"""Every verification rule on the same drafts: what each keeps of them, beside what any rule could keep at one position.

A leading rule decodes once, and on the way every other rule judges the same drafts by the same laws. So no rule gains
by lucky draws: the figures are expectations over the verdict alone. Beside them are figures of a run by each rule,
which writes its own texts. A small transformer drafts the chains and the trees.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

import drafts
from exactspec.ending import as_program
from exactspec.parser import positive, refusing
from experiments.harness.pair import load_pair, pair_parser
from experiments.harness.rule_choice import CHAINS, TREES
from experiments.strategies.tree_shapes import shape_of, tree_source
from specdec import RULES, Draft, DraftSource, Laws, Oracle, Rule, SamplingParams, SpeculativeDecoder, Verdict
from specdec.contracts import VerificationRule, rule_label
from specdec.laws import as_laws
from specdec.requests import Prompt
from specdec.stats import Table
from specdec.stats.report import paired_ratio, show
from specdec.theory import acceptance, distinct_pair_optimum, independent_draws_optimum
from specdec.transfers import on_host

LEGEND = {
    "rule": "a lossy one is marked",
    "judge": "who judged in the run: the rule, or the compiled judge that it declares (native)",
    "tokens a step": "expected on these drafts, the token that the target adds included",
    "over": "the same over the leading rule's, with an interval over prompts",
    "first": "expected share of steps that keep a first token",
    "of the optimum": "that share over the most that any lossless rule reaches, in expectation over candidates drawn "
    "this way, at one position; on the candidates that were drawn it may exceed 1 by chance",
    "tau run": "tokens a step of a separate run by this rule alone, which writes its own texts",
}
OF_CHAINS = (
    "In expectation over chains, no lossless rule that knows the same laws keeps more than block verification; "
    "on these few chains another rule may, by chance."
)
OF_TREES = "No optimum is known for whole trees, only for one position."


@dataclass(frozen=True)
class KeptTokens:
    """What the rules keep of one step's draft, in expectation.

    Attributes:
        tokens: by rule, draft tokens.
        first: by rule, the probability that a first token is kept.
        bound: the optimum of ``first``; None: it is unknown for such candidates.
    """

    tokens: Mapping[str, float]
    first: Mapping[str, float]
    bound: float | None


@dataclass(frozen=True)
class RulePanel(Rule):
    """Judge as the leading rule does, and record what the others would do; for runs of one request at a time.

    Attributes:
        leading: whose verdicts count.
        others: by name; the law of where they stop is read.
        kept: one entry a step.
    """

    leading: VerificationRule
    others: Mapping[str, VerificationRule]
    kept: list[KeptTokens] = field(default_factory=list)

    name: ClassVar[str] = "panel"
    lossless: ClassVar[bool] = True
    trees: ClassVar[bool] = True

    def __call__(self, draft: Draft, target_laws: Laws | Tensor) -> Verdict:
        """Return the leading rule's verdict on drafts ``[1, N]``."""
        target = as_laws(target_laws)
        stops = {name: rule(draft, target).stop_probs[0] for name, rule in self.others.items()}
        tokens = {name: float(probs @ draft.tree.depth[0].double()) for name, probs in stops.items()}
        first = {name: float(1 - probs[0]) for name, probs in stops.items()}
        self.kept.append(KeptTokens(tokens, first, bound_of(draft, target)))
        return self.leading(draft, target)


def bound_of(draft: Draft, target: Laws) -> float | None:
    """Return the largest probability with which a lossless rule keeps a first token of candidates drawn so.

    None if it is not known: tokens were chosen, or more than two were drawn without replacement.
    """
    children = torch.nonzero((draft.tree.above[0] == 0) & draft.is_verified[0]).flatten()
    if draft.laws is None or target.all_points or not len(children):
        return None
    laws = [on_host(law.dense()[0].double()) for law in (target[:, 0], draft.laws[:, int(children[0])])]
    p, q = (law / law.sum() for law in laws)
    if len(children) == 1:
        return acceptance(p, q)
    if draft.without_replacement is None:
        return independent_draws_optimum(p, q, len(children))
    return distinct_pair_optimum(p, q) if len(children) == 2 else None


def measure(
    oracle: Oracle, source: DraftSource, leading: str, prompts: Sequence[Prompt], asked: Mapping[str, Any]
) -> list[list[KeptTokens]]:
    """Return, for each prompt, what the rules that judge a source's drafts keep of each step."""
    branches = source.offers.trees
    fitting = {name: rule for name, rule in RULES.items() if not rule.coupled and (rule.trees or not branches)}
    found = []
    for number, prompt in enumerate(prompts):
        panel = RulePanel(RULES[leading], fitting)
        SpeculativeDecoder(oracle, source, panel).generate([prompt], seed=[(0, number)], **asked)
        found.append(panel.kept)
    return found


def rows_of(
    oracle: Oracle, source: DraftSource, leading: str, prompts: Sequence[Prompt], asked: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Return a row for each rule; errors as of ``names``."""
    steps = measure(oracle, source, leading, prompts, asked)
    counts = np.array([len(kept) for kept in steps])
    totals = {
        name: counts + np.array([sum(one.tokens[name] for one in kept) for kept in steps]) for name in names(steps)
    }
    for name, total in totals.items():
        known = [[(one.first[name], one.bound) for one in kept if one.bound is not None] for kept in steps]
        first, bound = (np.array([sum(pair[part] for pair in kept) for kept in known]) for part in (0, 1))
        run = SpeculativeDecoder(oracle, source, name).generate(prompts, **asked)
        all_first = sum(one.first[name] for kept in steps for one in kept)
        yield {
            "rule": rule_label(RULES[name]) + ("" if RULES[name].lossless else ", lossy"),
            "judge": run.judge,
            "tokens a step": float(total.sum() / counts.sum()),
            "over": str(paired_ratio(total, totals[leading])),
            "first": float(all_first / counts.sum()),
            "of the optimum": str(paired_ratio(first, bound)) if bound.sum() > 0 else None,
            "tau run": run.stats.block_efficiency,
        }  # fmt: skip


def names(steps: Sequence[Sequence[KeptTokens]]) -> list[str]:
    """Return the rules that judged.

    Raises:
        ValueError: none did, as no draft had a token.
    """
    judged = [one for kept in steps for one in kept]
    if not judged:
        raise ValueError("every draft is empty, so that no rule judges any: give other prompts or --max-new-tokens")
    return list(judged[0].tokens)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments."""
    parser = pair_parser(__doc__, num_prompts=12, max_new_tokens=64)
    add = parser.add_argument
    add("--num-draft-tokens", type=positive, default=5, help="tokens of the chains (%(default)s)")
    add("--tree", default="kary:2x3", metavar="SHAPE", help="shape of the trees (%(default)s)")
    add("--temperature", type=float, default=1.0, help="temperature of the requests, above 0 (%(default)s)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Decode with a panel of rules, run each rule, and print the tables.

    Raises:
        SystemExit: a temperature of 0, fewer than 2 new tokens, or arguments that cannot be run; with the reason.
    """
    args = parse(argv)
    with refusing("rules"):
        if args.temperature <= 0:
            raise ValueError("--temperature must be above 0: at 0 every rule compares ids, and all are one")
        if args.max_new_tokens < 2:
            raise ValueError("--max-new-tokens must be 2 or more: a request's last token has no draft")
        asked = {"max_new_tokens": args.max_new_tokens, "sampling": SamplingParams(temperature=args.temperature)}
        tree = shape_of(args.tree, "--tree")
        oracle, model, prompts = load_pair(vars(args))
        chains = rows_of(oracle, drafts.SmallTransformer(model, args.num_draft_tokens), CHAINS, prompts, asked)
        trees = rows_of(oracle, tree_source(model, tree), TREES, prompts, asked)
        tables = [
            Table(f"Chains of {args.num_draft_tokens}", [*chains], OF_CHAINS, legend=LEGEND),
            Table(f"Trees {args.tree}", [*trees], OF_TREES, legend=LEGEND),
        ]
    show(tables)
    return 0


if __name__ == "__main__":
    as_program(main)
