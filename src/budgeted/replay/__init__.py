"""Replay: the byte-sized memory, which samples stay in it, and which are trained on again."""

from __future__ import annotations

from budgeted.replay.aser import AdversarialShapley, ASERSettings, ShapleySelection
from budgeted.replay.codec import CODE, CODECS, Codec, Raw
from budgeted.replay.codecs import Fitted, Half, Jpeg, PictureCodec, Progressive, WebP, Ycc420
from budgeted.replay.column import LABEL, Column, bytes_per_slot, label_column, slots_for
from budgeted.replay.importance import LeastImportant
from budgeted.replay.membership import Slots
from budgeted.replay.memory import Batch, Memory, Watcher
from budgeted.replay.mir import MaximallyInterfered, MIRSettings
from budgeted.replay.retrieval import RETRIEVALS, ClassBalanced, Facts, Retrieval, Uniform
from budgeted.replay.sar import Effort, SimilarityAware
from budgeted.replay.sar_settings import SARSettings
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
