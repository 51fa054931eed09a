"""What is learned: what a sample and its target are, how the network grows for one, the loss, the answer, the score.

The loop knows none of that. It asks the problem for the key of a target (a class, a concept), by which the memory is
balanced and samples are drawn; for the inputs that the model is called with; for the loss of what comes back. One made
from `Problem` says at least `columns`, `inputs`, `example`, `loss`, `answer` and `score`.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from budgeted.budget.kept import Keeps
from budgeted.errors import BudgetedError
from budgeted.network import Inputs, Network, called
from budgeted.problems.batches import Sample, stacked
from budgeted.registry import MadeByName, Registry
from budgeted.replay import Column

if TYPE_CHECKING:
    from budgeted.streams import DatasetInfo


class Problem(MadeByName, Keeps, ABC):
    """What is learned. The fields of one that is a dataclass are its settings (`--set problem.NAME=VALUE`)."""

    classes: int | None = None
    """how many keys there will be, if known: their bytes are reserved; if not, slots are given up as they come"""
    samples: int | None = None
    """length of the stream, if known"""
    own_loss: ClassVar[bool] = False
    """whether the loss is made inside the model, so that no method can have another"""

    @cached_property
    def keys(self) -> list[Any]:
        """Those met so far, in order of first appearance: the key of row i."""
        return []

    @cached_property
    def _rows(self) -> dict[Hashable, int]:
        return {}

    # -- samples and targets -----------------------------------------------------------------------------------

    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """What one sample is made of, by name, shape and type."""

    def check(self, sample: Any) -> Sample:
        """The sample as the memory takes it; one that cannot be is refused, in one line that says what is wanted."""
        wanted = self.columns()
        parts = dict(sample) if isinstance(sample, Mapping) else {wanted[0].name: sample}
        if set(parts) != {column.name for column in wanted}:
            raise BudgetedError(
                f"give a sample's parts by name, {', '.join(c.name for c in wanted)}: got {', '.join(map(str, parts))}"
            )
        for column in wanted:
            given = parts[column.name]
            if isinstance(given, np.ndarray) and given.dtype.kind in "buif" and given.itemsize <= 8:
                given = parts[column.name] = torch.from_numpy(given.astype(given.dtype.newbyteorder("="), order="C"))
            if not isinstance(given, Tensor) or given.dtype != column.dtype or tuple(given.shape) != column.shape:
                what = "a sample" if len(wanted) == 1 else f"{column.name!r} of a sample"
                found = _described(given) if isinstance(given, Tensor) else repr(given)[:200]
                raise BudgetedError(f"{what} must be {_described(column)}, got {found}{_remedy(given, column)}")
        return parts if isinstance(sample, Mapping) else parts[wanted[0].name]

    def batch(self, samples: Any) -> Sample:
        """Samples as they are given together: a batch as it is, a list or an array of single ones put together."""
        if isinstance(samples, (list, tuple, np.ndarray)):
            return stacked([self.check(sample) for sample in samples], self.columns())
        if not isinstance(samples, (Tensor, Mapping)):
            raise BudgetedError(f"give samples as a batch or a list, got one {type(samples).__name__}: put it in [ ]")
        return samples

    def key(self, target: Any) -> Hashable:
        """What a target goes under in the memory: whole numbers and words as they are; 2.9 is not bent into one."""
        if isinstance(target, (Tensor, np.ndarray, np.generic)) and target.ndim == 0:
            target = target.item()
        found = _whole(target)
        if not _savable(found):
            raise BudgetedError(
                f"a label must be a whole number or a word, got {target!r}: number or name your classes"
            )
        if self.keys and isinstance(found, int) != isinstance(self.keys[0], int):
            raise BudgetedError(
                f"a label must be of the kind of the labels before it, such as {self.keys[0]!r}, got {target!r}"
            )
        return found

    def rows_of(self, targets: Sequence[Any]) -> list[int]:
        """Rows of the targets' keys, in order of first appearance; -1 for a key not met yet."""
        return [self._rows.get(_whole(target), -1) for target in targets]

    def row(self, key: Hashable) -> int | None:
        """Of a key that was met."""
        return self._rows.get(key)

    def meet(self, *keys: Hashable) -> int:
        """New keys get the next rows; the last of them."""
        for key in keys:
            self._rows[key] = len(self.keys)
            self.keys.append(key)
        return len(self.keys) - 1

    # -- the network's side ------------------------------------------------------------------------------------

    @abstractmethod
    def inputs(self, samples: Any, generator: np.random.Generator | None = None) -> Inputs:
        """What the model is called with for a batch of samples; with a generator, varied as training wants it."""

    def sized(self, network: Network, inputs: Any, share: float | None) -> Any:
        """Inputs of a training step, made smaller where training goes on less: it is run through the network, and
        charged. `share`: of the stream that has arrived, if its length is known."""
        return inputs

    def vary(self, samples: Any, generator: np.random.Generator) -> Any:
        """A batch of samples, varied as training wants it and still as they are stored, so that it may be varied again;
        as it is where nothing is varied."""
        return samples

    @abstractmethod
    def example(self, batch: int) -> Inputs:
        """Inputs for so many samples, without data."""

    def grow(self, network: Network, rows: int, generator: np.random.Generator) -> None:
        """There are so many keys now, one of them new: what the network needs for it."""

    def growth(self, network: Network, rows: int) -> int:
        """Bytes that `grow` to so many keys adds to the network."""
        return 0

    def fits(self, network: Network) -> None:
        """Refuse a network that cannot be grown for this problem."""

    @property
    def closed(self) -> bool:
        """Whether the loss is the plain cross-entropy of a linear head's outputs with the rows of the keys."""
        return False

    @property
    def for_price(self) -> Callable[[Any], Tensor] | Literal["graph"]:
        """From the outputs to a loss like this one, to price it; or its price is read off the graph of every loss."""
        return "graph"

    @abstractmethod
    def loss(self, outputs: Any, inputs: Any, rows: Tensor) -> Tensor:
        """Of a batch: a scalar. `rows` are those of the keys."""

    def respond(self, model: nn.Module, inputs: Inputs) -> Any:
        """What answers and scores are made from: the model's outputs, or a text that it generates."""
        return called(model, inputs)

    @abstractmethod
    def answer(self, outputs: Any) -> Any:
        """What the learner says to a batch."""

    @abstractmethod
    def score(self, outputs: Any, inputs: Any, rows: Tensor) -> Tensor:
        """How right each answer of a batch is, from 0 to 1."""

    def beside_score(self, outputs: Any, inputs: Any, rows: Tensor) -> dict[str, Tensor]:
        """What else is measured of each answer of a batch, by name; an evaluation's record has the sums."""
        return {}

    # -- for checks and rehearsals -----------------------------------------------------------------------------

    def small_model(self) -> nn.Module:
        """A small network for this problem: `budgeted check` trains it."""
        raise BudgetedError(f"{type(self).__name__} has no small_model(): give it one, so that it can be checked")

    def noise(self, generator: np.random.Generator) -> Sample:
        """A sample that means nothing, of the right kind."""
        drawn = {c.name: torch.from_numpy(generator.integers(0, 256, c.shape)).to(c.dtype) for c in self.columns()}
        return drawn if len(drawn) > 1 else next(iter(drawn.values()))

    # -- by name -----------------------------------------------------------------------------------------------

    @classmethod
    def of_data(cls, settings: Mapping[str, Any], info: DatasetInfo, model: nn.Module, device: str) -> Self:
        """One for a data set and a model, where these say something that is no setting: sizes, a tokenizer."""
        return cls.made(settings)


