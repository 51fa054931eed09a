"""The page, live: served to this machine alone, and told anew whenever a run has gone on.

Nothing is kept between two questions but the last answer and what the folders looked like when it was made; the runs
themselves are only read, so a server may come and go while they are made.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from budgeted.bench.board import Entry
from budgeted.bench.page import page
from budgeted.bench.page_data import page_data
from budgeted.bench.query import look
from budgeted.errors import BudgetedError
from budgeted.learner.files import named
from budgeted.runs.folder import CONFIG, RECORDS, SUMMARY

LOOPBACK = "127.0.0.1"
_OURS = {"127.0.0.1", "localhost", "[::1]"}


class Watched:
    """What there is to see in some folders, made anew when they have changed."""

    def __init__(self, folders: Sequence[Path], board: Sequence[Entry] = ()) -> None:
        self.folders, self.board = folders, board
        self._lock = threading.Lock()
        self._seen: object = None
        self._data: dict[str, Any] = {}
        self._tag = ""

    def answer(self) -> tuple[str, Mapping[str, Any]]:
        """The data and a tag that changes with them."""
        with self._lock:
            now = self._signs()
            if now != self._seen:
                found = look(self.folders)
                self._data = page_data(found, found.runs, self.folders, board=self.board, live=True)
                self._tag = hashlib.sha256(json.dumps(self._data).encode()).hexdigest()[:16]
                self._seen = now
            return self._tag, self._data

    def _signs(self) -> list[tuple[str, int, int]]:
        """By which a change is seen, without a file being read."""
        found = []
        for folder in self.folders:
            for config in named(folder, CONFIG):
                for name in (RECORDS, SUMMARY):
                    try:
                        status = (config.parent / name).stat()
                    except OSError:
                        continue
                    found.append((str(config.parent / name), status.st_size, status.st_mtime_ns))
        return found


def server(watched: Watched, port: int) -> ThreadingHTTPServer:
    """Ready to serve; port 0 is any that is free."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # a page elsewhere may have a name that leads here: it is answered nothing
            host = (self.headers.get("Host") or "").rpartition(":")[0] or self.headers.get("Host")
            if host not in _OURS:
                return self._send(403, b"this is served to this machine alone\n", "text/plain")
            path = self.path.partition("?")[0]
            if path not in ("/", "/data.json"):
                return self._send(404, b"there is / and /data.json\n", "text/plain")
            try:
                tag, data = watched.answer()
            except BudgetedError as error:
                return self._send(500, f"{error}\n".encode(), "text/plain")
            if path == "/":
                return self._send(200, page(data).encode(), "text/html; charset=utf-8")
            if self.headers.get("If-None-Match") == tag:
                return self._send(304, b"", "application/json", tag)
            return self._send(200, json.dumps(data, allow_nan=False).encode(), "application/json", tag)

        def _send(self, code: int, content: bytes, kind: str, tag: str = "") -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-cache")
            self.send_header("X-Content-Type-Options", "nosniff")
            if tag:
                self.send_header("ETag", tag)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing: the page asks every two seconds."""

    try:
        return ThreadingHTTPServer((LOOPBACK, port), Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BudgetedError(f"cannot serve on port {port}: {reason}: choose another with --port") from error
