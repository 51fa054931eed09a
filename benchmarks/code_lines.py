"""Lines of code of the package by room, now and at another commit: comments, docstrings and blank lines are none.

    python benchmarks/code_lines.py                      rooms, as they are
    python benchmarks/code_lines.py --at fb48a80         beside those of a commit
    python benchmarks/code_lines.py --files methods/     single files, those whose paths begin so

A line counts if a token of code lies on it. Strings that stand alone in a module, a class or a function are docstrings,
those behind the fields of a dataclass too.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path("src/budgeted")
SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
}  # fmt: skip


def code_lines(source: str) -> int:
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            for part in node.body:
                text = part.value if isinstance(part, ast.Expr) else None
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    documented |= set(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def counted(root: Path, commit: str | None) -> dict[str, int]:
    """By path inside the package."""
    if commit is None:
        return {
            path.relative_to(root / PACKAGE).as_posix(): code_lines(path.read_text(encoding="utf-8"))
            for path in sorted((root / PACKAGE).rglob("*.py"))
        }

    def git(*command: str) -> str:
        return subprocess.run(["git", "-C", str(root), *command], check=True, capture_output=True, text=True).stdout

    names = git("ls-tree", "-r", "--name-only", commit, PACKAGE.as_posix()).splitlines()
    return {
        Path(name).relative_to(PACKAGE).as_posix(): code_lines(git("show", f"{commit}:{name}"))
        for name in names
        if name.endswith(".py")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Lines of code of the package.")
    parser.add_argument("--at", metavar="COMMIT", help="a commit to compare with")
    parser.add_argument("--files", metavar="START", help="single files whose paths begin so")
    asked = parser.parse_args()
    root = Path(__file__).parents[1]
    columns = [counted(root, asked.at)] if asked.at else []
    columns.append(counted(root, None))
    shown: list[Counter[str]] = []
    for found in columns:
        sums: Counter[str] = Counter()
        for path, lines in found.items():
            if asked.files is None:
                sums[path.partition("/")[0] if "/" in path else "budgeted"] += lines
            elif path.startswith(asked.files):
                sums[path] = lines
        shown.append(sums)
    for name in sorted({name for sums in shown for name in sums}):
        print(f"{name:40}" + "".join(f"{sums[name]:8,}" for sums in shown))
    print(f"{'together':40}" + "".join(f"{sum(sums.values()):8,}" for sums in shown))


if __name__ == "__main__":
    main()
