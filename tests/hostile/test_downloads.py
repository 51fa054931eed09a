"""Downloads from a server on this machine that does whatever keeps a client busy: all of them end, and in one line."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from budgeted.streams.download import DownloadError, Source, fetch

CONTENT = np.random.default_rng(1).bytes(50_000)
Handler = BaseHTTPRequestHandler


@dataclass
class Hostile:
    """A server whose every answer a test decides; it keeps the ranges it was asked for."""

    address: str = ""
    answer: Callable[[Handler, int | None, int], None] = lambda handler, first, count: None
    asked: list[int | None] = field(default_factory=list)
    #: Set at the end of a test: answers that never end look at it.
    over: threading.Event = field(default_factory=threading.Event)

    def source(self, size: int | None = None) -> Source:
        return Source(self.address + "/file", hashlib.md5(CONTENT).hexdigest(), "data.bin", size)


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    plan = Hostile()

    class Answers(Handler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
            plan.asked.append(int(match[1]) if match else None)
            with contextlib.suppress(OSError):  # the client may hang up first
                plan.answer(self, plan.asked[-1], len(plan.asked))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    plan.address = f"http://127.0.0.1:{server.server_port}"
    yield plan
    plan.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


def head(handler: Handler, status: int, **headers: object) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), str(value))
    handler.end_headers()


def rest(handler: Handler, first: int | None, count: int | None = None, says: int | None = None) -> None:
    """An honest head, and so many bytes of the rest; `says` is where the range is said to begin."""
    start = first or 0
    if first is None:
        head(handler, 200, Content_Length=len(CONTENT))
    else:
        shown = start if says is None else says
        length = len(CONTENT) - start
        head(handler, 206, Content_Range=f"bytes {shown}-{len(CONTENT) - 1}/{len(CONTENT)}", Content_Length=length)
    handler.wfile.write(CONTENT[start:][:count])


def get(source: Source, where: Path, **limits: float) -> Path:
    chosen = {"timeout": 1.0, "attempts": 3, "pause": 0.0, "stall": 0.2, "least": 1000, "most": 10**6} | limits
    return fetch(source, where, **chosen)  # type: ignore[arg-type]


def refusal(source: Source, where: Path, **limits: float) -> str:
    with pytest.raises(DownloadError) as caught:
        get(source, where, **limits)
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 1200
    assert not (where / "data.bin").exists()
    return text


def reset(handler: Handler) -> None:
    """Closes so that the other side sees a reset, not an end."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def test_wrong_ranges_in_turn_with_cuts_end(hostile: Hostile, tmp_path: Path) -> None:
    hostile.answer = lambda handler, first, n: rest(handler, first, 20_000, says=None if first is None else first + 1)
    assert "kept in" in refusal(hostile.source(), tmp_path)
    assert len(hostile.asked) < 12
    assert (tmp_path / "data.bin.part").read_bytes() == CONTENT[:20_000]


def test_a_byte_per_connection_ends(hostile: Hostile, tmp_path: Path) -> None:
    hostile.answer = lambda handler, first, n: rest(handler, first, 1)
    assert "cut at 3 of 50,000 bytes; 3 bytes are kept" in refusal(hostile.source(), tmp_path)
    assert hostile.asked == [None, 1, 2]


def test_small_but_real_steps_are_progress(hostile: Hostile, tmp_path: Path) -> None:
    hostile.answer = lambda handler, first, n: rest(handler, first, 1000)
    assert get(hostile.source(), tmp_path, attempts=1).read_bytes() == CONTENT
    assert hostile.asked == [None, *range(1000, 50_000, 1000)]


def test_other_content_at_every_try_ends(hostile: Hostile, tmp_path: Path) -> None:
    """A server without ranges that sends something else each time throws the client back, but not for ever."""

    def answer(handler: Handler, first: int | None, n: int) -> None:
        head(handler, 200, Content_Length=len(CONTENT))
        handler.wfile.write(bytes([n % 256]) * 20_000)

    hostile.answer = answer
    assert "cut at 20,000 of 50,000" in refusal(hostile.source(), tmp_path)
    assert len(hostile.asked) == 4


def endless(handler: Handler, over: threading.Event) -> None:
    while not over.is_set():
        handler.wfile.write(bytes(10_000))


