"""What sampled per-sample gradients are for each kind of layer, one file for each kind."""

from __future__ import annotations

from budgeted.network.sampled_layers.draw import DrawnLayer, Share, draw
from budgeted.network.sampled_layers.layer import SampledLayer, Use

__all__ = ["DrawnLayer", "SampledLayer", "Share", "Use", "draw"]
