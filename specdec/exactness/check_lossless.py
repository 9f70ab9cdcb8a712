"""A decoder's promise as one line of a test: its output law is the oracle's, however it is asked."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from specdec.engine import SpeculativeDecoder
from specdec.exactness.oracle_law import oracle_law
from specdec.exactness.output_law import TooManyBranches, output_law
from specdec.exactness.rule_distance import FORMS, rule_distance
from specdec.exactness.sampled_law import check_by_samples
from specdec.exactness.sequence_laws import product_law, total_variation
from specdec.requests import Prompt, Stop, encode_prompt
from specdec.sampling import SamplingParams
from specdec.theory import check_count

PLAIN = SamplingParams(temperature=1.0)
WARPED = SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.3)
GREEDY = SamplingParams()
# The request's, and what its mates take turns in.
_Way = tuple[SamplingParams, Sequence[SamplingParams]]
_WAYS: list[_Way] = [(PLAIN, (GREEDY, WARPED)), (WARPED, (GREEDY, PLAIN)), (GREEDY, (PLAIN, WARPED))]
_Masses = Mapping[Any, float]
_WORST = 8
# Of what greedy decoding is compared on, alone in its batch.
_GREEDY_TOKENS = 64
# Of an enumeration of several rows, each of which is a run of its own: a few seconds.
_JOINT_BRANCHES = 500
_FLOAT32 = 1e-9, 1e-6  # distances that rounding to it makes


def _law_table(made: _Masses, wanted: _Masses) -> str:
    """Return the sequences on which two laws differ most."""
    worst = sorted({*made, *wanted}, key=lambda ids: -abs(made.get(ids, 0.0) - wanted.get(ids, 0.0)))[:_WORST]
    lines = [f"{'decoder':>22} {'oracle':>22}  ids"]
    return "\n".join([*lines, *(f"{made.get(i, 0.0):22.16f} {wanted.get(i, 0.0):22.16f}  {list(i)}" for i in worst)])


def _told(sampling: SamplingParams) -> str:
    """Return a sampling as words: its temperature, and what is not as by default."""
    given = {one.name: getattr(sampling, one.name) for one in fields(sampling)}
    told = {name: value for name, value in given.items() if name == "temperature" or value != getattr(GREEDY, name)}
    return ", ".join(f"{name}={value}" for name, value in told.items())


def _same(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many ids two outputs have in common from their beginning on."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def check_lossless(
    decoder: SpeculativeDecoder,
    prompt: Prompt,
    max_new_tokens: int | None = None,
    sampling: SamplingParams | None = None,
    *,
    depth: int | None = None,
    stop: Stop | Sequence[Stop] | None = None,
    mates: Sequence[Prompt] = (),
    batch_size: int | None = None,
    tolerance: float | None = None,
    max_leaves: int = 20_000,
    num_seeds: int = 32,
    effect: float | None = None,
    level: float = 1e-6,
    seed: int = 0,
) -> None:
    """Check that a decoder's output law is its oracle's: by enumeration, by samples, or in coupled mode by tokens.

    Args:
        decoder: with a small vocabulary (3 or 4 ids), so that its law can be enumerated; with an ``effect``, or in
            coupled mode, any decoder.
        prompt: of the request that is looked at.
        max_new_tokens: length of the sequences; None: depth + 1, the least in which a step can draft that many tokens.
        depth: how many drafted tokens of one step the check must reach; None: as many as the draft offers. Give less to
            say that less is enough.
        sampling: looks at this one alone, and mates have it too. None looks at several: temperature 1; temperature
            0.8, top-p 0.9 and repetition penalty 1.3; greedy. Mates then have the others, so that greedy and sampled
            rows share a batch; greedy output of one row alone is compared with plain decoding, 64 tokens long; and
            ``rule_distance`` of a rule that calls itself lossless is looked at. None with an ``effect``: temperature 1
            by samples, and the rule.
        stop: as for ``generate``.
        mates: prompts that run in the same batch; none, and no ``sampling`` or ``effect``: two are made of the prompt,
            as for a joint law.
        batch_size: rows in flight; None: all, by samples 64. Joint laws are of all rows in flight.
        tolerance: largest total variation by enumeration; None: 1e-12 for a float64 oracle, else 1e-5 (float32 laws).
        max_leaves: bound on each enumeration.
        num_seeds: requests compared in coupled mode, with each sampling.
        effect: test samples instead of enumerating, enough to see this total variation with probability 0.99: for any
            oracle, through its real cache. 0.05 takes about 13,000 requests, 0.1 a quarter of that. Not in coupled
            mode, which compares tokens.
        level: bound on the probability of a false alarm of that test. A suite of n such tests, each at a rate / n,
            fails wrongly with at most that rate.
        seed: of its requests.

    Raises:
        AssertionError: with the sampling, and the sequences whose probabilities differ most, or the requests whose ids
            do. By samples: with the cells that are furthest off, or the first output that the oracle cannot write. A
            run that does not repeat is "not reproducible".
        ValueError: ``max_new_tokens`` does not reach ``depth``, or that is negative; more branches than ``max_leaves``;
            an ``effect`` or ``level`` that is not between 0 and 1; less than one seed to compare.

    Guarantee: what n new tokens show is seen: a step drafts up to n - 1 of them. A fault that begins at a later drafted
        token, or in a later step, is not seen (but for the 64 greedy tokens). If the decoder has a budget, the joint
        law of the request and its mates is enumerated too: of as many rows as make 500 branches, two at least, and at
        least two tokens long. With two ids and one drafted token that is three rows, with three ids two beside the
        others; what a budget does from more rows on is not seen. Without a budget no joint law is looked at.
        By samples, outputs are sorted into about 16 cells, each all outputs that begin with some ids, the likeliest
        beginnings first; their probabilities are the oracle's own, each from a pass over the whole text. The total
        variation is that of the law of the cells: a bias among outputs of one cell is not seen.
    Cost: see ``output_law`` and ``oracle_law``; on a table of 3 ids with chains of two tokens about a second, with a
        budget some ten. By samples the requests, and one pass a cell.
    """
    length = _length(decoder, max_new_tokens, depth)
    ways = _WAYS if sampling is None else [(sampling, (sampling,))]
    if tolerance is None:
        tolerance = 1e-12 if decoder.oracle.dtype.itemsize == 8 else 1e-5
    if sampling is None and effect is None and not mates:
        mates = _made_mates(decoder, prompt)
    check = _Check(decoder, prompt, length, stop, mates, batch_size, tolerance, max_leaves)
    if decoder.rule.coupled:
        check_count("num_seeds", num_seeds)
        check.tokens(num_seeds, ways)
    elif effect is not None:
        check_by_samples(decoder, prompt, length, ways[0][0], stop, mates, batch_size, effect, level, seed)
    else:
        for asked, others in ways:
            check.law(asked, others)
        if decoder.budget is not None:
            check.joint_laws(ways[0][0])
    if sampling is None:
        if effect is None:
            check.greedy_alone()
        check.rule()


def _length(decoder: SpeculativeDecoder, max_new_tokens: int | None, depth: int | None) -> int:
    """Return how long sequences are: long enough for one step to draft ``depth`` tokens.

    Raises:
        ValueError: they are asked to be shorter, or ``depth`` is negative.
    """
    if depth is not None and depth < 0:
        raise ValueError(f"depth={depth} compares nothing: give 0 or more, or None for as many as the draft offers")
    offered = decoder.offers.max_depth
    wanted = offered if depth is None else depth
    length = wanted + 1 if max_new_tokens is None else max_new_tokens
    if length <= wanted:
        drafted, name = max(length - 1, 0), decoder.draft.name
        raise ValueError(
            f"max_new_tokens={length} lets a step draft {drafted} tokens, draft {name!r} offers {offered}, and a fault "
            f"from token {length} of a draft on would not be seen: give max_new_tokens={wanted + 1}, a shorter draft, "
            f"or depth={drafted} if that is enough"
        )
    return length


def _made_mates(decoder: SpeculativeDecoder, prompt: Prompt) -> list[Prompt]:
    """Return two mates of a prompt, one of which is its last id alone, so that rows are not equally long."""
    ids = encode_prompt(decoder.oracle, prompt, "prompt").tolist()
    return [ids[-1:], ids]


@dataclass(frozen=True)
class _Check:
    """What ``check_lossless`` compares; see its arguments. Every method raises AssertionError if two things differ."""

    decoder: SpeculativeDecoder
    prompt: Prompt
    length: int
    stop: Stop | Sequence[Stop] | None
    mates: Sequence[Prompt]
    batch_size: int | None
    tolerance: float
    max_leaves: int

    @property
    def _who(self) -> str:
        return f"rule {self.decoder.rule.name!r}, source {self.decoder.draft.name!r}"

    def _compare(self, what: str, how: str, made: _Masses, wanted: _Masses) -> None:
        """Compare two laws over sequences."""
        distance = total_variation(made, wanted)
        if distance > self.tolerance:
            raise AssertionError(
                f"{what} is off by a total variation of {distance:.3g} (allowed: {self.tolerance:.3g}), {self._who}, "
                f"{how}{self._hint(distance)}\n{_law_table(made, wanted)}"
            )

    def _hint(self, distance: float) -> str:
        low, high = _FLOAT32
        if not (self.tolerance <= low < distance < high):
            return ""
        return "; stops or laws that were made in float32 look like that: make them in float64"

    def law(self, sampling: SamplingParams, others: Sequence[SamplingParams]) -> None:
        """Compare the enumerated law of the request, in a batch with mates that are asked in other ways."""
        mates_sampling = list(itertools.islice(itertools.cycle(others), len(self.mates)))
        made = output_law(
            self.decoder,
            self.prompt,
            self.length,
            sampling,
            stop=self.stop,
            mates=self.mates,
            mates_sampling=mates_sampling,
            batch_size=self.batch_size,
            max_leaves=self.max_leaves,
        )
        wanted = oracle_law(self.decoder.oracle, self.prompt, self.length, sampling, stop=self.stop)
        self._compare("the output law", _told(sampling), made, wanted)

    def joint_laws(self, sampling: SamplingParams) -> None:
        """Compare joint laws of rows that share a budget."""
        prompts = [self.prompt, *(self.mates or _made_mates(self.decoder, self.prompt))]
        for rows, length in self._joint_sizes(prompts, sampling):
            asked, stop = (self.decoder, tuple(prompts[:rows]), length, sampling), self.stop
            made = output_law(*asked, stop=stop, mates=prompts[rows:], max_leaves=self.max_leaves, rows=rows)
            laws = [oracle_law(self.decoder.oracle, one, length, sampling, stop=stop) for one in prompts[:rows]]
            what = f"the joint law of {rows} of {len(prompts)} rows"
            self._compare(
                what, f"budget {type(self.decoder.budget).__name__}, {_told(sampling)}", made, product_law(laws)
            )

    def _joint_sizes(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> Iterator[tuple[int, int]]:
        """Yield (rows, new tokens): as many rows as can be enumerated, and two, each with as many tokens as can be.

        The branches of rows multiply; a row has about as many as it has alone. Less than two tokens draft nothing.
        """

        shortest = min(self.length, 2)

        def longest(rows: int) -> int | None:
            most = int(_JOINT_BRANCHES ** (1 / rows))
            lengths = range(self.length, shortest - 1, -1)
            return next((length for length in lengths if self._has_at_most(most, length, sampling)), None)

        sizes = ((rows, longest(rows)) for rows in range(len(prompts), 1, -1))
        rows, length = next((size for size in sizes if size[1] is not None), (2, None))
        yield rows, length or shortest
        if rows > 2 and (longer := longest(2) or 0) > (length or 0):
            yield 2, longer

    def _has_at_most(self, most: int, length: int, sampling: SamplingParams) -> bool:
        """Tell whether the request has so few branches if it runs alone."""
        try:
            output_law(self.decoder, self.prompt, length, sampling, stop=self.stop, max_leaves=most)
        except TooManyBranches:
            return False
        return True

    def tokens(self, num_seeds: int, ways: Sequence[_Way]) -> None:
        """Compare coupled output with plain decoding's, many seeds in one batch, asked in all of these ways."""
        prompts: list[Prompt] = []
        samplings: list[SamplingParams] = []
        for sampling, others in ways:
            prompts += [*[self.prompt] * num_seeds, *self.mates]
            samplings += [*[sampling] * num_seeds, *itertools.islice(itertools.cycle(others), len(self.mates))]
        self._compare_tokens("coupled requests", prompts, self.length, samplings, self.batch_size)

    def greedy_alone(self) -> None:
        """Compare greedy output, each request alone in its batch, with plain decoding's."""
        prompts = [self.prompt, *self.mates]
        self._compare_tokens("greedy requests, each alone,", prompts, _GREEDY_TOKENS, [GREEDY] * len(prompts), 1)

    def _compare_tokens(
        self,
        what: str,
        prompts: Sequence[Prompt],
        length: int,
        samplings: Sequence[SamplingParams],
        batch_size: int | None,
    ) -> None:
        """Compare output with plain decoding's by the same rule, token for token."""
        decoder = self.decoder
        plain = SpeculativeDecoder(decoder.oracle, None, decoder.rule, kernels=decoder.kernels.name)
        made, wanted = (
            one.generate(prompts, length, samplings, 0, self.stop, batch_size).tokens for one in (decoder, plain)
        )
        both = zip(made, wanted, samplings, strict=True)
        lines = [
            f"  request {i}, {_told(how)}: {a[: _same(a, b) + 1]} instead of {b[: _same(a, b) + 1]}"
            for i, (a, b, how) in enumerate(both)
            if a != b
        ]
        if lines:
            raise AssertionError(
                "\n".join([f"{len(lines)} of {len(prompts)} {what} differ from plain decoding, {self._who}", *lines])
            )

    def rule(self) -> None:
        """Look at the law of a rule that calls itself lossless, at one position of many ids."""
        rule = self.decoder.rule
        if not rule.lossless:
            return
        try:
            found = rule_distance(rule)
        except IndexError:  # it has a table of its own vocabulary
            found = rule_distance(rule, self.decoder.oracle.vocab_size)
        for form, distance in found.items():
            if not distance <= self.tolerance:  # NaN is no equal law either
                raise AssertionError(
                    f"rule {rule.name!r} is off by {distance:.3g} (allowed: {self.tolerance:.3g}) at one position of "
                    f"many ids where {FORMS[form]}; see rule_distance{self._hint(distance)}"
                )
