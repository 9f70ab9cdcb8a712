"""The command line of the limits, and the model that it asks for with its variants of other contexts and windows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch

from exactspec.parser import number_in, positive
from experiments.bench.oracle.benchmark_models import SHAPES
from experiments.harness.models import PLACEMENT, load_own
from experiments.harness.options import option, parse_options
from oracles.checkpoints.gguf import is_gguf
from oracles.checkpoints.loading import LoadedOracle, checkpoint_model, find_checkpoint
from oracles.checkpoints.placement import Backend, WeightType, backend_of
from oracles.native import NativeTransformer
from oracles.quantisation import rounds_inputs
from oracles.transformer.config import TransformerConfig
from oracles.transformer.eager import Transformer

_STORAGES = tuple(name for name in get_args(WeightType) if not rounds_inputs(name))


@dataclass(frozen=True)
class LimitOptions:
    """What was asked for."""

    oracle: str = option("code", "embedded checkpoint, checkpoint directory or GGUF file", exclusive=True)
    shape: str | None = option(
        None, "random weights of this shape, in place of an oracle", exclusive=True, choices=SHAPES
    )
    storage: str = option("bfloat16", "type of the weights of --shape, if native", choices=_STORAGES)
    backend: Backend | None = option(
        None, "backend of the passes (native if it can run, else eager)", choices=("native", "eager")
    )
    batch_sizes: tuple[int, ...] = option((1, 8), "rows of a pass")
    widths: tuple[int, ...] = option((1, 2, 4, 8, 16, 32), "nodes per row of a pass")
    contexts: tuple[int, ...] = option((128, 1024, 4096, 8192), "tokens in the cache")
    window: int = option(1024, "positions of the sliding window")
    prefill: int = option(8192, "tokens of the prompt that is cut into chunks")
    chunks: tuple[int, ...] = option((64, 128, 512, 2048), "tokens of a chunk")
    alphas: tuple[float, ...] = option(
        (0.5, 0.6, 0.7, 0.8, 0.9), "acceptance rates (0.5 .. 0.9)", type=number_in("[0, 1]")
    )
    draft_cost: float = option(0.1, "cost of a draft token, over a pass of one node", type=number_in("[0, inf)"))
    rounds: int = option(3, "rounds, in each of which every pass runs; medians count")
    repeats: int = option(10, "most passes of a round")
    threads: int | None = option(None, "torch threads (torch's own choice)", type=positive)
    out: Path = option("runs/limits", "folder for pictures and JSON", type=Path)

    @property
    def wide(self) -> int:
        """The width that stands for a draft's pass in pictures and in the table of windows: 8, or the nearest."""
        return min(self.widths, key=lambda width: abs(width - 8))

    @property
    def positions(self) -> int:
        """Return the positions that a model must serve for all of this."""
        return max(max(self.contexts) + max(self.widths), self.prefill)


def parse(argv: Sequence[str] | None, description: str | None) -> LimitOptions:
    """Return what is asked for; numbers ascend, each once, and the widths include 1.

    Raises:
        SystemExit: an argument cannot be, with the reason.
    """

    def ascending(values: dict[str, Any]) -> dict[str, Any]:
        several = {name: value for name, value in values.items() if isinstance(value, list | tuple)}
        several["widths"] = (1, *values["widths"])
        return values | {name: sorted(set(value)) for name, value in several.items()}

    return parse_options(LimitOptions, description, argv, ascending)


def random_oracle(config: TransformerConfig, weight_type: str, backend: str) -> LoadedOracle:
    """Return an oracle of random weights in a type of ``oracles.load``; an eager one computes and stores in float32."""
    model = Transformer(config)
    return NativeTransformer(model.store(weight_type)) if backend == "native" else model.eval().pack()


class LimitSubject:
    """A model whose context is long enough for all that is measured.

    What a pass costs depends on sizes, not on weights, so beyond the oracle's own context, and with another window, the
    weights are random. A GGUF file, whose layers may be stored in several types, keeps its weights in native passes.

    Args:
        options: name the model and the positions that it must serve.

    Attributes:
        name: of the oracle or shape, and where its weights come from.
        oracle: the model.

    Raises:
        ValueError: the oracle is unknown, or the backend cannot run here.
    """

    def __init__(self, options: LimitOptions) -> None:
        self._file: Path | None = None
        if options.shape is None:
            placement = dict.fromkeys(PLACEMENT) | {"device": "cpu", "backend": options.backend}
            oracle = load_own(options.oracle, placement)
            self.name, self._config = options.oracle, oracle.config
            self._stored, self._backend = oracle.weight_type, oracle.backend
            place = find_checkpoint(options.oracle)
            self._file = place if is_gguf(place) and oracle.backend == "native" else None
            if oracle.max_context >= options.positions:
                self.oracle: LoadedOracle = oracle
                return
        else:
            self.name, self._config = options.shape, SHAPES[options.shape]
            self._stored = options.storage
            self._backend = backend_of(options.backend, None, torch.device("cpu"), bitwise=False)
        if self._config.max_context < options.positions:
            self._config = replace(self._config, max_context=options.positions)
        if self._file is None:
            self.name += ", random weights"
        self.oracle = self._model(self._config)

    def with_window(self, window: int) -> LoadedOracle:
        """Return a model of the same sizes and this window."""
        return self._model(replace(self._config, sliding_window=window))

    def _model(self, config: TransformerConfig) -> LoadedOracle:
        """Return a model of these sizes: random weights, or those of the file."""
        if self._file is None:
            return random_oracle(config, self._stored, self._backend)
        model = checkpoint_model(self._file, None, torch.device("cpu"), None, as_stored=True)
        model.config = config
        return NativeTransformer(model)
