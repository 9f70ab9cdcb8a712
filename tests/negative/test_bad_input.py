"""Every unusable argument is refused before anything is computed, and undefined logits name request and position."""

import math
import re
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from drafts import (
    Cascade,
    EarlyExit,
    Merged,
    NGram,
    OtherVocabulary,
    PromptLookup,
    Quantized,
    SmallTransformer,
    Staged,
    stateless,
)
from oracles.tabular import TabularLM
from specdec import Budget, Draft, Fixed, Needs, Offers, SamplingParams, SharedBudget, SpeculativeDecoder
from specdec.contracts import DraftSession, Scores, check_vocabulary
from specdec.laws import Laws
from specdec.verify import RULES
from tests.reference.tables import random_table
from tests.support.drafting.sources import Chains, RandomTrees
from tests.support.models.counting import LETTERS, POISONS, SIZE, Counting, Poisoned, counts, guessing
from tests.support.pairwise import pairwise


class Untouchable(Counting):
    """An oracle that must not be used."""

    def score(self, *arguments, **options):
        raise AssertionError("something was computed")

    def new_cache(self, *arguments, **options):
        raise AssertionError("something was allocated")


GREEDY = SamplingParams()
BAD = {
    "empty prompt": ({"prompts": [[1], []]}, r"prompts\[1\] is empty; give at least one token"),
    "empty string": ({"prompts": ["a", ""], "pieces": LETTERS}, r"prompts\[1\] is empty"),
    "id too large": ({"prompts": [[0], [1], [3, 16]]}, r"prompts\[2\] has id 16, outside the vocabulary 0\.\.15"),
    "negative id": ({"prompts": [[-1]]}, r"prompts\[0\] has id -1, outside the vocabulary"),
    "fractional ids": ({"prompts": [[0.5]]}, r"prompts\[0\] must be a string, a list of ids or a 1-D"),
    "matrix": ({"prompts": [torch.zeros(2, 2, dtype=torch.int64)]}, r"prompts\[0\] must be"),
    "flat list": ({"prompts": [1, 2, 3]}, r"prompts\[0\] must be a string, a list of ids or a 1-D"),
    "a single string": ({"prompts": "abc", "pieces": LETTERS}, r"prompts must be a list.*\[prompt\]"),
    "nested": ({"prompts": [[[1], [2, 3]]]}, r"prompts\[0\] must be a string, a list of ids or a 1-D"),
    "no prompts argument": ({"prompts": None}, "prompts must be a list"),
    "string without tokenizer": (
        {"prompts": [[1], "ab"]},
        r"prompts\[1\] is a string.*no tokenizer; pass a list of ids",
    ),
    "too long": ({"prompts": [[1], counts(0, 8)]}, r"prompts\[1\] has 8 tokens and the oracle's context is 8.*shorten"),
    "negative length": ({"max_new_tokens": -1}, "max_new_tokens must be an integer, 0 or more, not -1"),
    "fractional length": ({"max_new_tokens": 2.0}, r"max_new_tokens must be an integer, 0 or more, not 2\.0"),
    "boolean length": ({"max_new_tokens": True}, "max_new_tokens must be an integer, 0 or more, not True"),
    "too few sampling": ({"sampling": [GREEDY]}, r"sampling has 1 entries for 2 prompts; pass one, or one per prompt"),
    "too many sampling": ({"sampling": [GREEDY] * 3}, r"sampling has 3 entries for 2 prompts"),
    "wrong sampling": ({"sampling": [GREEDY, {"temperature": 1.0}]}, r"sampling\[1\] is dict, not SamplingParams"),
    "sampling as a dict": ({"sampling": {"top_k": 1}}, r"sampling=\{.top_k.: 1\} must be SamplingParams\(\.\.\.\), or"),
    "bias out of range": (
        {"sampling": SamplingParams(logit_bias={16: 1.0})},
        r"sampling.*logit_bias has id 16, outside",
    ),
    "every id banned": (
        {"sampling": [GREEDY, SamplingParams(logit_bias=dict.fromkeys(range(SIZE), -math.inf))]},
        r"sampling\[1\]\.logit_bias bans every id",
    ),
    "too few seeds": ({"seed": [1]}, r"seed has 1 entries for 2 prompts; pass an int, or one seed per prompt"),
    "too many seeds": ({"seed": [1, 2, 3]}, r"seed has 3 entries for 2 prompts"),
    "fractional seed": ({"seed": 0.5}, r"seed=0\.5 must be an int or a list with one seed per prompt"),
    "boolean seed": ({"seed": True}, "seed=True must be an int or a list with one seed per prompt"),
    "text as seed": ({"seed": "ab"}, r"seed='ab' must be an int"),
    "bad seed in a list": ({"seed": [1, None]}, r"seed\[1\] is None; give an int or a tuple of ints"),
    "bad part of a seed": ({"seed": [(1, 0.5), 2]}, r"seed\[0\] is \(1, 0\.5\); give an int or a tuple of ints"),
    "empty stop": ({"stop": [[1], []]}, r"stop has an empty entry; remove it"),
    "mixed stops per request": ({"stop": [["a"], "b"], "pieces": LETTERS}, r"stop must be a list of strings or id"),
    "empty stop string": ({"stop": "", "pieces": LETTERS}, r"stop has an empty entry"),
    "flat stop": ({"stop": [1, 2]}, r"stop must be a list of strings or id lists; wrap"),
    "mixed stop": ({"stop": ["a", 3], "pieces": LETTERS}, r"stop must be a list of strings or id lists; wrap"),
    "stop id out of range": ({"stop": [[99]]}, r"stop has id 99, outside the vocabulary"),
    "stop string without tokenizer": ({"stop": "x"}, r"stop has the string 'x'.*no tokenizer; pass stops as ids"),
    "no rows": ({"batch_size": 0}, "batch_size must be an integer, 1 or more, not 0"),
    "boolean rows": ({"batch_size": True}, "batch_size must be an integer, 1 or more, not True"),
    "mapping as stop": ({"stop": {"a": 1}, "pieces": LETTERS}, r"stop=\{'a': 1\} must be a string, or a list"),
    "number as stop": ({"stop": 5}, r"stop=5 must be a string, or a list"),
    "tensor as stop": ({"stop": [torch.tensor([1, 2])]}, r"stop holds a tensor; give strings or lists of ids"),
    "tensor in a stop": ({"stop": [[torch.tensor(1)]]}, r"stop holds a tensor"),
    "number as sampling": ({"sampling": 1.0}, r"sampling=1\.0 must be SamplingParams\(\.\.\.\), or a list"),
    "half a pair in a stop": (
        {"stop": ["a", "x\ud83d"], "pieces": LETTERS},
        r"stop has '\\ud83d' at character 1: half of a surrogate pair",
    ),
    "half a pair in a prompt": (
        {"prompts": ["a", "\ud83d"], "pieces": LETTERS},
        r"prompts\[1\] has '\\ud83d' at character 0: half of a surrogate pair is no text; remove it",
    ),
    "bytes as stop": ({"stop": b"ab"}, r"stop holds bytes; give strings: text\.decode\(\)"),
    "bytes in stops": ({"stop": [b"a"]}, r"stop holds bytes"),
    "bytes in a list per request": ({"stop": [[b"a"], None]}, r"stop holds bytes"),
    "bytes as prompt": ({"prompts": [[1], bytearray(b"\x01")]}, r"prompts\[1\] is bytearray; give text, or a list of"),
    "seed beyond 64 bits": ({"seed": 2**64}, r"seed is 18446744073709551616, and 64 bits hold -2\*\*63 to 2\*\*63 - 1"),
    "negative seed beyond 64 bits": ({"seed": [1, (2, -(2**63) - 1)]}, r"seed\[1\] is \(2, -9.*, and 64 bits hold"),
    "fractional rows": ({"batch_size": 2.0}, r"batch_size must be an integer, 1 or more, not 2\.0"),
    "text for a truth value": ({"return_logprobs": "no"}, "return_logprobs='no' must be True or False"),
    "nothing for a truth value": ({"return_logprobs": None}, "return_logprobs=None must be True or False"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_arguments_are_refused_before_anything_is_computed(arguments, message):
    arguments = {"prompts": [[1], [2]], "max_new_tokens": 3, **arguments}
    decoder = SpeculativeDecoder(Untouchable(max_context=8, pieces=arguments.pop("pieces", None)), guessing(2))
    for entry in (decoder.generate, decoder.start):
        with pytest.raises(ValueError, match=message):
            entry(**arguments)


PARAMETERS = {
    "temperature": [-0.1, math.nan, math.inf, "1", None, 10**400],
    "top_k": [-1, 2.5, 2**63, True],
    "top_p": [0.0, 1.1, math.nan, None, Fraction(1, 10**400)],
    "min_p": [-0.1, 1.1, math.nan],
    "repetition_penalty": [True, 0.0, -1.0, math.inf, 1e300, 1e-300],
    "presence_penalty": [math.nan, 1e300, -(10**400)],
    "frequency_penalty": [math.inf, -1e300],
    "logit_bias": [
        *({0: 1e300}, {0: math.inf}, {0: math.nan}, {-1: 0.0}, {"a": 0.0}, {0: "a"}, [1.0], {0: 10**400}, {True: 5.0}),
    ],
    "min_new_tokens": [2**63, -1, 0.5, True],
    "ignore_eos": ["false", 0, None],
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_bad_sampling_parameters_raise_in_the_constructor(name):
    for value in PARAMETERS[name]:
        with pytest.raises(ValueError, match=f"SamplingParams: {name}=.* must"):
            SamplingParams(**{name: value})


def test_unknown_options_are_errors():
    with pytest.raises(TypeError, match="top_q"):
        SamplingParams(top_q=0.5)
    with pytest.raises(TypeError, match="max_tokens"):
        SpeculativeDecoder(Counting()).generate([[1]], max_tokens=3)
    with pytest.raises(TypeError, match="speculate"):
        SpeculativeDecoder(Counting(), speculate=True)


@pytest.mark.parametrize("part", ["backend", "bitwise", "weight_bytes"])
def test_what_a_result_tells_of_an_oracle_is_asked_for_before_anything_is_computed(part):
    class Silent(Untouchable):
        def __getattribute__(self, name):
            if name == part:
                raise AttributeError(name)
            return super().__getattribute__(name)

        def __repr__(self):
            return "Silent()"

    with pytest.raises(ValueError, match=f"^oracle=.* lacks {part}: give what oracles.load returns"):
        SpeculativeDecoder(Silent())


def test_so_is_the_size_of_a_cache():
    class Own(Untouchable):
        def new_cache(self, *arguments, **options):
            return SimpleNamespace()

    with pytest.raises(AttributeError, match="no attribute 'bytes'"):
        SpeculativeDecoder(Own()).start([[1]], 3)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("source", [None, guessing(2)], ids=["plain", "drafts"])
def test_logits_that_pad_the_vocabulary_are_refused(source, temperature):
    class Padding(Counting):
        def score(self, *arguments, **options):
            scores = super().score(*arguments, **options)
            return Scores(None if scores.logits is None else torch.nn.functional.pad(scores.logits, (0, 3)))

    width = 1 if source is None else 3
    said = rf"oracle of type Padding scored logits of the shape \(2, {width}, 19\), not \(2, {width}, 16\)"
    with pytest.raises(ValueError, match=f"{said}: .*cut those that pad the vocabulary"):
        SpeculativeDecoder(Padding(), source).generate([[1], [2]], 5, SamplingParams(temperature))


def test_the_first_and_the_last_seeds_are_taken():
    seeds = [-(2**63), 2**63 - 1, (0, 2**63 - 1)]
    assert SpeculativeDecoder(Counting()).generate([[1]] * 3, 2, seed=seeds).seeds == seeds


def test_counts_seeds_and_ids_may_be_integers_of_numpy():
    count, byte = np.int64(3), np.int8(100)
    given = {"max_new_tokens": byte, "batch_size": count, "seed": [count, (count, np.uint8(1))]}
    given["sampling"] = SamplingParams(1.0, top_k=count, min_new_tokens=count, logit_bias={count: -1.0})
    plain = {"max_new_tokens": 100, "batch_size": 3, "seed": [3, (3, 1)]}
    plain["sampling"] = SamplingParams(1.0, top_k=3, min_new_tokens=3, logit_bias={3: -1.0})
    prompts = [counts(0, 60), [1]]
    numpys, own = (
        SpeculativeDecoder(Counting(), guessing(2), budget=SharedBudget(budget), max_cache_bytes=size).generate(
            prompts, **asked
        )
        for budget, size, asked in ((count, np.int64(10**6), given), (3, 10**6, plain))
    )
    assert numpys.tokens == own.tokens
    assert max(map(len, own.tokens)) == 100
    assert repr(numpys.seeds) == repr(own.seeds) == "[3, (3, 1)]"
    one, other = (SpeculativeDecoder(Counting()).generate(prompts, 9, seed=seed).seeds for seed in (count, 3))
    assert repr(one) == repr(other) == "[(3, 0), (3, 1)]"


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        ("prompt_lookup", "'prompt_lookup'"),
        (PromptLookup, "the class PromptLookup"),
        (3, "3"),
        ([PromptLookup(1)], "of type list"),
    ],
    ids=["a name", "a class", "a number", "a list"],
)
def test_what_is_no_source_is_refused_with_the_argument_and_the_fix(draft, said):
    fix = rf" is {said}, not a draft source; give an object, such as drafts\.PromptLookup\(\)"
    with pytest.raises(ValueError, match=f"^draft{fix}"):
        SpeculativeDecoder(Untouchable(), draft)
    for combination in (Merged, Cascade):
        with pytest.raises(ValueError, match=rf"^members\[1\]{fix}"):
            combination([guessing(1), draft])
    with pytest.raises(ValueError, match=f"^inner{fix}"):
        Staged(Untouchable(), draft)


def test_a_source_that_lacks_a_part_is_refused_with_what_it_lacks_and_one_that_fails_with_its_own_error():
    class Own:
        name, needs, vocab_size = "own", Needs(), None

        @property
        def offers(self):
            return self.length.max_depth

    with pytest.raises(ValueError, match="draft is of type Own, not a draft source: it lacks open; give an object"):
        SpeculativeDecoder(Untouchable(), Own())
    Own.open = PromptLookup.open
    with pytest.raises(AttributeError, match="'Own' object has no attribute 'length'"):
        SpeculativeDecoder(Untouchable(), Own())


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda model: SmallTransformer(model, 2), "model"),
        (lambda model: OtherVocabulary(model, 2), "model"),
        (lambda model: Quantized(model, Untouchable()), "oracle"),
        (lambda model: Quantized(Untouchable(), model), "view"),
        (lambda model: EarlyExit(model, 1), "oracle"),
        (lambda model: Staged(model, guessing(1)), "draft_model"),
    ],
)
def test_what_is_no_model_is_refused_with_the_argument_and_the_fix(make, argument):
    for model in (None, "code-draft", Counting):
        told = rf"^{argument}={re.escape(repr(model))} is no model: give what oracles\.load returns$"
        with pytest.raises(ValueError, match=told):
            make(model)


