"""Axes as products of atoms: which axis of which tensor is the same dim as which other.

An axis is a list of atoms, most significant first. A reshape splits atoms or joins them, an operator that lines two
axes up makes their atoms one (union-find with refinement). What is left are the dims of the model, whatever reshapes
and transposes were on the way, and although axes of equal size may be different dims.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Atoms = tuple[int, ...]


class AtomTable:
    """All atoms of a graph. An atom is known by a number; unions and splits are seen through `flat`."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._size: list[int] = []
        self._parts: dict[int, Atoms] = {}
        self._copy_of: dict[int, int] = {}
        self._cut_from: dict[int, Atoms] = {}

    def fresh(self, size: int) -> int:
        """Return a new atom."""
        self._parent.append(len(self._parent))
        self._size.append(size)
        return len(self._parent) - 1

    def copy(self, atom: int) -> int:
        """Return a new atom that stands for the same dim a second time in one tensor (keys beside queries)."""
        new = self.fresh(self.size(atom))
        self._copy_of[new] = atom
        return new

    def are_copies(self, a: int, b: int) -> bool:
        """Whether one of two atoms is a copy of the other."""
        a, b = self.root(a), self.root(b)
        pairs = {(self.root(new), self.root(old)) for new, old in self._copy_of.items()}
        return (a, b) in pairs or (b, a) in pairs

    def cut(self, size: int, whole: Atoms) -> int:
        """Return a new atom for a part of the axis `whole`."""
        new = self.fresh(size)
        self._cut_from[new] = self._cut_from.get(whole[0], whole) if len(whole) == 1 else whole
        return new

    def cut_from(self, atoms: Atoms) -> Atoms | None:
        """Return the axis that the axis `atoms` is a part of, if it was cut from one."""
        flat = self.flat(atoms)
        roots = {self.root(atom): whole for atom, whole in self._cut_from.items()}
        return self.flat(roots[flat[0]]) if len(flat) == 1 and flat[0] in roots else None

    def root(self, atom: int) -> int:
        """Return the number that stands for all atoms made one with `atom`."""
        while self._parent[atom] != atom:
            self._parent[atom] = self._parent[self._parent[atom]]
            atom = self._parent[atom]
        return atom

    def size(self, atom: int) -> int:
        """Return the entries of an atom."""
        return self._size[self.root(atom)]

    def flat(self, atoms: Iterable[int]) -> Atoms:
        """Return the undivided atoms that `atoms` are made of now."""
        result: list[int] = []
        for atom in atoms:
            root = self.root(atom)
            parts = self._parts.get(root)
            result.extend(self.flat(parts) if parts else (root,))
        return tuple(result)

    def product(self, atoms: Iterable[int]) -> int:
        """Return the entries of an axis."""
        return math.prod(self.size(atom) for atom in atoms)

    def split(self, atom: int, minor: int) -> Atoms:
        """Divide an atom into (size / minor, minor); return its parts."""
        root = self.root(atom)
        parts = (self.fresh(self.size(root) // minor), self.fresh(minor))
        self._parts[root] = parts
        return parts

    def unify(self, a: Sequence[int], b: Sequence[int]) -> bool:
        """Make two axes one, dividing atoms where needed; return whether they could be (a common refinement exists)."""
        left, right = list(self.flat(a)), list(self.flat(b))
        if self.product(left) != self.product(right):
            return False
        left, right = ([atom for atom in side if self.size(atom) > 1] or side[:1] for side in (left, right))
        while left and right:
            x, y = left[0], right[0]
            if x == y:
                left, right = left[1:], right[1:]
                continue
            small, large = sorted((self.size(x), self.size(y)))
            if small == large:
                self._union(x, y)
                left, right = left[1:], right[1:]
                continue
            if large % small:
                return False
            big = x if self.size(x) == large else y
            self.split(big, large // small)
            left, right = list(self.flat(left)), list(self.flat(right))
        return True

    def _union(self, a: int, b: int) -> None:
        a, b = self.root(a), self.root(b)
        if a != b:
            self._parent[max(a, b)] = min(a, b)

    def regroup(self, axes: Sequence[Atoms], shape: Sequence[int]) -> list[Atoms]:
        """Return the axes of a reshape to `shape`. Where the sizes have no common factors an axis is new."""
        source = [atom for axis in axes for atom in self.flat(axis)]
        result: list[Atoms] = []
        for size in shape:
            taken: list[int] = []
            if size == 1:
                if source and self.size(source[0]) == 1:
                    taken.append(source.pop(0))
            else:
                need = size
                while need > 1 and source:
                    atom = source[0]
                    have = self.size(atom)
                    if need % have == 0:
                        taken.append(source.pop(0))
                        need //= have
                    elif have % need == 0:
                        source[:1] = self.split(atom, have // need)
                    else:
                        return [(self.fresh(size),) for size in shape]
                taken = [atom for atom in taken if self.size(atom) > 1]
            result.append(tuple(taken) or (self.fresh(size),))
        return result

    def original(self, atom: int) -> int:
        """Return the atom that `atom` is a copy of, or itself."""
        root = self.root(atom)
        originals = {self.root(new): old for new, old in self._copy_of.items()}
        return self.root(originals[root]) if root in originals else root
