"""Watch one generation: drafted, recovered and bonus tokens in colour, with a running speed-up over plain decoding.

``python -m experiments.watch "def add(a, b):" --strategy prompt_lookup`` decodes plainly first, then with the strategy.
``--picture FILE`` writes what the terminal showed at the end, as SVG or PNG.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from exactspec.parser import Parser, command_like_this
from experiments.arguments import PROMPTS, add_placement, add_strategy, positive, refusing, settings_of
from experiments.arms import PLAIN, EngineArm
from experiments.colouring import PROMPT, Emitted, Palette, Piece, Pieces
from experiments.conversations import add_template_options, as_conversations
from experiments.models import load_oracle
from experiments.rule_choice import add_rule, sampling_of
from experiments.screen_picture import picture_path, write_picture
from experiments.strategies import STRATEGIES
from specdec import SpeculativeDecoder
from specdec.contracts import StepInfo
from specdec.engine import State
from specdec.prompts import NamedPrompt, load_prompts

WARM_UP_TOKENS = 8


@dataclass
class Run:
    """A generation under the clock, prefill and display left out.

    Args:
        decoder: decodes it.
        state: of the run.
        seconds: of the steps after the first one, which holds the prefill.
        tokens: that these emitted.
    """

    decoder: SpeculativeDecoder
    state: State
    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0

    def step(self) -> Emitted:
        """Take a step and return what it emitted."""
        began = time.perf_counter()
        self.state, info = self.decoder.step(self.state)
        step = emitted(info)
        if self.steps:
            self.seconds += time.perf_counter() - began
            self.tokens += len(step.tokens)
        self.steps += 1
        return step

    @property
    def speed(self) -> float | None:
        """Tokens a second; None before the second step."""
        return self.tokens / self.seconds if self.seconds else None


def emitted(info: StepInfo) -> Emitted:
    """Return what the only row of a step emitted."""
    count, accepted = int(info.num_emitted[0]), int(info.num_accepted[0])
    sources = [info.source_names[i] for i in info.path_sources[0][:accepted]]
    return Emitted(info.tokens[0][:count].tolist(), accepted, sources, bool(info.stopped_at_leaf[0]))


def last_lines(text: str, number: int | None) -> str:
    """Return the last lines of a text, after a line that says that others were left out; None: the whole text."""
    lines = text.splitlines(keepends=True)
    return text if number is None or len(lines) <= number else "".join(["...\n", *lines[-number:]])


class Screen:
    """What is shown: the text, a legend, a line of figures.

    Args:
        prompt: shown before the output.
        strategy: its name.
        plain: tokens a second without drafts.
    """

    def __init__(self, prompt: str, strategy: str, plain: float | None) -> None:
        self.strategy, self.plain, self.palette = strategy, plain, Palette()
        self.pieces = [Piece(prompt, PROMPT)]

    def show(self, run: Run) -> Group:
        """Return the picture of a run."""
        return Group(self.palette.text(self.pieces), Text(), self.palette.legend(), self.line(run))

    def line(self, run: Run) -> Text:
        """Return the figures so far."""
        parts = [self.strategy, f"{(run.tokens / max(run.steps - 1, 1)):.2f} tokens a step"]
        if run.speed is not None:
            parts.append(f"{run.speed:,.0f} tokens/s")
            if self.plain:
                parts.append(f"{run.speed / self.plain:.2f} x plain decoding ({self.plain:,.0f})")
        return Text("   ".join(parts), "bold")


def parse(argv: Sequence[str] | None) -> dict[str, Any]:
    """Return the arguments."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("prompt", nargs="?", help="text to go on from, or to answer (the first of --prompts)")
    add("--prompts", default=str(PROMPTS), help="JSONL, parquet or text file; conversations too (the shipped ones)")
    add("--strategy", choices=list(STRATEGIES), default="prompt_lookup", help="what drafts (%(default)s)")
    add(
        "--oracle",
        default="code",
        help="embedded or published name, checkpoint directory, GGUF file or hf:DIR (%(default)s)",
    )
    add("--max-new-tokens", type=positive, default=128, help="(%(default)s)")
    add("--temperature", type=float, default=0.0, help="0 is greedy (%(default)s)")
    add("--top-p", type=float, default=1.0, help="nucleus mass (%(default)s)")
    add_rule(parser)
    add("--seed", type=int, default=0, help="of sampling (%(default)s)")
    add("--prompt-lines", type=positive, metavar="N", help="show the last N lines of the prompt (all)")
    add("--picture", type=picture_path, metavar="FILE", help="write what was shown at the end: .svg or .png")
    add_template_options(parser)
    add_placement(parser)
    for strategy in STRATEGIES.values():
        add_strategy(parser, strategy, prefixed=True)
    return {**vars(parser.parse_args(argv)), "batch_size": 1}


