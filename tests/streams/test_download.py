"""Downloads over a loopback server that can cut connections, know ranges or not, and lie."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import re
import shutil
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pytest

from budgeted import streams
from budgeted.streams import cifar, download, registry
from budgeted.streams.download import DownloadError, DownloadGone, Source, fetch

CONTENT = np.random.default_rng(0).bytes(1_000_000)


@dataclass
class Served:
    """What the server does; and the Range headers it was sent."""

    content: dict[str, bytes] = field(default_factory=lambda: {"/file": CONTENT})
    ranges: bool = True
    says_length: bool = True
    #: Bytes after which each of the next connections is cut.
    cuts: list[int] = field(default_factory=list)
    #: Status codes with which the next requests are answered.
    refusals: list[int] = field(default_factory=list)
    wrong_range: bool = False
    asked: list[str | None] = field(default_factory=list)
    address: str = ""

    def source(self, name: str = "/file", md5: str | None = None) -> Source:
        digest = hashlib.md5(self.content.get(name, b"")).hexdigest()
        return Source(self.address + name, md5 or digest, "sub/data.bin")


@pytest.fixture
def served() -> Iterator[Served]:
    plan = Served()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            plan.asked.append(self.headers.get("Range"))
            if plan.refusals:
                return self.send_error(plan.refusals.pop(0))
            if self.path not in plan.content:
                return self.send_error(404)
            body = plan.content[self.path]
            start = 0
            match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
            if match and plan.ranges:
                start = int(match[1])
                if start >= len(body):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(body)}")
                    return self.end_headers()
                self.send_response(206)
                shown = start + 1 if plan.wrong_range else start
                self.send_header("Content-Range", f"bytes {shown}-{len(body) - 1}/{len(body)}")
            else:
                self.send_response(200)
            if plan.says_length:
                self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            end = start + plan.cuts.pop(0) if plan.cuts else len(body)
            with contextlib.suppress(ConnectionError):  # the client may hang up first
                self.wfile.write(body[start:end])
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    plan.address = f"http://127.0.0.1:{server.server_port}"
    yield plan
    server.shutdown()
    thread.join()
    server.server_close()


def get(source: Source, where: Path, progress: download.Progress | None = None) -> Path:
    return fetch(source, where, pause=0.0, timeout=5.0, attempts=2, progress=progress)


def test_a_whole_file(served: Served, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = get(served.source(), tmp_path, lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "sub" / "data.bin"
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert served.asked == [None]


def test_a_whole_file_is_not_fetched_twice(served: Served, tmp_path: Path) -> None:
    path = get(served.source(), tmp_path)
    assert get(served.source(), tmp_path) == path
    assert len(served.asked) == 1
    assert list(path.parent.iterdir()) == [path]


def test_cut_connections_are_resumed_where_they_ended(served: Served, tmp_path: Path) -> None:
    served.cuts = [300_000, 0, 200_000]
    assert get(served.source(), tmp_path).read_bytes() == CONTENT
    assert served.asked == [None, "bytes=300000-", "bytes=300000-", "bytes=500000-"]


def test_a_server_without_ranges_starts_again(served: Served, tmp_path: Path) -> None:
    served.ranges = False
    served.cuts = [300_000]
    assert get(served.source(), tmp_path).read_bytes() == CONTENT
    assert served.asked == [None, "bytes=300000-"]


def test_a_later_call_resumes(served: Served, tmp_path: Path) -> None:
    served.cuts = [400_000, 0, 0]
    with pytest.raises(DownloadError, match=r"cut at 400,000 of 1,000,000 .*400,000 bytes are kept in .*resume"):
        get(served.source(), tmp_path)
    assert (tmp_path / "sub/data.bin.part").stat().st_size == 400_000
    assert not (tmp_path / "sub/data.bin").exists()
    served.asked.clear()
    assert get(served.source(), tmp_path).read_bytes() == CONTENT
    assert served.asked == ["bytes=400000-"]


def test_a_complete_part_needs_no_bytes_more(served: Served, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/data.bin.part").write_bytes(CONTENT)
    assert get(served.source(), tmp_path).read_bytes() == CONTENT
    assert served.asked == ["bytes=1000000-"]


@pytest.mark.parametrize("extra", [1, 5000])
def test_a_part_longer_than_the_file_is_thrown_away(extra: int, served: Served, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/data.bin.part").write_bytes(CONTENT + b"x" * extra)
    assert get(served.source(), tmp_path).read_bytes() == CONTENT
    assert served.asked == [f"bytes={1_000_000 + extra}-", None]


def test_a_server_that_sends_another_range_is_not_believed(served: Served, tmp_path: Path) -> None:
    served.wrong_range = True
    served.cuts = [100_000]
    assert get(served.source(), tmp_path).read_bytes() == CONTENT
    assert served.asked[-1] is None


def test_without_a_length_the_checksum_decides(served: Served, tmp_path: Path) -> None:
    served.says_length = False
    served.cuts = [600_000]
    with pytest.raises(DownloadError, match="kept aside"):
        get(served.source(), tmp_path)
    seen: list[int | None] = []
    assert get(served.source(), tmp_path, lambda _, total: seen.append(total)).read_bytes() == CONTENT
    assert set(seen) == {None}


def test_a_wrong_checksum_sets_the_file_aside_and_says_so(served: Served, tmp_path: Path) -> None:
    good = served.source()
    served.content["/file"] = CONTENT[:-1] + b"!"
    with pytest.raises(DownloadError, match=r"md5 .* instead of .*kept aside as .*data\.bin\.bad: try again"):
        get(good, tmp_path)
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["data.bin.bad"]
    served.content["/file"] = CONTENT
    assert get(good, tmp_path).read_bytes() == CONTENT


def test_a_file_that_is_there_but_wrong_is_left_alone(served: Served, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    path = tmp_path / "sub/data.bin"
    path.write_bytes(b"mine")
    with pytest.raises(DownloadError, match="remove it and try again"):
        get(served.source(), tmp_path)
    assert path.read_bytes() == b"mine"
    assert served.asked == []


def test_addresses_that_are_gone(served: Served, tmp_path: Path) -> None:
    with pytest.raises(DownloadGone, match=r"/other: the server answered 404 .*by hand"):
        get(served.source("/other"), tmp_path)
    assert len(served.asked) == 1
    served.refusals = [403]
    with pytest.raises(DownloadError, match="403"):
        get(served.source(), tmp_path)
    assert len(served.asked) == 2


def test_a_busy_server_is_asked_again(served: Served, tmp_path: Path) -> None:
    served.refusals = [503]
    assert get(served.source(), tmp_path).read_bytes() == CONTENT
    served.refusals = [503, 503]
    with pytest.raises(DownloadError, match="503"):
        get(Source(served.address + "/file", "0" * 32, "other"), tmp_path)


def test_no_network(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"no connection .*check the network"):
        get(Source("http://127.0.0.1:9/file", "0" * 32, "data.bin"), tmp_path)


def test_waits_double_between_fruitless_tries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    with pytest.raises(DownloadError):
        fetch(Source("http://127.0.0.1:9/file", "0" * 32, "data.bin"), tmp_path, attempts=4, pause=0.5)
    assert waits == [0.5, 1.0, 2.0]


def test_a_disk_too_small_is_known_before(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=999_999))
    with pytest.raises(DownloadError, match="disk full: 1,000,000 bytes to come, 999,999 free"):
        get(served.source(), tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_disk_that_fills_up_ends_the_download_and_says_so(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def full(_: Path) -> Iterator[BinaryIO]:
        with open("/dev/full", "wb+", buffering=0) as file:  # every write to it fails as on a full disk
            yield cast("BinaryIO", file)

    monkeypatch.setattr(download, "_opened_alone", full)
    monkeypatch.setattr("os.pread", lambda *_: b"")  # what is read from it has no end
    with pytest.raises(DownloadError, match=r"disk full in .*resume"):
        get(served.source(), tmp_path)
    assert len(served.asked) == 1  # no use in asking again


def test_a_folder_that_cannot_be_written(served: Served, tmp_path: Path) -> None:
    (tmp_path / "sub").write_bytes(b"a file where the folder should be")
    with pytest.raises(DownloadError, match="choose another data folder"):
        get(served.source(), tmp_path)


def test_two_downloads_of_one_file_do_not_mix(served: Served, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with open(tmp_path / "sub/data.bin.part", "ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DownloadError, match="another process"):
            get(served.source(), tmp_path)
    assert get(served.source(), tmp_path).read_bytes() == CONTENT


def tiny_mnist() -> dict[str, bytes]:
    images = bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(784)
    labels = bytes([0, 0, 8, 1, 0, 0, 0, 1, 7])
    return {f"/{part}-{what}": images if "images" in what else labels for part in ("train", "t10k")
            for what in ("images-idx3-ubyte", "labels-idx1-ubyte")}  # fmt: skip


def test_load_downloads_only_when_told_to(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served.content = tiny_mnist()
    sources = tuple(
        Source(served.address + name, hashlib.md5(content).hexdigest(), "mnist" + name)
        for name, content in served.content.items()
    )
    entry = streams.Entry(registry.info("mnist"), registry.DATASETS["mnist"].read, (sources,))
    monkeypatch.setitem(registry.DATASETS._known, "mnist", entry)
    with pytest.raises(streams.DataMissing, match="download=True"):
        streams.load("mnist", tmp_path)
    assert served.asked == []
    seen: list[int] = []
    data = streams.load("mnist", tmp_path, download=True, progress=lambda done, _: seen.append(done))
    assert data.train_labels.tolist() == [7]
    assert len(seen) == 4
    served.asked.clear()
    streams.load("mnist", tmp_path, download=True)
    assert served.asked == []


def test_load_takes_the_python_version_where_the_binary_one_is_gone(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("nothing"))
    name = cifar.CIFAR10_PYTHON.archive
    served.content = {f"/{name}": out.getvalue()}
    entry = registry.DATASETS["cifar10"]
    ways = tuple(
        tuple(
            Source(f"{served.address}/{each.path}", hashlib.md5(out.getvalue()).hexdigest(), each.path) for each in way
        )
        for way in entry.downloads
    )
    monkeypatch.setitem(registry.DATASETS._known, "cifar10", streams.Entry(entry.info, entry.read, ways))
    with pytest.raises(streams.DataError, match=rf"{name}: holds no data_batch_1"):
        streams.load("cifar10", tmp_path, download=True)
    assert (tmp_path / name).is_file()


def test_every_official_address_has_a_checksum() -> None:
    for name in streams.names():
        for way in registry.DATASETS[name].downloads:
            for source in way:
                # Nobody published one of notMNIST: its length and the checksum inside its gzip have to do.
                assert re.fullmatch("[0-9a-f]{32}", source.md5) or source.path == "notMNIST_small.tar.gz"
                assert source.md5 or source.size
                assert source.url.endswith(source.path.rsplit("/", 1)[-1])
    official = {each.path: each.md5 for way in registry.DATASETS["cifar10"].downloads for each in way}
    assert official["cifar-10-binary.tar.gz"] == "c32a1d4ab5d03f1284b67883e8d87530"
    assert official["cifar-10-python.tar.gz"] == "c58f30108f718f92721af3b95e74349a"