PROBLEMS: Registry[type[Problem]] = Registry("problem", "problems", lambda: Problem)


def _whole(target: Any) -> Hashable:
    """A whole number of any type as Python's; anything else as it is."""
    try:
        return operator.index(target)
    except TypeError:
        return target  # type: ignore[no-any-return]


def _savable(key: Any) -> bool:
    """Whole numbers, words, and tuples of them come back from a checkpoint as they were."""
    return all(map(_savable, key)) if isinstance(key, tuple) else isinstance(key, (int, str))


def _remedy(given: Any, wanted: Column) -> str:
    """What the likeliest mistakes are mended by."""
    if isinstance(given, (str, Path)):
        return ": open it first, as with PIL.Image.open(PATH)"
    if isinstance(given, (list, tuple)):
        return ": make it an array, as with numpy.array(…)"
    if isinstance(given, Tensor) and given.dtype.is_floating_point and wanted.dtype == torch.uint8:
        return ": give pixels from 0 to 255 as uint8, or say DataFacts(shape, dtype='float32')"
    return ""


def _described(thing: Tensor | Column) -> str:
    kind, shape = str(thing.dtype).removeprefix("torch."), "x".join(map(str, thing.shape))
    return f"{kind} of shape {shape}" if shape else f"a single {kind}"
