"""What is told of tokens, and small parts of the decoder that decide them: each by a case of its own."""

import zlib

import numpy as np
import torch

from oracles.checkpoints.loading import load_tokenizer
from oracles.tabular import TabularLM
from specdec import Draft, SpeculativeDecoder
from specdec.cache import SlotCache
from specdec.contracts import Scores
from specdec.engine import verification
from specdec.laws import Laws
from specdec.requests import Request, TextHolder, first_stop, stopping
from specdec.sampling import SamplingParams
from specdec.sampling.randomness import part_number
from specdec.verify import MultiDraft, multi_draft
from tests.support.line_mutants import Differences, differences, line_mutants
from tests.support.models.counting import Counting, guessing, letters


def full_steps() -> Differences:
    """Which steps the budget shortened, of drafts of three that are all right, and of eleven tokens."""
    result = SpeculativeDecoder(Counting(), guessing(3)).generate([[1, 2]], 12)
    columns = result.records.columns()
    room = [12 - (committed - 2) - 1 for committed in columns["num_committed"]]
    found = {"room": room, "shortened": [bool(one) for one in columns["shortened"]]}
    found["tau full"] = result.stats.block_efficiency_full
    # Tokens 0 to 3, 4 to 7, 8 to 11: the last step has room for just the draft and the token after it.
    return differences(found, {"room": [11, 7, 3], "shortened": [False] * 3, "tau full": 4.0})


class _Single(TabularLM):
    """An oracle that scores in single precision, and keeps what it said."""

    def score(self, *args, **named):
        scores = super().score(*args, **named)
        logits = None if scores.logits is None else scores.logits.float()
        self.said = logits
        return Scores(logits, scores.hidden)


def logprobs() -> Differences:
    """Log-probabilities of a greedy row: of the scores as they are, in double precision."""
    oracle = _Single(torch.tensor([[0.1, 0.6, 0.3], [0.3, 0.1, 0.6], [0.7, 0.2, 0.1]], dtype=torch.float64))
    result = SpeculativeDecoder(oracle).generate([[0]], 1, return_logprobs=True)
    last = oracle.said[0, -1].double()
    expected = float((last - last.logsumexp(0))[result.tokens[0][0]])
    assert result.logprobs is not None
    return differences({"logprob": result.logprobs[0][0]}, {"logprob": expected}, rel=1e-14)


def held_text() -> Differences:
    """Text that may become a stop string is held back from where the longest overlap begins."""
    tokenizer = letters(("a", "b", "x"))
    holder = TextHolder(tokenizer, ["abab"])
    pieces = [holder.push([2, 0, 1, 0][:count], final=False) for count in range(1, 5)]
    found = {"pieces": pieces, "end": holder.push([2, 0, 1, 0], final=True)}
    return differences(found, {"pieces": ["x", "", "", ""], "end": "aba"})


def windows() -> Differences:
    """A stop of half a character and letters: the output holds it nowhere, though a window may begin in a character."""
    tokenizer = load_tokenizer("code")
    half, letter = tokenizer.encode("é").ids, tokenizer.token_to_id("a")
    output, stop = [letter, *half], "\ufffdaa"
    request = Request(np.array([0]), 99, SamplingParams(), (stop,), (), 0)
    places = []
    for _ in range(9):
        output.append(letter)
        places.append(first_stop(request, tokenizer, output, 1))
    # A broken character and two letters are such a stop.
    broken = [half[0], letter, letter]
    found = {"places": places, "broken": first_stop(request, tokenizer, broken, 3)}
    return differences(found, {"places": [1] * 9, "broken": 2})


def parts() -> Differences:
    """Numbers of parts of a path: those of names are none of those of ints."""
    names = ("draft", "accept", "stage")
    sums = [zlib.crc32(name.encode()) for name in names]
    numbers = {part_number(number + off) for number in sums for off in (0, 1)}
    numbers |= {part_number(2 * number + off) for number in sums for off in (0, 1)}
    found = {
        "names among ints": [part_number(name) in numbers for name in names],
        "ints": len({part_number(number) for number in (*range(9), *sums)}),
        "odd": [part_number(name) % 2 for name in names],
    }
    return differences(found, {"names among ints": [False] * 3, "ints": 12, "odd": [1] * 3})


def reused_rows() -> Differences:
    """A row that is reused has no slots of its predecessor booked: they can be neither kept nor built on."""
    cache, row = TabularLM.random(3, 1, seed=0).new_cache(1, 8), np.array([0])
    cache.reserve(row, 5)
    cache.commit(row, None, np.array([5]))
    cache.reset(row)
    found: dict[str, object] = {"length": int(cache.lengths[0])}
    for name, call in {
        "kept": lambda: cache.commit(row, None, np.array([3])),
        "built on": lambda: cache.reserve(row, 4, first=2),
    }.items():
        try:
            call()
            found[name] = "taken"
        except ValueError:
            found[name] = "refused"
    return differences(found, {"length": 0, "kept": "refused", "built on": "refused"})


def certain() -> Differences:
    """A child whose law leaves nothing of the target's, up to rounding, is accepted for certain."""
    q = torch.tensor([[[0.6, 0.4]]], dtype=torch.float64)
    target = torch.tensor([[[0.6 - 1e-12, 0.4], [0.5, 0.5]]], dtype=torch.float64)
    draft = Draft(
        tokens=torch.tensor([[0]]), num_nodes=torch.tensor([1]), parents=torch.tensor([[-1]]), laws=Laws.from_probs(q)
    )
    stop = MultiDraft()(draft, Laws.from_probs(target)).stop_probs
    return differences({"stops": stop.flatten().tolist()}, {"stops": [0.0, 1.0]})


STATISTICS = (full_steps, logprobs, held_text, windows, parts, reused_rows, certain)
MUTANTS = line_mutants(
    (
        SpeculativeDecoder._frame,
        "room < np.minimum(",
        "room <= np.minimum(",
        full_steps,
        "shortened",
    ),
    (verification.log_probs_at, ".double()", "", logprobs, "logprob"),
    (
        stopping._overlap,
        "range(min(len(stop) - 1, len(text)), 0, -1)",
        "range(1, min(len(stop), len(text) + 1))",
        held_text,
        "pieces",
    ),
    (stopping._ends_in, " and not before.startswith(UNFINISHED)", "", windows, "places"),
    (part_number, "* 2 + 1", "* 2", parts, "names among ints"),
    (SlotCache.reset, "self._written[rows] = 0", "pass", reused_rows, "kept"),
    (multi_draft._offer_all, "torch.where(has_rest | is_point[rows, parent], ratio, 1.0)", "ratio", certain, "stops"),
)
