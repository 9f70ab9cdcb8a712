"""The precisions, a line each in ``ARMS``; how a model is made in one; the command line of their study."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import oracles
from experiments.harness.options import option
from experiments.studies.inference_stack.study_frame import StudyOptions, parse_study
from experiments.studies.precision import with_torchao
from oracles.checkpoints.loading import LoadedOracle
from oracles.native import NativeTransformer
from oracles.quantisation import FORMATS, rounds_inputs
from oracles.quantisation.methods import METHODS
from oracles.quantisation.methods.calibration_text import calibration_ids
from oracles.transformer.eager import Transformer

NATIVE, EAGER, EVERY_CALL = "native", "eager", "eager, dequantised in every call"
TORCHAO = "eager, by torchao"


@dataclass(frozen=True)
class PrecisionArm:
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
        return rounds_inputs(self.weights)

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
        """Return what it must equal token for token; None if it is itself the definition of its rounding.

        For rounded weights it is the native oracle of the float32 numbers that they stand for; if inputs are rounded
        too, torch's product of whole numbers in place of ours.
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
    ORACLE: PrecisionArm("float32"),
    "float32, eager": PrecisionArm("float32", EAGER),
    "bfloat16 weights": PrecisionArm("bfloat16"),
    "float16 weights": PrecisionArm("float16"),
    "bfloat16": PrecisionArm("bfloat16", EAGER, "bfloat16"),
    "float16": PrecisionArm("float16", EAGER, "float16"),
    "int8, dequantised": PrecisionArm("int8", EVERY_CALL, method="nearest"),
    "int8": PrecisionArm("int8", method="nearest"),
    "int8, torchao": PrecisionArm("int8", TORCHAO, method="nearest"),
    "int8, GPTQ": PrecisionArm("int8", method="gptq"),
    "int8 inputs, eager": PrecisionArm("int8-dynamic", EAGER, method="nearest"),
    "int8 inputs, torchao": PrecisionArm("int8-dynamic", TORCHAO, method="nearest"),
    "int8 inputs": PrecisionArm("int8-dynamic", method="nearest"),
    "int8 inputs, SmoothQuant": PrecisionArm("int8-dynamic", method="smoothquant"),
    "int4": PrecisionArm("int4", method="nearest"),
    "int4, AWQ": PrecisionArm("int4", method="awq"),
    "int4, GPTQ": PrecisionArm("int4", method="gptq"),
}
# What can draft for the float32 oracle on its cache, and what does if nobody says otherwise.
VIEWS = tuple(name for name, arm in ARMS.items() if arm.backend == NATIVE and name != ORACLE)
DRAFTING = ("bfloat16 weights", "int8", "int8 inputs", "int4", "int4, GPTQ")


def select_names(names: Sequence[str], among: Sequence[str], argument: str) -> tuple[str, ...]:
    """Return names of arms in the order of ``among``.

    Raises:
        ValueError: one is not among them; the message names the argument.
    """
    unknown = [name for name in names if name not in among]
    if unknown:
        raise ValueError(f"{argument}: {', '.join(unknown)} not among {', '.join(among)}")
    return tuple(name for name in among if name in names)


TEXT, BITS, TIME, DRAFTS = "text", "bits", "time", "drafts"
PARTS = (TEXT, BITS, TIME, DRAFTS)
SUBJECTS = ("arithmetic", "code")


@dataclass(frozen=True)
class PrecisionOptions(StudyOptions):
    """What was asked for; ``not_run`` says which of all arms lack a package."""

    subject: str = option("arithmetic", "what the oracles decode", choices=SUBJECTS)
    arms: tuple[str, ...] = option(
        None, "precisions (all whose packages are installed)", measured=False, nargs="+", metavar="ARM"
    )
    not_run: tuple[str, ...] = ()
    parts: tuple[str, ...] = option(PARTS, "what to measure (all)", measured=False, choices=PARTS)
    passages: int = option(120, "passages of held-out code, for bits per byte")
    draft_subjects: tuple[str, ...] = option(
        SUBJECTS, "subjects to decode with drafts (all)", measured=False, choices=SUBJECTS
    )
    draft_batches: tuple[int, ...] = option((1, 8), "batch sizes with drafts", measured=False)
    draft_prompts: int = option(32, "prompts to decode with drafts")
    views: tuple[str, ...] = option(
        DRAFTING, f"views that draft ({', '.join(DRAFTING)})", measured=False, metavar="ARM"
    )
    lengths: tuple[int, ...] = option((4, 8), "tokens of a draft", measured=False)

    @property
    def draft_names(self) -> list[str]:
        """The names of arms that draft: a view and a length."""
        return [f"{view}, {length} ahead" for view in self.views for length in self.lengths]


def parse(argv: Sequence[str] | None, description: str | None) -> PrecisionOptions:
    """Return what is asked for.

    Raises:
        ValueError: an arm that is not there, or whose package is not installed.
    """

    def with_arms(values: dict[str, Any]) -> dict[str, Any]:
        arms, lacking = _arms(values["arms"])
        views = select_names(values["views"], VIEWS, "--views")
        return {**values, "arms": arms, "not_run": lacking, "views": views}

    return parse_study(PrecisionOptions, "precision", description, argv, with_arms)


def _arms(names: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the named precisions in the order of their table (None: all that can run here), and what is left out."""
    missing = [name for name, arm in ARMS.items() if arm.backend == TORCHAO and not with_torchao.is_installed()]
    if names is None:
        lines = tuple(f"{name}: not run ({with_torchao.EXTRA})." for name in missing)
        return tuple(name for name in ARMS if name not in missing), lines
    for name in names:
        if name in missing:
            raise ValueError(f"--arms: {name}: {with_torchao.EXTRA}")
    return select_names(names, list(ARMS), "--arms"), ()