ANSWERS = {
    "nothing": (None, "returned None"),
    "text": ("ab", "returned 'ab'"),
    "words": (["a"], r"returned \['a'\]"),
    "fractions": ([1.5, 2.0], r"returned \[1.5, 2.0\]"),
    "whole fractions": (np.array([1.0]), r"returned array\(\[1.\]\)"),
    "a nested list": ([[1], [2, 3]], r"returned \[\[1\], \[2, 3\]\]"),
    "a matrix": ([[1, 2]], r"returned \[\[1, 2\]\]"),
    "truth": ([True], r"returned \[True\]"),
    "a number": (7, "returned 7"),
    "none among ids": ([1, None], r"returned \[1, None\]"),
}


@pytest.mark.parametrize(("answer", "said"), ANSWERS.values(), ids=ANSWERS)
def test_a_function_that_returns_no_ids_is_named_with_the_fix(answer, said):
    @stateless(num_draft_tokens=3)
    def odd(ids, budget):
        return answer

    with pytest.raises(ValueError, match=rf"draft 'odd' {said}; return a list of ids, \[\] to draft nothing"):
        SpeculativeDecoder(Counting(), odd).generate([[1]], 5)


@pytest.mark.parametrize(
    "answer",
    [[], (), [2, 3], (2, 3), np.array([2, 3], dtype=np.int32), torch.tensor([2, 3]), [torch.tensor(2)]],
    ids=repr,
)
def test_ids_of_every_kind_are_taken(answer):
    @stateless(num_draft_tokens=3)
    def kind(ids, budget):
        return answer if len(ids) == 1 else []

    result = SpeculativeDecoder(Counting(), kind).generate([[1]], 5)
    assert result.tokens == [counts(2, 5)]
    assert result.stats.num_accepted == len(answer)


