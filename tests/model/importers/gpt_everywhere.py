"""One GPT in every front end: two layers of the same widths, written as people write them."""

from autoplan.model.architectures import build
from autoplan.model.graph import ModelGraph
from autoplan.model.spec import parse

LAYERS, HIDDEN, HEADS, FFN, VOCAB, POSITIONS, SEQ = 3, 64, 4, 256, 512, 32, 32
HEAD = HIDDEN // HEADS


def built_in() -> ModelGraph:
    """The model as a model file says it."""
    return build(parse({
        "layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "ffn": FFN, "vocab_size": VOCAB, "positions": "learned",
        "max_positions": POSITIONS, "norm": "layer", "biases": ["qkv", "o", "mlp"], "tied_embeddings": True,
        "seq_len": SEQ}, "gpt", "gpt"))


def jax_parameters():
    import jax

    def of(*shape):
        return jax.ShapeDtypeStruct(shape, "float32")

    layers = {"norm1": (of(LAYERS, HIDDEN),) * 2, "norm2": (of(LAYERS, HIDDEN),) * 2,
              "qkv": (of(LAYERS, HIDDEN, 3 * HIDDEN), of(LAYERS, 3 * HIDDEN)),
              "o": (of(LAYERS, HIDDEN, HIDDEN), of(LAYERS, HIDDEN)),
              "up": (of(LAYERS, HIDDEN, FFN), of(LAYERS, FFN)), "down": (of(LAYERS, FFN, HIDDEN), of(LAYERS, HIDDEN))}
    return {"tokens": of(VOCAB, HIDDEN), "positions": of(POSITIONS, HIDDEN), "layers": layers,
            "norm": (of(HIDDEN),) * 2}


def jax_loss(params, tokens):
    """A GPT's loss: the layers scanned and rematerialised, q, k and v fused."""
    import jax
    import jax.numpy as jnp

    def norm(x, weights):
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weights[0] + weights[1]

    def dense(x, weights):
        return x @ weights[0] + weights[1]

    def layer(x, p):
        batch, seq, _ = x.shape
        heads = [part.reshape(batch, seq, HEADS, HEAD).transpose(0, 2, 1, 3)
                 for part in jnp.split(dense(norm(x, p["norm1"]), p["qkv"]), 3, axis=-1)]
        scores = heads[0] @ heads[1].swapaxes(-1, -2) / HEAD**0.5
        scores = jnp.where(jnp.tril(jnp.ones((seq, seq), bool)), scores, -1e9)
        mixed = (jax.nn.softmax(scores, -1) @ heads[2]).transpose(0, 2, 1, 3).reshape(batch, seq, HIDDEN)
        x = x + dense(mixed, p["o"])
        return x + dense(jax.nn.gelu(dense(norm(x, p["norm2"]), p["up"])), p["down"]), None

    x = params["tokens"][tokens] + params["positions"][jnp.arange(tokens.shape[1])]
    x, _ = jax.lax.scan(jax.checkpoint(layer), x, params["layers"])
    logits = norm(x, params["norm"]) @ params["tokens"].T
    targets = jnp.roll(tokens, -1, axis=1)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean()


def torch_module():
    """A GPT as a module, on the meta device."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
            self.qkv, self.o = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
            self.up, self.down = nn.Linear(HIDDEN, FFN), nn.Linear(FFN, HIDDEN)

        def forward(self, x):
            batch, seq, _ = x.shape
            q, k, v = (part.view(batch, seq, HEADS, HEAD).transpose(1, 2)
                       for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(mixed.transpose(1, 2).reshape(batch, seq, HIDDEN))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(POSITIONS, HIDDEN)
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
            self.norm = nn.LayerNorm(HIDDEN)
            self.head = nn.Linear(HIDDEN, VOCAB, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, tokens):
            x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    with torch.device("meta"):
        return Gpt()


def onnx_file(path, batch="batch"):
    """Write a GPT as exporters do: shapes computed from the input's, layer norms and GELU in parts, weights by name."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, weights = [], []

    def op(kind, inputs, **attributes):
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], name=f"{kind}_{len(nodes)}", **attributes))
        return name

    def weight(*shape):
        name = f"w{len(weights)}"  # no data: as in a file whose weights lie beside it
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="weights.bin")
        weights.append(tensor)
        return name

    def integers(*values):
        weights.append(numpy_helper.from_array(np.array(values, np.int64), f"w{len(weights)}"))
        return weights[-1].name

    def number(value):
        weights.append(numpy_helper.from_array(np.array(value, np.float32), f"w{len(weights)}"))
        return weights[-1].name

    def norm(x):
        centred = op("Sub", [x, op("ReduceMean", [x], axes=[-1])])
        variance = op("ReduceMean", [op("Pow", [centred, number(2.0)])], axes=[-1])
        scaled = op("Div", [centred, op("Sqrt", [op("Add", [variance, number(1e-5)])])])
        return op("Add", [op("Mul", [scaled, weight(HIDDEN)]), weight(HIDDEN)])

    def dense(x, into, out):
        return op("Add", [op("MatMul", [x, weight(into, out)]), weight(out)])

    size = [op("Gather", [op("Shape", ["tokens"]), integers(axis)], axis=0) for axis in (0, 1)]
    table = weight(VOCAB, HIDDEN)
    positions = op("Slice", [weight(1, POSITIONS, HIDDEN), integers(0), size[1], integers(1)])
    x = op("Add", [op("Gather", [table, "tokens"]), positions])
    square = op("Concat", [size[1], size[1]], axis=0)
    mask = op("Trilu", [op("ConstantOfShape", [square], value=numpy_helper.from_array(np.array([-1e9], np.float32))),
                        ], upper=1)
    split = op("Concat", [*size, integers(HEADS), integers(HEAD)], axis=0)
    merged = op("Concat", [*size, integers(HIDDEN)], axis=0)
    for _ in range(LAYERS):
        fused = dense(norm(x), HIDDEN, 3 * HIDDEN)
        parts = [f"part{len(nodes)}_{index}" for index in range(3)]
        nodes.append(helper.make_node("Split", [fused, integers(HIDDEN, HIDDEN, HIDDEN)], parts, axis=-1))
        q, k, v = (op("Transpose", [op("Reshape", [part, split])], perm=perm)
                   for part, perm in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True))
        scores = op("Add", [op("Div", [op("MatMul", [q, k]), number(HEAD**0.5)]), mask])
        mixed = op("MatMul", [op("Softmax", [scores], axis=-1), v])
        mixed = op("Reshape", [op("Transpose", [mixed], perm=[0, 2, 1, 3]), merged])
        x = op("Add", [x, dense(mixed, HIDDEN, HIDDEN)])
        up = dense(norm(x), HIDDEN, FFN)
        bell = op("Add", [op("Erf", [op("Div", [up, number(2**0.5)])]), number(1.0)])
        x = op("Add", [x, dense(op("Mul", [op("Mul", [up, bell]), number(0.5)]), FFN, HIDDEN)])
    logits = op("MatMul", [norm(x), op("Transpose", [table], perm=[1, 0])])
    inputs = [helper.make_tensor_value_info("tokens", TensorProto.INT64, [batch, "sequence"])]
    outputs = [helper.make_tensor_value_info(logits, TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "gpt", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
