"""The page in a real browser: what is chosen, sorted, typed, clicked and compared shows what the runs say."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from budgeted.bench.board import Entry
from budgeted.bench.page import as_script, page
from budgeted.bench.page_data import page_data
from budgeted.bench.query import Found, look, sections
from budgeted.bench.seed_tests import seed_tests
from budgeted.bench.table import RunResult
from budgeted.cli import main
from tests.bench.browser import chromium, many, written
from tests.command_line import Capture, refused, said
from tests.markdown import ROOT

COMPONENTS = ROOT / "results" / "components"
FILES = ROOT / "src" / "budgeted" / "bench" / "page_files"
ENTRY = Entry("one track", 0.5, 0.6, "er", "bit for bit, 10 of 10 samples", "2026-01-01", "budgeted run", "records/x")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    components, crowd = look([COMPONENTS]), many(1000)
    board = page(page_data(components, components.runs, [COMPONENTS], board=[ENTRY], command="budgeted report"))
    return {
        "components": written(tmp_path_factory.mktemp("components"), board),
        "many": written(tmp_path_factory.mktemp("many"), page(page_data(crowd, crowd.runs, []))),
    }


class Opened:
    """A page, with everything that went wrong in it or went out of it."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        self.context.set_offline(True)
        self.page = self.context.new_page()
        self.troubles: list[str] = []
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("console", lambda message: self.troubles.append(message.text) if message.type == "error" else None)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.asked: list[str] = []
        self.page.goto(address)

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, *_: object) -> None:
        self.context.close()
        assert self.troubles == []
        assert all(url.startswith(("file:", "data:", "blob:")) for url in self.asked)


def shown(page: Any, name: str) -> list[str]:
    """The cells of a column."""
    found: list[str] = page.locator(f'#rows td[data-label="{name}"]').all_inner_texts()
    return found


# -- looking for ------------------------------------------------------------------------------------------------------


def test_filters_sorting_and_search_over_a_thousand_runs(browser: Any, addresses: dict[str, str]) -> None:
    with Opened(browser, addresses["many"]) as page:
        assert page.inner_text("#count") == "250 of 250 rows, 1000 of 1000 runs"
        assert len(shown(page, "Row")) == 60
        page.click("#more")
        assert len(shown(page, "Row")) == 250
        page.select_option("#f-method", "mir")
        page.select_option("#f-dataset", "cifar100")
        assert set(shown(page, "Data set")) == {"cifar100"}
        assert all(label.startswith("mir") for label in shown(page, "Row"))
        rows, count = len(shown(page, "Row")), page.inner_text("#count")
        assert count.startswith(f"{rows} of 250 rows")
        page.fill("#f-text", "disjoint")
        assert set(shown(page, "Stream")) == {"disjoint"}
        page.click("#clear")
        assert page.inner_text("#count").startswith("250 of 250")
        for name, down in (("A_AUC %", False), ("Compute", True), ("Row", False)):
            page.click(f"#rows thead button:text-is('{name}')")
            head = page.locator("#rows th", has_text=name).first
            assert head.get_attribute("aria-sort") == ("descending" if down else "ascending")
            if name == "A_AUC %":
                values = [float(text.split()[0]) for text in shown(page, name)]
                assert values == sorted(values)


def test_what_all_rows_have_in_common_is_said_once(browser: Any, tmp_path: Path) -> None:
    results = ROOT / "results"
    found = look([results / name for name in ("bongard-drawn", "components", "components-disjoint", "figure-3")])
    with Opened(browser, written(tmp_path, page(page_data(found, found.runs, [results])))) as opened:
        heads = opened.locator("#rows thead th:visible")
        assert "Frozen %" in heads.all_inner_texts()
        assert opened.is_visible("#wider")  # at 1280 pixels
        budget = opened.locator("#rows td[title='1 it/sample, 5000000B']").first
        assert budget.inner_text().split() == ["1", "it/sample,", "5", "MB"]
        lines = [box.bounding_box()["height"] for box in opened.locator("#rows td .line").all()]
        assert max(lines) < 1.5 * min(lines)  # no part of a budget is broken
        opened.select_option("#f-experiment", "components")
        assert not {"Experiment", "Data set", "Stream", "Budget"} & set(heads.all_inner_texts())
        assert "Frozen %" in heads.all_inner_texts()
        opened.wait_for_selector("#wider", state="hidden")
        assert "Data set cifar10; Stream gaussian; Budget 1 it/sample, 5 MB" in opened.inner_text("#same")
        opened.click("#clear")
        assert "Experiment" in heads.all_inner_texts()


