"""What a method is: one class, whose fields are its parts and its settings, and a few verbs.

    @METHODS.register("mine")
    @dataclass
    class Mine(Method):
        \"\"\"replay with a loss of its own\"\"\"

        selection: Named[Selection] = "reservoir"
        weight: float = 0.5

        def loss(self, step, logits):
            return cross_entropy(logits, step.labels) + self.weight * ...

A part is a name (ours, `package.module:NAME`, `file.py:NAME`) or an object; a run may replace any part that the method
does not define itself. What is kept between steps is declared in `kept`, what is kept in every slot in `columns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn

from budgeted.budget.kept import Keeps
from budgeted.errors import BudgetedError
from budgeted.freezing.policies import FreezingPolicy
from budgeted.limits import limited, refuse_outside_limits
from budgeted.methods.lent import LentToMethod
from budgeted.registry import Registry
from budgeted.replay import Codec, Column, Retrieval, Selection
from budgeted.replay.membership import Slots

T = TypeVar("T")
Named: TypeAlias = str | T
"""A part by its name, or the part itself."""
PartName = Literal["selection", "retrieval", "freezing", "codec"]


@dataclass(frozen=True)
class Step:
    """One training step's batch: the samples of the stream first, the replayed ones behind."""

    new: int
    """how many are of the stream"""
    slots: Slots
    """of the replayed ones"""
    inputs: Any
    """what the model was called with"""
    labels: Tensor
    """rows of the keys, which are rows of the head where classes are learned"""
    columns: Mapping[str, Tensor]
    """what the slots of the replayed ones hold"""
    samples: Any = None
    """the batch as it arrived or was stored, before it was varied"""


