"""CLEAR and ImageNet in their official layouts, made of real pictures where some are at hand: killed and resumed."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from budgeted import streams
from budgeted.runs.config import RunConfig
from budgeted.runs.run import resume, start
from tests.hostile.containers import devkit
from tests.runs.small import same_end
from tests.runs.test_data_runs import SMALL
from tests.streams.pictures import write, write_tar
from tests.streams.test_real_data import UNPACK, unpacked  # noqa: F401  a fixture

pytestmark = pytest.mark.skipif(not UNPACK.is_file(), reason="no real data beside this checkout")
COMMAND = [sys.executable, "-c", "import sys; from budgeted.cli import main; sys.exit(main(sys.argv[1:]))"]


@pytest.fixture(scope="module")
def classes(unpacked: Callable[[str], Path]) -> dict[str, list[bytes]]:  # noqa: F811
    """Real JPEGs of 64x64 by WNID: six classes of forty."""
    root = unpacked("tiny-imagenet") / "tiny-imagenet-200" / "train"
    folders = sorted(root.iterdir())[:6]
    return {each.name: [path.read_bytes() for path in sorted(each.glob("images/*"))[:40]] for each in folders}


def clear_tree(root: Path, classes: dict[str, list[bytes]]) -> str:
    """Ten buckets of two pictures a class to train on; eleven of one to test; BACKGROUND in all."""
    for number, (wnid, pictures) in enumerate(classes.items()):
        word = "BACKGROUND" if number == 0 else wnid
        for bucket in range(11):
            for i in range(2 if bucket else 0):
                path = root / "clear10/train_image_only/labeled_images" / str(bucket) / word / f"{i}.jpg"
                write(path, pictures[2 * bucket + i])
            write(root / "clear10/test/labeled_images" / str(bucket) / word / "t.jpg", pictures[25 + bucket])
    return "clear10"


def imagenet_archives(root: Path, classes: dict[str, list[bytes]]) -> str:
    wnids = tuple(reversed(classes))  # the devkit's numbers are not the order of the names
    root.mkdir()
    outer = {}
    for wnid, pictures in classes.items():
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as inner:
            for i, picture in enumerate(pictures[:16]):
                member = tarfile.TarInfo(f"{wnid}_{i}.JPEG")
                member.size = len(picture)
                inner.addfile(member, io.BytesIO(picture))
        outer[f"{wnid}.tar"] = out.getvalue()
    write_tar(root / "ILSVRC2012_img_train.tar", outer)
    truth = [i % len(wnids) + 1 for i in range(18)]
    validation = {f"ILSVRC2012_val_{i + 1:08}.JPEG": classes[wnids[k - 1]][20 + i] for i, k in enumerate(truth)}
    write_tar(root / "ILSVRC2012_img_val.tar", validation)
    write(root / "ILSVRC2012_devkit_t12.tar.gz", devkit(wnids, truth))
    return "imagenet"


@pytest.mark.parametrize("make", [clear_tree, imagenet_archives])
def test_killed_and_resumed_on_real_pictures(
    make: Callable[[Path, dict[str, list[bytes]]], str], classes: dict[str, list[bytes]], tmp_path: Path
) -> None:
    name = make(tmp_path / "data", classes)
    order = "domain" if name == "clear10" else "gaussian"
    given = {
        **SMALL,
        "checkpoint_every": 10,
        "size": 16,
        "dataset": name,
        "data": str(tmp_path / "data"),
        "stream": order,
    }
    flags = [word for key, value in given.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    folder = tmp_path / "killed"
    with subprocess.Popen([*COMMAND, "run", *flags, "--out", str(folder)], stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 100
        while not list(folder.glob("checkpoints/[!.]*")) and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    whole = start(RunConfig(**given), tmp_path / "whole")
    resumed = resume(folder)
    assert resumed["sittings"] == 2
    same_end(whole, resumed)
    data = streams.load(name, tmp_path / "data", size=16)
    assert whole["samples"] == len(data.train_labels) == (100 if name == "clear10" else 96)