def test_what_rests_by_design_is_said_beside_the_frozen_share(browser: Any, tmp_path: Path) -> None:
    found = look([ROOT / "results" / "table-2"])
    with Opened(browser, written(tmp_path, page(page_data(found, found.runs, [])))) as opened:
        assert sum(text.endswith("‡") for text in shown(opened, "Frozen %")) == 1
        assert "the front, once its base is over (remind)" in opened.inner_text("#rests")
        opened.fill("#f-text", "egeria")
        assert not opened.is_visible("#rests")


def test_nothing_stands_between_a_chart_and_what_follows(browser: Any, addresses: dict[str, str]) -> None:
    with Opened(browser, addresses["components"]) as page:
        page.wait_for_selector("#c-chart svg")
        page.wait_for_selector("#chart svg")
        for chart in ("#chart", "#c-chart"):
            height = page.locator(f"{chart} svg").bounding_box()["height"]
            assert page.locator(chart).bounding_box()["height"] == pytest.approx(height, abs=1)


def test_a_view_is_a_link(browser: Any, addresses: dict[str, str]) -> None:
    with Opened(browser, addresses["many"]) as page:
        page.select_option("#f-method", "aser")
        page.click("#rows thead button:text-is('A_last %')")
        address, count = page.url, page.inner_text("#count")
    with Opened(browser, address) as again:
        assert again.input_value("#f-method") == "aser"
        assert again.inner_text("#count") == count
        assert again.locator("#rows th", has_text="A_last").get_attribute("aria-sort") == "descending"


# -- from a number to its runs ----------------------------------------------------------------------------------------


def test_a_number_opens_its_runs_with_curves_ledger_config_and_command(browser: Any, addresses: dict[str, str]) -> None:
    with Opened(browser, addresses["components"]) as page:
        page.locator("#rows tr", has_text="al-sar").locator("button").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#d-chart svg")
        text = page.inner_text("#details")
        summary = json.loads((COMPONENTS / "al-sar-cifar10-gaussian-b5ba21f9-seed2" / "summary.json").read_text())
        assert f"{100 * summary['a_auc']:.2f}" in text
        assert page.locator("#details table").first.locator("tbody tr").count() == 3
        assert "fisher" in text
        assert "5000000B" in text
        assert "64.38 ± 0.32" in text  # the paper's
        assert page.inner_text("#d-commands").count("budgeted run --method al-sar") == 3
        assert page.locator("#d-chart svg path[aria-roledescription='line mark']").count() == 3
        page.keyboard.press("Escape")
        assert not page.is_visible("#details")
        assert page.evaluate("document.activeElement.closest('tr').innerText.includes('al-sar')")


def test_a_mark_of_the_chart_tells_its_values_and_opens_its_runs(browser: Any, addresses: dict[str, str]) -> None:
    with Opened(browser, addresses["components"]) as page:
        page.wait_for_selector("#chart svg")
        assert "vanilla retrieval=class-balanced with 56.34 %" in page.get_attribute("#chart", "aria-label")
        texts = page.locator("#chart svg text").all_text_contents()
        assert "al-sar" in texts  # named beside the mark, not in a legend
        mark = page.locator("#chart svg path[aria-roledescription='point']").first
        mark.hover()
        page.wait_for_selector("#vg-tooltip-element.visible")
        assert "A_AUC" in page.inner_text("#vg-tooltip-element")
        mark.click()
        page.wait_for_selector("#details[open]")


def test_two_rows_are_compared_by_seed_in_a_plain_sentence(browser: Any, addresses: dict[str, str]) -> None:
    groups = sections(look([COMPONENTS]).runs, [COMPONENTS])[0].groups
    oracle = {test.one: test for test in seed_tests(groups, "vanilla") if test.metric == "a_auc"}
    with Opened(browser, addresses["components"]) as page:
        page.select_option("#c-other", label="vanilla (cifar10, gaussian)")
        for one, test in oracle.items():
            page.select_option("#c-one", label=f"{one} (cifar10, gaussian)")
            told = page.inner_text("#sentence")
            low, high = test.test.interval()
            for value in (low, high):
                assert f"{value:+.2f}".replace("-", "\N{MINUS SIGN}") in told
            assert float(re.findall(r"p ([\d.]+)\)", told)[0]) == pytest.approx(test.test.p_value, rel=0.06)
            assert ("cannot be told from" in told) == (test.test.p_value >= 0.05)
        assert "12 % less compute" in page.inner_text("#sentence")


