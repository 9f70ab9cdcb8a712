"""Any causal language model object of ``transformers`` as an oracle."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from oracles.checkpoints.chat_files import give_template
from oracles.checkpoints.config_keys import errors_of
from oracles.huggingface.cache_check import sizes_to_check
from oracles.huggingface.masks import MaskNodes, MaskPlan, mask_plans
from oracles.huggingface.pass_cache import PassCache, ShapeRecorder, library_cache
from oracles.huggingface.support import (
    check_model,
    ending_ids,
    experts_of,
    has_argument,
    longest_context,
    plain_tokenizer,
    template_of,
    text_config,
    true_vocabulary,
)
from oracles.transformer.linear import at_least_float32, weight_bytes_of
from oracles.transformer.pass_parts import check_call
from specdec.cache import LEAST_CONTEXT, KVCache, ScoresDiffer, check_scores
from specdec.contracts import IntArray, OracleDefaults, Scores, Tree, Want, describe_oracle, is_chain
from specdec.prompts.chat import ChatTemplate

EXTRA = "the library transformers is missing: pip install 'exactspec[hf]'"
_ROW_DIM, _SLOT_DIM = 2, 4


class HuggingFaceLM(OracleDefaults):
    """Score trees with a ``transformers`` model: it fulfils the oracle contract, cache included.

    Every pass is one ``forward`` with positions, 4-D masks and a cache of ours, whose rows have their own lengths. The
    constructor compares a chain in chunks, a tree and a chain after rollback with ``forward`` on whole sequences
    without a cache, because models differ in how they treat such masks, and some ignore them.

    Args:
        model: a causal language model in evaluation mode, on one device, with ``sdpa`` or ``eager`` attention.
            It must not change afterwards.
        tokenizer: a ``tokenizers.Tokenizer``, or a fast tokenizer of ``transformers``, whose chat template is used too;
            None: prompts must be ids.
        max_context: caps the declared context. Beyond their original context, rotary embeddings of types "dynamic" and
            "longrope" depend on the longest row of a batch: there the context ends.

    Attributes:
        bitwise: False: kernels sum in an order that depends on the shape of a pass, and a few tokens cannot prove the
            opposite: tiny models in half precision have passed ``has_bitwise_scores`` and differed elsewhere. Results
            say "exact up to numerics".
        num_layers: 0: a pass cannot be cut.
        hidden_layers, hidden_size, embedding_rows: see ``specdec.contracts.HostOracle``.
        num_experts: number that a layer chooses from; 1: the model has no mixture of experts.

    Raises:
        ValueError: the model lacks something, or scores differently from its own ``forward``; with the reason.
        ImportError: ``transformers`` is missing; with the extra to install.

    Cost: the check takes about 6 passes over the largest window and 20 tokens; a pass costs the model's forward with a
        mask of B * N * T numbers for each type of layer.
    """

    backend, bitwise = "transformers", False
    hidden_layers: int = 0
    hidden_size: int = 0

    def __init__(self, model: Any, tokenizer: Any | None = None, max_context: int | None = None) -> None:
        check_model(model)
        config = text_config(model)
        self._model = model
        self.tokenizer = plain_tokenizer(tokenizer)
        self.vocab_size = true_vocabulary(config, self.tokenizer)
        self.eos_ids, self.num_experts = ending_ids(model, self.vocab_size), experts_of(config)
        self.chat_template: ChatTemplate | None = None
        give_template(self, template_of(tokenizer, self.tokenizer))
        self.max_context = longest_context(config, max_context)
        if self.max_context < LEAST_CONTEXT:
            raise ValueError(f"max_context is {self.max_context}; the check needs at least {LEAST_CONTEXT} positions")
        self.hidden_layers, self.hidden_size = int(config.num_hidden_layers), int(config.hidden_size)
        self.embedding_rows = int(config.vocab_size)
        self._keeps = has_argument(model, "logits_to_keep")
        self._cache_shape, self.dtype = self._probe_cache()
        self._plan = self._find_plan(config)

    def __repr__(self) -> str:
        return describe_oracle(self)

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        device: torch.device = next(iter(self._model.parameters())).device
        return device

    @property
    def weight_bytes(self) -> int:
        """Memory of the parameters, shared ones once."""
        return weight_bytes_of(self._model)

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> KVCache:
        """Return an empty cache, ``num_rows`` rows of ``capacity`` slots.

        Raises:
            ValueError: it would exceed ``max_cache_bytes``.
        """
        layers, heads, size = self._cache_shape
        shape = (layers, 2, num_rows, heads, capacity, size)
        return KVCache(shape, _ROW_DIM, _SLOT_DIM, self.dtype, self.device, max_cache_bytes)

    @torch.no_grad()
    def score(
        self,
        tokens: Tensor,
        parents: Tensor | None,
        num_nodes: Tensor,
        cache: KVCache,
        rows: IntArray,
        want: Want = "all",
        hidden: Sequence[int] = (),
        first: int = 0,
    ) -> Scores:
        """Score trees of nodes ``[B, M]`` in one pass; see ``specdec.contracts.Oracle.score``.

        ``hidden`` numbers layers from 0; the residual stream after a layer is returned, also after the last one, for
        which ``transformers`` itself returns it normed.

        Raises:
            ValueError: an unknown ``want`` or layer, a row without room, a pending token beyond ``max_context``, or the
                last layer if it was not found in the model.

        Cost: see the class; rows that are not contiguous in the cache are copied, layer by layer.
        """
        longest = max(cache.lengths[rows].tolist(), default=0)
        check_call(longest, self.max_context, want, hidden, self.hidden_layers)
        tree = Tree(tokens, None if is_chain(parents) else parents, num_nodes)
        lengths = cache.reserve(rows, tree.size, first)
        end = int(lengths.max()) + tree.size
        nodes = MaskNodes(tree, torch.from_numpy(lengths).to(tokens.device), end, first)
        places = torch.from_numpy(rows).to(tokens.device)
        last = num_nodes.to(tokens.device) - 1 - first
        with self._watch(hidden) as seen:
            made = self._model(
                input_ids=tokens[:, first:],
                # Padding nodes may lie beyond the context: their scores mean nothing, but must not fail.
                position_ids=nodes.positions.clamp(max=self.max_context - 1),
                attention_mask=self._plan.masks(nodes, self.dtype),
                past_key_values=library_cache(PassCache)(cache.payload, places, _span_of(rows), nodes.slots, end),
                use_cache=True,
                output_hidden_states=bool(hidden),
                return_dict=True,
                **self._logits_to_keep(want, last, nodes.slots.shape[1]),
            )
        streams = tuple(self._stream(made.hidden_states, seen, layer) for layer in hidden)
        return Scores(self._cut(made.logits, want, last, nodes.slots.shape[1]), streams)

    def _watch(self, hidden: Sequence[int]) -> AbstractContextManager[list[Tensor]]:
        """Return a context that watches the last layer if its output is asked for."""
        if self.hidden_layers - 1 not in hidden:
            return nullcontext([])
        layer = _find_last_layer(self._model, self.hidden_layers)
        if layer is None:
            raise ValueError(self._no_last_layer())
        return _watch_layer(layer)

    def _stream(self, streams: Sequence[Tensor], seen: Sequence[Tensor], layer: int) -> Tensor:
        """Return the residual stream after a layer."""
        if layer + 1 < self.hidden_layers:
            return streams[layer + 1]
        before, after = seen
        if not torch.equal(before, streams[layer]):
            raise ValueError(self._no_last_layer())
        return after

    def _no_last_layer(self) -> str:
        return (
            f"hidden asks for layer {self.hidden_layers - 1}, the last one, which cannot be told from the other parts "
            f"of {type(self._model).__name__}: ask for layers below it"
        )

    @torch.no_grad()
    def embed(self, ids: Tensor) -> Tensor:
        """Return ``[..., D]`` the output of the model's embedding module for ids."""
        rows: Tensor = self._model.get_input_embeddings()(ids)
        return rows

    def read_out_after(self, norm: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return a function from streams ``[R, D]`` to logits ``[R, V]`` by a norm and the model's output embeddings.

        Anything else that a model does to its logits (a soft cap) is left out.
        """
        head = self._model.get_output_embeddings()

        @torch.no_grad()
        def read(stream: Tensor) -> Tensor:
            logits: Tensor = head(norm(stream))[..., : self.vocab_size]
            return at_least_float32(logits)

        return read

    def _logits_to_keep(self, want: Want, last: Tensor, width: int) -> dict[str, Any]:
        """Return arguments that spare the model unwanted logits; ``last`` ``[B]`` are the nodes that "last" means."""
        if not self._keeps or want == "all":
            return {}
        if want == "none":
            return {"logits_to_keep": 1}
        # All rows get the logits of every row's last node, which saves logits only in a batch of short rows.
        return {"logits_to_keep": last} if len(last) < width else {}

    def _cut(self, logits: Tensor, want: Want, last: Tensor, width: int) -> Tensor | None:
        """Return ``[B, N or 1, V]``, float32 at least, of the model's logits ``[B, *, padded V]``."""
        if want == "none":
            return None
        if want == "last":
            row = torch.arange(len(last), device=logits.device)
            at = row if logits.shape[1] != width else last
            logits = logits[row, at].unsqueeze(1)
        return at_least_float32(logits[..., : self.vocab_size])

    @torch.no_grad()
    def whole(self, ids: Tensor) -> Tensor:
        """Return the logits ``[T, padded V]`` of a sequence ``[T]``, as the model gives them without a cache."""
        logits: Tensor = self._model(input_ids=ids.unsqueeze(0), use_cache=False, return_dict=True).logits[0]
        return logits

    def _probe_cache(self) -> tuple[tuple[int, int, int], torch.dtype]:
        """Return the numbers of layers and heads and the size that a token's cache takes, at most, and its dtype."""
        try:
            recorder = library_cache(ShapeRecorder)()
        except ImportError as error:
            raise ImportError(EXTRA) from error
        ids = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        try:
            with torch.no_grad():
                self._model(input_ids=ids, past_key_values=recorder, use_cache=True, return_dict=True)
        except Exception as error:  # a model's own code may raise anything
            raise ValueError(self._refusal(f"its forward cannot use a cache of keys and values: {error!r}")) from error
        if recorder.dtype is None:
            raise ValueError(self._refusal("its forward put no keys and values into the cache"))
        each = [shape for pair in recorder.shapes.values() for shape in pair]
        sizes = (1 + max(recorder.shapes), max(shape[1] for shape in each), max(shape[3] for shape in each))
        return sizes, recorder.dtype

    def _refusal(self, reason: str) -> str:
        return f"{type(self._model).__name__} cannot be an oracle: {reason}"

    def _find_plan(self, config: Any) -> MaskPlan:
        """Return the first way to give masks with which the model scores as it does without a cache."""
        reasons = []
        with errors_of(f"{type(self._model).__name__} cannot be an oracle"):
            plans = mask_plans(config)
        for plan in plans:
            self._plan = plan
            try:
                check_scores(self, lambda ids: (self.whole(ids),), *sizes_to_check(plan.limit, self.max_context))
                return plan
            except ScoresDiffer as difference:
                reason = str(difference)
            except Exception as error:  # a model's own code may raise anything
                reason = f"its forward failed: {error!r}"
            given = "a mask for each type of layer" if plan.by_type else "one 4-D mask"
            reasons.append(f"given {given}, {reason}")
        raise ValueError(self._refusal("; ".join(reasons)))


def _span_of(rows: IntArray) -> tuple[int, int] | None:
    """Return the first row and the one after the last, if the rows are contiguous and in order; else None."""
    dense = bool(np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))))
    return (int(rows[0]), int(rows[0]) + len(rows)) if dense else None


def _find_last_layer(model: Any, num_layers: int) -> nn.Module | None:
    """Return a model's last layer, from the first list of ``num_layers`` modules in its decoder; None: no such list."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    lists = (part for part in decoder.modules() if isinstance(part, nn.ModuleList) and len(part) == num_layers)
    found = next(lists, None)
    return None if found is None else found[-1]


@contextmanager
def _watch_layer(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Yield a list that holds, after a forward, the streams before and after a layer."""
    seen: list[Tensor] = []

    def note(_: nn.Module, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        before = args[0] if args else options["hidden_states"]
        seen[:] = [before, output if isinstance(output, Tensor) else output[0]]

    handle = layer.register_forward_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()
