"""`module:function`: a model that a user's own code makes, on the command line."""

from __future__ import annotations

import importlib
import os
import sys

from autoplan.errors import InputError
from autoplan.model.graph import ModelGraph

FORMS = ("a function without arguments that returns a ModelGraph (made by from_jax, from_torch or from_onnx), a tuple "
         "of a JAX function and its abstract arguments, or a tuple of a PyTorch module and its example inputs")


def from_reference(reference: str) -> ModelGraph:
    """Return the model graph of `module:function`; the module is looked for in the working directory too.

    The function is called. It returns a model graph, or what `from_jax` or `from_torch` take: a tuple of a JAX function
    and its abstract arguments, or of a PyTorch module and its example inputs.
    Raises InputError where it can't be imported or called, or returns something else.
    """
    module_name, _, attribute = reference.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(module_name), attribute)()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{type(error).__name__}: {' '.join(str(error).split())}", where=reference,
                         allowed=FORMS) from None
    if isinstance(made, ModelGraph):
        return made
    if not isinstance(made, tuple) or not made or not callable(made[0]):
        raise InputError("makes no model", where=reference, found=type(made).__name__, allowed=FORMS)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(made[0], torch.nn.Module):
        from autoplan.model.importers.torch import from_torch

        return from_torch(*made, name=attribute)
    from autoplan.model.importers.jax import from_jax

    return from_jax(*made, name=attribute)