class Greedy(DraftSession):
    """A source that ignores its budget."""

    name, vocab_size, offers = "glutton", None, Offers(max_depth=2, max_nodes=2)
    needs = guessing(1).needs

    def open(self, oracle, num_rows, capacity):
        return self

    def propose(self, rows, context, budget: Budget, randomness):
        return Draft(torch.zeros(len(rows), 2, dtype=torch.int64), torch.full((len(rows),), 2))


class Answering(Greedy):
    """A source whose session gives what it was told to give, whatever it is asked."""

    name, offers = "answering", Offers(max_depth=3, max_nodes=3)

    def __init__(self, answer):
        self.answer = answer

    def propose(self, rows, context, budget: Budget, randomness):
        return self.answer


ONE = torch.ones(1, 1, dtype=torch.int64)
DRAFTS = {
    "nothing": (None, r"propose returned None; return a Draft \(Draft\.empty\(batch, device\) to draft nothing\)"),
    "ids": ([[1, 2]], r"propose returned \[\[1, 2\]\]; return a Draft"),
    "fractions": (
        Draft(ONE.double(), ONE[0]),
        r"tensors of the types {'tokens': torch\.float64} must be {'tokens': torch\.int64}",
    ),
    "lists": (Draft([[1]], [1]), r"tokens must be a tensor, not list"),
    "no tokens": (Draft(None, ONE[0]), r"tokens must be a tensor, not NoneType"),
    "arrays": (Draft(ONE, np.ones(1, dtype=np.int64)), r"num_nodes must be a tensor, not ndarray"),
    "rows": (Draft(ONE.expand(2, 1), ONE[0]), r"shapes for 1 rows: .*'tokens': \(2, 1\)"),
    "counts": (Draft(ONE, ONE), r"shapes for 1 rows: .*that of num_nodes \(1,\)"),
    "parents": (Draft(ONE, ONE[0], ONE[:, :0]), r"shapes for 1 rows: .*'parents': \(1, 0\)"),
    "laws": (Draft(ONE, ONE[0], laws=Laws.points(ONE[:, :0])), r"shapes for 1 rows: .*'laws': \(1, 0\)"),
    "points of laws": (
        Draft(ONE, ONE[0], laws=Laws(torch.ones(1, 3), ONE, ONE[:, :0])),
        r"shapes for 1 rows: .*'laws.point': \(1, 0\)",
    ),
    "undefined": (Draft(ONE, ONE[0], undefined=ONE[:0]), r"undefined \(0, 1\) should be \(1, 1\)"),
}


