"""Samples as people have them: tensors, arrays, pictures of any size, and lists of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from budgeted.errors import BudgetedError

if TYPE_CHECKING:  # who gives pictures has loaded it; nobody else shall wait for it
    from PIL import Image


def as_tensor(given: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    """A sample as a tensor of the declared shape, if it can be one without a guess; anything else as it is.

    A picture (PIL, or an array of height x width x channels) is made grey or coloured as the shape wants it, and
    squeezed to its height and width (bilinear, antialiased).
    """
    if not isinstance(given, Tensor):
        given = _from_elsewhere(given, shape)
    if isinstance(given, Tensor) and dtype.is_floating_point and given.dtype.is_floating_point:
        return given.to(dtype)
    return given


def _from_elsewhere(given: Any, shape: tuple[int, ...]) -> Any:
    from PIL import Image

    if isinstance(given, Image.Image):
        return picture(given, shape)
    if isinstance(given, np.ndarray):
        if given.shape != shape and given.dtype == np.uint8 and _is_picture(given, shape):
            return picture(Image.fromarray(given.squeeze(-1) if given.shape[-1] == 1 else given), shape)
        return torch.from_numpy(np.array(given))  # a copy: what the user writes later is not learned
    return given


def picture(image: Image.Image, shape: tuple[int, ...], *, crop: bool = False) -> Tensor:
    """uint8, channels x height x width: grey where there is one channel, squeezed to the size, or cut to its middle
    first."""
    from budgeted.streams.pixels import DEEP_MODES, resized

    if len(shape) != 3 or shape[0] not in (1, 3):
        raise BudgetedError(
            f"a picture has 1 or 3 channels, samples here are of shape {'x'.join(map(str, shape))}: give an array"
        )
    if image.mode in DEEP_MODES:
        raise BudgetedError(f"a picture of mode {image.mode} has more than 8 bits a channel: convert it to 8 bits")
    channels, height, width = shape
    return torch.from_numpy(np.array(resized(image, (channels, height, width), crop=crop)))


def is_one(given: Any, shape: tuple[int, ...]) -> bool:
    """Whether an array is a single sample, where several are wanted."""
    if not isinstance(given, np.ndarray) or given.shape[1:] in (shape, shape[1:]):
        return False
    return given.shape == shape or (given.ndim == 3 and given.dtype == np.uint8 and _is_picture(given, shape))


def _is_picture(array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> bool:
    """height x width, or height x width x channels; one whose channels come first is no picture of another size."""
    return len(shape) == 3 and (array.ndim == 2 or (array.ndim == 3 and array.shape[-1] in (1, 3, 4)))
