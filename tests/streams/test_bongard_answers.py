"""Answers read by rule, sentences scored, and a judge on loopback whose failures are counted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from budgeted.errors import BudgetedError
from budgeted.streams.bongard.answers import chosen, chrf, score_choices, token_f1
from budgeted.streams.bongard.judge import Judge, Judged

PN = ("Positive", "Negative")


@pytest.mark.parametrize(
    ("said", "choices", "meant"),
    [
        ("Positive", PN, "Positive"),
        (" negative. ", PN, "Negative"),
        ("The query is positive, I think", PN, "Positive"),
        ("Positive or Negative", PN, None),
        ("", PN, None),
        ("Positively", PN, None),  # no whole word
        ("type_on", ("type_on", "clean"), "type_on"),
        ("it is type on", ("type", "type_on"), "type_on"),  # the longer one is meant
        ("type", ("type", "type_on"), "type"),
        ("kick", ("hold", "block"), None),
    ],
)
def test_which_choice_is_meant(said: str, choices: tuple[str, ...], meant: str | None) -> None:
    assert chosen(said, choices) == meant


def test_unparsed_is_wrong_and_counted() -> None:
    scored = score_choices(["Positive", "both", "Negative"], [PN] * 3, ["Positive", "Positive", "Positive"])
    assert (scored.questions, scored.right, scored.unparsed) == (3, 1, 1)
    assert scored.accuracy == pytest.approx(1 / 3)
    assert score_choices([], [], []).accuracy == 0


def test_token_f1_by_hand() -> None:
    assert token_f1("A statue of Buddha.", "a STATUE of buddha") == 1
    assert token_f1("the the cat", "the cat sat") == pytest.approx(2 * 2 / 6)  # one `the` is no match for two
    assert token_f1("dog", "a cat") == token_f1("", "a cat") == token_f1("", "") == 0


def test_chrf_lies_between_nothing_and_the_same() -> None:
    right = "A ring shaped decoration."
    assert chrf(right, right) == pytest.approx(1)
    assert 0 < chrf("ring decoration", right) < 1
    assert chrf("ring decoration", right) > chrf("xyz", right)


class _Answers(BaseHTTPRequestHandler):
    """Answers each question by what its `Answer:` line asks for."""

    asked: list[tuple[str, str | None, dict[str, Any]]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, self.headers["Authorization"], body))
        wish = body["messages"][0]["content"].rpartition("Answer: ")[2]
        content: Any = {"choices": [{"message": {"content": wish.replace("|", "\n")}}]}
        if wish == "no choices":
            content = {"choices": []}
        if wish == "no text":
            content = {"choices": [{"message": {"content": None}}]}
        text = b"{" if wish == "no json" else b"[" * 200_000 if wish == "deep" else json.dumps(content).encode()
        if wish == "no http":
            self.wfile.write(b"what?\r\n")
            return
        self.send_response({"failing": 500, "elsewhere": 302}.get(wish, 200))
        if wish == "elsewhere":
            self.send_header("Location", "/v1/elsewhere")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    _Answers.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_judge_scores_and_its_failures_are_no_part_of_the_mean(address: str) -> None:
    wishes = ["8", "Good.|Score: 6", "9/10", "no choices", "no text", "no json", "failing", "great", "0", "11", ""]
    wishes += ["deep", "no http", "elsewhere"]
    judged = Judge(address, "some-model", key="secret", seconds=30).score((wish, "the reference") for wish in wishes)
    assert judged.scores == (8.0, 6.0, 9.0, *[None] * 11)
    assert judged.failures == 11
    assert judged.mean == pytest.approx(23 / 3)
    assert judged.reasons == (
        "an answer that is no chat completion", "an answer without text", "no answer (JSONDecodeError)",
        "the judge answered 500", "no number in the last line", "0 is outside of 1 to 10", "11 is outside of 1 to 10",
        "no number in the last line", "no answer (RecursionError)", "no answer (BadStatusLine)",
        "the judge answered 302",
    )  # fmt: skip
    assert len(_Answers.asked) == len(wishes)  # nobody followed to another place with the key
    path, key, body = _Answers.asked[0]
    assert (path, key) == ("/v1/chat/completions", "Bearer secret")
    assert (body["model"], body["temperature"]) == ("some-model", 0)
    assert "Reference: the reference" in body["messages"][0]["content"]


def test_a_judge_that_is_away() -> None:
    judged = Judge("http://127.0.0.1:9", "some-model", seconds=5).score([("a", "b")])
    assert judged.failures == 1
    assert judged.mean is None
    assert judged == Judged((None,), judged.reasons)
    with pytest.raises(BudgetedError, match="no address of a judge"):
        Judge("localhost:8000", "some-model")
