"""JAX functions: a forward pass, a loss, or a whole training step becomes a model graph.

The function is traced with abstract values, so nothing is computed and no weights are needed. Calls (`jit`, `remat`,
`custom_vjp` …) are inlined; a `scan` is unrolled, and its equal steps are folded into one layer class again.

A training step is planned by its forward pass: the scalar loss among its outputs tells which part that is, and the
planner prices the backward pass, its recompute and the optimizer by its own models. The gradients that a step computes
are therefore dropped, whatever they are used for. A function that returns gradients without a loss is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from autoplan.errors import InputError
from autoplan.model.graph import ModelGraph
from autoplan.model.normalise import normalise
from autoplan.model.normalise.trace import IDENTITY, Kind, Source, Trace

_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr",
          "remat": "jaxpr", "remat2": "jaxpr", "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr",
          "custom_vjp_call": "call_jaxpr", "custom_vjp_call_jaxpr": "fun_jaxpr", "custom_lin": "call_jaxpr",
          "xla_call": "call_jaxpr", "shard_map": "jaxpr"}
_SAME = ("convert_element_type", "stop_gradient", "copy", "copy_p", "optimization_barrier", "sharding_constraint",
         "reduce_precision", "name", "pvary", "real")
_FUNCTIONS = {"logistic": "sigmoid", "add_any": "add", "select_n": "where", "integer_pow": "pow", "square": "pow"}
_ELEMENTWISE = frozenset((
    "abs", "acos", "add", "add_any", "and", "asin", "atan", "atan2", "cbrt", "ceil", "clamp", "cos", "cosh", "div",
    "eq", "erf", "erf_inv", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "log",
    "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not", "or", "pow", "rem", "round",
    "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt",
    "square", "sub", "tan", "tanh", "xor"))
_REDUCTIONS = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "prod",
               "reduce_and": "and", "reduce_or": "or", "argmax": "argmax", "argmin": "argmin"}
_STREAMS = frozenset(("cumsum", "cumprod", "cummax", "cumlogsumexp", "sort", "rev", "pad", "select_and_scatter_add",
                      "dynamic_update_slice"))
_CONSTANTS = frozenset(("iota", "random_bits", "random_seed", "random_wrap", "random_unwrap", "random_fold_in",
                        "rng_bit_generator", "random_split", "create_token", "axis_index", "threefry2x32"))


def from_jax(fn: Callable[..., Any], *abstract_args: Any, params: int | Sequence[int] = 0,
             name: str | None = None) -> ModelGraph:
    """Return the model graph of a JAX function.

    fn: a model, a loss, or a training step that returns its loss. abstract_args: its arguments, any pytrees of arrays
    or of `jax.ShapeDtypeStruct`. params: which arguments hold parameters (and optimizer state); integer arrays never
    are.
    The first axis of every other argument is the batch, the second axis of integer ones the sequence; a batch of one
    is traced as two, so that it can be told from axes of size one.
    Raises InputError where the function can't be traced or understood.
    """
    jax = _jax()
    chosen = {params} if isinstance(params, int) else set(params)
    called = name or str(getattr(fn, "__name__", "model"))
    arguments = _with_batch(jax, abstract_args, chosen)
    try:
        closed = jax.make_jaxpr(fn)(*arguments)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"can't be traced: {type(error).__name__}: {' '.join(str(error).split())[:300]}",
                         where=called) from None
    lowering = _Lowering(Trace(called))
    leaves = [(index, path, leaf) for index, argument in enumerate(arguments)
              for path, leaf in jax.tree_util.tree_leaves_with_path(argument)]
    for (index, path, leaf), variable in zip(leaves, closed.jaxpr.invars, strict=True):
        text = f"{index}{jax.tree_util.keystr(path)}"
        lowering.input(variable, text, _source(leaf, text, index in chosen))
    lowering.constants(closed.jaxpr.constvars, closed.consts)
    lowering.equations(closed.jaxpr.eqns)
    lowering.trace.outputs = [lowering.read(variable) for variable in closed.jaxpr.outvars]
    return normalise(lowering.trace, called, "jax")


def _jax() -> Any:
    try:
        import jax
    except ImportError:
        raise InputError("JAX isn't installed: pip install 'autoplan-parallel[jax]'", where="from_jax") from None
    return jax


def _with_batch(jax: Any, arguments: Sequence[Any], chosen: set[int]) -> list[Any]:
    """Return the arguments as shapes, with a batch of 2 where all data have one of 1."""
    def shaped(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(jax.numpy.shape(leaf), jax.numpy.result_type(leaf))

    shapes = [jax.tree_util.tree_map(shaped, argument) for argument in arguments]
    data = [leaf for index, argument in enumerate(shapes) if index not in chosen
            for leaf in jax.tree_util.tree_leaves(argument) if leaf.shape]
    if not data or any(leaf.shape[0] != 1 for leaf in data):
        return shapes
    return [argument if index in chosen else jax.tree_util.tree_map(
        lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape[1:]), leaf.dtype) if leaf.shape else leaf, argument)
        for index, argument in enumerate(shapes)]


def _source(leaf: Any, path: str, is_params: bool) -> Source:
    kind = leaf.dtype.kind
    if is_params:
        return Source.PARAM if kind in "fVc" and leaf.shape else Source.CONST
    if kind in "iu" and len(leaf.shape) >= 1 and "mask" not in path and "position" not in path:
        return Source.TOKENS
    if kind in "fV" and len(leaf.shape) >= 2 and "mask" not in path:
        return Source.INPUT
    return Source.HINT


class _Lowering:
    """Lowers equations one by one; `names` maps a jaxpr's variables to values of the trace."""

    def __init__(self, trace: Trace, names: Mapping[Any, str] | None = None) -> None:
        self.trace = trace
        self.names: dict[Any, str] = dict(names or {})

    def input(self, variable: Any, name: str, source: Source) -> None:
        """Add an argument."""
        self.names[variable] = self.trace.value(name, variable.aval.shape, source)

    def constants(self, variables: Sequence[Any], contents: Sequence[Any] = ()) -> None:
        """Add the arrays that a function closes over, and what they hold."""
        for variable, content in itertools.zip_longest(variables, contents):
            self.input(variable, f"constant{len(self.trace.values)}", Source.CONST)
            if content is not None:
                self.names[variable] = self.trace.mask(self.names[variable], np.asarray(content))

    def read(self, atom: Any) -> str:
        """Return the value of a variable or literal."""
        if hasattr(atom, "val"):
            return self.trace.value(f"literal{len(self.trace.values)}", atom.aval.shape, Source.CONST)
        return self.names[atom]

    def equations(self, equations: Sequence[Any]) -> None:
        """Lower equations in order."""
        for equation in equations:
            self._equation(equation)

    def _equation(self, equation: Any) -> None:
        name, params = equation.primitive.name, equation.params
        inputs = [self.read(atom) for atom in equation.invars]
        if name in _CALLS and _CALLS[name] in params:
            outputs = self._inline(params[_CALLS[name]], inputs)
        elif name == "scan":
            outputs = self._scan(params, inputs)
        elif name == "cond":
            outputs = self._cond(params, inputs, equation)
        elif name in _SAME and len(inputs) == len(equation.outvars):
            outputs = [self.trace.map(IDENTITY, (value,), out.aval.shape)
                       for value, out in zip(inputs, equation.outvars, strict=True)]
        elif name == "split":
            outputs = self._split(params, inputs[0])
        else:
            outputs = [self._lower(name, params, inputs, equation.outvars[0].aval.shape)]
            outputs += [self.trace.add(Kind.OPAQUE, name, inputs, out.aval.shape) for out in equation.outvars[1:]]
        self.names.update(zip(equation.outvars, outputs, strict=True))

    def _split(self, params: Mapping[str, Any], value: str) -> list[str]:
        starts = [sum(params["sizes"][:index]) for index in range(len(params["sizes"]))]
        return [self.trace.slice(value, params["axis"], start, size)
                for start, size in zip(starts, params["sizes"], strict=True)]

    def _inline(self, jaxpr: Any, inputs: Sequence[str]) -> list[str]:
        """Lower a called jaxpr in place."""
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        lowering = _Lowering(self.trace, dict(zip(inner.invars, inputs[len(inputs) - len(inner.invars):], strict=True)))
        lowering.constants(inner.constvars, getattr(jaxpr, "consts", ()))
        lowering.equations(inner.eqns)
        return [lowering.read(variable) for variable in inner.outvars]

    def _scan(self, params: Mapping[str, Any], inputs: Sequence[str]) -> list[str]:
        """Unroll a scan: step i reads entry i of what is scanned; what each step returns is stacked."""
        consts, carries, length = params["num_consts"], params["num_carry"], params["length"]
        fixed, carry, scanned = inputs[:consts], list(inputs[consts:consts + carries]), inputs[consts + carries:]
        stacks: list[list[str]] = []
        order = range(length - 1, -1, -1) if params["reverse"] else range(length)
        for step in order:
            entries = [self.trace.view(self.trace.slice(value, 0, step, 1), self.trace.shape(value)[1:])
                       for value in scanned]
            outputs = self._inline(params["jaxpr"], [*fixed, *carry, *entries])
            carry = outputs[:carries]
            stacks.append(outputs[carries:])
        ordered = stacks[::-1] if params["reverse"] else stacks
        return [*carry, *(self._stacked(column) for column in zip(*ordered, strict=True))]

    def _stacked(self, column: Sequence[str]) -> str:
        """Return what the steps of a scan return as one value, step by step along axis 0."""
        return self.trace.concat([self.trace.view(value, (1, *self.trace.shape(value))) for value in column], 0)

    def _cond(self, params: Mapping[str, Any], inputs: Sequence[str], equation: Any) -> list[str]:
        """A branch: refused where it multiplies matrices, since which branch runs isn't known."""
        if any(_multiplies(branch.jaxpr) for branch in params["branches"]):
            raise InputError("a branch (`lax.cond`, `lax.switch`) with matrix products: which one runs isn't known",
                             where=self.trace.where)
        return [self.trace.add(Kind.STREAM, "cond", inputs, out.aval.shape) for out in equation.outvars]

    def _lower(self, name: str, params: Mapping[str, Any], inputs: list[str], shape: tuple[int, ...]) -> str:
        trace = self.trace
        if name in _ELEMENTWISE:
            operands = inputs[1:] + inputs[:1] if name == "select_n" else inputs
            return trace.map(_FUNCTIONS.get(name, name), operands, shape)
        if name in _REDUCTIONS:
            return trace.reduce(_REDUCTIONS[name], inputs[0], params["axes"])
        if name in ("reshape", "squeeze", "expand_dims"):
            return trace.view(inputs[0], shape)
        if name == "transpose":
            return trace.permute(inputs[0], tuple(int(axis) for axis in params["permutation"]))
        if name == "broadcast_in_dim":
            return trace.broadcast(inputs[0], shape, tuple(int(axis) for axis in params["broadcast_dimensions"]))
        if name == "concatenate":
            return trace.concat(inputs, params["dimension"])
        if name == "slice":
            return self._slice(inputs[0], params["start_indices"], shape, params["strides"])
        if name == "dynamic_slice":
            return self._slice(inputs[0], [0] * len(shape), shape, None)
        if name == "dot_general":
            return self._dot(params, inputs)
        if name == "conv_general_dilated":
            return self._conv(params, inputs, shape)
        if name == "gather":
            return self._gather(params, inputs, shape)
        if name in _CONSTANTS:
            return trace.value(f"constant{len(trace.values)}", shape, Source.CONST)
        if name in ("reduce_window_max", "reduce_window_sum", "reduce_window", "cumsum"):
            return trace.add(Kind.POOL, name, inputs[:1], shape)
        if name in _STREAMS or name.startswith("scatter"):
            return trace.add(Kind.STREAM, name, inputs, shape)
        if name == "while" and _multiplies(params["body_jaxpr"].jaxpr):
            raise InputError("a loop (`lax.while_loop`) with matrix products: how often it runs isn't known; use "
                             "`lax.scan`", where=trace.where)
        return trace.add(Kind.OPAQUE, name, inputs, shape)

    def _slice(self, value: str, starts: Sequence[int], shape: Sequence[int], strides: Sequence[int] | None) -> str:
        for axis, (start, size) in enumerate(zip(starts, shape, strict=True)):
            value = self.trace.slice(value, axis, int(start), int(size), strides[axis] if strides else 1)
        return value

    def _dot(self, params: Mapping[str, Any], inputs: Sequence[str]) -> str:
        (left, right), (left_batch, right_batch) = params["dimension_numbers"]
        a, b = inputs
        a_labels = list(range(len(self.trace.shape(a))))
        b_labels = list(range(100, 100 + len(self.trace.shape(b))))
        for x, y in (*zip(left, right, strict=True), *zip(left_batch, right_batch, strict=True)):
            b_labels[y] = a_labels[x]
        batch = [a_labels[axis] for axis in left_batch]
        free_a = [a_labels[axis] for axis in range(len(a_labels)) if axis not in (*left, *left_batch)]
        free_b = [b_labels[axis] for axis in range(len(b_labels)) if axis not in (*right, *right_batch)]
        return self.trace.einsum(a, b, a_labels, b_labels, [*batch, *free_a, *free_b])

    def _conv(self, params: Mapping[str, Any], inputs: Sequence[str], shape: tuple[int, ...]) -> str:
        """Bring a convolution into the order batch, channels, spatial and back."""
        spec = params["dimension_numbers"]
        if params["batch_group_count"] != 1:
            return self.trace.add(Kind.OPAQUE, "conv_general_dilated", inputs, shape)
        x = self.trace.permute(inputs[0], spec.lhs_spec)
        weight = self.trace.permute(inputs[1], spec.rhs_spec)
        out = [shape[axis] for axis in spec.out_spec]
        made = self.trace.add(Kind.CONV, "conv", (x, weight), out, groups=params["feature_group_count"])
        back = [spec.out_spec.index(axis) for axis in range(len(out))]
        return self.trace.permute(made, back)

    def _gather(self, params: Mapping[str, Any], inputs: Sequence[str], shape: tuple[int, ...]) -> str:
        """A look-up of rows, `table[indices]`; every other gather is bound by memory too."""
        spec, table = params["dimension_numbers"], self.trace.shape(inputs[0])
        index = self.trace.shape(inputs[1])
        rows = (1, *table[1:])
        offset = tuple(range(len(index) - 1, len(index) - 1 + len(table) - 1))
        if tuple(params["slice_sizes"]) == rows and tuple(spec.start_index_map) == (0,) and index[-1:] == (1,) \
                and tuple(spec.collapsed_slice_dims) == (0,) and tuple(spec.offset_dims) == offset:
            return self.trace.add(Kind.GATHER, "embedding", (inputs[0], self.trace.view(inputs[1], index[:-1])), shape)
        return self.trace.add(Kind.STREAM, "gather", inputs, shape)


def _multiplies(jaxpr: Any) -> bool:
    """Whether a jaxpr has a matrix product, in whatever it calls too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            return True
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                found = getattr(inner, "jaxpr", inner)
                if hasattr(found, "eqns") and _multiplies(found):
                    return True
    return False


def flops_of(jaxpr: Any) -> int:
    """Return the FLOPs of the matrix products and convolutions of a jaxpr as it stands, its backward pass included."""
    lowering = _Lowering(Trace("jaxpr"))
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    for variable in (*inner.invars, *inner.constvars):
        lowering.input(variable, f"input{len(lowering.names)}", Source.INPUT)
    lowering.equations(inner.eqns)
    return sum(lowering.trace.flops(node) for node in lowering.trace.nodes)
