"""What a draft is worth on recorded text: how much of its chains the teacher would keep."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.factory.dialogues.corpus import Corpus
from oracles.transformer.draft_vocabulary import DraftHead, column_of_id
from oracles.transformer.eager import Transformer
from specdec.stats import Table

# Tokens before an answer that the draft reads.
CONTEXT = 1024
DEPTH = 4


@dataclass(frozen=True)
class _Answer:
    """Of each token of an answer: does the draft's likeliest id hit, and with which probability is a drawn one kept?

    Attributes:
        kind, temperature: of the answer.
        hits: ``[T]`` whether the draft's likeliest id is the teacher's.
        kept: ``[T]`` the sum of the smaller one of both probabilities.
        covered: ``[T]`` what the teacher expects of ids that the draft writes.
    """

    kind: str
    temperature: float
    hits: Tensor
    kept: Tensor
    covered: Tensor


def worth(model: Transformer, corpus: Corpus) -> dict[str, dict[str, float]]:
    """Return what a draft is worth, by kind of conversation and over "all".

    Returns:
        By kind: "tokens"; "hit" and "kept", the shares of first positions at which a greedy and a drawn token stand;
        "covered", the teacher's mass on ids that the draft writes; "tau_greedy" and "tau_drawn", tokens a pass in
        chains of 4, the bonus counted. Greedy ones are replayed on the answers that were written at temperature 0,
        which is exact; drawn ones are the mean over all beginnings on the others. NaN where there is no such answer.
    """
    answers = list(_answers(model, corpus))
    by_kind: dict[str, list[_Answer]] = defaultdict(list)
    for one in answers:
        by_kind[one.kind].append(one)
    return {kind: _worth(some) for kind, some in [*sorted(by_kind.items()), ("all", answers)]}


def table_of(split: str, found: dict[str, dict[str, float]]) -> Table:
    """Return it as a table, of a split."""
    told = {kind: {name: f"{x:,.3f}".removesuffix(".000") for name, x in row.items()} for kind, row in found.items()}
    return Table(split, [{"of": kind, **row} for kind, row in told.items()])


def _worth(answers: Sequence[_Answer]) -> dict[str, float]:
    def mean(parts: Sequence[Tensor]) -> float:
        return torch.cat(list(parts)).float().mean().item() if parts else float("nan")

    greedy = [one.hits.tolist() for one in answers if one.temperature == 0]
    drawn = [_tokens_per_pass(one.kept) for one in answers if one.temperature > 0]
    return {
        "tokens": float(sum(len(one.hits) for one in answers)),
        "hit": mean([one.hits for one in answers]),
        "kept": mean([one.kept for one in answers]),
        "covered": mean([one.covered for one in answers]),
        "tau_greedy": sum(map(len, greedy)) / sum(map(_passes, greedy)) if greedy else float("nan"),
        "tau_drawn": mean(drawn),
    }


def _passes(hits: Sequence[bool]) -> int:
    """Return the passes that write an answer, when chains of ``DEPTH`` are drafted."""
    at = count = 0
    while at < len(hits):
        run = hits[at : at + DEPTH]
        at += (run.index(False) if False in run else len(run)) + 1
        count += 1
    return count


def _tokens_per_pass(kept: Tensor) -> Tensor:
    """Return the tokens that a pass is expected to emit after each position from which a whole chain fits."""
    if len(kept) < DEPTH:
        return kept[:0]
    return 1 + kept.unfold(0, DEPTH, 1).cumprod(1).sum(1)


@torch.no_grad()
def _answers(model: Transformer, corpus: Corpus) -> Iterator[_Answer]:
    head = model.lm_head
    assert isinstance(head, DraftHead)
    column_of = column_of_id(head.target_ids, head.vocab_size)
    for (begin, start, stop, temperature), kind in zip(corpus.spans, corpus.kinds, strict=True):
        first = max(begin, start - CONTEXT)
        stream = model.streams(corpus.ids[first : stop - 1].long().unsqueeze(0))[-1][0, start - first - 1 :]
        law = head.columns(model.model.norm(stream)).softmax(-1)
        places = corpus.answer_of[start:stop].long()
        ids, probs = corpus.likeliest_ids[places].long(), corpus.likeliest_logprobs[places].float().exp()
        columns = column_of[ids]
        probs = probs * (columns >= 0)
        kept = torch.minimum(probs, law.gather(1, columns.clamp(min=0)))
        hits = head.target_ids[law.argmax(-1)] == ids[:, 0]
        yield _Answer(kind, temperature, hits, kept.sum(1), probs.sum(1))
