"""The entry point for heads: their kind is found by their description, then they are loaded for an oracle."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oracles.checkpoints.config_keys import ConfigKeys, errors_of, read_json
from oracles.checkpoints.embedded_folders import EXIT_HEAD, head_folder, head_names, head_origin
from oracles.checkpoints.loading import LoadedOracle
from oracles.checkpoints.placement import Backend, WeightType, check_weights
from oracles.heads.aux_layers import Convention
from oracles.heads.block_files import DFLASH, DSPARK, OF_SPECFORGE, LoadedBlockHead, is_block_head, load_block_head
from oracles.heads.convention_check import check_convention
from oracles.heads.eagle3_config import ARCHITECTURES, OF_AUTHORS
from oracles.heads.eagle3_loading import LoadedEagle3, load_eagle3
from oracles.heads.exit_head import ExitHead, load_exit_head
from oracles.heads.head_tensors import HeadOptions
from oracles.heads.medusa_files import is_medusa, load_medusa
from oracles.heads.medusa_head import MedusaHead
from oracles.huggingface import HuggingFaceLM

PublishedHead = LoadedEagle3 | LoadedBlockHead | MedusaHead
LoadedHead = ExitHead | PublishedHead


@dataclass(frozen=True)
class Loader:
    """How heads of a format are loaded.

    Attributes:
        load: given a folder, its parsed ``config.json``, the oracle and the options.
        options: of ``load_head``, those that the format has: any of "aux_layers", "backend" and "weights". The others
            are refused, and a format without "backend" is loaded with "eager".
    """

    load: Callable[[Path, Mapping[str, Any], Any, HeadOptions], PublishedHead]
    options: tuple[str, ...]


_ALL = ("aux_layers", "backend", "weights")
# By the name of the format, which a config may also give as its architecture.
LOADERS = {
    "eagle3": Loader(load_eagle3, _ALL),
    "block drafter": Loader(load_block_head, _ALL),
    "medusa": Loader(load_medusa, ()),
}
_MTP = (
    "{}: {!r} is a multi-token prediction module, a part of its model's own checkpoint, which is not supported; known "
    "kinds: {}"
)


def load_head(
    name_or_path: str | Path,
    oracle: LoadedOracle | HuggingFaceLM,
    *,
    aux_layers: Convention | None = None,
    check: bool = False,
    backend: Backend | None = None,
    weights: WeightType | None = None,
) -> LoadedHead:
    """Return a head from disk, bound to the oracle that it was trained on.

    Args:
        name_or_path: the name of an embedded head ("code-exit"), which wins over a folder of that name; a folder that
            ``save_head`` wrote; or a folder with ``config.json`` and ``*.safetensors`` of a published head: EAGLE-3 and
            3.1 as its authors, SpecForge, Model Optimizer, AngelSlim, vLLM and DeepSpec write them, DFlash, DSpark,
            "eagle3", "dflash" and "dspark" of ``speculators``, and Medusa as its authors and vLLM write it.
        oracle: what ``oracles.load`` or ``oracles.load_huggingface`` returned (for exit heads a transformer of ours).
            The head computes in its dtype and on its device. A different one of the same shape is not noticed: drafts
            are then bad, but text is never wrong.
        aux_layers: what the numbers of layers in a published config mean, "inputs" or "outputs" of layers. None: the
            format's own convention, unless EAGLE-3's numbers are the usual ones of another; the head's ``repr`` says
            which.
        check: for EAGLE-3, also draft one token after every id of eight texts of 32 tokens that the oracle writes,
            reading the neighbouring layers too.
        backend: of an EAGLE-3 head or a block drafter. "native", with a native oracle: one call of compiled code
            drafts, and weights stay as they are stored. "graphed", with a graphed oracle: passes of a few shapes, as
            CUDA graphs on CUDA. "eager": torch operations in the oracle's dtype. None: the oracle's if it is native or
            graphed, else "eager".
        weights: the type to which linear layers of such a head are rounded, as in ``oracles.load``, except those of
            Markov and confidence heads; None: no rounding.

    Returns:
        For ``drafts.EarlyExit``, ``drafts.Eagle3``, ``drafts.BlockDrafter`` or ``drafts.Medusa``.

    Raises:
        ValueError: an unknown name, kind or config key; a missing, unexpected or misshapen tensor; a head of another
            width, vocabulary or depth; pickled weights only; an option that this kind of head does not take. The
            message names the file, and the tensor or key; for an embedded head that is no exit head also its oracle.

    Warns:
        UserWarning: ``check`` found that the head reads other layers than it was trained on.

    Cost: the weights are resident once. ``check`` takes 34 passes of the oracle over eight rows, and three of the head.
    """
    folder = head_folder(name_or_path)
    if (folder / EXIT_HEAD).is_file():
        if aux_layers is not None or check or backend is not None or weights is not None:
            raise ValueError(
                "aux_layers, check, backend and weights are for published heads: an exit head says which layer it "
                "reads, and computes as its oracle does"
            )
        if isinstance(oracle, HuggingFaceLM):
            raise ValueError("exit heads read the stream of a transformer of ours: give what oracles.load returns")
        return load_exit_head(folder, oracle)
    with errors_of("a head computes as its oracle was loaded"):
        check_weights(weights, oracle.dtype, oracle.device)
    path = folder / "config.json"
    values = read_json(path)
    try:
        loader = LOADERS[_format(values, path)]
        options = HeadOptions(aux_layers, backend, weights).for_format(loader.options, str(path))
        head = loader.load(folder, values, oracle, options)
    except ValueError as error:
        raise ValueError(f"{_belonging(name_or_path, values)}{error}") from error
    if check:
        if not isinstance(head, LoadedEagle3):
            doubt = "; say aux_layers if the numbers are in doubt" if "aux_layers" in loader.options else ""
            raise ValueError(f"{path}: check drafts with EAGLE-3's heads alone{doubt}")
        check_convention(head, oracle)
    return head


def options_of(name_or_path: str | Path) -> tuple[str, ...]:
    """Return which of ``aux_layers``, ``backend`` and ``weights`` a head on disk has; errors as of ``load_head``."""
    folder = head_folder(name_or_path)
    if (folder / EXIT_HEAD).is_file():
        return ()
    path = folder / "config.json"
    return LOADERS[_format(read_json(path), path)].options


def _belonging(name_or_path: str | Path, values: Mapping[str, Any]) -> str:
    """Return the beginning of an error: which oracle an embedded head belongs to; empty for other heads."""
    origin = head_origin(values) if name_or_path in head_names() else None
    return "" if origin is None else f"{name_or_path} drafts for {origin[1]}: "


def _format(values: Mapping[str, Any], path: Path) -> str:
    """Return the format of a published head, by its config."""
    classes = ConfigKeys(values, str(path)).read("architectures", list, [])
    if is_block_head(values):
        return "block drafter"
    if is_medusa(values):
        return "medusa"
    named = values.get("speculators_model_type")
    known = ", ".join(LOADERS)
    told = classes if named is None else [named]
    for name in [*told, values.get("model_type")]:
        if isinstance(name, str) and name in LOADERS and name in told:
            return name
        if isinstance(name, str) and "mtp" in name.lower():
            raise ValueError(_MTP.format(path, name, known))
    is_told = "draft_vocab_size" in values or OF_AUTHORS not in classes
    if named is None and classes and set(classes) <= set(ARCHITECTURES) and is_told:
        return "eagle3"
    raise ValueError(
        f"{path}: no known kind of head (speculators_model_type {named!r}, architectures {classes}); known: {known}. "
        f"EAGLE-3's own files have the architecture {OF_AUTHORS!r} and a 'draft_vocab_size', block drafters' one of "
        f"{', '.join((*DFLASH, *DSPARK, *OF_SPECFORGE))}"
    )
