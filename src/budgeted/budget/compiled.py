"""Compiled modules in a model: which ones there are, and what they are uncompiled.

A compiled module runs its backward as a whole: all gradients that it was compiled for, or none.
"""

from __future__ import annotations

from typing import Any

from torch import nn

INNER = "_orig_mod"


def is_compiled_wrapper(module: nn.Module) -> bool:
    """What `torch.compile(module)` returns; told by its name, since importing the class loads the compiler."""
    return any(kind.__name__ == "OptimizedModule" for kind in type(module).__mro__)


def is_compiled(module: nn.Module) -> bool:
    """Compiled by `torch.compile(module)` or in place, by `module.compile()`."""
    return is_compiled_wrapper(module) or getattr(module, "_compiled_call_impl", None) is not None


def compiled_paths(model: nn.Module) -> list[str]:
    """The outermost compiled modules."""
    found: list[str] = []
    for path, module in model.named_modules():
        if is_compiled(module) and not any(path == outer or path.startswith(f"{outer}.") for outer in found):
            found.append(path)
    return found


class Uncompiled(nn.Module):
    """Stands for the wrapper around a compiled module, and runs the module as it is."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, INNER)(*args, **kwargs)
