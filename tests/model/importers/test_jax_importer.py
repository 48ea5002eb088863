"""JAX: FLOPs to the last one, scans and calls, skip connections, and what is refused."""

import gpt_everywhere as gpt
import pytest

import autoplan
from autoplan.errors import InputError
from autoplan.model.facts import forward_flops_per_token

jax = pytest.importorskip("jax")
jnp = jax.numpy

from autoplan.model.importers.jax import flops_of  # noqa: E402

TOKENS = jax.ShapeDtypeStruct((2, gpt.SEQ), "int32")
WIDTH, INNER, WORDS, DEPTH = 32, 64, 100, 4


def of(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


def analytic():
    """The products of the GPT's forward pass over 2 · SEQ tokens."""
    tokens = 2 * gpt.SEQ
    layer = 4 * gpt.HIDDEN**2 + 2 * gpt.HIDDEN * gpt.FFN + 2 * gpt.SEQ * gpt.HIDDEN
    return 2 * tokens * (gpt.LAYERS * layer + gpt.HIDDEN * gpt.VOCAB)


def test_the_flops_of_the_jaxpr_of_the_graph_and_of_the_formula_are_equal():
    params = gpt.jax_parameters()
    forward = jax.make_jaxpr(gpt.jax_loss)(params, TOKENS)
    graph = autoplan.from_jax(gpt.jax_loss, params, TOKENS)
    assert flops_of(forward) == analytic() == 2 * gpt.SEQ * forward_flops_per_token(graph, gpt.SEQ)


def test_a_training_step_without_recompute_has_three_times_the_forward_flops():
    def loss(params, tokens):
        x = params["table"][tokens]
        return -jax.nn.log_softmax(jnp.tanh(x @ params["up"]) @ params["head"]).mean()

    params = {"table": of(WORDS, WIDTH), "up": of(WIDTH, INNER), "head": of(INNER, WORDS)}
    forward, step = jax.make_jaxpr(loss)(params, TOKENS), jax.make_jaxpr(jax.value_and_grad(loss))(params, TOKENS)
    assert flops_of(step) == 3 * flops_of(forward) == 3 * 2 * 2 * gpt.SEQ * (WIDTH * INNER + INNER * WORDS)


def mlp_loss(params, tokens, *, skip=False):
    """Residual MLPs; with `skip` each reads the embedding too."""
    def norm(x, gain):
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * gain

    first = x = params["table"][tokens]
    for p in params["layers"]:
        inner = norm(x, p["gain"])
        if skip:
            inner = inner + first * p["mix"]
        x = x + jax.nn.gelu(inner @ p["up"]) @ p["down"]
    return -jax.nn.log_softmax(norm(x, params["gain"]) @ params["head"]).mean()


def mlp_parameters():
    layer = {"gain": of(WIDTH), "mix": of(WIDTH), "up": of(WIDTH, INNER), "down": of(INNER, WIDTH)}
    return {"table": of(WORDS, WIDTH), "layers": [layer] * DEPTH, "gain": of(WIDTH), "head": of(WIDTH, WORDS)}


def test_what_crosses_a_stage_beside_the_stream_is_carried_and_sent():
    plain = autoplan.from_jax(mlp_loss, mlp_parameters(), TOKENS)
    skipping = autoplan.from_jax(lambda p, t: mlp_loss(p, t, skip=True), mlp_parameters(), TOKENS)
    assert plain.layers == skipping.layers == (0, *[1] * DEPTH, 2)
    assert [len(layer.carried) for layer in skipping.classes] == [1, 1, 0]
    assert any(operand.tensor == "carried1" for op in skipping.classes[1].ops for operand in op.inputs)

    def sent(graph):
        plan = autoplan.estimate(graph, "dgx-h100:2", pp=2, micro_batch_size=64, global_batch_size=128, seq_len=2**17)
        return plan.stages[1].time.breakdown.p2p_s

    assert sent(skipping) == pytest.approx(2 * sent(plain), rel=0.02)  # but for latency


def test_grouped_queries_keep_their_key_heads():
    def loss(params, tokens):
        x = params["table"][tokens]
        q = jnp.einsum("bsh,hnd->bsnd", x, params["q"])
        k, v = (jnp.einsum("bsh,hnd->bsnd", x, params[name]) for name in "kv")
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + jnp.einsum("bsnd,ndh->bsh", mixed, params["o"])
        return -jax.nn.log_softmax(x @ params["table"].T).mean()

    params = {"table": of(WORDS, WIDTH), "q": of(WIDTH, 8, 4), "k": of(WIDTH, 2, 4), "v": of(WIDTH, 2, 4),
              "o": of(8, 4, WIDTH)}
    graph = autoplan.from_jax(loss, params, TOKENS)
    (attention,) = [op for layer in graph.classes for op in layer.ops if op.kind == "attention"]
    assert (attention.static_sizes["heads"], attention.attr("kv_heads"), attention.attr("causal")) == (8, 2, True)
    assert [operand.dims for operand in attention.inputs] == [
        ("batch", "seq", "heads", "head_dim"), *[("batch", "kv_seq", "kv_heads", "head_dim")] * 2]
    assert graph.num_params == sum(leaf.size for leaf in jax.tree_util.tree_leaves(params))


def test_a_square_weight_on_the_stream_is_not_one_dim_twice():
    def loss(params, tokens):
        x = params["table"][tokens]
        return -jax.nn.log_softmax((x + jnp.tanh(x @ params["square"])) @ params["table"].T).mean()

    params = {"table": of(WORDS, WIDTH), "square": of(WIDTH, WIDTH)}
    graph = autoplan.from_jax(loss, params, TOKENS)
    assert graph.num_params == WIDTH * (WORDS + WIDTH)
    assert forward_flops_per_token(graph, gpt.SEQ) == 2 * WIDTH * (WORDS + WIDTH)


def test_convolutions_are_counted_and_their_pixels_are_positions():
    def loss(params, images):
        x = jax.lax.conv_general_dilated(images, params["kernel"], (2, 2), "SAME",
                                         dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return -jax.nn.log_softmax(jax.nn.relu(x).mean((1, 2)) @ params["head"]).mean()

    params = {"kernel": of(3, 3, 3, 16), "head": of(16, 10)}
    graph = autoplan.from_jax(loss, params, of(2, 8, 8, 3))
    (convolution,) = [op for layer in graph.classes for op in layer.ops if op.kind == "convolution"]
    assert convolution.static_sizes == {"seq": 16, "seq_in": 64, "channels": 16, "inputs": 3, "taps": 9}
    assert forward_flops_per_token(graph, 1) == 2 * (16 * 16 * 27 + 16 * 10)


@pytest.mark.parametrize(("fn", "words"), [
    (lambda p, x: p["w"].sum(), "no output depends"),
    (lambda p, x: jax.grad(lambda p: (x @ p["w"]).sum())(p), "gradients and no loss"),
    (lambda p, x: x @ p["other"], "can't be traced: KeyError"),
    (lambda p, x: jax.lax.cond(x[0, 0] > 0, lambda: x @ p["w"], lambda: x @ p["w"] * 2).sum(), "a branch"),
    (lambda p, x: jax.lax.while_loop(lambda x: x[0, 0] > 0, lambda x: x @ p["w"], x).sum(), "a loop"),
])
def test_what_is_no_model_is_refused(fn, words):
    with pytest.raises(InputError, match=words):
        autoplan.from_jax(fn, {"w": of(WIDTH, WIDTH)}, of(4, WIDTH))
