"""What a module executes: its forward run once on tensors without data, written down operator by operator.

The forward runs under `FakeTensorMode`, so nothing is computed and no memory is used, and below it every
aten operator passes through a dispatch mode that notes its arguments, its outputs and the module that
called it. The list is a graph: from it follow prices (what every operator costs, and what the backward
pass costs for any set of trainable parameters) and block chains (which parameters act in which order).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from budgeted.errors import BudgetedError

_tracing: ContextVar[bool] = ContextVar("tracing", default=False)


def tracing() -> bool:
    """Is a trace running? Hooks that act on real steps stay out of it."""
    return _tracing.get()


class CannotTrace(BudgetedError):
    """The module cannot be run on tensors without data, so it cannot be priced."""


@dataclass(slots=True, eq=False)
class Value:
    """One tensor as it flows: its shape, where it came from, and what it may depend on."""

    shape: tuple[int, ...]
    floating: bool
    parameter: int | None = None  # index into Trace.parameters, if this is a parameter itself
    producer: int | None = None  # index of the operator that made it
    from_input: bool = False  # depends on the data, not on parameters and constants only
    requires_grad: bool = False  # as autograd saw it in the trace

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(slots=True, eq=False)
class Op:
    """One executed operator; `arguments` by schema name, with every tensor replaced by its `Value`."""

    name: str
    index: int
    arguments: dict[str, Any]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    path: str  # qualified name of the innermost module that called it, "" for the root
    modules: tuple[nn.Module, ...]  # the calling modules, outermost first
    differentiable: bool

    @property
    def out(self) -> Value:
        return self.outputs[0]

    def value(self, argument: str) -> Value | None:
        found = self.arguments.get(argument)
        return found if isinstance(found, Value) else None

    def tensor(self, argument: str) -> Value:
        found = self.arguments.get(argument)
        if not isinstance(found, Value):
            raise TypeError(f"operator {self.name} has no tensor argument {argument!r}")
        return found


@dataclass(slots=True)
class Trace:
    """The operators of one forward pass, in order, and what they work on."""

    ops: list[Op] = field(default_factory=list)
    parameters: list[nn.Parameter] = field(default_factory=list)
    parameter_names: list[str] = field(default_factory=list)
    roots: list[Value] = field(default_factory=list)  # what the backward pass starts from
    batch: int = 1
    calls: list[tuple[str, int, int]] = field(default_factory=list)  # (module path, first op, end op)

    def trainable(self) -> frozenset[int]:
        return frozenset(i for i, p in enumerate(self.parameters) if p.requires_grad)


def trace(
    model: nn.Module,
    inputs: Sequence[Any],
    keywords: Mapping[str, Any] | None = None,
    loss: Callable[[Any], Tensor] | None = None,
) -> Trace:
    """Write down what `loss(model(*inputs))` executes, without executing it.

    `inputs` are example tensors (only shape, dtype and device are used). The model's mode (train or eval) is
    used as it is; no parameter, buffer or random generator changes.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    keywords = dict(keywords or {})
    with fake:
        args, kwargs = pytree.tree_map_only(
            Tensor, lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device),
            (tuple(inputs), keywords),
        )  # fmt: skip
        # batch norm counts its batches in place: give the trace buffers of its own
        buffers: dict[str, Tensor] = {name: fake.from_tensor(buffer) for name, buffer in model.named_buffers()}
    recorder = _Recorder(model, [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)])
    token = _tracing.set(True)
    try:
        with torch.enable_grad(), fake, recorder.watching_modules(), recorder:
            outputs = torch.func.functional_call(model, buffers, args, kwargs)
            if loss is not None:
                outputs = loss(outputs)
    except BudgetedError:
        raise
    except Exception as error:
        shapes = ", ".join("x".join(map(str, t.shape)) for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor))
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CannotTrace(
            f"{type(model).__name__} does not run on input {shapes}: {reason}; "
            "give an input of the right shape and dtype"
        ) from error
    finally:
        _tracing.reset(token)
    return recorder.finish(outputs)


