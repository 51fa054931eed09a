"""Small valid containers of pictures for the attack: manifests, shards, and ImageNet's archives."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import scipy.io

from budgeted import streams
from tests.hostile.valid import Files, Target, picture, tar

_LABELS = ("ant", "bee", "ant", "bee", "ant", "bee")


def _pictures() -> list[bytes]:
    return [picture(i, ("jpg", "png")[i % 2]) for i in range(len(_LABELS))]


def manifest_csv() -> Files:
    lines = [f"images/{i}.jpg,{label},2021-0{i + 1}-01" for i, label in enumerate(_LABELS)]
    files = {f"images/{i}.jpg": content for i, content in enumerate(_pictures())}
    return {"rows.csv": ("path,label,time\n" + "\n".join(lines) + "\n").encode(), **files}


def _parquet(columns: dict[str, list[object]]) -> bytes:
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), out, row_group_size=4)
    return out.getvalue()


def manifest_parquet() -> Files:
    files = {f"images/{i}.jpg": content for i, content in enumerate(_pictures())}
    paths: list[object] = [f"images/{i}.jpg" for i in range(len(_LABELS))]
    return {"rows.parquet": _parquet({"path": paths, "label": list(_LABELS)}), **files}


def pictures_parquet() -> Files:
    return {"rows.parquet": _parquet({"image": list(_pictures()), "label": list(_LABELS)})}


def shards() -> Files:
    members = {
        f"{i:03}.{ending}": content
        for i, (label, image) in enumerate(zip(_LABELS, _pictures(), strict=True))
        for ending, content in (("jpg", image), ("cls" if i % 2 else "json", _label(label, i)))
    }
    names = sorted(members)
    return {
        "data-0.tar": tar({name: members[name] for name in names[:6]}),
        "data-1.tar": tar({name: members[name] for name in names[6:]}),
    }


def _label(word: str, number: int) -> bytes:
    return word.encode() if number % 2 else f'{{"label": "{word}"}}'.encode()


def devkit(wnids: tuple[str, ...], truth: list[int]) -> bytes:
    """The two files of ImageNet's devkit that matter: synsets as structs, and a number for each validation picture."""
    fields = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O")]
    synsets = np.array([(i + 1, wnid, f"word {i}", 0) for i, wnid in enumerate(wnids)], fields)
    out = io.BytesIO()
    scipy.io.savemat(out, {"synsets": synsets}, do_compression=True)
    meta = out.getvalue()[:20] + b" " * 96 + out.getvalue()[116:]  # without the date
    lines = "".join(f"{number}\n" for number in truth).encode()
    root = "ILSVRC2012_devkit_t12"
    members = {f"{root}/data/meta.mat": meta, f"{root}/data/ILSVRC2012_validation_ground_truth.txt": lines}
    return gzip.compress(tar(members), mtime=0)


def imagenet() -> Files:
    wnids = ("n02", "n01")
    inner = {
        wnid: tar({f"{wnid}_{i}.JPEG": picture(10 * number + i, "jpg") for i in range(2)})
        for number, wnid in enumerate(wnids)
    }
    return {
        "ILSVRC2012_img_train.tar": tar({f"{wnid}.tar": content for wnid, content in inner.items()}),
        "ILSVRC2012_img_val.tar": tar({f"ILSVRC2012_val_{i:08}.JPEG": picture(30 + i, "jpg") for i in range(3)}),
        "ILSVRC2012_devkit_t12.tar.gz": devkit(wnids, [2, 1, 2]),
    }


def _target(files: Callable[[], Files], name: str) -> Target:
    return Target(cache(files), lambda place: streams.load(name.replace("DIR", str(place))))


def _imagenet(place: Path) -> streams.Dataset:
    return streams.load("imagenet", place, size=8)


CONTAINERS: dict[str, Target] = {
    "manifest-csv": _target(manifest_csv, "manifest:DIR/rows.csv"),
    "manifest-parquet": _target(manifest_parquet, "manifest:DIR/rows.parquet"),
    "manifest-parquet-pictures": _target(pictures_parquet, "manifest:DIR/rows.parquet"),
    "shards": _target(shards, "wds:DIR/data-{0..1}.tar"),
    "imagenet-archives": Target(cache(imagenet), _imagenet),
}
