"""The one loop: a learner that takes a stream, one labelled sample at a time, inside its budget.

    learner = Learner(model, method("al-sar"), data, slots=200, iterations=1.0, seed=1)
    for image, label in stream:
        learner.learn(image, label)
        ...
        learner.predict(images)

A sample arrives, is stored, and the iterations that it is due are run: retrieval draws a batch, the batch is augmented,
the model runs, the freezing decides and runs the backward, the optimizer steps, and all of it is charged.
"""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from budgeted.budget import NOTHING, Budget, Cost, Ledger, Purpose, Rule, total
from budgeted.budget.watched import watched
from budgeted.errors import BudgetedError
from budgeted.freezing import FreezingPolicy, FrozenStep, LayerFreezing, policy
from budgeted.learner.augment import Augmentation, Augmenter
from budgeted.learner.bytes import bytes_by_item, give_up_slots, refuse_class_without_room, working_bytes
from budgeted.learner.due import Due, Savings
from budgeted.learner.evaluated_gradients import price_in_evaluation, sampled_in_evaluation
from budgeted.learner.fused_step import FusedStep
from budgeted.learner.generators import Generators
from budgeted.learner.head import grow
from budgeted.learner.parts import make_method, make_optimizer, make_retrieval, make_schedule, make_selection
from budgeted.learner.practice import practice_price, practise
from budgeted.learner.settings import Settings
from budgeted.methods import Method, Step
from budgeted.replay import Column, Considers, Facts, Memory, Selection, Unlimited, label_column
from budgeted.replay.evaluation_mode import evaluating
from budgeted.replay.sampled_gradients import SampledGradients

log = logging.getLogger("budgeted")
T = TypeVar("T")


@dataclass(frozen=True)
class DataFacts:
    """What a learner must know of its data before the first sample."""

    input_shape: tuple[int, int, int]
    mean: Sequence[float]
    std: Sequence[float]
    flips: bool = False
    """whether a mirrored image keeps its label"""
    classes: int | None = None
    """how many classes there will be, if known: their bytes are reserved; if not, slots are given up as they come"""
    samples: int | None = None
    """length of the stream, if that is known"""


@dataclass(frozen=True)
class StepRecord:
    """What one training step did."""

    loss: float
    frozen: frozenset[int]
    frozen_share: float
    costs: Mapping[Purpose, Cost]


