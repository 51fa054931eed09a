"""What is uploaded: one version everywhere, and a README whose links hold where it is shown."""

from __future__ import annotations

import re
import runpy
import tomllib
from typing import Any

from tests.markdown import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
for_an_index = runpy.run_path(str(ROOT / "setup.py"))["for_an_index"]


def test_one_version_everywhere() -> None:
    version = PROJECT["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d[^]]*)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert released[0] == version


def targets(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", text)


def test_without_an_address_the_readme_has_no_link_that_leads_nowhere() -> None:
    shown = for_an_index(README, None, "1.2.3")
    assert all(re.match(r"\w+:|#", target) for target in targets(shown))
    assert "![" not in shown
    assert "The prices are those of the network" not in shown  # the words below the picture go with it
    assert "docs/run.md" in shown  # a page keeps its name
    assert len(shown) > 0.8 * len(README)


def test_with_an_address_every_link_leads_to_this_version_of_its_file() -> None:
    shown = for_an_index(README, "https://host.example/some/budgeted", "1.2.3")
    picture, *files = [target for target in targets(README) if not re.match(r"\w+:|#", target)]
    assert f"](https://host.example/some/budgeted/raw/v1.2.3/{picture})" in shown
    assert len(files) > 30
    for target in files:
        assert f"](https://host.example/some/budgeted/blob/v1.2.3/{target})" in shown
    assert all(re.match(r"\w+:|#", target) for target in targets(shown))
