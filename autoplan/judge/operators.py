"""What each kind of operator computes, in JAX: one function a kind, on whole tensors whose dims the operator names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from autoplan.errors import InputError
from autoplan.model.graph import SEQ, Op

Compute = Callable[[Op, Sequence[jax.Array], Mapping[str, jax.Array]], jax.Array]

EPSILON = 1e-6
ROTARY_BASE = 10_000.0
MASKED = -1e9
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": jax.nn.gelu, "silu": jax.nn.silu, "relu": jax.nn.relu, "tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid,
    "softmax": jax.nn.softmax, "relu2": lambda x: jax.nn.relu(x) ** 2,
}


def compute(op: Op, inputs: Sequence[jax.Array], params: Mapping[str, jax.Array]) -> jax.Array:
    """Return the operator's output. Raises InputError for a kind that isn't known here."""
    if op.kind not in KINDS:
        raise InputError("the compiler can't judge this kind of operator yet", key=op.name, found=op.kind,
                         allowed=", ".join(KINDS))
    return KINDS[op.kind](op, inputs, params)


def contraction(op: Op, inputs: Sequence[jax.Array], params: Mapping[str, jax.Array]) -> jax.Array:
    """Σ over the loop dims that the output lacks, of the product of inputs and weights; then the bias."""
    weights = [param for param in op.params if not param.after_reduction]
    spans = [operand.dims for operand in op.inputs] + [param.dims for param in weights]
    result = jnp.einsum(_equation(op, spans), *inputs, *(params[param.name] for param in weights))
    for param in op.params:
        result = result + params[param.name] if param.after_reduction else result
    return result


def _equation(op: Op, spans: Sequence[tuple[str, ...]]) -> str:
    letters = {dim.name: chr(ord("a") + index) for index, dim in enumerate(op.dims)}
    operands = ["".join(letters[name] for name in dims) for dims in (*spans, op.output.dims)]
    return ",".join(operands[:-1]) + "->" + operands[-1]


def attention(op: Op, inputs: Sequence[jax.Array], params: Mapping[str, jax.Array]) -> jax.Array:
    """softmax(Q·Kᵀ/√d)·V, unfused; [batch, seq, heads, head_dim], with groups of heads that share keys and values."""
    q, k, v = inputs
    batch, length, heads, width = q.shape
    groups = k.shape[2]
    split = q.reshape(batch, length, groups, heads // groups, width)
    scores = jnp.einsum("bqghd,bkgd->bghqk", split, k) / width**0.5
    scores = jnp.where(_visible(op, length, k.shape[1]), scores, MASKED)
    return jnp.einsum("bghqk,bkgd->bqghd", jax.nn.softmax(scores), v).reshape(batch, length, heads, v.shape[-1])


def _visible(op: Op, queries: int, keys: int) -> jax.Array:
    """Return which keys each query sees, [queries, keys]."""
    q, k = jnp.arange(queries)[:, None], jnp.arange(keys)[None, :]
    seen = k <= q if op.attr("causal", True) else jnp.ones((queries, keys), bool)
    window, chunk = int(op.attr("window") or 0), int(op.attr("chunk") or 0)
    if window:
        seen = seen & (k > q - window)
    return seen & (k // chunk == q // chunk) if chunk else seen


def norm(op: Op, inputs: Sequence[jax.Array], params: Mapping[str, jax.Array]) -> jax.Array:
    """RMSNorm, or LayerNorm if there is a bias, over the dims that the parameters span."""
    (x,) = inputs
    spanned = {name for param in op.params for name in param.dims}
    axes = tuple(axis for axis, name in enumerate(op.output.dims) if name in spanned) or (x.ndim - 1,)
    if "bias" in params:
        x = x - x.mean(axes, keepdims=True)
    x = x * jax.lax.rsqrt(jnp.mean(x * x, axes, keepdims=True) + EPSILON)
    x = x * params["weight"] if "weight" in params else x
    return x + params["bias"] if "bias" in params else x


def elementwise(op: Op, inputs: Sequence[jax.Array], params: Mapping[str, jax.Array]) -> jax.Array:
    """Residual adds, rotary and learned positions, activation functions (of the first input, times the others)."""
    function, first = op.attr("function"), inputs[0]
    if function == "add":
        return sum(inputs[1:], first)
    if function == "pass":
        return first
    if function == "rotary":
        return _rotary(first, op.output.dims.index(SEQ))
    if function == "position":
        (table,) = params.values()
        return first + table[: first.shape[op.output.dims.index(SEQ)]]
    result = ACTIVATIONS.get(str(function), jax.nn.gelu)(first)
    for other in inputs[1:]:
        result = result * other
    return result


def _rotary(x: jax.Array, seq: int) -> jax.Array:
    """Turn each pair of a head's two halves by its position's angle (Su et al., 2021)."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[seq])[:, None] * ROTARY_BASE ** (-jnp.arange(half) / half)
    angles = angles.reshape((x.shape[seq],) + (1,) * (x.ndim - seq - 2) + (half,))
    a, b = x[..., :half], x[..., half:2 * half]
    turned = (a * jnp.cos(angles) - b * jnp.sin(angles), a * jnp.sin(angles) + b * jnp.cos(angles))
    return jnp.concatenate((*turned, x[..., 2 * half:]), -1)