def prompt_of(arguments: dict[str, Any]) -> NamedPrompt:
    """Return the text of a command line, or the first prompt of its file."""
    given = arguments["prompt"]
    return load_prompts(arguments["prompts"], None, 1)[0] if given is None else NamedPrompt("prompt", "all", given)


def watch(arguments: dict[str, Any], console: Console) -> Group:
    """Decode plainly, then with the strategy, live on a console; return what is to be seen at the end.

    Raises:
        ValueError: a model or a prompt cannot be used.
    """
    oracle, name = load_oracle(arguments), arguments["strategy"]
    (prompt,) = as_conversations([prompt_of(arguments)], oracle, arguments)
    sampling = sampling_of(arguments)
    source = STRATEGIES[name].build(settings_of(arguments, name), oracle)

    def begun(draft: Any, new: int) -> Run:
        decoder = EngineArm(PLAIN, oracle, draft, sampling, arguments["rule"]).decoder
        return Run(decoder, decoder.start([prompt.start], new, sampling, arguments["seed"]))

    def ended(run: Run) -> Run:
        while run.state.has_work:
            run.step()
        return run

    for draft in (None, source):
        ended(begun(draft, WARM_UP_TOKENS))
    plain, run = ended(begun(None, arguments["max_new_tokens"])), begun(source, arguments["max_new_tokens"])
    shown = last_lines(prompt.text, arguments["prompt_lines"])
    screen, pieces = Screen(shown, name, plain.speed), Pieces(oracle.tokenizer)
    with Live(screen.show(run), console=console, auto_refresh=False, transient=True) as live:
        while run.state.has_work:
            screen.pieces += pieces.of(run.step())
            live.update(screen.show(run), refresh=True)
    screen.pieces.append(Piece(pieces.rest(), screen.pieces[-1].origin))
    return Group(screen.show(run), Text(comparison(run, plain, draws=sampling.temperature > 0)))


def comparison(run: Run, plain: Run, draws: bool) -> str:
    """Return how a run's tokens compare with plain decoding's, in words.

    Args:
        run, plain: at their ends.
        draws: whether tokens are drawn; a rule that is not coupled then gives either run a text of its own.
    """
    if draws and not run.decoder.rule.coupled:
        return "Another draw of the same law as plain decoding's (--rule coupled: the same tokens)."
    same = run.state.outputs == plain.state.outputs
    return "The same tokens as plain decoding." if same else "Other tokens than plain decoding!"


def main(argv: Sequence[str] | None = None) -> int:
    """Watch a generation."""
    arguments = parse(argv)
    if arguments["threads"] is not None:
        torch.set_num_threads(arguments["threads"])
    console = Console(highlight=False)
    with refusing("watch"):
        shown = watch(arguments, console)
    console.print(shown)
    if arguments["picture"] is not None:
        write_picture(
            arguments["picture"], shown, f"{command_like_this('experiments.watch')} --strategy {arguments['strategy']}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
