"""The precisions: what weights, arithmetic and cache are, and how a model is made so; a line each in ``ARMS``."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import oracles
from experiments.precision import with_torchao
from oracles.checkpoints.loading import LoadedOracle
from oracles.native import NativeTransformer
from oracles.quantisation import FORMATS
from oracles.quantisation.methods import METHODS
from oracles.quantisation.methods.calibration_text import calibration_ids
from oracles.transformer.eager import Transformer

NATIVE, EAGER, EVERY_CALL = "native", "eager", "eager, dequantised in every call"
TORCHAO = "eager, by torchao"


@dataclass(frozen=True)
class Arm:
    """One precision of a model.

    Attributes:
        weights: the type that linear layers are rounded to, as ``oracles.load`` names it.
        backend: what computes a pass.
        arithmetic: dtype of activations and cache.
        method: how weights of few bits are found, one of ``oracles.quantisation.methods.METHODS``; None: floats.
    """

    weights: str
    backend: str = NATIVE
    arithmetic: str = "float32"
    method: str | None = None

    @property
    def rounds_inputs(self) -> bool:
        """Whether its products round their inputs too, so that no float32 model stands for it."""
        return self.weights in FORMATS and FORMATS[self.weights].rounds_inputs

    @property
    def products(self) -> str:
        """What products are computed in."""
        return "int8, sums int32" if self.rounds_inputs else self.arithmetic

    @property
    def widens(self) -> bool:
        """Whether a pass writes weights of few bits as float32 before it reads them."""
        return self.backend == EVERY_CALL or (self.backend == TORCHAO and not self.rounds_inputs)

    def model(self, name: str) -> Transformer:
        """Return a checkpoint's transformer with weights of this precision, as plain modules.

        Cost: a calibrated method reads calibration text, and scores it layer by layer.
        """
        model = oracles.load_trainable(name, "float32").eval().requires_grad_(False)
        if self.backend == TORCHAO:
            return with_torchao.quantise(model, self.weights)
        if self.method is None:
            return model.store(self.weights)
        METHODS[self.method](model, FORMATS[self.weights], calibration_ids(model))
        return model

    def oracle(self, name: str) -> LoadedOracle:
        """Return a checkpoint as an oracle of this precision."""
        if self.arithmetic != "float32":
            return oracles.load(name, self.arithmetic, backend="eager")
        model = self.model(name)
        if self.backend in (EVERY_CALL, TORCHAO):
            return model
        return NativeTransformer(model) if self.backend == NATIVE else model.float().pack()

    def reference(self, name: str) -> LoadedOracle | None:
        """Return what it must equal token for token; None where it is the definition of its own rounding.

        Of rounded weights that is the native oracle of the float32 numbers that they stand for; where inputs are
        rounded too, torch's product of whole numbers in place of ours.
        """
        if self.arithmetic != "float32" or self.weights == "float32":
            return None
        if self.rounds_inputs:
            return self.model(name).pack() if self.backend == NATIVE else None
        if self.backend == TORCHAO:
            return NativeTransformer(with_torchao.dequantise(self.model(name)))
        return NativeTransformer(self.model(name).dequantise().float())


ORACLE = "float32"
ARMS = {
    ORACLE: Arm("float32"),
    "float32, eager": Arm("float32", EAGER),
    "bfloat16 weights": Arm("bfloat16"),
    "float16 weights": Arm("float16"),
    "bfloat16": Arm("bfloat16", EAGER, "bfloat16"),
    "float16": Arm("float16", EAGER, "float16"),
    "int8, dequantised": Arm("int8", EVERY_CALL, method="nearest"),
    "int8": Arm("int8", method="nearest"),
    "int8, torchao": Arm("int8", TORCHAO, method="nearest"),
    "int8, GPTQ": Arm("int8", method="gptq"),
    "int8 inputs, eager": Arm("int8-dynamic", EAGER, method="nearest"),
    "int8 inputs, torchao": Arm("int8-dynamic", TORCHAO, method="nearest"),
    "int8 inputs": Arm("int8-dynamic", method="nearest"),
    "int8 inputs, SmoothQuant": Arm("int8-dynamic", method="smoothquant"),
    "int4": Arm("int4", method="nearest"),
    "int4, AWQ": Arm("int4", method="awq"),
    "int4, GPTQ": Arm("int4", method="gptq"),
}
# What can draft for the float32 oracle on its cache, and what does if nobody says otherwise.
VIEWS = tuple(name for name, arm in ARMS.items() if arm.backend == NATIVE and name != ORACLE)
DRAFTING = ("bfloat16 weights", "int8", "int8 inputs", "int4", "int4, GPTQ")


class Made:
    """Models that are made when first asked for, and kept.

    Attributes:
        seconds: what making each took, by arm and checkpoint.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, str], LoadedOracle | None] = {}
        self.seconds: dict[tuple[str, str], float] = {}

    def oracle(self, arm: str, name: str) -> LoadedOracle:
        """Return a checkpoint in the precision of an arm."""
        began = time.perf_counter()
        made = self._once(("oracle", arm, name), lambda: ARMS[arm].oracle(name))
        assert made is not None
        self.seconds.setdefault((arm, name), time.perf_counter() - began)
        return made

    def reference(self, arm: str, name: str) -> LoadedOracle | None:
        """Return what an arm must equal."""
        return self._once(("reference", arm, name), lambda: ARMS[arm].reference(name))

    def _once(self, key: tuple[str, str, str], make: Callable[[], LoadedOracle | None]) -> LoadedOracle | None:
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]


def not_run(names: Sequence[str]) -> dict[str, str]:
    """Return those arms that need a package which is not installed, with what to do."""
    return {
        name: with_torchao.EXTRA for name in names if ARMS[name].backend == TORCHAO and not with_torchao.is_installed()
    }


def select_names(names: Sequence[str], among: Sequence[str], argument: str) -> tuple[str, ...]:
    """Return names of arms in the order of ``among``.

    Raises:
        ValueError: one is not among them; the message names the argument.
    """
    unknown = [name for name in names if name not in among]
    if unknown:
        raise ValueError(f"{argument}: {', '.join(unknown)} not among {', '.join(among)}")
    return tuple(name for name in among if name in names)