class Learner:
    """Learns from a stream within a budget of compute and bytes, and keeps the ledger."""

    def __init__(
        self,
        model: nn.Module,
        method: Method | type[Method] | str,
        data: DataFacts,
        *,
        slots: int | None = None,
        iterations: float = 1.0,
        budget: Budget | None = None,
        spend_savings: bool = False,
        settings: Settings | None = None,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        """
        model: ends in a linear layer, which gets a row for every new class.
        method: what to store, replay, freeze and minimise: a name, a class, or one like it (each learner has its own).
        slots: places in the memory; None stores everything.
        iterations: training steps per arriving sample; a fraction is saved up.
        budget: compute that the ledger refuses to exceed, bytes that `nbytes()` never exceeds.
        spend_savings: what freezing saves buys more iterations, spread over the rest of the stream.
        """
        self.settings = settings or Settings()
        own = self.settings.learner
        self.method = make_method(method, self.settings.method).with_parts(selection=own.selection)
        self.data = data
        self.slots = slots
        self.iterations = iterations
        self.seed = seed
        self.budget = budget or Budget()
        self.savings: Savings | None = None
        self.ledger = Ledger(self.budget.compute)
        self.generators = Generators(seed)
        self.device = torch.device(device)
        if spend_savings:
            if data.samples is None or self.budget.compute is None:
                raise BudgetedError(
                    "spend_savings spreads a compute budget over a stream: give both the budget and samples"
                )
            self.savings = Savings(self.budget.compute, data.samples)
        if not math.isfinite(iterations) or iterations < 0:
            raise BudgetedError(f"iterations per sample must not be negative or endless, got {iterations}")
        if slots is None and self.budget.bytes is not None:
            raise BudgetedError("a memory without end fits no byte budget: give slots, or leave the bytes out")
        if slots is not None and self.method.selection == "unlimited":
            raise BudgetedError("selection `unlimited` needs a memory without end: give --unlimited instead of slots")
        channels_last = own.channels_last and any(isinstance(module, nn.Conv2d) for module in model.modules())
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.model = model.to(self.device, memory_format=self.memory_format)  # type: ignore[call-overload]
        self.stream_batch = int(own.batch_size * self.method.stream_share)
        self.augmenter = Augmenter(
            self.settings.augmentation or Augmentation(flip=data.flips),
            data.mean,
            data.std,
            channels_last=channels_last,
        )
        self.optimizer = make_optimizer(own, self.model.parameters())
        steps = None if data.samples is None else max(1, int(data.samples * iterations))
        self.schedule = make_schedule(own, self.optimizer, steps)
        self._update = FusedStep(self.optimizer)
        self.scaler = torch.amp.GradScaler(self.device.type) if own.autocast == "float16" else None
        self.freezing = LayerFreezing(
            self.model,
            self._policy(seed),
            self.example(2),
            loss=self._cross_entropy_for_price if self.method.plain() else "graph",
            optimizer=self.optimizer,
            granularity=own.granularity,
            batch_norm=own.batch_norm,
        )
        head = self.model.get_submodule(self.freezing.chain.head)
        if not isinstance(head, nn.Linear):
            raise BudgetedError(
                f"the model's head {self.freezing.chain.head!r} is no linear layer: it cannot grow classes"
            )
        self.head = head
        self.facts = Facts(data.classes, lambda: len(self.sampled), own.batch_size, self.stream_batch)
        self.retrieval = make_retrieval(self.method.retrieval, self.settings.retrieval, self.facts)
        self._evaluated_gradients = self.retrieval.wants_gradients and own.sampled_mode == "evaluation"
        self._decided: Callable[[Sequence[nn.Parameter]], None] | None = None
        if self.retrieval.wants_gradients and not self._evaluated_gradients:
            self.sampled.start()
            self._decided = self.sampled.skip
        self.selection: Selection = Unlimited()
        if slots is not None:
            self.selection = make_selection(self.method.selection, self.settings.selection)
        columns = (
            Column("sample", data.input_shape, torch.uint8),
            label_column(data.classes),
            *self.method.columns(data.classes),
            *self.retrieval.columns,
        )
        # the memory stays with the processor, where samples are augmented; batches go to the device
        self.memory = Memory(columns, slots)
        self.memory.watch(self.retrieval)
        self.class_labels: list[int] = []  # labels in order of first appearance: label of the head's row i
        self._rows: dict[int, int] = {}
        self.arrived = 0
        self.steps = 0
        self.spent_up = False
        self.last: StepRecord | None = None
        self.frozen_counts = [0] * len(self.freezing.chain)
        self.frozen_share = 0.0
        self._waiting: list[tuple[Tensor, int]] = []
        self._stacked: tuple[Tensor, Tensor] | None = None  # what waits, as a batch
        self._picked: list[int] | None = None  # of what waits, those in the latest step, if the method chose
        self._due = Due(iterations)
        self._extras = 0  # the dearest so far of what nobody can say beforehand: draws, similarity, a method's own loss
        self._foreseen = 0  # what the step under way was said to cost at most, these aside
        self._step_under_way = False
        self._closed = False
        self._lock = threading.RLock()  # another thread may predict at any moment
        self._known_costs: dict[tuple[object, ...], Cost] = {}  # of what was run beside the model
        self._aside: dict[Purpose, Cost] = {}  # charged by parts of the step under way
        self.method.begin(self)
        give_up_slots(self)

    # -- the two verbs ---------------------------------------------------------------------------------------

    def learn(self, sample: Tensor, label: int) -> None:
        """Take one labelled sample (uint8, channels x height x width): store it and train as much as it is due."""
        with self._working():
            self._check(sample)
            self._learn(sample, self._row_of(_as_label(label)))

    def _learn(self, sample: Tensor, row: int) -> None:
        self.arrived += 1
        self._grant()
        if self.method.withholds(sample, row):
            return  # the iterations that it was due are run with the next sample
        if self.stream_batch:
            self._waiting.append((sample, row))
            if len(self._waiting) == self.stream_batch * self.method.choices:
                self.flush()
        else:
            self._consider(sample[None], torch.tensor([row]))
            self._store(sample, row)
            self._train()

    def flush(self) -> None:
        """Train on the samples that wait for a full stream batch, and store them; `learn` does so when enough wait."""
        with self._working():
            if not self._waiting:
                return
            before = self.steps
            self._train()
            trained = self.steps > before
            samples, rows = self._stack()
            offered = list(range(len(rows))) if self._picked is None else sorted(self._picked)
            self._picked = None
            self._consider(samples[offered], rows[offered])
            for place in offered:
                self._store(*self._waiting[place], place if trained else None)
            self._waiting.clear()
            self._stacked = None

    def end_task(self) -> None:
        """Say that the stream goes over to other classes; most methods need not know."""
        with self._working():
            self.flush()
            self.method.end_task()

    def before_prediction(self) -> None:
        """Let methods that train for an evaluation do so (BiC, GDumb); what they run is charged."""
        with self._working():
            self.method.before_prediction()

    @torch.no_grad()
    def logits(self, images: Tensor, batch: int = 256) -> Tensor:
        """Logits of uint8 images over the classes seen so far, in order of first appearance."""
        with self._lock, evaluating(self.model):
            seen = len(self.class_labels)
            if len(images) == 0:
                return torch.empty(0, seen)
            self._check(images[0])
            found = [
                self.model(self.augmenter.normalise(images[i : i + batch]).to(self.device))[:, :seen].float().cpu()
                for i in range(0, len(images), batch)
            ]
            return self.method.corrected(torch.cat(found))

    def predict(self, images: Tensor) -> Tensor:
        """Labels of uint8 images; may be asked at any moment."""
        with self._lock:
            if not self.class_labels:
                raise BudgetedError("nothing was learned yet: call learn() before predict()")
            return torch.tensor(self.class_labels)[self.logits(images).argmax(1)]

    def close(self) -> None:
        """Take every hook off the model: it is the user's again. Predictions still work."""
        self._closed = True
        self.freezing.remove()
        if "sampled" in vars(self):
            self.sampled.stop()
        self.method.close()

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise BudgetedError("this learner was closed, and learns no more: make a new one, or load a saved one")
            yield

    def __copy__(self) -> NoReturn:
        raise BudgetedError("a learner cannot be copied, it would share its model: save it and load it again")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    # -- one training step -------------------------------------------------------------------------------------

    def _train(self) -> None:
        while self._due.steps and not self.spent_up and self.method.trains:
            # batch norm wants two; a memory of one slot has no more to give
            if len(self.memory) + len(self._waiting) < min(2, (self.memory.capacity or 2) + self.stream_batch):
                return
            if not self._affordable():
                return
            self._due.take(1)
            self._step()

    def _step(self) -> None:
        own = self.settings.learner
        self._step_under_way = True
        arrived, rows = self._arrived()
        if self.retrieval.wants_stream:
            self.retrieval.meet(self, arrived, rows)
        slots = self.retrieval.draw(self.memory, own.batch_size - len(rows), self.generators["retrieval"])
        drawn = self.memory.gather(slots)
        samples, labels = drawn.samples, drawn.labels
        if len(rows):
            samples, labels = torch.cat([arrived, samples]), torch.cat([rows, labels])
        images = self.augmenter(samples, self.generators["augmentation"]).to(self.device)
        labels = labels.to(self.device)
        step = Step(len(rows), slots, images, labels, drawn.columns)

        if not self.model.training:
            self.model.train()
        for parameter in self._parameters():  # as zero_grad does, which takes a tenth of a small model's step
            parameter.grad = None
        with self._autocast():
            logits = self.model(images)
            loss = self._loss(logits, labels) if self.method.plain() else self.method.loss(step, logits)
        closed = (logits, labels) if self._plain else (None, None)
        if self.data.samples is not None:
            self.freezing.share = self.arrived / self.data.samples
        done = self.freezing.backward(loss, *closed, decided=self._decided, scaler=self.scaler)
        self.method.after_backward(step)
        similarity = self._observe(step, drawn.labels)
        if not self._pays(done, similarity):
            return
        if self.scaler is None:
            self._update()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.schedule is not None:
            self.schedule.step()

        self.method.after_step(step, logits.detach())
        self._record(done, similarity, step)

    def _observe(self, step: Step, drawn: Tensor) -> int:
        """Show the retrieval the gradients of what it drew; operations of reading them."""
        if not self.retrieval.wants_gradients:
            return 0
        evaluated = sampled_in_evaluation(self, step.images, step.labels) if self._evaluated_gradients else None
        collected = evaluated or self.sampled.take()
        scale = float(self.scaler.get_scale()) if self.scaler is not None and evaluated is None else 1.0
        self.retrieval.observe(collected.values[step.new :] / scale, collected.present, drawn)
        return self.sampled.price(collected.present)

    def _pays(self, done: FrozenStep, similarity: int) -> bool:
        """All that was run so far, and the update: is it within the budget? If not, no weight moves."""
        if self.budget.compute is None:
            return True
        beside = Cost(0, similarity + self.retrieval.price()) + total(self._aside.values())
        if self.ledger.affords(total(done.costs.values()) + beside):
            return True
        for parameter in self._parameters():
            parameter.grad = None
        executed: dict[Purpose, Cost] = {name: cost for name, cost in done.costs.items() if name != "optimizer"}
        if self.ledger.affords(total(executed.values())):  # it was run, though for nothing
            self.ledger.charge(executed, steps=0)
        self._aside.clear()
        self._step_under_way = False
        self.end_training()
        return False

    def _arrived(self) -> tuple[Tensor, Tensor]:
        """The samples of the stream in this step: what waits, or what the method picks of it."""
        samples, rows = self._stack()
        if len(rows) <= self.stream_batch:
            return samples, rows
        picked = self.method.pick(samples, rows)
        self._picked = picked.tolist()
        return samples[picked], rows[picked]

    def _stack(self) -> tuple[Tensor, Tensor]:
        """What waits, put together once for all steps on it."""
        if self._stacked is None:
            rows = torch.tensor([row for _, row in self._waiting], dtype=torch.int64)
            none = torch.empty(0, *self.data.input_shape, dtype=torch.uint8)
            self._stacked = torch.stack([sample for sample, _ in self._waiting]) if self._waiting else none, rows
        return self._stacked

    def _parameters(self) -> Iterator[nn.Parameter]:
        for group in self.optimizer.param_groups:
            yield from group["params"]

    def _record(self, done: FrozenStep, similarity: int, step: Step) -> None:
        costs: dict[Purpose, Cost] = dict(done.costs)
        draw = self.retrieval.price()
        self.charge("similarity", Cost(0, similarity))
        self.charge("retrieval", Cost(0, draw))
        self.charge("backward", Cost(0, self.method.operations(step)))
        for purpose, cost in self._aside.items():
            costs[purpose] = costs.get(purpose, NOTHING) + cost
        self._aside.clear()
        self._step_under_way = False
        self.ledger.charge(costs)
        self.steps += 1
        if self.budget.compute is not None:
            rule = self.budget.compute.rule
            if self.savings is not None:
                self.savings.note(total(costs.values()).under(rule), self._most(len(step.labels), rule))
            beyond = total(costs.values()).under(rule) - self._foreseen
            self._extras = max(self._extras, Cost(0, similarity + draw).under(rule), beyond)
        for block in done.frozen:
            self.frozen_counts[block] += 1
        self.frozen_share += done.frozen_share
        self.last = StepRecord(done.loss, done.frozen, done.frozen_share, costs)

    @property
    def _plain(self) -> bool:
        """Is the loss the plain cross-entropy, so that the feature gradient has its closed form?"""
        return self.method.plain() and self.settings.learner.label_smoothing == 0

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, label_smoothing=self.settings.learner.label_smoothing)

    def _cross_entropy_for_price(self, logits: Tensor) -> Tensor:
        return self._loss(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        kind = self.settings.learner.autocast
        if kind == "none":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, getattr(torch, kind))

    # -- the budget --------------------------------------------------------------------------------------------

    def _grant(self) -> None:
        """Iterations that this sample is due: the plan's, and what the savings pay for."""
        iterations = self.iterations
        if self.savings is not None:
            rule = self.savings.compute.rule
            most = self._most(self.settings.learner.batch_size, rule)
            iterations += self.savings.iterations(self.arrived - 1, self.ledger.spent.under(rule), most)
        self._due.grant(max(0.0, iterations))

    def _most(self, batch: int, rule: Rule) -> int:
        return self.freezing.most(self.example(batch)).under(rule)

    def _affordable(self) -> bool:
        """Can the step that comes be paid, whatever it will freeze? If not, training ends here, once and for all."""
        if self.budget.compute is None:
            return True
        rule = self.budget.compute.rule
        new = min(len(self._waiting), self.stream_batch)
        batch = new + min(self.settings.learner.batch_size - new, len(self.memory))
        most = self._most(batch, rule)
        parts = self.method.most(new, batch) + self.retrieval.most(self, new, batch)
        if self._evaluated_gradients:
            parts += price_in_evaluation(self, batch)
        self._foreseen = most + parts.under(rule)
        if (self.ledger.left or 0) >= self._foreseen + 2 * self._extras:
            return True
        self.end_training()
        return False

    def end_training(self) -> None:
        """What is left of the compute pays for no further training: say so, once."""
        if not self.spent_up:
            self.spent_up = True
            log.warning(
                "the compute budget of %s is spent after %d samples and %d steps: from here on samples are stored and "
                "predictions given, but nothing is trained",
                self.budget.compute,
                self.arrived,
                self.steps,
            )

    def nbytes(self, rule: Rule = "real") -> int:
        """Bytes that persist between steps and belong to the method."""
        return sum(self.nbytes_by_item(rule).values())

    def nbytes_by_item(self, rule: Rule = "real") -> dict[str, int]:
        """The items of `nbytes`: rows of the head are reserved for declared classes."""
        return bytes_by_item(self, rule)

    def working_nbytes(self) -> dict[str, int]:
        """Memory beside the budget: optimizer state, gradients, indices."""
        return working_bytes(self)

    # -- what it lends to its parts (replay.view.LearnerView) --------------------------------------------------------

    def images_of(self, samples: Tensor, *, augment: bool = False) -> Tensor:
        """Samples as the model wants them: normalised, and augmented as in training if asked."""
        if augment:
            return self.augmenter(samples, self.generators["technique"]).to(self.device)
        return self.augmenter.normalise(samples).to(self.device)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, forwards and backwards are no part of the training step: nobody notes or samples them."""
        with self.freezing.paused(), self.sampled.paused() if "sampled" in vars(self) else contextlib.nullcontext():
            yield

    def run(self, purpose: Purpose, function: Callable[..., T], *given: Any) -> T:
        """Run a function beside the model, without gradients, and charge what it executed. What it costs must follow
        from the shapes of the tensors given, and from whole numbers: what was met before is not watched again."""
        key = (purpose, function.__code__, *(_priced_by(each) for each in pytree.tree_leaves(given)))
        with torch.no_grad():
            cost = self._known_costs.get(key)
            if cost is None:
                result, cost = watched(lambda: function(*given))
                self._known_costs[key] = cost
            else:
                result = function(*given)
        self.charge(purpose, cost)
        return result

    def leave_out(self, term: Tensor) -> None:
        """A term of the loss that its maker charges for: nobody else prices what lies behind it."""
        self.freezing.leave_out(term)

    @cached_property
    def sampled(self) -> SampledGradients:
        """Sampled per-sample gradients, for a retrieval that wants them."""
        own = self.settings.learner
        return SampledGradients(
            self.model,
            fraction=own.sampled_fraction,
            group=own.sampled_group,
            seed=self.seed,
            exclude=[self.freezing.chain.head],
        )

    def pass_price(self, images: Tensor, *, backward: bool = False) -> Cost:
        """Price of a forward of the model, in the mode it is in, and of a whole backward if asked."""
        prices = self.freezing.price(images)
        return prices.total if backward else total(prices.forward)

    def charge(self, purpose: Purpose, cost: Cost) -> None:
        """Charge what was run aside; with the step under way, or at once between steps."""
        if self._step_under_way:
            self._aside[purpose] = self._aside.get(purpose, NOTHING) + cost
        else:
            self.ledger.charge({purpose: cost}, steps=0)

    def affords(self, cost: Cost) -> bool:
        """Would this fit into what is left of the compute?"""
        return self.ledger.affords(cost)

    @property
    def due(self) -> int:
        """Training steps that are due and were not run."""
        return self._due.steps

    def take_due(self, steps: int) -> None:
        """Somebody else than the stream runs these of the steps that are due, as far as there are so many."""
        self._due.take(steps)

    def practise(self, samples: Tensor, labels: Tensor, purpose: Purpose) -> float:
        """A plain training step outside the stream, augmented, nothing frozen, charged to `purpose`; its loss."""
        return practise(self, samples, labels, purpose)

    def practice_price(self, batch: int) -> Cost:
        """Price of `practise` on so many samples."""
        return practice_price(self, batch)

    def generator(self, name: str) -> np.random.Generator:
        return self.generators[name]

    def block_names(self) -> list[str]:
        """Module paths of the blocks, stem first, head last."""
        return [block.name for block in self.freezing.chain.blocks]

    # -- samples and classes -------------------------------------------------------------------------------------

    def example(self, batch: int) -> Tensor:
        """A batch's shape without data, as the model gets it."""
        empty = torch.empty(batch, *self.data.input_shape, device="meta")
        return empty.contiguous(memory_format=self.memory_format)

    def _row_of(self, label: int) -> int:
        """The head's row for a label; a label not met before gets a new row."""
        row = self._rows.get(label)
        if row is None:
            refuse_class_without_room(self)
            self.method.growing(len(self.class_labels) + 1)
            row = self._rows[label] = len(self.class_labels)
            self.class_labels.append(label)
            grow(self.head, row + 1, self.optimizer, self.generators["head"])
            self.freezing.refresh()  # what is run aside before the next step is priced with the new row
            self.method.grown()
            give_up_slots(self)
        return row

    def _consider(self, samples: Tensor, rows: Tensor) -> None:
        """Samples are about to be stored: let a selection look that decides on them together."""
        if isinstance(self.selection, Considers):
            self.selection.consider(self, samples, rows)

    def _store(self, sample: Tensor, row: int, place: int | None = None) -> None:
        slot = self.selection.select(self.memory, row, self.generators["selection"])
        if slot is not None:
            self.memory.put(slot, sample, row)
            self.method.stored(slot, place)
            give_up_slots(self)

    def _check(self, sample: Tensor) -> None:
        if sample.dtype != torch.uint8 or tuple(sample.shape) != self.data.input_shape:
            raise BudgetedError(
                f"a sample must be uint8 of shape {'x'.join(map(str, self.data.input_shape))}, "
                f"got {str(sample.dtype).removeprefix('torch.')} of shape {'x'.join(map(str, sample.shape))}"
            )

    def _policy(self, seed: int) -> FreezingPolicy:
        """The method's freezing policy."""
        name, given = self.method.freezing, dict(self.settings.freezing)
        if not isinstance(name, str):
            return name
        if name in ("random", "adaptive") and "seed" not in given:
            given["seed"] = seed
        return policy(name, **given)

    @property
    def mean_frozen_share(self) -> float:
        """Share of the backward that was not run, over all steps."""
        return self.frozen_share / self.steps if self.steps else 0.0

    def rows_of(self, labels: Sequence[int]) -> list[int]:
        """Labels as the head's rows; -1 for a class not met yet."""
        return [self._rows.get(int(label), -1) for label in labels]


def _priced_by(given: object) -> object:
    """What a price may depend on: a factor of 1 is no operation, any other is one."""
    if isinstance(given, Tensor):
        return tuple(given.shape)
    if isinstance(given, float):
        return given if given in (0.0, 1.0) else float
    return given if isinstance(given, int) else type(given)


def _as_label(label: object) -> int:
    """A whole number as it is; 2.9 and "3" are not bent into one."""
    try:
        return operator.index(label)  # type: ignore[arg-type]
    except TypeError as error:
        raise BudgetedError(f"a label must be a whole number, got {label!r}: number your classes 0, 1, 2, …") from error
