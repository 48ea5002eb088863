"""MLPs: plain, gated, and mixtures of experts. Each yields the operators from its input to its output on the stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from autoplan.model.architectures.wiring import Wiring
from autoplan.model.graph import EXPERTS, STREAM, TOKEN_DIMS, Op, Operand, Param

if TYPE_CHECKING:
    from autoplan.model.blocks import Block, Moe

INNER = (*TOKEN_DIMS, "ffn")


def mlp(block: Block, wiring: Wiring, x: str) -> Iterator[Op]:
    """Yield the operators of the block's MLP."""
    if block.mlp_kind == "moe":
        assert block.moe is not None
        yield from mixture(block, block.moe, wiring, x)
    elif block.mlp_kind == "dense":
        yield from dense(block, wiring.sized(ffn=block.ffn), x)


def dense(block: Block, w: Wiring, x: str, prefix: str = "") -> Iterator[Op]:
    """`down(act(up(x)))`, or `down(act(gate(x)) · up(x))`."""
    inner = ("gate", "up") if block.gated else ("up",)
    for name in inner:
        yield w.projection(prefix + name, x, ("hidden",), ("ffn",), bias=block.has_bias("up"))
    yield w.elementwise(f"{prefix}act", _function(block), tuple(prefix + name for name in inner), INNER)
    yield w.projection(f"{prefix}down", f"{prefix}act", ("ffn",), ("hidden",), bias=block.has_bias("down"))


def mixture(block: Block, moe: Moe, wiring: Wiring, x: str) -> Iterator[Op]:
    """The router, the experts between dispatch and combine, and the shared experts beside them.

    Each expert has places for its even share of all copies of tokens, times the capacity factor, or times the imbalance
    where no token is dropped.
    """
    w = wiring.sized(experts=moe.experts, routes=moe.experts, ffn=moe.ffn, latent=moe.latent)
    biases = (Param("bias", ("routes",)),) * (block.has_bias("router") or moe.score_bias)
    yield w.op("router", "router", (*STREAM, "routes"), (Operand(x, STREAM),), (*TOKEN_DIMS, "routes"),
               (Param("weight", ("hidden", "routes")), *biases), attrs=(("top_k", moe.top_k),))
    tokens = x
    if moe.latent is not None:
        yield w.projection("to_latent", x, ("hidden",), ("latent",))
        tokens = "to_latent"
    density = moe.top_k * (moe.capacity_factor or moe.imbalance) / moe.experts
    yield from _experts(block, moe, w, tokens, density)
    results = ["combine"]
    if moe.latent is not None:
        yield w.projection("from_latent", "combine", ("latent",), ("hidden",))
        results = ["from_latent"]
    if moe.shared_ffn is not None:
        shared = wiring.sized(ffn=moe.shared_ffn, routes=1)
        yield from dense(block, shared, x, "shared_")
        results.append("shared_down")
        if moe.shared_gate:
            yield shared.projection("shared_scale", x, ("hidden",), ("routes",))
            yield shared.op("shared_scaled", "elementwise", (*STREAM, "routes"),
                            (Operand("shared_down", STREAM), Operand("shared_scale", (*TOKEN_DIMS, "routes"))), STREAM,
                            attrs=(("function", "sigmoid"),))
            results[-1] = "shared_scaled"
        yield w.add("moe", *results)


def _experts(block: Block, moe: Moe, w: Wiring, x: str, density: float) -> Iterator[Op]:
    stream = "hidden" if moe.latent is None else "latent"
    places, inner = (*TOKEN_DIMS, EXPERTS, stream), (*TOKEN_DIMS, EXPERTS, "ffn")
    attrs = (("top_k", moe.top_k),)
    yield w.op("dispatch", "dispatch", (*TOKEN_DIMS, EXPERTS, stream, "routes"),
               (Operand(x, (*TOKEN_DIMS, stream)), Operand("router", (*TOKEN_DIMS, "routes"))), places,
               attrs=attrs, density=density)
    names = ("expert_gate", "expert_up") if block.gated else ("expert_up",)
    for name in names:
        yield w.op(name, "experts", (*places, "ffn"), (Operand("dispatch", places, density),), inner,
                   _weights((EXPERTS, stream, "ffn"), (EXPERTS, "ffn"), bias=block.has_bias("up")),
                   attrs=attrs, density=density)
    yield w.elementwise("expert_act", _function(block), names, inner, density)
    yield w.op("expert_down", "experts", (*places, "ffn"), (Operand("expert_act", inner, density),), places,
               _weights((EXPERTS, "ffn", stream), (EXPERTS, stream), bias=block.has_bias("down")),
               attrs=attrs, density=density)
    yield w.op("combine", "combine", places, (Operand("expert_down", places, density),), (*TOKEN_DIMS, stream),
               attrs=attrs)


def _weights(weight: tuple[str, ...], bias_dims: tuple[str, ...], *, bias: bool) -> tuple[Param, ...]:
    return (Param("weight", weight), *((Param("bias", bias_dims, after_reduction=True),) if bias else ()))


def _function(block: Block) -> str:
    return "silu" if block.gated else "gelu"
