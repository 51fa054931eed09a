"""The codecs of pictures, by name: see docs/codecs.md for what each keeps and what it costs."""

from __future__ import annotations

from budgeted.replay.codecs.jpeg import Jpeg
from budgeted.replay.codecs.picture import PictureCodec

__all__ = ["Jpeg", "PictureCodec"]
