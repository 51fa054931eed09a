"""From problems to questions, by the rules of the published item files.

**P/N**: two positive pictures, two negative ones and a query; is the query positive or negative? The query is the last
picture of its side (index 6 or 13), the others are drawn from the six before it, for each question by itself. One
question of either kind for a problem of Bongard-HOI, three of Bongard-OpenWorld: there the positive ones take pairs
in order (0 1, 2 3, 4 5), as the published test file does.

**CA**: what do the positive pictures share? Two pictures of each side, and the problem's own actions as choices in
alphabetical order, at most four, the right one among them. For sentences (OpenWorld) there is nothing to choose from;
the prompt of the published experiment is not known, so the wording here is ours.

`every_triple` is the larger set of the published OpenWorld runs: a question for every three of seven (35 a problem).
Which of the three is asked about is not said; here it is the last (CA shows the other two, 15 different pairs).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from budgeted.errors import UnknownName
from budgeted.streams.bongard.problem import PLACE, SIDE, Item, Problem

Kind = Literal["pn", "ca"]
POSITIVE, NEGATIVE = "Positive", "Negative"
MOST_CHOICES = 4
_CHOICES = ("Choice List: [", "Choice list:[")
_GIVEN = 'Given 2 "positive" images and 2 "negative" images, where '
_HOI = (
    'both "positive" and "negative" images share a "common" object, and only "positive" images share a "common" action '
    'whereas "negative" images have different actions compared to the "positive" images, the "common" action is '
    'exclusively depicted by the "positive" images.'
)
_OPENWORLD = (
    '"positive" images share "common" visual concepts and "negative" images cannot, the "common" visual concepts '
    'exclusively depicted by the "positive" images.'
)
_QUERY = ' And then given 1 "query" image, please determine whether it belongs to "positive" or "negative".'


@dataclass(frozen=True, slots=True)
class Wording:
    """What a question says beside its pictures and its choices."""

    pn: str
    ca: str
    rounds: int = 1
    """questions of either kind for a problem, P/N; above 1 the positive ones take pairs in order"""


HOI = Wording(
    pn=_GIVEN + _HOI + _QUERY + "\n",
    ca=_GIVEN + _HOI + ' Your job is to find the "common" action within the "positive" images. '
    "You must choose your answer from the Choice List.\n",
)
OPENWORLD = Wording(
    pn=_GIVEN + _OPENWORLD + _QUERY + "\n",
    ca=_GIVEN + _OPENWORLD + ' Describe in one sentence what the "positive" images share.\n',
    rounds=3,
)
SHORT = Wording(pn="", ca="")
"""for a small model and pictures of our own: the same lines without the explanation"""


def items_of(problems: Sequence[Problem], kind: Kind, wording: Wording, seed: int = 0) -> list[Item]:
    """The questions over `problems`, in their order; those of one problem depend on its id and the seed alone."""
    return [item for problem in problems for item in _items(problem, _known(kind), wording, seed)]


def _items(problem: Problem, kind: Kind, wording: Wording, seed: int) -> list[Item]:
    generator = np.random.default_rng([seed, kind == "ca", *problem.id.encode()])
    if kind == "ca":
        supports = _pair(generator), _pair(generator, SIDE)
        return [_ca(problem, f"{problem.id}-ca", wording, supports, _choices(problem, generator))]
    found = []
    for turn in range(wording.rounds):
        first = 2 * turn
        for answer, query in ((POSITIVE, SIDE - 1), (NEGATIVE, 2 * SIDE - 1)):
            if wording.rounds > 1 and answer == POSITIVE:
                supports = (first, first + 1), (SIDE + first, SIDE + first + 1)
            else:
                supports = _pair(generator), _pair(generator, SIDE)
            found.append(_pn(problem, f"{problem.id}-{first}-{answer.lower()}", wording, supports, query, answer))
    return found


def every_triple(problems: Iterable[Problem], kind: Kind, wording: Wording, seed: int = 0) -> list[Item]:
    """A question, P/N one of either kind, for every three of the seven pictures of each side."""
    found = []
    for problem in problems:
        generator = np.random.default_rng([seed, *problem.id.encode()])
        for number, (a, b, c) in enumerate(combinations(range(SIDE), 3)):
            name, supports = f"{problem.id}-{number}", ((a, b), (SIDE + a, SIDE + b))
            if _known(kind) == "ca":
                found.append(_ca(problem, f"{name}-ca", wording, supports, _choices(problem, generator)))
                continue
            found.append(_pn(problem, f"{name}-positive", wording, supports, c, POSITIVE))
            found.append(_pn(problem, f"{name}-negative", wording, supports, SIDE + c, NEGATIVE))
    return found


_Supports = tuple[tuple[int, int], tuple[int, int]]


def _pn(problem: Problem, name: str, wording: Wording, supports: _Supports, query: int, answer: str) -> Item:
    question = f"{_shown()}Query: {PLACE}\n{wording.pn}Choice list:[{POSITIVE}, {NEGATIVE}]. Your answer is:"
    chosen = (*supports[0], *supports[1], query)
    pictures = tuple(problem.pictures[index] for index in chosen)
    return Item(name, problem.concept, question, pictures, answer, (POSITIVE, NEGATIVE))


def _ca(problem: Problem, name: str, wording: Wording, supports: _Supports, choices: tuple[str, ...]) -> Item:
    listed = f"Choice List: [{', '.join(choices)}] " if choices else ""
    pictures = tuple(problem.pictures[index] for side in supports for index in side)
    question = f"{_shown()}{wording.ca}{listed}Your answer is:"
    return Item(name, problem.concept, question, pictures, problem.answer, choices)


def _shown() -> str:
    return f"Positive: {PLACE}{PLACE}\nNegative: {PLACE}{PLACE}\n"


def _pair(generator: np.random.Generator, offset: int = 0) -> tuple[int, int]:
    """Two of the six pictures before the last one of a side, in the order drawn."""
    first, second = generator.permutation(SIDE - 1)[:2]
    return offset + int(first), offset + int(second)


def _choices(problem: Problem, generator: np.random.Generator) -> tuple[str, ...]:
    others = sorted(set(problem.actions) - {problem.answer})
    if not others:
        return ()
    drawn = generator.permutation(len(others))[: MOST_CHOICES - 1]
    return tuple(sorted([problem.answer, *(others[index] for index in drawn)]))


def listed(question: str) -> tuple[str, ...]:
    """The choices that a question lists; none where it asks for a sentence.

    >>> listed("Choice List: [kick, catch] Your answer is:")
    ('kick', 'catch')
    >>> listed("Choice List: [] Your answer is:")
    ()
    """
    for start in _CHOICES:
        _, found, rest = question.partition(start)
        if found and "]" in rest:
            return tuple(choice.strip() for choice in rest.split("]")[0].split(",") if choice.strip())
    return ()


def _known(kind: Kind) -> Kind:
    if kind not in ("pn", "ca"):
        raise UnknownName("kind of question", str(kind), ("pn", "ca"))
    return kind
