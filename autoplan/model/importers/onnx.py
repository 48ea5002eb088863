"""ONNX files: the inference graph of a model becomes a model graph. Weights aren't read, only their shapes.

Shapes are found node by node with ONNX's own rules; integers that shapes are made of are computed on the way. A
symbolic dim gets a size: the batch two (and a fixed batch of one becomes two, so that it can be told from axes of size
one), the sequence the first of `SEQUENCES` that fits, past tokens none; `sizes` says others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoplan.errors import InputError
from autoplan.model.graph import ModelGraph
from autoplan.model.importers.onnx_ops import Lowering
from autoplan.model.normalise import normalise
from autoplan.model.normalise.trace import Source, Trace

BATCH, OTHER = 2, 64  # sizes of symbolic dims: the batch, any but the sequence
SEQUENCES = (128, 32, 8)  # of the sequence: the first that the model's table of positions allows
SMALL = 4096  # elements of a constant whose content may matter to shapes

_FLOATS = ("float", "double", "float16", "bfloat16", "float8e4m3fn", "float8e5m2")


def from_onnx(path: str | Path, sizes: Mapping[str, int] | None = None, name: str | None = None) -> ModelGraph:
    """Return the model graph of an ONNX file.

    sizes: of symbolic dims, by name. Raises InputError for a file that can't be read, an operator whose shapes aren't
    known, and a graph that can't be understood.
    """
    onnx = _onnx()
    where = str(path)
    try:
        model = onnx.load(where, load_external_data=False)
        model = onnx.inliner.inline_local_functions(model)
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", where=where) from None
    except Exception as error:
        raise InputError(f"no ONNX model: {' '.join(str(error).split())[:200]}", where=where) from None
    trace = _traced(onnx, model, where, dict(sizes or {}))
    if not trace.outputs:
        raise InputError("has no outputs", where=where)
    return normalise(trace, name or Path(where).stem, "onnx")


def _traced(onnx: Any, model: Any, where: str, sizes: dict[str, int]) -> Trace:
    """Return the graph, lowered, at the first sequence length that fits it."""
    for sequence in SEQUENCES:
        reader = _Reader(onnx, model, where, sizes, sequence)
        try:
            return reader.trace()
        except InputError:
            if not reader.chose or sequence == SEQUENCES[-1]:
                raise
    raise AssertionError("a sequence length fits or raises")


def _onnx() -> Any:
    try:
        import onnx
        import onnx.inliner
        import onnx.reference
    except ImportError:
        raise InputError("onnx isn't installed: pip install 'autoplan-parallel[onnx]'", where="from_onnx") from None
    return onnx


class _Reader:
    """Walks an ONNX graph: shapes and known integers of each node, then its lowering."""

    def __init__(self, onnx: Any, model: Any, where: str, sizes: dict[str, int], sequence: int) -> None:
        self.onnx, self.model, self.where, self.sizes, self.sequence = onnx, model, where, sizes, sequence
        self.chose = False  # whether a symbolic dim was given the length `sequence`
        self.versions = {entry.domain or "": entry.version for entry in model.opset_import}
        self.doubled = False  # whether a fixed batch of one was taken as two
        self.types: dict[str, Any] = {}
        self.known: dict[str, NDArray[Any]] = {}
        self.lowering = Lowering(Trace(where))

    def trace(self) -> Trace:
        """Return the whole graph, lowered."""
        graph = self.model.graph
        initial = {one.name for one in graph.initializer} | {one.values.name for one in graph.sparse_initializer}
        for tensor in graph.initializer:
            self._constant(tensor.name, tensor)
        shaped = {name for node in graph.node if node.op_type == "Reshape" for name in node.input[1:]}
        for value in graph.input:
            if value.name in initial:
                continue
            if value.name in shaped:
                raise InputError("the shape of a reshape is an input of the graph", where=self.where, key=value.name)
            self._input(value)
        for node in graph.node:
            own = self.onnx.NodeProto()
            own.CopyFrom(node)  # whose inputs may be changed
            self._node(own)
        self.lowering.trace.outputs = [self.lowering.names[one.name] for one in graph.output
                                       if one.name in self.lowering.names]
        return self.lowering.trace

    def _constant(self, name: str, tensor: Any) -> None:
        floating = self.onnx.TensorProto.DataType.Name(tensor.data_type).lower() in _FLOATS
        self.types[name] = self.onnx.helper.make_tensor_type_proto(tensor.data_type, tuple(tensor.dims))
        self.lowering.constant(name, tuple(tensor.dims), real=floating)
        if tensor.data_location == self.onnx.TensorProto.EXTERNAL:
            return
        if int(np.prod(tensor.dims)) <= SMALL:
            self.known[name] = self.onnx.numpy_helper.to_array(tensor)
        if len(tensor.dims) > 1 and tensor.dims[-1] == tensor.dims[-2]:
            self.lowering.mask(name, self.onnx.numpy_helper.to_array(tensor))

    def _input(self, value: Any) -> None:
        kind = value.type.tensor_type
        if not value.type.HasField("tensor_type"):
            raise InputError("isn't a tensor", where=self.where, key=value.name)
        shape = [self._size(value.name, index, dim) for index, dim in enumerate(kind.shape.dim)]
        if len(shape) > 1 and shape[0] == 1:
            shape[0], self.doubled = BATCH, True
        self.types[value.name] = self.onnx.helper.make_tensor_type_proto(kind.elem_type, shape)
        floating = self.onnx.TensorProto.DataType.Name(kind.elem_type).lower() in _FLOATS
        hint = any(word in value.name.lower() for word in ("mask", "position", "past", "cache"))
        source = Source.HINT if hint or (floating and len(shape) < 2) else Source.INPUT if floating else Source.TOKENS
        self.lowering.input(value.name, shape, source)

    def _size(self, name: str, index: int, dim: Any) -> int:
        if dim.HasField("dim_value"):
            return int(dim.dim_value)
        symbol = dim.dim_param
        if symbol in self.sizes:
            return self.sizes[symbol]
        text = symbol.lower()
        if "past" in text and "+" not in text:
            return 0
        if "batch" in text or (index == 0 and "seq" not in text):
            return BATCH
        if "seq" not in text and "past" not in text and index != 1:
            return OTHER
        self.chose = True
        return self.sequence

    def _node(self, node: Any) -> None:
        """Find the shapes of a node's outputs, compute them where they are small constants, and lower the node."""
        if node.op_type == "Constant":
            attribute = node.attribute[0]
            tensor = attribute.t if attribute.name == "value" else self.onnx.numpy_helper.from_array(
                np.array(self.onnx.helper.get_attribute_value(attribute)))
            self._constant(node.output[0], tensor)
            return
        unknown = next((name for name in node.input if name and name not in self.lowering.names), None)
        if unknown is not None:
            raise InputError(f"operator {node.op_type} reads what has no known shape", where=self.where, key=unknown)
        self._fit_batch(node)
        shapes = self._shapes(node)
        self._compute(node)
        attributes = {one.name: self.onnx.helper.get_attribute_value(one) for one in node.attribute}
        inputs = [(name, self.known.get(name)) if name else None for name in node.input]
        self.lowering.node(node, inputs, shapes, attributes, self.versions.get(node.domain, 1),
                           known=node.output[0] in self.known)

    def _fit_batch(self, node: Any) -> None:
        """Let a reshape to a shape with a fixed batch of one keep the batch of two."""
        if node.op_type != "Reshape" or node.input[1] not in self.known:
            return
        target, shape = self.known[node.input[1]], self._shape(node.input[0])
        if not self.doubled or shape is None or not target.size or 0 in target:
            return
        folded = -1 in target and shape[0] == BATCH and target[0] == 1  # the rest would take the batch in
        if folded or int(np.prod(shape)) == BATCH * int(np.prod(target)):
            name = f"{node.input[1]}/{node.name or node.output[0]}"
            self.known[name] = np.array([BATCH * target[0], *target[1:]], target.dtype)
            self.types[name] = self.types[node.input[1]]
            self.lowering.constant(name, (len(target),), real=False)
            node.input[1] = name

    def _shape(self, name: str) -> tuple[int, ...] | None:
        dims = self.types[name].tensor_type.shape.dim
        return tuple(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None

    def _shapes(self, node: Any) -> list[tuple[int, ...] | None]:
        """Return the shapes of a node's outputs, None for those that nothing reads."""
        if node.domain not in ("", "ai.onnx"):
            found = self.lowering.foreign(node, [self._shape(name) if name else None for name in node.input])
            if found is None:
                raise InputError(f"operator {node.domain}.{node.op_type}: its shapes aren't known", where=self.where,
                                 key=node.name or None)
            element = self.types[node.input[0]].tensor_type.elem_type
            self.types.update({name: self.onnx.helper.make_tensor_type_proto(element, one)
                               for name, one in zip(node.output, found, strict=True)})
            return [*found]
        try:
            schema = self.onnx.defs.get_schema(node.op_type, self.versions.get("", 1), "")
            data = {name: self.onnx.numpy_helper.from_array(self.known[name]) for name in node.input
                    if name in self.known}
            types = {name: self.types[name] for name in node.input if name in self.types}
            made = self.onnx.shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=list(self.model.opset_import),
                ir_version=self.model.ir_version)
        except Exception as error:
            raise InputError(f"operator {node.op_type}: {' '.join(str(error).split())[:200]}", where=self.where,
                             key=node.name or None) from None
        self.types.update(made)
        shapes: list[tuple[int, ...] | None] = []
        for index, name in enumerate(node.output):
            shape = self._shape(name) if name in made and made[name].tensor_type.HasField("shape") else None
            if shape is None and index == 0:
                raise InputError(f"operator {node.op_type}: the shape of {name} depends on data", where=self.where,
                                 key=node.name or None)
            shapes.append(shape)
        return shapes

    def _compute(self, node: Any) -> None:
        """Compute a node of small constants, and the shape of a tensor."""
        if node.op_type == "Shape":
            shape = self._shape(node.input[0]) or ()
            bounds = {one.name: one.i for one in node.attribute}
            self.known[node.output[0]] = np.array(shape[bounds.get("start", 0):bounds.get("end", len(shape))], np.int64)
            return
        if not node.input or not all(name in self.known for name in node.input if name):
            return
        if any(self.known[name].dtype.kind == "f" and self.known[name].size > 1 for name in node.input if name):
            return  # what is made of parameters stays so
        shapes = [self._shape(name) for name in node.output if name]
        if any(shape is None or int(np.prod(shape)) > SMALL for shape in shapes):
            return
        feed = {name: self.known[name] for name in node.input if name}
        inputs = [self.onnx.helper.make_value_info(name, self.types[name]) for name in feed]
        outputs = [self.onnx.helper.make_value_info(name, self.types[name]) for name in node.output if name]
        model = self.onnx.helper.make_model(self.onnx.helper.make_graph([node], "one", inputs, outputs),
                                            opset_imports=list(self.model.opset_import))
        try:
            results = self.onnx.reference.ReferenceEvaluator(model).run(None, feed)
        except Exception:  # what can't be computed here only stays unknown
            return
        names: Sequence[str] = [name for name in node.output if name]
        self.known.update({name: np.asarray(value) for name, value in zip(names, results, strict=True)})