def test_the_rows_to_compare_are_those_that_are_shown(browser: Any, addresses: dict[str, str]) -> None:
    def offered(page: Any) -> list[list[str]]:
        return [page.locator(f"#{box} option").all_inner_texts() for box in ("c-one", "c-other")]

    def chosen(page: Any) -> list[str]:
        return [page.locator(f"#{box} option:checked").inner_text() for box in ("c-one", "c-other")]

    with Opened(browser, addresses["many"]) as page:
        assert [len(each) for each in offered(page)] == [250, 250]
        page.select_option("#f-method", "mir")
        page.select_option("#f-dataset", "cifar100")
        rows = len(shown(page, "Row"))
        for box in offered(page):
            assert len(box) == rows
            assert all(text.startswith("mir") and "(cifar100," in text for text in box)
        one, other = chosen(page)
        assert one != other
        assert page.inner_text("#sentence").startswith(one.partition(" (")[0])
        page.select_option("#c-other", index=3)
        kept = chosen(page)
        page.click("#clear")
        assert chosen(page) == kept  # still there
        page.fill("#f-text", "no such words")
        assert offered(page) == [[], []]
        assert "No row is shown" in page.inner_text("#sentence")
        page.fill("#f-text", "mir")
        assert len(set(chosen(page))) == 2


def test_students_t_of_the_page_is_that_of_scipy(browser: Any, addresses: dict[str, str]) -> None:
    with Opened(browser, addresses["components"]) as page:
        for degrees in (1, 2, 4, 29):
            assert page.evaluate(f"Statistics.quantile(0.95, {degrees})") == pytest.approx(stats.t.ppf(0.975, degrees))
            for t in (0.0, 0.3, 2.1, 40.0):
                found = page.evaluate(f"Statistics.twoSided({t}, {degrees})")
                assert found == pytest.approx(2 * stats.t.sf(t, degrees), rel=1e-6)


# -- for everybody ----------------------------------------------------------------------------------------------------


def test_dark_phone_and_print(browser: Any, addresses: dict[str, str]) -> None:
    with Opened(browser, addresses["components"], color_scheme="dark") as page:
        background = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(background) == "rgb(15, 20, 25)"
        page.click("#theme")
        assert page.evaluate(background) == "rgb(255, 255, 255)"
        page.set_viewport_size({"width": 360, "height": 780})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.is_visible("#rows td[data-label='A_AUC %'] button")
        page.emulate_media(media="print")
        assert not page.is_visible("#filters")
        assert page.is_visible("#rows")


def test_paper_gets_every_row_and_the_whole_chart(browser: Any, addresses: dict[str, str]) -> None:
    with Opened(browser, addresses["many"], color_scheme="dark") as page:
        page.wait_for_selector("#chart svg")
        count = "document.querySelectorAll('#rows tbody tr').length"
        page.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = {count} }})")
        page.pdf(format="A4")
        assert page.evaluate("window.printed") == 250
        assert len(shown(page, "Row")) == 60  # as before
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 700, "height": 900})
        assert page.evaluate("document.querySelector('#chart svg').getBoundingClientRect().right") <= 700
        assert page.evaluate("getComputedStyle(document.querySelector('#chart svg text')).fill") == "rgb(0, 0, 0)"
        assert page.evaluate("document.querySelector('#rows').getBoundingClientRect().right") <= 700


def test_amounts_far_apart_go_by_powers_and_no_axis_goes_below_nothing(browser: Any, tmp_path: Path) -> None:
    run = look([COMPONENTS]).runs[0]
    for most, title in ((1000, "logarithmic"), (20, "FLOP (rule real)")):
        runs = tuple(
            dataclasses.replace(run, summary={**run.summary, "spent": {"paper": 10**10, "real": times * 10**11},
                                              "config": {**run.config, "method": method}})
            for method, times in (("er", 1), ("mir", most))
        )  # fmt: skip
        with Opened(browser, written(tmp_path, page(page_data(Found(runs, (), ()), runs, [])))) as opened:
            opened.wait_for_selector("#chart svg")
            texts = opened.locator("#chart svg .mark-text.role-axis-label text").all_text_contents()
            assert not [text for text in texts if text.startswith(("-", "\N{MINUS SIGN}"))]
            assert opened.locator("#chart svg .role-axis-title").all_text_contents()[0].endswith(title)


