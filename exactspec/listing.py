"""The commands by group, with a line each, and the module that each of them runs."""

import difflib
import importlib.util
from importlib.machinery import ModuleSpec

# A group's commands: each runs the module of its name in ``experiments``, or the module named before its line.
GROUPS: dict[str, dict[str, str | tuple[str, str]]] = {
    "First": {
        "demo": "every strategy beside plain decoding: two minutes",
        "watch": "one generation, its tokens coloured by source",
        "chat": "talk to a model, its tokens coloured by source",
        "compare": "strategies and other programs side by side",
        "advise": "which strategy pays on this machine, and why",
        "smollm2": ("oracles.smollm2", "fetch SmolLM2-135M-Instruct, once"),
    },
    "One strategy beside plain decoding": {
        "small_transformer": "drafts by a smaller transformer",
        "other_vocabulary": "drafts by a model with another tokenizer",
        "tree": "trees of a smaller transformer",
        "staged": "drafts by a model that is drafted for itself",
        "ngram": "drafts by an n-gram model",
        "prompt_lookup": "drafts copied from the text so far",
        "suffix_automaton": "drafts by what followed suffixes most often",
        "lookahead": "drafts from the oracle's own Jacobi window",
        "merged": "a lookup and an n-gram model in one tree",
        "cascade": "a lookup, or an n-gram model if it finds nothing",
        "early_exit": "drafts by the oracle's own first layers",
        "eagle3": "drafts by a published head that reads hidden states",
        "block_drafter": "drafts by a head of blocks: DFlash, DSpark",
        "medusa": "drafts by heads for tokens further ahead",
        "quantized": "drafts by the oracle's own weights in fewer bits",
    },
    "Questions": {
        "batching": ("experiments.studies.batching", "static against continuous batches"),
        "crossover": ("experiments.studies.crossover", "up to which batch drafts pay"),
        "load": "requests that arrive over time: latency, goodput",
        "lengths": ("experiments.studies.lengths", "prompts of many lengths"),
        "threshold": "draft lengths that follow confidence",
        "trees": ("experiments.studies.trees", "trees by shape and size, beside theory"),
        "replay": "tokens a step by draft length, from one record",
        "rules": ("experiments.studies.rules", "what each verification rule keeps of the same drafts"),
        "json_answers": ("experiments.studies.json_answers", "JSON answers: what forced tokens are worth"),
        "second_turns": ("experiments.studies.second_turns", "conversations whose beginning is not read again"),
        "precision": ("experiments.studies.precision", "what fewer bits cost and save"),
        "overlap": ("experiments.studies.overlap", "how much of a text another tokenizer can draft"),
        "limits": ("experiments.studies.limits", "what a pass costs at least, and what it takes here"),
        "inference_stack": ("experiments.studies.inference_stack", "from naive decoding to speculation, idea by idea"),
        "spec_bench": "Spec-Bench's tables",
        "sweep": "an experiment at every point of a grid",
        "processes": ("experiments.studies.processes", "one model on several processes: bits, bytes, times"),
    },
    "Results": {
        "report": "one HTML page of runs",
        "guard": "fail if a run lost acceptance or speed",
    },
    "Checks and timings": {
        "exactness": "prove that no strategy moves the output",
        "device": ("experiments.studies.device", "device beside CPU, graphs beside eager passes"),
        "bench_oracle": ("experiments.bench.oracle", "the native pass beside other programs"),
        "bench_stored": ("experiments.bench.stored", "a GGUF file beside llama.cpp"),
        "bench_engine": ("experiments.bench.engine", "what a run costs outside the oracle"),
    },
    "Models": {
        "evaluate": ("oracles.factory.evaluate", "what checkpoints are worth"),
        "train": ("oracles.factory.train", "train an embedded language model"),
        "distil": ("oracles.factory.distil", "distil drafts from an oracle"),
        "own_text": ("oracles.factory.own_text", "let an oracle write text for its drafts"),
        "dialogues": ("oracles.factory.dialogues", "let a chat model write text for its drafts"),
        "train_head": "train a head or a draft on what its oracle wrote",
        "convert_head": ("oracles.heads.convert", "write a head's pickled weights as safetensors"),
    },
    "This repository": {
        "bench": "measure, and write benchmarks/",
        "make_prompts": ("experiments.prompts.make_code", "make the shipped prompts"),
        "make_arithmetic_prompts": ("experiments.prompts.make_arithmetic", "write the held-out arithmetic problems"),
    },
}
# Modules that run without being listed are in these packages: ``exactspec oracles.factory.corpus --check``.
RUNNABLE = ("experiments", "oracles")


def modules() -> dict[str, str]:
    """Return the module of each command that is listed."""
    rows = {name: row for group in GROUPS.values() for name, row in group.items()}
    return {name: f"experiments.{name}" if isinstance(row, str) else row[0] for name, row in rows.items()}


def module_of(name: str) -> str | None:
    """Return the module that a command runs; its name may have hyphens. None: there is no such command."""
    if name.partition(".")[0] in RUNNABLE and "." in name:
        return name
    return modules().get(name.replace("-", "_"))


def find_module(name: str) -> ModuleSpec | None:
    """Return where a module is; None: there is none, or what should hold it is absent or no package."""
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # what holds it imports something absent
            raise
        return None


def command_for(module: str) -> str | None:
    """Return the listed command that runs a module; None: it is not listed."""
    return next((name for name, runs in modules().items() if runs == module), None)


def nearest(name: str) -> str | None:
    """Return the command whose name is closest to another name; None: none is close."""
    return next(iter(difflib.get_close_matches(name.replace("-", "_"), modules(), n=1)), None)


def listing() -> str:
    """Return the help of the command itself."""
    lines = [
        "usage: exactspec COMMAND [OPTIONS]",
        "",
        "Speculative decoding for research. Help for a command: exactspec COMMAND --help",
    ]
    width = max(map(len, modules()))
    for group, rows in GROUPS.items():
        lines += ["", group]
        lines += [f"  {name:{width}}  {row if isinstance(row, str) else row[1]}" for name, row in rows.items()]
    return "\n".join(lines)
