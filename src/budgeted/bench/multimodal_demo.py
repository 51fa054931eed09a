"""A tiny LLaVA learns new concepts from a stream of questions, with and without freezing: two short runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from budgeted.bench.bongard_recipes import drawn_questions
from budgeted.budget import format_compute
from budgeted.runs import run as runs
from budgeted.runs.folder import CONFIG


@dataclass(frozen=True)
class MultimodalDemo:
    """What the demo runs."""

    questions: Literal["ca", "pn"] = "ca"
    """ca: what do the positive pictures share? pn: is the query positive or negative?"""
    policies: tuple[str, ...] = ("none", "adaptive")
    """Freezing policies that are compared."""
    seed: int = 1
    """Seed of the stream and of the adapters."""


def run_demo(settings: MultimodalDemo, folder: Path, report: Callable[[str, runs.Progress], None]) -> list[str]:
    """Run what is not there yet; lines that say what came of it."""
    found: dict[str, dict[str, Any]] = {}
    for policy in settings.policies:
        config = replace(drawn_questions(settings.questions, policy), seed=settings.seed)
        path = folder / f"llava-{settings.questions}-{policy}-{settings.seed}"
        show = lambda progress, policy=policy: report(policy, progress)  # noqa: E731
        found[policy] = runs.resume(path, show) if (path / CONFIG).exists() else runs.start(config, path, show)
    return list(_lines(settings, found))


def _lines(settings: MultimodalDemo, found: dict[str, dict[str, Any]]) -> list[str]:
    first = next(iter(found.values()))
    base = first["base"]
    lines = [
        f"llava-tiny, pretrained once in {base['cpu_seconds']:.0f} CPU seconds "
        f"({format_compute(base['spent']['real'], 'real')}): "
        f"{base['accuracy'][settings.questions]:.1%} of the questions about thirty new concepts right",
        f"then {first['samples']:,} questions arrive, {first['iterations']} steps of LoRA and projector:",
    ]
    whole = first["spent"]["real"]
    for policy, summary in found.items():
        spent = summary["spent"]["real"]
        lines.append(
            f"  freezing {policy:12} {summary['a_last']:.1%} right at the end, executed "
            f"{format_compute(spent, 'real')} ({spent / whole:.0%}), {summary['train_cpu_seconds']:.0f} CPU seconds"
        )
    return lines
