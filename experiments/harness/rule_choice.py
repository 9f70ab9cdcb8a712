"""How sampled arms draw: by rejection with the rule that fits their source, coupled, or by a rule of that name."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from exactspec.parser import number_in
from experiments.harness.own_places import FORMS, make_own, name_or_place
from specdec import DraftSource, SamplingParams, VerificationRule
from specdec.contracts import check_rule
from specdec.verify import RULES

REJECTION, COUPLED = "rejection", "coupled"
CHAINS, TREES = "standard", "multi_draft"
# The filters of laws that command lines offer, by their fields of ``SamplingParams``, in words.
FILTER_OPTIONS = {"top_p": "nucleus mass"}


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how tokens are chosen, and how drafts are judged."""
    parser.add_argument("--temperature", type=number_in("[0, inf)"), default=0.0, help="0 is greedy (%(default)s)")
    add_filters(parser)
    add_rule(parser)


def add_filters(parser: argparse.ArgumentParser, where: str = "", **usual: float) -> None:
    """Add the options of filters.

    Args:
        parser: of the program.
        where: when they hold, in words.
        usual: defaults; the other filters keep everything.
    """
    for name, default in {**no_filters(), **usual}.items():
        option, told = f"--{name.replace('_', '-')}", f"{FILTER_OPTIONS[name]}{where} (%(default)s)"
        parser.add_argument(option, type=_reader_of(name, type(default)), default=default, help=told)


def _reader_of(name: str, kind: type) -> Callable[[str], Any]:
    """Return a reader of a filter; it raises ArgumentTypeError for a value that ``SamplingParams`` refuses."""

    def read(text: str) -> Any:
        try:
            return getattr(SamplingParams(**{name: kind(text)}), name)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def no_filters() -> dict[str, Any]:
    """Return the arguments of filters that keep everything."""
    return {name: getattr(SamplingParams, name) for name in FILTER_OPTIONS}


def add_rule(parser: argparse.ArgumentParser) -> None:
    """Add the options that say by which rule drafts are judged, and by which kernels."""
    text = (
        f"how drafts are judged: {REJECTION} (rule {CHAINS} on chains, {TREES} on trees), {COUPLED} (sampled output is "
        f"plain decoding's, token for token; fewer tokens are accepted), a rule of {', '.join(RULES)}, or your own, "
        f"{FORMS} (%(default)s)"
    )
    parser.add_argument("--rule", type=rule_name, default=REJECTION, metavar="RULE", help=text)
    what = "what computes laws, draws and verdicts: compiled code, or its definition in torch (native if it can)"
    parser.add_argument("--kernels", choices=("native", "reference"), help=what)


def rule_name(text: str) -> str:
    """Return the name of a way to judge, or the place of a rule of one's own.

    Raises:
        ArgumentTypeError: it is neither.
    """
    return name_or_place(text, (REJECTION, *RULES), "rule")


def rule_of(asked: str) -> VerificationRule:
    """Return the rule that ``--rule`` asks for on chains.

    Raises:
        ValueError: there is nothing at the place of a rule of one's own, or no rule.
    """
    if asked == REJECTION or asked in RULES:
        return RULES[CHAINS if asked == REJECTION else asked]
    rule: VerificationRule = make_own(asked)
    check_rule(rule)
    return rule


def rule_for(asked: str, draft: DraftSource | None) -> VerificationRule:
    """Return the rule that judges an arm's drafts.

    Args:
        asked: of ``--rule``.
        draft: of the arm; None: plain decoding, whose law is the same under every rule that does not couple draws. It
            has the one that takes least time: a slower one would flatter the arms that are compared with it.

    Raises:
        ValueError: the source branches, and the rule has no meaning on trees; or as of ``rule_of``.
    """
    rule = rule_of(asked)
    if draft is None:
        return rule if rule.coupled else RULES[CHAINS]
    branches = draft.offers.trees
    if branches and asked == REJECTION:
        return RULES[TREES]
    if branches and not rule.trees:
        fitting = ", ".join([REJECTION, *(name for name, rule in RULES.items() if rule.trees)])
        raise ValueError(f"--rule {asked} judges chains only, and {draft.name} branches: use one of {fitting}")
    return rule


def sampling_of(arguments: Mapping[str, Any]) -> SamplingParams:
    """Return how a command line asks for tokens to be chosen.

    Raises:
        ValueError: a value is out of its range.
    """
    filters = {name: arguments[name] for name in FILTER_OPTIONS}
    return SamplingParams(arguments["temperature"], **filters, ignore_eos=arguments.get("ignore_eos", False))


def way_of(arguments: Mapping[str, Any]) -> str:
    """Return in words how a run chose its tokens, from the arguments of its provenance."""
    heat = arguments["temperature"]
    if heat == 0:
        return "greedy"
    given = {name: arguments[name] for name, none in no_filters().items() if arguments.get(name, none) != none}
    filters = "".join(f", {name.replace('_', '-')} {value}" for name, value in given.items())
    law, rule = f"sampling at temperature {heat}{filters}", arguments["rule"]
    if rule == COUPLED:
        return f"coupled {law}"
    by = f"by rejection (rule {CHAINS} on chains, {TREES} on trees)" if rule == REJECTION else f"by rule {rule}"
    return f"{law}, drawn {by}"
