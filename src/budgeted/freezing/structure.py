"""Which layers a model is made of, to notice when one is added, taken away or replaced."""

from __future__ import annotations

from torch import nn


class Structure:
    """The tree of a model's modules as it was when `note` was called last."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.note()

    def note(self) -> None:
        below = [module._modules for module in self._model.modules()]
        self._leaves = [children for children in below if not children]
        self._parents = [children for children in below if children]
        self._children = self._now()

    def changed(self) -> bool:
        """Asked in every step, so it compares the children of the modules known instead of walking the tree."""
        return any(self._leaves) or self._now() != self._children

    def _now(self) -> list[tuple[nn.Module | None, ...]]:
        return [(*children.values(),) for children in self._parents]
