"""Let a chat model write conversations with itself.

Source: Xu et al. 2024 (Magpie, arXiv 2406.08464): after the opening of a user's turn an instruct model writes a
question.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from oracles.chats.cleaning import Benchmarks, fault_of_question, plain_form
from oracles.chats.parts import Conversation, split_of
from oracles.chats.tasks import Task
from oracles.chats.teacher import Teacher
from specdec.contracts import Oracle
from specdec.engine import SpeculativeDecoder
from specdec.requests import SamplingParams

QUESTION_TOKENS, ANSWER_TOKENS = 256, 512
_Said = tuple[NDArray[np.uint16], NDArray[np.float16]]


@dataclass(frozen=True)
class Turns:
    """How turns are marked: ChatML's marks, as the template of SmolLM2 writes them.

    Attributes:
        tokenizer: of the model.
        begin: ids before the first user's turn, that of the system among them.
        between: ids after a question that ended, up to where the answer begins; the first ends the turn.
        again: ids after an answer that ended, up to where the next question begins.
        end: id that ends a turn.
        marks: ids of which none may stand within a turn.
    """

    tokenizer: Tokenizer
    begin: tuple[int, ...]
    between: tuple[int, ...]
    again: tuple[int, ...]
    end: int
    marks: frozenset[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, system: str) -> "Turns":
        """Return ChatML's marks, with a system's turn of this text."""

        def ids(text: str) -> tuple[int, ...]:
            return tuple(tokenizer.encode(text).ids)

        (end,) = ids("<|im_end|>")
        special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        return cls(
            tokenizer,
            begin=ids(f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n"),
            between=ids("<|im_end|>\n<|im_start|>assistant\n"),
            again=ids("\n<|im_start|>user\n"),
            end=end,
            marks=frozenset(special),
        )


@dataclass
class _Growing:
    """A conversation while it is written: ids after the system's turn, and what the teacher said of its answers."""

    task: Task
    place: int
    ids: list[int] = field(default_factory=list)
    answers: list[tuple[int, int]] = field(default_factory=list)
    said: list[_Said] = field(default_factory=list)


