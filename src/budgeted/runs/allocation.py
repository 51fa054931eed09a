"""Memory that a step gives back is kept for the next one.

Activations and gradients of a step are a few megabytes each. glibc returns such pieces to the system as they are freed,
and the next step faults the same pages in again. No result depends on it.
"""

from __future__ import annotations

import ctypes
import os
import sys

# Of mallopt(3). Above half of an arena's heap glibc takes no threshold for pieces that are mapped by themselves.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT, _LARGEST = 1 << 30, 32 << 20
_OWN_WISHES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """For a process that does nothing but run: whether its allocator was told. What the user told it stays."""
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _OWN_WISHES):
        return False
    tell = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries of Linux have none
    return tell is not None and bool(tell(_TRIM_THRESHOLD, _KEPT)) and bool(tell(_MMAP_THRESHOLD, _LARGEST))
