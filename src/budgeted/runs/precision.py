"""Lower precision that a processor has to imitate, which takes longer than float32 does."""

from __future__ import annotations

import torch

from budgeted.runs.config import RunConfig


def imitated(config: RunConfig) -> bool:
    """Whether a run asks for bfloat16 of a processor for which PyTorch has no kernels in it."""
    wanted = {config.settings.get("learner.autocast"), config.eval_precision}
    return config.device == "cpu" and "bfloat16" in wanted and not _has_kernels()


def _has_kernels() -> bool:
    # On processors of x86 it takes AVX-512; below, convolutions fall back to loops without vectors.
    library = torch.backends.mkldnn
    return not library.is_available() or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
