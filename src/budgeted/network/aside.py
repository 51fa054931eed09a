"""What is run on a network aside from its training steps: each refused before it runs if it cannot be paid, and charged
because it ran."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from budgeted.budget import Cost, Purpose
from budgeted.budget.watched import watched
from budgeted.network.calls import Inputs, called, count_of, key_of, training
from budgeted.network.evaluation_mode import evaluating
from budgeted.network.folding import folded
from budgeted.network.norms import MeasuredNorms, lent
from budgeted.network.per_sample import PerSampleGradients
from budgeted.network.priced import PRICED, Priced
from budgeted.network.sampled_gradients import SampledGradients

T = TypeVar("T")


class RunsAside(Priced):
    """Outputs, gradients, features and whole steps that are no part of the training step."""

    norms: MeasuredNorms | None
    scaler: torch.amp.GradScaler | None
    _sampled: SampledGradients | None
    _per_sample: PerSampleGradients | None
    rows: int
    """of the head, as far as a rehearsal has grown it"""
    _folds = False

    def paid(self, purpose: Purpose, cost: Cost, run: Callable[[], T], rehearsed: Callable[[], T]) -> T:
        """Run something aside: refused if it cannot be paid, charged because it ran. A rehearsal takes `rehearsed` for
        what it gives."""
        self.account.require(cost)
        with self.aside():
            found = run()
        self.account.charge(purpose, cost)
        return found

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, forwards and backwards are no part of the training step: nobody notes or samples them."""
        with self.freezing.paused(), contextlib.nullcontext() if self._sampled is None else self._sampled.paused():
            yield

    @contextlib.contextmanager
    def predicting(self) -> Iterator[None]:
        """Inside, the model is as predictions are made with it: in evaluation mode, with averaged weights and measured
        statistics if there are any."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(evaluating(self.model))
            if self.average is not None:
                stack.enter_context(self.average.lent_to(self.model))
            if self.norms is not None and self.norms.fresh:
                buffers = dict(self.model.named_buffers())
                stack.enter_context(
                    lent({name: buffers[name] for name in self.norms.statistics}, self.norms.statistics)
                )
            if self._folds:
                stack.enter_context(folded(self.model))
            yield

    @contextlib.contextmanager
    def folding(self) -> Iterator[None]:
        """Inside, predictions are made with batch norm folded into the convolutions before it."""
        self._folds = True
        try:
            yield
        finally:
            self._folds = False

    def measure_norms(self, purpose: Purpose, inputs: Inputs) -> None:
        """Measure batch norm's statistics on these inputs, with the weights that predictions are made with."""
        if self.norms is None:
            return
        norms = self.norms
        norms.fresh = False

        def run() -> None:
            with self.predicting():
                norms.measure(self.model, lambda buffers: called(self.model, inputs, buffers))

        self.paid(purpose, self.price(inputs), run, lambda: None)

    @torch.no_grad()
    def answers(self, purpose: Purpose, chunks: Iterable[Inputs], count: int, *, as_predicted: bool = False) -> Tensor:
        """Outputs for `count` samples in evaluation mode, chunk after chunk; nothing of the model moves. With the
        weights as they are, or with those that predictions are made with."""

        def run() -> Tensor:
            with self.predicting() if as_predicted else evaluating(self.model):
                return torch.cat([called(self.model, inputs).float().cpu() for inputs in chunks])

        return self.paid(purpose, self.price_of(count), run, lambda: torch.zeros(count, self.rows))

    @torch.no_grad()
    def answers_of(self, weights: Mapping[str, Tensor], inputs: Inputs, purpose: Purpose = "forward") -> Tensor:
        """Outputs in evaluation mode with other parameters and buffers, such as an older model's.

        Its head may have fewer rows than today's: those that are missing are not computed, and not charged.
        """
        count, head = count_of(inputs), self.linear_head
        missing = head.out_features - len(weights.get(f"{self.freezing.chain.head}.weight", head.weight))
        macs, biases = count * missing * head.in_features, count * missing * (head.bias is not None)
        cost = self.price_of(count, like=inputs) - Cost(macs + biases, 2 * macs + biases)

        def run() -> Tensor:
            with evaluating(self.model):
                outputs: Tensor = called(self.model, inputs, weights)
                return outputs

        return self.paid(purpose, cost, run, lambda: torch.zeros(count, self.rows))

    @torch.no_grad()
    def outputs_with(self, parameters: Mapping[str, Tensor], inputs: Inputs, purpose: Purpose) -> Tensor:
        """Outputs in training mode with other parameters; what the buffers learn from the pass is forgotten."""

        def run() -> Tensor:
            with training(self.model):
                outputs: Tensor = called(self.model, inputs, {**parameters, **self._copied_buffers()})
                return outputs

        return self.paid(purpose, self.price(inputs), run, lambda: torch.zeros(count_of(inputs), self.rows))

    def gradients(
        self, purpose: Purpose, inputs: Inputs, loss: Callable[[Any], Tensor], *, learning: bool = False
    ) -> dict[str, Tensor | None]:
        """Gradients of a loss of the outputs in training mode, by parameter; neither gradients nor buffers move, but
        for buffers that learn from the pass if asked."""
        wanted = {name: p for name, p in self.model.named_parameters() if p.requires_grad}

        def run() -> Sequence[Tensor | None]:
            with torch.enable_grad(), training(self.model):
                outputs = called(self.model, inputs, {**wanted, **({} if learning else self._copied_buffers())})
                return torch.autograd.grad(loss(outputs), [*wanted.values()], allow_unused=True)

        cost = self.price(inputs, backward=True)
        found = self.paid(purpose, cost, run, lambda: [parameter.detach() for parameter in wanted.values()])
        return dict(zip(wanted, found, strict=True))

    @torch.no_grad()
    def features(self, purpose: Purpose, inputs: Inputs) -> Tensor:
        """What the head reads, in evaluation mode."""
        cost = self.price_of(count_of(inputs), like=inputs)
        self.account.require(cost)
        found: list[Tensor] = []

        def keep(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            found.append(given[0].detach().float())

        with self.head.register_forward_pre_hook(keep), self.aside(), evaluating(self.model):
            called(self.model, inputs)
        self.account.charge(purpose, cost)
        return found[0]

    @torch.no_grad()
    def outputs_of_part(self, purpose: Purpose, part: nn.Module, inputs: Tensor) -> Tensor:
        """What a part of the model gives in evaluation mode, a front that rests say."""
        cost = self.price_of_part(part, inputs)
        self.account.require(cost)
        with self.aside(), evaluating(self.model):
            found: Tensor = torch.cat([part(chunk) for chunk in inputs.split(PRICED)])
        self.account.charge(purpose, cost)
        return found

    def per_sample_gradients(
        self, purpose: Purpose, inputs: Tensor, rows: Tensor, together: int = 0
    ) -> Iterator[tuple[str, Tensor]]:
        """Gradients of every sample's cross-entropy, parameter by parameter; the last samples as one (`together`)."""
        cost = self.price_of(len(rows), backward=True, like=inputs)
        self.account.require(cost)
        self._per_sample = self._per_sample or PerSampleGradients(self.model)
        with self.aside():
            yield from self._per_sample(inputs, rows, together=together)
        self.account.charge(purpose, cost)

    def run(self, purpose: Purpose, function: Callable[..., T], *given: Any) -> T:
        """Run a function beside the model, without gradients, and charge what it executed. What it costs must follow
        from the shapes of the tensors given, and from whole numbers: what was met before is not watched again."""
        key = key_of(purpose, function, given)
        cost = self._known.get(key)
        with torch.no_grad():
            if cost is None:
                result, cost = watched(lambda: function(*given))
                self._known[key] = cost
            else:
                self.account.require(cost)
                result = function(*given)
        self.account.charge(purpose, cost)
        return result

    def run_once(self, purpose: Purpose, function: Callable[..., T], *given: Any) -> T:
        """As `run`, of a function whose cost does not follow from the shapes: it is watched every time."""
        with torch.no_grad():
            result, cost = watched(lambda: function(*given))
        self.account.charge(purpose, cost)
        return result

    def _copied_buffers(self) -> dict[str, Tensor]:
        return {name: buffer.clone() for name, buffer in self.model.named_buffers()}
