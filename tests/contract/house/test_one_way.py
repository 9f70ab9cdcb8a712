"""What a step does goes between host and device through ``specdec.transfers`` alone, where it is counted.

A copy where no test of it runs is seen by nobody: so copies are looked for in the sources. Two names are no copies:
torch refuses ``numpy`` of a tensor on a device, and the emulated device ``tolist``, which arrays have too.
"""

import ast
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[3]
# Where a step passes through: its rooms, the sources, and the oracle that computes on devices.
ROOMS = ("cache", "contracts", "drafting", "engine", "laws", "requests", "sampling", "verify")
PLACES = [
    *(ROOT / "specdec" / room for room in ROOMS),
    ROOT / "drafts",
    ROOT / "oracles" / "graphed",
]
FILES = [path for place in PLACES for path in ([place] if place.is_file() else sorted(place.rglob("*.py")))]
WAYS = {"item", "cpu", "cuda", "pin_memory"}
MAKERS = {"tensor", "as_tensor", "asarray"}  # of tensors out of what the host has
# What looks like a copy and is none, or one by ``specdec.transfers``, with the reason.
ALLOWED = {
    "specdec/contracts/draft.py": {"value.to(device)": "a value with a method of its own, by on_device"},
    "specdec/drafting/chain_sampler.py": {"made.to(self.device)": "a Draft's own"},
    "specdec/drafting/merging.py": {"part.to(device)": "a Draft's own"},
    "specdec/drafting/judging_model.py": {"draft.to(place)": "a Draft's own"},
    "specdec/engine/verdict.py": {
        "nodes.to(self._ids_device if nodes.tokens.is_cpu else self._device)": "a Tree's own, by on_device",
    },
    "specdec/engine/verification.py": {"draft.to(device_of(scores))": "a Draft's own"},
    "drafts/staged.py": {"draft.to(self.device)": "a Draft's own", "inner.to(device)": "a Draft's own"},
    "oracles/graphed/chunks.py": {
        "query.to(wide)": "a dtype",
        "chunk.gather(lines).to(wide)": "a dtype",
    },
}


def other_ways(source: str) -> list[str]:
    """Return the calls of a source that bring something across, or may."""
    found = []
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            moves = call.func.attr == "to" and not _names_a_dtype(call)
            if moves or (call.func.attr in MAKERS and _goes_elsewhere(call)):
                found.append(ast.unparse(call))
            elif call.func.attr in WAYS:
                found.append(ast.unparse(call.func))
    return found


def _names_a_dtype(call: ast.Call) -> bool:
    """Tell whether all that a call of ``to`` is given are types of numbers."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    names = [node.attr if isinstance(node, ast.Attribute) else "" for node in given]
    return all(
        name in ("dtype", "element_ty") or isinstance(getattr(torch, name or "to", None), torch.dtype) for name in names
    )


def _goes_elsewhere(call: ast.Call) -> bool:
    """Tell whether a call that makes a tensor names a device that may not be the host."""
    return any(
        keyword.arg in ("device", None) and ast.unparse(keyword.value) not in ("'cpu'", "HOST")
        for keyword in call.keywords
    )


def test_nothing_crosses_but_by_transfers_and_what_is_allowed_is_there():
    found = {str(path.relative_to(ROOT)): {*other_ways(path.read_text())} for path in FILES}
    assert {name: ways for name, ways in found.items() if ways} == {name: {*ways} for name, ways in ALLOWED.items()}


def test_another_way_is_seen():
    assert other_ways("x = [y.cpu().numpy(), z[0].item()]\nids.tolist()\nnp.asarray(x)") == [
        "z[0].item",
        "y.cpu",
    ]
    copies = ["x.to(device)", "x.to(y)", "x.to('cuda', torch.float32)", "x.to(device=d)", "torch.from_numpy(x).to(d)"]
    copies += ["torch.tensor(x, device=d)", "torch.as_tensor(x, device=self.device)", "torch.asarray(x, **options)"]
    for copy in copies:
        assert other_ways(copy) == [copy]
    for none in ["x.to(torch.float32)", "x.to(y.dtype)", "x.to(dtype=torch.int64)", "torch.tensor(x, device='cpu')"]:
        assert other_ways(none) == []
