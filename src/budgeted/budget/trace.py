"""What a module executes: its forward run once on tensors without data, written down operator by operator.

The forward runs under `FakeTensorMode`, so nothing is computed and no memory is used, and below it every
aten operator passes through a dispatch mode that notes its arguments, its outputs and the module that
called it. The list is a graph: from it follow prices (what every operator costs, and what the backward
pass costs for any set of trainable parameters) and block chains (which parameters act in which order).
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.autograd.function import BackwardCFunction
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from budgeted.budget.checkpointing import CheckpointedRegions, refusing_reentrant
from budgeted.budget.compiled import Uncompiled, is_compiled_wrapper
from budgeted.budget.refusals import CannotTrace, UnpricedBackward
from budgeted.budget.shortcuts import fake_like, shortcut
from budgeted.budget.value_checks import taken_as_true
from budgeted.errors import BudgetedError

_tracing: ContextVar[bool] = ContextVar("tracing", default=False)


# one at a time: torch keeps in one flag for all threads that a dispatch mode is on, and two would undo each other's
_one_at_a_time = threading.RLock()


def tracing() -> bool:
    """Is a trace running in this thread? Hooks that act on real steps stay out of it."""
    return _tracing.get()


# what these make does not depend, through a gradient, on what they are given
_WITHOUT_GRADIENT = frozenset(
    ("detach", "empty", "empty_like", "new_empty", "new_empty_strided", "zeros", "zeros_like", "new_zeros", "ones",
     "ones_like", "new_ones", "full", "full_like", "new_full", "fill", "zero", "bernoulli", "rand_like", "randn_like",
     "normal", "uniform", "sign", "floor", "ceil", "round", "argmax", "argmin", "argsort", "nonzero",
     "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "logical_not", "isnan", "isinf")
)  # fmt: skip

_DEVICE = torch.ops.prim.device.default


@dataclass(slots=True, eq=False)
class Value:
    """One tensor as it flows: its shape, where it came from, and what it may depend on."""

    shape: tuple[int, ...]
    floating: bool
    parameter: int | None = None  # index into Trace.parameters, if this is a parameter itself
    producer: int | None = None  # index of the operator that made it
    from_input: bool = False  # depends on the data, not on parameters and constants only

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
    checkpoint: int | None = None  # number of the checkpointed region that it lies in
    recomputed: bool = False  # whether it is run again when the backward reaches that region

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
    used as it is; no parameter, buffer or random generator changes. What other threads run meanwhile is not seen.
    """
    with _one_at_a_time:
        return _trace(model, inputs, keywords, loss)


def _trace(
    model: nn.Module,
    inputs: Sequence[Any],
    keywords: Mapping[str, Any] | None,
    loss: Callable[[Any], Tensor] | None,
) -> Trace:
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    keywords = dict(keywords or {})
    home = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))

    def like(tensor: Tensor) -> Tensor:
        device = home if tensor.is_meta else tensor.device  # a shape alone stands for a tensor beside the model
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)

    with fake:
        args, kwargs = pytree.tree_map_only(Tensor, like, (tuple(inputs), keywords))
    double = _stand_in(model, fake)
    recorder = Recorder(model, double, [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)])
    token = _tracing.set(True)
    at = "model"
    try:
        # whoever counts what is executed around us must not see this: nothing is
        with (
            _disable_current_modes(),
            refusing_reentrant(),
            taken_as_true(),
            torch.enable_grad(),
            fake,
            recorder.watching_modules(),
            recorder,
        ):
            outputs = double(*args, **kwargs)
            if loss is not None:
                at = "loss"
                outputs = loss(outputs)
    except BudgetedError:
        raise
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise CannotTrace(
            f"the forward of {type(model).__name__} depends on the values of its tensors ({error.func}): "
            "it has no price by shape, and no fixed chain of blocks"
        ) from error
    except Exception as error:
        shapes = ", ".join("x".join(map(str, t.shape)) for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor))
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if at == "loss":
            raise CannotTrace(
                f"the loss given for pricing fails on the output of {type(model).__name__}: {reason}; "
                "give loss=function(output) or loss=None"
            ) from error
        raise CannotTrace(
            f"{type(model).__name__} does not run on input {shapes}: {reason}; "
            "give an input of the right shape and dtype"
        ) from error
    finally:
        _tracing.reset(token)
        torch.clear_autocast_cache()  # or a later autocast would find weights without data
    return recorder.finish(outputs, type(model).__name__)


