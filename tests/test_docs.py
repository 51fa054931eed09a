"""The documents say what is so: prices are complete, snippets run and print what is shown, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from budgeted.budget import prices
from budgeted.budget.prices import elementwise
from budgeted.budget.trace import Op, Value
from tests.markdown import ROOT, anchors, fences, links, run, table_rows

PAGES = sorted((ROOT / "docs").glob("*.md"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES]
PRICES = ROOT / "docs" / "prices.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_snippets_run_and_print_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prices, "_PRICES", dict(prices._PRICES))  # a page may register a price
    monkeypatch.chdir(tmp_path)
    snippets = fences(page, "python")
    assert snippets
    names: dict[str, Any] = {"__name__": page.stem}  # a page reads from top to bottom: its snippets share their names
    with torch.random.fork_rng():
        for snippet in snippets:
            printed = run(snippet.text, str(page), snippet.line, names)
            if snippet.output is not None:
                assert printed == snippet.output, f"{page.name}, line {snippet.line}"


def test_every_price_is_written_down() -> None:
    written = set(re.findall(r"`(\w+)`", PRICES.read_text(encoding="utf-8")))
    assert [name for name in prices.priced_operators() if name not in written] == []


@pytest.mark.parametrize(
    ("heading", "table"),
    [("Activations", elementwise.ACTIVATIONS), ("Elementwise arithmetic", elementwise.ARITHMETIC)],
)
def test_operations_per_element_are_those_of_the_code(heading: str, table: dict[str, tuple[int, int]]) -> None:
    shown = {
        name: (int(cells[1]), int(cells[2]))
        for cells in table_rows(PRICES, heading)
        if cells[1].isdigit() and cells[2].isdigit()
        for name in re.findall(r"`(\w+)`", cells[0])
    }
    assert shown == table


def amount(formula: str, elements: dict[str, int]) -> int | None:
    """A formula such as 3X, N or 0; None for one that says more."""
    found = re.fullmatch(r"(?:each:? )?(\d*)([XN])(?: \+ sum)?", formula)
    return int(found[1] or 1) * elements[found[2]] if found else 0 if formula == "0" else None


@pytest.mark.parametrize("heading", ["Reductions and losses", "Elementwise arithmetic"])
def test_formulas_are_those_of_the_code(heading: str) -> None:
    reduces = heading.startswith("Reductions")
    checked = 0
    for names, forward, gradient in table_rows(PRICES, heading):
        if forward.isdigit():
            continue  # the table per element has a test of its own
        for name in re.findall(r"`(\w+)`", names):
            inputs = tuple(Value((6, 4), True) for _ in range(2 if gradient.startswith("each") else 1))
            out = Value((6,) if reduces else (6, 4), True)
            arguments = {"self": inputs[0], "target": inputs[-1]}
            found = prices._PRICES[name](Op(name, 0, arguments, inputs, (out,), "", (), True))
            elements = {"X": 24, "N": out.numel}
            for formula, price in ((forward, found.forward), (gradient, found.gradients[0])):
                expected = amount(formula, elements)
                assert expected in (None, price), f"{name}: {formula}"
                checked += expected is not None
            assert (found.paper_forward, found.paper_weight, found.paper_input) == (0, 0, 0)
    assert checked > 20


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in links(page):
        target = page.parent / path if path else page
        assert target.exists(), path
        if anchor:
            assert anchor in anchors(target), f"{path}#{anchor}"


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_commands_name_what_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for script in re.findall(r"(?:benchmarks|tests|docs)/[\w/]+\.\w+", text):
        assert (ROOT / script).exists(), script
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for target in re.findall(r"`make (\w+)`|^ +make (\w+)$", text, re.MULTILINE):
        assert "".join(target) in targets, target
