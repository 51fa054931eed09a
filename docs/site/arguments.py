"""Arguments in a docstring, `name: what it is` each on a line of its own, become a list on the site."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Function


class Arguments(Extension):  # type: ignore[misc]
    """Told of every function that is read."""

    def on_function(self, *, func: Function, **_: Any) -> None:
        if func.docstring is None:
            return
        names = {parameter.name.lstrip("*") for parameter in func.parameters}
        listed = False
        lines: list[str] = []
        for line in func.docstring.value.splitlines():
            found = re.match(r"\*{0,2}(\w+): ", line)
            if found and found[1] in names:
                if not listed:
                    lines.append("")
                listed = True
                line = f"- `{found[1]}`: {line[found.end() :]}"
            lines.append(line)
        func.docstring.value = "\n".join(lines)