@pytest.mark.parametrize("outer", [None, Merged, Cascade, Staged], ids=["alone", "merged", "cascade", "staged"])
@pytest.mark.parametrize(("answer", "fault"), DRAFTS.values(), ids=DRAFTS)
def test_a_source_that_returns_no_draft_is_named(answer, fault, outer):
    source = Answering(answer)
    if outer is Staged:
        source = Staged(Counting(), source, 3)
    elif outer is not None:
        source = outer([guessing(1, 0) if outer is Merged else stateless(lambda ids, budget: []), source])
    decoder = SpeculativeDecoder(Counting(), source, "multi_draft")
    with pytest.raises(ValueError, match=f"draft 'answering' is malformed: {fault}"):
        decoder.generate([[1]], 6)


OF_MEMBERS = "members must be a list of draft sources"
UNKNOWN = r" is unknown.*" + ", ".join(sorted(RULES))
NO_ORACLE = " lacks vocab_size, .*: give what oracles.load returns"
# Decoders and sources that cannot be made, or whose first step cannot be.
UNMADE = {
    "a rule in capitals": (lambda: SpeculativeDecoder(Untouchable(), None, "Standard"), "rule='Standard'" + UNKNOWN),
    "no such rule": (lambda: SpeculativeDecoder(Untouchable(), None, "greedy"), "rule='greedy'" + UNKNOWN),
    "no name of a rule": (lambda: SpeculativeDecoder(Untouchable(), None, ""), "rule=''" + UNKNOWN),
    "a number as a rule": (lambda: SpeculativeDecoder(Untouchable(), None, 3), "rule=3" + UNKNOWN),
    "no rule": (lambda: SpeculativeDecoder(Untouchable(), None, None), "rule=None" + UNKNOWN),
    "a function as a rule": (
        lambda: SpeculativeDecoder(Counting(), rule=lambda draft, laws: None),
        "rule function lacks name, lossless, trees, coupled, native_judge: derive it",
    ),
    "a rule's class": (
        lambda: SpeculativeDecoder(Untouchable(), None, type(RULES["standard"])),
        r"rule=<class '.*Standard'>" + UNKNOWN,
    ),
    "no oracle": (lambda: SpeculativeDecoder(None), "oracle=None" + NO_ORACLE),
    "an oracle's name": (lambda: SpeculativeDecoder("code"), "oracle='code'" + NO_ORACLE),
    "a file's name as n-grams": (
        lambda: NGram("words.safetensors"),
        r"model='words\.safetensors' is no n-gram model: give NGramModel\.train",
    ),
    "a number as a length": (
        lambda: PromptLookup(length=4),
        r"length is 4, not a length policy; give an object, such as Fixed",
    ),
    "a class as a length": (
        lambda: SmallTransformer(Counting(), length=Fixed),
        r"length is the class Fixed, not a length policy",
    ),
    "a name as a tree": (
        lambda: SmallTransformer(Counting(), tree="kary:2x2"),
        r"tree is 'kary:2x2', not a shape of trees; give an object, such as Kary",
    ),
    "one source as members": (lambda: Merged(guessing(1)), OF_MEMBERS),
    "a name as members": (lambda: Merged("lookup"), OF_MEMBERS),
    "no members": (lambda: Merged(None), OF_MEMBERS),
    "one source as members of a cascade": (lambda: Cascade(guessing(1)), OF_MEMBERS),
    "trees for a rule for chains": (
        lambda: SpeculativeDecoder(Untouchable(), RandomTrees(random_table(SIZE, 0, 1))),
        r"'random_trees' branches and rule 'standard'.*sample_and_match",
    ),
    "a source of another vocabulary": (
        lambda: SpeculativeDecoder(Untouchable(), Chains(random_table(5, 1, 0), 2, vocab_size=5)),
        r"chains drafts from a vocabulary of 5 ids, but the oracle.s has 16",
    ),
    "a vocabulary of other meanings": (
        lambda: check_vocabulary("letters", SIZE, Counting(pieces=LETTERS[::-1]).tokenizer, Counting(pieces=LETTERS)),
        "other meanings",
    ),
    "more than the budget": (
        lambda: SpeculativeDecoder(Counting(), Greedy()).generate([[1]], 2),
        r"'glutton' drafted 2 nodes, 2 deep, over the budget of 2 nodes and depth 1",
    ),
    "text for a truth value": (
        lambda: SpeculativeDecoder(Counting(), prefix_sharing="no"),
        "prefix_sharing='no' must be True or False",
    ),
    "text for bytes": (
        lambda: SpeculativeDecoder(Counting(), max_cache_bytes="2 GB"),
        "max_cache_bytes must be an integer, 1 or more, not '2 GB'",
    ),
    "no bytes": (
        lambda: SpeculativeDecoder(Counting(), max_cache_bytes=0),
        "max_cache_bytes must be an integer, 1 or more, not 0",
    ),
    "a cache that does not fit": (
        lambda: SpeculativeDecoder(Counting(), max_cache_bytes=100).generate([[1]] * 8, 50),
        "max_cache_bytes",
    ),
}


