"""The data sets by name: their facts, where they come from, what their licence allows, and who reads them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from budgeted.errors import UnknownName
from budgeted.streams import cifar, digits, five, folder, idx, imagenet, notmnist, svhn
from budgeted.streams.dataset import Dataset, DatasetInfo, Request
from budgeted.streams.download import Source
from budgeted.streams.entry import Entry

#: Of ImageNet: the usual ones for photographs.
PHOTO_MEAN, PHOTO_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_KRIZ = "https://www.cs.toronto.edu/~kriz/"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_SVHN = "http://ufldl.stanford.edu/housenumbers/"
_CLEAR = "https://huggingface.co/datasets/elvishelvis6/CLEAR-Continual_Learning_Benchmark/resolve/main/"
_TINY = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
_NOTMNIST = "http://yaroslavvb.com/upload/notMNIST/notMNIST_small.tar.gz"
_CITE_CIFAR = "none stated; its authors ask to cite Krizhevsky, Learning Multiple Layers of Features, 2009"
_RESEARCH = "for non-commercial research and teaching only; the terms of image-net.org apply"
_IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _archive(version: cifar.Version, md5: str, size: int) -> tuple[Source, ...]:
    return (Source(_KRIZ + version.archive, md5, version.archive, size),)


def _idx_files(address: str, subfolder: str, *sums: tuple[str, int]) -> tuple[Source, ...]:
    """`sums`: md5 and bytes of each file."""
    return tuple(
        Source(address + name, md5, f"{subfolder}/{name}", size)
        for name, (md5, size) in zip(_IDX_FILES, sums, strict=True)
    )


def _clear(name: str, train_md5: str, test_md5: str) -> tuple[Source, ...]:
    return (
        Source(
            f"{_CLEAR}{name}-train-image-only.zip",
            train_md5,
            f"{name}/{name}-train-image-only.zip",
            None,
            f"{name}/train_image_only",
        ),
        Source(f"{_CLEAR}{name}-test.zip", test_md5, f"{name}/{name}-test.zip", None, f"{name}/test"),
    )


def _svhn_file(name: str, md5: str) -> Source:
    return Source(_SVHN + name, md5, f"svhn/{name}", svhn.OFFICIAL_BYTES[name])


def _read_clear(request: Request, folder_names: tuple[str, ...], bucket0: str) -> Dataset:
    chosen = request.options.get("bucket0", bucket0)
    if chosen not in ("stream", "pretraining"):
        raise UnknownName("use of bucket 0", chosen, ("stream", "pretraining"))
    pretraining = "0" if chosen == "pretraining" else None
    return folder.read(request, folder_names, leave_out=("BACKGROUND",), pretraining=pretraining)


_SINGLE = (
    Entry(
        DatasetInfo(
            "cifar10",
            10,
            (3, 32, 32),
            50_000,
            10_000,
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2023, 0.1994, 0.2010),
            flips=True,
            class_listing=cifar.CIFAR10_LISTING,
        ),
        partial(cifar.read, versions=(cifar.CIFAR10_BINARY, cifar.CIFAR10_PYTHON)),
        (
            _archive(cifar.CIFAR10_BINARY, "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171),
            _archive(cifar.CIFAR10_PYTHON, "c58f30108f718f92721af3b95e74349a", 170_498_071),
        ),
        home=_KRIZ + "cifar.html",
        licence=_CITE_CIFAR,
    ),
    Entry(
        DatasetInfo(
            "cifar100",
            100,
            (3, 32, 32),
            50_000,
            10_000,
            mean=(0.5071, 0.4867, 0.4408),
            std=(0.2675, 0.2565, 0.2761),
            flips=True,
        ),
        partial(cifar.read, versions=(cifar.CIFAR100_BINARY, cifar.CIFAR100_PYTHON)),
        (
            _archive(cifar.CIFAR100_BINARY, "03b5dce01913d631647c71ecec9e9cb8", 168_513_733),
            _archive(cifar.CIFAR100_PYTHON, "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437),
        ),
        home=_KRIZ + "cifar.html",
        licence=_CITE_CIFAR,
    ),
    # CLEAR: 10 buckets of 300 training samples a class (CLEAR-100: 11 of 100), 11 of 50 test samples a class.
    # The official files add a class BACKGROUND, which the published experiments leave out. CLEAR's authors keep bucket
    # 0 for pretraining. CLEAR-10's stream begins with bucket 1 in the paper too; its CLEAR-100 budgets count 110,000
    # samples, which are all eleven buckets: that is the default there, and `clear100?bucket0=pretraining` the other.
    Entry(
        DatasetInfo("clear10", 10, (3, 224, 224), 30_000, 5_500, PHOTO_MEAN, PHOTO_STD, True, domains=10),
        partial(_read_clear, folder_names=("clear10", "CLEAR10", "CLEAR-10"), bucket0="pretraining"),
        (_clear("clear10", "5171f720810d60b471c308dee595d430", "bf9a85bfb78fe742c7ed32648c9a3275"),),
        resizes=True,
        home="https://clear-benchmark.github.io",
        licence="pictures of YFCC100M, under the Creative Commons licences that their makers chose",
        options=("bucket0",),
    ),
    Entry(
        DatasetInfo("clear100", 100, (3, 224, 224), 110_000, 55_000, PHOTO_MEAN, PHOTO_STD, True, domains=11),
        partial(_read_clear, folder_names=("clear100", "CLEAR100", "CLEAR-100"), bucket0="stream"),
        (_clear("clear100", "ea85cdba9efcb3abf77eaab5554052c8", "e160815fb5fd4bc71dacd339ff41e6a9"),),
        resizes=True,
        home="https://clear-benchmark.github.io",
        licence="pictures of YFCC100M, under the Creative Commons licences that their makers chose",
        options=("bucket0",),
    ),
    Entry(
        DatasetInfo("imagenet", 1000, (3, 224, 224), 1_281_167, 50_000, PHOTO_MEAN, PHOTO_STD, True),
        imagenet.read,
        by_hand=(
            f"ask for access at https://image-net.org/download-images, then put {imagenet.TRAIN} (md5 "
            f"{imagenet.MD5[imagenet.TRAIN]}), {imagenet.VAL} (md5 {imagenet.MD5[imagenet.VAL]}) and {imagenet.DEVKIT} "
            f"(md5 {imagenet.MD5[imagenet.DEVKIT]}) into imagenet/ there, as they are; or extract them as "
            "imagenet/train/WNID/ and imagenet/val/WNID/"
        ),
        resizes=True,
        home="https://image-net.org/challenges/LSVRC/2012",
        licence=_RESEARCH,
    ),
    Entry(
        DatasetInfo(
            "tinyimagenet",
            200,
            (3, 64, 64),
            100_000,
            10_000,
            mean=(0.4802, 0.4481, 0.3975),
            std=(0.2302, 0.2265, 0.2262),
            flips=True,
        ),
        partial(folder.read, folder_names=("tiny-imagenet-200", "tinyimagenet")),
        (
            (
                Source(
                    _TINY,
                    "90528d7ca1a48142e341f4ef8d21d0de",
                    "tiny-imagenet-200.zip",
                    248_100_043,
                    "tiny-imagenet-200",
                ),
            ),
        ),
        resizes=True,
        home="http://cs231n.stanford.edu",
        licence=_RESEARCH,
    ),
    Entry(
        DatasetInfo("mnist", 10, (1, 28, 28), 60_000, 10_000, (0.1307,), (0.3081,), flips=False),
        partial(idx.read, folder_name="mnist", class_names=idx.DIGIT_CLASSES),
        (
            _idx_files(
                _MNIST,
                "mnist",
                ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
                ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
                ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
                ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
            ),
        ),
        home="http://yann.lecun.com/exdb/mnist",
        licence="Creative Commons Attribution-ShareAlike 3.0",
    ),
    Entry(
        DatasetInfo("fashion-mnist", 10, (1, 28, 28), 60_000, 10_000, (0.2860,), (0.3530,), flips=True),
        partial(idx.read, folder_name="fashion-mnist", class_names=idx.FASHION_CLASSES),
        (
            _idx_files(
                _FASHION,
                "fashion-mnist",
                ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
                ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
                ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
                ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
            ),
        ),
        home="https://github.com/zalandoresearch/fashion-mnist",
        licence="MIT",
    ),
    Entry(
        DatasetInfo("notmnist", 10, (1, 28, 28), 16_852, 1_872, (0.4266,), (0.4589,), flips=False),
        notmnist.read,
        ((Source(_NOTMNIST, "", "notMNIST_small.tar.gz", 8_458_043, "notMNIST_small"),),),
        home="http://yaroslavvb.blogspot.com/2011/09/notmnist-dataset.html",
        licence="none stated; glyphs of publicly available typefaces",
    ),
    Entry(
        DatasetInfo(
            "svhn",
            10,
            (3, 32, 32),
            73_257,
            26_032,
            mean=(0.4377, 0.4438, 0.4728),
            std=(0.1980, 0.2010, 0.1970),
            flips=False,
        ),
        svhn.read,
        (
            (
                _svhn_file("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
                _svhn_file("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
            ),
        ),
        home="http://ufldl.stanford.edu/housenumbers",
        licence="for non-commercial use only",
    ),
    Entry(
        DatasetInfo("digits", 10, (1, 8, 8), 1_437, 360, (0.3049,), (0.3758,), flips=False),
        digits.read,
        home="https://archive.ics.uci.edu/dataset/80",
        licence="Creative Commons Attribution 4.0; comes with scikit-learn",
    ),
)

_FIVE_NAMES = {each.info.name: each for each in _SINGLE if each.info is not None and each.info.name in five.SEQUENCE}


def _read_one_of_five(name: str, request: Request) -> Dataset:
    entry = _FIVE_NAMES[name]
    assert entry.info is not None
    return entry.read(replace(request, info=entry.info, options={}))


ENTRIES = (
    *_SINGLE,
    Entry(
        # Mean and deviation follow from those of the five, weighted by their training samples.
        DatasetInfo(
            "5-datasets",
            50,
            (3, 32, 32),
            sum(each.info.train_size for each in _FIVE_NAMES.values() if each.info is not None),
            sum(each.info.test_size for each in _FIVE_NAMES.values() if each.info is not None),
            mean=(0.3415, 0.3414, 0.3428),
            std=(0.3247, 0.3244, 0.3268),
            flips=False,
            domains=5,
        ),
        partial(five.read, reader=_read_one_of_five),
        (tuple(source for name in five.SEQUENCE for source in _FIVE_NAMES[name].downloads[0]),),
        home="https://github.com/facebookresearch/Adversarial-Continual-Learning",
        licence="those of its five data sets; SVHN: for non-commercial use only",
    ),
)
