"""Sentences scored by a language model at an address that the user gives, by the protocol of OpenAI's chat endpoint.

A judge may refuse, ramble or be away. What gives no number from 1 to 10 is a failure: counted, never part of a mean.
A judge's scores and those computed here (token-F1, chrF) are different quantities and are never mixed.
"""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from budgeted.errors import BudgetedError

LOWEST, HIGHEST = 1, 10
MOST_BYTES = 2**20
KEY = "BUDGETED_JUDGE_KEY"
"""where a run finds the key of its judge: in the environment, since a configuration is written down"""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Judged:
    """Scores that a judge gave, on its own scale from 1 to 10."""

    scores: tuple[float | None, ...]
    """in the order asked; None where it failed"""
    reasons: tuple[str, ...]
    """of the failures, in order"""

    @property
    def failures(self) -> int:
        return len(self.reasons)

    @property
    def mean(self) -> float | None:
        """Over the answers that were scored; None if none was."""
        given = [score for score in self.scores if score is not None]
        return sum(given) / len(given) if given else None


@dataclass(frozen=True, slots=True)
class Judge:
    """A chat model at `address`, such as http://localhost:8000/v1."""

    address: str
    model: str
    key: str = ""
    """sent as the bearer's token; never written anywhere"""
    seconds: float = 60.0
    """to wait for one answer"""

    def __post_init__(self) -> None:
        if not self.address.startswith(("http://", "https://")):
            raise BudgetedError(f"{self.address!r} is no address of a judge: give http://… or https://…, up to /v1")

    def score(self, pairs: Iterable[tuple[str, str]]) -> Judged:
        """Each pair is what was said and what is right."""
        scores: list[float | None] = []
        reasons: list[str] = []
        for said, right in pairs:
            try:
                scores.append(_number(self._ask(said, right)))
            except _Failed as failure:
                scores.append(None)
                reasons.append(str(failure))
        return Judged(tuple(scores), tuple(reasons))

    def _ask(self, said: str, right: str) -> str:
        asked = {
            "model": self.model,
            "temperature": 0,
            "messages": [{"role": "user", "content": _question(said, right)}],
        }
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        request = urllib.request.Request(
            f"{self.address.rstrip('/')}/chat/completions", json.dumps(asked).encode(), headers, method="POST"
        )
        try:
            with _OPENER.open(request, timeout=self.seconds) as answer:
                content = json.loads(answer.read(MOST_BYTES))["choices"][0]["message"]["content"]
        except urllib.error.HTTPError as error:
            raise _Failed(f"the judge answered {error.code}") from None
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            raise _Failed(f"no answer ({type(error).__name__})") from None
        except (KeyError, IndexError, TypeError):
            raise _Failed("an answer that is no chat completion") from None
        if not isinstance(content, str):
            raise _Failed("an answer without text")
        return content


class _Stays(urllib.request.HTTPRedirectHandler):
    """Goes nowhere else: the key is for the address that the user gave."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_Stays)


class _Failed(Exception):
    """One answer was not scored."""


def _question(said: str, right: str) -> str:
    return (
        "Score how well the answer says the same as the reference, from 1 (something else) to 10 (the same). "
        f"Write the number alone on the last line.\nReference: {right}\nAnswer: {said}"
    )


def _number(text: str) -> float:
    """The last number of the last line, if it is one of the scale."""
    lines = text.strip().splitlines()
    found = _NUMBER.findall(lines[-1].replace("/10", "")) if lines else []
    if not found:
        raise _Failed("no number in the last line")
    score = float(found[-1])
    if not LOWEST <= score <= HIGHEST:
        raise _Failed(f"{score:g} is outside of {LOWEST} to {HIGHEST}")
    return score