def embedding(op: Op, inputs: Sequence[jax.Array], params: Mapping[str, jax.Array]) -> jax.Array:
    """Look each token up in the table."""
    (tokens,), (table,) = inputs, params.values()
    return table.at[tokens].get(mode="promise_in_bounds")


def loss(op: Op, inputs: Sequence[jax.Array], params: Mapping[str, jax.Array]) -> jax.Array:
    """Cross-entropy of each token, [batch, seq], of logits over the last dim; the second input is what to predict.

    The target's logit is picked by comparing every column with it, so that a split of the vocabulary stays one.
    """
    logits, targets = inputs
    shifted = logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True))
    columns = jax.lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1)
    picked = jnp.where(columns == targets[..., None], shifted, 0.0).sum(-1)
    return jnp.log(jnp.exp(shifted).sum(-1)) - picked


def router(op: Op, inputs: Sequence[jax.Array], params: Mapping[str, jax.Array]) -> jax.Array:
    """Each token's weights for all experts, zero but for the `top_k` best."""
    scores = jax.nn.softmax(inputs[0] @ params["weight"] + params.get("bias", 0.0))
    count = int(op.attr("top_k") or 1)
    least = jnp.sort(jax.lax.stop_gradient(scores))[..., -count, None]  # a sort stays split along tokens, top_k doesn't
    return jnp.where(scores >= least, scores, 0.0)


def dispatch(op: Op, inputs: Sequence[jax.Array], params: Mapping[str, jax.Array]) -> jax.Array:
    """Tokens, times their weights, in their experts' places, [batch, places, experts, hidden].

    Each sequence has its own places; tokens beyond them are dropped. Dense, as GShard wrote it (Lepikhin et al., 2020).
    """
    tokens, weights = inputs
    count = math.ceil(tokens.shape[1] * op.output.density)
    return jnp.einsum("bsep,bsh,bse->bpeh", _places(weights, count), tokens, weights)


def combine(op: Op, inputs: Sequence[jax.Array], params: Mapping[str, jax.Array]) -> jax.Array:
    """Each token's sum over its experts' results. The second input is the router's weights."""
    results, weights = inputs
    return jnp.einsum("bsep,bpeh->bsh", _places(weights, results.shape[1]), results)


def _places(weights: jax.Array, count: int) -> jax.Array:
    """Return which of `count` places each token has with each expert, one-hot, [batch, seq, experts, places]."""
    chosen = jax.lax.stop_gradient(weights) > 0
    place = jnp.where(chosen, jnp.cumsum(chosen, axis=1) - 1, -1)
    return jax.nn.one_hot(place, count, dtype=weights.dtype)


KINDS: dict[str, Compute] = {
    "attention": attention, "combine": combine, "contraction": contraction, "dispatch": dispatch,
    "elementwise": elementwise, "embedding": embedding, "experts": contraction, "loss": loss, "norm": norm,
    "router": router,
}
