"""What a model said, read and scored: a choice out of a list, or a sentence beside the right one.

**A choice** is read by rule, not by taste: the text is one of the choices, or names exactly one of them as whole
words. What names none or several is unparsed, and counts as wrong.

**A sentence** is scored by token-F1: words of both, folded to lower case, counted as often as they occur. On the 262
captions of Bongard-OpenWorld it tells a near-right answer from another problem's caption (AUC 0.9999), and so does
chrF (from sacrebleu, an extra); BLEU does not (0.93), and is not offered.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from budgeted.errors import needed

_WORD = re.compile(r"[^\W_]+")


def chosen(text: str, choices: Sequence[str]) -> str | None:
    """The choice that an answer means; None if it cannot be told.

    >>> chosen("Positive.", ("Positive", "Negative"))
    'Positive'
    >>> chosen("neither positive nor negative", ("Positive", "Negative")) is None
    True
    """
    words = _words(text)
    exact = [choice for choice in choices if _words(choice) == words]
    if exact:
        return exact[0]
    named = [choice for choice in choices if _occurs(_words(choice), words)]
    # of `type` and `type on` the longer one is meant where both occur
    longest = [one for one in named if not any(_occurs(_words(one), _words(other)) for other in named if other != one)]
    return longest[0] if len(longest) == 1 else None


@dataclass(frozen=True, slots=True)
class Scored:
    """Answers to questions with choices."""

    questions: int
    right: int
    unparsed: int
    """among the wrong ones: no choice could be read from them"""

    @property
    def accuracy(self) -> float:
        return self.right / self.questions if self.questions else 0.0


def score_choices(said: Iterable[str], choices: Iterable[Sequence[str]], answers: Iterable[str]) -> Scored:
    """P/N and CA accuracy: how many answers mean the right choice, and how many mean none."""
    read = [(chosen(text, listed), answer) for text, listed, answer in zip(said, choices, answers, strict=True)]
    return Scored(
        len(read), sum(choice == answer for choice, answer in read), sum(choice is None for choice, _ in read)
    )


def token_f1(said: str, right: str) -> float:
    """Twice the words in common over the words of both; 1 for the same words in any order.

    >>> round(token_f1("a ring", "A ring shaped decoration."), 3)
    0.667
    """
    ours, theirs = Counter(_words(said)), Counter(_words(right))
    both = sum((ours & theirs).values())
    return 2 * both / (ours.total() + theirs.total()) if both else 0.0


def chrf(said: str, right: str) -> float:
    """Character n-gram F-score, from 0 to 1, as sacrebleu computes it."""
    scores = needed("sacrebleu.metrics.chrf", "chrF needs the package sacrebleu: pip install 'budgeted[scores]'")
    return float(scores.CHRF().sentence_score(said, [right]).score) / 100


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _occurs(part: Sequence[str], whole: Sequence[str]) -> bool:
    size = len(part)
    return bool(size) and any(list(whole[i : i + size]) == list(part) for i in range(len(whole) - size + 1))
