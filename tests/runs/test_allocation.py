"""Freed memory stays with the process, unless the user told the allocator otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Six pieces are taken, written and given back, twenty times: 23,040 pages, every time anew or once.
_FAULTS = """
import ctypes, resource
from budgeted.runs.allocation import keep_freed_memory
told = {told} and keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.memset.restype = ctypes.c_void_p
libc.free.argtypes = (ctypes.c_void_p,)
libc.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    pieces = [libc.memset(libc.malloc(15 << 20), 1, 15 << 20) for _ in range(6)]
    for piece in pieces:
        libc.free(piece)
print(int(told), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(told: bool, **environment: str) -> tuple[bool, int]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    ran = subprocess.run(
        [sys.executable, "-c", _FAULTS.format(told=told)],
        env={**kept, **environment}, capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    done, pages = map(int, ran.stdout.split())
    return bool(done), pages


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="an allocator of Linux is told")
def test_what_is_freed_is_not_faulted_in_again() -> None:
    told, kept = faults(True)
    if not told:
        pytest.skip("this C library has no mallopt")
    plain = faults(False)[1]
    assert kept < 2 * 23_040 < 10 * 23_040 < plain


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="an allocator of Linux is told")
def test_what_the_user_told_the_allocator_stays() -> None:
    told, pages = faults(True, MALLOC_MMAP_THRESHOLD_="65536")
    assert not told
    assert pages > 10 * 23_040
