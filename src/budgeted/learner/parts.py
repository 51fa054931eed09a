"""The parts of a learner, made by name or taken as they are."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from budgeted.budget.account import Account
from budgeted.errors import BudgetedError
from budgeted.freezing import FreezingPolicy, LayerFreezing, policy
from budgeted.learner.hardest import refuse_unless_drawn_alone
from budgeted.learner.optimizers import make_optimizer
from budgeted.learner.settings import OF_CLASSES, LearnerSettings, Settings
from budgeted.methods import METHODS, Method
from budgeted.network import Average, Network, SampledGradients
from budgeted.network.average import Averaged
from budgeted.network.norms import MeasuredNorms
from budgeted.network.rates import Rates
from budgeted.network.schedule_free import PointOfAverage, ScheduleFree
from budgeted.problems import Classification, DataFacts, Problem
from budgeted.replay import (
    CODECS,
    RETRIEVALS,
    SELECTIONS,
    Codec,
    Facts,
    Memory,
    Retrieval,
    Selection,
    Unlimited,
    bytes_per_slot,
    label_column,
)

if TYPE_CHECKING:
    from budgeted.learner.learner import Learner

_ANY = 2**40  # bytes of a memory whose limit is not known yet


def make_method(given: Method | type[Method] | str, settings: Mapping[str, Any]) -> Method:
    """A method of its own for one learner, by name, by class, or like the one given."""
    if isinstance(given, str):
        given = METHODS[given]
    if isinstance(given, Method):
        return dataclasses.replace(given, **settings)
    if isinstance(given, type) and issubclass(given, Method):
        try:
            return given(**settings)
        except TypeError as error:
            raise BudgetedError(f"method {given.name!r}: {error}") from error
    raise BudgetedError(f"{given!r} is no method: give a name such as 'al-sar', a class made from Method, or one of it")


def make_problem(data: DataFacts | Problem, model: nn.Module, settings: Settings, device: str) -> Problem:
    """The problem as given, or the classification of images with these facts."""
    if not isinstance(data, DataFacts):
        own, usual = settings.learner, LearnerSettings()
        for name in OF_CLASSES:
            if getattr(own, name) != getattr(usual, name):
                raise BudgetedError(f"learner.{name} is for samples that are classified: leave it out")
        return data
    return Classification(
        data,
        settings.augmentation,
        label_smoothing=settings.learner.label_smoothing,
        train_size=settings.learner.train_size,
        train_size_until=settings.learner.train_size_until,
        mirrored=settings.learner.mirrored,
        channels_last=_channels_last(model, settings.learner),
        device=device,
    )


class Parts:
    """Makes the parts of one learner."""

    account: type[Account] = Account
    network_type: type[Network] = Network
    memory_type: type[Memory] = Memory
    alike = False
    """whether the memory keeps one sample for all"""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.own = learner.settings.learner
        if learner.problem.own_loss and (learner.method.of_classes or not learner.method.plain()):
            does = "looks at" if learner.method.plain() else "has a loss of its own over"
            raise BudgetedError(
                f"method {learner.method.name!r} {does} the logits of classes, and {type(learner.problem).__name__} "
                "has the model's loss: choose vanilla, al, er or ewc"
            )

    def network(self, model: nn.Module, device: torch.device) -> Network:
        """A model at work for this learner, on the footing of every other; a method may ask for one more."""
        learner, own = self.learner, self.own
        if own.new_rows != "random" and learner.method.whole_head:
            raise BudgetedError(
                f"method {learner.method.name!r} has the rows of all classes from the start: leave learner.new_rows out"
            )
        layout = torch.channels_last if _channels_last(model, own) else torch.contiguous_format
        model = model.to(device, memory_format=layout)  # type: ignore[call-overload]
        example = learner.problem.example(2)
        optimizer = make_optimizer(own, model, example)
        freezing = LayerFreezing(
            model,
            self._policy(),
            () if isinstance(example, Mapping) else example,
            keywords=example if isinstance(example, Mapping) else None,
            loss=learner.problem.for_price if learner.method.plain() else "graph",
            optimizer=optimizer,
            granularity=own.granularity,
            always=[part.strip() for part in own.always.split(",") if part.strip()],
            batch_norm=own.batch_norm,
        )
        network = self.network_type(
            model,
            learner.account,
            freezing,
            optimizer,
            learner.problem.example,
            rates=self._rates(optimizer),
            autocast=own.autocast,
            average=make_average(own, model, optimizer, learner.seed),
            norms=MeasuredNorms(model) if own.norms == "memory" else None,
            seed=learner.seed,
            sample=lambda: SampledGradients(
                model,
                fraction=own.sampled_fraction,
                group=own.sampled_group,
                seed=learner.seed,
                exclude=[freezing.chain.head],
            ),
        )
        learner.problem.fits(network)
        return network

    def retrieval(self) -> Retrieval:
        learner = self.learner
        retrieval = self.retrieval_of(self.facts())
        self._suits("retrieval", learner.method.retrieval, retrieval)
        if self.own.candidates > 1:
            refuse_unless_drawn_alone(retrieval)
        if retrieval.wants_gradients and self.own.sampled_mode == "training":
            learner.network.sample_gradients()
        return retrieval

    def retrieval_of(self, facts: Facts) -> Retrieval:
        """One for such a learner."""
        found: Retrieval = RETRIEVALS.made(self.learner.method.retrieval, self.learner.settings.retrieval, facts)
        return found

    def facts(self, classes: int | None = None) -> Facts:
        learner = self.learner
        known = learner.problem.classes if classes is None else classes
        plain = learner.method.plain() and learner.problem.closed
        return Facts(known, lambda: len(learner.network.sampled), learner.batch_size, learner.stream_batch, plain)

    def selection(self) -> Selection:
        learner = self.learner
        unlimited = learner.slots is None and learner.budget.bytes is None
        if not unlimited and learner.method.selection == "unlimited":
            raise BudgetedError("selection `unlimited` needs a memory without end: give --unlimited instead of slots")
        if unlimited:
            return Unlimited()
        selection: Selection = SELECTIONS.made(learner.method.selection, learner.settings.selection)
        self._suits("selection", learner.method.selection, selection)
        return selection

    def _suits(self, kind: str, name: object, part: Retrieval | Selection) -> None:
        if part.of_classes and self.learner.problem.own_loss:
            raise BudgetedError(
                f"{kind} {name!r} looks at the logits of classes, which {type(self.learner.problem).__name__} does not "
                f"have: choose another {kind}"
            )

    def memory(self, limit: int | None = None) -> Memory:
        """With the processor, where samples are prepared; batches go to the device. `limit`: in bytes."""
        learner = self.learner
        sample, classes = learner.holding.columns(), learner.problem.classes
        beside = (label_column(classes), *learner.method.columns(classes), *learner.retrieval.columns)
        columns = (*sample, *beside)
        # one of its own for every memory
        codec: Codec = copy.deepcopy(CODECS.made(learner.method.codec, learner.settings.codec))
        held = codec.columns(sample)
        unsaid = learner.slots is None and learner.budget.bytes is not None
        if codec.varying:
            if learner.slots is not None:  # the room of so many samples as they are
                limit = min(learner.slots * bytes_per_slot(columns), limit or _ANY)
            return self.memory_type(columns, codec=codec, limit=limit or (_ANY if unsaid else None), alike=self.alike)
        slots = 1 if unsaid and limit is None else learner.slots
        if slots is not None and learner.budget.bytes is not None:  # no room is taken that must be given back at once
            slots = max(1, min(slots, learner.budget.bytes // bytes_per_slot((*held, *beside))))
        return self.memory_type(columns, None if limit else slots, codec=codec, limit=limit, alike=self.alike)

    def _rates(self, optimizer: Optimizer) -> Rates | None:
        compute = self.learner.budget.compute
        if self.own.schedule != "constant" and (
            self.learner.problem.samples is None or (compute is not None and compute.each)
        ):
            raise BudgetedError(
                f"learner.schedule={self.own.schedule} goes by the length of the stream: say how many samples there "
                "are (DataFacts.samples) under a total of compute, or keep it constant"
            )
        if self.own.schedule == "constant" and not self.own.warm_up:
            return None
        return Rates(optimizer, self.own.schedule, self.own.warm_up)

    def _policy(self) -> FreezingPolicy:
        name, given = self.learner.method.freezing, dict(self.learner.settings.freezing)
        if not isinstance(name, str):
            return copy.deepcopy(name)  # each learner has its own
        if name in ("random", "adaptive"):
            given.setdefault("seed", self.learner.seed)
        return policy(name, **given)


def make_average(settings: LearnerSettings, model: nn.Module, optimizer: Optimizer, seed: int) -> Averaged | None:
    if isinstance(optimizer, ScheduleFree):
        if settings.average != "none":
            raise BudgetedError("optimizer schedule-free keeps an average of its own: leave learner.average out")
        return PointOfAverage(model, optimizer)
    if settings.average == "none":
        return None
    return Average(
        model, decay=settings.average_decay, warm_up=settings.average_warm_up, precision=settings.average, seed=seed
    )


def _channels_last(model: nn.Module, settings: LearnerSettings) -> bool:
    return settings.channels_last and any(isinstance(module, nn.Conv2d) for module in model.modules())
