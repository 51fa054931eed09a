"""Replay: the byte-sized memory, which samples stay in it, and which are trained on again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from budgeted.later import later
from budgeted.replay.codec import CODE, CODECS, Codec, Raw
from budgeted.replay.column import LABEL, Column, bytes_per_slot, label_column, slots_for
from budgeted.replay.membership import Slots
from budgeted.replay.memory import Batch, Memory, Watcher
from budgeted.replay.retrieval import RETRIEVALS, ClassBalanced, Facts, Retrieval, Uniform
from budgeted.replay.selection import (
    SELECTIONS,
    Considers,
    GreedyBalanced,
    GreedyQuota,
    Reservoir,
    Selection,
    Unlimited,
    shrink_to,
    store,
)

if TYPE_CHECKING:
    from budgeted.replay.aser import AdversarialShapley, ASERSettings, ShapleySelection
    from budgeted.replay.codecs import Fitted, Half, Jpeg, PictureCodec, Progressive, WebP, Ycc420
    from budgeted.replay.importance import LeastImportant
    from budgeted.replay.mir import MaximallyInterfered, MIRSettings
    from budgeted.replay.sar import Effort, SimilarityAware
    from budgeted.replay.sar_settings import SARSettings
    from budgeted.replay.shared_pictures import SharedPictures

__all__ = [
    "CODE",
    "CODECS",
    "LABEL",
    "RETRIEVALS",
    "SELECTIONS",
    "ASERSettings",
    "AdversarialShapley",
    "Batch",
    "ClassBalanced",
    "Codec",
    "Column",
    "Considers",
    "Effort",
    "Facts",
    "Fitted",
    "GreedyBalanced",
    "GreedyQuota",
    "Half",
    "Jpeg",
    "LeastImportant",
    "MIRSettings",
    "MaximallyInterfered",
    "Memory",
    "PictureCodec",
    "Progressive",
    "Raw",
    "Reservoir",
    "Retrieval",
    "SARSettings",
    "Selection",
    "ShapleySelection",
    "SharedPictures",
    "SimilarityAware",
    "Slots",
    "Uniform",
    "Unlimited",
    "Watcher",
    "WebP",
    "Ycc420",
    "bytes_per_slot",
    "label_column",
    "shrink_to",
    "slots_for",
    "store",
]

# which names a file registers, in the order of lists
RETRIEVALS.later(__name__, {
    "retrieval": ("uniform", "class-balanced"), "aser": ("aser",), "mir": ("mir",), "sar": ("sar",),
})  # fmt: skip
SELECTIONS.later(__name__, {
    "selection": ("reservoir", "greedy-balanced", "greedy-quota", "unlimited"), "aser": ("aser",),
    "importance": ("least-important",),
})  # fmt: skip
CODECS.later(__name__, {
    "codec": ("raw",), "codecs.jpeg": ("jpeg",), "codecs.fitted": ("fitted",), "codecs.half": ("half",),
    "codecs.progressive": ("progressive",), "codecs.webp": ("webp",), "codecs.ycc": ("ycc420",),
    "shared_pictures": ("pictures",),
})  # fmt: skip

_FILES = {
    "aser": ("ASERSettings", "AdversarialShapley", "ShapleySelection"),
    "codecs": ("Fitted", "Half", "Jpeg", "PictureCodec", "Progressive", "WebP", "Ycc420"),
    "importance": ("LeastImportant",),
    "mir": ("MIRSettings", "MaximallyInterfered"),
    "sar": ("Effort", "SimilarityAware"),
    "sar_settings": ("SARSettings",),
    "shared_pictures": ("SharedPictures",),
}
__getattr__, __dir__ = later(__name__, _FILES)
