"""Watch one generation: drafted, recovered and bonus tokens in colour; then how fast it is beside plain decoding.

``python -m experiments.watch "def add(a, b):" --strategy prompt_lookup`` shows the strategy's generation live. Then
both sides decode the prompt several times, interleaved; the speeds are medians of these pairs. ``--picture FILE`` saves
the final screen as SVG.
"""

from collections.abc import Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from exactspec.ending import as_program
from exactspec.parser import command_like_this, positive, refusing
from experiments.harness.arguments import PROMPTS, add_column
from experiments.harness.arms import PLAIN, units_of
from experiments.harness.building import arms_of, engine_arms
from experiments.harness.conversations import as_conversations
from experiments.harness.draw_checks import texts_in
from experiments.harness.findings.colouring import PROMPT, Palette, TextPiece
from experiments.harness.findings.screen_picture import picture_path, write_picture
from experiments.harness.live_run import Run, live_parser
from experiments.harness.models import load_oracle
from experiments.harness.own_places import check_names
from experiments.harness.rule_choice import sampling_of
from experiments.harness.run_outcome import DECODING_ALONE, END_TO_END, Outcome
from experiments.harness.running import measure, warm_up
from experiments.harness.thread_check import take_threads
from experiments.strategies import strategy_of
from specdec.prompts import NamedPrompt, load_prompts
from specdec.stats.report import Interval, median_ratio, verdict

# With fewer pairs a median has no interval of 95 %.
REPEATS = 6


def last_lines(text: str, number: int | None) -> str:
    """Return the last lines of a text, after a line that says that others were left out; None: the whole text."""
    lines = text.splitlines(keepends=True)
    return text if number is None or len(lines) <= number else "".join(["...\n", *lines[-number:]])


