"""Exceptions that are also the drivers' own, because code written for LangGraph's classes catches those."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

#: The modules of Python's drivers, by our backends.
_DRIVERS = {"mongo": "pymongo.errors", "postgres": "psycopg", "redis": "redis", "sqlite": "sqlite3"}


def operational(base: Any, backend: str | None) -> type[Exception]:
    """A class that is `base` and, if the program has imported the backend's driver, its `OperationalError`.

    redis-py has a `ConnectionError` and a `TimeoutError` instead, and pymongo `AutoReconnect` and `NetworkTimeout`.
    """
    driver = sys.modules.get(_DRIVERS.get(backend or "", ""))
    if backend == "mongo":
        name = "NetworkTimeout" if issubclass(base, TimeoutError) else "AutoReconnect"
    else:
        name = base.__name__ if backend == "redis" else "OperationalError"
    own = getattr(driver, name, None)
    return base if own is None else _class_of(base, own)


@cache
def _class_of(base: Any, own: Any) -> type[Exception]:
    def initialize(self: Exception, *args: Any) -> None:
        base.__init__(self, *args)
        own.__init__(self, *args)

    def reduce(self: Exception) -> Any:
        # Another process may not have this class.
        return base, self.args, {key: value for key, value in vars(self).items() if key in ("kind", "retryable")}

    return type(base.__name__, (base, own), {"__init__": initialize, "__module__": __name__, "__reduce__": reduce})
