"""What a request asks of its law: sampling parameters, checked when they are made."""

import json
import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np

from specdec.grammars import Constraint

_GRAMMARS = ("json_schema", "regex", "grammar")
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
# What a record cannot honour: its next id is given, whatever else the model thought of.
_READ_LOGITS = ("temperature", *_PENALTIES, "logit_bias", "min_new_tokens", *_GRAMMARS)
_NUMBERS = ("temperature", "top_p", "min_p", *_PENALTIES)

# Penalties and biases are applied in float32, which ends at 3e38, one after the other: a factor multiplies a bias, a
# frequency its penalty. All at their largest make 1e30, over the lowest temperature that is divided by 1e36.
_LARGEST = 1e15


def _is_float(value: object) -> bool:
    """Tell whether a value is a number that a float can hold."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _is_count(value: object) -> bool:
    """Tell whether a value is a whole number, not negative, that 64 bits can hold."""
    return isinstance(value, Integral) and not isinstance(value, bool) and 0 <= int(value) < 2**63


def _require(condition: bool, name: str, value: object, fix: str) -> None:
    if not condition:
        raise ValueError(f"SamplingParams: {name}={value!r} {fix}")


@dataclass(frozen=True)
class SamplingParams:
    """Say how a request's tokens are drawn; the default is greedy decoding.

    Order of application: the mask of a grammar, logit_bias, repetition penalty, presence and frequency penalties,
    min_new_tokens, temperature, top_k, top_p, min_p.

    Args:
        temperature: 0 is greedy: a point mass on the best id, the lowest id wins ties.
        top_k: keep the k best ids, and those that tie with the k-th; 0 keeps all.
        top_p: keep the smallest set of best ids that reaches this mass, lowest id first among equals; 1 keeps all.
        min_p: keep ids of at least this fraction of the best id's probability; 0 keeps all.
        repetition_penalty: divides positive and multiplies negative logits of ids in prompt or output (Keskar et al.
            2019, arXiv 1909.05858); 1 does nothing.
        presence_penalty: subtracted from the logits of ids in the output.
        frequency_penalty: subtracted once per occurrence in the output.
        logit_bias: added to the logits of these ids; -inf bans one. It is copied.
        min_new_tokens: EOS has probability 0 until that many tokens were produced. Stops end a request before, and so
            does the end of a turn that is no EOS of the oracle's.
        ignore_eos: EOS does not end the request.
        json_schema: the output is a JSON value that this schema (a mapping, or JSON text) allows. One grammar at most.
        regex: the output matches this expression as a whole.
        grammar: the output follows these rules, in Lark's notation as ``llguidance`` reads it.

    Raises:
        ValueError: names the argument and its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_new_tokens: int = 0
    ignore_eos: bool = False
    json_schema: Mapping[str, Any] | str | None = None
    regex: str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            _require(_is_float(getattr(self, name)), name, getattr(self, name), "must be a number that a float holds")
        _require(isinstance(self.logit_bias, Mapping), "logit_bias", self.logit_bias, "must map ids to numbers")
        finite = math.isfinite
        _require(finite(self.temperature) and self.temperature >= 0, "temperature", self.temperature, "must be >= 0")
        fix = "must be an integer >= 0 (0 keeps all), below 2**63"
        _require(_is_count(self.top_k), "top_k", self.top_k, fix)
        _require(0 < float(self.top_p) <= 1, "top_p", self.top_p, "must lie in (0, 1] (1 keeps all)")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "must lie in [0, 1] (0 keeps all)")
        positive = 1 / _LARGEST <= self.repetition_penalty <= _LARGEST
        fix = f"must be > 0 (1 does nothing), from {1 / _LARGEST:g} to {_LARGEST:g}"
        _require(positive, "repetition_penalty", self.repetition_penalty, fix)
        fix = f"must be finite, from {-_LARGEST:g} to {_LARGEST:g}"
        for name in ("presence_penalty", "frequency_penalty"):
            _require(abs(getattr(self, name)) <= _LARGEST, name, getattr(self, name), fix)
        for token, bias in self.logit_bias.items():
            usable = _is_count(token) and _is_float(bias)
            usable = usable and (abs(float(bias)) <= _LARGEST or bias == -math.inf)
            fix = f"must map ids >= 0 to finite numbers from {-_LARGEST:g} to {_LARGEST:g}, or to -inf"
            _require(usable, "logit_bias", {token: bias}, fix)
        whole = _is_count(self.min_new_tokens)
        _require(whole, "min_new_tokens", self.min_new_tokens, "must be an integer >= 0, below 2**63")
        _require(isinstance(self.ignore_eos, (bool, np.bool_)), "ignore_eos", self.ignore_eos, "must be True or False")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))  # the caller may go on to write to theirs
        self._check_grammar()

    def _check_grammar(self) -> None:
        """Raise ValueError for a grammar that is not text, or for two grammars."""
        given = [name for name in _GRAMMARS if getattr(self, name) is not None]
        for name in given:
            kinds = (str, Mapping) if name == "json_schema" else (str,)
            fix = "must be text" if len(kinds) == 1 else "must be a mapping, or JSON text"
            _require(isinstance(getattr(self, name), kinds), name, getattr(self, name), fix)
        if len(given) > 1:
            raise ValueError(f"SamplingParams: give one of {' and '.join(given)}, not both")
        if given:
            _ = self.constraint

    @property
    def constraint(self) -> Constraint | None:
        """The grammar that the output follows; None: there is none.

        Raises:
            ValueError: a schema that is no JSON; parameters with one cannot be made.
        """
        for name in _GRAMMARS:
            if (value := getattr(self, name)) is not None:
                try:
                    text = value if isinstance(value, str) else json.dumps(dict(value))
                    if name == "json_schema":
                        json.loads(text)
                    return Constraint(name, text)
                except (TypeError, ValueError, RecursionError) as error:
                    said = reprlib.repr(value)  # the whole of what is nested too deep cannot be shown
                    raise ValueError(f"SamplingParams: json_schema={said} is no JSON: {error}") from error
        return None

    @property
    def reads_logits(self) -> list[str]:
        """The parameters that ask for more than the likeliest id of the oracle's own law."""
        plain = SamplingParams()
        return [n for n in _READ_LOGITS if getattr(self, n) != getattr(plain, n)]
