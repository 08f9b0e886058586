"""The Redis cache."""

from __future__ import annotations

from typing import Any, TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ckpt import _native
from langgraph_ckpt._cache import Cache, ValueT
from langgraph_ckpt.redis._client import SCHEMES, Client, read_client

R = TypeVar("R", bound="RedisCache[Any]")


class RedisCache(Cache[ValueT]):
    """Keeps results in Redis or Valkey, on one server or in a cluster. The server deletes expired values.

    ```python
    with RedisCache("redis://localhost:6379") as cache:
        graph = builder.compile(cache=cache)
    ```

    Unlike LangGraph's own `RedisCache`, it reports errors instead of finding nothing, keeps namespaces apart whose parts
    contain colons, clears a namespace without a scan of the server, and its asynchronous methods do not block. The two do
    not read each other's values. In a cluster, the values of one namespace are stored atomically. It needs no scripts, and the
    commands `GET SET SADD SMEMBERS UNLINK ZADD ZRANGE ZREM ZREMRANGEBYSCORE MULTI EXEC PING`.

    Args:
        redis: A URL, or a client of redis-py, as for `RedisSaver`.
        serde: The serializer of values. Defaults to LangGraph's `JsonPlusSerializer`.
        prefix: What all keys begin with; `:cache:` follows. It may be the one of a saver. Defaults to `prefix` in the URL, else
            `ckpt`.
        connect_timeout: The timeout for opening a connection, in seconds. Defaults to 5.
        timeout: The timeout of a request, retries included, in seconds. Defaults to 30.
        max_retries: How often a request is retried. Defaults to 5.
        client_name: The name of the connections in `CLIENT LIST`.

    Raises:
        TypeError: If `redis` is something else.
        ValueError: If the URL or an option is invalid, or if the parameters of the client cannot be read.
    """

    _schemes = SCHEMES

    def __init__(
        self,
        redis: str | Client,
        *,
        serde: SerializerProtocol | None = None,
        prefix: str | None = None,
        connect_timeout: float | None = None,
        timeout: float | None = None,
        max_retries: int | None = None,
        client_name: str | None = None,
    ) -> None:
        given = {"connect_timeout": connect_timeout, "timeout": timeout, "max_retries": max_retries}
        url, client = (redis, None) if isinstance(redis, str) or redis is None else (None, redis)
        url, options = read_client(
            type(self), Cache, url, client, {"key_prefix": prefix, "client_name": client_name, **given}
        )
        super().__init__(_native.redis_cache(url, {**options}), serde=serde)

    @classmethod
    def from_conn_string(cls: type[R], redis_url: str, **options: Any) -> R:
        """Creates a cache, which is a context manager for `with` and `async with`, and can be used without.

        Args:
            redis_url: The servers.
            **options: The class's options.
        """
        return cls(redis_url, **options)
