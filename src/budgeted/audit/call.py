"""One call of an operator as the counting rules see it, and what a rule is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

Operator: TypeAlias = "OpOverload[..., Any]"


class OperatorCosts(ABC):
    """Counts other work than the call itself, for rules that are defined by it."""

    @abstractmethod
    def of_operator(self, func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """What the reference decomposition of an operator costs on inputs like these."""

    @abstractmethod
    def of_running(self, work: Callable[[], object]) -> int:
        """What a function costs when it is run."""


class Call(NamedTuple):
    """One dispatched operator: what went in, what came out."""

    func: Operator
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    costs: OperatorCosts

    def arg(self, name: str) -> Any:
        return argument(self.func, self.args, self.kwargs, name)

    @property
    def base(self) -> str:
        return base_name(self.func)

    @property
    def source(self) -> int:
        return int(next(x for x in tree_leaves(self.args) if isinstance(x, Tensor)).numel())

    @property
    def result(self) -> int:
        return int(next(x for x in tree_leaves(self.out) if isinstance(x, Tensor)).numel())


Counting = Callable[[Call], int]


def nothing(_: Call) -> int:
    return 0


def argument(func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    """The named argument as given or by default; None where the operator has no such argument."""
    for position, declared in enumerate(func._schema.arguments):
        if declared.name == name:
            given = args[position] if position < len(args) else declared.default_value
            return kwargs.get(name, given)
    return None


def operator_name(func: Operator) -> str:
    return str(func._schema.name).replace("::", ".")


def base_name(func: Operator) -> str:
    """The operator's bare name, the same for its functional, in-place and out= variants."""
    name = str(func._schema.name).split("::")[1]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name
