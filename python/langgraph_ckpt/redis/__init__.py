"""The Redis checkpointer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ckpt import _native
from langgraph_ckpt._saver import Saver
from langgraph_ckpt.redis._client import SCHEMES, Client, TTLConfig, read_client, read_ttl

R = TypeVar("R", bound="RedisSaver")

__all__ = ["RedisSaver", "TTLConfig"]


class RedisSaver(Saver):
    """Keeps checkpoints in Redis or Valkey, on one server or in a cluster, without modules.

    ```python
    with RedisSaver.from_conn_string("redis://localhost:6379", ttl={"default_ttl": 60 * 24 * 30}) as saver:
        saver.setup()  # once
        graph = builder.compile(checkpointer=saver)
        graph.invoke(state, {"configurable": {"thread_id": "1"}})
    ```

    It takes what the class of `langgraph-checkpoint-redis` takes, but stores in a format of its own, which needs neither
    RedisJSON nor RediSearch: the two do not read each other's threads. Unchanged values, and the unchanged parts of long
    ones, are not stored again. A write is atomic and one round trip. A call that fails because the server restarts, a
    replica takes over, or the connection was lost is retried.

    Args:
        redis_url: `redis://user:password@host:6379/0`, `redis+cluster://host,host2`,
            `redis+sentinel://host:26379,host2/service/0` or `redis+unix:///path`; with TLS `rediss://` and so on. `valkey` is
            the same as `redis`. Parameters: `protocol` (2 or 3), `db`, `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`,
            `sentinel_username`, `sentinel_password`, and `prefix`, for `checkpoint_prefix`.
        redis_client: Instead of the URL, a client of redis-py, also an asynchronous one, of a cluster, or of a sentinel's
            pool. Its parameters, including the password, are read once to open connections of this class's own.
        ttl: `default_ttl` is how many minutes after its last write a thread expires, as a whole; with `refresh_on_read`,
            after its last read. Threads do not expire unless it is set.
        checkpoint_prefix: What all keys begin with. Savers with different prefixes share nothing. Defaults to `prefix` in
            the URL, else `ckpt`.
        serde: The serializer of values. Defaults to LangGraph's `JsonPlusSerializer`.
        cipher: Encrypts the serialized values.
        compression: The level of zstd, from 1 to 22, with which values are compressed. They are not unless it is set.
        scripts: Whether Lua scripts may be used. Without them, reads take more round trips.
        max_inline_bytes: Up to how many bytes a checkpoint is read in one round trip instead of two. Defaults to 65,536.
        wait_replicas: How many replicas must have a write before the call returns. Defaults to 0.
        wait_aof: Whether the server and these replicas must have it on disk.
        wait_timeout: The timeout of these replicas, in seconds. Defaults to 1.
        connect_timeout: The timeout for opening a connection, in seconds. Defaults to 5.
        timeout: The timeout of a request, retries included, in seconds. Defaults to 30.
        max_retries: How often a request is retried. Defaults to 5.
        client_name: The name of the connections in `CLIENT LIST`.
        keep_last: How many checkpoints of each namespace a put keeps at least; see `retain`. All unless given.

    Raises:
        TypeError: If `redis_url` or `redis_client` is something else, or none of them is given.
        ValueError: If the URL or an option is invalid, or if the parameters of the client cannot be read.
    """

    _schemes = SCHEMES

    def __init__(
        self,
        redis_url: str | None = None,
        *,
        redis_client: Client | None = None,
        ttl: TTLConfig | None = None,
        checkpoint_prefix: str | None = None,
        serde: SerializerProtocol | None = None,
        cipher: _native.Cipher | None = None,
        compression: int | None = None,
        scripts: bool = True,
        max_inline_bytes: int | None = None,
        wait_replicas: int = 0,
        wait_aof: bool = False,
        wait_timeout: float | None = None,
        connect_timeout: float | None = None,
        timeout: float | None = None,
        max_retries: int | None = None,
        client_name: str | None = None,
        keep_last: int | None = None,
    ) -> None:
        options: Mapping[str, Any] = {
            "key_prefix": checkpoint_prefix,
            "compression": compression,
            "scripts": scripts,
            "max_inline_bytes": max_inline_bytes,
            "wait_replicas": wait_replicas,
            "wait_aof": wait_aof,
            "wait_timeout": wait_timeout,
            "connect_timeout": connect_timeout,
            "timeout": timeout,
            "max_retries": max_retries,
            "client_name": client_name,
            "keep_last": keep_last,
        }
        url, options = read_client(type(self), Saver, redis_url, redis_client, options)
        default_ttl, refresh_on_read = read_ttl(ttl)
        native = _native.redis_saver(
            url, cipher=cipher, default_ttl=default_ttl, refresh_on_read=refresh_on_read, options={**options}
        )
        super().__init__(native, serde=serde, cipher=cipher)

    @classmethod
    def from_conn_string(
        cls: type[R], redis_url: str | None = None, *, redis_client: Client | None = None, **options: Any
    ) -> R:
        """Creates a saver, which is a context manager for `with` and `async with`, and can be used without.

        Args:
            redis_url: The servers.
            redis_client: Instead of the URL, a client of redis-py.
            **options: The class's options.

        Raises:
            TypeError: If an option is unknown, or the URL is none.
            ValueError: If the URL or an option is invalid.
        """
        return cls(redis_url, redis_client=redis_client, **options)
