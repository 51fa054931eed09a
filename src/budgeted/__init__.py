"""Train on a stream that never stops, inside a hard budget of compute and storage, and prove the spending."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("budgeted")
except PackageNotFoundError:  # a source tree on PYTHONPATH that was never installed
    __version__ = "0+source"

__all__ = ["__version__"]
