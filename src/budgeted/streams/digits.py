"""scikit-learn's 1,797 handwritten digits: a real data set that needs no download."""

from __future__ import annotations

import numpy as np

from budgeted.errors import needed
from budgeted.streams.dataset import Dataset, Part, Request, assemble
from budgeted.streams.idx import DIGIT_CLASSES
from budgeted.streams.orders import limit

TEST_SIZE = 360
_SPLIT_SEED = 0


def read(request: Request) -> Dataset:
    """8x8 images of one channel, their 0…16 scaled to 0…255.

    The split never changes: 36 test samples of each digit, drawn with seed 0; the other 1,437 train.
    """
    # slow to import, and nothing else here needs it
    content = needed("sklearn.datasets", "the digits come with scikit-learn: pip install scikit-learn").load_digits()
    images = ((np.asarray(content.images, np.int64) * 255 + 8) // 16).astype(np.uint8)[:, None]
    labels = np.asarray(content.target, np.int64)
    is_test = np.zeros(len(labels), bool)
    is_test[limit(labels, TEST_SIZE, _SPLIT_SEED)] = True
    train = Part(images[~is_test], labels[~is_test]) if request.train else None
    test = Part(images[is_test], labels[is_test]) if request.test else None
    return assemble(request.info, DIGIT_CLASSES, train, test)
