"""Code blocks, links and commands of a Markdown page, so that tests can hold the page to them."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Fence:
    """One fenced block: its language, its text, the lines above it, and the block that follows at once."""

    language: str
    text: str
    line: int
    output: str | None
    """text of a `text` block right below: what the block must print"""


def fences(page: Path, language: str) -> list[Fence]:
    text = page.read_text(encoding="utf-8")
    found = list(_FENCE.finditer(text))
    blocks = []
    for match, after in zip(found, [*found[1:], None], strict=True):
        follows = after is not None and after["language"] == "text" and not text[match.end() : after.start()].strip()
        output = after["text"] if follows and after is not None else None
        blocks.append(Fence(match["language"], match["text"], text[: match.start()].count("\n") + 1, output))
    return [block for block in blocks if block.language == language]


def run(source: str, name: str, line: int, names: dict[str, Any]) -> str:
    """Execute a block in `names` and answer with what it printed; a traceback shows the page's own line."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * line + source, name, "exec", dont_inherit=True), names)
    return printed.getvalue()


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Relative links as (path, anchor)."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:")):
            path, _, anchor = target.partition("#")
            yield path, anchor


def anchors(page: Path) -> set[str]:
    """The anchors that headings get."""
    prose = _FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def table_rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of every table row between a heading and the next, header rows left out."""
    section = re.split(rf"^#+ {re.escape(heading)}$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1]
    section = re.split(r"^#", section, flags=re.MULTILINE)[0]
    rows: list[list[str]] = []
    for line in section.splitlines():
        if line.startswith("| ---"):
            rows.pop()
        elif line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows
