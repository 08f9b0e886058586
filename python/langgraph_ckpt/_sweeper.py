"""A background thread that repeats a call."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any


class Sweeper(threading.Thread):
    """Calls `sweep` with its owner after each interval (in seconds), until it is stopped, or the owner is garbage collected.

    `failed` is called where `sweep` raises, unless the sweeper was stopped meanwhile.
    """

    def __init__(
        self, owner: Any, name: str, interval: float, sweep: Callable[[Any], None], failed: Callable[[], None]
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.future: Future[None] = Future()
        self.future.add_done_callback(lambda _: self._stopped.set())
        self._owner = weakref.ref(owner)
        self._interval, self._sweep, self._failed = interval, sweep, failed
        self._stopped = threading.Event()
        weakref.finalize(owner, self._stopped.set)

    def run(self) -> None:
        while not self._stopped.wait(self._interval):
            owner = self._owner()
            if owner is None:
                break
            try:
                self._sweep(owner)
            except Exception:
                if not self._stopped.is_set():
                    self._failed()
            # Not kept alive until the next one.
            del owner
        try:
            self.future.set_result(None)
        except InvalidStateError:
            pass  # Cancelled.

    def stop(self, timeout: float | None) -> bool:
        """Stops it and waits for it, in seconds. Returns whether it has stopped."""
        self._stopped.set()
        if self is not threading.current_thread():
            self.join(timeout)
        return not self.is_alive()
