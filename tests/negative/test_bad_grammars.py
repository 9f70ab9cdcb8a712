"""Grammars that cannot be used are refused by name, before anything is computed."""

import sys

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from specdec import SamplingParams, SpeculativeDecoder
from specdec.sampling import ParameterTable
from tests.support.registry import SIX_IDS
from tests.support.texts.grammars import END, WORDS


def nested(depth):
    """Return a schema of lists of lists."""
    schema = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"regex": 3}, "regex=3 must be text"),
        ({"json_schema": ["a"]}, "json_schema=.* must be a mapping, or JSON text"),
        ({"json_schema": {"a": object()}}, "is no JSON"),
        ({"json_schema": nested(10**5)}, r"json_schema=\{.*\} is no JSON: "),
        ({"json_schema": "schema.json"}, "json_schema='schema.json' is no JSON: Expecting value: line 1 column 1"),
        ({"json_schema": "[" * 10**5}, r"json_schema=.\[.*\.\.\..* is no JSON: "),
        ({"regex": "a", "grammar": 'start: "a"'}, "give one of regex and grammar"),
    ],
)
def test_parameters_name_what_is_wrong(given, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"regex": "[ab"}, r"sampling\[1\].regex is not usable: (?s:.*)unclosed"),
        ({"json_schema": "false"}, r"sampling\[1\].json_schema is not usable"),
        ({"json_schema": {"type": "no such type"}}, r"sampling\[1\].json_schema is not usable"),
        ({"grammar": 'begin: "a"'}, r"sampling\[1\].grammar is not usable"),
        ({"regex": ""}, "request 1: its regex allows no id of this vocabulary at the start"),
        ({"regex": "x+"}, "request 1: its regex allows no id of this vocabulary at the start"),
    ],
)
def test_requests_name_what_is_wrong(given, message):
    asked = [SamplingParams(), SamplingParams(**given)]
    with pytest.raises(ValueError, match=message):
        SpeculativeDecoder(WORDS.oracle()).start([[0], [1]], 4, asked)


def test_an_oracle_without_a_tokenizer_that_can_be_read_is_named():
    with pytest.raises(ValueError, match=r"sampling\[0\].regex is about text, and the oracle has no tokenizer"):
        SpeculativeDecoder(SIX_IDS.model).start([[0]], 4, SamplingParams(regex="a"))
    oracle = WORDS.oracle()
    oracle.tokenizer = Tokenizer(WordLevel({piece: one for one, piece in enumerate(WORDS.pieces)}, END))
    message = r"sampling\[0\].regex: llguidance cannot read the oracle.s tokenizer \(ValueError: .*give an oracle with"
    with pytest.raises(ValueError, match=message):
        SpeculativeDecoder(oracle).start([[0]], 4, SamplingParams(regex="a"))


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ImportError, match=r"sampling\[0\].regex: .*pip install 'exactspec\[grammar\]'"):
        SpeculativeDecoder(WORDS.oracle()).start([[0]], 4, SamplingParams(regex="a"))


def test_a_grammar_that_ends_before_the_least_length_is_named():
    asked = SamplingParams(regex="ab", min_new_tokens=3)
    with pytest.raises(ValueError, match="request 0: its regex ends after 1 tokens, and min_new_tokens=3"):
        SpeculativeDecoder(WORDS.oracle()).generate([[0]], 6, asked)


def test_a_table_of_parameters_does_without_no_grammar():
    with pytest.raises(ValueError, match=r"give what specdec\.grammars\.make_grammars makes"):
        ParameterTable.of([SamplingParams(regex="a")])
