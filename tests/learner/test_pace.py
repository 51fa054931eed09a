"""Steps that are due, against plain arithmetic: by steps, by a total over the stream, by a rate without end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from budgeted.budget import Budget, Compute, Cost, Ledger, parse_compute
from budgeted.budget.account import Account
from budgeted.errors import BudgetedError
from budgeted.learner import DataFacts, Learner
from budgeted.learner.pace import Pace
from budgeted.learner.rehearsal import Course, rehearse
from budgeted.methods import METHODS
from tests.bright_rows import FACTS, SHAPE, samples
from tests.learner.small import cnn8, make, settings_of, tiny

MOST = 1000


@dataclass
class Stream:
    """Samples, and steps that cost what they cost; no learner."""

    budget: Budget
    iterations: float | None = None
    samples: int | None = None
    spend_savings: bool = False
    spending: tuple[float, ...] = ()
    power: float = 1.0
    freezes: bool = True
    costs: Callable[[int], int] = lambda step: MOST
    beside: Callable[[int], int] = lambda arrived: 0
    steps_at: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.budget.compute)
        self.account = Account(self.ledger)
        self.pace = Pace(
            self.account, self.budget, self.iterations, self.samples, spend_savings=self.spend_savings,
            spending=self.spending, power=self.power,
        )  # fmt: skip

    def arrive(self, count: int) -> None:
        for _ in range(count):
            self.ledger.arrived += 1
            self.pace.arrive(self.ledger.arrived - 1, lambda: MOST)
            beside = Cost(0, self.beside(self.ledger.arrived))
            if self.account.affords(beside):
                self.account.charge("retrieval", beside)
            while self.pace.due and not self.pace.spent_up:
                if not self.pace.affords(MOST, self.ledger.arrived, self.ledger.steps):
                    break
                self.pace.take()
                cost = self.costs(self.ledger.steps)
                self.ledger.charge({"forward": Cost(0, cost)})
                self.pace.note(cost, MOST, MOST - cost if self.freezes else 0)
            self.steps_at.append(self.ledger.steps)
            allowed = self.ledger.allowed
            assert allowed is None or self.ledger.spent.real <= allowed

    def parts(self, count: int) -> list[int]:
        """Steps in equal parts of the stream."""
        ends = [len(self.steps_at) * part // count for part in range(1, count + 1)]
        return [int(steps) for steps in np.diff([0, *(self.steps_at[end - 1] for end in ends)])]


def real(amount: int, *, each: bool = False) -> Budget:
    return Budget(Compute(amount, "real", each))


# -- by steps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [0.0, 0.1, 1 / 3, 0.7, 1.0, 2.5])
def test_steps_are_as_many_as_the_samples_make_and_even(iterations: float) -> None:
    stream = Stream(Budget(), iterations)
    stream.arrive(300)
    assert stream.steps_at == [int(iterations * arrived + 1e-6) for arrived in range(1, 301)]


# -- by a total ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [7, 60, 250, 1013])
def test_a_total_is_spent_evenly_over_the_stream(steps: int) -> None:
    stream = Stream(real(steps * MOST + 3), samples=250)
    stream.arrive(250)
    assert stream.ledger.steps == steps
    assert max(stream.parts(5)) - min(stream.parts(5)) <= 1
    assert not stream.pace.spent_up or stream.steps_at.index(steps) >= 245


def test_cheaper_steps_buy_more_of_them_to_the_end() -> None:
    """From the middle on blocks rest, and a step costs half."""
    stream = Stream(real(400 * MOST), samples=400, costs=lambda step: MOST if step < 200 else MOST // 2)
    stream.arrive(400)
    assert 400 * MOST - stream.ledger.spent.real < 2 * MOST
    first, second = stream.parts(2)
    assert first == pytest.approx(200, abs=1)
    assert second == pytest.approx(400, rel=0.02)
    tenths = stream.parts(10)[7:]  # once it is known what steps cost now
    assert max(tenths) - min(tenths) <= 0.1 * max(tenths)


def test_what_is_run_beside_the_steps_is_paid_by_fewer_of_them() -> None:
    stream = Stream(real(400 * MOST), samples=400, beside=lambda arrived: 20 * MOST if arrived % 80 == 40 else 0)
    stream.arrive(400)
    assert stream.ledger.spent_on["retrieval"].real == 5 * 20 * MOST
    assert 400 * MOST - stream.ledger.spent.real < 2 * MOST
    assert stream.ledger.steps in (299, 300)


# -- early or late -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [None, 0.8, 2.0])
@pytest.mark.parametrize("power", [0.5, 0.8, 1.5])
def test_so_many_steps_have_come_as_the_power_says(power: float, iterations: float | None) -> None:
    whole = 400 if iterations is None else int(500 * iterations)
    stream = Stream(real(whole * MOST + 7), iterations, samples=500, power=power)
    stream.arrive(500)
    assert stream.ledger.steps == whole
    for arrived in range(1, 501):
        assert stream.steps_at[arrived - 1] == pytest.approx(whole * (arrived / 500) ** power, abs=1.01)


def test_savings_are_spent_along_the_power() -> None:
    stream = Stream(real(300 * MOST), 1.0, 300, spend_savings=True, power=0.5, costs=lambda step: MOST // 2)
    stream.arrive(300)
    assert 300 * MOST - stream.ledger.spent.real < 3 * MOST
    assert stream.steps_at[149] == pytest.approx(600 * 0.5**0.5, rel=0.05)


def test_a_power_needs_a_length_and_no_rate() -> None:
    for budget, length in ((Budget(), None), (real(MOST, each=True), 300)):
        with pytest.raises(BudgetedError, match=r"pace_power=0\.5 goes by the length of the stream"):
            Stream(budget, 1.0, length, power=0.5)


# -- by a rate ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.1, 0.75, 1.0, 3.3])
def test_a_rate_goes_on_without_end_and_is_never_exceeded(rate: float) -> None:
    amount = round(rate * MOST)
    stream = Stream(real(amount, each=True))
    for _ in range(20):
        stream.arrive(40)
        assert stream.ledger.arrived * amount - stream.ledger.spent.real < 2 * MOST
    assert not stream.pace.spent_up
    assert max(stream.parts(20)) - min(stream.parts(20)) <= 1


def test_a_rate_that_does_not_pay_for_one_step_saves_up() -> None:
    stream = Stream(real(MOST // 10, each=True))
    stream.arrive(9)
    assert stream.ledger.steps == 0
    stream.arrive(91)
    assert stream.ledger.steps in (9, 10)
    assert not stream.pace.spent_up


# -- savings ------------------------------------------------------------------------------------------------------


def test_without_savings_as_many_steps_as_were_said() -> None:
    stream = Stream(real(300 * MOST), 1.0, 300, costs=lambda step: MOST // 2)
    stream.arrive(300)
    assert stream.steps_at == [*range(1, 301)]
    assert stream.ledger.left == 150 * MOST


def test_savings_are_spent_over_the_rest_of_the_stream() -> None:
    stream = Stream(real(300 * MOST), 1.0, 300, spend_savings=True, costs=lambda step: MOST // 2)
    stream.arrive(300)
    assert 300 * MOST - stream.ledger.spent.real < 3 * MOST
    first, *middle, last = stream.parts(5)
    assert max(middle) - min(middle) <= 1
    assert 1.5 * 60 < first < middle[0] < last < 1.15 * middle[0]  # what a twentieth saves is spent in the next one


def test_savings_under_a_rate_are_spent_too() -> None:
    stream = Stream(real(MOST, each=True), 1.0, 300, spend_savings=True, costs=lambda step: MOST // 2)
    stream.arrive(300)
    assert 300 * MOST - stream.ledger.spent.real < 3 * MOST


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_steps_are_even_where_nothing_is_frozen_whatever_is_run_beside_them(planned: bool, late: bool) -> None:
    """Much is run beside the steps in the last third of the stream, or in the first; and steps differ in their cost."""

    def beside(arrived: int) -> int:
        return 2 * MOST if (arrived > 200) == late else 0

    times = sum(beside(arrived) for arrived in range(1, 301)) // MOST
    spent = np.cumsum([MOST + beside(arrived) for arrived in range(1, 301)])
    spending = tuple((spent[9::10] / spent[-1]).tolist()) if planned else ()
    stream = Stream(
        real((300 + times) * MOST), 1.0, 300, spend_savings=True, spending=spending, beside=beside, freezes=False,
        costs=lambda step: MOST - 50 * (step % 7),
    )  # fmt: skip
    stream.arrive(300)
    assert stream.steps_at == [*range(1, 301)]


def test_savings_are_no_more_than_the_plan_has_left() -> None:
    """Half of every step rests, but as much is run beside the steps that nobody planned: nothing is there to spend."""
    stream = Stream(real(300 * MOST), 1.0, 300, spend_savings=True, costs=lambda step: MOST // 2, beside=lambda n: 500)
    stream.arrive(300)
    assert stream.steps_at[:299] == [*range(1, 300)]


# -- saved and loaded ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "more"),
    [
        (real(317 * MOST), {"samples": 300}),
        (real(730, each=True), {}),
        (real(300 * MOST), {"iterations": 1.0, "samples": 300, "spend_savings": True}),
        (Budget(), {"iterations": 0.37}),
        (real(317 * MOST), {"samples": 300, "power": 0.6}),
    ],
    ids=["total", "rate", "savings", "steps", "early"],
)
def test_a_pace_goes_on_where_it_was(budget: Budget, more: dict[str, object]) -> None:
    def cost(step: int) -> int:
        return 500 + step * 37 % 400

    whole, first, again = (Stream(budget, costs=cost, **more) for _ in range(3))  # type: ignore[arg-type]
    whole.arrive(300)
    first.arrive(113)
    again.pace.load_state(first.pace.state())
    again.ledger.load_state_dict(first.ledger.state_dict())
    again.ledger.arrived = first.ledger.arrived
    again.arrive(187)
    assert first.steps_at + again.steps_at == whole.steps_at


# -- refusals -----------------------------------------------------------------------------------------------------


def test_a_total_needs_a_length() -> None:
    with pytest.raises(BudgetedError, match="say how many samples there are, give iterations, or give a rate"):
        Stream(real(10**6))
    for iterations in (-1.0, float("nan"), float("inf")):
        with pytest.raises(BudgetedError, match="iterations per sample"):
            Stream(Budget(), iterations)


def test_extras_that_were_met_must_be_there_twice_before_a_step_begins() -> None:
    stream = Stream(real(10 * MOST), 1.0)
    stream.pace.met(3 * MOST, -5)
    stream.arrive(20)
    assert stream.ledger.steps == 4  # of ten, six must be left
    assert stream.pace.spent_up


# -- in a learner -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vanilla", "er", "al-sar", "clib"])
def test_a_learner_keeps_to_a_rate(name: str) -> None:
    free = make(name, tiny())
    for image, label in samples(60):
        free.learn(image, label)
    rate = round(0.6 * free.ledger.spent.real / 60)
    learner: Learner = make(name, tiny(), budget=Budget(parse_compute(f"{rate}FLOP/sample")), iterations=None)
    for arrived, (image, label) in enumerate(samples(160), 1):
        learner.learn(image, label)
        assert learner.ledger.spent.real <= rate * arrived
    assert learner.ledger.spent.real > 0.9 * rate * 160
    assert not learner.spent_up


def test_a_learner_spreads_a_total_by_itself() -> None:
    facts = DataFacts(SHAPE, FACTS.mean, FACTS.std, classes=4, samples=120)
    one = make("vanilla", tiny()).network.most(4).real
    learner = make("vanilla", tiny(), facts=facts, budget=real(200 * one), iterations=None)
    steps = []
    for image, label in samples(120):
        learner.learn(image, label)
        steps.append(learner.steps)
    assert learner.ledger.spent.real > 0.98 * 200 * one
    fifths = np.diff([0, *steps[23::24]])
    assert max(fifths[1:]) - min(fifths[1:]) <= 1  # the first steps are on smaller batches


@pytest.mark.parametrize("name", ["vanilla", "er"])
def test_early_steps_wait_for_a_full_batch(name: str) -> None:
    facts = DataFacts(SHAPE, FACTS.mean, FACTS.std, classes=4, samples=120)
    settings = settings_of(METHODS[name], batch_size=8, pace_power=0.5)
    learner, sizes = make(name, tiny(), facts=facts, settings=settings), []
    learner.model.register_forward_pre_hook(lambda module, given: sizes.append(len(given[0])))
    for arrived, (image, label) in enumerate(samples(120), 1):
        learner.learn(image, label)
        if name == "vanilla" and arrived >= 8:
            assert learner.steps == pytest.approx(120 * (arrived / 120) ** 0.5, abs=1)
    assert learner.steps == pytest.approx(120, abs=1)
    assert set(sizes) <= {8, 2, 128}  # of steps, of what is priced


def test_a_rehearsal_weighs_steps_by_when_they_come() -> None:
    """Steps of the first half are on smaller images."""
    facts = DataFacts(SHAPE, FACTS.mean, FACTS.std, classes=4, samples=200)
    settings = settings_of(METHODS["vanilla"], pace_power=0.5, train_size=4, train_size_until=0.5)
    stream = list(samples(200))
    learner = make("vanilla", cnn8(), facts=facts, settings=settings)
    halves = []
    for image, label in stream:
        learner.learn(image, label)
        halves.append(learner.ledger.spent.real)
    course = Course(np.array([label for _, label in stream]), (), (200,))
    found = rehearse(lambda **more: make("vanilla", cnn8(), facts=facts, settings=settings, **more), course)
    assert found.whole(learner.steps).real == pytest.approx(learner.ledger.spent.real, rel=0.01)
    spending = found.spending(learner.steps, "real")
    assert spending[len(spending) // 2 - 1] == pytest.approx(halves[99] / halves[199], rel=0.03)
