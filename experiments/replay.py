"""Tokens per step by draft length, replayed from one dense record of each source, beside runs with each length.

A prompt lookup and a small transformer are recorded once, at every position of what the oracle writes after the shipped
prompts. Every length policy is then replayed from the record, without a model, and also run, for comparison. With a
temperature, runs and records are coupled. With --rule standard they are not: the replays then describe runs that lead
to the recorded outputs, and the runs beside them write other outputs. If drafts are drawn, the replays are
expectations, and lengths that follow the share of accepted tokens are left out.

With --trees, the small transformer's trees are replayed too, all from one record of their combined nodes: coupled, or,
with --rule standard, by the rule multi_draft, with drawn siblings.

Policies and trees of your own stand at FILE.py:NAME: an object, or a class or function that makes one, with values for
it at FILE.py:NAME:KEY=VALUE,KEY=VALUE. A policy that a record does not suffice for is named, with the reason.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import drafts
from exactspec.ending import as_program
from exactspec.parser import number_in, positive, refusing
from experiments.harness.own_places import check_names
from experiments.harness.pair import load_pair, pair_parser
from experiments.strategies.own_strategies import add_own_lengths, own_lengths
from experiments.strategies.tree_shapes import shapes_of
from specdec import (
    DraftSource,
    Entropy,
    Fixed,
    Heuristic,
    Oracle,
    Paths,
    SamplingParams,
    SpeculativeDecoder,
    Threshold,
    TreeShape,
)
from specdec.drafting.lengths import LengthPolicy, Tracked
from specdec.engine import Result
from specdec.requests import Prompt
from specdec.stats import Table
from specdec.stats.report import show
from specdec.traces import DenseRecords, Replay, record_chains, record_trees, replay

Make = Callable[[Any], DraftSource]
_COLUMNS = ("num_drafted", "num_accepted", "num_emitted")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments."""
    parser = pair_parser(__doc__, num_prompts=8, max_new_tokens=64)
    add = parser.add_argument
    add("--longest", type=positive, default=12, help="tokens of the recorded drafts (%(default)s)")
    add("--temperature", type=number_in("[0, inf)"), default=0.0, help="temperature of the requests (%(default)s)")
    add("--rule", choices=("coupled", "standard"), default="coupled", help="rule of sampled requests (%(default)s)")
    add(
        "--trees",
        nargs="*",
        default=[],
        metavar="SHAPE",
        help="trees to replay too: kary:2x3, chain:4, paths:0.0,0.1,1 or your own, FILE.py:NAME",
    )
    add_own_lengths(parser)
    return parser.parse_args(argv)


def policies(longest: int, entropies: bool) -> dict[str, LengthPolicy]:
    """Return the length policies by name; ``entropies``: those that read them too."""
    fixed: dict[str, LengthPolicy] = {f"fixed {k}": Fixed(k) for k in (1, 2, 4, 8, 12) if k <= longest}
    chosen = fixed | {
        "heuristic": Heuristic(min(5, longest), max_draft_tokens=longest),
        "threshold 0.4": Threshold(threshold=0.4, max_draft_tokens=longest),
        "tracked": Threshold(threshold=Tracked(), per_token=True, max_draft_tokens=longest),
    }
    return chosen | ({"entropy": Entropy(max_draft_tokens=longest)} if entropies else {})


def own_policies(places: Sequence[str], longest: int) -> dict[str, LengthPolicy]:
    """Return the policies of a user's own by name.

    Raises:
        ValueError: see ``own_lengths``; a name of ours, or drafts that are longer than the recorded ones.
    """
    own = own_lengths(places)
    check_names([*policies(longest, True), *own])
    for name, policy in own.items():
        if policy.max_depth > longest:
            raise ValueError(f"--lengths {name} drafts up to {policy.max_depth} tokens: give --longest as many")
    return own


def replayable(source: str, dense: DenseRecords, own: Mapping[str, LengthPolicy]) -> dict[str, LengthPolicy]:
    """Return the policies that a record of a source suffices for; the others are named on stderr, with the reason."""
    found = {}
    for name, policy in own.items():
        try:
            replay(dense, length=policy)
        except ValueError as error:
            print(f"left out: {name} of {source}: {error}", file=sys.stderr)
        else:
            found[name] = policy
    return found


