"""From operators in order to a chain of layers: cut, named within each layer, equal layers folded into classes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from autoplan.model.graph import LayerClass, Op
from autoplan.model.normalise.cluster import layer_starts
from autoplan.model.normalise.draft import Draft
from autoplan.model.normalise.names import Finisher

ELEMENT_BYTES = 2  # of an activation; all cuts scale alike


def layers_of(drafts: list[Draft], finish: Finisher, numel: Mapping[str, int], keys: frozenset[str],
              ) -> tuple[tuple[LayerClass, ...], tuple[int, ...]]:
    """Return the layer classes, and for each layer in order the index of its class.

    numel: elements of each tensor at the traced sizes. keys: tensors that lead to attention's keys and values.
    """
    crossing = [crossing_at(drafts, index) for index in range(len(drafts) + 1)]
    anonymous = [finish.op(draft, "", dict.fromkeys(draft.read, ""), {}, for_keys=keys) for draft in drafts]
    kinds = [hashlib.sha256(repr(op).encode()).hexdigest()[:16] for op in anonymous]
    starts = layer_starts(kinds, [draft.flops for draft in drafts],
                          [ELEMENT_BYTES * sum(numel[name] for name in names) for names in crossing],
                          [len(names) for names in crossing])
    starts = [start for start in starts if crossing[start] or start == 0]
    ends = [*starts[1:], len(drafts)]
    build = _Layers(drafts, finish, keys, [crossing[start] for start in starts])
    for begin, end in zip(starts, ends, strict=True):
        build.add(begin, end, crossing[begin], crossing[end])
    return tuple(build.classes), tuple(build.layers)


def crossing_at(drafts: Sequence[Draft], index: int) -> list[str]:
    """Return the tensors that are made before operator `index` and read from it on, the latest last."""
    made = {draft.tensor: None for draft in drafts[:index]}
    needed = {name for draft in drafts[index:] for name in draft.read}
    return [name for name in made if name in needed]


class _Layers:
    """Layers as they are found. carried: tensors that cross a cut beside the latest, and what they are called there."""

    def __init__(self, drafts: list[Draft], finish: Finisher, keys: frozenset[str], cuts: list[list[str]]) -> None:
        self.drafts, self.finish, self.keys = drafts, finish, keys
        self.carried = _carried_names(cuts)
        self.classes: list[LayerClass] = []
        self.layers: list[int] = []
        self.owners: dict[str, str] = {}  # parameter key → class.parameter of its first reader

    def add(self, begin: int, end: int, before: list[str], after: list[str]) -> None:
        """Add the layer of the operators `begin` … `end` − 1, between the cuts that `before` and `after` cross."""
        drafts = self.drafts[begin:end]
        tensors = {name: self.carried[name] for name in before[:-1]}
        if before:
            tensors[before[-1]] = "x"
        titles = titles_of(drafts, self.finish.names.of, first=not before, last=not after)
        titles = [self.carried[draft.tensor] if draft.tensor in after[:-1] else title
                  for draft, title in zip(drafts, titles, strict=True)]
        tensors |= {draft.tensor: title for draft, title in zip(drafts, titles, strict=True)}
        ops = [self._op(draft, title, tensors) for draft, title in zip(drafts, titles, strict=True)]
        if before and before[-1] in after[:-1]:  # the stream of one layer is carried on beside that of the next
            name = self.carried[before[-1]]
            ops.insert(0, self.finish.passed(before[-1], "x", name))
            tensors[before[-1]] = name
        kind = "layer" if before and after else "embedding" if after else "head"
        carried = tuple(self.finish.operand(name, self.carried[name])
                        for name in dict.fromkeys((*before[:-1], *after[:-1])))
        layer = LayerClass(kind, tuple(ops), self.finish.operand(before[-1], "x") if before else None,
                           self.finish.operand(after[-1], tensors[after[-1]]) if after else None, carried)
        self._fold(layer, kind)
        name = self.classes[self.layers[-1]].name
        for draft in drafts:
            for param in draft.params:
                self.owners.setdefault(param.key, f"{name}.{param.name}")

    def _fold(self, layer: LayerClass, kind: str) -> None:
        """Append a layer, as one of a known class where it is equal to one."""
        known = {one.key: index for index, one in enumerate(self.classes)}
        if layer.key not in known:
            alike = sum(one.name.rstrip("0123456789") == kind for one in self.classes)
            self.classes.append(replace(layer, name=f"{kind}{alike + 1}" if alike else kind))
        self.layers.append(known.get(layer.key, len(self.classes) - 1))

    def _op(self, draft: Draft, title: str, tensors: Mapping[str, str]) -> Op:
        """Return an operator; what no operator makes (the model's inputs) isn't among its inputs."""
        kept = replace(draft, inputs=[read for read in draft.inputs if read.tensor in tensors])
        return self.finish.op(kept, title, tensors, self.owners, for_keys=self.keys)


def _carried_names(cuts: list[list[str]]) -> dict[str, str]:
    """Return a name for each tensor that crosses a cut beside the latest: the lowest number free where it lives."""
    names: dict[str, str] = {}
    live: dict[str, int] = {}
    for names_here in cuts:
        beside = names_here[:-1]
        live = {name: number for name, number in live.items() if name in beside}
        for name in beside:
            if name not in live:
                live[name] = next(number for number in range(1, len(beside) + 1) if number not in live.values())
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