def test_names_of_curves_that_end_together_do_not_cover_each_other(browser: Any, addresses: dict[str, str]) -> None:
    with Opened(browser, addresses["many"]) as page:
        page.locator("#rows td button").first.click()
        page.wait_for_selector("#d-chart svg")
        names = page.locator("#d-chart svg text:text-matches('^seed')")
        boxes = sorted((box["y"], box["height"]) for box in (names.nth(place).bounding_box() for place in range(4)))
        assert all(above + 0.8 * height <= below for (above, height), (below, _) in itertools.pairwise(boxes))


def test_it_can_be_used_by_keyboard_alone(browser: Any, addresses: dict[str, str]) -> None:
    with Opened(browser, addresses["components"]) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        reached = []
        for _ in range(40):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.id || document.activeElement.innerText"))
        assert {"theme", "f-text", "clear", "x-axis", "A_AUC % ▼"} & set(reached) >= {
            "theme",
            "f-text",
            "clear",
            "x-axis",
        }
        assert any("±" in text for text in reached)
        unnamed = page.evaluate(
            "[...document.querySelectorAll('select, input')].filter(each => !each.closest('label')).length"
        )
        assert unnamed == 0


def colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_text_stands_out(place: int) -> None:
    """Contrast of at least 4.5 to 1 (WCAG AA) for every colour that text has, on both grounds, light and dark."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    themes = [
        line for line in (FILES / "page.css").read_text().splitlines() if "--paper: #" in line and "--second" in line
    ]
    found = colours(themes[place])
    for text in ("ink", "soft", "accent", "second"):
        for ground in ("paper", "raised"):
            one, two = sorted((light(found[text]), light(found[ground])), reverse=True)
            assert (one + 0.05) / (two + 0.05) >= 4.5, (text, ground)


# -- what is in it ----------------------------------------------------------------------------------------------------


def test_names_from_anywhere_are_shown_and_never_run(browser: Any, tmp_path: Path) -> None:
    run = look([COMPONENTS]).runs[0]
    hostile = "</script><img src=x onerror=\"document.title='broken'\">"
    config = {**run.config, "method": hostile}
    evil = dataclasses.replace(run, summary={**run.summary, "config": config})
    found = Found((evil,), (), ())
    text = page(page_data(found, found.runs, []))
    assert text.count("</script>") == 3
    with Opened(browser, written(tmp_path, text)) as opened:
        assert hostile in opened.inner_text("#rows")
        assert opened.title() == "budgeted: runs"
    assert json.loads(as_script(json.dumps(hostile))) == hostile


def test_the_board_is_shown_where_there_is_one(browser: Any, addresses: dict[str, str]) -> None:
    with Opened(browser, addresses["components"]) as page:
        assert "one track\t50.00\t60.00\ter" in page.inner_text("#board-rows")
    with Opened(browser, addresses["many"]) as page:
        assert not page.is_visible("#board")


def test_a_thousand_runs_are_a_small_file(addresses: dict[str, str]) -> None:
    assert Path(addresses["many"].removeprefix("file://")).stat().st_size < 3_000_000


def test_the_page_is_written_by_the_command(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "page.html"
    assert "15 runs in" in said(["report", str(COMPONENTS), "--html", str(out)], capsys)
    assert sorted(tmp_path.iterdir()) == [out]
    assert "there is no folder" in refused(["report", str(COMPONENTS), "--html", str(tmp_path / "no" / "x")], capsys)
    line = refused(["report", str(COMPONENTS), "--html", str(tmp_path)], capsys)
    assert f"{tmp_path}: it is a folder, give a file in it, as in {out}" in line
    runs = tmp_path / "runs"
    shutil.copytree(ROOT / "results" / "full-size", runs)
    next(runs.glob("*/summary.json")).write_text("{")
    assert main(["report", str(runs), "--html", str(out)]) == 0
    assert "summary.json is damaged" in capsys.readouterr().err


def test_a_run_whose_records_were_edited_has_no_curve() -> None:
    run = look([COMPONENTS]).runs[0]
    edited = RunResult(run.path, {**run.summary, "records_sha256": "0" * 64})
    found = Found((edited,), (), ())
    assert page_data(found, found.runs, [])["runs"][0]["curve"] == []
