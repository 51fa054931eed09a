"""The codecs of pictures, by name: see docs/codecs.md for what each keeps and what it costs."""

from __future__ import annotations

from budgeted.replay.codecs.fitted import Fitted
from budgeted.replay.codecs.half import Half
from budgeted.replay.codecs.jpeg import Jpeg
from budgeted.replay.codecs.picture import PictureCodec
from budgeted.replay.codecs.progressive import Progressive
from budgeted.replay.codecs.webp import WebP
from budgeted.replay.codecs.ycc import Ycc420

__all__ = ["Fitted", "Half", "Jpeg", "PictureCodec", "Progressive", "WebP", "Ycc420"]
