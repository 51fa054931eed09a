"""A network at work: a model with its optimizer and its freezing. What is run on it is charged because it ran.

    outputs = network.forward(inputs)          one training step; forward_also(inputs) for more in the same step
    done = network.backward(loss)
    network.update()

    network.answers(purpose, inputs)           aside from it: outputs in evaluation mode
    network.gradients(purpose, inputs, loss)   gradients that no optimizer sees
    network.practise(purpose, inputs, loss)    a whole training step, nothing frozen
    network.run(purpose, function, ...)        anything else, beside the model

Prices are traced once for each shape. A method may have several networks: one that it names in `kept` is saved,
counted in bytes and charged like the learner's own.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from budgeted.budget import Cost, Purpose
from budgeted.budget.account import Account
from budgeted.budget.kept import Keeps, prefixed, without_prefix
from budgeted.budget.trace import tracing
from budgeted.freezing import BadLoss, FrozenStep, LayerFreezing
from budgeted.network.aside import RunsAside
from budgeted.network.average import Averaged
from budgeted.network.calls import Inputs, as_given, called, count_of
from budgeted.network.evaluation_mode import evaluating
from budgeted.network.fused_step import FusedStep
from budgeted.network.head import carried_over, grow, row_towards
from budgeted.network.norms import MeasuredNorms
from budgeted.network.per_sample import PerSampleGradients
from budgeted.network.rates import Rates
from budgeted.network.sampled_gradients import SampledGradients, SampledStep
from budgeted.network.views import NormsApart

Autocast = Literal["none", "bfloat16", "float16"]
_NUMBERS = "network.numbers"
LOSS = "loss"
"""the reader of features that the backward goes through"""


class Network(RunsAside):
    """One model that is trained, and everything that is run on it."""

    def __init__(
        self,
        model: nn.Module,
        account: Account,
        freezing: LayerFreezing,
        optimizer: Optimizer,
        example: Callable[[int], Inputs],
        *,
        rates: Rates | None = None,
        autocast: Autocast = "none",
        sample: Callable[[], SampledGradients] | None = None,
        average: Averaged | None = None,
        norms: MeasuredNorms | None = None,
        seed: int = 0,
    ) -> None:
        """
        account: what every run is charged to.
        freezing: decides which blocks rest, and runs the backward; it knows the prices.
        example: inputs for so many samples, without data.
        sample: makes the sampled per-sample gradients, for a retrieval that wants them.
        rates: of learning, where they move along the stream.
        average: of the weights, to predict with.
        norms: statistics of batch norm to predict with.
        """
        self.model = model
        self.account = account
        self.freezing = freezing
        self.optimizer = optimizer
        self.rates = rates
        self.example = example
        self.device = next(iter(model.parameters()), torch.empty(0)).device
        self.scaler = torch.amp.GradScaler(self.device.type) if autocast == "float16" else None
        self.average = average
        self.norms = norms or None  # a model without batch norm has none
        self._autocast = autocast
        self._seed = seed
        self._update = FusedStep(optimizer)
        self._sample = sample
        self._sampled: SampledGradients | None = None
        self._decided: Callable[[Sequence[nn.Parameter]], None] | None = None
        self._known: dict[tuple[object, ...], Cost] = {}  # of what was run beside the model
        self._per_sample: PerSampleGradients | None = None
        self._features: dict[str, dict[int, Tensor]] = {}  # of the latest training forward, by reader and place
        self._readers: dict[str, int] = {}  # blocks that each reader of features has named
        self.beside = nn.ModuleDict()
        self._handles: list[RemovableHandle] = []
        self.tasks = 0  # that the model has grown for

    # -- a training step ---------------------------------------------------------------------------------------

    def forward(self, inputs: Inputs) -> Any:
        """Outputs in training mode, as the backward that follows wants them."""
        if not self.model.training:
            self.model.train()
        self.clear()
        with self.autocast():
            return called(self.model, inputs)

    def forward_also(self, inputs: Inputs, *, moves: bool = False, parts: int = 1) -> Any:
        """Outputs of further inputs in the same step, such as other views of its batch: paid with the step, as far as
        its loss reads them. Policies, samplers and losses that look inside see the step's own batch alone; `moves`:
        running statistics learn from these, too; `parts`: batches that stand one behind the other, of one size."""
        sampled = contextlib.nullcontext() if self._sampled is None else self._sampled.paused()
        norms = contextlib.nullcontext() if parts == 1 else NormsApart(parts)
        with self.freezing.beside(), sampled, self.autocast(), norms:
            return called(self.model, inputs, None if moves else self._copied_buffers())

    def backward(self, loss: Tensor, logits: Tensor | None = None, rows: Tensor | None = None) -> FrozenStep:
        """Decide what rests and run the backward without it; `logits` and `rows` where the loss is a plain
        cross-entropy."""
        return self._with_average(self.freezing.backward(loss, logits, rows, decided=self._decided, scaler=self.scaler))

    def backward_beside(self, loss: Tensor) -> FrozenStep:
        """As `backward`, for a network beside the learner's own: charged with the step under way."""
        done = self.backward(loss)
        for purpose, cost in done.costs.items():
            self.account.charge(purpose, cost)
        return done

    def update(self) -> None:
        """Step the optimizer on the gradients that are there; the average follows."""
        if self.rates is not None:
            self.rates.set(self.optimizer, self.freezing.share)
        self._move()

    def _move(self) -> None:
        if self.scaler is None:
            self._update()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.average is not None:
            self.average.update(self.model)
        if self.norms is not None:
            self.norms.fresh = False

    def add(self, gradients: Mapping[str, Tensor]) -> None:
        """To those of the step whose backward was just run; what rests in it has none."""
        if not gradients:
            return  # nearly always: the parameters' names are walked for nothing
        trained = {name: p for name, p in self.trained_by_name().items() if p.grad is not None and name in gradients}
        if trained:
            there = [p.grad for p in trained.values()]
            self.run("backward", torch._foreach_add_, there, [gradients[name] for name in trained])

    def clear(self) -> None:
        """No parameter has a gradient: as zero_grad does, which takes a tenth of a small model's step."""
        for parameter in self.parameters():
            parameter.grad = None

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._autocast == "none":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self._autocast))

    @property
    def loss_scale(self) -> float:
        """By which gradients are larger before the optimizer unscales them."""
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())

    def practise(self, purpose: Purpose, inputs: Inputs, loss: Callable[[Any], Tensor]) -> float:
        """A whole training step outside the stream, nothing frozen; no gradient stays behind. Its loss."""
        cost = self.practice_price(count_of(inputs))
        self.account.require(cost)
        self.model.train()
        with self.aside():
            with self.autocast():
                value = loss(called(self.model, inputs))
            number = float(value.item())
            if not math.isfinite(number):
                raise BadLoss(f"the loss is {number} while training for an evaluation: lower learner.learning_rate")
            (value if self.scaler is None else self.scaler.scale(value)).backward()
            self._move()  # rates go with the stream, and this is beside it
        self.clear()
        self.account.charge(purpose, cost)
        self.account.ledger.steps += 1
        return number

    # -- sampled per-sample gradients --------------------------------------------------------------------------

    @property
    def sampled(self) -> SampledGradients:
        """Drawn when they are first asked for."""
        if self._sampled is None:
            assert self._sample is not None
            self._sampled = self._sample()
        return self._sampled

    def sample_gradients(self) -> None:
        """Collect them in every training step from now on."""
        self.sampled.start()
        self._decided = self.sampled.skip

    def sampled_of(self, inputs: Inputs, loss: Callable[[Any], Tensor]) -> tuple[SampledStep, int]:
        """Those of the step whose backward was just run, or of the same samples in evaluation mode where none are
        collected in training; and what reading them cost."""
        return self.sampled_in_evaluation(inputs, loss) if self._decided is None else self.take_sampled()

    def take_sampled(self) -> tuple[SampledStep, int]:
        """Those of the step whose backward was just run, and what reading them cost."""
        step = self.sampled.take()
        return SampledStep(step.values / self.loss_scale, step.present), self.sampled.price(step.present)

    def sampled_in_evaluation(self, inputs: Inputs, loss: Callable[[Any], Tensor]) -> tuple[SampledStep, int]:
        """Those of the same samples once more, with running statistics and nothing frozen, where each is the gradient
        of one sample's loss; the pass is charged as similarity."""
        cost = self.price_of(count_of(inputs), backward=True, like=inputs)
        self.account.require(cost)
        with evaluating(self.model), self.freezing.paused(), self.sampled:
            torch.autograd.grad(loss(called(self.model, inputs)), self.trained(), allow_unused=True)
            step = self.sampled.take()
        self.account.charge("similarity", cost)
        return step, self.sampled.price(step.present)

    # -- features from inside --------------------------------------------------------------------------------------

    def note_features(self, names: Sequence[str], reader: str = LOSS) -> None:
        """From now on every training forward notes what these blocks put out, for a loss that reads it or for another
        reader; one that names more later has them behind."""
        before = self._readers.get(reader, 0)
        self._readers[reader] = before + len(names)
        for place, name in enumerate(names, before):
            hook = partial(self._note_feature, reader, place)
            self._handles.append(self.model.get_submodule(name).register_forward_hook(hook))

    def take_features(self, reader: str = LOSS) -> list[Tensor]:
        """What the blocks put out in the latest training forward, in their order."""
        found = self._features.pop(reader, {})
        return [found[place] for place in sorted(found)]

    def last_feature(self) -> Tensor:
        """What the head read in the latest training forward, for a loss that reads it too."""
        return self.freezing.last_feature()

    def _note_feature(self, reader: str, place: int, module: nn.Module, given: Any, output: Any) -> None:
        if torch.is_grad_enabled() and not tracing() and self.freezing.listening:
            feature = output if isinstance(output, Tensor) else output[0]
            self._features.setdefault(reader, {})[place] = feature
            if reader == LOSS:
                self.freezing.mark_feature(place, feature)

    # -- what it is made of ------------------------------------------------------------------------------------

    def zeros(self) -> dict[str, Tensor]:
        """A zero for every weight that is trained."""
        return {name: torch.zeros_like(p, requires_grad=False) for name, p in self.trained_by_name().items()}

    def pad(self, kept: dict[str, Tensor]) -> None:
        """Give what is kept for every weight zeros for rows and layers that came since; what is gone is let go."""
        padded = carried_over(kept, self.zeros())
        kept.clear()
        kept.update(padded)

    def weights(self) -> dict[str, Tensor]:
        """Parameters and buffers, by name."""
        tensors = (*self.model.named_parameters(), *self.model.named_buffers())
        return {name: tensor.detach() for name, tensor in tensors}

    def copy_of_weights(self) -> dict[str, Tensor]:
        """Parameters and buffers as they are now."""
        return {name: tensor.clone() for name, tensor in self.weights().items()}

    def grow_head(self, rows: int, generator: np.random.Generator) -> None:
        """Give the linear head so many rows: what is run before the next step is priced with the new ones."""
        grow(self.linear_head, rows, self.optimizer, generator)
        if self.rates is not None:
            self.rates.new_class()
        if self.average is not None:
            self.average.follow(self.model)
        self.freezing.refresh()

    def start_row(self, row: int, inputs: Inputs) -> None:
        """Let the newest row of the head begin from what the first of these inputs, of its class, looks like beside the
        others, of other classes."""
        features, head = self.features("forward", inputs), self.linear_head
        bias = None if head.bias is None else head.bias[:row]
        self._set_row(row, *self.run("forward", row_towards, features, head.weight[:row], bias))

    @torch.no_grad()
    def _set_row(self, row: int, *values: Tensor) -> None:
        for name, value in zip(("weight", "bias"), values, strict=True):
            if (parameter := self.linear_head._parameters[name]) is not None:
                parameter[row] = value
                if self.average is not None:
                    self.average.by_name()[f"{self.freezing.chain.head}.{name}"][row] = value

    def changed(self) -> None:
        """The model has got another extractor, branch or mask, or lost one: parameters, chain, prices and sampled
        gradients follow; blocks that stayed keep what the freezing knows of them."""
        self.model.to(self.device)
        self._follow_parameters()
        if self.average is not None:
            self.average.follow(self.model)
        if self.norms is not None:
            self.norms.follow(self.model)
        given = as_given(self.example(2))
        self.freezing.changed(given["inputs"], given.get("keywords"))
        self._known.clear()
        self._per_sample = None
        if self._sampled is not None:
            self._sampled.stop()
            self._sampled = None
            if self._decided is not None:
                self.sample_gradients()

    def starts_from(self, example: Callable[[int], Inputs]) -> None:
        """From now on the model is called with other inputs, such as features of a front that rests."""
        self.example = example
        self.changed()

    def put_beside(self, name: str, layer: nn.Module) -> None:
        """A layer that a loss reads and the model does not (an auxiliary classifier), in place of one of that name:
        trained whatever rests, priced where the loss uses it, saved and counted with the network."""
        self.beside[name] = layer.to(self.device)
        self._follow_parameters()

    def _follow_parameters(self) -> None:
        """The optimizer steps the parameters that there are now; what it knows of those that stayed, it keeps."""
        present = dict(self._named_parameters())
        known = {id(parameter) for parameter in present.values()}
        for group in self.optimizer.param_groups:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) in known]
        for parameter in [each for each in self.optimizer.state if id(each) not in known]:
            del self.optimizer.state[parameter]
        there = {id(parameter) for parameter in self.parameters()}
        self.optimizer.param_groups[-1]["params"] += [p for p in present.values() if id(p) not in there]

    def _named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.model.named_parameters()
        yield from self.beside.named_parameters("beside")

    @property
    def grows(self) -> bool:
        """Whether the model changes itself when a task ends: it has an `end_task` of its own."""
        return callable(getattr(self.model, "end_task", None))

    def end_task(self) -> None:
        """Let the model grow for what comes; saved and loaded, it is grown as often before its weights are taken up."""
        if self.grows:
            self.tasks += 1
            with torch.random.fork_rng(devices=[]):  # what torch draws for new layers follows from the seed
                torch.default_generator.manual_seed(self._seed * 1_000_003 + self.tasks)
                self.model.end_task()  # type: ignore[operator]
            self.changed()

    def restarted(self) -> None:
        """The weights were replaced by others: the optimizer and the average remember nothing."""
        self.optimizer.state.clear()
        if self.average is not None:
            self.average.restart(self.model)
        if self.norms is not None:
            self.norms.fresh = False

    def settle(self) -> None:
        """For whoever takes the model without us: it gets the weights that predictions are made with, for good."""
        with self.predicting():
            weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.model.load_state_dict(weights)
        self.average = self.norms = None

    def close(self) -> None:
        """Take every hook off the model."""
        self.freezing.remove()
        for handle in self._handles:
            handle.remove()
        if self._sampled is not None:
            self._sampled.stop()

    # -- what it keeps -----------------------------------------------------------------------------------------

    def nbytes(self) -> int:
        """Parameters, buffers, their average and measured statistics; moments and gradients are working memory."""
        modules = (self.model, self.beside)
        own = sum(t.numel() * t.element_size() for m in modules for t in (*m.parameters(), *m.buffers()))
        return own + sum(part.nbytes() for part in (self.average, self.norms) if part is not None)

    def working_nbytes(self) -> dict[str, int]:
        """Optimizer state and gradients."""
        persists = getattr(self.optimizer, "persists", ())
        moments = (v for state in self.optimizer.state.values() for name, v in state.items() if name not in persists)
        return {
            "optimizer": sum(m.numel() * m.element_size() for m in moments if isinstance(m, Tensor)),
            "gradients": sum(p.numel() * p.element_size() for _, p in self._named_parameters()),
        }

    def _parts(self) -> dict[str, Keeps]:
        found = {"average": self.average, "norms": self.norms, "rates": self.rates, "freezing": self.freezing}
        return {name: part for name, part in found.items() if part is not None}

    def _weights_by_name(self) -> dict[str, Tensor]:
        return prefixed("model", self.model.state_dict()) | prefixed("beside", self.beside.state_dict())

    def state(self) -> dict[str, Tensor]:
        """Everything that a later step depends on, for a checkpoint."""
        tensors = self._weights_by_name()
        names = {id(parameter): name for name, parameter in self._named_parameters()}
        for parameter, state in self.optimizer.state.items():
            for key, value in state.items():
                tensors[f"optimizer.{names[id(parameter)]}.{key}"] = torch.as_tensor(value)
        for part, keeps in self._parts().items():
            tensors |= prefixed(part, keeps.state())
        numbers = {
            "tasks": self.tasks,
            "rates": [float(group["lr"]) for group in self.optimizer.param_groups],
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
        }
        tensors[_NUMBERS] = torch.frombuffer(bytearray(json.dumps(numbers).encode()), dtype=torch.uint8)
        return tensors

    def written(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Where a method keeps it: all of `state`, and the rows of a linear head."""
        return {"rows": getattr(self.head, "out_features", 0)}, self.state()

    def load_written(
        self, plain: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device | str = "cpu"
    ) -> None:
        if isinstance(self.head, nn.Linear):
            self.grow_head(int(plain["rows"]), np.random.default_rng(0))  # what is drawn is replaced
        self.load_state(tensors, device)

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor], device: torch.device | str = "cpu") -> None:
        """Become the network that was saved; the model's head has its rows by now."""
        numbers = json.loads(bytes(state[_NUMBERS].tolist()))
        for _ in range(numbers["tasks"] - self.tasks):
            self.end_task()
        for name, target in self._weights_by_name().items():
            saved = state.get(name)
            if saved is None or saved.shape != target.shape:
                raise KeyError(f"the checkpoint has no {name.removeprefix('model.')} of shape {tuple(target.shape)}")
            target.copy_(saved)  # into place, so that the memory format stays
        self.optimizer.state.clear()
        for name, parameter in self._named_parameters():
            for key, value in without_prefix(f"optimizer.{name}", state).items():
                if value.shape == parameter.shape:
                    place = torch.empty_like(parameter, memory_format=torch.preserve_format)
                    self.optimizer.state[parameter][key] = place.copy_(value)
                else:
                    self.optimizer.state[parameter][key] = value.clone()
        for group, rate in zip(self.optimizer.param_groups, numbers["rates"], strict=True):
            group["lr"] = rate
        if self.scaler is not None:
            self.scaler.load_state_dict(numbers["scaler"])
        self.freezing.refresh()
        for part, keeps in self._parts().items():
            keeps.load_state(without_prefix(part, state), self.device)
