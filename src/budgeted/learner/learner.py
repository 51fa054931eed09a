"""The one loop: a learner that takes a stream, one labelled sample at a time, inside its budget.

    learner = Learner("resnet20", budget="200GFLOP", memory="2MB")
    for image, label in stream:
        learner.learn(image, label)
        ...
        learner.predict(images)

A sample arrives, is stored, and the steps that it is due are run: retrieval draws a batch, the problem makes inputs of
it, the network runs, the freezing decides and runs the backward, the optimizer steps, and all of it is charged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from budgeted.budget import NOTHING, Budget, BudgetSpent, Compute, Cost, Ledger, Purpose, total
from budgeted.errors import BudgetedError
from budgeted.freezing import FrozenStep
from budgeted.learner.bytes import fit_slots, give_up_slots, refuse_class_without_room
from budgeted.learner.events import Events, Listener
from budgeted.learner.generators import Generators
from budgeted.learner.given import Data, budget_of, facts_of, model_of, refuse_absent, settings_of
from budgeted.learner.hardest import draw_hard
from budgeted.learner.holding import AsGiven
from budgeted.learner.lent import Lends, StepRecord
from budgeted.learner.meanwhile import Drawn, Meanwhile, Stored, Work
from budgeted.learner.pace import Pace
from budgeted.learner.parts import Parts, make_method, make_problem
from budgeted.learner.settings import Settings
from budgeted.methods import Holding, Method, Step
from budgeted.models.normalisation import normalised
from budgeted.network import Inputs
from budgeted.problems import Sample
from budgeted.problems.batches import at, joined, stacked
from budgeted.replay import Considers
from budgeted.replay.selection import store


class Learner(Lends):
    """Learns from a stream within a budget of compute and bytes, and keeps the ledger."""

    def __init__(
        self,
        model: nn.Module | str,
        method: Method | type[Method] | str = "cram",
        data: Data = None,
        *,
        budget: Budget | Compute | str | None = None,
        memory: int | str | None = None,
        slots: int | None = None,
        iterations: float | None = 1.0,
        spend_savings: bool = False,
        spending: Sequence[float] = (),
        settings: Settings | None = None,
        seed: int = 0,
        device: str = "cpu",
        on_event: Listener | Sequence[Listener] = (),
        parts: type[Parts] = Parts,
    ) -> None:
        """
        model: a torch module, or the name of one, which is drawn from the seed. For classification it ends in a linear
            layer, which gets a row for every new class.
        method: what to store, replay, freeze and minimise: a name, a class, or one like it (each learner has its own);
            our own, CRAM, if not given.
        data: the shape of images to be classified, (3, 32, 32) if not given; more facts of them, or of samples that are
            no images; or a problem of another kind.
        budget: compute that the ledger refuses to exceed, a total such as "200GFLOP" or a rate such as "2GFLOP/sample";
            a `Budget` has bytes, too.
        memory: bytes, such as "2MB", that `nbytes()` never exceeds: model, stored samples, all that is kept.
        slots: places in the memory; None takes as many as the bytes hold, or stores everything.
        iterations: training steps per arriving sample, a fraction is saved up; None: what the compute pays for.
        spend_savings: what freezing saves buys more steps, spread over the rest of the stream.
        spending: shares of the compute that a plan spends up to the ends of equal parts of the stream; none: evenly.
        on_event: told of new classes, of compute that runs out, of samples that are refused (`learner/events.py`).
        parts: who makes the parts; a rehearsal has others.
        """
        super().__init__()
        refuse_absent(device)
        data = facts_of(data)
        self.settings = settings_of(settings, method, data)
        self.method = make_method(method, self.settings.method).with_parts(selection=self.settings.learner.selection)
        self.model_name = model if isinstance(model, str) else None
        own = self.settings.learner
        model = normalised(model_of(model, data, seed), own.normalisation, own.norm_groups)
        self.problem = make_problem(data, model, self.settings, device)
        self.slots, self.seed, self.budget = slots, seed, budget_of(budget, memory, slots)
        self.ledger = Ledger(self.budget.compute)
        self.account = parts.account(self.ledger)
        self.generators = Generators(seed)
        self.pace = Pace(
            self.account, self.budget, iterations, self.problem.samples, spend_savings=spend_savings,
            spending=spending, power=self.settings.learner.pace_power,
        )  # fmt: skip
        self.batch_size = self.settings.learner.batch_size
        self.stream_batch = int(self.batch_size * self.method.stream_share)
        self.parts = parts(self)
        self.holding: Holding = AsGiven(self.problem)
        model = self.method.model(model, self.problem.example(2))
        self.network = self.parts.network(model, torch.device(device))
        self.refuse_undeclared(getattr(self.network.head, "out_features", 0))
        if self.method.whole_head:
            self.problem.grow(self.network, self.problem.classes or 0, self.generators["head"])
        self.retrieval = self.parts.retrieval()
        self.selection = self.parts.selection()
        self.memory = self.parts.memory()
        self.memory.watch(self.retrieval)
        self.last: StepRecord | None = None
        self.rested: dict[str, int] = {}  # steps in which each block rested
        self.frozen_share = 0.0
        self.waiting: list[tuple[Sample, int]] = []  # samples of the stream, and their rows, for a full stream batch
        self.picked: list[int] | None = None  # of what waits, those in the latest step, if the method chose
        self.stacked: tuple[Sample, Tensor] | None = None  # what waits, as a batch
        self.meanwhile = Meanwhile(self)
        self.events = Events(self, on_event)
        self.reserved: dict[str, int] = {}
        self.method.begin(self)
        fit_slots(self)

    # -- a sample arrives --------------------------------------------------------------------------------------

    def learn(self, sample: Any, label: Any, then: tuple[Any, Any] | None = None) -> None:
        """Take one labelled sample: store it and train as much as it is due. One that cannot be taken is refused, and
        nothing has changed.

        then: the sample of the next call and its label, if they are at hand: where `meanwhile` is on they may be
            stored, and their batch made, while this one trains.
        """
        with self.working():
            stored = self.meanwhile.stored(sample, label)
            try:
                sample = self.problem.check(sample)
                row = self._row_of(self.problem.key(label), sample)
            except BudgetedError as refusal:
                self.events.tell("refused", why=str(refusal))
                raise
            self.arrived += 1
            self.pace.arrive(self.arrived - 1, self.most)
            sample = self.method.admits(sample, row)
            if sample is None:
                return  # the steps that it was due are run with the next sample
            sample = self.holding.held(sample)
            if self.stream_batch:
                self.waiting.append((sample, row))
                if len(self.waiting) == self.stream_batch * self.method.choices:
                    self.flush()
            else:
                self._offer([(sample, row)], [None], stored)
                self.meanwhile.announced = then
                self._train()

    def flush(self) -> None:
        """Train on the samples that wait for a full stream batch, and store them; `learn` does so when enough wait."""
        with self.working():
            self.meanwhile.refuse_between()
            if not self.waiting:
                return
            before = self.steps
            self._train()
            trained = self.steps > before
            offered = list(range(len(self.waiting)))
            if self.picked is not None and not self.method.leaves_out:
                offered = sorted(self.picked)
            self.picked = None
            self._offer([self.waiting[place] for place in offered], offered if trained else [None] * len(offered))
            self.waiting.clear()
            self.stacked = None

    def end_task(self) -> None:
        """Say that the stream goes over to other classes; most methods need not know."""
        with self.working():
            self.flush()  # refuses if a sample was announced
            self.paid(self.method.end_task)
            if self.network.grows:
                self.network.end_task()
                self.method.grown()
            give_up_slots(self)

    def before_prediction(self) -> None:
        """Measure what predictions go by, and let methods that train for an evaluation do so (BiC, GDumb); what is run
        is charged."""
        with self.working():
            self.meanwhile.refuse_between()
            self.measure_norms()
            self.paid(self.method.before_prediction)
            self.measure_norms()  # if it has moved weights

    # -- one training step -------------------------------------------------------------------------------------

    def _train(self) -> None:
        self._run_due_steps()
        self.meanwhile.settle()

    def _run_due_steps(self) -> None:
        while self.pace.due and not self.pace.spent_up and self.method.trains:
            # batch norm wants two; a memory of one slot has no more to give. Many early steps wait for a full batch
            wanted = 2 if self.settings.learner.pace_power == 1 else self.batch_size
            if len(self.memory) + len(self.waiting) < min(wanted, (self.memory.capacity or wanted) + self.stream_batch):
                return
            new = min(len(self.waiting), self.stream_batch)
            most = self.most(new + min(self.batch_size - new, len(self.memory)))
            if not self.pace.affords(most, self.arrived, self.steps):
                return self.events.look()
            self.pace.take()
            self._step()
            self.events.look()

    def _step(self) -> None:
        self.account.begin_step()
        done: FrozenStep | None = None
        moved, most = False, 0
        try:
            drawn = self.meanwhile.batch() or self.draw()
            self.charge_codec(drawn.work)
            share = self.arrived / self.problem.samples if self.problem.samples else None
            inputs = self.problem.sized(self.network, drawn.inputs, share)
            slots, columns = drawn.replayed.slots, drawn.replayed.columns
            step = Step(drawn.new, slots, inputs, drawn.labels.to(self.network.device), columns, drawn.samples)
            self.meanwhile.begin()

            outputs = self.network.forward(inputs)
            with self.network.autocast():
                loss = self.method.loss(step, outputs)
            self.network.freezing.share = share
            closed = (outputs, step.labels) if self.method.plain() and self.problem.closed else (None, None)
            done = self.network.backward(loss, *closed)
            self.network.add(drawn.gradients)
            self.method.after_backward(step)
            self._observe(step, drawn)
            places = min(len(self.waiting), self.stream_batch)
            own, most = total(done.costs.values()), self.most(places + len(slots))
            self.account.owe(own)
            self.pace.met(self.under(self.account.aside), self.under(own + self.account.aside) - most)
            self.network.update()
            moved = True
            self.method.after_step(step, outputs.detach() if isinstance(outputs, Tensor) else outputs)
            if not self.meanwhile.busy:  # what is read of the memory meanwhile is the next step's
                self.charge_codec()
            self.meanwhile.wait()
        except BudgetSpent:
            self.meanwhile.wait()
            self._abandon(done, moved)
        except BaseException:
            self.meanwhile.wait()
            self.meanwhile.undo()
            self.account.drop_step()
            raise
        if done is not None and moved:
            self._record(done, self.account.end_step(done.costs), most, step.inputs)

    def draw(self) -> Drawn:
        """The batch of the next step: samples of the stream, if it has any, and replayed ones, varied."""
        self.memory.take_work()  # what others looked at is not the step's
        arrived, rows = self._arrived()
        if self.retrieval.wants_stream:
            self.retrieval.meet(self, arrived, rows)
        replayed = draw_hard(self, self.batch_size - min(len(self.waiting), self.stream_batch))
        samples, labels, gradients = replayed.samples, replayed.labels, self.retrieval.ahead()
        work, operations = self.memory.take_work(), self.retrieval.price()
        if gradients:
            rows = rows[:0]  # these samples' part of the gradient is there
        if len(rows):
            samples, labels = joined([arrived, samples]), torch.cat([rows, labels])
        inputs = self.holding.inputs(samples, self.generators["augmentation"], len(rows))
        return Drawn(replayed, len(rows), samples, labels, inputs, gradients, work, operations)

    def _observe(self, step: Step, drawn: Drawn) -> None:
        """Show the retrieval the gradients of what it drew, and charge both."""
        if self.retrieval.wants_gradients:
            loss = lambda outputs: self.problem.loss(outputs, step.inputs, step.labels)  # noqa: E731
            sampled, read = self.network.sampled_of(step.inputs, loss)
            self.retrieval.observe(sampled.values[step.new :], sampled.present, drawn.replayed.labels)
            self.account.charge("similarity", Cost(0, read))
        operations = drawn.operations if self.meanwhile.busy else self.retrieval.price()
        self.account.charge("retrieval", Cost(0, operations))

    def _abandon(self, done: FrozenStep | None, moved: bool) -> None:
        """Something in the step could not be paid: training ends. If no weight has moved, none will; what was run is
        charged as far as it can be."""
        self.pace.end(self.arrived, self.steps)
        if moved:
            return
        self.network.clear()
        ran: Mapping[Purpose, Cost] = {} if done is None else done.costs
        executed: dict[Purpose, Cost] = {purpose: cost for purpose, cost in ran.items() if purpose != "optimizer"}
        self.account.end_step(executed if self.account.affords(total(executed.values())) else {}, steps=0)

    def _record(self, done: FrozenStep, costs: Mapping[Purpose, Cost], most: int, inputs: Inputs) -> None:
        saved = self.network.saved(done, inputs) if done.frozen and self.pace.spend_savings else NOTHING
        self.pace.note(self.under(total(costs.values())), most, self.under(saved))
        blocks = self.network.freezing.chain.blocks
        for block in done.frozen:
            self.rested[blocks[block].name] = self.rested.get(blocks[block].name, 0) + 1
        self.frozen_share += done.frozen_share
        self.last = StepRecord(done.loss, done.frozen, done.frozen_share, costs)

    def _arrived(self) -> tuple[Sample, Tensor]:
        """The samples of the stream in this step: what waits, or what the method picks of it."""
        samples, rows = self._stack()
        if len(rows) <= self.stream_batch and not (self.method.leaves_out and len(rows)):
            return samples, rows
        picked = self.method.pick(samples, rows)
        self.picked = picked.tolist()
        return at(samples, picked), rows[picked]

    def _stack(self) -> tuple[Sample, Tensor]:
        """What waits, put together once for all steps on it."""
        if self.stacked is None:
            rows = torch.tensor([row for _, row in self.waiting], dtype=torch.int64)
            samples = stacked([sample for sample, _ in self.waiting], self.problem.columns())
            self.stacked = self.memory.passed(samples) if self.waiting else samples, rows
        return self.stacked

    # -- storing -----------------------------------------------------------------------------------------------

    def _row_of(self, key: Any, sample: Sample) -> int:
        """The row of a sample's key; one not met before gets a new row, and the network grows for it."""
        row = self.problem.row(key)
        if row is None:
            refuse_class_without_room(self)
            self.refuse_undeclared(len(self.problem.keys) + 1)
            row = self.problem.meet(key)
            self.problem.grow(self.network, row + 1, self.generators["head"])
            if self.settings.learner.new_rows == "mean":
                self.paid(partial(self.start_row, row, sample))
            self.method.grown()
            give_up_slots(self)
            self.events.tell("new class", label=key)
        return row

    def _offer(
        self, samples: list[tuple[Sample, int]], places: Sequence[int | None], stored: Stored | None = None
    ) -> None:
        """Offer samples to the memory, but for the one that is there already; a selection that decides on them together
        looks first."""
        if isinstance(self.selection, Considers):
            selection, batch = self.selection, self.memory.passed(stacked([sample for sample, _ in samples]))
            rows = torch.tensor([row for _, row in samples])
            self.paid(lambda: selection.consider(self, batch, rows))
        for (sample, row), place in zip(samples, places, strict=True):
            slot, work = self.store(sample, row) if stored is None else (stored.slot, stored.work)
            self.paid(partial(self.charge_codec, work))
            if slot is not None:
                self.paid(partial(self.method.stored, slot, place))
                if give_up_slots(self):
                    self.meanwhile.undo()

    def store(self, sample: Sample, row: int) -> tuple[int | None, Work]:
        """Its slot, if the selection gave it one, and what the codec did for it."""
        self.memory.take_work()
        slot = store(self.memory, self.selection, sample, row, self.generators["selection"])
        return slot, self.memory.take_work()
