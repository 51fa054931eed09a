"""Settings for every test: repeatable property tests without a clock, one thread."""

from __future__ import annotations

import torch
from hypothesis import settings

# drawn the same way in every run, and no deadline: the machines that run this are shared
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
torch.set_num_threads(1)
