"""Compiled kernels where numba is at hand; the same functions, interpreted, where it isn't: slower, but right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])

_NO_NAN = {"nnan", "nsz"}  # no kernel makes NaN: minima may be vectorised

try:
    import numba

    HAVE_NUMBA = True
except ImportError:
    HAVE_NUMBA = False


def kernel(function: Function) -> Function:
    """Compile a function of arrays and numbers at its first call, and keep the result on disk for later processes."""
    return _compiled(function)


def part(function: Function) -> Function:
    """Compile a function that only kernels call: without the way in from Python, which takes long to compile."""
    return _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def _compiled(function: Function, **options: bool) -> Function:
    if not HAVE_NUMBA:
        return function
    njit: Any = numba.njit
    compiled: Any = njit(cache=True, error_model="numpy", fastmath=_NO_NAN, **options)(function)
    return cast(Function, compiled)
