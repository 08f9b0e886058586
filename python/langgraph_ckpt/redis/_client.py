"""What the classes for Redis take to connect: URLs, as well as the clients of redis-py."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import quote, urlencode

from langgraph_ckpt._connection import check_conn_string

if TYPE_CHECKING:
    from typing import TypeAlias

#: A client of redis-py: `Redis` or `RedisCluster`, also of `redis.asyncio`. The package need not be installed.
Client: TypeAlias = "Any"

#: How URLs begin.
SCHEMES = (
    *(f"{start}{kind}" for start in ("redis", "rediss", "valkey", "valkeys") for kind in ("", "+cluster", "+sentinel")),
    *("redis+unix", "valkey+unix", "unix"),
)

_WANTED = "a URL (redis://host:6379, redis+cluster://host, redis+sentinel://host/service), or a redis_client of redis-py"


class TTLConfig(TypedDict, total=False):
    """How long threads are kept."""

    default_ttl: float | None
    """In minutes, since the last write. `None` keeps them for ever."""
    refresh_on_read: bool
    """Whether a read counts too."""


def read_ttl(ttl: Mapping[str, Any] | None) -> tuple[float | None, bool]:
    """The minutes, if there is a limit, and whether reads refresh them."""
    if ttl is None:
        return None, False
    if not isinstance(ttl, Mapping):
        raise TypeError(f"ttl must be a dict, not {type(ttl).__name__}")
    unknown = sorted(map(str, ttl.keys() - {"default_ttl", "refresh_on_read"}))
    if unknown:
        raise ValueError(f"ttl has unknown keys: {', '.join(unknown)}")
    minutes = ttl.get("default_ttl")
    if minutes is not None and (isinstance(minutes, bool) or not isinstance(minutes, (int, float))):
        raise TypeError(f"default_ttl must be a number of minutes, not {type(minutes).__name__}")
    return (None if minutes is None else float(minutes)), bool(ttl.get("refresh_on_read", False))


def read_client(
    cls: Any, base: type, url: object, client: object, options: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any]]:
    """Returns a URL, and the options, completed by those of a client. Errors do not show the URL: it may have a password."""
    name = cls.__name__
    if client is not None:
        if url is not None:
            raise TypeError(f"{name} takes a redis_url or a redis_client, not both")
        found_url, found = _of_client(name, client)
        return found_url, {**options, **{key: value for key, value in found.items() if options.get(key) is None}}
    return check_conn_string(cls, base, url, _WANTED), options


def _of_client(name: str, client: Any) -> tuple[str, dict[str, Any]]:
    redis = sys.modules.get("redis")
    if redis is None:
        raise TypeError(f"{name} takes {_WANTED}, not {type(client).__name__}")
    import redis.asyncio
    import redis.asyncio.cluster
    import redis.asyncio.sentinel
    import redis.cluster
    import redis.sentinel

    try:
        if isinstance(client, redis.cluster.RedisCluster):
            nodes = client.get_nodes()
            return _url("cluster", _hosts(nodes), "", client.nodes_manager.connection_kwargs)
        if isinstance(client, redis.asyncio.cluster.RedisCluster):
            startup = client.get_nodes() or list(client.nodes_manager.startup_nodes.values())
            return _url("cluster", _hosts(startup), "", client.connection_kwargs)
        if not isinstance(client, (redis.Redis, redis.asyncio.Redis)):
            raise TypeError(f"{name} takes {_WANTED}, not {type(client).__name__}")
        pool = client.connection_pool
        given = dict(pool.connection_kwargs)
        if issubclass(pool.connection_class, (redis.SSLConnection, redis.asyncio.SSLConnection)):
            given["ssl"] = True
        if isinstance(pool, (redis.sentinel.SentinelConnectionPool, redis.asyncio.sentinel.SentinelConnectionPool)):
            if not pool.is_master:
                raise ValueError(f"the client of {name} is of a sentinel's replicas; give it that of the primary")
            of_sentinels = [one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels]
            hosts = [(one.get("host", "localhost"), one.get("port", 26379)) for one in of_sentinels]
            path = f"/{quote(pool.service_name, safe='')}/{given.pop('db', None) or 0}"
            first: Mapping[str, Any] = of_sentinels[0] if of_sentinels else {}
            given.update(sentinel_username=first.get("username"), sentinel_password=first.get("password"))
            return _url("sentinel", hosts, path, given)
        database = given.pop("db", None) or 0
        if given.get("path"):
            return _url("unix", [], quote(str(given["path"])), {**given, "db": database})
        return _url("", [(given.get("host", "localhost"), given.get("port", 6379))], f"/{database}", given)
    except (AttributeError, KeyError) as error:
        raise ValueError(f"the parameters of the client cannot be read; give {name} a URL") from error


def _hosts(nodes: Iterable[Any]) -> list[tuple[str, int]]:
    return [(node.host, node.port) for node in nodes]


def _url(
    kind: str, hosts: Iterable[tuple[str, int]], path: str, given: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The URL of servers with the parameters of a connection of redis-py, and the options that follow from them."""
    if given.get("credential_provider") is not None:
        raise ValueError("the client computes its password for each connection, which is not supported; give a URL")
    is_secure = bool(given.get("ssl")) or "SSL" in getattr(given.get("connection_class"), "__name__", "")
    # Without it, redis-py verifies. Its `None` is not the same as nothing.
    verified = given.get("ssl_cert_reqs", "required")
    if is_secure and str(getattr(verified, "name", verified)).lower() not in ("required", "cert_required"):
        raise ValueError("the client does not verify the server's certificate, which is not supported; give a URL")
    parameters = {
        key: str(given[key])
        for key in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
        if is_secure and given.get(key) is not None
    }
    for key in ("protocol", "sentinel_username", "sentinel_password"):
        if given.get(key) is not None:
            parameters[key] = _text(given[key])
    if kind == "unix":
        parameters["db"] = str(given["db"])
    login = ""
    if given.get("password") is not None:
        login = f"{quote(_text(given.get('username') or ''), safe='')}:{quote(_text(given['password']), safe='')}@"
    elif given.get("username"):
        raise ValueError("the client has a user without a password; give a URL")
    scheme = ("rediss" if is_secure else "redis") + (f"+{kind}" if kind else "")
    listed = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts)
    query = f"?{urlencode(parameters, quote_via=quote)}" if parameters else ""
    options = {"connect_timeout": given.get("socket_connect_timeout"), "client_name": given.get("client_name")}
    return f"{scheme}://{login}{listed}{path}{query}", options


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
