"""PyTorch modules: `torch.export` on the meta device becomes a model graph; no weights are allocated.

The exported graph has ATen operators as the module calls them (`linear`, `scaled_dot_product_attention`,
`layer_norm` …). What the module returns is what is trained: a scalar is its loss, logits get a cross-entropy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from autoplan.errors import InputError
from autoplan.model.graph import ModelGraph
from autoplan.model.normalise import normalise
from autoplan.model.normalise.trace import IDENTITY, Kind, Source, Trace, broadcast_shape

_SAME = frozenset((
    "alias", "clone", "contiguous", "detach", "detach_", "dropout", "dropout_", "to", "_to_copy", "type_as", "float",
    "bfloat16", "half", "lift_fresh_copy", "feature_dropout", "native_dropout", "convert_element_type", "conj", "cpu",
    "_conj", "resolve_conj", "fill_", "requires_grad_", "data"))
_VIEWS = frozenset(("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten", "view_as",
                    "reshape_as", "_reshape_alias"))
_FUNCTIONS = {"sigmoid": "sigmoid", "clamp": "clip", "clamp_min": "max", "maximum": "max", "minimum": "min",
              "masked_fill": "where", "leaky_relu": "relu", "hardtanh": "clip", "relu6": "relu", "mish": "silu",
              "hardswish": "silu", "hardsigmoid": "sigmoid", "elu": "relu", "softplus": "log", "square": "pow",
              "bitwise_and": "and", "bitwise_or": "or", "bitwise_not": "not", "logical_and": "and",
              "logical_not": "not", "logical_or": "or", "__and__": "and", "__or__": "or", "true_divide": "div",
              "log_sigmoid": "sigmoid", "rsub": "sub", "mul_": "mul", "add_": "add", "div_": "div", "relu_": "relu",
              "silu_": "silu", "masked_fill_": "where", "sub_": "sub"}
_ELEMENTWISE = frozenset((
    "abs", "add", "and", "ceil", "clip", "cos", "div", "eq", "erf", "exp", "expm1", "floor", "floor_divide", "ge",
    "gelu", "gt", "isinf", "isnan", "le", "log", "log1p", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pow",
    "reciprocal", "relu", "remainder", "round", "rsqrt", "sigmoid", "sign", "silu", "sin", "sqrt", "sub", "tanh",
    "where", "xor", "nan_to_num", "addcmul", "log2", "fmod", "sinh", "cosh", "tan", "atan"))
_REDUCTIONS = {"mean": "mean", "sum": "sum", "amax": "max", "amin": "min", "var": "var", "prod": "prod", "any": "any",
               "all": "all", "argmax": "argmax", "logsumexp": "logsumexp", "max": "max"}
_CONSTANTS = frozenset((
    "arange", "ones", "zeros", "full", "empty", "scalar_tensor", "eye", "linspace", "rand", "randn", "randint",
    "lift", "tensor", "bernoulli"))
_LIKE = frozenset(("ones_like", "zeros_like", "full_like", "empty_like", "new_ones", "new_zeros", "new_full",
                   "new_empty", "rand_like", "randn_like"))
_STREAMS = frozenset(("cumsum", "diff", "index", "gather", "roll", "sort", "argsort", "scatter", "scatter_add",
                      "index_put", "tril", "triu", "flip", "repeat", "repeat_interleave", "constant_pad_nd", "pad",
                      "one_hot", "index_select", "masked_select", "searchsorted", "bucketize", "upsample_nearest2d",
                      "upsample_bilinear2d", "adaptive_avg_pool1d", "select_scatter", "copy", "copy_",
                      "topk", "meshgrid", "index_add", "view_as_complex", "view_as_real", "polar", "outer"))
_POOLS = ("max_pool2d", "avg_pool2d", "max_pool1d", "avg_pool1d", "max_pool2d_with_indices", "max_pool3d")


def from_torch(module: Any, *example_inputs: Any, name: str | None = None, **example_kwargs: Any) -> ModelGraph:
    """Return the model graph of a PyTorch module.

    module: an `nn.Module`, best made under `torch.device("meta")`. example_inputs, example_kwargs: what its `forward`
    takes; only shapes and dtypes matter. The first axis of each input is the batch, the second axis of integer ones the
    sequence; a batch of one is traced as two, so that it can be told from axes of size one.
    Raises InputError where the module can't be exported or understood.
    """
    torch = _torch()
    called = name or type(module).__name__
    arguments, keywords = _on_meta(torch, example_inputs, example_kwargs)
    was_training = module.training
    try:
        meta = module if _is_meta(module) else _meta_copy(torch, module)
        meta.eval()
        with torch.no_grad():
            exported = torch.export.export(meta, arguments, keywords, strict=False)
            if any(_mutates(node.target) for node in exported.graph_module.graph.nodes):
                exported = exported.run_decompositions({})  # only makes it functional
    except Exception as error:
        raise InputError(f"can't be exported: {type(error).__name__}: {' '.join(str(error).split())[:300]}",
                         where=called) from None
    finally:
        module.train(was_training)
    lowering = _Lowering(Trace(called), exported)
    lowering.run()
    return normalise(lowering.trace, called, "torch")


def _mutates(target: Any) -> bool:
    """Whether an operator writes into an operand, which may be a part of another tensor."""
    schema = getattr(target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise InputError("PyTorch isn't installed: pip install 'autoplan-parallel[torch]'",
                         where="from_torch") from None
    return torch


def _is_meta(module: Any) -> bool:
    return all(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))


def _meta_copy(torch: Any, module: Any) -> Any:
    """Return the module with all tensors on the meta device; the module itself stays as it is."""
    import copy

    memo: dict[int, Any] = {}
    for tensor in module.parameters():
        memo[id(tensor)] = torch.nn.Parameter(tensor.detach().to("meta"), requires_grad=tensor.requires_grad)
    for tensor in module.buffers():
        memo[id(tensor)] = tensor.detach().to("meta")
    return copy.deepcopy(module, memo)


def _on_meta(torch: Any, inputs: Sequence[Any], keywords: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the inputs on the meta device, with a batch of 2 where all have one of 1."""
    tensors = [one for one in (*inputs, *keywords.values()) if isinstance(one, torch.Tensor) and one.dim()]
    doubled = bool(tensors) and all(one.shape[0] == 1 for one in tensors)

    def moved(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        shape = (2, *one.shape[1:]) if doubled and one.dim() else one.shape
        return torch.empty(shape, dtype=one.dtype, device="meta")

    return tuple(moved(one) for one in inputs), {key: moved(one) for key, one in keywords.items()}


class _Lowering:
    """Lowers an exported program node by node; `env` maps its nodes to values of the trace, or to lists of them."""

    def __init__(self, trace: Trace, exported: Any) -> None:
        self.trace, self.exported = trace, exported
        self.env: dict[Any, Any] = {}

    def run(self) -> None:
        """Lower the whole program."""
        signature = self.exported.graph_signature
        shared: dict[int, str] = {}
        kinds = {**{name: (Source.PARAM, target) for name, target in signature.inputs_to_parameters.items()},
                 **{name: (Source.CONST, target) for name, target in signature.inputs_to_buffers.items()}}
        for node in self.exported.graph_module.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, kinds, shared)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                outputs = node.args[0]
                self.trace.outputs = [self.env[one] for one in _flatten(outputs) if one in self.env
                                      and isinstance(self.env[one], str)]
            elif node.op == "get_attr":
                self._constant(node)

    def _placeholder(self, node: Any, kinds: dict[str, tuple[Source, str]], shared: dict[int, str]) -> None:
        value = node.meta.get("val")
        if not hasattr(value, "shape"):
            return
        source, target = kinds.get(node.name, (None, node.name))
        if source is Source.PARAM:
            tensor = self.exported.state_dict[target]
            name = shared.setdefault(id(tensor), target)  # tied weights are one parameter
            if name != target:
                self.env[node] = name
                return
        if source is None:
            source = _input_source(value, node.name)
        name = self.trace.value(target, value.shape, source)
        self.env[node] = self.trace.mask(name, None) if source is Source.CONST else name

    def _constant(self, node: Any) -> None:
        value = node.meta.get("val", getattr(self.exported.graph_module, str(node.target), None))
        if hasattr(value, "shape"):
            self.env[node] = self.trace.value(f"constant{len(self.trace.values)}", value.shape, Source.CONST)

    def _call(self, node: Any) -> None:
        target = node.target
        if getattr(target, "__name__", "") == "getitem":
            source = self.env.get(node.args[0])
            if isinstance(source, list):
                self.env[node] = source[node.args[1]]
            return
        value = node.meta.get("val")
        if value is None:
            return
        name = str(target).split(".")[1] if str(target).count(".") else str(target)
        if isinstance(value, (tuple, list)):
            self.env[node] = self._several(name, node, value)
        elif hasattr(value, "shape"):
            self.env[node] = self._one(name, node, tuple(value.shape))

    def _tensors(self, node: Any) -> list[str]:
        """Return the values that a node reads, lists of them included."""
        return [self.env[one] for one in _flatten((*node.args, *node.kwargs.values()))
                if type(one).__name__ == "Node" and isinstance(self.env.get(one), str)]

    def _several(self, name: str, node: Any, values: Sequence[Any]) -> list[str]:
        """An operator with several outputs."""
        inputs = self._tensors(node)
        shapes = [tuple(value.shape) for value in values if hasattr(value, "shape")]
        if name in ("split", "chunk", "split_with_sizes", "unbind", "tensor_split", "unsafe_split"):
            axis = _argument(node, 1 if name == "unbind" else 2, "dim", 0) % len(self.trace.shape(inputs[0]))
            if name == "unbind":
                return [self._select(inputs[0], axis, index) for index in range(len(shapes))]
            starts = [sum(shape[axis] for shape in shapes[:index]) for index in range(len(shapes))]
            return [self.trace.slice(inputs[0], axis, start, shape[axis])
                    for start, shape in zip(starts, shapes, strict=True)]
        if name in ("native_layer_norm", "_native_batch_norm_legit_functional", "native_batch_norm",
                    "_native_batch_norm_legit_no_training", "max_pool2d_with_indices", "native_dropout",
                    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
                    "_scaled_dot_product_flash_attention_for_cpu"):
            return [self._one(name, node, shapes[0]), *(
                self.trace.value(f"constant{len(self.trace.values)}", shape, Source.CONST) for shape in shapes[1:])]
        kind = Kind.STREAM if name in ("topk", "sort", "meshgrid", "max", "var_mean") else Kind.OPAQUE
        return [self.trace.add(kind, name, inputs, shape) for shape in shapes]

    def _select(self, value: str, axis: int, index: int) -> str:
        shape = self.trace.shape(value)
        part = self.trace.slice(value, axis, index % shape[axis], 1)
        return self.trace.view(part, (*shape[:axis], *shape[axis + 1:]))

    def _one(self, name: str, node: Any, shape: tuple[int, ...]) -> str:
        """An operator with one output."""
        trace, inputs = self.trace, self._tensors(node)
        special: Callable[[Any, list[str], tuple[int, ...]], str] | None = getattr(self, f"_op_{name}", None)
        if special is not None:
            return special(node, inputs, shape)
        if name in _CONSTANTS or name in _LIKE or not inputs:
            return trace.value(f"constant{len(trace.values)}", shape, Source.CONST)
        function = _FUNCTIONS.get(name, name)
        if name in _SAME:
            return trace.map(IDENTITY, inputs[:1], shape)
        if name in _VIEWS:
            return trace.view(inputs[0], shape)
        if name in _REDUCTIONS and not (name in ("max", "min") and len(inputs) > 1):
            rank = len(trace.shape(inputs[0]))
            axes = _argument(node, 1, "dim", None)
            axes = range(rank) if axes is None or axes == [] else axes if isinstance(axes, (list, tuple)) else [axes]
            return trace.view(trace.reduce(_REDUCTIONS[name], inputs[0], axes), shape)
        if function in _ELEMENTWISE:
            if broadcast_shape([trace.shape(one) for one in inputs]) == shape:
                return trace.map(function, inputs, shape)
            return trace.add(Kind.STREAM, name, inputs, shape)
        if name in _POOLS:
            return trace.add(Kind.POOL, name, inputs[:1], shape)
        if name in _STREAMS:
            return trace.add(Kind.STREAM, name, inputs, shape)
        return trace.add(Kind.OPAQUE, f"aten.{name}", inputs, shape)

    def _op_expand(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        rank = len(self.trace.shape(inputs[0]))
        return self.trace.broadcast(inputs[0], shape, range(len(shape) - rank, len(shape)))

    _op_expand_as = _op_broadcast_to = _op_expand

    def _op_permute(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        return self.trace.permute(inputs[0], [axis % len(shape) for axis in node.args[1]])

    def _op_transpose(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        perm = list(range(len(shape)))
        a, b = (axis % len(shape) for axis in node.args[1:3])
        perm[a], perm[b] = b, a
        return self.trace.permute(inputs[0], perm)

    _op_swapaxes = _op_transpose

    def _op_t(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        return self.trace.permute(inputs[0], range(len(shape) - 1, -1, -1))

    _op_numpy_T = _op_t

    def _op_mT(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        rank = len(shape)
        return self.trace.permute(inputs[0], (*range(rank - 2), rank - 1, rank - 2))

    def _op_slice(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        axis = _argument(node, 1, "dim", 0) % len(shape)
        size = self.trace.shape(inputs[0])[axis]
        start = _argument(node, 2, "start", None) or 0
        return self.trace.slice(inputs[0], axis, max(0, start + size if start < 0 else start), shape[axis],
                                _argument(node, 4, "step", 1))

    def _op_slice_scatter(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        """A tensor with a part of it replaced: what is before, the new part, what is behind."""
        base, part = inputs
        axis, size = _argument(node, 2, "dim", 0) % len(shape), self.trace.shape(part)
        start = _argument(node, 3, "start", None) or 0
        if _argument(node, 5, "step", 1) != 1:
            return self.trace.add(Kind.STREAM, "slice_scatter", inputs, shape)
        start = max(0, start + shape[axis] if start < 0 else start)
        end = start + size[axis]
        pieces = [self.trace.slice(base, axis, begin, stop - begin)
                  for begin, stop in ((0, start), (end, shape[axis])) if stop > begin]
        return self.trace.concat([*pieces[:start > 0], part, *pieces[start > 0:]], axis)

    def _op_grouped_mm(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        """Rows times the weight of the expert each is sorted to: how many meet which expert isn't in the graph."""
        flops = 2 * self.trace.values[inputs[0]].numel * shape[-1]
        return self.trace.add(Kind.OPAQUE, "aten.grouped_mm", inputs, shape, flops=flops)

    _op__grouped_mm = _op_grouped_mm_fallback = _op_grouped_mm

    def _op_narrow(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        return self.trace.slice(inputs[0], node.args[1] % len(shape), int(node.args[2]), shape[node.args[1]])

    def _op_select(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        return self._select(inputs[0], node.args[1] % (len(shape) + 1), node.args[2])

    def _op_cat(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        inputs = [one for one in inputs if self.trace.values[one].numel]
        return self.trace.concat(inputs, _argument(node, 1, "dim", 0) % len(shape))

    _op_concat = _op_cat

    def _op_stack(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        axis = _argument(node, 1, "dim", 0) % len(shape)
        part = (*shape[:axis], 1, *shape[axis + 1:])
        return self.trace.concat([self.trace.view(one, part) for one in inputs], axis)

    def _op_linear(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        rank = len(shape)
        x, weight, *bias = inputs
        made = self.trace.einsum(x, weight, (*range(2, rank + 1), 0), (1, 0), (*range(2, rank + 1), 1))
        return self.trace.map("add", (made, *bias), shape) if bias else made

    def _op_addmm(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        bias, a, b = inputs
        return self.trace.map("add", (self.trace.matmul(a, b), bias), shape)

    _op_baddbmm = _op_addmm

    def _op_matmul(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        return self.trace.view(self.trace.matmul(*inputs), shape)

    _op_mm = _op_bmm = _op_mv = _op_dot = _op_matmul

    def _op_einsum(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        text = str(node.args[0]).replace(" ", "")
        left, _, right = text.partition("->")
        terms = left.split(",")
        if len(terms) != 2 or "." in text or not right or any(len(set(term)) < len(term) for term in terms):
            return self.trace.add(Kind.OPAQUE, f"einsum {text}", inputs, shape)
        a, b, out = ([ord(letter) for letter in term] for term in (*terms, right))
        return self.trace.einsum(inputs[0], inputs[1], a, b, out)

    def _op_embedding(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        return self.trace.add(Kind.GATHER, "embedding", inputs[:2], shape)

    def _op_layer_norm(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        count = len(node.args[1])
        axes = tuple(range(len(shape) - count, len(shape)))
        return self.trace.add(Kind.NORM, "layer", inputs, shape, axes=axes)

    _op_native_layer_norm = _op_layer_norm

    def _op_rms_norm(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        axes = tuple(range(len(shape) - len(node.args[1]), len(shape)))
        return self.trace.add(Kind.NORM, "rms", inputs, shape, axes=axes)

    def _op_batch_norm(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        axes = (0, *range(2, len(shape)))
        return self.trace.add(Kind.NORM, "batch", inputs[:3], shape, axes=axes, param_axis=1)

    _op__native_batch_norm_legit_no_training = _op_native_batch_norm = _op_batch_norm

    def _op_group_norm(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        return self.trace.add(Kind.NORM, "group", inputs[:3], shape, axes=tuple(range(1, len(shape))), param_axis=1)

    def _op_softmax(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        return self.trace.add(Kind.SOFTMAX, "softmax", inputs, shape, axis=node.args[1] % len(shape))

    _op__softmax = _op_softmax

    def _op_log_softmax(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        return self.trace.add(Kind.SOFTMAX, "log_softmax", inputs, shape, axis=node.args[1] % len(shape))

    def _op_cross_entropy_loss(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        return self.trace.add(Kind.STREAM, "log_softmax", inputs, shape)

    _op_nll_loss = _op_nll_loss_nd = _op_cross_entropy_loss

    def _op_scaled_dot_product_attention(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        q, k, v, *mask = inputs
        if len(shape) < 4:  # no heads
            q, k, v = (self.trace.view(one, (*self.trace.shape(one)[:-2], 1, *self.trace.shape(one)[-2:]))
                       for one in (q, k, v))
        causal = bool(_argument(node, 5, "is_causal", False))
        out = (*self.trace.shape(q)[:-1], self.trace.shape(v)[-1])
        return self.trace.view(self.trace.add(Kind.ATTENTION, "attention", (q, k, v, *mask), out, causal=causal), shape)

    def _op_convolution(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        if len(node.args) > 6 and node.args[6]:  # transposed
            return self.trace.add(Kind.OPAQUE, "aten.conv_transpose", inputs, shape)
        groups = node.args[8] if len(node.args) > 8 else 1
        return self._convolve(inputs, shape, groups)

    def _op_conv2d(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        return self._convolve(inputs, shape, _argument(node, 6, "groups", 1))

    _op_conv1d = _op_conv3d = _op_conv2d

    def _convolve(self, inputs: list[str], shape: tuple[int, ...], groups: int) -> str:
        return self.trace.add(Kind.CONV, "conv", inputs, shape, groups=groups)

    def _op_adaptive_avg_pool2d(self, node: Any, inputs: list[str], shape: tuple[int, ...]) -> str:
        if math.prod(shape[2:]) == 1:
            return self.trace.reduce("mean", inputs[0], range(2, len(shape)), keep=True)
        return self.trace.add(Kind.POOL, "adaptive_avg_pool2d", inputs, shape)


def _input_source(value: Any, name: str) -> Source:
    floating = value.dtype.is_floating_point
    if "mask" in name or "position" in name or len(value.shape) == 0:
        return Source.HINT
    return Source.INPUT if floating and len(value.shape) >= 2 else Source.HINT if floating else Source.TOKENS


def _argument(node: Any, index: int, name: str, default: Any) -> Any:
    """Return an argument given by position or by name."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def _flatten(items: Any) -> list[Any]:
    """Return the leaves of nested tuples, lists and mappings."""
    if isinstance(items, (tuple, list)):
        return [leaf for item in items for leaf in _flatten(item)]
    if isinstance(items, dict):
        return [leaf for item in items.values() for leaf in _flatten(item)]
    return [items]
