"""What a learner lends: to its parts, what they look at and run things with; to its user, predictions and accounts."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from budgeted.budget import Budget, BudgetSpent, Compute, Cost, Ledger, Purpose, Rule, format_bytes, format_compute
from budgeted.budget.account import Account
from budgeted.errors import BudgetedError
from budgeted.freezing import LayerFreezing
from budgeted.learner.bytes import bytes_by_item, working_bytes
from budgeted.learner.events import Events
from budgeted.learner.generators import Generators
from budgeted.learner.holding import hold_otherwise
from budgeted.learner.pace import Pace
from budgeted.learner.parts import Parts
from budgeted.learner.settings import Settings
from budgeted.methods import Holding, Method
from budgeted.models.initialise import DRAWN, draw
from budgeted.network import Inputs, Network
from budgeted.problems import Problem, Sample
from budgeted.problems.batches import at, joined, length, stacked
from budgeted.replay import Memory

T = TypeVar("T")
_CHUNK = 128  # samples whose outputs are computed together, aside from training


@dataclass(frozen=True)
class StepRecord:
    """What one training step did."""

    loss: float
    frozen: frozenset[int]
    frozen_share: float
    costs: Mapping[Purpose, Cost]


class Lends:
    """The learner's side that the loop does not need."""

    settings: Settings
    method: Method
    problem: Problem
    parts: Parts
    network: Network
    memory: Memory
    pace: Pace
    account: Account
    ledger: Ledger
    budget: Budget
    generators: Generators
    batch_size: int
    stream_batch: int
    frozen_share: float
    rested: dict[str, int]
    slots: int | None
    reserved: dict[str, int]
    """bytes that others hold for the learner, by what they are"""
    model_name: str | None
    events: Events
    holding: Holding

    def __init__(self) -> None:
        self.lock = threading.RLock()  # another thread may predict at any moment
        self._closed = False

    # -- to its user -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def outputs(self, samples: Any, batch: int = 256) -> Any:
        """What the network says to samples, as the method corrects it; may be asked at any moment."""
        samples = self.problem.batch(samples)
        with self.lock, self.network.predicting():
            found = []
            for start in range(0, length(samples), batch):
                chunk = at(samples, slice(start, start + batch))
                if start == 0:
                    self.problem.check(at(chunk, 0))
                if self.memory.codec.everywhere:
                    chunk = self.memory.codec.passed(chunk)
                found.append(self.method.respond(self.model, self.problem.inputs(chunk)))
            return joined(found)

    def logits(self, images: Any) -> Tensor:
        """Logits of a batch or a list of samples over the classes seen so far, in the order of `class_labels`."""
        if len(images) == 0:
            return torch.empty(0, len(self.class_labels))
        found: Tensor = self.outputs(images)
        return found

    def predict(self, samples: Any) -> Any:
        """Answers to samples, labels for images; may be asked at any moment, from another thread too."""
        with self.lock:
            if not self.problem.keys:
                raise BudgetedError("nothing was learned yet: call learn() before predict()")
            samples = self.problem.batch(samples)
            if length(samples) == 0:
                return self.problem.answer(torch.empty(0, len(self.class_labels)))
            return self.problem.answer(self.outputs(samples))

    def predict_proba(self, samples: Any) -> Tensor:
        """Probabilities of the classes seen so far, a row for each sample, in the order of `class_labels`."""
        with self.lock:
            if not self.problem.keys:
                raise BudgetedError("nothing was learned yet: call learn() before predict_proba()")
            return torch.softmax(self.logits(samples), 1)

    def scores(self, samples: Sample, labels: Sequence[Any]) -> Tensor:
        """How right the answers to a batch of samples are, from 0 to 1."""
        return self.judged(samples, labels)[0]

    @torch.no_grad()
    def judged(self, samples: Sample, labels: Sequence[Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Scores of the answers to a batch of samples, and what else the problem measures of each."""
        with self.lock, self.network.predicting():
            if self.memory.codec.everywhere:
                samples = self.memory.codec.passed(samples)
            inputs, rows = self.problem.inputs(samples), torch.tensor(self.problem.rows_of(labels))
            said = self.method.respond(self.model, inputs)
            return self.problem.score(said, inputs, rows), self.problem.beside_score(said, inputs, rows)

    def top_up(self, compute: Compute | str | None = None, memory: int | str | None = None) -> None:
        """Add to the budget: compute of the same unit, bytes, or both. Training that had ended goes on."""
        with self.working():
            more, before = Budget(compute, memory), self.budget
            if (more.compute and before.compute is None) or (more.bytes and before.bytes is None):
                raise BudgetedError("there is no limit that could be raised: a learner without a budget may spend all")
            if more.compute and before.compute and more.compute.unit != before.compute.unit:
                raise BudgetedError(f"the budget is {before.compute}: top it up in {before.compute.unit}")
            if more.bytes and before.bytes:
                if self.slots is not None:
                    raise BudgetedError(f"the memory has {self.slots} slots for good: add compute only")
                self.memory.widen(before.bytes + more.bytes - self.nbytes() + self.memory.nbytes())
                self.budget = Budget(before.compute, before.bytes + more.bytes)
            if more.compute and before.compute:
                raised = replace(before.compute, amount=before.compute.amount + more.compute.amount)
                self.budget = Budget(raised, self.budget.bytes)
                self.ledger.compute = raised
                self.pace.raised(raised)
            self.events.caught_up()
            self.events.tell("topped up", compute=str(self.budget.compute), bytes=self.budget.bytes)

    def __repr__(self) -> str:
        """Where it stands, and what is left."""
        compute, limit = self.budget.compute, self.budget.bytes
        spent = self.ledger.spent.under("real" if compute is None else compute.rule)
        told = format_compute(spent, "real" if compute is None else compute.rule, 3)
        held = format_bytes(self.nbytes(), 3)
        return (
            f"<Learner {self.model_name or type(self.model).__name__}, {self.method.name}: {self.arrived} samples, "
            f"{len(self.class_labels)} classes, {self.steps} steps, spent {told}"
            f"{'' if compute is None else f' of {compute}'}, holds {held}"
            f"{'' if limit is None else f' of {format_bytes(limit, 3)}'}"
            f"{', trains no more' if self.spent_up else ''}>"
        )

    def close(self) -> None:
        """Take every hook off the model: it is the user's again. Predictions still work."""
        self._closed = True
        self.network.close()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        with self.lock:
            if self._closed:
                raise BudgetedError("this learner was closed, and learns no more: make a new one, or load a saved one")
            yield

    def __copy__(self) -> NoReturn:
        raise BudgetedError("a learner cannot be copied, it would share its model: save it and load it again")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    def nbytes(self, rule: Rule = "real") -> int:
        """Bytes that persist between steps and belong to the method."""
        return sum(self.nbytes_by_item(rule).values())

    def nbytes_by_item(self, rule: Rule = "real") -> dict[str, int]:
        """The items of `nbytes`: what declared classes will need is reserved."""
        return bytes_by_item(self, rule)  # type: ignore[arg-type]

    def working_nbytes(self) -> dict[str, int]:
        """Memory beside the budget: optimizer state, gradients, indices."""
        return working_bytes(self)  # type: ignore[arg-type]

    @property
    def mean_frozen_share(self) -> float:
        """Share of the backward that was not run, over all steps."""
        return self.frozen_share / self.steps if self.steps else 0.0

    # -- by another name ---------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Training steps so far."""
        return self.ledger.steps

    @property
    def arrived(self) -> int:
        """Samples so far."""
        return self.ledger.arrived

    @arrived.setter
    def arrived(self, samples: int) -> None:
        self.ledger.arrived = samples

    @property
    def iterations(self) -> float | None:
        return self.pace.iterations

    @iterations.setter
    def iterations(self, iterations: float) -> None:
        self.pace.iterations = iterations

    @property
    def spent_up(self) -> bool:
        """Whether training has ended because the compute is spent."""
        return self.pace.spent_up

    @property
    def model(self) -> nn.Module:
        return self.network.model

    @property
    def head(self) -> nn.Linear:
        return self.network.linear_head

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.network.optimizer

    @property
    def freezing(self) -> LayerFreezing:
        return self.network.freezing

    @property
    def device(self) -> torch.device:
        return self.network.device

    @property
    def data(self) -> Any:
        """The facts of the data, where images are classified."""
        return getattr(self.problem, "data", self.problem)

    @property
    def class_labels(self) -> list[Any]:
        """Labels in order of first appearance: label of the head's row i."""
        return self.problem.keys

    def rows_of(self, labels: Sequence[Any]) -> list[int]:
        """Labels as the head's rows; -1 for a class not met yet."""
        return self.problem.rows_of(labels)

    @property
    def frozen_counts(self) -> list[int]:
        """Steps in which each block rested, stem first."""
        return [self.rested.get(name, 0) for name in self.block_names()]

    @property
    def boundaries(self) -> bool:
        """Whether it matters when a task ends."""
        return self.method.boundaries or self.network.grows

    def block_names(self) -> list[str]:
        """Module paths of the blocks, stem first, head last."""
        return [block.name for block in self.network.freezing.chain.blocks]

    # -- to its parts ------------------------------------------------------------------------------------------

    def generator(self, name: str) -> np.random.Generator:
        """The run's own generator for this purpose."""
        return self.generators[name]

    def inputs_of(self, samples: Sample, *, augment: bool = False) -> Any:
        """What the model is called with for samples; varied as in training if asked."""
        self.charge_codec()
        return self.holding.inputs(samples, self.generators["technique"] if augment else None, length(samples))

    def answers(
        self, purpose: Purpose, samples: Sample, *, augment: bool = False, as_predicted: bool = False
    ) -> Tensor:
        """Outputs for stored samples in evaluation mode, aside from training, charged to `purpose`; with the weights as
        they are, or with those that predictions are made with."""
        count = length(samples)
        chunks = (
            self.inputs_of(at(samples, slice(start, start + _CHUNK)), augment=augment)
            for start in range(0, count, _CHUNK)
        )
        return self.network.answers(purpose, chunks, count, as_predicted=as_predicted)

    def another_network(self) -> Network:
        """One more network like the learner's own, on the same footing, for a method to keep: with another draw of the
        weights, where layers can draw their own; hooks are not taken along."""
        model = _without_hooks(self.model)
        generator = torch.Generator().manual_seed(int(self.generators["technique"].integers(2**31)))
        for name, module in model.named_modules():
            if isinstance(module, DRAWN):
                draw(name, module, generator)
            elif callable(reset := getattr(module, "reset_parameters", None)):
                with torch.random.fork_rng(devices=[]):
                    torch.default_generator.manual_seed(generator.initial_seed())
                    reset()
        return self.parts.network(model, self.device)

    def practise(self, purpose: Purpose, samples: Sample, rows: Tensor) -> float:
        """A plain training step outside the stream, varied, nothing frozen, charged to `purpose`; its loss."""
        inputs: Inputs = self.inputs_of(samples, augment=True)
        rows = rows.to(self.device)
        return self.network.practise(purpose, inputs, lambda outputs: self.problem.loss(outputs, inputs, rows))

    def run(self, purpose: Purpose, function: Callable[..., T], *given: Any) -> T:
        """Run a function beside the model, without gradients, and charge what it executed."""
        return self.network.run(purpose, function, *given)

    def charge(self, purpose: Purpose, cost: Cost) -> None:
        """Charge what was run aside; with the step under way, or at once between steps."""
        self.account.charge(purpose, cost)

    def charge_codec(self, work: tuple[int, int] | None = None) -> None:
        """Charge the memory's codec for samples decoded and encoded, those since it was last asked if not given."""
        operations = self.memory.codec.operations(*(work or self.memory.take_work()))
        if operations:
            self.account.charge("retrieval", Cost(0, operations))

    def affords(self, cost: Cost) -> bool:
        """Would this fit into what is left of the compute?"""
        return self.account.affords(cost)

    @property
    def due(self) -> int:
        """Training steps that are due and were not run."""
        return self.pace.due

    def take_due(self, steps: int) -> None:
        """Somebody else than the stream runs these of the steps that are due, as far as there are so many."""
        self.pace.take(steps)

    def end_training(self) -> None:
        """What is left of the compute pays for no further training."""
        self.pace.end(self.arrived, self.steps)

    # -- what the loop asks of the budget ----------------------------------------------------------------------

    def refuse_undeclared(self, classes: int) -> None:
        """Before anything changes: what a method needs must be there; classes, if it keeps something of each."""
        if self.method.needs_stream and self.stream_batch == 0:
            raise BudgetedError(
                f"method {self.method.name!r} trains on samples of the stream, and a batch of {self.batch_size} has "
                "none: raise learner.batch_size, or leave method.stream_share out"
            )
        declared = self.problem.classes
        if self.method.needs_classes and (declared is None or classes > declared):
            raise BudgetedError(
                f"method {self.method.name!r} keeps something for every class, and {declared or 'no'} classes are "
                "declared: say how many there will be (DataFacts.classes)"
            )

    def paid(self, act: Callable[[], None]) -> None:
        """Do what a part wants to do between steps; if it cannot be paid, training ends."""
        self.memory.take_work()  # what others looked at is not the part's
        try:
            act()
            self.charge_codec()
        except BudgetSpent:
            self.end_training()

    def most(self, batch: int | None = None) -> int:
        """What a step on so many samples, or on a full batch, costs at most under the budget's rule; 0 without one."""
        if self.budget.compute is None:
            return 0
        return self.under(self.network.most(batch or self.batch_size))

    def under(self, cost: Cost) -> int:
        return 0 if self.budget.compute is None else cost.under(self.budget.compute.rule)

    def hold(self, holding: Holding, convert: Callable[[Sample], Sample]) -> None:
        """Samples are held otherwise from now on; what is stored and what waits is converted."""
        hold_otherwise(self, holding, convert)  # type: ignore[arg-type]

    def measure_norms(self) -> None:
        """On stored samples, as many of each class, if it can be paid."""
        norms = self.network.norms
        if norms is None or norms.fresh or len(self.memory) < 2:
            return
        slots = self._of_each_class(self.settings.learner.norm_samples)
        inputs = self.problem.inputs(self.memory.gather(slots).samples)
        read = Cost(0, self.memory.codec.operations(len(slots)))
        if self.affords(self.network.price(inputs) + read):
            self.network.measure_norms("evaluation_training", inputs)
            self.account.charge("evaluation_training", read)

    def start_row(self, row: int, sample: Sample) -> None:
        """Of a new class, from its first sample beside stored ones of the others."""
        if len(self.memory):
            slots = self._of_each_class(self.batch_size)
            others = self.memory.gather(slots[:: max(1, len(slots) // self.batch_size)]).samples
            first = self.memory.passed(stacked([self.holding.held(sample)]))
            self.network.start_row(row, self.inputs_of(joined([first, others])))

    def _of_each_class(self, samples: int) -> npt.NDArray[np.int64]:
        """Slots of about so many, as many of each class."""
        classes = np.flatnonzero(self.memory.counts)
        each = -(-samples // len(classes))
        return np.concatenate([self.memory.membership.members(int(row))[:each] for row in classes])


def _without_hooks(model: nn.Module) -> nn.Module:
    """A copy; hooks would take their owners along."""
    kinds = ("_forward_hooks", "_forward_pre_hooks")
    found = [(module, kind, getattr(module, kind)) for module in model.modules() for kind in kinds]
    for module, kind, hooks in found:
        setattr(module, kind, type(hooks)())
    try:
        return copy.deepcopy(model)
    finally:
        for module, kind, hooks in found:
            setattr(module, kind, hooks)
