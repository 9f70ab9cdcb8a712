"""The columns of the studies: what a pass costs at least, types of weights, an engine idea by idea, trees by size."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from experiments.harness.rounds import Spread
from experiments.studies import trees
from experiments.studies.inference_stack import stack_study, stack_timing
from experiments.studies.inference_stack import stack_tables as stack
from experiments.studies.limits import limit_tables as limits
from experiments.studies.limits.limit_timing import LimitPasses, Prefill
from experiments.studies.precision import precision_tables as precision
from specdec import Kary
from specdec.theory import (
    WidthCurve,
    acceptance,
    acceptance_of_ranks,
    coupled_acceptance,
    expected_tokens,
    expected_tree_tokens,
    independent_draws_optimum,
    lockstep_expected_tokens,
    operations_factor,
    optimal_gamma,
    predicted_speedup,
    walltime_improvement,
)
from specdec.theory.limits import (
    ModelShape,
    PassCost,
    Roofline,
    attention_work_cached,
    attention_work_naive,
    best_draft_length,
    break_even_width,
    context_of_equal_bytes,
    kv_cache_bytes,
    pass_cost,
    prefill_costs,
    visible_positions,
)
from tests.support.line_mutants import Differences, differences, line_mutants
from tests.support.runs.hand_run import DRAFTED, hand

# Two layers of width 4 with 2 heads of 3, one of keys and values; an MLP of 5, 7 ids; two bytes a weight.
SHAPE = ModelShape(2, 4, 2, 1, 3, 5, 7, bytes_per_weight=2, bytes_per_cached=4)
# A layer: 4 x 3 x (2 + 2 heads + 2 of keys and values) and 3 x 4 x 5.
LAYERS, HEAD, CACHED = 2 * (4 * 3 * 6 + 60), 28, 2 * 2 * 3 * 4
WINDOWED = replace(SHAPE, window=4)


def theory() -> Differences:
    """Formulas of theory at figures that are worked out."""
    p, q = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]
    found = {
        "expected tokens": expected_tokens(0.5, 3),
        "improvement": walltime_improvement(0.5, 3, 0.1),
        "operations": operations_factor(0.5, 3, 0.1),
        # 1, 1.5 / 1.1, 1.75 / 1.2, 1.875 / 1.3: the third is the largest. Then of many.
        "best": (optimal_gamma(0.5, 0.1), optimal_gamma(0.9, 0.01)),
        "lock-step": lockstep_expected_tokens(0.5, 2, 3),
        "predicted": predicted_speedup(2.0, 1.25, 0.5, 0.25),
        "accepted": acceptance(p, q),
        "coupled": coupled_acceptance(p, q),
        # H of the third id: 0.2 + 1 - 0.36.
        "of two draws": independent_draws_optimum(p, q, 2),
        "ranks": acceptance_of_ranks([0.5, 0.4, 0.25]).tolist(),
        "tree": expected_tree_tokens(Kary(2, 2), [0.5, 0.4]),
        "width": [WidthCurve((1, 3), (1.0, 1.5))(nodes) for nodes in (1, 2, 3, 5)],
        "linear": WidthCurve.linear(0.25)(3),
        "of seconds": WidthCurve.of_seconds([1, 2, 3], [2.0, 3.0, 2.5]).costs,
    }
    # For each id x: 1 over the sum of max(p(y) / p(x), q(y) / q(x)).
    shares = [1 / (1 + max(0.6, 1) + max(0.4, 3)), 1 / (max(5 / 3, 1) + 1 + max(2 / 3, 3)), 1 / (2.5 + 1.5 + 1)]
    reached = 0.5 + 0.5 * 0.4
    expected = {
        "expected tokens": 1.875,
        "improvement": 1.875 / 1.3,
        "operations": 4.3 / 1.875,
        "best": (2, max(range(99), key=lambda k: sum(0.9**i for i in range(k + 1)) / (1 + 0.01 * k))),
        "lock-step": 1 + 0.125 + 0.125**2,
        "predicted": 1.0,
        "accepted": 0.2 + 0.2 + 0.2,
        "coupled": sum(shares),
        "of two draws": 0.2 + 1 - 0.36,
        "ranks": [0.5, 0.5 * 0.4, 0.5 * 0.6 * 0.25],
        "tree": 1 + reached + reached**2,
        "width": [1.0, 1.25, 1.5, 2.0],
        "linear": 1.5,
        "of seconds": (1.0, 1.5, 1.5),
    }
    return differences(found, expected)


def least() -> Differences:
    """Operations and bytes of a pass of three nodes after ten tokens, in two rows; of prompts; of attention alone."""
    cost, windowed = pass_cost(SHAPE, 2, 3, 10), pass_cost(WINDOWED, 2, 3, 10)
    found = {
        "flops": cost.flops,
        "bytes": (cost.weight_bytes, cost.cache_bytes, cost.bytes),
        "windowed": (windowed.flops, windowed.cache_bytes),
        "no logits": pass_cost(SHAPE, num_logits=0).weight_bytes,
        "prefill": [(one.flops, one.cache_bytes) for one in prefill_costs(SHAPE, 5, 3)],
        "last": prefill_costs(SHAPE, 6, 3)[-1].weight_bytes,
        "seen": visible_positions(5, 2, 4),
        "cache": (kv_cache_bytes(SHAPE, 10, 3), kv_cache_bytes(WINDOWED, 10)),
        "equal": context_of_equal_bytes(SHAPE, 2),
        "naive": attention_work_naive(2, 3, 6, 2),
        "cached": (attention_work_cached(2, 3, 6, 2), attention_work_cached(2, 3, 6, with_prefill=True)),
    }
    expected = {
        "flops": 2 * (2 * LAYERS * 3 + 2 * HEAD * 3 + 4 * 2 * 6 * (11 + 12 + 13)),
        "bytes": ((LAYERS + HEAD) * 2, 2 * CACHED * 13, (LAYERS + HEAD) * 2 + 2 * CACHED * 13),
        # Each node sees four positions, and the first three of them stand in the cache before.
        "windowed": (2 * (2 * LAYERS * 3 + 2 * HEAD * 3 + 4 * 2 * 6 * 12), 2 * CACHED * 6),
        "no logits": LAYERS * 2,
        "prefill": [
            (2 * LAYERS * 3 + 4 * 2 * 6 * 6, CACHED * 3),
            (2 * LAYERS * 2 + 2 * HEAD + 4 * 2 * 6 * 9, CACHED * 5),
        ],
        "last": (LAYERS + HEAD) * 2,
        "seen": 3 + 4 + 4 + 4 + 4,
        "cache": (CACHED * 30, CACHED * 4),
        "equal": (LAYERS + HEAD) * 2 / (2 * CACHED),
        "naive": 4 * 6 * 2 * (4 + 9 + 16),
        "cached": (4 * 6 * 2 * (2 + 3 + 4), 4 * 6 * (1 + 2 + 3 + 4)),
    }
    return differences(found, expected)


def rooflines() -> Differences:
    """Least times of passes, the width that is free, and the draft length that pays best."""
    roof, dear, cheap = Roofline(100.0, 1000.0), PassCost(5000.0, 300.0, 100.0), PassCost(50.0, 300.0, 100.0)
    found = {
        "seconds": (roof.seconds(dear), roof.seconds(cheap)),
        "ridge": (roof.ridge, roof.attainable(5.0), roof.attainable(50.0)),
        "share": (roof.share(dear, 8.0), dear.cache_share),
        "break-even": break_even_width(roof, SHAPE),
        "best length": vars(best_draft_length(0.5, WidthCurve((1, 2, 3), (1.0, 1.0, 2.0)), 0.1, 2)),
    }
    flops = {n: 2 * LAYERS * n + 2 * HEAD * n + 4 * 2 * 6 * n * (n + 1) // 2 for n in range(1, 99)}
    expected = {
        "seconds": (5.0, 4.0),
        "ridge": (10.0, 500.0, 1000.0),
        "share": (5 / 8, 0.25),
        "break-even": next(n for n, work in flops.items() if work / ((LAYERS + HEAD) * 2 + CACHED * n) >= 10),
        # 1, 1.5 / 1.1, 1.75 / 2.2.
        "best length": {"length": 1, "tokens": 1.5, "gain": 1.5 / 1.1},
    }
    return differences(found, expected)


def _passes(scale: float = 1.0) -> LimitPasses:
    """Return passes of one and of three nodes: 2 and 3 s, of 400 and 500 bytes, 100 and 6000 FLOPs."""
    seconds = {1: Spread(2.0 * scale, 1.0, 3.0), 3: Spread(3.0 * scale, 2.15, 4.0), 2: Spread(2.1 * scale, 2.0, 4.0)}
    seconds = {width: seconds[width] for width in (1, 2, 3)}
    costs = {1: PassCost(100.0, 300.0, 100.0), 2: PassCost(200.0, 300.0, 150.0), 3: PassCost(6000.0, 300.0, 200.0)}
    return LimitPasses(4, 10, seconds, costs, Roofline(400.0, 3000.0))


def passes() -> Differences:
    """The tables of passes beside what the machine allows."""
    group, names = _passes(), ("MFLOP", "MB", "FLOP/byte", "bound by", "least ms", "ms", "share", "range")
    found: dict[str, Any] = {row["width"]: [row[name] for name in names] for row in limits.pass_rows([group])}
    (wide,), (context,) = limits.width_rows(SHAPE, [group]), limits.context_rows([group])
    found |= {name: wide[name] for name in ("read GB/s", "ridge", "free")}
    found |= {name: value for name, value in context.items() if name not in ("batch", "context")}
    found["gains"] = [(row["v"], row["alpha 0.5"]) for row in limits.gain_rows([group], [0.5], 0.1)]
    found["sure gains"] = [row["alpha 1.0"] for row in limits.gain_rows([group], [1.0], 0.0)]
    with patch.object(limits, "measure_bandwidth", lambda size, rounds: size * 1000):
        machine = limits.machine_rows({torch.float32: 3e9}, 1)
    found["machine"] = [machine[1]["GB/s"], machine[-1]["GFLOP/s"]]
    expected = {
        1: [1e-4, 4e-4, 0.25, "memory", 1e3, 2e3, "50%", "1000.000 .. 3000.000"],
        2: [2e-4, 4.5e-4, 200 / 450, "memory", 1125.0, 2100.0, "54%", "2000.000 .. 4000.000"],
        3: [6e-3, 5e-4, 12.0, "computing", 2e3, 3e3, "67%", "2150.000 .. 4000.000"],
        "read GB/s": 4e-7,
        "ridge": 7.5,
        "free": 2,
        "weights MB": 3e-4,
        "cache MB": 1e-4,
        "share of cache": "25%",
        "ms, 1 node": 2e3,
        "v(2)": 1.05,
        "v(3)": 1.5,
        # 1.5 / 1.15 and 1.75 / 1.7 as measured; by least times 1.5 / 1.225 and 1.75 / 2.2.
        "gains": [("measured", "1.30 (1)"), ("roofline", "1.22 (1)")],
        # 2 / 1.05 and 3 / 1.5; 2 / 1.125 and 3 / 2. No longer draft was measured.
        "sure gains": ["2.00 (2)", "1.78 (1)"],
        "machine": [4.0, 3.0],
    }
    return differences(found, expected)


def sequences() -> Differences:
    """The tables of long sequences, and of what is counted."""
    (found,) = (dict(row) for row in limits.window_rows([_passes()], [_passes(0.5)], 3))
    prefill = Prefill(3, Spread(0.5, 0.4, 0.6), Spread(0.3, 0.2, 0.4))
    (row,), costs = (
        limits.prefill_rows({"": (SHAPE, [prefill])}, 5, Roofline(1e4, 1e9)),
        prefill_costs(SHAPE, 5, 3),
    )
    found |= {name: row[name] for name in ("passes", "GFLOP", "MB", "tokens/s", "longest pass ms", "share")}
    (cache, *_), (_, attention) = limits.cache_rows(SHAPE, [10], 4), limits.attention_rows(SHAPE, [3])
    found |= {name: cache[name] for name in ("KB a token", "MB at 10", "equal at")}
    found |= {name: attention[name] for name in ("naive, a layer", "ratio", "its ratio")}
    naive, cached = sum(t * t for t in range(3, 67)), sum(range(3, 67))
    expected = {
        "context": 10,
        "cache MB": 1e-4,
        "with window": 1e-4,
        "ms, width 1": 2e3,
        "windowed ms, width 1": 1e3,
        "faster, width 1": 2.0,
        "ms, width 3": 3e3,
        "windowed ms, width 3": 1.5e3,
        "faster, width 3": 2.0,
        "passes": 2,
        "GFLOP": sum(one.flops for one in costs) / 1e9,
        "MB": sum(one.bytes for one in costs) / 1e6,
        "tokens/s": 10.0,
        "longest pass ms": 300.0,
        "share": f"{sum(one.bytes for one in costs) / 1e4 / 0.5:.0%}",
        # Two heads of keys and values.
        "KB a token": 2 * CACHED / 1e3,
        "MB at 10": 2 * CACHED * 10 / 1e6,
        "equal at": round((2 * (4 * 3 * 8 + 60) + HEAD) * 2 / (2 * CACHED)),
        "naive, a layer": f"{24 * naive / 1e6:,.2f}",
        "ratio": f"{naive / cached:,.2f}",
        # The prompt's other two tokens see 1 and 2.
        "its ratio": f"{naive / (cached + 3):,.2f}",
    }
    return differences(found, expected)


class _Results:
    """What a study keeps."""

    def __init__(self, found: dict[tuple[str, int, str], dict[str, Any]]) -> None:
        self._found = found

    def get(self, part: str, batch: int, arm: str) -> dict[str, Any] | None:
        return self._found.get((part, batch, arm))


_BASE = {"seconds": [1.0, 2.0, 3.0], "first_token_seconds": [0.2, 0.5, 0.3], "interleaved": "now"}
_FAST = {"seconds": [0.5, 0.8, 1.0], "first_token_seconds": [0.1, 0.1, 0.4], "interleaved": "now"}
_TEXT = {"prompts": 100, "same": 90, "exact": 25, "as_reference": 100, "bytes_read": 2e6, "load_seconds": 1.5}
_WEIGHTS: Any = _Results({
    (precision.TIME, 4, precision.ORACLE): _BASE,
    (precision.TIME, 4, "int8"): _FAST,
    (precision.TIME, 4, "late"): {**_FAST, "interleaved": "then"},
    (precision.TEXT, 1, "int8"): _TEXT,
    (precision.TEXT, 8, "int8"): {**_TEXT, "same": 80, "as_reference": 99},
    (precision.BITS, 1, "int8"): {"bits": 1.25},
    (f"{precision.DRAFTS}, code", 4, "int8, 4 ahead"): {
        "why": {"tau": 2.5, "alpha": 0.8, "c": 0.3, "v": 1.2, "predicted": 1.1},
        "speedup": {"median": 1.2, "low": 1.1, "high": 1.3},
        "bytes_read": 3e6,
    },
})  # fmt: skip


def weights() -> Differences:
    """The tables of types of weights."""
    results = _WEIGHTS
    rows = {row["arm"]: row for row in precision.speed_rows(results, 4, [precision.ORACLE, "int8", "late"], 11)}
    (told,) = precision.text_rows(results, [1, 8], ["int8"])
    (draft,) = precision.draft_rows(results, "code", [4], ["int8, 4 ahead"])
    found = {
        "tokens/s": rows["int8"]["tokens/s"],
        "first": rows["int8"]["ms to first"],
        "after": rows["int8"]["ms a token after"],
        "over": (str(rows["int8"]["over native float32"]), rows["late"]["over native float32"]),
        "text": {name: value for name, value in told.items() if name != "arm"},
        "draft": {name: str(value) for name, value in draft.items()},
    }
    expected = {
        "tokens/s": f"{44 / 0.8:,.0f}",
        "first": "100.00",
        "after": "70.000",
        "over": ("2.50 (2.00 .. 3.00)", None),
        "text": {
            "MB read": "2.0",
            "changed, batch 1": "10 of 100",
            "changed, batch 8": "20 of 100",
            "as its reference": "99 of 100",
            "exact answers": "25.00%",
            "bits per byte of code": "1.2500",
            "s to make": "1.5",
        },
        "draft": {
            "batch": "4",
            "view": "int8, 4 ahead",
            "MB read": "3.0",
            "tau": "2.50",
            "alpha": "0.80",
            "c": "0.30",
            "v": "1.20",
            "predicted": "1.10",
            "speed-up": "1.20 (1.10 .. 1.30)",
        },
    }
    return differences(found, expected)


def _marked(prompts: torch.Tensor, mark: Callable[[], None]) -> torch.Tensor:
    """Say twice that a token is there; the first time counts."""
    mark()
    mark()
    return prompts


_STUDIED = {
    stack.NAIVE: {"seconds": [4.0, 8.0, 6.0], "first_token_seconds": [0.5] * 3, "interleaved": "now"},
    "prefill": {"seconds": [2.0, 2.5, 3.0], "first_token_seconds": [0.5] * 3, "interleaved": "now"},
    "compiled step": {"seconds": [1.0, 2.0, 1.5], "first_token_seconds": [0.25, 0.75, 0.5], "interleaved": "now"},
}


def _studied() -> Any:
    """Return what the study keeps of three arms, at batch 2."""
    first = {"load_seconds": 1.0, "first_seconds": 9.0, "later_seconds": 2.0, "peak_bytes": 3e6}
    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    for name, one in _STUDIED.items():
        found |= {(stack_study.TIME, 2, name): one, (stack_study.FIRST, 2, name): first}
        found[stack_study.GATE, 2, name] = {"prompts": 10, "same": 9, "exact": 4}
    return _Results(found)


def ideas() -> Differences:
    """The tables of an engine built idea by idea: speeds, what caching saves, when compiling has paid."""
    results, times = _studied(), _STUDIED
    subject: Any = SimpleNamespace(name="arithmetic", num_new=5, prompt_length=3, sources=("compiled step",))
    arms: Any = {name: SimpleNamespace(weight_bytes=4) for name in times}
    with (
        patch.object(stack, "arms_of", lambda subject, kinds: arms),
        patch.object(stack_study, "arms_of", lambda subject, kinds: arms),
        patch.object(stack_study, "is_passed", lambda gate: True),
        patch.object(stack, "least_seconds", lambda subject, results, batch, size: 0.3),
    ):
        options: Any = SimpleNamespace(batches=[2])
        study = stack_study.StackStudy(options, results, subject, arms)
        rows = {row["arm"]: row for row in stack.stack_rows(study, 2)}
        (ratio,) = stack.ratio_rows(study)
        (paid,) = stack.payback_rows(study)
    own = rows["compiled step"]
    clock = iter([1.0, 2.0, 5.0])
    with patch.object(stack_timing, "time", SimpleNamespace(perf_counter=lambda: next(clock))):
        generated = stack_timing.generation(_marked, torch.zeros(1, 1), torch.device("cpu"))
    names = ("tokens/s", "ms a batch", "ms an example", "ms to first", "ms a token after", "roofline", "same ids")
    found = {
        **{name: own[name] for name in (*names, "exact answers", "first call s", "peak MB")},
        "over naive": str(own["over naive"]),
        "undrafted": (ratio["best without drafts"], str(ratio["its ratio"]), stack._original(subject, 8)),
        "ratio": (ratio["best arm"], str(ratio["over naive"]), ratio["fewer token passes"]),
        "paid": (paid["arm"], paid["first call costs s"], paid["saves ms a batch"], paid["pays after requests"]),
        "generation": generated[1:],
    }
    expected = {
        "tokens/s": f"{2 * 5 / 1.5:,.0f}",
        "ms a batch": "1500.0",
        "ms an example": "750.00",
        "ms to first": "500.0",
        "ms a token after": "250.00",
        "roofline": "20%",
        "same ids": "9 of 10",
        "exact answers": "40.00%",
        "first call s": "9.00",
        "peak MB": "3",
        "over naive": "4.00 (4.00 .. 4.00)",
        "undrafted": ("prefill", "2.00 (2.00 .. 3.20)", {"original study": f"{2252.3 / 222.2:.2f}"}),
        # Passes of 3, 4, 5, 6 and 7 tokens in place of seven of one.
        "ratio": ("compiled step", "4.00 (4.00 .. 4.00)", f"{25 / 7:.2f}"),
        # A batch is a second faster than with a prefill; 7 s are paid by seven of two requests.
        "paid": ("compiled step", "7.00", "1000.0", "14"),
        "generation": (1.0, 4.0),
    }
    return differences(found, expected)


def shapes() -> Differences:
    """The table of trees: theory beside the run."""
    made = hand()
    known: Any = SimpleNamespace(acceptance_by_rank=(0.5, 0.4))
    known.parts = lambda tree: SimpleNamespace(speedup=1.25 + tree.num_nodes)
    (row,) = trees.rows_of(made.outcome, {DRAFTED: Kary(2, 2)}, known)
    runs = [one for run in made.runs(DRAFTED) for one in run.rows]
    own = made.stats(DRAFTED)
    found = {name: value for name, value in row.items() if name not in ("shape", "decoding alone", "end to end")}
    expected = {
        "nodes": 6,
        "depth": 2,
        "nodes per step": sum(one.drafted for one in runs) / len(runs),
        "tau": sum(len(one.tokens) for one in runs) / len(runs),
        "tau full": own.num_emitted_full / own.num_steps_full,
        "tau, theory": 1 + 0.7 + 0.49,
        "decoding alone, theory": 7.25,
    }
    return differences(found, expected)


STATISTICS = (theory, least, rooflines, passes, sequences, weights, ideas, shapes)
MUTANTS = line_mutants(
    (expected_tokens, "range(gamma + 1)", "range(gamma)", theory, "expected tokens"),
    (walltime_improvement, "(gamma * c + 1.0)", "(c + 1.0)", theory, "improvement"),
    (operations_factor, "gamma * c_hat + gamma + 1.0", "gamma * c_hat + gamma", theory, "operations"),
    (optimal_gamma, "power * (gamma * c + 1.0) >", "power >", theory, "best"),
    (lockstep_expected_tokens, "alpha**batch", "alpha / batch", theory, "lock-step"),
    (predicted_speedup, "(width_cost + propose_cost + other_cost)", "(width_cost + propose_cost)", theory, "predicted"),
    (coupled_acceptance, "np.maximum(p[None, :]", "np.minimum(p[None, :]", theory, "coupled"),
    (independent_draws_optimum, "** num_draws", "* num_draws", theory, "of two draws"),
    (acceptance_of_ranks, "1.0 - rates", "rates", theory, "ranks"),
    (expected_tree_tokens, "1.0 + float", "float", theory, "tree"),
    (WidthCurve.at, "+ slope * beyond", "", theory, "width"),
    (WidthCurve.of_seconds, "np.maximum.accumulate", "np.sort", theory, "of seconds"),
    (pass_cost, "2 * shape.head_weights * logits", "2 * shape.head_weights", least, "flops"),
    (prefill_costs, "num_logits=int(at + chunk >= length)", "num_logits=1", least, "prefill"),
    (visible_positions, "(width - growing) * window", "width * window", least, "seen"),
    (WidthCurve.linear, "(1.0, 1.0 + node_cost)", "(1.0, 1.0 + node_cost / 2)", theory, "linear"),
    (limits.machine_rows, "mb * 1e6", "mb * 1e3", passes, "machine"),
    (limits.prefill_rows, "least = sum(", "least = max(", sequences, "share"),
    (Roofline.seconds, "max(cost", "min(cost", rooflines, "seconds"),
    (Roofline.attainable, "min(self", "max(self", rooflines, "ridge"),
    (break_even_width, "return high", "return low", rooflines, "break-even"),
    (kv_cache_bytes, "min(length, shape.window)", "length", least, "cache"),
    (context_of_equal_bytes, "(num_rows * shape", "(shape", least, "equal"),
    (attention_work_naive, "t * t for t", "t for t", least, "naive"),
    (attention_work_cached, "visible_positions(prompt - 1, 0)", "prompt", least, "cached"),
    (best_draft_length, "width_cost(length + 1)", "width_cost(max(length, 1))", rooflines, "best length"),
    (limits.pass_rows, "roofline.share(cost, seconds.median)", "roofline.share(cost, seconds.low)", passes, 1),
    (limits.pass_rows, '"memory" if roofline', '"memory" if not roofline', passes, 3),
    (limits.width_rows, "seconds.median <= FREE * one", "seconds.low <= FREE * one", passes, "free"),
    (limits.context_rows, 'group.curves["measured"]', 'group.curves["roofline"]', passes, "v(3)"),
    (LimitPasses.best_draft, "max(self.seconds) - 1", "max(self.seconds)", passes, "sure gains"),
    (LimitPasses.curves, "spread.median for", "spread.high for", passes, "v(3)"),
    (
        limits.window_rows,
        "times[0].median / times[1].median",
        "times[0].low / times[1].low",
        sequences,
        "faster, width 3",
    ),
    (
        limits.prefill_rows,
        "length / prefill.seconds.median",
        "prefill.chunk / prefill.seconds.median",
        sequences,
        "tokens/s",
    ),
    (limits.prefill_rows, "prefill.longest.median", "prefill.seconds.median", sequences, "longest pass ms"),
    (
        limits.cache_rows,
        "kv_cache_bytes(stored, context)",
        "kv_cache_bytes(shape, context)",
        sequences,
        "MB at 10",
    ),
    (limits.attention_rows, "with_prefill=True", "with_prefill=False", sequences, "its ratio"),
    (precision.speed_rows, "batch * num_new / total", "num_new / total", weights, "tokens/s"),
    (stack_timing.speed_over, "b / a for a, b", "a / b for a, b", weights, "over"),
    (precision._format_changes, "found['prompts'] - found['same']", "found['same']", weights, "text"),
    (precision._reference_share, "min(pairs)", "max(pairs)", weights, "text"),
    (stack._speed_cells, "batch * new / total", "new / total", ideas, "tokens/s"),
    (stack_timing.speed_over, "Spread.of([b / a", "Spread.of([a / b", ideas, "over naive"),
    (
        stack.ratio_rows,
        "sum(range(before, after)) / (after - 1)",
        "sum(range(before, after)) / after",
        ideas,
        "ratio",
    ),
    (stack.ratio_rows, "if name not in subject.sources", "", ideas, "undrafted"),
    (stack._original, "pair[1] / pair[0]", "pair[0] / pair[1]", ideas, "undrafted"),
    (stack.payback_rows, "/ saved * batch", "/ saved", ideas, "paid"),
    (
        stack.payback_rows,
        'first["first_seconds"] - first["later_seconds"]',
        'first["first_seconds"]',
        ideas,
        "paid",
    ),
    (stack_timing.generation, "first[0] - began", "ended - began", ideas, "generation"),
    (trees.rows_of, "stats.num_drafted / stats.num_steps", "shape.max_nodes", shapes, "nodes per step"),
)