def _stand_in(model: nn.Module, fake: FakeTensorMode) -> nn.Module:
    """Modules of their own, without data: what the trace caches or counts stays out of the real model."""
    doubles: dict[int, nn.Module] = {}
    fakes: dict[int, Tensor] = {}

    def without_data(tensor: Tensor) -> Tensor:
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided or tensor._is_view():
            return tensor if isinstance(tensor, nn.Parameter) else fake.from_tensor(tensor)  # the mode converts it
        if id(tensor) not in fakes:
            fakes[id(tensor)] = found = fake_like(tensor, fake, tensor.requires_grad)
            found._is_param = isinstance(tensor, nn.Parameter)
        return fakes[id(tensor)]

    def double(module: nn.Module) -> nn.Module:
        if id(module) not in doubles:
            kind = Uncompiled if is_compiled_wrapper(module) else module.__class__
            copy = kind.__new__(kind)
            doubles[id(module)] = copy
            for name, value in vars(module).copy().items():  # another thread's forward may put something there
                if isinstance(value, MethodType) and value.__self__ is module:  # a forward that was put on the object
                    value = MethodType(value.__func__, copy)
                shallow = type(value) in (dict, list, set, OrderedDict)
                object.__setattr__(copy, name, value.copy() if shallow else value)
            copy._compiled_call_impl = None  # compiled code would run the module itself, not its double
            if kind is Uncompiled:
                vars(copy).pop("forward", None)
            for kind_of_tensor in ("_parameters", "_buffers"):
                own: dict[str, Tensor | None] = getattr(module, kind_of_tensor)
                fake_own = {name: None if tensor is None else without_data(tensor) for name, tensor in own.items()}
                object.__setattr__(copy, kind_of_tensor, fake_own)
            for name, child in module._modules.items():
                copy._modules[name] = None if child is None else double(child)
        return doubles[id(module)]

    return double(model)


