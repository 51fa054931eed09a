"""Five disjoint tasks of concepts: found in a published order, or drawn from a seed.

The published training files are in the order of their tasks: each brings a tenth of the concepts that no other has. The
files of other seeds are not all to be had, so an order can also be drawn: concepts are dealt to tasks,
and the problems of a task come shuffled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from budgeted.errors import BudgetedError
from budgeted.streams.bongard.problem import Item, Problem

TASKS = 5


def task_starts(problems: Sequence[Problem] | Sequence[Item], tasks: int = TASKS) -> list[int]:
    """Where each task begins in an order that is by task; an order in which concepts come back is refused."""
    concepts = list(dict.fromkeys(problem.concept for problem in problems))
    if not 1 <= tasks <= len(concepts):
        raise BudgetedError(f"{len(concepts)} concepts cannot be dealt to {tasks} tasks: ask for 1 to {len(concepts)}")
    task_of = {concept: number * tasks // len(concepts) for number, concept in enumerate(concepts)}
    order = [task_of[problem.concept] for problem in problems]
    if order != sorted(order):
        raise BudgetedError(
            f"the problems are not in the order of {tasks} disjoint tasks: give them as published, or deal them anew"
        )
    return [order.index(task) for task in range(tasks)]


def dealt(problems: Sequence[Problem], seed: int, tasks: int = TASKS) -> tuple[Problem, ...]:
    """The problems in an order of disjoint tasks: concepts dealt to tasks, problems shuffled in each."""
    concepts = sorted({problem.concept for problem in problems})
    if not 1 <= tasks <= len(concepts):
        raise BudgetedError(f"{len(concepts)} concepts cannot be dealt to {tasks} tasks: ask for 1 to {len(concepts)}")
    generator = np.random.default_rng(seed)
    places = generator.permutation(len(concepts))
    task_of = {concept: int(place) * tasks // len(concepts) for concept, place in zip(concepts, places, strict=True)}
    shuffled = [problems[i] for i in generator.permutation(len(problems))]
    return tuple(sorted(shuffled, key=lambda problem: task_of[problem.concept]))
