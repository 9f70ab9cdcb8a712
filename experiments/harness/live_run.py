"""A generation that is shown while it grows: the options of a program that shows one, and its steps under the clock."""

import time

from exactspec.parser import positive
from experiments.harness.arguments import ExperimentParser, add_placement, add_strategies, seed_number
from experiments.harness.conversations import add_template_options
from experiments.harness.findings.colouring import BONUS, Pieces, StepOutput, TextPiece, step_output
from experiments.harness.own_places import FORMS
from experiments.harness.rule_choice import add_sampling
from experiments.strategies import STRATEGIES, strategy_name
from specdec import SpeculativeDecoder
from specdec.contracts import StepInfo
from specdec.engine import State
from specdec.requests import FinishReason


def live_parser(
    description: str | None, oracle: str, strategy: str, max_new_tokens: int, arithmetic: str = "float32"
) -> ExperimentParser:
    """Return a parser of the options of programs that show a generation of one row; other arguments are defaults."""
    parser = ExperimentParser(description)
    add = parser.add_argument
    text = f"what drafts, of {', '.join(STRATEGIES)}; or your own source, {FORMS} (%(default)s)"
    add("--strategy", type=strategy_name, default=strategy, metavar="NAME", help=text)
    what = "embedded or published name, checkpoint directory, GGUF file or hf:DIR (%(default)s)"
    add("--oracle", default=oracle, help=what)
    add(
        "--max-new-tokens",
        type=positive,
        default=max_new_tokens,
        help="most new tokens of a generation (%(default)s)",
    )
    add_sampling(parser)
    add("--seed", type=seed_number, default=0, help="seed of sampling (%(default)s)")
    add_template_options(parser)
    add_placement(parser, arithmetic)
    add_strategies(parser)
    parser.set_defaults(batch_size=1)
    return parser


class Run:
    """The only generation of a state, under the clock; prefill and display are left out.

    Args:
        decoder: decodes it.
        state: from its ``start``.

    Attributes:
        state: after the latest step.
        tokens, steps: so far.
    """

    def __init__(self, decoder: SpeculativeDecoder, state: State) -> None:
        self.state, self.tokens, self.steps = state, 0, 0
        self._decoder, self._last = decoder, BONUS
        self._pieces = Pieces(decoder.oracle.tokenizer, state.slots.requests[0].stop_strings)
        # The first step holds the prefill.
        self._seconds, self._first_tokens = 0.0, 0

    def step(self) -> list[TextPiece]:
        """Take a step and return the text that it made certain."""
        began = time.perf_counter()
        self.state, info = self._decoder.step(self.state)
        step = emission_of(info)
        if self.steps:
            self._seconds += time.perf_counter() - began
        else:
            self._first_tokens = len(step)
        self.tokens += len(step)
        self.steps += 1
        self._last = step[-1][1]
        return self._pieces.of(step[:-1] if self.finish_reason == "eos" else step)

    def rest(self) -> TextPiece:
        """Return the text that was held back to the end."""
        return TextPiece(self._pieces.rest(), self._last)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; None: it has not."""
        return self.state.finish_reasons[0]

    @property
    def block_efficiency(self) -> float:
        """tau: tokens a step; 0 before the first one."""
        return self.tokens / max(self.steps, 1)

    @property
    def speed(self) -> float | None:
        """Tokens a second; None before the second step."""
        return (self.tokens - self._first_tokens) / self._seconds if self._seconds else None


def emission_of(info: StepInfo) -> StepOutput:
    """Return what the only row of a step emitted."""
    count, accepted = int(info.num_emitted[0]), int(info.num_accepted[0])
    sources = [info.source_names[i] for i in info.path_sources[0][:accepted]]
    return step_output(info.tokens[0][:count].tolist(), accepted, sources, bool(info.stopped_at_leaf[0]))
