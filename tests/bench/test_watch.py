"""The live page: a run is seen while it is made, by this machine alone."""

from __future__ import annotations

import dataclasses
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from budgeted.bench.watch import Watched, server
from budgeted.errors import BudgetedError
from budgeted.runs.config import RunConfig
from budgeted.runs.run import resume
from tests.bench.browser import chromium
from tests.command_line import Capture, refused
from tests.runs.small import begun

TINY = RunConfig(method="er", model="mlp", limit=20, slots=10, batch_size=4, eval_every=5, checkpoint_every=5)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    with server(Watched([folder]), 0) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{serving.server_address[1]}/"
        finally:
            serving.shutdown()
            thread.join()


def asked(address: str, **headers: str) -> tuple[int, bytes, str]:
    request = urllib.request.Request(address, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read(), answer.headers.get("ETag") or ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), ""


def test_a_run_is_seen_while_it_is_made_and_after(tmp_path: Path) -> None:
    with served(tmp_path) as address:
        _, content, first = asked(address + "data.json")
        assert json.loads(content)["rows"] == []
        run = begun(tmp_path / "run", TINY, 12)
        _, content, second = asked(address + "data.json")
        (row,) = json.loads(content)["rows"]
        assert row["running"] == "10 samples so far"
        known: dict[str, Any] = json.loads(content)["runs"][0]
        records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
        periodic = [record["accuracy"] for record in records if record["periodic"]]
        assert known["a_auc"] == pytest.approx(sum(periodic) / len(periodic))
        assert asked(address + "data.json", **{"If-None-Match": second})[0] == 304
        summary = resume(run)
        _, content, third = asked(address + "data.json", **{"If-None-Match": second})
        (row,) = json.loads(content)["rows"]
        assert row["running"] is None
        assert json.loads(content)["runs"][0]["a_auc"] == summary["a_auc"]
        assert len({first, second, third}) == 3


def test_runs_under_way_are_told_apart_by_what_they_are(tmp_path: Path) -> None:
    begun(tmp_path / "plain", TINY, 12)
    begun(tmp_path / "balanced", dataclasses.replace(TINY, retrieval="class-balanced"), 12)
    with served(tmp_path) as address:
        rows = json.loads(asked(address + "data.json")[1])["rows"]
    assert {row["label"] for row in rows} == {"er", "er retrieval=class-balanced"}


def test_only_this_machine_is_answered_and_only_the_page(tmp_path: Path) -> None:
    with served(tmp_path) as address:
        assert asked(address, Host="elsewhere.example:80")[0] == 403
        assert asked(address + "../config.json")[0] == 404
        status, content, _ = asked(address)
        assert status == 200
        assert b"Runs inside a budget" in content


def test_the_page_changes_by_itself(tmp_path: Path) -> None:
    run = begun(tmp_path / "run", TINY, 7)
    with chromium() as browser, served(tmp_path) as address:
        page = browser.new_page()
        page.goto(address)
        assert "running, 5 samples so far" in page.inner_text("#rows")
        resume(run)
        page.wait_for_function("!document.querySelector('#rows .running') && document.querySelector('#rows td')")
        assert page.inner_text("#about") == "1 finished run."
        page.close()


def test_mistakes_are_one_line(tmp_path: Path, capsys: Capture) -> None:
    assert "is no folder" in refused(["watch", str(tmp_path / "none")], capsys)
    with served(tmp_path) as address, pytest.raises(BudgetedError, match="choose another with --port"):
        server(Watched([tmp_path]), int(address.rstrip("/").rpartition(":")[2]))
