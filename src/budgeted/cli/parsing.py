"""What is wrong with a command line, in one line: the parser shows a box, which is made to fit among other errors."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from budgeted.errors import BudgetedError

T = TypeVar("T")
_ELSEWHERE = {
    "--epochs": "a stream is gone through once, --iterations is the number of steps for each sample",
    **dict.fromkeys(("--lr", "--learning-rate"), "it is a setting, --set learner.learning_rate=VALUE"),
    **dict.fromkeys(("--optimizer", "--optim"), "it is a setting, --set learner.optimizer=NAME"),
    **dict.fromkeys(("--momentum", "--weight-decay", "--schedule"), "it is a setting, --set learner.NAME=VALUE"),
}
_EDGES = " │|╭╮╰╯"
_RULE = re.compile(r"[─-]{3,}")


class BadCommand(BudgetedError):
    """A command line that cannot be read."""


def parsed(parse: Callable[[], T], given: Sequence[str], commands: Sequence[str]) -> T:
    """What `parse` makes of the command line; what it prints of an error becomes ours."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parse()
    except SystemExit as end:
        if not end.code:  # --help
            raise
        command = f"budgeted {given[0]}" if given and given[0] in commands else "budgeted"
        raise BadCommand(f"{_in_one_line(said.getvalue())}{_expected(given)}: see `{command} --help`") from None


def _expected(given: Sequence[str]) -> str:
    """What people expect among the flags of a run, and find elsewhere."""
    for flag in given:
        name = flag.partition("=")[0]
        if name in _ELSEWHERE:
            return f": {_ELSEWHERE[name]}"
    return ""


def _in_one_line(box: str) -> str:
    sections: list[list[str]] = [[]]
    lines = [_bare(line) for line in box.splitlines()]
    for line in lines[1:]:  # the first is the title
        if not _RULE.fullmatch(line.strip()):
            sections[-1].append(line)
        elif any(sections[-1]):
            sections.append([])
    text = " ".join(_until_blank(sections[0])) or "cannot read the command line"
    near = [line.split()[0] for section in sections for line in section if re.match(r" {4}--\S", line)]
    meant = any("Perhaps you meant" in line for section in sections for line in section)
    hint = f": did you mean {near[0]}?" if meant and near else ""
    return text.rstrip(".:")[:1].lower() + text.rstrip(".:")[1:] + hint


def _bare(line: str) -> str:
    """Without the box; the indentation inside it stays."""
    line = line.rstrip(_EDGES)
    return line[2:] if line[:1] in "│| " else line


def _until_blank(lines: Sequence[str]) -> list[str]:
    words: list[str] = []
    for line in lines:
        if not line.strip() and words:
            break
        words += line.split()
    return words
