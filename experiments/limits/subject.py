"""The model that is measured, and its variants with random weights."""

from dataclasses import replace

from experiments.bench.oracle.benchmark_models import SHAPES
from experiments.harness.models import PLACEMENT, load_own
from experiments.limits.limit_options import Options
from oracles.checkpoints.loading import LoadedOracle
from oracles.native import NativeTransformer, NativeUnavailable
from oracles.transformer.config import TransformerConfig
from oracles.transformer.eager import Transformer


def random_oracle(config: TransformerConfig, weight_type: str, backend: str) -> LoadedOracle:
    """Return an oracle of random weights in a type of ``oracles.load``; eager ones compute, and store, in float32."""
    model = Transformer(config)
    return NativeTransformer(model.store(weight_type)) if backend == "native" else model.eval().pack()


class Subject:
    """A model whose context is long enough for all that is measured.

    What a pass costs depends on sizes, not on weights: beyond the oracle's own context, and with another window, the
    weights are random.

    Args:
        options: name the model and the positions that it must serve.

    Attributes:
        name: of the oracle or shape, and where its weights come from.
        oracle: the model.

    Raises:
        ValueError: the oracle is unknown, or the backend cannot run here.
    """

    def __init__(self, options: Options) -> None:
        if options.shape is None:
            placement = dict.fromkeys(PLACEMENT) | {"device": "cpu", "backend": options.backend}
            oracle = load_own(options.oracle, placement)
            self.name, self._config = options.oracle, oracle.config
            self._stored, self._backend = oracle.weight_type, oracle.backend
            if oracle.max_context >= options.positions:
                self.oracle: LoadedOracle = oracle
                return
        else:
            self.name, self._config = options.shape, SHAPES[options.shape]
            self._stored, self._backend = options.storage, _backend(options.backend)
        if self._config.max_context < options.positions:
            self._config = replace(self._config, max_context=options.positions)
        self.name += ", random weights"
        self.oracle = random_oracle(self._config, self._stored, self._backend)

    def with_window(self, window: int) -> LoadedOracle:
        """Return a model of the same sizes, random weights and this window."""
        return random_oracle(replace(self._config, sliding_window=window), self._stored, self._backend)


def _backend(asked: str | None) -> str:
    """Return the backend of passes: the one asked for, else native where it can run."""
    if asked == "eager":
        return asked
    try:
        NativeTransformer.check()
    except NativeUnavailable as error:
        if asked is not None:
            raise ValueError(f"backend 'native' cannot run: {error}; choose 'eager'") from error
        return "eager"
    return "native"
