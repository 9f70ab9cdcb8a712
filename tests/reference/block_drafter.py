"""A slow block drafter (DFlash, DSpark) in plain float64, one token at a time, from weights by name."""

import torch

from tests.reference import transformer as plain


def block_streams(weights, config, reaches, embeddings, features, pending, mask, size):
    """Return the normed stream at each place of a block, a list of ``[H]``.

    ``features`` are, for each position before the pending token, the target's layer outputs side by side; the block is
    the pending token and ``size - 1`` masks, at the positions after these. ``reaches`` has, for each layer, a window or
    None, and whether a place sees those after it.
    """
    weights = {name: tensor.double() for name, tensor in weights.items()}
    context = [plain._norm(weights, config, "hidden_norm", plain._linear(weights, "fc", x.double())) for x in features]
    table = embeddings.double()
    streams = [table[pending]] + [table[mask]] * (size - 1)
    for layer in range(config.num_layers):
        streams = _layer(weights, config, f"layers.{layer}.", reaches[layer], context, streams)
    return [plain._norm(weights, config, "norm", x) for x in streams]


def _layer(weights, config, name, reach, context, streams):
    normed = [plain._norm(weights, config, name + "input_layernorm", x) for x in streams]
    out = []
    attended = _attention(weights, config, name + "self_attn.", reach, context, normed)
    for x, seen in zip(streams, attended, strict=True):
        y = x + seen
        after = plain._norm(weights, config, name + "post_attention_layernorm", y)
        out.append(y + plain._mlp(weights, config, name + "mlp.", after))
    return out


def _is_seen(reach, length, at, place):
    """Tell whether the block's token at a place sees a position ``at``, of a context of some length and the block."""
    window, ahead = reach
    if ahead:
        return window is None or at >= length - window
    own = length + place
    return at <= own and (window is None or own - at < window)


def _attention(weights, config, name, reach, context, normed):
    seen = [*context, *normed]
    keys, values = (
        torch.stack([plain._heads(weights, config, name, part, x, place) for place, x in enumerate(seen)])
        for part in "kv"
    )
    out = []
    for place, x in enumerate(normed):
        visible = [at for at in range(len(seen)) if _is_seen(reach, len(context), at, place)]
        query = plain._heads(weights, config, name, "q", x, len(context) + place)
        out.append(plain._linear(weights, name + "o_proj", plain._mixed(query, keys[visible], values[visible])))
    return out


def drafted_logits(weights, streams, head, pending, drafted, kind=None, from_anchor=False):
    """Return the logits of the token after the pending one and those drafted.

    Args:
        streams: what ``block_streams`` gave.
        head: ``[R, H]`` the read-out.
        drafted: the ids drafted so far; the token before the next one is the last of them, or the pending one.
        kind: of the Markov head ("vanilla", "gated", "rnn"); None: there is none.
        from_anchor: place i of the block is for the token after it; else for the token that stands at it.
    """
    weights = {name: tensor.double() for name, tensor in weights.items()}
    before = [pending, *drafted]
    places = list(range(len(before))) if from_anchor else [0, *range(1, len(before) + 1)]
    base = head.double() @ streams[places[-1]]
    if kind is None:
        return base
    previous = before if from_anchor else [pending, *before]
    state, bias = None, None
    for place, token in zip(places, previous, strict=True):
        bias, state = _markov(weights, kind, streams[place], token, state)
    return base + bias


def _markov(weights, kind, stream, token, state):
    known = weights["markov_head.markov_w1.weight"][token]
    output = weights["markov_head.markov_w2.weight"]
    if kind == "vanilla":
        return output @ known, None
    if kind == "gated":
        gate = torch.sigmoid(plain._linear(weights, "markov_head.gate_proj", torch.cat([stream, known])))
        return output @ (gate * known), None
    state = torch.zeros_like(known) if state is None else state
    joint = plain._linear(weights, "markov_head.joint_proj", torch.cat([state, known, stream]))
    gate, candidate, out = joint.split(len(known))
    gate = torch.sigmoid(gate)
    return output @ torch.tanh(out), gate * state + (1 - gate) * torch.tanh(candidate)


def confidence(weights, stream, token, with_markov):
    """Return the chance, by the confidence head, that the token after ``token`` stands."""
    weights = {name: tensor.double() for name, tensor in weights.items()}
    known = [weights["markov_head.markov_w1.weight"][token]] if with_markov else []
    return float(torch.sigmoid(plain._linear(weights, "confidence_head.proj", torch.cat([stream, *known])))[0])