@dataclass
class Method(Keeps):
    """Trains on a cross-entropy from the memory alone: a method overrides what makes it different."""

    selection: Named[Selection] = "greedy-balanced"
    """which samples stay in the memory"""
    retrieval: Named[Retrieval] = "uniform"
    """which samples are replayed"""
    freezing: Named[FreezingPolicy] = "none"
    """which blocks rest"""
    codec: Named[Codec] = "raw"
    """what a slot holds of a sample"""
    stream_share: float = limited(0.0, "from 0 to 1")
    """share of a batch that is taken from the samples that just arrived; 0 trains from the memory alone"""

    usual: ClassVar[Mapping[str, str]] = {}
    """settings of the learner and of the parts that it is run with where nobody says others, as KEY=VALUE pairs"""
    needs_classes: ClassVar[bool] = False
    """whether it keeps something for every class, so that there must be no more of them than were declared"""
    whole_head: ClassVar[bool] = False
    """whether the head has a row for every declared class from the start (X-DER), instead of growing with them"""
    of_classes: ClassVar[bool] = False
    """whether it looks at the logits of classes, or makes other views of a picture, though its loss is the plain one"""
    needs_stream: ClassVar[bool] = False
    """whether a batch must have samples of the stream"""
    name: ClassVar[str] = ""
    """as it is typed; its registry gives it"""
    own: ClassVar[frozenset[PartName]] = frozenset()
    """parts that make the method what it is and cannot be replaced"""
    boundaries: ClassVar[bool] = False
    """whether it does something when a task ends; on a stream without tasks, after every fifth of it"""
    reshapes: ClassVar[bool] = False
    """whether it changes the network on the way, so that no other method can be a term over it"""
    recodes: ClassVar[bool] = False
    """whether what it stores is made by its own network, so that no second one can read it"""
    rests: ClassVar[str] = ""
    """what of the network it lets rest by design, in words; the frozen share is that of freezing policies alone"""
    trains: ClassVar[bool] = True
    """whether it trains while the stream runs (GDumb does not)"""
    leaves_out: ClassVar[bool] = False
    """whether `pick` is asked in every step: samples that it leaves out make the batch smaller, and are stored"""
    choices = 1
    """arrived samples that wait for one place in a batch; with more than one, `pick` says which take the places"""

    def __post_init__(self) -> None:
        refuse_outside_limits(self, "method.")

    _learner = cast("LentToMethod | None", None)  # no annotation: it is no setting

    @property
    def learner(self) -> LentToMethod:
        """The learner that the method is in."""
        if self._learner is None:
            raise BudgetedError(f"method {self.name!r} is in no learner yet: give it to one")
        return self._learner

    @learner.setter
    def learner(self, learner: LentToMethod) -> None:
        self._learner = learner

    # -- verbs -------------------------------------------------------------------------------------------------

    def model(self, model: nn.Module, example: Any) -> nn.Module:
        """The model as the learner is to train it, before anything is made of it: as it is given, or split, or inside
        another that grows when a task ends. `example`: inputs of two samples, without data."""
        return model

    def columns(self, classes: int | None) -> tuple[Column, ...]:
        """What it keeps in every slot."""
        return ()

    def begin(self, learner: LentToMethod) -> None:
        """The learner is built."""
        self.learner = learner

    def admits(self, sample: Any, row: int) -> Any | None:
        """What is stored and trained on for a sample that has arrived: itself, or one of the same class that it
        replaces in what the method keeps for itself; None: nothing."""
        return sample

    def pick(self, samples: Any, rows: Tensor) -> Tensor:
        """Which of the samples that wait (uint8; rows of the head) are in this step: asked if there are too many, or
        if `leaves_out` says so. Those of the last step are offered to the memory, or all."""
        return torch.arange(self.learner.stream_batch)

    def loss(self, step: Step, logits: Tensor) -> Tensor:
        """Of the batch: a scalar."""
        return self.learner.problem.loss(logits, step.inputs, step.labels)

    def after_backward(self, step: Step) -> None:
        """Gradients are there, parameters have not moved."""

    def after_step(self, step: Step, logits: Tensor) -> None:
        """Parameters have moved."""

    def stored(self, slot: int, place: int | None) -> None:
        """A sample has entered the memory: the one at `place` of the last stream batch, or one never trained on."""

    def end_task(self) -> None:
        """The stream goes over to other classes; on streams without tasks, a fifth of it has passed."""

    def before_prediction(self) -> None:
        """An evaluation comes: the last moment to train for it, charged as `evaluation_training`."""

    def respond(self, model: nn.Module, inputs: Any) -> Any:
        """What predictions are made from, in evaluation mode: what the model says, or what several say."""
        return self.learner.problem.respond(model, inputs)

    # -- growth ------------------------------------------------------------------------------------------------

    def grown(self) -> None:
        """The network has grown: a new row of the head, or new layers."""

    # -- what it is --------------------------------------------------------------------------------------------

    @classmethod
    def summary(cls) -> str:
        """One line for a list: the first of its docstring."""
        return (cls.__doc__ or "").strip().splitlines()[0]

    @classmethod
    def plain(cls) -> bool:
        """Whether its loss is the plain cross-entropy of the whole batch."""
        return cls.loss is Method.loss

    def with_parts(self, **parts: str | None) -> Self:
        """The method with other parts; None leaves a part as it is."""
        wanted = {part: name for part, name in parts.items() if name is not None and name != getattr(self, part)}
        for part in wanted:
            if part in self.own:
                raise BudgetedError(
                    f"method {self.name!r} defines its own {part} ({getattr(self, part)}): "
                    f"leave --{part} out, or choose another method"
                )
        return replace(self, **wanted)  # type: ignore[arg-type]


class _Methods(Registry[type[Method]]):
    """Methods know the name that they are registered under, or were given by."""

    def register(self, name: str):  # type: ignore[no-untyped-def]
        add = super().register(name)

        def named(kind: type[Method]) -> type[Method]:
            kind.name = name
            return add(kind)

        return named

    def _given(self, name: str) -> type[Method]:
        kind = super()._given(name)
        kind.name = name
        return kind


METHODS = _Methods("method", "methods", lambda: Method)

if TYPE_CHECKING:
    Behind = Method
else:  # for a class that stands before any method: no fields of its own, those of the method are kept
    Behind = object
