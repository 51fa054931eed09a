"""What a part keeps between steps, declared once: bytes and checkpoints follow from the declaration.

    class Mine(Method):
        kept = ("fisher", "count")

names attributes. Each holds a tensor, an array, a plain value (numbers, text, lists and tuples of them), a dictionary
of tensors, a frozen dataclass of plain values, or another part that keeps. Bytes are those of the tensors and arrays,
and eight for every number.
"""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

_PLAIN = "plain"  # the entry of a state that holds everything which is no tensor, as JSON


class Keeps:
    """A part that names in `kept` what it keeps between steps; those of its bases are kept as well."""

    kept: ClassVar[tuple[str, ...]] = ()

    def kept_names(self) -> list[str]:
        found: dict[str, None] = {}
        for kind in reversed(type(self).__mro__):
            found |= dict.fromkeys(vars(kind).get("kept", ()))
        return list(found)

    def nbytes(self) -> int:
        """Bytes that it keeps between steps."""
        return sum(_bytes(getattr(self, name)) for name in self.kept_names())

    def state(self) -> dict[str, Tensor]:
        """All of it as tensors, for a checkpoint."""
        tensors: dict[str, Tensor] = {}
        plain: dict[str, Any] = {}
        for name in self.kept_names():
            value = getattr(self, name)
            if isinstance(value, Keeps):
                tensors |= {f"{name}.{key}": tensor for key, tensor in value.state().items()}
            elif _is_tensors(value):
                plain[name] = sorted(value)  # also which there are
                tensors |= {f"{name}.{key}": tensor for key, tensor in value.items()}
            elif isinstance(value, Tensor):
                tensors[name] = value
            elif isinstance(value, np.ndarray):
                tensors[name] = torch.from_numpy(value.copy())
            else:
                plain[name] = _written(value)
        # a convolution's bits depend on the layout of its weight, and a file keeps values alone
        strides = {name: tensor.stride() for name, tensor in tensors.items() if tensor.stride() != _usual(tensor)}
        if plain or strides:
            text = json.dumps({"values": plain, "strides": strides})
            tensors[_PLAIN] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        return tensors

    def load_state(self, state: Mapping[str, Tensor], device: torch.device | str = "cpu") -> None:
        """Take up what `state` gave; tensors go where those are that they replace, or to `device`."""
        read = json.loads(bytes(state[_PLAIN].tolist())) if _PLAIN in state else {"values": {}, "strides": {}}
        plain, strides = read["values"], read["strides"]

        def tensor(name: str, like: Any) -> Tensor:
            there, found = like.device if isinstance(like, Tensor) else device, state[name]
            laid_out = strides.get(name, _usual(found))
            return torch.empty_strided(found.shape, laid_out, dtype=found.dtype, device=there).copy_(found)

        for name in self.kept_names():
            value = getattr(self, name)
            if isinstance(value, Keeps):
                prefix = f"{name}."
                own = {key.removeprefix(prefix): found for key, found in state.items() if key.startswith(prefix)}
                value.load_state(own, device)
            elif _is_tensors(value):
                setattr(self, name, {key: tensor(f"{name}.{key}", value.get(key)) for key in plain[name]})
            elif isinstance(value, np.ndarray):
                setattr(self, name, state[name].numpy().copy())
            elif name in state:
                setattr(self, name, tensor(name, value))
            else:
                setattr(self, name, _like(plain[name], value))


def _is_tensors(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, Tensor) for each in value.values())


def _usual(tensor: Tensor) -> tuple[int, ...]:
    """The strides of a tensor of this shape that is laid out row by row."""
    return torch.empty(tensor.shape, device="meta").stride()


def _bytes(value: Any) -> int:
    if isinstance(value, Keeps):
        return value.nbytes()
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(_bytes(each) for each in value.values())
    if dataclasses.is_dataclass(value):
        return sum(_bytes(getattr(value, item.name)) for item in dataclasses.fields(value))
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, deque) and value.maxlen is not None:
        return 8 * value.maxlen  # reserved: it will be full
    if isinstance(value, (list, tuple, deque, set, frozenset)):
        return sum(_bytes(each) for each in value)
    return 0 if value is None else 8


def _written(value: Any) -> Any:
    """As JSON takes it."""
    if dataclasses.is_dataclass(value):
        return [_written(getattr(value, item.name)) for item in dataclasses.fields(value)]
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (list, tuple, deque)):
        return [_written(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): _written(each) for key, each in value.items()}
    if isinstance(value, np.generic):
        return value.item()
    return value


def _like(found: Any, old: Any) -> Any:
    """What was written, as the attribute had it."""
    if dataclasses.is_dataclass(old):
        fields = dataclasses.fields(old)
        values = {item.name: _like(each, getattr(old, item.name)) for item, each in zip(fields, found, strict=True)}
        return type(old)(**values)  # type: ignore[misc]
    if isinstance(old, deque):
        return deque(found, old.maxlen)
    if isinstance(old, tuple):
        kept = old if len(old) == len(found) else (None,) * len(found)
        return tuple(_like(each, before) for each, before in zip(found, kept, strict=True))
    if isinstance(old, (set, frozenset)):
        return type(old)(found)
    return found