@pytest.mark.parametrize("name", UNMADE)
def test_what_cannot_be_made_is_refused_with_the_argument_and_the_fix(name):
    make, words = UNMADE[name]
    with pytest.raises(ValueError, match=words):
        make()


@pairwise(
    {
        "poison": POISONS,
        "source": {"plain": None, "drafts": guessing(3)},
        "rule": tuple(RULES),
        "temperature": (0.0, 1.0),
        "return_logprobs": (False, True),
    }
)
def test_undefined_logits_name_request_and_position(poison, source, rule, temperature, return_logprobs):
    decoder = SpeculativeDecoder(Poisoned(poison), source, rule)
    sampling = SamplingParams(temperature=temperature)
    # The second request of three counts up to 13, which is then the pending token at position 5 or drafted before.
    with pytest.raises(FloatingPointError, match=r"request 1: .*NaN or \+inf, or allow no token") as caught:
        decoder.generate([[0], [9], [2, 3]], 8, sampling, return_logprobs=return_logprobs)
    begins = int(str(caught.value).split("position ")[1].split()[0])
    node = int(str(caught.value).split("node ")[1].split()[0])
    assert begins + node == 5


@pytest.mark.parametrize("rule", RULES)
def test_padding_and_other_requests_are_no_reason_for_an_error(rule):
    decoder = SpeculativeDecoder(Poisoned(POISONS["nan"]), guessing(3), rule)
    result = decoder.generate([[0], [3]], 9, SamplingParams(temperature=1.0))
    assert result.tokens == [counts(1, 9), counts(4, 9)]


def test_banning_all_but_eos_is_refused_where_eos_must_wait():
    decoder = SpeculativeDecoder(TabularLM.random(3, 1, 0, eos_id=0))
    others = {1: -math.inf, 2: -math.inf}
    assert decoder.generate([[1]], 3, SamplingParams(logit_bias=others)).tokens == [[0]]
    with pytest.raises(ValueError, match=r"bans every id \(min_new_tokens bans EOS\): allow one"):
        decoder.generate([[1]], 3, SamplingParams(logit_bias=others, min_new_tokens=1))


def test_a_legal_minus_infinity_raises_nothing():
    table = np.zeros((SIZE, SIZE))
    table[:, 5] = 1.0
    result = SpeculativeDecoder(TabularLM(table), guessing(3)).generate([[0]], 5, SamplingParams(temperature=1.0))
    assert result.tokens == [[5] * 5]
