"""Let a chat model write conversations with itself.

Source: Xu et al. 2024 (Magpie, arXiv 2406.08464): after the opening of a user's turn an instruct model writes a
question.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from tokenizers import Tokenizer

from oracles.factory.corpus.passage_index import PassageIndex
from oracles.factory.dialogues.dialogue_parts import Conversation, split_of
from oracles.factory.dialogues.dialogue_tasks import DialogueTask
from oracles.factory.evaluation.loops import loop_mask
from specdec.contracts import Oracle
from specdec.engine import SpeculativeDecoder
from specdec.sampling import SamplingParams

QUESTION_TOKENS, ANSWER_TOKENS = 256, 512
# The system turn of SmolLM2's template.
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
# Of a question.
MOST_CHARS = 1200
# The largest share of non-ASCII letters in an English question.
FOREIGN = 0.02
_WORDS = """
a an and any are as at be by can do does for from had has have how i if in is it me my of on or please that the there
this to was we were what when where which who why will with would you your write
"""
_COMMON = frozenset(_WORDS.split())


@dataclass(frozen=True)
class TurnMarks:
    """How turns are marked: ChatML's marks, as the template of SmolLM2 writes them.

    Attributes:
        tokenizer: of the model, but control tokens in a text are plain text to it.
        begin: ids before the first user's turn, the system's turn among them.
        between: ids after a finished question, up to where the answer begins; the first ends the turn.
        again: ids after a finished answer, up to where the next question begins.
        end: id that ends a turn.
        marks: ids that may not occur within a turn.
    """

    tokenizer: Tokenizer
    begin: tuple[int, ...]
    between: tuple[int, ...]
    again: tuple[int, ...]
    end: int
    marks: frozenset[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, system: str) -> "TurnMarks":
        """Return ChatML's marks, with a system's turn of this text.

        Raises:
            ValueError: the tokenizer has no such marks.
        """
        if None in (tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("<|im_end|>")):
            raise ValueError(
                "the tokenizer has no <|im_start|> and <|im_end|>: give a chat model that marks its turns so"
            )

        def ids(text: str) -> tuple[int, ...]:
            return tuple(tokenizer.encode(text).ids)

        of_text = Tokenizer.from_str(tokenizer.to_str())
        of_text.encode_special_tokens = True
        return cls(
            of_text,
            begin=ids(f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n"),
            between=ids("<|im_end|>\n<|im_start|>assistant\n"),
            again=ids("\n<|im_start|>user\n"),
            end=ids("<|im_end|>")[0],
            marks=frozenset(i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special),
        )


@dataclass
class _Growing:
    """A conversation that is being written: ids after the system's turn."""

    task: DialogueTask
    place: int
    ids: list[int] = field(default_factory=list)
    answers: list[tuple[int, int]] = field(default_factory=list)

    @property
    def opening(self) -> str:
        """What the next question begins with."""
        return "" if self.answers else self.task.user

    @property
    def is_open(self) -> bool:
        """Whether the model writes the rest of the next question."""
        return bool(self.answers) or self.task.is_open


