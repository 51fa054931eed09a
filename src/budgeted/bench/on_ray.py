"""A Ray cluster as a place of work: every run is a task, and on its node the same process as on this machine.

Run folders and data lie on a path that all nodes share; through Ray go an order (a line of JSON) and its answer. A task
whose node is lost is asked for again, and goes on from the last checkpoint. When the sweep ends, however it does, Ray
ends its tasks, and with them the processes whose lifelines they hold.
"""

from __future__ import annotations

import logging
import signal
import socket
import threading
from typing import Any

from budgeted.bench.places_of_work import LocalProcesses
from budgeted.errors import BudgetedError
from budgeted.runs.config import RunConfig

HERE = "ray"
"""the cluster that this machine is part of, or that RAY_ADDRESS names"""
MOST_AT_ONCE = 256
"""runs that are asked of a cluster at once; how many of them are at work is Ray's business"""
LOST = -1
PATIENCE = 10
"""seconds for a cluster to answer"""


def execute(order: str, threads: int) -> tuple[int, str]:
    """On the node: a process of its own for the run, which dies with this one."""
    return LocalProcesses().run_with(order, threads)


class RayTasks:
    """Tasks of a cluster; each is given as many cores as the run has threads, and a GPU if it needs one."""

    def __init__(self, on: str) -> None:
        try:
            import ray
        except ImportError as error:
            raise BudgetedError("sweeps on Ray need it: pip install 'budgeted[ray]'") from error
        self._ray: Any = ray
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._tasks: set[Any] = set()
        if not ray.is_initialized():
            address = "auto" if on == HERE else on
            ours = signal.getsignal(signal.SIGTERM)
            try:
                _knock(address)
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (RuntimeError, ValueError, OSError, OverflowError) as error:
                raise BudgetedError(
                    f"no Ray cluster answers at {on!r} ({_first_line(error)}): begin one by `ray start --head`, or "
                    "give its address"
                ) from error
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, ours)  # Ray puts its own there, which knows nothing of our exit codes
        self._task = ray.remote(execute)

    def at_a_time(self, waiting: int) -> int:
        return min(MOST_AT_ONCE, waiting)

    def run(self, order: str, config: RunConfig) -> tuple[int, str]:
        errors = self._ray.exceptions
        with self._lock:
            if self.stopped.is_set():
                return 1, "stopped"
            # Ray would repeat a lost task as it was; asked for anew, it goes on with the run instead of beginning it.
            options = {"num_cpus": config.threads, "num_gpus": int(config.device.startswith("cuda")), "max_retries": 0}
            task = self._task.options(**options).remote(order, config.threads)
            self._tasks.add(task)
        try:
            code, error = self._ray.get(task)
            return int(code), str(error)
        except errors.TaskCancelledError:
            return 1, "stopped"
        except errors.RayTaskError as error:  # the node could not even start it
            return 1, _first_line(error.cause or error)
        except errors.RayError as error:
            return LOST, _first_line(error)
        finally:
            with self._lock:
                self._tasks.discard(task)

    def stop(self) -> None:
        with self._lock:
            self.stopped.set()
            for task in self._tasks:
                self._ray.cancel(task, force=True)


def _knock(address: str) -> None:
    """Ray itself waits for minutes at a door that nobody opens."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