class Recorder(TorchDispatchMode):
    def __init__(self, model: nn.Module, double: nn.Module, inputs: list[Tensor]) -> None:
        """`double` is what runs; a parameter of the model that it reads by another way than its modules counts too."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = Trace()
        self._names = {id(module): name for name, module in double.named_modules()}
        self._modules = dict(model.named_modules())
        self._stack: list[nn.Module] = []
        self._paths: list[str] = []
        self._values: dict[int, Value] = {}
        self._tensors: list[tuple[Value, Tensor]] = []  # ids stay valid only while the tensors live
        self._aliases: dict[int, list[Tensor]] = {}
        self._checkpoints = CheckpointedRegions()
        for (name, parameter), stands_in in zip(model.named_parameters(), double.parameters(), strict=True):
            value = Value(tuple(parameter.shape), True, parameter=len(self.trace.parameters))
            self.trace.parameters.append(parameter)
            self.trace.parameter_names.append(name)
            self._bind(parameter, value)
            self._bind(stands_in, value)
        for tensor in inputs:
            self._bind(tensor, Value(tuple(tensor.shape), _carries_gradient(tensor), from_input=True))
        if inputs and inputs[0].ndim:
            self.trace.batch = inputs[0].shape[0]

    @contextlib.contextmanager
    def watching_modules(self) -> Iterator[None]:
        """Note which module runs; the hooks are those of all modules, and of all threads."""
        starts: list[int] = []

        def enter(module: nn.Module, args: Any) -> None:
            if not tracing():
                return  # another thread's
            name = self._names.get(id(module))
            self._stack.append(module if name is None else self._modules[name])  # so that no double outlives the trace
            self._paths.append(name if name is not None else self._paths[-1] if self._paths else "")
            starts.append(len(self.trace.ops))

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            if not tracing():
                return
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
        if func is _DEVICE:  # asked several times for every operator
            return args[0].device
        kwargs = kwargs or {}
        namespace, _, name = func._schema.name.partition("::")
        if namespace in ("prim", "profiler"):  # questions about a tensor and marks, not work on it
            return func(*args, **kwargs)
        read: list[Value] = []

        def as_value(item: Any) -> Any:
            if isinstance(item, Tensor):
                read.append(self._value(item))
                return read[-1]
            return type(item)(map(as_value, item)) if isinstance(item, list | tuple) else item

        named = zip(func._schema.arguments, args, strict=False)
        arguments = {argument.name: as_value(item) for argument, item in named}
        arguments.update({key: as_value(item) for key, item in kwargs.items()})
        inputs = tuple(read)  # as they were before
        region = self._checkpoints.enter()
        output = (shortcut(name, args) or func)(*args, **kwargs)
        produced = [output] if isinstance(output, Tensor) else _tensors_in(output)
        from_input = any(value.from_input for value in inputs)
        name = name.removesuffix("_") if func._schema.is_mutable and name.endswith("_") else name
        op = Op(
            name=name,
            index=len(self.trace.ops),
            arguments=arguments,
            inputs=inputs,
            outputs=(),
            path=self._paths[-1] if self._paths else "",
            modules=tuple(self._stack),
            differentiable=torch.is_grad_enabled() and name not in _WITHOUT_GRADIENT,
            checkpoint=region,
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
                        _carries_gradient(tensor),
                        producer=op.index,
                        from_input=from_input,
                    ),
                )
            )
        op.outputs = (*outputs, *aliases)
        # a view that was overwritten leaves the rest of its base as it was, gradient and all
        op.differentiable = op.differentiable or (bool(aliases) and torch.is_grad_enabled())
        self.trace.ops.append(op)
        return output

    def _value(self, tensor: Tensor) -> Value:
        known = self._values.get(id(tensor))
        if known is None:  # a buffer or a constant made outside
            known = self._bind(tensor, Value(tuple(tensor.shape), _carries_gradient(tensor)))
        return known

    def _bind(self, tensor: Tensor, value: Value) -> Value:
        self._values[id(tensor)] = value
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

    def finish(self, outputs: Any, name: str) -> Trace:
        for _, tensor in self._tensors:
            if isinstance(tensor.grad_fn, BackwardCFunction):
                raise UnpricedBackward(
                    f"{name} uses the custom function {type(tensor.grad_fn).__name__.removesuffix('Backward')}, "
                    "whose backward has no price (torch.autograd.Function): write it with torch operators"
                )
        for op, recomputed in zip(self.trace.ops, self._checkpoints.recomputed(), strict=True):
            op.recomputed = recomputed
        self.trace.roots = [self._value(t) for t in output_tensors(outputs)]
        if not self.trace.roots:
            raise CannotTrace(f"{name} gives no tensor that a gradient could come from: return a floating-point tensor")
        self._values.clear()
        self._tensors.clear()
        self._aliases.clear()
        return self.trace


def _carries_gradient(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def output_tensors(outputs: Any) -> list[Tensor]:
    """The tensors of a model's output that a gradient could come from, in the order of `Trace.roots`."""
    return [tensor for tensor in _tensors_in(outputs) if _carries_gradient(tensor)]


def _tensors_in(item: Any) -> list[Tensor]:
    """The tensors in whatever a model returns: tuples, mappings, dataclasses, output objects."""
    if isinstance(item, Tensor):
        return [item]
    if isinstance(item, Mapping):
        return [t for value in item.values() for t in _tensors_in(value)]
    if isinstance(item, list | tuple):
        return [t for value in item for t in _tensors_in(value)]
    if dataclasses.is_dataclass(item):
        return [t for part in dataclasses.fields(item) for t in _tensors_in(getattr(item, part.name))]
    return [t for value in getattr(item, "__dict__", {}).values() for t in _tensors_in(value)]


def trace_call(function: Callable[[], Any]) -> list[Op]:
    """Write down the operators that a call executes, while executing it (for small things: optimizer steps)."""
    recorder = Recorder(nn.Module(), nn.Module(), [])
    with _one_at_a_time, recorder:
        function()
    return recorder.trace.ops
