"""The README as a package index shows it: links lead out of the package, or are no links.

In the repository they are relative. Once the project has a public address, `Repository` under `[project.urls]` in
pyproject.toml says it, and they lead to the files of this version there; until then they become their words.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
_PICTURE = re.compile(r"!\[([^\]]*)\]\((?!\w+:)([^)\s]+)\)")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")


def for_an_index(text: str, address: str | None, version: str) -> str:
    """The text with absolute links to files at the address, or without links to files where there is none."""
    if address is None:
        text = re.sub(rf"^{_PICTURE.pattern}\n+(\*.*?\*\n+)?", "", text, flags=re.MULTILINE | re.DOTALL)
        return _LINK.sub(r"\1", text)
    text = _PICTURE.sub(rf"![\1]({address}/raw/v{version}/\2)", text)
    return _LINK.sub(rf"[\1]({address}/blob/v{version}/\2)", text)


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=for_an_index(
            (ROOT / "README.md").read_text(encoding="utf-8"),
            project.get("urls", {}).get("Repository"),
            project["version"],
        ),
        long_description_content_type="text/markdown",
    )
