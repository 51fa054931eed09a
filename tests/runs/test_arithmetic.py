"""The fingerprint is the same wherever the bits are, and another where they are not."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from budgeted.runs import arithmetic
from tests.runs.small import other_dispatch

TELL = "from budgeted.runs.arithmetic import fingerprint; print(fingerprint(1))"


def told(environment: dict[str, str] | None = None) -> str:
    ran = subprocess.run([sys.executable, "-c", TELL], env=environment, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def test_another_process_finds_the_same_and_another_dispatch_does_not() -> None:
    here = arithmetic.fingerprint(1)
    assert told() == here
    assert told(other_dispatch()) != here


def test_one_bit_in_one_result_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = arithmetic.fingerprint(1)
    results = arithmetic._results

    def altered(device: torch.device) -> object:
        for number, result in enumerate(results(device)):
            if number == 40:
                changed = result.detach().clone().contiguous()
                changed.view(torch.int32).view(-1)[0] ^= 1
                yield changed
            else:
                yield result

    monkeypatch.setattr(arithmetic, "_results", altered)
    arithmetic.fingerprint.cache_clear()
    try:
        assert arithmetic.fingerprint(1) != before
    finally:
        arithmetic.fingerprint.cache_clear()


def test_threads_and_gradient_mode_are_as_they_were() -> None:
    arithmetic.fingerprint.cache_clear()
    before = torch.get_num_threads()
    with torch.no_grad():
        alone = arithmetic.fingerprint(1)
        assert not torch.is_grad_enabled()
    assert torch.get_num_threads() == before
    assert alone == arithmetic.fingerprint(1)


def test_the_processor_has_a_name() -> None:
    assert arithmetic.processor()
