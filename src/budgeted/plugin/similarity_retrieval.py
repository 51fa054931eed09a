"""Similarity-aware retrieval in the user's own loop.

    memory = ReplayMemory(slots=500)
    retrieval = SimilarityAwareRetrieval(model, memory)
    ...
    memory.add(new_images, new_labels)
    images, labels = retrieval.draw(16)
    loss = cross_entropy(model(images), labels)
    loss.backward()                  # or freezing.backward(loss)
    retrieval.update()
    optimizer.step()

Between `draw` and `update` the model's layers have hooks that read a few coordinates of every sample's gradient off
the one ordinary backward.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from budgeted.budget import Cost, Ledger
from budgeted.budget.compiled import compiled_paths
from budgeted.budget.trace import tracing
from budgeted.errors import BudgetedError
from budgeted.freezing import block_chain
from budgeted.freezing.hooks import only_for
from budgeted.network.sampled_gradients import SampledGradients
from budgeted.plugin.adaptive_freezing import AdaptiveFreezing
from budgeted.plugin.replay_memory import ReplayMemory
from budgeted.replay import SARSettings
from budgeted.replay.sar import SimilarityAware

FORMAT = 1


class SimilarityAwareRetrieval:
    """Draws what was used least, counting the uses of similar classes."""

    def __init__(
        self,
        model: nn.Module,
        memory: ReplayMemory,
        *,
        freezing: AdaptiveFreezing | None = None,
        ledger: Ledger | None = None,
        exclude: Collection[str] | None = None,
        fraction: float = 0.0005,
        group: int = 16,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        """
        model: the one that is trained; it is not wrapped.
        memory: where the samples are; make the retrieval before the first sample is added.
        freezing: the freezing of this model, if there is one: frozen weights are left out, and its ledger is charged.
        ledger: charged for draws and similarity, if there is no freezing.
        exclude: names of modules whose gradients are not read; without it the head, found in the first training
            forward.
        fraction, group: share of the weights whose gradients are read, and how many of them lie together.
        settings: those of `SARSettings`, as in `temperature=0.25`.
        """
        self.model = model.module if isinstance(model, DistributedDataParallel) else model
        self.memory = memory
        self.ledger = ledger if freezing is None else freezing.ledger
        self._freezing = freezing
        self._sampling = {"fraction": fraction, "group": group, "seed": seed}
        self.sampled: SampledGradients | None = None
        try:
            chosen = SARSettings(**settings)
        except TypeError as error:
            raise BudgetedError(f"similarity-aware retrieval: {error}") from error
        self._first: Any = None
        coordinates = None
        if exclude is not None:
            coordinates = len(self._sample(exclude))
        elif chosen.similarity == "class_gradient":
            raise BudgetedError(
                "similarity `class_gradient` must know its weights at once: give exclude=[name of head]"
            )
        self.retrieval = SimilarityAware(chosen, 0, coordinates)
        if self.retrieval.wants_gradients and exclude is None:
            self._first = self.model.register_forward_pre_hook(only_for(self.model, self._see_first), with_kwargs=True)
        if freezing is not None:
            freezing.on_decision(self._skip)
        memory.serve(self.retrieval)
        self._generator = np.random.Generator(np.random.PCG64([seed, 1]))
        self._drawn: Tensor | None = None
        self._removed = False

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Samples and labels of up to `count` stored samples; the next training forward is on them."""
        self._refuse_if_removed()
        if len(self.memory) == 0:
            raise BudgetedError("there is nothing to draw: call memory.add(samples, labels) first")
        slots = self.retrieval.draw(self.memory.slots, count, self._generator)
        batch = self.memory.slots.gather(slots)
        self._drawn = batch.labels
        if self.sampled is not None and self.retrieval.wants_gradients:
            self.sampled.stop()  # what a step without update() left
            self.sampled.start()
        return batch.samples, batch.labels

    def update(self, rows: slice | Sequence[int] | None = None, *, scaler: torch.amp.GradScaler | None = None) -> None:
        """After the backward: learn from the gradients how similar the classes are.

        `rows` are the places of the drawn samples in the batch, in the order drawn, if the batch held others too.
        With a GradScaler give it here too.
        """
        self._refuse_if_removed()
        labels = self._drawn
        if labels is None:
            raise BudgetedError("update() came without a draw: call draw(count), train on what it gives, then update()")
        self._drawn = None
        similarity = 0
        if self.retrieval.wants_gradients:
            similarity = self._observe(labels, rows, 1.0 if scaler is None else float(scaler.get_scale()))
        if self.ledger is not None:
            self.ledger.charge({"retrieval": Cost(0, self.retrieval.price()), "similarity": Cost(0, similarity)})
            self.ledger.steps -= 1  # a part of the training step, which is counted by itself

    def remove(self) -> None:
        """Take every hook off the model; this is of no more use then."""
        self._removed = True
        if self._first is not None:
            self._first.remove()
        if self.sampled is not None:
            self.sampled.stop()

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain numbers; the memory has a state of its own. Save both after an `update`."""
        return {
            "format": FORMAT,
            "retrieval": {name: tensor.clone() for name, tensor in self.retrieval.state().items()},
            "generator": self._generator.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on as saved; load the memory first."""
        if state.get("format") != FORMAT or not {"retrieval", "generator"} <= set(state):
            raise BudgetedError("this is no saved state of a retrieval: give what its state_dict() returned")
        if len(self.memory):
            self.retrieval.load_state(state["retrieval"])
        self._generator.bit_generator.state = state["generator"]
        self._drawn = None

    def _observe(self, labels: Tensor, rows: slice | Sequence[int] | None, scale: float) -> int:
        if self.sampled is None:
            raise BudgetedError("update() came without a training forward: train on what draw() gave, then update()")
        step = self.sampled.take()
        self.sampled.stop()
        values = step.values if rows is None else step.values[rows]
        if len(values) != len(labels):
            raise BudgetedError(
                f"{len(labels)} samples were drawn, but the batch has {len(values)} rows: tell which ones are theirs, "
                "as in update(rows=slice(8, None))"
            )
        if bool(torch.isfinite(values).all()):  # after an overflow in half precision the optimizer skips the step too
            self.retrieval.observe(values / scale, step.present, labels)
        return self.sampled.price(step.present)

    def _see_first(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """The first training forward shows which layer is the head."""
        if torch.is_grad_enabled() and not tracing():
            self._first.remove()
            chain = block_chain(self.model, args, kwargs) if self._freezing is None else self._freezing.chain
            self._sample([chain.head] if chain.feature_of is None and chain.head else [])
            if self._drawn is not None and self.sampled is not None:
                self.sampled.start()

    def _sample(self, exclude: Collection[str]) -> SampledGradients:
        hidden = [path for path in compiled_paths(self.model) if path not in exclude]
        if hidden:
            raise BudgetedError(
                f"{hidden[0]} is compiled, and no gradient can be read inside compiled code: "
                "give exclude=[...] with every compiled module and the head"
            )
        self.sampled = SampledGradients(self.model, exclude=exclude, **self._sampling)  # type: ignore[arg-type]
        return self.sampled

    def _refuse_if_removed(self) -> None:
        if self._removed:
            raise BudgetedError(
                "this SimilarityAwareRetrieval was removed from its model: make a new one, with a new memory, to go on"
            )

    def _skip(self, frozen: Sequence[nn.Parameter]) -> None:
        if self.sampled is not None:
            self.sampled.skip(frozen)
