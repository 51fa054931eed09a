"""One HTTP connection that cannot be kept open for nothing, and whose reset loses no byte that came before it."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MOST_REDIRECTS = 5
_PIECE = 1 << 18
_REDIRECTS = (301, 302, 303, 307, 308)


class Broken(Exception):
    """A connection that ended before its time; says why."""


@dataclass(frozen=True)
class Pace:
    """A connection is closed where it brings less than `least` bytes in `stall` seconds, or nothing in `timeout`."""

    timeout: float = 30.0
    stall: float = 120.0
    least: int = 1 << 16


class _Watch:
    """Closes the socket of a connection that falls behind its pace, whatever it is waiting for.

    A thread, since a server that sends a letter of a header now and then keeps the reader inside one call.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.socket: socket.socket | None = None
        self.came = 0
        self.stalled = False

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        before = 0
        while not self._end.wait(self._pace.stall):
            if self.came - before < self._pace.least and self.socket is not None:
                self.stalled = True
                with contextlib.suppress(OSError):  # it may have closed by itself
                    # The plain socket's own, also under TLS, whose own waits for its turn.
                    socket.socket.shutdown(self.socket, socket.SHUT_RDWR)
            before = self.came

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """What goes wrong on the network becomes `Broken`, but for answers that are errors."""
        try:
            yield
        except urllib.error.HTTPError:
            raise
        # A socket that is closed under the reader's hands, or a server that does not speak HTTP, show in many ways.
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as problem:
            if self.stalled:
                raise self._too_slow() from problem
            if isinstance(problem, urllib.error.URLError):
                raise Broken(f"no connection ({problem.reason})") from problem
            raise Broken(str(problem) or type(problem).__name__) from problem
        if self.stalled:
            raise self._too_slow()

    def _too_slow(self) -> Broken:
        return Broken(f"less than {self._pace.least:,} bytes came in {self._pace.stall:g} seconds")


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens connections as usual, and shows their sockets to the watch."""

    def __init__(self, watch: _Watch) -> None:
        urllib.request.HTTPSHandler.__init__(self)
        self._watch = watch

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._watched(http.client.HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._watched(http.client.HTTPSConnection), req)

    def _watched(self, kind: type[http.client.HTTPConnection]) -> Any:
        watch = self._watch

        class Watched(kind):  # type: ignore[misc, valid-type]
            def connect(self) -> None:
                super().connect()
                watch.socket = self.sock

        return Watched


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects come back as errors: followed here, they would be read to their end, which may never come."""

    def redirect_request(self, *_: object) -> None:
        return None


class Answer:
    """A response whose body is read piece by piece, each as soon as it is there."""

    def __init__(self, response: http.client.HTTPResponse, watch: _Watch) -> None:
        self._response = response
        self._watch = watch
        self.status = response.status
        #: Bytes that this response has, if it says so in a way that can be believed.
        self.length = number(response.headers.get("Content-Length"))
        self.content_range: str | None = response.headers.get("Content-Range")
        self.is_page = (response.headers.get("Content-Type") or "").lower().startswith("text/html")

    def pieces(self) -> Iterator[bytes]:
        """What came before a reset is given out before the reset is raised: nothing waits for a buffer to fill."""
        while piece := self._piece():
            self._watch.came += len(piece)
            yield piece

    def _piece(self) -> bytes:
        with self._watch.guard():
            return self._response.read1(_PIECE)


@contextlib.contextmanager
def get(url: str, first: int, pace: Pace) -> Iterator[Answer]:
    """The answer to a request for all bytes from number `first` on; raises `Broken` and urllib's HTTPError."""
    with _Watch(pace) as watch:
        with watch.guard():
            response = _open(url, first, pace, watch)
        with response:
            yield Answer(response, watch)


def _open(url: str, first: int, pace: Pace, watch: _Watch) -> http.client.HTTPResponse:
    opener = urllib.request.build_opener(_Handler(watch), _NoRedirects())
    for _ in range(MOST_REDIRECTS + 1):
        request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
        if first:
            request.add_header("Range", f"bytes={first}-")
        try:
            response: http.client.HTTPResponse = opener.open(request, timeout=pace.timeout)
            return response
        except urllib.error.HTTPError as answer:
            place = answer.headers.get("Location")
            if answer.code not in _REDIRECTS or not place:
                raise
            answer.close()
            url = urllib.parse.urljoin(url, place)
            if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
                raise urllib.error.URLError(f"redirected to {url}") from answer
    raise urllib.error.URLError(f"redirected more than {MOST_REDIRECTS} times")


def number(text: str | None) -> int | None:
    """A count of bytes in a header; None where there is none or where it is no count."""
    return int(text) if text and re.fullmatch("[0-9]{1,18}", text) else None
