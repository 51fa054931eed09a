"""Counting, under rule `real`, every operation that torch really dispatches.

Only eager execution is seen: a compiled kernel does not pass the dispatcher.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from budgeted.audit.call import Call, Counting, operator_name
from budgeted.audit.decompose import COSTS
from budgeted.audit.reference import is_composite
from budgeted.audit.rules import UncountedOperator, rule_of


class ExecutedOps(TorchDispatchMode):
    """Counts under rule `real` everything executed inside it; values are those of an unwatched run."""

    def __init__(self, *, strict: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.strict = strict
        self._phase: str | None = None
        self.reset()

    def reset(self) -> None:
        """Forget all counts."""
        self.total = 0
        self.by_operator: dict[str, int] = Counter()
        self.calls: dict[str, int] = Counter()
        self.by_phase: dict[str, int] = Counter()
        self.uncounted: set[str] = set()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Credit what runs inside to `by_phase[name]` as well; the innermost phase takes it."""
        outer, self._phase = self._phase, name
        try:
            yield
        finally:
            self._phase = outer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = rule_of(func)
        if rule is None and is_composite(func):
            # Seen whole only where autograd did not take it apart before us, as in inference mode.
            with self:
                return func.decompose(*args, **kwargs)
        if rule is None and self.strict:
            raise UncountedOperator(operator_name(func))
        out = func(*args, **kwargs)
        self._record(func, rule, args, kwargs, out)
        return out

    def _record(self, func: Any, rule: Counting | None, args: Any, kwargs: Any, out: Any) -> None:
        name, ops = operator_name(func), 0
        self.calls[name] += 1
        try:
            if rule is None:
                raise UncountedOperator(name)
            ops = rule(Call(func, args, kwargs, out, COSTS))
        except UncountedOperator as error:
            if self.strict:
                raise
            if name not in self.uncounted:
                warnings.warn(str(error), stacklevel=3)
            self.uncounted.add(name)
        self.total += ops
        self.by_operator[name] += ops
        if self._phase is not None:
            self.by_phase[self._phase] += ops


class ExecutedOnData(ExecutedOps):
    """Less what a trace runs on tensors without data: a new batch shape is priced inside its first step."""

    def _record(self, func: Any, rule: Counting | None, args: Any, kwargs: Any, out: Any) -> None:
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor)]
        if not any(isinstance(tensor, FakeTensor) or tensor.device.type == "meta" for tensor in tensors):
            super()._record(func, rule, args, kwargs, out)
