"""How the documents of the repository become a site.

README is its first page, and links that lead out of docs/ into the repository (records, pictures, examples) lead to
copies on the site.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {"README.md": "index.md", "CHANGELOG.md": "CHANGELOG.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}
"""pages of the site that lie outside docs/, by their place in the repository"""
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and whatever file a page links to outside docs/."""
    for source, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / source)))
    known = {file.src_uri for file in files}
    for file in list(files.documentation_pages()):
        origin = _origin(file.src_uri)
        for match in _LINK.finditer(origin.read_text(encoding="utf-8")):
            target = (origin.parent / match[3]).resolve()
            uri = _uri(target)
            if uri is not None and uri not in known and target.is_file():
                known.add(uri)
                files.append(File.generated(config, uri, abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Links as they must be on the site; a link to a folder is no more than its words."""
    origin = _origin(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        image, words, path, anchor = match[1], match[2], match[3], match[4] or ""
        target = (origin.parent / path).resolve()
        if target.is_dir():
            return words
        uri = _uri(target)
        if uri is None or not target.exists():
            return match[0]  # mkdocs says that it leads nowhere
        place = os.path.relpath(uri, os.path.dirname(page.file.src_uri) or ".")
        return f"{image}[{words}]({place}{anchor})"

    return _LINK.sub(moved, markdown)


def _origin(uri: str) -> Path:
    """Where a page of the site lies in the repository."""
    outside = {place: source for source, place in PAGES.items()}
    if uri in outside:
        return ROOT / outside[uri]
    return DOCS / uri if (DOCS / uri).exists() else ROOT / uri


def _uri(target: Path) -> str | None:
    """Where a file of the repository lies on the site."""
    if not target.is_relative_to(ROOT):
        return None
    place = target.relative_to(ROOT).as_posix()
    return PAGES.get(place, place.removeprefix("docs/"))
