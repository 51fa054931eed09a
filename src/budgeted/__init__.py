"""Train on a stream that never stops, inside a hard budget of compute and storage, and prove the spending."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from budgeted.plugin import AdaptiveFreezing, ReplayMemory, SimilarityAwareRetrieval

try:
    __version__ = version("budgeted")
except PackageNotFoundError:  # a source tree on PYTHONPATH that was never installed
    __version__ = "0+source"

__all__ = ["AdaptiveFreezing", "ReplayMemory", "SimilarityAwareRetrieval", "__version__"]


def __getattr__(name: str) -> Any:
    """The plug-ins, imported when they are asked for: `import budgeted` alone does not load torch."""
    if name in __all__:
        from budgeted import plugin

        return getattr(plugin, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