class _Recorder(TorchDispatchMode):
    def __init__(self, model: nn.Module, inputs: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = Trace()
        self._names = {id(module): name for name, module in model.named_modules()}
        self._stack: list[nn.Module] = []
        self._paths: list[str] = []
        self._values: dict[int, Value] = {}
        self._alive: list[Tensor] = []  # ids stay valid only while the tensors live
        self._tensors: list[tuple[Value, Tensor]] = []
        self._aliases: dict[int, list[Tensor]] = {}
        for name, parameter in model.named_parameters():
            value = Value(tuple(parameter.shape), True, parameter=len(self.trace.parameters))
            self.trace.parameters.append(parameter)
            self.trace.parameter_names.append(name)
            self._bind(parameter, value)
        for tensor in inputs:
            self._bind(tensor, Value(tuple(tensor.shape), tensor.is_floating_point(), from_input=True))
        if inputs and inputs[0].ndim:
            self.trace.batch = inputs[0].shape[0]

    @contextlib.contextmanager
    def watching_modules(self) -> Iterator[None]:
        starts: list[int] = []

        def enter(module: nn.Module, args: Any) -> None:
            self._stack.append(module)
            self._paths.append(self._names.get(id(module), self._paths[-1] if self._paths else ""))
            starts.append(len(self.trace.ops))

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self._stack.pop()
            self.trace.calls.append((self._paths.pop(), starts.pop(), len(self.trace.ops)))

        handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        namespace, _, name = func._schema.name.partition("::")
        if namespace in ("prim", "profiler"):  # questions about a tensor and marks, not work on it
            return func(*args, **kwargs)
        before = {id(t): self._value(t) for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        output = func(*args, **kwargs)

        def as_value(item: Any) -> Any:
            return before[id(item)] if isinstance(item, Tensor) else item

        arguments = {
            argument.name: pytree.tree_map(as_value, args[i])
            for i, argument in enumerate(func._schema.arguments)
            if i < len(args)
        }
        arguments.update({key: pytree.tree_map(as_value, item) for key, item in kwargs.items()})
        inputs = tuple(before[id(t)] for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor))
        produced = [t for t in pytree.tree_leaves(output) if isinstance(t, Tensor)]
        from_input = any(value.from_input for value in inputs)
        op = Op(
            name=name.removesuffix("_") if func._schema.is_mutable and name.endswith("_") else name,
            index=len(self.trace.ops),
            arguments=arguments,
            inputs=inputs,
            outputs=(),
            path=self._paths[-1] if self._paths else "",
            modules=tuple(self._stack),
            differentiable=torch.is_grad_enabled() and name != "detach",
        )
        outputs: list[Value] = []
        aliases: list[Value] = []
        for tensor in produced:
            if func._schema.is_mutable:
                aliases += self._overwrite(tensor, op.index, from_input)
            outputs.append(
                self._bind(
                    tensor,
                    Value(
                        tuple(tensor.shape),
                        tensor.is_floating_point(),
                        producer=op.index,
                        from_input=from_input,
                    ),
                )
            )
        op.outputs = (*outputs, *aliases)
        self.trace.ops.append(op)
        return output

    def _value(self, tensor: Tensor) -> Value:
        known = self._values.get(id(tensor))
        if known is None:  # a buffer or a constant made outside
            known = self._bind(tensor, Value(tuple(tensor.shape), tensor.is_floating_point()))
        return known

    def _bind(self, tensor: Tensor, value: Value) -> Value:
        self._values[id(tensor)] = value
        self._alive.append(tensor)
        self._tensors.append((value, tensor))
        self._aliases.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
        return value

    def _overwrite(self, tensor: Tensor, producer: int, from_input: bool) -> list[Value]:
        """An in-place operator changes every view of the same storage: they are new values from here on."""
        fresh = []
        for alias in self._aliases.get(tensor.untyped_storage()._cdata, ()):
            old = self._values[id(alias)]
            if alias is not tensor and old.parameter is None:
                value = Value(old.shape, old.floating, producer=producer, from_input=from_input or old.from_input)
                self._values[id(alias)] = value
                fresh.append(value)
        return fresh

    def finish(self, outputs: Any) -> Trace:
        for value, tensor in self._tensors:
            if self._values[id(tensor)] is value:  # not overwritten since
                value.requires_grad = bool(tensor.requires_grad)
        leaves = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor)]
        leaves += [
            t
            for item in pytree.tree_leaves(outputs)
            if hasattr(item, "__dict__") and not isinstance(item, Tensor)
            for t in pytree.tree_leaves(vars(item))
            if isinstance(t, Tensor)
        ]
        roots = [self._value(t) for t in leaves if t.is_floating_point()]
        self.trace.roots = roots
        self._values.clear()
        self._tensors.clear()
        self._alive.clear()
        self._aliases.clear()
        return self.trace


def trace_call(function: Callable[[], Any]) -> list[Op]:
    """Write down the operators that a call executes, while executing it (for small things: optimizer steps)."""
    recorder = _Recorder(nn.Module(), [])
    with recorder:
        function()
    return recorder.trace.ops
