"""What a part keeps between steps, declared once: bytes and checkpoints follow from the declaration.

    class Mine(Method):
        kept = ("fisher", "count")

names attributes. Each holds a tensor, an array, a plain value (numbers, text; lists, tuples, dictionaries of them), a
dictionary of tensors, a frozen dataclass of plain values, a generator of random numbers, or another part that keeps.
Bytes are those of the tensors and arrays, and eight for every number.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from budgeted.errors import BudgetedError

_PLAIN = "plain"  # the entry of a state that holds everything which is no tensor, as JSON


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a part inside a larger one."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def without_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `prefixed` gave, taken out of a larger state."""
    prefix = f"{prefix}."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


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

    def written(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """All of it: plain values, ready for JSON, and the tensors, which are not copied."""
        plain: dict[str, Any] = {}
        tensors: dict[str, Tensor] = {}
        for name in self.kept_names():
            value = getattr(self, name)
            if isinstance(value, Keeps):
                plain[name], own = value.written()
                tensors |= prefixed(name, own)
            elif _is_tensors(value):
                plain[name] = sorted(value)  # also which there are
                tensors |= prefixed(name, value)
            elif isinstance(value, Tensor):
                tensors[name] = value
            elif isinstance(value, np.ndarray):
                tensors[name] = torch.from_numpy(value.copy())
            else:
                plain[name] = _written(value)
        return plain, tensors

    def load_written(
        self, plain: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device | str = "cpu"
    ) -> None:
        """Take up what `written` gave; tensors go where those are that they replace, or to `device`."""
        self._refuse_if_incomplete(plain, tensors)
        for name in self.kept_names():
            value = getattr(self, name)
            if isinstance(value, Keeps):
                value.load_written(plain[name], without_prefix(name, tensors), device)
            elif isinstance(value, np.random.Generator):
                value.bit_generator.state = plain[name]
            elif isinstance(value, np.ndarray):
                setattr(self, name, tensors[name].numpy().copy())
            elif name in tensors:
                setattr(self, name, _placed(tensors[name], value, device))
            elif isinstance(value, dict) and isinstance(plain[name], list):  # names of tensors
                found = {key: _placed(tensors[f"{name}.{key}"], value.get(key), device) for key in plain[name]}
                setattr(self, name, found)
            else:
                setattr(self, name, _like(plain[name], value))

    def _refuse_if_incomplete(self, plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        missing = [name for name in self.kept_names() if name not in plain and name not in tensors]
        for name in self.kept_names():
            if isinstance(getattr(self, name), dict) and isinstance(plain.get(name), list):
                missing += [f"{name}.{key}" for key in plain[name] if f"{name}.{key}" not in tensors]
        if missing:
            raise BudgetedError(
                f"this is no saved state of {type(self).__name__}: it lacks {', '.join(missing[:3])}"
                f"{' and more' if len(missing) > 3 else ''}; load what was saved of the same part"
            )

    def state(self) -> dict[str, Tensor]:
        """All of it as tensors, for a checkpoint."""
        plain, tensors = self.written()
        # a convolution's bits depend on the layout of its weight, and a file keeps values alone
        strides = {name: tensors[name].stride() for name in sorted(tensors)}  # in one order, saved or loaded
        strides = {name: found for name, found in strides.items() if found != _usual(tensors[name])}
        if plain or strides:
            text = json.dumps({"values": plain, "strides": strides})
            tensors[_PLAIN] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        return tensors

    def load_state(self, state: Mapping[str, Tensor], device: torch.device | str = "cpu") -> None:
        """Take up what `state` gave; tensors go where those are that they replace, or to `device`."""
        read = json.loads(bytes(state[_PLAIN].tolist())) if _PLAIN in state else {"values": {}, "strides": {}}
        strides = read["strides"]
        tensors = {name: _laid_out(tensor, strides.get(name)) for name, tensor in state.items() if name != _PLAIN}
        self.load_written(read["values"], tensors, device)

    def snapshot(self) -> dict[str, Any]:
        """A copy of all of it, to go back to."""
        return copy.deepcopy({name: getattr(self, name) for name in self.kept_names()})

    def go_back(self, snapshot: Mapping[str, Any]) -> None:
        for name, value in copy.deepcopy(dict(snapshot)).items():
            setattr(self, name, value)


def _is_tensors(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, Tensor) for each in value.values())


def _usual(tensor: Tensor) -> tuple[int, ...]:
    """The strides of a tensor of this shape that is laid out row by row."""
    return torch.empty(tensor.shape, device="meta").stride()


def _laid_out(tensor: Tensor, strides: list[int] | None) -> Tensor:
    if strides is None:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _placed(found: Tensor, like: Any, device: torch.device | str) -> Tensor:
    """A copy where the tensor is that it replaces, laid out as it was."""
    there = like.device if isinstance(like, Tensor) else device
    return torch.empty_strided(found.shape, found.stride(), dtype=found.dtype, device=there).copy_(found)


def _bytes(value: Any) -> int:
    if isinstance(value, Keeps):
        return value.nbytes()
    if isinstance(value, np.random.Generator):
        return 48  # two numbers of sixteen bytes, two of eight
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
    if isinstance(value, np.random.Generator):
        return dict(value.bit_generator.state)
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
