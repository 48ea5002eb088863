"""ONNX operators as nodes of a trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from autoplan.model.normalise.trace import IDENTITY, Kind, Shape, Source, Trace

Input = tuple[str, NDArray[Any] | None] | None  # a name and its content, where that is known
Contents = list[NDArray[Any] | None]
Attributes = Mapping[str, Any]
Rule = Callable[[list[str], Contents, Shape, Attributes], str]

_SAME = frozenset(("Cast", "CastLike", "Dropout", "Identity", "QuantizeLinear", "DequantizeLinear"))
_VIEWS = frozenset(("Flatten", "Reshape", "Squeeze", "Unsqueeze"))
_FUNCTIONS = {"Clip": "clip", "Max": "max", "Min": "min", "Sum": "add", "HardSigmoid": "sigmoid", "HardSwish": "silu",
              "Swish": "silu", "Mish": "silu", "Selu": "relu", "Elu": "relu", "LeakyRelu": "relu", "PRelu": "relu",
              "ThresholdedRelu": "relu", "Celu": "relu", "Softplus": "log", "Softsign": "div", "GreaterOrEqual": "ge",
              "Greater": "gt", "LessOrEqual": "le", "Less": "lt", "Equal": "eq", "Mod": "rem", "FastGelu": "gelu",
              "QuickGelu": "gelu", "BiasGelu": "gelu", "Mean": "mean"}
_ELEMENTWISE = frozenset((
    "Abs", "Acos", "Add", "And", "Asin", "Atan", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor",
    "Ceil", "Cos", "Cosh", "Div", "Erf", "Exp", "Floor", "Gelu", "IsInf", "IsNaN", "Log", "Mul", "Neg", "Not", "Or",
    "Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "Sub", "Tan", "Tanh", "Where",
    "Xor", *_FUNCTIONS))
_REDUCTIONS = {"ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod",
               "ReduceL2": "norm", "ReduceL1": "sum", "ReduceSumSquare": "sum", "ReduceLogSumExp": "logsumexp",
               "ReduceLogSum": "log", "ArgMax": "argmax", "ArgMin": "argmin"}
_POOLS = frozenset(("AveragePool", "MaxPool", "LpPool", "GlobalMaxPool"))
_STREAMS = frozenset((
    "CumSum", "TopK", "Pad", "Resize", "Upsample", "Tile", "Scatter", "ScatterND", "ScatterElements", "GatherElements",
    "GatherND", "Trilu", "OneHot", "LRN", "DepthToSpace", "SpaceToDepth", "LpNormalization", "Hardmax",
    "MeanVarianceNormalization", "ReverseSequence", "SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"))
_CONSTANTS = frozenset(("ConstantOfShape", "Range", "Shape", "Size", "RandomNormal", "RandomUniform", "EyeLike",
                        "RandomNormalLike", "RandomUniformLike", "NonZero"))
_SAME_SHAPE = frozenset(("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding", "SimplifiedLayerNormalization",
                         "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"))
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


class Lowering:
    """Lowers nodes one by one; `names` maps ONNX names to values of the trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.names: dict[str, str] = {}

    def input(self, name: str, shape: Sequence[int], source: Source) -> None:
        """Add an input of the graph."""
        self.names[name] = self.trace.value(name, shape, source)

    def constant(self, name: str, shape: Sequence[int], *, real: bool) -> None:
        """Add an initialiser or constant; one of real numbers may turn out to be a parameter."""
        self.names[name] = self.trace.value(name, shape, Source.INITIAL if real else Source.CONST)

    def mask(self, name: str, content: NDArray[Any]) -> None:
        """Look whether a square constant masks a triangle."""
        self.names[name] = self.trace.mask(self.names[name], content)

    def foreign(self, node: Any, shapes: Sequence[Shape | None]) -> list[Shape] | None:
        """Return the shapes of the outputs of an operator of another domain, None if they aren't known."""
        first = shapes[0] if shapes else None
        return [first] * len(node.output) if node.op_type in _SAME_SHAPE and first is not None else None

    def node(self, node: Any, inputs: Sequence[Input], shapes: Sequence[Shape | None], attributes: Mapping[str, Any],
             version: int, *, known: bool) -> None:
        """Lower a node. known: its content is known, so that it is a constant."""
        names = [self.names[one[0]] for one in inputs if one is not None]
        contents = [one[1] for one in inputs if one is not None]
        first = shapes[0]
        assert first is not None
        if known or node.op_type in _CONSTANTS:
            self.constant(node.output[0], first, real=node.op_type == "ConstantOfShape")
            return
        if node.op_type == "Split":
            axis = int(attributes.get("axis", 0)) % len(first)
            start = 0
            for output, shape in zip(node.output, shapes, strict=True):
                assert shape is not None
                self.names[output] = self.trace.slice(names[0], axis, start, shape[axis])
                start += shape[axis]
            return
        self.names[node.output[0]] = self._one(node, names, contents, first, {**attributes, "version": version})
        for output, shape in zip(node.output[1:], shapes[1:], strict=True):
            if output and shape is not None:
                self.names[output] = self.trace.add(Kind.STREAM, node.op_type, names[:1], shape)

    def _one(self, node: Any, inputs: list[str], contents: list[NDArray[Any] | None], shape: Shape,
             attributes: Attributes) -> str:
        trace, kind = self.trace, node.op_type
        rule: Rule | None = getattr(self, f"_{kind.lower()}", None)
        if rule is not None:
            return rule(inputs, contents, shape, attributes)
        if kind in _SAME:
            return trace.map(IDENTITY, inputs[:1], shape)
        if kind in _VIEWS:
            return trace.view(inputs[0], shape)
        if kind in _ELEMENTWISE:
            return self._map(kind, inputs, shape)
        if kind in _REDUCTIONS:
            axes = self._axes(inputs, contents, attributes)
            return trace.view(trace.reduce(_REDUCTIONS[kind], inputs[0], axes), shape)
        if kind in _POOLS:
            return trace.add(Kind.POOL, kind, inputs[:1], shape)
        if kind in _STREAMS:
            return trace.add(Kind.STREAM, kind, inputs, shape)
        return trace.add(Kind.OPAQUE, kind, inputs, shape, flops=self._unknown_flops(kind, inputs, shape))

    def _unknown_flops(self, kind: str, inputs: Sequence[str], shape: Shape) -> int:
        """Return the FLOPs of an operator whose time isn't known, as far as its shapes tell; else one an element."""
        if kind in _GATES:
            sequence, batch, width = self.trace.shape(inputs[0])
            directions, hidden = shape[1], shape[3]
            return 2 * sequence * batch * directions * _GATES[kind] * hidden * (width + hidden)
        if kind == "ConvTranspose":
            return 2 * self.trace.values[inputs[0]].numel * math.prod(self.trace.shape(inputs[1])[1:])
        return math.prod(shape)

    def _map(self, kind: str, inputs: list[str], shape: Shape) -> str:
        """A function of each element; of more than two inputs, one after the other."""
        function = _FUNCTIONS.get(kind, kind.lower())
        if kind in ("Sum", "Max", "Min", "Mean") and len(inputs) > 2:
            made = inputs[0]
            for other in inputs[1:]:
                made = self.trace.map(function, (made, other))
            return made
        return self.trace.map(function, inputs, shape)

    def _axes(self, inputs: Sequence[str], contents: Sequence[NDArray[Any] | None], attributes: Mapping[str, Any],
              ) -> list[int]:
        rank = len(self.trace.shape(inputs[0]))
        given = attributes.get("axes", attributes.get("axis"))
        if given is None and len(contents) > 1 and contents[1] is not None:
            given = contents[1].reshape(-1).tolist()
        if given is None:
            return list(range(rank))
        return [int(axis) % rank for axis in (given if isinstance(given, (list, tuple)) else [given])]

    def _transpose(self, inputs: list[str], contents: object, shape: Shape, attributes: Attributes) -> str:
        return self.trace.permute(inputs[0], list(attributes.get("perm", range(len(shape) - 1, -1, -1))))

    def _concat(self, inputs: list[str], contents: object, shape: Shape, attributes: Attributes) -> str:
        return self.trace.concat([one for one in inputs if self.trace.values[one].numel],
                                 int(attributes["axis"]) % len(shape))

    def _expand(self, inputs: list[str], contents: object, shape: Shape, attributes: Attributes) -> str:
        rank = len(self.trace.shape(inputs[0]))
        return self.trace.broadcast(inputs[0], shape, range(len(shape) - rank, len(shape)))

    def _slice(self, inputs: list[str], contents: Contents, shape: Shape, attributes: Attributes) -> str:
        """Cuts along each axis; a start that isn't known is taken as the beginning."""
        before = self.trace.shape(inputs[0])
        starts = attributes.get("starts", contents[1] if len(contents) > 1 else None)
        axes = attributes.get("axes", contents[3] if len(contents) > 3 else None)
        steps = contents[4] if len(contents) > 4 else None
        order = [int(axis) % len(shape) for axis in axes] if axes is not None else list(range(len(shape)))
        value = inputs[0]
        for axis, size in enumerate(shape):
            if size != before[axis]:
                at = order.index(axis) if axis in order else None
                start = int(starts[at]) if starts is not None and at is not None else 0
                step = int(steps[at]) if steps is not None and at is not None else 1
                value = self.trace.slice(value, axis, start % before[axis] if start < 0 else start, size, step)
        return value

    def _gather(self, inputs: list[str], contents: Contents, shape: Shape, attributes: Attributes) -> str:
        """A look-up of rows, one entry of an axis, or any other."""
        before = self.trace.shape(inputs[0])
        axis = int(attributes.get("axis", 0)) % len(before)
        index = contents[1]
        if index is not None and index.size == 1:
            part = self.trace.slice(inputs[0], axis, int(index.reshape(-1)[0]) % before[axis], 1)
            return self.trace.view(part, shape)
        if axis == 0:
            return self.trace.add(Kind.GATHER, "embedding", inputs, shape)
        return self.trace.add(Kind.STREAM, "gather", inputs, shape)

    def _matmul(self, inputs: list[str], contents: object, shape: Shape, attributes: Attributes) -> str:
        return self.trace.view(self.trace.matmul(*inputs), shape)

    def _gemm(self, inputs: list[str], contents: object, shape: Shape, attributes: Attributes) -> str:
        a, b, *bias = inputs
        a_labels = (1, 0) if attributes.get("transA") else (0, 1)
        b_labels = (2, 1) if attributes.get("transB") else (1, 2)
        made = self.trace.einsum(a, b, a_labels, b_labels, (0, 2))
        return self._map("Add", [made, *bias], shape) if bias else made

    def _einsum(self, inputs: list[str], contents: object, shape: Shape, attributes: Attributes) -> str:
        text = attributes["equation"].decode().replace(" ", "")
        left, _, right = text.partition("->")
        terms = left.split(",")
        if len(terms) != 2 or "." in text or not right or any(len(set(term)) < len(term) for term in terms):
            return self.trace.add(Kind.OPAQUE, f"Einsum {text}", inputs, shape)
        a, b, out = ([ord(letter) for letter in term] for term in (*terms, right))
        return self.trace.einsum(inputs[0], inputs[1], a, b, out)

    def _conv(self, inputs: list[str], contents: object, shape: Shape, attributes: Attributes) -> str:
        return self.trace.add(Kind.CONV, "conv", inputs, shape, groups=int(attributes.get("group", 1)))

    def _batchnormalization(self, inputs: list[str], contents: object, shape: Shape, attributes: Attributes) -> str:
        axes = (0, *range(2, len(shape)))
        return self.trace.add(Kind.NORM, "batch", inputs[:3], shape, axes=axes, param_axis=1)

    def _instancenormalization(self, inputs: list[str], contents: object, shape: Shape,
                               attributes: Attributes) -> str:
        return self.trace.add(Kind.NORM, "instance", inputs[:3], shape, axes=tuple(range(2, len(shape))), param_axis=1)

    _groupnormalization = _instancenormalization

    def _layernormalization(self, inputs: list[str], contents: object, shape: Shape, attributes: Attributes) -> str:
        axis = int(attributes.get("axis", -1)) % len(shape)
        return self.trace.add(Kind.NORM, "layer", inputs, shape, axes=tuple(range(axis, len(shape))))

    _rmsnormalization = _simplifiedlayernormalization = _layernormalization

    def _skiplayernormalization(self, inputs: list[str], contents: object, shape: Shape,
                                attributes: Attributes) -> str:
        added = self.trace.map("add", inputs[:2], shape)
        return self.trace.add(Kind.NORM, "layer", (added, *inputs[2:4]), shape, axes=(len(shape) - 1,))

    _skipsimplifiedlayernormalization = _skiplayernormalization

    def _rotaryembedding(self, inputs: list[str], contents: object, shape: Shape, attributes: Attributes) -> str:
        half = shape[-1] // 2
        halves = [self.trace.slice(inputs[0], len(shape) - 1, start, half) for start in (0, half)]
        return self.trace.concat(halves[::-1], len(shape) - 1)

    def _softmax(self, inputs: list[str], contents: object, shape: Shape, attributes: Attributes) -> str:
        axis = int(attributes.get("axis", -1 if attributes["version"] >= 13 else 1)) % len(shape)
        return self.trace.add(Kind.SOFTMAX, "softmax", inputs, shape, axis=axis)

    _logsoftmax = _softmax

    def _globalaveragepool(self, inputs: list[str], contents: object, shape: Shape, attributes: Attributes) -> str:
        return self.trace.reduce("mean", inputs[0], range(2, len(shape)), keep=True)

    def _attention(self, inputs: list[str], contents: object, shape: Shape, attributes: Attributes) -> str:
        """ONNX's own attention (opset 23): Q, K, V with the heads on an axis of their own, or inside the last one."""
        q, k, v, *mask = inputs
        if len(shape) == 3:
            heads = (int(attributes["q_num_heads"]), *[int(attributes["kv_num_heads"])] * 2)
            q, k, v = (self._with_heads(one, count) for one, count in zip((q, k, v), heads, strict=True))
        out = (*self.trace.shape(q)[:-1], self.trace.shape(v)[-1])
        made = self.trace.add(Kind.ATTENTION, "attention", (q, k, v, *mask[:1]), out,
                              causal=bool(attributes.get("is_causal", 0)))
        return self.trace.view(self.trace.permute(made, (0, 2, 1, 3)), shape) if len(shape) == 3 else made

    def _with_heads(self, name: str, heads: int) -> str:
        batch, seq, width = self.trace.shape(name)
        return self.trace.permute(self.trace.view(name, (batch, seq, heads, width // heads)), (0, 2, 1, 3))