class Writer:
    """Write conversations, a part at a time.

    Args:
        oracle: a chat model with a tokenizer.
        turns: how its turns are marked.
        benchmarks: the passages that no conversation may hold.
        batch_size: rows in flight.
        watch: is told after every step how many tokens it made.

    Attributes:
        seen: the plain forms of kept questions, which are not kept again.
        faults: why other questions were refused, counted.

    Raises:
        ValueError: the oracle has more ids than 16 bits hold.
    """

    def __init__(
        self,
        oracle: Oracle,
        turns: TurnMarks,
        benchmarks: PassageIndex,
        batch_size: int,
        watch: Callable[[int], object] = lambda count: None,
    ) -> None:
        if oracle.vocab_size > 2**16:
            raise ValueError(
                f"the oracle has {oracle.vocab_size} ids, and parts hold ids of 16 bits: take another oracle"
            )
        self._turns, self._benchmarks, self._tokenizer = turns, benchmarks, turns.tokenizer
        self._decoder, self._max_context = SpeculativeDecoder(oracle, None), oracle.max_context
        self._batch_size, self._watch = batch_size, watch
        self.seen: set[str] = set()
        self.faults: Counter[str] = Counter()

    def write(self, tasks: Sequence[DialogueTask], seed: Sequence[int]) -> list[Conversation]:
        """Return the conversations that some tasks lead to; those with a fault are left out.

        *Guarantee*: they depend only on tasks, seed and the questions of earlier kept conversations, and not on
            the batch if the oracle's passes are ``bitwise``.
        """
        before = set(self.seen)
        growing = self._ask([_Growing(task, i) for i, task in enumerate(tasks)], (*seed, 0))
        growing = self._answer(growing, (*seed, 1))
        two = [one for one in growing if one.task.kind == "two turns" and one.ids[-1] == self._turns.end]
        again = self._ask(two, (*seed, 2))
        self._answer(again, (*seed, 3))
        done = [self._conversation(one) for one in growing]
        clean = [one for one in done if not self._benchmarks.find_overlaps([one.ids.tolist()])]
        self.faults["overlap"] += len(done) - len(clean)
        self.seen = before
        for one in clean:
            self.remember(one)
        return clean

    def _ask(self, growing: list[_Growing], seed: Sequence[int]) -> list[_Growing]:
        """Give each conversation its next question; return those whose question has no fault."""
        growing = [one for one in growing if not one.is_open or self._has_room(self._open_turns(one))]
        open_ones = [one for one in growing if one.is_open]
        prompts = [self._open_turns(one) for one in open_ones]
        outputs = self._run(prompts, open_ones, [1.0] * len(open_ones), QUESTION_TOKENS, seed)
        written = {one.place: ids for one, ids in zip(open_ones, outputs, strict=True)}
        return [one for one in growing if self._takes_question(one, written.get(one.place))]

    def _takes_question(self, one: _Growing, ids: list[int] | None) -> bool:
        """Append a question, the opening plus what the model wrote after it; tell whether it had no fault."""
        question = one.opening
        if ids is not None:
            ended = ids[-1] == self._turns.end
            ids = ids[:-1] if ended else ids
            added = str(self._tokenizer.decode(ids))
            question = (question + added).strip()
            fault = self._fault(one.task, question, added, ids, ended)
            if fault is not None:
                self.faults[fault] += 1
                return False
        turn = [*(self._turns.again if one.answers else ()), *self._ids(question), *self._turns.between]
        if not self._has_room([*self._turns.begin, *one.ids, *turn]):
            return False
        self.seen.add(plain_form(question))
        one.ids += turn
        return True

    def _has_room(self, prompt: Sequence[int]) -> bool:
        """Tell whether the oracle can write something after a prompt; count a fault if it cannot."""
        if len(prompt) < self._max_context:
            return True
        self.faults["beyond the context"] += 1
        return False

    def remember(self, one: Conversation) -> None:
        """Record the questions of an existing conversation as seen."""
        begins = [0, *(stop for _, stop in one.answers)]
        for begin, (start, _) in zip(begins, one.answers, strict=False):
            ids = [int(i) for i in one.ids[begin:start]]
            ids = ids[len(self._turns.again) * bool(begin) : -len(self._turns.between)]
            self.seen.add(plain_form(str(self._tokenizer.decode(ids))))

    def _fault(self, task: DialogueTask, question: str, added: str, ids: list[int], ended: bool) -> str | None:
        """Return why a question that the model wrote is not kept."""
        if self._turns.marks.intersection(ids):
            return "a mark"
        if plain_form(question) in self.seen:
            return "a duplicate"
        is_english = task.kind != "translation"
        return fault_of_question(added if task.source else question, ids, ended, is_english)

    def _answer(self, growing: list[_Growing], seed: Sequence[int]) -> list[_Growing]:
        prompts = [list(self._turns.begin) + one.ids for one in growing]
        temperatures = [one.task.temperature for one in growing]
        outputs = self._run(prompts, growing, temperatures, ANSWER_TOKENS, seed)
        for one, ids in zip(growing, outputs, strict=True):
            one.answers.append((len(one.ids), len(one.ids) + len(ids)))
            one.ids += ids
        return growing

    def _run(
        self,
        prompts: list[list[int]],
        growing: Sequence[_Growing],
        temperatures: list[float],
        most: int,
        seed: Sequence[int],
    ) -> list[list[int]]:
        """Return what the oracle writes after each prompt."""
        if not prompts:
            return []
        seeds = [(*seed, one.place) for one in growing]
        sampling = [SamplingParams(temperature=temperature) for temperature in temperatures]
        state = self._decoder.start(prompts, most, sampling, seeds, batch_size=self._batch_size)
        while state.has_work:
            state, info = self._decoder.step(state)
            self._watch(len(info.requests))
        return self._decoder.finish(state).tokens

    def _open_turns(self, one: _Growing) -> list[int]:
        """Return a conversation up to where the model writes its next question, or the rest of it."""
        again = self._turns.again if one.answers else ()
        return [*self._turns.begin, *one.ids, *again, *self._ids(one.opening)]

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _conversation(self, one: _Growing) -> Conversation:
        question = one.ids[: one.answers[0][0]]
        stopped = one.task.kind == "two turns" and len(one.answers) == 1
        return Conversation(
            ids=np.array(one.ids, dtype=np.uint16),
            answers=tuple(one.answers),
            kind="chat" if stopped else one.task.kind,
            temperature=one.task.temperature,
            split=split_of(one.task.source or plain_form(str(self._tokenizer.decode(question)))),
        )


def begin_of(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids before the first user's words."""
    return TurnMarks.of(tokenizer, SYSTEM).begin


def fault_of_question(text: str, ids: Sequence[int], ended: bool, is_english: bool = True) -> str | None:
    """Return why a question is not kept, or None.

    Args:
        text: what the model wrote as the user's turn, or as its continuation.
        ids: the same as ids.
        ended: whether the turn ended by itself.
        is_english: whether it must be English.
    """
    words = re.findall(r"[^\W\d_]+", text.lower())
    letters = [c for c in text if c.isalpha()]
    if not ended:
        return "no end"
    if len(words) < 2 or len(text) > MOST_CHARS:
        return "too short or too long"
    if is_english and sum(not c.isascii() for c in letters) > FOREIGN * len(letters):
        return "another language"
    if is_english and not _COMMON.intersection(words):
        return "another language"
    if loop_mask(np.asarray(ids)).any():
        return "a loop"
    return None


def plain_form(text: str) -> str:
    """Return what duplicates share: the letters and digits of a text in lower case."""
    return re.sub(r"[\W_]+", "", text.lower())
