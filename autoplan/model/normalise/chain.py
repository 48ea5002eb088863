"""From operators in order to a chain of layers: cut, named within each layer, equal layers folded into classes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autoplan.model.graph import LayerClass, Op, Operand
from autoplan.model.normalise.cluster import layer_starts
from autoplan.model.normalise.draft import Draft
from autoplan.model.normalise.names import Finisher

ELEMENT_BYTES = 2  # of an activation; all cuts scale alike


def layers_of(drafts: list[Draft], finish: Finisher, numel: Mapping[str, int], keys: frozenset[str],
              ) -> tuple[tuple[LayerClass, ...], tuple[int, ...]]:
    """Return the layer classes, and for each layer in order the index of its class.

    numel: elements of each tensor at the traced sizes. keys: tensors that lead to attention's keys and values.
    """
    crossing = crossings(drafts)
    anonymous = [finish.op(draft, "", dict.fromkeys(draft.read, ""), {}, for_keys=keys) for draft in drafts]
    kinds = [hashlib.sha256(repr(op).encode()).hexdigest()[:16] for op in anonymous]
    starts = layer_starts(kinds, [draft.flops for draft in drafts],
                          [ELEMENT_BYTES * sum(numel[name] for name in names) for names in crossing],
                          [len(names) for names in crossing])
    starts = [start for start in starts if crossing[start] or start == 0]
    build = _Layers(drafts, finish, keys, [Cut(start, crossing[start]) for start in (*starts, len(drafts))], kinds)
    for index in range(len(starts)):
        build.add(index)
    return tuple(build.classes), tuple(build.layers)


def crossings(drafts: Sequence[Draft]) -> list[list[str]]:
    """Return, for a cut before each operator and after the last, the tensors made before it and read behind it, the
    latest last."""
    last_read = {name: index for index, draft in enumerate(drafts) for name in draft.read}
    result: list[list[str]] = [[]]
    live: dict[str, None] = {}
    for index, draft in enumerate(drafts):
        live[draft.tensor] = None
        live = {name: None for name in live if last_read.get(name, -1) > index}
        result.append(list(live))
    return result


@dataclass(frozen=True)
class Cut:
    """A cut before operator `start`. tensors: what crosses it, the residual stream last."""

    start: int
    tensors: list[str]

    @property
    def stream(self) -> str | None:
        """The latest tensor."""
        return self.tensors[-1] if self.tensors else None

    @property
    def beside(self) -> list[str]:
        """The tensors that are carried past it."""
        return self.tensors[:-1]


class _Layers:
    """Layers as they are found.

    A stream that is read again behind the next cut is carried from then on. Where the layer behind its cut is like the
    next one (each reads the stream and, say, the embedding), both leave the layer before already, by a `pass`; else
    the layer behind the cut hands it on by a `pass` of its own.
    """

    def __init__(self, drafts: list[Draft], finish: Finisher, keys: frozenset[str], cuts: list[Cut],
                 kinds: list[str]) -> None:
        self.drafts, self.finish, self.keys, self.cuts, self.kinds = drafts, finish, keys, cuts, kinds
        self.carried = _carried_names(cuts)
        streams = Counter(finish.operand(cut.stream, "").dims for cut in cuts if cut.stream)
        self.dims = streams.most_common(1)[0][0] if streams else ()
        self.classes: list[LayerClass] = []
        self.layers: list[int] = []
        self.owners: dict[str, str] = {}  # parameter key → class.parameter of its first reader

    def add(self, index: int) -> None:
        """Add the layer between cut `index` and the next."""
        before, after = self.cuts[index], self.cuts[index + 1]
        drafts = self.drafts[before.start:after.start]
        tensors = {name: self.carried[name] for name in before.beside}
        if before.stream is not None:
            tensors[before.stream] = "x"
        titles = titles_of(drafts, self.finish.names.of, first=index == 0, last=after.stream is None)
        titles = [self.carried[draft.tensor] if draft.tensor in after.beside else title
                  for draft, title in zip(drafts, titles, strict=True)]
        tensors |= {draft.tensor: title for draft, title in zip(drafts, titles, strict=True)}
        again = self._second_reads(index)
        kind = "layer" if before.stream and after.stream else "embedding" if after.stream else "head"
        owners = dict(self.owners)
        ops = []
        for position, (draft, title) in enumerate(zip(drafts, titles, strict=True)):
            ops.append(self._op(draft, title, tensors, owners, again.get(position, ())))
            for param in draft.params:  # a layer may read one twice
                owners.setdefault(param.key, f"{kind}.{param.name}")
        beside = [*before.beside, *after.beside]
        if self._twin(index + 1) and after.stream is not None:
            ops.append(self.finish.passed(after.stream, tensors[after.stream], self.carried[after.stream]))
            beside.append(after.stream)
        if before.stream in after.beside and not self._twin(index):
            ops.insert(0, self.finish.passed(before.stream, "x", self.carried[before.stream]))
        carried = tuple(self.finish.operand(name, self.carried[name]) for name in dict.fromkeys(beside))
        self._fold(LayerClass(kind, tuple(ops), self._stream(before.stream, "x"),
                              self._stream(after.stream, tensors[after.stream] if after.stream else ""), carried), kind)
        name = self.classes[self.layers[-1]].name
        for draft in drafts:
            for param in draft.params:
                self.owners.setdefault(param.key, f"{name}.{param.name}")

    def _stream(self, tensor: str | None, name: str) -> Operand | None:
        """Return the stream at a cut, by the names that most cuts have for its dims: it is one stream, though a layer
        may call the channels that it reads otherwise."""
        if tensor is None:
            return None
        operand = self.finish.operand(tensor, name)
        alike = len(operand.dims) == len(self.dims) and operand.dims[:2] == self.dims[:2]
        return replace(operand, dims=self.dims) if alike else operand

    def _twin(self, index: int) -> bool:
        """Whether the stream of a cut is carried beside itself: the layers on both sides of the next cut are alike."""
        if index + 2 >= len(self.cuts) or self.cuts[index].stream not in self.cuts[index + 1].beside:
            return False
        first, second, third = (cut.start for cut in self.cuts[index:index + 3])
        return self.kinds[first:second] == self.kinds[second:third]

    def _second_reads(self, index: int) -> dict[int, tuple[int, ...]]:
        """Return which inputs of which operators read the carried twin of a layer's stream: those that do in the next
        layer, which is alike."""
        if not self._twin(index):
            return {}
        following = self.drafts[self.cuts[index + 1].start:self.cuts[index + 2].start]
        return {position: tuple(number for number, name in enumerate(draft.read) if name == self.cuts[index].stream)
                for position, draft in enumerate(following)}

    def _fold(self, layer: LayerClass, kind: str) -> None:
        """Append a layer, as one of a known class where it is equal to one."""
        known = {one.key: index for index, one in enumerate(self.classes)}
        if layer.key not in known:
            alike = sum(one.name.rstrip("0123456789") == kind for one in self.classes)
            self.classes.append(replace(layer, name=f"{kind}{alike + 1}" if alike else kind))
        self.layers.append(known.get(layer.key, len(self.classes) - 1))

    def _op(self, draft: Draft, title: str, tensors: Mapping[str, str], owners: Mapping[str, str],
            again: tuple[int, ...]) -> Op:
        """Return an operator; what no operator makes (the model's inputs) isn't among its inputs.

        again: the inputs that it reads as carried.
        """
        kept = replace(draft, inputs=[read for read in draft.inputs if read.tensor in tensors])
        op = self.finish.op(kept, title, tensors, owners, for_keys=self.keys)
        inputs = tuple(replace(operand, tensor=self.carried[draft.read[number]]) if number in again else operand
                       for number, operand in enumerate(op.inputs))
        return replace(op, inputs=inputs)


def _carried_names(cuts: list[Cut]) -> dict[str, str]:
    """Return a name for each tensor that crosses a cut beside the stream: the lowest number that no other has in the
    layers on both sides of its cuts."""
    names: dict[str, str] = {}
    live: dict[str, int] = {}
    for cut in cuts:
        before, live = live, {name: number for name, number in live.items() if name in cut.beside}
        for name in cut.beside:
            if name not in live:
                taken = {*before.values(), *live.values()}
                live[name] = next(number for number in range(1, len(taken) + 2) if number not in taken)
                names[name] = f"carried{live[name]}"
    return names


def titles_of(drafts: Sequence[Draft], names: Mapping[int, str], *, first: bool, last: bool) -> list[str]:
    """Return a name for each operator of a layer, from what it does there; equal ones are numbered."""
    readers: dict[str, list[tuple[Draft, int]]] = {}
    for draft in drafts:
        for index, read in enumerate(draft.inputs):
            readers.setdefault(read.tensor, []).append((draft, index))
    roles: dict[str, str] = {}
    for draft in reversed(drafts):
        uses = readers.get(draft.tensor, [])
        if len({(id(reader), index) for reader, index in uses}) == 1:
            reader, index = uses[0]
            if reader.kind == "attention":
                roles[draft.tensor] = "qkv"[index]
            elif reader.kind in ("norm", "elementwise") and reader.tensor in roles and reader.function != "add":
                roles[draft.tensor] = roles[reader.tensor]
    gates = [draft for draft in drafts if draft.kind == "contraction" and draft.params
             and any(reader.kind == "elementwise" and reader.function != "add" and len(reader.inputs) > 1
                     for reader, _ in readers.get(draft.tensor, ()))]
    heads = {draft.tensor for draft in drafts if draft.kind == "attention"}
    titles = [_title(draft, roles, readers, gates, first, last) or _projection(draft, names, heads) for draft in drafts]
    return list(_numbered(titles, always=("norm", "add")))


def _title(draft: Draft, roles: Mapping[str, str], readers: Mapping[str, list[tuple[Draft, int]]],
           gates: list[Draft], first: bool, last: bool) -> str | None:
    role = roles.get(draft.tensor)
    next_kinds = {reader.kind for reader, _ in readers.get(draft.tensor, ())}
    if draft.kind == "norm":
        return f"norm_{role}" if role else "embedding_norm" if first else "final_norm" if last else "norm"
    if draft.kind == "contraction":
        if role:
            return role
        if next_kinds == {"loss"}:
            return "head"
        return ("gate", "up")[gates.index(draft)] if draft in gates and len(gates) == 2 else None
    if draft.kind == "elementwise":
        if draft.function == "rotary" and role:
            return f"rotary_{role}"
        return draft.function if draft.function in ("add", "position", "rotary") else "act"
    return draft.function if draft.kind == "stream" else draft.kind


def _projection(draft: Draft, names: Mapping[int, str], heads: set[str]) -> str:
    """Return the name of a product that has no other."""
    if heads.intersection(draft.read):
        return "o"
    called = {names.get(atom) for atom in draft.output}
    summed = {names.get(atom) for atom in draft.loop if atom not in draft.output}
    return "up" if "ffn" in called else "down" if "ffn" in summed else "projection" if draft.params else "product"


def _numbered(titles: Iterable[str], always: tuple[str, ...]) -> Iterable[str]:
    titles = list(titles)
    count: dict[str, int] = {}
    for title in titles:
        count[title] = count.get(title, 0) + 1
        yield f"{title}{count[title]}" if titles.count(title) > 1 or title in always else title
