"""What the classes for PostgreSQL take to connect: strings, as well as psycopg's connections and pools."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import quote

if TYPE_CHECKING:
    from typing import TypeAlias

    from psycopg import AsyncConnection, Connection
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

Conn: TypeAlias = "str | Connection[Any] | AsyncConnection[Any] | ConnectionPool[Any] | AsyncConnectionPool[Any]"

#: Arguments of psycopg's connections that say how it uses a connection, not where it leads.
_PSYCOPGS_OWN = {"autocommit", "context", "cursor_factory", "prepare_threshold", "row_factory", "server_cursor_factory"}

#: Parameters of a connection that libpq has already looked up, or that do not matter to another library: neither where it
#: leads nor how secure it is. Unknown ones that do matter are errors.
_LIBPQS_OWN = {
    "passfile", "service", "servicefile", "gssdelegation", "gsslib", "krbsrvname", "max_protocol_version",
    "min_protocol_version", "sslcertmode", "sslkeylogfile", "sslsni",
}  # fmt: skip

#: How psycopg's pools open and keep connections. Ours opens them when they are needed.
_POOLS_OWN = {
    "check", "close_returns", "configure", "connection_class", "drain", "max_idle", "max_lifetime", "max_waiting",
    "min_size", "name", "num_workers", "open", "reconnect_failed", "reconnect_timeout", "reset",
}  # fmt: skip


class PoolConfig(TypedDict, total=False):
    """The `pool_config` of LangGraph's stores. Other arguments of psycopg's pools are ignored with a warning."""

    min_size: int
    """Ignored: connections are opened when they are needed."""
    max_size: int | None
    """The maximum size of the pool: `max_connections`."""
    timeout: float
    """The timeout for a free connection, in seconds: `acquire_timeout`."""
    kwargs: dict[str, Any]
    """Parameters of the connections, such as `connect_timeout`."""


class Options(TypedDict):
    """The connection options that all classes for PostgreSQL have."""

    schema: str | None
    max_connections: int | None
    connect_timeout: float | None
    acquire_timeout: float | None
    statement_timeout: float | None
    pgbouncer: bool | None
    max_retries: int | None


def check_conn_string(cls: Any, base: type, conn_string: object, wanted: str) -> str:
    """Rejects what is no connection string, and those of other classes. Errors do not show it: it may contain a password."""
    name = cls.__name__
    if not isinstance(conn_string, str):
        raise TypeError(f"{name} takes {wanted}, not {type(conn_string).__name__}")
    # Matched at the beginning only: elsewhere it may be part of a password.
    url = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", conn_string)
    if url and (scheme := url[1]) not in cls._schemes:
        classes: list[Any] = base.__subclasses__()
        owner = next((f": use {one.__name__}" for one in classes if scheme in getattr(one, "_schemes", ())), "")
        raise ValueError(f"{name} takes {wanted}, and this is a URL of {scheme}{owner}")
    return conn_string


def read_conn(cls: Any, base: type, conn: object, pipe: object, options: Options) -> tuple[str, Options]:
    """Returns a connection string for what LangGraph's class takes, and the options, completed by those of a pool."""
    wanted = "a connection string (postgresql://user@host/database), or a connection or pool of psycopg"
    psycopg, pools = sys.modules.get("psycopg"), sys.modules.get("psycopg_pool")
    if psycopg is not None and isinstance(conn, (psycopg.Connection, psycopg.AsyncConnection)):
        if pipe is not None or conn.pgconn.pipeline_status:
            raise ValueError(
                f"{cls.__name__} cannot use a pipeline: it opens connections of its own, and a call is one round trip "
                "anyway; leave out the pipeline"
            )
        conn_string, found = _of_connection(cls.__name__, conn)
    elif pools is not None and isinstance(conn, (pools.ConnectionPool, pools.AsyncConnectionPool)):
        if pipe is not None:
            raise ValueError(
                "Pipeline should be used only with a single Connection, not ConnectionPool; leave out the pipeline: a "
                "call is one round trip anyway"
            )
        conn_string, found = _of_pool(cls.__name__, conn)
    else:
        if pipe is not None:
            raise ValueError(f"{cls.__name__} cannot use a pipeline; leave it out: a call is one round trip anyway")
        return check_conn_string(cls, base, conn, wanted), options
    for name, value in found.items():
        if options.get(name) is None:
            options[name] = value  # type: ignore[literal-required]
    return conn_string, options