def same_steps(replayed: Replay, result: Result) -> bool:
    """Tell whether every step of a replay is the run's; accepted tokens beyond an output's end are ignored."""
    kept = result.records.columns()
    columns = {name: np.asarray(kept[name]) for name in (*_COLUMNS, "request", "num_committed")}
    order = np.lexsort((columns["num_committed"], columns["request"]))
    whole = columns["num_emitted"][order] == columns["num_accepted"][order] + 1
    return replayed.num_steps == len(order) and all(
        np.array_equal(replayed.columns[name], columns[name][order])
        if name != "num_accepted"
        else np.array_equal(replayed.columns[name][whole], columns[name][order][whole])
        for name in _COLUMNS
    )


def is_told(dense: DenseRecords, policy: LengthPolicy) -> bool:
    """Tell whether a record suffices for a policy: drawn drafts do not, if it adapts to drafts that it cut itself."""
    return dense.p is None or not (policy.adaptive and (policy.reads_confidence or policy.reads_entropy))


def rows_of(
    name: str,
    oracle: Oracle,
    make: Make,
    dense: DenseRecords,
    kind: str,
    choices: Mapping[str, LengthPolicy | TreeShape],
    prompts: Sequence[Prompt],
    asked: dict[str, Any],
) -> Iterator[dict[str, Any]]:
    """Return a row for each policy or shape, as ``kind`` says ("length", "shape"): replayed and run."""
    for chosen, choice in choices.items():
        began = time.perf_counter()
        asked_for: dict[str, Any] = {kind: choice}
        replayed = replay(dense, **asked_for)
        taken = time.perf_counter() - began
        result = SpeculativeDecoder(oracle, make(choice), asked["rule"]).generate(
            prompts, asked["max_new_tokens"], asked["sampling"]
        )
        yield {
            "source": name,
            kind: chosen,
            "tau replayed": round(replayed.block_efficiency or 0.0, 4),
            "tau run": round(result.stats.block_efficiency or 0.0, 4),
            "drafted/step": result.stats.num_drafted / result.stats.num_steps,
            "same steps": ("yes" if same_steps(replayed, result) else "no") if dense.repeats else None,
            "replay s": taken,
            "run s": result.stats.total_seconds,
        }


def tree_rows(
    oracle: Oracle, model: Oracle, shapes: Mapping[str, TreeShape], prompts: Sequence[Prompt], asked: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return a row for each tree of the small transformer, replayed from a record of the nodes of all of them."""
    whole = Paths(path for shape in shapes.values() for path in shape.paths or ())
    how = {**asked, "rule": {"standard": "multi_draft"}.get(asked["rule"], asked["rule"])}

    def make(tree: TreeShape) -> DraftSource:
        return drafts.SmallTransformer(model, tree=tree)

    dense = record_trees(oracle, make, prompts, whole, **how)
    return [*rows_of("small_transformer", oracle, make, dense, "shape", shapes, prompts, how)]


def main(argv: Sequence[str] | None = None) -> int:
    """Record, replay, run, and print the tables; return 1 if a replay took other steps than the run.

    Raises:
        SystemExit: a tree is decided as it grows, or the arguments cannot be run; with the reason.
    """
    args = parse(argv)
    with refusing("replay"):
        own = own_policies(args.lengths, args.longest)
        shapes = shapes_of(args.trees, "--trees")
        if undecided := [text for text, shape in shapes.items() if shape.paths is None]:
            raise ValueError(f"--trees {undecided[0]}: it is decided as it grows: give shapes whose nodes are known")
        oracle, model, prompts = load_pair(vars(args))
        sampling = SamplingParams(temperature=args.temperature)
    asked = {
        "max_new_tokens": args.max_new_tokens,
        "sampling": sampling,
        "rule": "standard" if args.temperature == 0 else args.rule,
    }
    sources: dict[str, tuple[Make, bool]] = {
        "prompt_lookup": (lambda length: drafts.PromptLookup(length=length), False),
        "small_transformer": (lambda length: drafts.SmallTransformer(model, length=length), True),
    }
    rows: list[dict[str, Any]] = []
    for name, (make, entropies) in sources.items():
        dense = record_chains(oracle, make, prompts, args.longest, entropies=entropies, **asked)
        told = {n: policy for n, policy in policies(args.longest, entropies).items() if is_told(dense, policy)}
        told |= replayable(name, dense, own)
        rows += rows_of(name, oracle, make, dense, "length", told, prompts, asked)
    trees = tree_rows(oracle, model, shapes, prompts, asked) if shapes else []
    found = {"Draft lengths": rows, "Trees": trees}
    show(Table(title, told) for title, told in found.items() if told)
    rows += trees
    return int(any(row["same steps"] == "no" for row in rows))


if __name__ == "__main__":
    as_program(main)
