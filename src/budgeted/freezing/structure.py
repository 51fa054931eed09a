"""Which layers a model is made of, to notice when one is added, taken away or replaced."""

from __future__ import annotations

from torch import nn


class Structure:
    """The tree of a model's modules as it was when `note` was called last."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.note()

    def note(self) -> None:
        modules = list(self._model.modules())
        self._leaves = [module for module in modules if not module._modules]
        self._parents = [module for module in modules if module._modules]
        self._children = self._now()

    def changed(self) -> bool:
        """Asked in every step, so it compares the children of the modules known instead of walking the tree."""
        return any(module._modules for module in self._leaves) or self._now() != self._children

    def _now(self) -> list[tuple[nn.Module | None, ...]]:
        return [(*module._modules.values(),) for module in self._parents]
