"""The next batch, made in another thread while the network is at work on this one.

Where neither method nor selection nor retrieval looks at what a step has done, the sample that comes next can be stored
and the next batch drawn, decoded and varied before the step has ended. Selection, retrieval and augmentation draw from
generators of their own, each in the same order as without: no bit of a result changes, only the waiting. Nothing is
under way between two calls of `learn`; a batch that is not used after all is as if it had never been drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.learner.holding import AsGiven
from budgeted.methods import Method
from budgeted.problems import Classification, Sample
from budgeted.replay import Considers
from budgeted.replay.memory import Batch

if TYPE_CHECKING:
    from budgeted.learner.learner import Learner

Work = tuple[int, int]
"""samples that the memory's codec decoded and encoded"""
MOVED = ("retrieval", "augmentation")
"""generators that a batch draws from"""
LEFT_ALONE = ("admits", "pick", "loss", "after_backward", "after_step", "stored")
"""verbs with which a method may look at the memory, or change what is in it"""


@dataclass(frozen=True)
class Drawn:
    """The batch of a step, as the network will see it."""

    replayed: Batch
    new: int
    """how many samples of the stream stand before the replayed ones"""
    samples: Sample
    labels: Tensor
    inputs: Any
    gradients: Mapping[str, Tensor]
    """of samples of the stream that the retrieval has run already, by parameter"""
    work: Work
    operations: int
    """of the retrieval"""


@dataclass(frozen=True)
class Stored:
    """A sample that has not been learned yet, and is in the memory."""

    sample: Any
    label: Any
    slot: int | None
    work: Work


class Meanwhile:
    """At most one sample that is stored, and one batch that is made, ahead of the call that brings them."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self.on = False
        self.announced: tuple[Any, Any] | None = None  # the sample of the next call and its label, if they are known
        self._thread: ThreadPoolExecutor | None = None
        self._under_way: Future[None] | None = None
        self._stored: Stored | None = None
        self._batch: Drawn | None = None
        self._before: dict[str, Any] = {}  # states of the generators that the batch was drawn from

    @property
    def busy(self) -> bool:
        return self._under_way is not None

    def begin(self) -> None:
        """The batch of this step is there: make the next one, for a step that is due on the same memory, or for the
        sample that was announced."""
        again = self._learner.pace.due > 0
        if self.on and (again or self.announced is not None) and self._independent():
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="meanwhile")
            self._under_way = self._thread.submit(self._work, None if again else self.announced)

    def wait(self) -> None:
        """Until nothing is under way; what went wrong there is raised here."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()

    def batch(self) -> Drawn | None:
        """That of the step which begins, if it was made."""
        batch, self._batch = self._batch, None
        return batch

    def stored(self, sample: Any, label: Any) -> Stored | None:
        """What was done for the sample that comes now, if it was said that it would."""
        stored, self._stored = self._stored, None
        if stored is not None and (stored.sample is not sample or stored.label != label):
            self._stored = stored
            raise BudgetedError("learn() was told that another sample comes then: give the very one that was announced")
        return stored

    def settle(self) -> None:
        """No step is due: a batch was made for one that is not run, unless a sample is still to come for it."""
        self.announced = None
        if self._stored is None:
            self.undo()

    def undo(self) -> None:
        """As if the batch had not been drawn."""
        if self._batch is not None:
            self._batch = None
            self._rewind()

    def refuse_between(self) -> None:
        """Whatever looks at the memory now would find a sample there that has not been learned."""
        if self._stored is not None:
            raise BudgetedError(
                "the sample that comes then is in the memory already: give it to learn() before anything else (in a "
                "run: look at the learner where a checkpoint is written, or give --decode-threads 0)"
            )

    def _rewind(self) -> None:
        self._learner.generators.load_state(self._before)

    def _independent(self) -> bool:
        """Whether nobody looks at what the step under way does."""
        learner, method, retrieval = self._learner, type(self._learner.method), self._learner.retrieval
        return (
            all(getattr(method, verb) is getattr(Method, verb) for verb in LEFT_ALONE)
            and method.choices == 1
            and not method.leaves_out
            and retrieval.independent
            and not (retrieval.wants_gradients or retrieval.wants_stream)
            and learner.settings.learner.candidates == 1
            and not isinstance(learner.selection, Considers)
            and isinstance(learner.holding, AsGiven)
            and isinstance(learner.problem, Classification)
            and learner.device.type == "cpu"
        )

    def _work(self, then: tuple[Any, Any] | None) -> None:
        learner = self._learner
        if then is not None:
            try:
                sample, label = learner.problem.check(then[0]), learner.problem.key(then[1])
                row = learner.problem.row(label)
                if row is None:
                    return  # the network grows first
                self._stored = Stored(*then, *learner.store(learner.holding.held(sample), row))
            except BudgetedError:
                return  # refused before anything has changed, and again when it comes
        states = learner.generators.state()
        self._before = {name: states[name] for name in MOVED}
        try:
            self._batch = learner.draw()
        except Exception:  # the step that it is for will meet the same, where it belongs
            self._rewind()
