"""`budgeted check` passes the parts in examples/, and names what is wrong with broken ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from budgeted.bench.check import assert_passes, check
from budgeted.cli import main
from budgeted.errors import BudgetedError
from tests.command_line import Capture, refused
from tests.runs.small import Stopped, begun, config, same_end

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
PARTS = {
    "newest_first.py:NewestFirst": {"method": "er", "retrieval": "{}"},
    "forgetful.py:Oldest": {"method": "er", "settings": {"learner.selection": "{}"}},
    "alternate.py:Alternate": {"method": "vanilla", "freezing": "{}"},
    "focal.py:Focal": {"method": "{}"},
    "two_paths.py:two_paths": {"method": "er", "model": "{}"},
    "lossless.py:Lossless": {"method": "er", "model": "mlp", "codec": "{}", "memory": "80kB", "slots": None},
    "growing.py:growing": {"method": "vanilla", "model": "{}", "stream": "disjoint"},
    "next_byte.py:NextByte": {
        "method": "er",
        "problem": "{}",
        "model": "{next_byte.py:reader}",
        "dataset": "{next_byte.py:texts}",
    },
}
# what is broken in an example, and the check that must find it
BROKEN = [
    ("newest_first.py:NewestFirst", 'kept = ("latest",)', "kept = ()", "exact resume"),
    ("forgetful.py:Oldest", 'kept = ("next_place",)', "kept = ()", "exact resume"),
    ("forgetful.py:Oldest", "return len(memory)", "return len(memory) + 1", "growth"),
    ("alternate.py:Alternate", 'kept = ("mean",)', "kept = ()", "exact resume"),
    ("alternate.py:Alternate", "quiet =", "self.seen, quiet = __import__('torch').ones(9),", "bytes as counted"),
    ("alternate.py:Alternate", "view.prefix(self.blocks)", "frozenset({99})", "ledger = executed"),
    (
        "focal.py:Focal",
        "        of_label =",
        "        logits.new_ones(400, 400) @ logits.new_ones(400, 400)\n        of_label =",
        "ledger = executed",
    ),
    ("two_paths.py:two_paths", "self.stem(images)", "self.stem(images) + images.new_empty(1).normal_()", "same seed"),
    (
        "lossless.py:Lossless",
        "        return {CODE:",
        "        self.latest = sample\n        return {CODE:",
        "bytes as counted",
    ),
    (
        "growing.py:growing",
        "maps = self.stem(images)",
        "self.calls = getattr(self, 'calls', 0) + self.training; maps = self.stem(images) * (1 + self.calls % 5)",
        "exact resume",
    ),
    ("next_byte.py:NextByte", ".long()", ".long().add(torch.randint(0, 2, (1,))) % 256", "same seed"),
    ("newest_first.py:NewestFirst", "generator.choice(others", "np.random.default_rng().choice(others", "same seed"),
]


@pytest.mark.parametrize("part", PARTS)
def test_the_examples_pass_every_check(part: str) -> None:
    assert_passes(f"{EXAMPLES}/{part}")


@pytest.mark.parametrize("part", PARTS)
def test_the_examples_are_short(part: str) -> None:
    assert len((EXAMPLES / part.partition(":")[0]).read_text().splitlines()) <= 60


@pytest.mark.parametrize(("part", "right", "wrong", "check_name"), BROKEN)
def test_a_broken_variant_fails_the_check_that_it_breaks(
    part: str, right: str, wrong: str, check_name: str, tmp_path: Path
) -> None:
    file, _, name = part.partition(":")
    text = (EXAMPLES / file).read_text()
    assert right in text
    (tmp_path / file).write_text(text.replace(right, wrong))
    failed = [result for result in check(f"{tmp_path / file}:{name}") if not result.passed]
    assert any(result.name.startswith(check_name) for result in failed), failed
    assert all("\n" not in str(result) for result in failed)


@pytest.mark.parametrize("part", PARTS)
def test_the_examples_run_and_resume_by_the_command(part: str, tmp_path: Path, capsys: Capture) -> None:
    text = json.dumps(PARTS[part]).replace("{}", f"{EXAMPLES}/{part}").replace("{next", f"{EXAMPLES}/next")
    given = json.loads(re.sub(r"(\.py:\w+)\}", r"\1", text))
    chosen = config(limit=40, eval_every=20, **{"model": "cnn8", **given})
    whole = begun(tmp_path / "stopped", chosen, 33)
    assert main(["run", "--resume", str(whole), "--json"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    (tmp_path / "config.json").write_text(json.dumps(chosen.to_json()))
    assert main(["run", "--config", str(tmp_path / "config.json"), "--out", str(tmp_path / "whole"), "--json"]) == 0
    same_end(resumed, json.loads(capsys.readouterr().out))


def test_another_version_of_a_file_is_noticed(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "mine.py"
    file.write_text((EXAMPLES / "focal.py").read_text())
    stopped = begun(tmp_path / "run", config(method=f"{file}:Focal", limit=40, eval_every=20), 33)
    file.write_text(file.read_text().replace("gamma: float = 2.0", "gamma: float = 1.0"))
    assert "is not what it was when the run was begun" in refused(["run", "--resume", str(stopped)], capsys)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.py:Mine", "cannot read nowhere.py"),
        ("no.such.module:Mine", "cannot import 'no.such.module'"),
        (f"{EXAMPLES}/focal.py:Vocal", "has no 'Vocal'"),
        ("budgeted.errors:BudgetedError.args", "nothing that can be checked"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(name: str, said: str, capsys: Capture) -> None:
    assert said in refused(["check", name], capsys)


def test_a_policy_made_from_nothing_is_told_what_to_make_it_from(tmp_path: Path) -> None:
    (tmp_path / "duck.py").write_text("class Duck:\n    def decide(self, view):\n        return frozenset()\n")
    with pytest.raises(BudgetedError, match="make the class from FreezingPolicy"):
        list(check(f"{tmp_path / 'duck.py'}:Duck"))


def test_a_file_that_fails_to_load_says_why(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import nothing_like_it\n")
    with pytest.raises(BudgetedError, match=r"cannot load .*nothing_like_it"):
        list(check(f"{tmp_path / 'bad.py'}:Mine"))


def test_stopped_is_not_swallowed() -> None:
    assert not issubclass(Stopped, Exception)
