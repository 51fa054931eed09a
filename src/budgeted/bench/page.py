"""The page: one HTML file with everything in it, which opens offline.

The charts are Vega-Lite's, whose program the package vl-convert-python carries. The table is drawn before that program
is even read, so that a page of a thousand runs is there at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

from budgeted.errors import needed


def page(data: Mapping[str, Any]) -> str:
    """The whole file."""
    parts = {
        "CSS": _file("page.css"),
        "DATA": as_script(json.dumps(data, separators=(",", ":"), allow_nan=False)),
        "APP": _file("statistics.js") + _file("page.js"),
        "VEGA": vega(),
    }
    html = _file("page.html")
    pieces = []
    for name, text in parts.items():  # each place once, in order: what is put in is not searched again
        before, _, html = html.partition(f"@@{name}@@")
        pieces += [before, text]
    return "".join([*pieces, html])


def as_script(text: str) -> str:
    """JSON that ends no script element, whatever the names in it are."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@lru_cache
def vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one program."""
    program = needed("vl_convert", "the page needs Vega-Lite: pip install 'budgeted[report]'")
    bundle: str = program.javascript_bundle()
    return bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--")


@lru_cache
def _file(name: str) -> str:
    return (files(__package__) / "page_files" / name).read_text(encoding="utf-8")