def _of_connection(name: str, conn: Any) -> tuple[str, dict[str, Any]]:
    import psycopg

    if conn.closed:
        raise psycopg.OperationalError(f"the connection is closed; give {name} an open one, or its connection string")
    try:
        info = conn.info
        parameters = {key: value for key, value in info.get_parameters().items() if key not in _LIBPQS_OWN}
        # Defaults of psycopg's libpq, such as the folder of a Unix socket.
        for key in ("host", "port", "user", "dbname"):
            parameters.setdefault(key, str(getattr(info, key)))
        if info.password:
            parameters["password"] = info.password
        conn_string = psycopg.conninfo.make_conninfo("", **parameters)
    except (AttributeError, psycopg.Error, ValueError) as error:
        raise _unreadable(name, "connection") from error
    return conn_string, {"pgbouncer": _uses_pooler(conn.prepare_threshold)}


def _of_pool(name: str, pool: Any) -> tuple[str, dict[str, Any]]:
    import psycopg
    import psycopg_pool

    # One that is not open yet has parameters too.
    if pool.closed and getattr(pool, "_opened", True):
        raise psycopg_pool.PoolClosed(
            f"the pool {pool.name!r} is closed; give {name} an open one, or its connection string"
        )
    conninfo, arguments = pool.conninfo, pool.kwargs
    if callable(conninfo) or callable(arguments):
        raise ValueError(
            f"the pool {pool.name!r} computes its parameters for each connection, which {name} cannot do; give it a "
            "connection string"
        )
    arguments = dict(arguments or {})
    try:
        conn_string = psycopg.conninfo.make_conninfo(
            conninfo or "", **{key: value for key, value in arguments.items() if key not in _PSYCOPGS_OWN}
        )
    except psycopg.Error as error:
        raise _unreadable(name, "pool") from error
    if getattr(pool, "_configure", None) is not None:
        _warn(f"{name} opens connections of its own, on which the pool's `configure` is not called", 5)
    options = {"max_connections": max(pool.max_size, 2), "acquire_timeout": pool.timeout}
    return conn_string, {**options, "pgbouncer": _uses_pooler(arguments.get("prepare_threshold", 0))}


def _unreadable(name: str, what: str) -> ValueError:
    return ValueError(f"the parameters of the {what} cannot be read; give {name} its connection string")


def _uses_pooler(prepare_threshold: int | None) -> bool | None:
    """Without prepared statements, the connection leads through a pooler: it is why they are switched off."""
    return True if prepare_threshold is None else None


def read_pool_config(name: str, conn_string: str, config: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """Returns the connection string with the parameters of `pool_config`, and the options that follow from it."""
    if config is None:
        return conn_string, {}
    if not isinstance(config, Mapping):
        raise TypeError(f"pool_config must be a dict, not {type(config).__name__}")
    unknown = sorted(config.keys() - _POOLS_OWN - {"max_size", "timeout", "kwargs"})
    if unknown:
        raise TypeError(f"pool_config has unknown keys: {', '.join(unknown)}")
    ignored = sorted(key for key in config if key in _POOLS_OWN)
    if ignored:
        _warn(f"{name} ignores {', '.join(ignored)} of pool_config: it opens connections when they are needed", 4)
    arguments = dict(config.get("kwargs") or {})
    options: dict[str, Any] = {}
    if config.get("max_size") is not None:
        # Setup needs two.
        options["max_connections"] = max(config["max_size"], 2)
    if config.get("timeout") is not None:
        options["acquire_timeout"] = config["timeout"]
    if _uses_pooler(arguments.get("prepare_threshold", 0)):
        options["pgbouncer"] = True
    parameters = {key: str(value) for key, value in arguments.items() if key not in _PSYCOPGS_OWN}
    return _with_parameters(conn_string, parameters), options


def _with_parameters(conn_string: str, parameters: Mapping[str, str]) -> str:
    """The connection string with these parameters, which take precedence."""
    if not parameters:
        return conn_string
    if "://" in conn_string.split("=", 1)[0]:
        separator = "&" if "?" in conn_string else "?"
        return conn_string + separator + "&".join(f"{key}={quote(value, safe='')}" for key, value in parameters.items())
    escaped = {key: value.replace("\\", "\\\\").replace("'", "\\'") for key, value in parameters.items()}
    return " ".join([conn_string, *(f"{key}='{value}'" for key, value in escaped.items())])


def _warn(text: str, frames: int) -> None:
    warnings.warn(text, UserWarning, stacklevel=frames)