class Writer:
    """Write conversations, a part at a time.

    Args:
        oracle: a chat model with a tokenizer.
        turns: how its turns are marked.
        benchmarks: what no conversation may share 13 tokens with.
        batch_size: rows in flight.
        watch: is told after every step how many tokens it made.

    Attributes:
        seen: the plain forms of questions that were kept, which are not kept again.
        faults: why others were not, counted.
    """

    def __init__(
        self,
        oracle: Oracle,
        turns: Turns,
        benchmarks: Benchmarks,
        batch_size: int,
        watch: Callable[[int], object] = lambda count: None,
    ) -> None:
        self._teacher, self._turns, self._benchmarks = Teacher(oracle), turns, benchmarks
        self._tokenizer = turns.tokenizer
        self._decoder = SpeculativeDecoder(self._teacher, None)
        self._batch_size, self._watch = batch_size, watch
        self.seen: set[str] = set()
        self.faults: Counter[str] = Counter()

    def write(self, tasks: Sequence[Task], seed: Sequence[int]) -> list[Conversation]:
        """Return the conversations that come of some tasks; those with a fault are left out."""
        growing = self._asked([_Growing(task, i) for i, task in enumerate(tasks)], (*seed, 0))
        growing = self._answered(growing, (*seed, 1))
        two = [one for one in growing if one.task.kind == "two turns" and one.ids[-1] == self._turns.end]
        again = self._asked(two, (*seed, 2))
        self._answered(again, (*seed, 3))
        done = [self._conversation(one) for one in growing]
        clean = [one for one in done if not self._benchmarks.touch([int(i) for i in one.ids])]
        self.faults["overlap"] += len(done) - len(clean)
        return clean

    def _asked(self, growing: list[_Growing], seed: Sequence[int]) -> list[_Growing]:
        """Give each conversation its next question; return those whose question has no fault."""
        first = [not one.answers for one in growing]
        user = [one.task.user if begins else "" for one, begins in zip(growing, first, strict=True)]
        is_open = [one.task.is_open or not begins for one, begins in zip(growing, first, strict=True)]
        waiting = [one for one, writes in zip(growing, is_open, strict=True) if writes]
        starts = [self._history(one) + self._ids(text) for one, text in zip(growing, user, strict=True)]
        prompts = [start for start, writes in zip(starts, is_open, strict=True) if writes]
        texts = iter(self._run(prompts, waiting, [1.0] * len(waiting), QUESTION_TOKENS, seed))
        kept = []
        for one, text, writes in zip(growing, user, is_open, strict=True):
            question = text
            if writes:
                ids, _ = next(texts)
                ended = ids[-1] == self._turns.end
                ids = ids[:-1] if ended else ids
                added = str(self._tokenizer.decode(ids))
                question = (text + added).strip()
                fault = self._fault(one.task, question, added, ids, ended)
                if fault is not None:
                    self.faults[fault] += 1
                    continue
            one.ids += list(self._turns.again) * bool(one.answers) + self._ids(question) + list(self._turns.between)
            kept.append(one)
        return kept

    def remember(self, one: Conversation) -> None:
        """Take the questions of a conversation that stands as seen."""
        begins = [0, *(stop for _, stop in one.answers)]
        for begin, (start, _) in zip(begins, one.answers, strict=False):
            ids = [int(i) for i in one.ids[begin:start]]
            ids = ids[len(self._turns.again) * bool(begin) : -len(self._turns.between)]
            self.seen.add(plain_form(str(self._tokenizer.decode(ids))))

    def _fault(self, task: Task, question: str, added: str, ids: list[int], ended: bool) -> str | None:
        """Return why a question that the model wrote is not kept; one that is kept is remembered."""
        if self._turns.marks.intersection(ids):
            return "a mark"
        is_english = task.kind != "translation"
        fault = fault_of_question(added if task.source else question, ids, ended, is_english)
        form = plain_form(question)
        if fault is None and form in self.seen:
            return "a duplicate"
        if fault is None:
            self.seen.add(form)
        return fault

    def _answered(self, growing: list[_Growing], seed: Sequence[int]) -> list[_Growing]:
        prompts = [list(self._turns.begin) + one.ids for one in growing]
        temperatures = [one.task.temperature for one in growing]
        for one, (ids, said) in zip(
            growing, self._run(prompts, growing, temperatures, ANSWER_TOKENS, seed), strict=True
        ):
            one.answers.append((len(one.ids), len(one.ids) + len(ids)))
            one.ids += ids
            one.said.append(said)
        return growing

    def _run(
        self,
        prompts: list[list[int]],
        growing: Sequence[_Growing],
        temperatures: list[float],
        most: int,
        seed: Sequence[int],
    ) -> list[tuple[list[int], _Said]]:
        """Return what is written after each prompt, with what the teacher said of it."""
        if not prompts:
            return []
        seeds = [(*seed, one.place) for one in growing]
        sampling = [SamplingParams(temperature=temperature) for temperature in temperatures]
        state = self._decoder.start(prompts, most, sampling, seeds, batch_size=self._batch_size)
        said: list[list[tuple[NDArray[np.uint16], NDArray[np.float16]]]] = [[] for _ in prompts]
        while state.has_work:
            state, info = self._decoder.step(state)
            assert self._teacher.likeliest is not None
            ids, laws = self._teacher.likeliest
            for row, request in enumerate(info.requests):
                said[request].append((ids[row], laws[row]))
            self._watch(len(info.requests))
        outputs = self._decoder.finish(state).tokens
        joined = ((np.stack([i for i, _ in one]), np.stack([law for _, law in one])) for one in said)
        return list(zip(outputs, joined, strict=True))

    def _history(self, one: _Growing) -> list[int]:
        return [*self._turns.begin, *one.ids, *(self._turns.again if one.answers else ())]

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _conversation(self, one: _Growing) -> Conversation:
        begins = one.ids[: one.answers[0][0]]
        source = one.task.source or plain_form(str(self._tokenizer.decode(begins)))
        said = tuple(np.concatenate(parts) for parts in zip(*one.said, strict=True))
        kind = one.task.kind if len(one.answers) > 1 or one.task.kind != "two turns" else "chat"
        task = replace(one.task, kind=kind)
        return Conversation(
            np.array(one.ids[: one.answers[-1][1]], dtype=np.uint16),
            tuple(one.answers),
            task.kind,
            task.temperature,
            split_of(source),
            said,  # type: ignore[arg-type]
        )