class ScrolledPicture:
    """A picture scrolled to its end: its last lines, as many as a terminal has.

    Args:
        shown: the picture.
    """

    def __init__(self, shown: RenderableType) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the parts of its lines."""
        for line in console.render_lines(self._shown, options, pad=False)[-options.size.height :]:
            yield from line
            yield Segment.line()


class Screen:
    """What is shown: the text, a legend, a line of figures.

    Args:
        prompt: shown before the output.
        strategy: its name.
    """

    def __init__(self, prompt: str, strategy: str) -> None:
        self.strategy, self.palette = strategy, Palette()
        self.pieces = [TextPiece(prompt, PROMPT)]

    def show(self, run: Run) -> Group:
        """Return the picture of a run."""
        return Group(self.palette.text(self.pieces), Text(), self.palette.legend(), self.line(run))

    def line(self, run: Run) -> Text:
        """Return the figures so far."""
        parts = [self.strategy, f"{run.block_efficiency:.2f} tokens a step"]
        if run.speed is not None:
            parts.append(f"{run.speed:,.0f} tokens/s")
        return Text("   ".join(parts), "bold")


def parse(argv: Sequence[str] | None) -> dict[str, Any]:
    """Return the arguments."""
    parser = live_parser(__doc__, oracle="code", strategy="prompt_lookup", max_new_tokens=128)
    add = parser.add_argument
    add("prompt", nargs="?", help="text to go on from, or to answer (the first of --prompts)")
    add("--prompts", default=str(PROMPTS), help="JSONL, parquet or text file; conversations too (the shipped ones)")
    add_column(parser)
    add("--repeats", type=positive, default=REPEATS, help="interleaved pairs that are timed afterwards (%(default)s)")
    add("--prompt-lines", type=positive, metavar="N", help="show the last N lines of the prompt (all)")
    add("--picture", type=picture_path, metavar="FILE", help="file for a picture of the final screen, as .svg")
    return vars(parser.parse_args(argv))


def prompt_of(arguments: dict[str, Any]) -> NamedPrompt:
    """Return the text of a command line, or the first prompt of its file."""
    given = arguments["prompt"]
    return (
        load_prompts(arguments["prompts"], arguments["column"])[0]
        if given is None
        else NamedPrompt("prompt", "all", given)
    )


def watch(arguments: dict[str, Any], console: Console) -> Group:
    """Decode with the strategy, live on a console, then time both sides; return what is to be seen at the end.

    Raises:
        ValueError: a model or a prompt cannot be used, or the strategy would remember what was watched.
    """
    name = arguments["strategy"]
    memory = strategy_of(name).remembers
    if memory and arguments[f"{name}.{memory}"]:
        option = f"--{name}-{memory}".replace("_", "-")
        raise ValueError(f"{option}: the timed pairs would copy the answer from it: leave it out")
    oracle = load_oracle(arguments)
    (prompt,) = as_conversations([prompt_of(arguments)], oracle, arguments)
    arms = [*engine_arms(arguments, oracle, {PLAIN: None}), *arms_of(name, arguments, oracle, variants=False)]
    check_names([arm.name for arm in arms])
    new, repeats = arguments["max_new_tokens"], arguments["repeats"]
    (unit,) = units_of([prompt], 1, seed=arguments["seed"])
    warm_up(arms, unit)
    decoder, name = arms[1].decoder, arms[1].name
    run = Run(decoder, decoder.start([prompt.start], new, sampling_of(arguments), unit.seeds))
    screen = Screen(last_lines(prompt.text, arguments["prompt_lines"]), name)
    with Live(ScrolledPicture(screen.show(run)), console=console, auto_refresh=False, transient=True) as live:
        while run.state.has_work:
            screen.pieces += run.step()
            live.update(ScrolledPicture(screen.show(run)), refresh=True)
        screen.pieces.append(run.rest())
        timing = Text(f"Timing {repeats} interleaved pairs ...")
        live.update(ScrolledPicture(Group(screen.show(run), timing)), refresh=True)
        outcome = Outcome([arm.name for arm in arms], [measure(unit, arms, new, repeats)])
    told = [comparison(outcome, name, run.state.outputs[0]), *speeds(outcome, name)]
    return Group(screen.show(run), Text("\n".join(told)))


def comparison(outcome: Outcome, arm: str, output: Sequence[int]) -> str:
    """Return how an arm's tokens compare with plain decoding's, in words.

    Args:
        outcome: of the timed pairs.
        arm: its name.
        output: of the generation that was shown.
    """
    if not outcome.repeats_plain(arm):
        return "Another draw of the same law as plain decoding's (--rule coupled: the same tokens)."
    (records,) = outcome.records(PLAIN)
    same = [[*output]] == texts_in(records, 1) and all(outcome.check_results(arm))
    return "The same tokens as plain decoding." if same else "Other tokens than plain decoding!"


def speeds(outcome: Outcome, arm: str) -> list[str]:
    """Return both ratios of an arm, a sentence each, and what a reader must know about them."""
    alone, whole = outcome.decoding_speedup(arm, method=median_ratio), outcome.speedup(arm, method=median_ratio)
    assert alone is not None
    told = [_speed(name, ratio) for name, ratio in ((DECODING_ALONE, alone), (END_TO_END, whole))]
    count = len(outcome.rounds(arm))
    pairs = f"{count} interleaved pair{'' if count == 1 else 's'}, on this prompt and this machine"
    about = (
        f"That is over {pairs}; fewer than {REPEATS} have no interval."
        if alone.low is None
        else f"That is the median of {pairs}, with its 95 % interval."
    )
    return [*told, about, *_of_loops(outcome, arm)]


def _speed(name: str, ratio: Interval) -> str:
    """Return what a ratio says; nothing is claimed if its interval contains 1, or if it has none."""
    if verdict(ratio) == "not told apart":
        return f"{name.capitalize()}: not told apart from plain decoding, {ratio}."
    return f"{name.capitalize()}: {ratio} times as fast as plain decoding."


def _of_loops(outcome: Outcome, arm: str) -> list[str]:
    """Return how much of the text is in loops, which are easily drafted, and the speed outside them."""
    share, outside = outcome.loop_share(arm), outcome.speedup_outside(arm)
    if not share:
        return []
    beside = f"{DECODING_ALONE} outside loops {outside.value:.2f}" if outside else "no step lies outside"
    return [f"{share:.0%} of its tokens stand in loops, which are easily drafted; {beside}."]


def main(argv: Sequence[str] | None = None) -> int:
    """Watch a generation."""
    arguments = parse(argv)
    take_threads(arguments["threads"])
    console = Console(highlight=False)
    with refusing("watch"):
        shown = watch(arguments, console)
    console.print(shown)
    if arguments["picture"] is not None:
        title = f"{command_like_this('experiments.watch')} --strategy {arguments['strategy']}"
        with refusing("watch"):
            write_picture(arguments["picture"], shown, title)
    return 0


if __name__ == "__main__":
    as_program(main)
