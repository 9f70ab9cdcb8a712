"""Compile the Triton kernels for a device that is not there, and say of each in JSON what came out."""

import json
import sys
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from oracles.graphed import kernels
from oracles.graphed.chunks import CHUNK
from oracles.graphed.triton_attention import BLOCKS, QUERIES

# Of compute capability 9.0.
TARGET = GPUTarget("cuda", 90, 32)
POINTERS = {
    "rows": "i64", "starts": "i64", "positions": "i64", "paths": "i64", "tops": "fp32", "totals": "fp32",
    "sums": "fp32", "queries": None, "keys": None, "values": None, "found": None,
}  # fmt: skip


def made(name: str, dtype: str, constants: dict[str, int]) -> dict[str, Any]:
    """Return what is to be known of a kernel."""
    kernel = getattr(kernels, name)
    types = {}
    for arg in kernel.arg_names:
        number = "fp32" if arg == "scale" else "i32"
        types[arg] = f"*{POINTERS[arg] or dtype}" if arg in POINTERS else "constexpr" if arg in constants else number
    source = ASTSource(fn=kernel, signature=types, constexprs=constants)
    found = compile(source, target=TARGET, options={"enable_fp_fusion": True})
    plain = [p for p in kernel.params if not (p.is_constexpr or p.do_not_specialize)]
    return {
        "name": name,
        "dtype": dtype,
        "depends on": [p.name for p in plain if not p.do_not_specialize_on_alignment],
        "cubin": len(found.asm["cubin"]),
        "shared": found.metadata.shared,
        "products": found.asm["ttgir"].count(" tt.dot "),
        "products on tensor cores": "mma.sync" in found.asm["ptx"],
    }


def main() -> int:
    """Print a list of both kernels, for one dtype with a window, for the other without."""
    results = []
    for dtype, size, window in (("bf16", 2, 4096), ("fp32", 4, 0)):
        fixed = {"SIZE": 128, "WINDOW": window, "CHUNK": CHUNK, "PADDED": 128}
        own = {"HEADS": 8, "GROUPS": 4, "QUERIES": QUERIES, "BLOCK": BLOCKS[size]}
        results.append(made("attend_to_chunks", dtype, fixed | own))
        results.append(made("combine_chunks", dtype, fixed | {"ALL_HEADS": 32}))
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
