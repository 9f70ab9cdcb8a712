"""Whether speculation writes plain decoding's tokens, over many of them: in the default mode, and bitwise."""

from typing import Any

import oracles
from drafts import PromptLookup, SmallTransformer
from experiments.device.device_agreement import differ, filling, in_flight, texts
from experiments.device.device_models import LOADED, load_modes
from experiments.device.device_options import Options
from specdec import Kary, SamplingParams, SpeculativeDecoder
from specdec.contracts import DraftSource

# Sampled, so that texts do not fall into loops, by draws that all arms share; of whole laws and of cut ones in turn.
SAMPLING = [SamplingParams(temperature=0.8, top_p=top_p, ignore_eos=True) for top_p in (1.0, 0.95)]
_RULE = "coupled"


def identity(options: Options) -> list[dict[str, Any]]:
    """Return a row for each mode and way to decode: texts unlike those of plain decoding at batch 1.

    Prompts are repeated if they do not fill the largest batch; each has draws of its own.
    """
    batch, rows = max(options.batch_sizes), []
    prompts = filling(texts(options, options.identity_prompts), batch)
    sampling = [SAMPLING[number % len(SAMPLING)] for number in range(len(prompts))]
    draft = oracles.load(options.draft, options.dtype, options.device, backend="graphed")
    arms: dict[str, DraftSource | None] = {
        "plain": None,
        "prompt_lookup": PromptLookup(8),
        "chains of a model": SmallTransformer(draft, 4),
        "trees of a model": SmallTransformer(draft, tree=Kary(2, 3)),
    }
    modes = {name: keywords for name, keywords in LOADED.items() if name != "eager"}
    for mode, oracle in load_modes(modes, options.oracle, options.dtype, options.device).items():
        plain = SpeculativeDecoder(oracle, rule=_RULE)
        wanted = plain.generate(prompts, options.identity_tokens, sampling, batch_size=1).tokens
        for name, source in arms.items():
            decoder = SpeculativeDecoder(oracle, source, _RULE)
            found = decoder.generate(prompts, options.identity_tokens, sampling, batch_size=batch)
            rows.append(
                {
                    "mode": mode,
                    "arm": f"{name}, batch {batch}",
                    "rows in flight": in_flight(found.stats),
                    "tokens": sum(map(len, wanted)),
                    "texts": len(wanted),
                    "texts that differ": sum(map(differ, found.tokens, wanted)),
                    "exactness": found.exactness,
                }
            )
    return rows
