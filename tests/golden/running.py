"""What a golden case gives, and short hashes of it."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tqdm import tqdm

from specdec import SpeculativeDecoder
from specdec.engine.result import Result
from specdec.stats import Stats
from tests.golden.cases import MAKES, SAMPLINGS, Case
from tests.golden.worlds import world

# "bits" are those of the log-probabilities: they are compared on one machine only.
# No case shares prefixes.
_OF_PREFIXES = ("num_prefix_tokens", "num_draft_prefix_tokens", "num_evicted_pages", "most_pages")
PARTS = ("ids", "records", "stats", "logprobs", "bits")
# Torch's logarithms differ from one machine to another by about 1e-15.
GRID = 2**24
ABSENT = "-"
SEED = 7


def run(case: Case, backend: str) -> Result:
    """Return what a case gives, by a source of its own, so that no earlier run has left anything in it."""
    here = world(case.world, backend)
    source = MAKES[case.world][case.source](here.models)
    params = SAMPLINGS[case.sampling]
    return SpeculativeDecoder(source.needs.cache_of or here.target, source, case.rule).generate(
        here.prompts,
        here.max_new_tokens,
        [params[i % len(params)] for i in range(len(here.prompts))],
        SEED,
        here.stops,
        case.batch,
        case.return_logprobs,
    )


def content(result: Result) -> dict[str, Any]:
    """Return the parts of a result as plain types, without times."""
    columns = result.records.columns()
    stats = result.stats
    return {
        "ids": {"tokens": result.tokens, "texts": result.texts, "finish_reasons": result.finish_reasons},
        # Log-probabilities are parts of their own.
        "records": {name: rows for name, rows in columns.items() if name != "logprobs" and "seconds" not in name},
        "stats": {
            "run": _counts(stats),
            "requests": [_counts(request) for request in stats.requests],
            "exactness": result.exactness,
        },
        "logprobs": _each(lambda one: round(one * GRID), result.logprobs),
        "bits": _each(float.hex, result.logprobs),
    }


def line(result: Result) -> str:
    """Return a hash of each of ``PARTS``, with spaces between; ``ABSENT`` for what nobody asked for."""
    found = content(result)
    return " ".join(ABSENT if found[part] is None else _hash(found[part]) for part in PARTS)


def lines(cases: Iterable[Case], backend: str) -> dict[str, str]:
    """Return the hashes of what cases give, by the cases' names, and show how far it is."""
    bar = tqdm(list(cases), disable=None, unit=" cases")
    return {str(case): line(run(case, backend)) for case in bar}


def _hash(part: Any) -> str:
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:8]


def _each(change: Callable[[float], Any], rows: list[list[float]] | None) -> list[list[Any]] | None:
    return None if rows is None else [[change(one) for one in row] for row in rows]


def _counts(stats: Stats) -> dict[str, Any]:
    return _without_times({name: value for name, value in stats.as_dict().items() if name not in _OF_PREFIXES})


def _without_times(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    return {name: _without_times(value) for name, value in part.items() if "seconds" not in name}
