"""Makes operators whose dims have the sizes of one stack of layers."""

from __future__ import annotations

from collections.abc import Mapping

from autoplan.model.graph import KV_SEQ, SEQ, STREAM, TOKEN_DIMS, Dim, Op, Operand, Param

Attr = tuple[str, int | float | bool | str]


class Wiring:
    """Makes operators. An operator's name is its output tensor's name.

    sizes: dim → size. seq_len: the stack's sequence length where it isn't the workload's. norm_kind: as in model files.
    """

    def __init__(self, sizes: Mapping[str, int | None], *, norm_kind: str = "rms", seq_len: int | None = None) -> None:
        self.sizes = {name: size for name, size in sizes.items() if size is not None}
        self.norm_kind = norm_kind
        if seq_len is not None:
            self.sizes |= {SEQ: seq_len, KV_SEQ: seq_len}

    def sized(self, **sizes: int | None) -> Wiring:
        """Return a wiring in which some dims have other sizes; those given as None are the workload's again."""
        return Wiring({**self.sizes, **sizes}, norm_kind=self.norm_kind)

    def op(self, name: str, kind: str, dims: tuple[str, ...], inputs: tuple[Operand, ...], output: tuple[str, ...],
           params: tuple[Param, ...] = (), grouped: tuple[tuple[str, str], ...] = (), attrs: tuple[Attr, ...] = (),
           density: float = 1.0) -> Op:
        """Return an operator with the loop dims `dims`."""
        sized = tuple(Dim(dim, self.sizes.get(dim)) for dim in dims)
        return Op(name, kind, sized, inputs, Operand(name, output, density), params, grouped, tuple(sorted(attrs)))

    def projection(self, name: str, x: str, into: tuple[str, ...], out: tuple[str, ...], *, bias: bool = False) -> Op:
        """`name[batch, seq, out] = Σ_into x[batch, seq, into] · weight[into, out] (+ bias[out])`."""
        params = (Param("weight", (*into, *out)), *((Param("bias", out, after_reduction=True),) if bias else ()))
        return self.op(name, "contraction", (*TOKEN_DIMS, *into, *out), (Operand(x, (*TOKEN_DIMS, *into)),),
                       (*TOKEN_DIMS, *out), params)

    def norm(self, name: str, x: str, dims: tuple[str, ...] = STREAM, *, width: tuple[str, ...] = ("hidden",),
             over: str | None = None, kind: str | None = None) -> Op:
        """A norm with parameters of `width`. over: the dims of its statistics, if they aren't those."""
        params = (Param("weight", width), Param("bias", width))
        count = {"layer": 2, "unscaled": 0}.get(kind or self.norm_kind, 1)
        if count == 0 and over is None:
            over = " ".join(width)
        return self.op(name, "norm", dims, (Operand(x, dims),), dims, params[:count],
                       attrs=(("over", over),) if over is not None else ())

    def elementwise(self, name: str, function: str, inputs: tuple[str, ...], dims: tuple[str, ...] = STREAM,
                    density: float = 1.0) -> Op:
        """An operator on every element of one or more tensors of the same dims."""
        return self.op(name, "elementwise", dims, tuple(Operand(x, dims, density) for x in inputs), dims,
                       attrs=(("function", function),), density=density)

    def add(self, name: str, *inputs: str) -> Op:
        """A residual add."""
        return self.elementwise(name, "add", inputs)