@pytest.mark.parametrize(("size", "most"), [(None, 100_000), (50_000, 10**9)])
def test_a_body_without_end_is_cut_at_the_limit(size: int | None, most: int, hostile: Hostile, tmp_path: Path) -> None:
    def answer(handler: Handler, first: int | None, n: int) -> None:
        head(handler, 200)
        endless(handler, hostile.over)

    hostile.answer = answer
    text = refusal(hostile.source(size), tmp_path, most=most)
    assert f"more than {size or most:,} bytes came; what came is kept aside" in text
    assert len(hostile.asked) == 1
    assert not (tmp_path / "data.bin.part").exists()
    assert (tmp_path / "data.bin.bad").stat().st_size <= (size or most)


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "0x10", "١٢", "5 0", "1" * 19])
def test_odd_lengths_are_no_lengths(length: str, hostile: Hostile, tmp_path: Path) -> None:
    def answer(handler: Handler, first: int | None, n: int) -> None:
        text = f"HTTP/1.0 200 OK\r\nContent-Length: {length}\r\n\r\n"
        handler.wfile.write(text.encode() + CONTENT)

    hostile.answer = answer
    assert get(hostile.source(), tmp_path).read_bytes() == CONTENT


def test_an_announced_length_above_the_limit_is_refused_unread(hostile: Hostile, tmp_path: Path) -> None:
    hostile.answer = lambda handler, first, n: head(handler, 200, Content_Length=10**12)
    text = refusal(hostile.source(), tmp_path)
    assert "announces 1,000,000,000,000 bytes, at most 1,000,000 are taken: fetch the file by hand" in text
    assert len(hostile.asked) == 1


def test_a_page_in_place_of_the_file_does_not_touch_what_came(hostile: Hostile, tmp_path: Path) -> None:
    def answer(handler: Handler, first: int | None, n: int) -> None:
        if n == 1:
            return rest(handler, first, 30_000)
        head(handler, 200, Content_Length=17)
        handler.wfile.write(b"<html>log in</html>")
        return None

    hostile.answer = answer
    assert "announces 17 bytes instead of 50,000; 30,000 bytes are kept" in refusal(hostile.source(50_000), tmp_path)
    assert (tmp_path / "data.bin.part").read_bytes() == CONTENT[:30_000]


def test_a_page_without_a_length_does_not_touch_what_came(hostile: Hostile, tmp_path: Path) -> None:
    def answer(handler: Handler, first: int | None, n: int) -> None:
        if n == 1:
            return rest(handler, first, 30_000)
        if n == 2:
            head(handler, 200, Content_Type="text/html; charset=utf-8")
            handler.wfile.write(b"<html>log in</html>")
            return None
        return rest(handler, first)

    hostile.answer = answer
    assert get(hostile.source(), tmp_path).read_bytes() == CONTENT
    assert hostile.asked == [None, 30_000, 30_000]


def test_a_part_of_the_known_length_is_only_checked(hostile: Hostile, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT)
    assert get(hostile.source(50_000), tmp_path).read_bytes() == CONTENT
    (tmp_path / "data.bin").unlink()
    (tmp_path / "data.bin.part").write_bytes(CONTENT[::-1])
    assert "md5" in refusal(hostile.source(50_000), tmp_path)
    assert hostile.asked == []


@pytest.mark.parametrize("place", ["/file", "/other", "ftp://127.0.0.1/x", "file:///etc/passwd", "http://[::1", "\x01"])
def test_redirects_end(place: str, hostile: Hostile, tmp_path: Path) -> None:
    def answer(handler: Handler, first: int | None, n: int) -> None:
        handler.send_response(302)
        handler.send_header("Location", place)
        handler.end_headers()
        endless(handler, hostile.over)  # the body of a redirect is nothing to wait for

    hostile.answer = answer
    assert "check the network" in refusal(hostile.source(), tmp_path)
    assert len(hostile.asked) <= 3 * 6


def test_a_redirect_is_followed_with_the_range(hostile: Hostile, tmp_path: Path) -> None:
    def answer(handler: Handler, first: int | None, n: int) -> None:
        if handler.path == "/file":
            return head(handler, 302, Location="/there", Content_Length=0)
        return rest(handler, first, 30_000)

    hostile.answer = answer
    assert get(hostile.source(), tmp_path).read_bytes() == CONTENT
    assert hostile.asked == [None, None, 30_000, 30_000]


