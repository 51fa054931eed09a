"""A model from the command line: a name of ours, or `package.module:function` of the user's own."""

from __future__ import annotations

import importlib
import os
import sys

from torch import nn

from budgeted import models
from budgeted.errors import BudgetedError


def build_model(text: str, classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    if ":" not in text:
        return models.build(text, classes=classes, input_shape=input_shape)
    module_name, _, function_name = text.partition(":")
    if os.getcwd() not in sys.path:  # as with `python -m`: a user's file next to where they stand
        sys.path.insert(0, os.getcwd())
    try:
        built = getattr(importlib.import_module(module_name), function_name)()
    except (ImportError, AttributeError, TypeError) as error:
        raise BudgetedError(
            f"cannot build {text!r}: {error}; give package.module:function, a function without arguments"
        ) from error
    if not isinstance(built, nn.Module):
        raise BudgetedError(f"{text!r} gave a {type(built).__name__}, not a torch module")
    return built


def parse_shape(text: str) -> tuple[int, int, int]:
    """Channels, height and width as in 3x32x32."""
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise BudgetedError(f"cannot read {text!r} as an input shape: write channels x height x width, as in 3x32x32")
    channels, height, width = (int(part) for part in parts)
    return channels, height, width
