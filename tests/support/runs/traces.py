"""Node records made up: many steps of one tree, as ``NodeRecords.columns`` has them."""

import numpy as np

from experiments.harness.tracing import TokenText
from experiments.report.page import Section, page
from experiments.report.traces import Prompts, trace_data, viewer_section

# Two children of the pending token, and what hangs on them.
PARENTS = np.array([-1, -1, 0, 0, 1, 2, 3, 5])
RANKS = np.array([0, 1, 0, 1, 0, 0, 0, 0])
DEPTHS = np.array([1, 1, 2, 2, 2, 3, 3, 4])
# Accepted nodes of a step, from none to a whole path.
WALKS = [[], [0], [1], [0, 2], [0, 3], [1, 4], [0, 2, 5], [0, 2, 5, 7]]
WORDS = ["the", " of", "\n", "    ", "return", "\t", " é", "(x)", "</script><b>", "\u202e", "=", '"']


def synthetic(
    num_steps: int, num_words: int = 2000, num_prompts: int = 1
) -> tuple[dict[str, np.ndarray], tuple[Prompts, dict[int, TokenText]]]:
    """Return columns of so many steps, nine rows each, and their texts; the steps are shared out among prompts."""
    draws = np.random.default_rng(0)
    width = len(PARENTS) + 1
    rows, walk = num_steps * width, draws.integers(len(WALKS), size=num_steps)
    is_accepted = np.array([[node in kept for node in range(width)] for kept in WALKS])[walk]
    stop = np.array([kept[-1] if kept else -1 for kept in WALKS])[walk]
    is_leaf = ~np.isin(stop, PARENTS)
    drawn_kind = np.where(is_leaf, "bonus", "recovered")[:, None]
    p, q, confidence = draws.random((3, rows))
    seconds = {name: 1e-5 * draws.random(rows) for name in ("propose", "score", "verify", "commit")}
    step = np.repeat(np.arange(num_steps), width)
    per_prompt = -(-num_steps // num_prompts)
    is_drawn = np.tile(np.arange(width) == width - 1, num_steps)
    source = np.where(np.arange(rows) % 2 == 0, "lookup", "small_transformer").astype(object)
    source[is_drawn] = None
    columns = {
        "request": step // per_prompt,
        "step": step % per_prompt,
        "node": np.tile([*range(width - 1), -1], num_steps),
        "token": draws.integers(num_words, size=rows),
        "parent": np.column_stack([np.tile(PARENTS, (num_steps, 1)), stop]).ravel(),
        "depth": np.column_stack([np.tile(DEPTHS, (num_steps, 1)), is_accepted.sum(1) + 1]).ravel(),
        "rank": np.tile([*RANKS, -1], num_steps),
        "kind": np.column_stack([np.full((num_steps, width - 1), "draft"), drawn_kind]).ravel(),
        "source": source,
        "q": np.where(is_drawn, np.nan, q),
        "confidence": np.where(is_drawn, np.nan, confidence),
        "logprob": np.log(p),
        "accepted": is_accepted.ravel(),
        "emitted": is_accepted.ravel() | is_drawn,
        **{f"seconds_{name}": taken for name, taken in seconds.items()},
    }
    texts = {i: WORDS[i] if i < len(WORDS) else f" word{i}" for i in range(num_words)}
    return columns, ([(f"prompt {i}", [0, 1, 2]) for i in range(num_prompts)], {**texts, 12: [0xE2, 0x80]})


def synthetic_section(num_steps: int, name: str = "trace-synthetic", **options: int) -> Section:
    """Return a section of made-up records."""
    columns, texts = synthetic(num_steps, **options)
    data = trace_data(columns, *texts)
    return viewer_section(name, "trace-synthetic", "synthetic", data, ["Made up."])


def synthetic_page(num_steps: int, **options: int) -> str:
    """Return a page with a section of made-up records."""
    return page("Made-up records", [synthetic_section(num_steps, **options)])