def drip(handler: Handler, over: threading.Event, letters: bytes) -> None:
    while not over.wait(0.02):
        handler.wfile.write(letters)


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.0 200 OK\r\nX: ", b"HTTP/1.0 200 OK\r\nContent-Length: 50000\r\n\r\n"])
def test_a_drip_is_closed(begin: bytes, hostile: Hostile, tmp_path: Path) -> None:
    """In the status line, in a header, in the body: each letter comes in time, the file never does."""

    def answer(handler: Handler, first: int | None, n: int) -> None:
        handler.wfile.write(begin)
        drip(handler, hostile.over, b"x")

    hostile.answer = answer
    before = time.monotonic()
    assert "less than 1,000 bytes came in 0.2 seconds" in refusal(hostile.source(), tmp_path)
    assert time.monotonic() - before < 60  # three tries of 0.2 s on a machine however busy, against hours


def test_continue_for_ever_is_closed(hostile: Hostile, tmp_path: Path) -> None:
    hostile.answer = lambda handler, first, n: drip(handler, hostile.over, b"HTTP/1.1 100 Continue\r\n\r\n")
    assert "less than 1,000 bytes" in refusal(hostile.source(), tmp_path)


def test_what_came_before_a_reset_is_kept(hostile: Hostile, tmp_path: Path) -> None:
    sent = threading.Event()

    def answer(handler: Handler, first: int | None, n: int) -> None:
        if n > 1:
            return rest(handler, first)
        rest(handler, first, 30_000)
        sent.wait(5)  # a reset overtakes bytes that the other side has not yet taken
        return reset(handler)

    hostile.answer = answer

    def progress(have: int, _: int | None) -> None:
        if have >= 30_000:
            sent.set()

    fetch(hostile.source(), tmp_path, pause=0.0, attempts=1, least=1000, progress=progress)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert hostile.asked == [None, 30_000]


def says(words: bytes) -> Callable[[Handler, int | None, int], None]:
    def answer(handler: Handler, first: int | None, n: int) -> None:
        handler.wfile.write(words)

    return answer


@pytest.mark.parametrize(
    "said", [b"", b"\0" * 100, b"HTTP/9 x y\r\n\r\n", b"HTTP/1.0 204 N\r\n\r\n", b"HTTP/1.0 200 OK\r\n" * 300]
)
def test_no_http_is_no_file(said: bytes, hostile: Hostile, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:7])
    hostile.answer = says(said)
    refusal(hostile.source(), tmp_path)
    assert (tmp_path / "data.bin.part").read_bytes() == CONTENT[:7]
    assert len(hostile.asked) == 3


def test_reasons_of_many_letters_become_one_line(hostile: Hostile, tmp_path: Path) -> None:
    hostile.answer = says(b"HTTP/1.0 403 " + b"\x1b[2J\x07 no\t" * 3000 + b"\r\n\r\n")
    assert "fetch the file by hand" in refusal(hostile.source(), tmp_path)


def test_a_chunk_of_negative_length_is_refused(hostile: Hostile, tmp_path: Path) -> None:
    chunks = b"-5\r\nabc\r\nffffffffffffffffffffff\r\nabc"
    hostile.answer = says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
    refusal(hostile.source(), tmp_path)
    assert len(hostile.asked) <= 3


def test_tls_with_something_that_speaks_none(hostile: Hostile, tmp_path: Path) -> None:
    source = hostile.source()
    secure = Source(source.url.replace("http:", "https:"), source.md5, source.path)
    assert "no connection" in refusal(secure, tmp_path)


@pytest.mark.parametrize("name", ["data.bin", "data.bin.part"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
def test_what_is_no_file_is_neither_waited_for_nor_written(
    name: str, kind: str, hostile: Hostile, tmp_path: Path
) -> None:
    hostile.answer = lambda handler, first, n: rest(handler, first)
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    where = tmp_path / "data"
    where.mkdir()
    if kind == "fifo":
        os.mkfifo(where / name)
    elif kind == "folder":
        (where / name).mkdir()
    else:
        (where / name).symlink_to(outside)
    with pytest.raises(DownloadError) as caught:
        get(hostile.source(), where)
    assert "\n" not in str(caught.value)
    assert outside.read_bytes() == b"mine"
    assert hostile.asked == []
