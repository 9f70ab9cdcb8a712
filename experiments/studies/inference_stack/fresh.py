"""A first call: a new process, and an empty cache of torch's compiler.

``python -m experiments.studies.inference_stack.fresh --subject arithmetic --arm unrolled --batch 1`` prints it as JSON.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from exactspec.ending import as_program
from exactspec.parser import Parser, positive
from experiments.studies.inference_stack.stack_arms import prepare_compiler
from experiments.studies.inference_stack.stack_registry import arms_of
from experiments.studies.inference_stack.stack_timing import generation
from experiments.studies.inference_stack.study_frame import Finding, one_line
from experiments.studies.inference_stack.subjects import SUBJECTS, build_subject

CALLS = 3  # after the first
CACHE = "TORCHINDUCTOR_CACHE_DIR"


def peak_bytes(device: torch.device) -> int:
    """Return the most memory that this process has had: its allocations on a GPU, else its resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would begin with what the parent had
        lines = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def first_call(subject: str, arm: str, batch: int, device: str) -> Finding:
    """Return the seconds of loading, of the first call and of the fastest later one, and the memory at its peak."""
    began = time.perf_counter()
    prepare_compiler()
    decoded = build_subject(subject, device, batch, batch)
    generate = arms_of(decoded)[arm].build(decoded, batch)
    built = time.perf_counter()
    seconds = [generation(generate, decoded.pool, decoded.device)[2] for _ in range(1 + CALLS)]
    return {
        "load_seconds": built - began,
        "first_seconds": seconds[0],
        "later_seconds": min(seconds[1:]),
        "peak_bytes": peak_bytes(decoded.device),
    }


def in_new_process(subject: str, arm: str, batch: int, device: str, threads: int, keep: Path) -> Finding:
    """Return ``first_call`` of a new process whose compiler's cache is empty; what it compiles is added to ``keep``.

    Raises:
        subprocess.CalledProcessError: the process failed.
    """
    command = [
        sys.executable,
        "-m",
        "exactspec",
        "experiments.studies.inference_stack.fresh",
        "--subject",
        subject,
        "--arm",
        arm,
    ]
    command += ["--batch", str(batch), "--device", device, "--threads", str(threads)]
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, CACHE: empty}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        shutil.copytree(empty, keep, dirs_exist_ok=True)
    found: Finding = json.loads(done.stdout)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print.

    Raises:
        SystemExit: the arm failed; with the reason, in one line.
    """
    parser = Parser(__doc__)
    parser.add_argument("--subject", choices=SUBJECTS, required=True)
    parser.add_argument("--arm", required=True)
    parser.add_argument("--batch", type=positive, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    try:
        found = first_call(args.subject, args.arm, args.batch, args.device)
    except Exception as error:  # the parent tells the reason, in one line
        raise SystemExit(one_line(error)) from None
    print(json.dumps(found))


if __name__ == "__main__":
    as_program(main)
