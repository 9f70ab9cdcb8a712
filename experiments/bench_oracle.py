"""Time the native transformer beside Hugging Face's on the same random weights: decoding, and wide passes.

``python -m experiments.bench_oracle`` interleaves all arms of a shape in every round and prints one table: medians with
their range, and the medians of the paired ratios. The guarantee of equal bits is on, nothing is compiled, and the
models' greedy ids agree or the run fails.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from oracles.config import TransformerConfig
from oracles.transformer import Transformer

# vocabulary, width, layers, heads, width of the MLP, context
SHAPES = {
    "10m": TransformerConfig(3072, 384, 6, 6, 1024, 1024),
    "110m": TransformerConfig(32000, 768, 12, 12, 2048, 1024),
}
PROMPT, NEW, CONTEXT = 64, 128, 128
ONE = "pass of 1"
Arm = Callable[[], float]


def build(shape: str, vocab_size: int | None) -> tuple[Transformer, object]:
    """Return the packed native model and Hugging Face's with the same random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = SHAPES[shape] if vocab_size is None else replace(SHAPES[shape], vocab_size=vocab_size)
    native = Transformer(config)
    peer = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.kv_heads,
            max_position_embeddings=config.max_context,
            rms_norm_eps=config.norm_eps,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    peer.train(False)
    peer.load_state_dict(native.state_dict())
    return native.pack(), peer


def decode(model: Transformer, prompts: Tensor, num_new: int) -> Tensor:
    """Return ``[B, num_new]`` greedy ids, one pass each."""
    batch, length = prompts.shape
    rows, ones = np.arange(batch), torch.ones(batch, dtype=torch.int64)
    cache = model.new_cache(batch, length + num_new)
    model.score(prompts[:, :-1], None, ones * (length - 1), cache, rows, "none")
    cache.commit(rows, None, np.full(batch, length - 1))
    pending, out = prompts[:, -1:], []
    for _ in range(num_new):
        logits = model.score(pending, None, ones, cache, rows).logits
        assert logits is not None
        cache.commit(rows, None, np.ones(batch, dtype=np.int64))
        pending = logits[:, -1].argmax(-1, keepdim=True)
        out.append(pending)
    return torch.cat(out, dim=1)


def decoding_arms(native: Transformer, peer: object, batch: int) -> dict[str, Arm]:
    """Return seconds per generated token of a batch, for both models, after checking that their ids agree."""
    prompts = torch.randint(native.vocab_size, (batch, PROMPT), generator=torch.Generator().manual_seed(batch))

    def generate() -> Tensor:
        mask = torch.ones_like(prompts)
        ids: Tensor = peer.generate(  # type: ignore[attr-defined]
            prompts, attention_mask=mask, max_new_tokens=NEW, do_sample=False, pad_token_id=0
        )
        return ids[:, PROMPT:]

    if not torch.equal(generate()[:, :8], decode(native, prompts, 8)):
        raise AssertionError(f"the two models disagree on the first greedy ids at batch {batch}")
    return {
        f"decode, batch {batch}, transformers": lambda: _seconds(generate) / NEW,
        f"decode, batch {batch}, native": lambda: _seconds(lambda: decode(native, prompts, NEW)) / NEW,
    }


def pass_arms(native: Transformer, widths: list[int], repeats: int = 30) -> dict[str, Arm]:
    """Return seconds of one pass of so many nodes at batch 1 behind ``CONTEXT`` tokens."""
    cache, rows = native.new_cache(1, CONTEXT + max(widths)), np.arange(1)
    ids = torch.randint(native.vocab_size, (1, CONTEXT + max(widths)), generator=torch.Generator().manual_seed(0))
    native.score(ids[:, :CONTEXT], None, torch.tensor([CONTEXT]), cache, rows, "none")
    cache.commit(rows, None, np.array([CONTEXT]))

    def arm(width: int) -> float:
        tokens, nodes = ids[:, CONTEXT : CONTEXT + width], torch.tensor([width])
        times = [_seconds(lambda: native.score(tokens, None, nodes, cache, rows)) for _ in range(repeats)]
        return statistics.median(times)

    return {f"pass of {width}": lambda width=width: arm(width) for width in widths}  # type: ignore[misc]


def _seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


HEADER = """| shape | arm | median ms | range | tokens per second over transformers | pass over pass of 1 |
| --- | --- | ---: | --- | ---: | ---: |"""


def report(shape: str, times: dict[str, list[float]]) -> str:
    """Return the table's rows: median and range in milliseconds, and the median of the paired ratios."""
    lines = []
    for name, seconds in times.items():
        over_peer, over_one = "", ""
        if name.endswith("native"):
            over_peer = f"{_ratio(times[name.removesuffix('native') + 'transformers'], seconds):.2f}"
        elif name.startswith("pass") and ONE in times:
            over_one = f"{_ratio(seconds, times[ONE]):.2f}"
        low, high = min(seconds) * 1e3, max(seconds) * 1e3
        median = f"{statistics.median(seconds) * 1e3:.3f} | {low:.3f} .. {high:.3f}"
        lines.append(f"| {shape} | {name} | {median} | {over_peer} | {over_one} |")
    return "\n".join(lines)


def _ratio(numerators: list[float], denominators: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def measure(shape: str, arguments: argparse.Namespace) -> tuple[bool, dict[str, list[float]]]:
    """Return whether the native model keeps its bits, and the seconds of every arm in every round."""
    native, peer = build(shape, arguments.vocab_size)
    arms = pass_arms(native, arguments.widths) if arguments.widths else {}
    for batch in arguments.batches:
        arms |= decoding_arms(native, peer, batch)
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(arguments.rounds):
        for name, arm in arms.items():
            times[name].append(arm())
    return native.bitwise, times


def main() -> None:
    """Run the arms and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=list(SHAPES))
    parser.add_argument("--vocab-size", type=int)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--widths", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = {shape: measure(shape, arguments) for shape in arguments.shape}
    kept = ", ".join(f"{shape} {'yes' if bitwise else 'no'}" for shape, (bitwise, _) in results.items())
    print(f"{arguments.threads} threads, {arguments.rounds} rounds; bits independent of the pass: {kept}\n")
    print(HEADER)
    for shape, (_, times) in results.items():
        print(report(shape, times))


if __name__ == "__main__":
    main()
