"""What a Bongard set really is: counts, and what the names of its parts do not tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from budgeted.streams.bongard.problem import Problem


@dataclass(frozen=True, slots=True)
class Facts:
    """Of a training part and a test part."""

    train: int
    test: int
    concepts: int
    concepts_in_test: int
    new_in_test: int
    """concepts of the test part that training never shows"""
    rarest: int
    most_common: int
    """training problems of the rarest and of the most common concept"""
    pictures: int
    used: int
    """times that a training problem uses a picture"""
    in_both: int
    """pictures of training and test alike"""
    touched: int
    """test problems that have one of those"""
    two_labels: int
    """pictures that stand for two concepts or more"""

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"{self.train:,} problems to train on, {self.test:,} to test on, 14 pictures each",
            f"{self.concepts} concepts ({self.rarest} to {self.most_common} problems each), "
            f"{self.concepts_in_test} of them tested, {self.new_in_test} tested ones never trained",
            f"{self.pictures:,} pictures; training uses its own {self.used:,} times",
            f"{self.in_both:,} pictures lie in training and test; they touch {self.touched:,} of {self.test:,} test "
            "problems",
            f"{self.two_labels:,} pictures carry two labels or more",
        ]


def facts_of(train: Sequence[Problem], test: Sequence[Problem]) -> Facts:
    """Counted from the problems; no picture is looked at."""
    per_concept = Counter(problem.concept for problem in train)
    tested = {problem.concept for problem in test}
    names = [{name for problem in part for name in problem.pictures} for part in (train, test)]
    both = names[0] & names[1]
    labels: dict[str, set[str]] = {}
    for problem in (*train, *test):
        for name, action in zip(problem.pictures, problem.actions, strict=False):
            labels.setdefault(name, set()).add(f"{action} {problem.concept.partition(' ')[2]}")
    return Facts(
        train=len(train),
        test=len(test),
        concepts=len(per_concept),
        concepts_in_test=len(tested),
        new_in_test=len(tested - set(per_concept)),
        rarest=min(per_concept.values(), default=0),
        most_common=max(per_concept.values(), default=0),
        pictures=len(names[0] | names[1]),
        used=sum(len(problem.pictures) for problem in train),
        in_both=len(both),
        touched=sum(not both.isdisjoint(problem.pictures) for problem in test),
        two_labels=sum(len(found) > 1 for found in labels.values()),
    )
