"""The Rust module behind the Python files beside it. Only `Cipher` is public."""

import os
from datetime import timedelta
from collections.abc import Awaitable, Generator, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store.base import Op, Result

T = TypeVar("T")

__version__: str

def shut_down() -> None:
    """Closes open savers and stores and ends the runtime, at the exit of the interpreter."""

class Call(Awaitable[T], Generic[T]):
    """A call that has not started: `wait()` runs it and blocks, `await` runs it without blocking."""

    def wait(self) -> T: ...
    def __await__(self) -> Generator[Any, None, T]: ...

class Cipher:
    """Encrypts stored values, and decrypts them when they are read: with one key it encrypts, with all it decrypts."""

    @staticmethod
    def aes_gcm(key_id: str, key: bytes) -> Cipher:
        """Encrypts with AES-256-GCM: a key of 32 bytes, and a key id of 1 to 255 bytes that is stored with each value.

        A value is bound to its row, so that moved values are rejected. LangGraph's own savers cannot read it.
        """

    @staticmethod
    def aes(key: bytes | None = None) -> Cipher:
        """Encrypts as LangGraph's `EncryptedSerializer.from_pycryptodome_aes` does: AES-EAX with 16, 24 or 32 bytes.

        Without a key, it is the text of the environment variable `LANGGRAPH_AES_KEY`, which must be set then.
        """

    @staticmethod
    def from_env() -> Cipher | None:
        """Encrypts as `aes` does, with the key in the variable `LANGGRAPH_AES_KEY`; `None` if that is not set."""

    def with_aes_gcm_decryption_key(self, key_id: str, key: bytes) -> Cipher:
        """Returns a copy with another key, for values that `aes_gcm` encrypted with this key id."""

    def with_aes_decryption_key(self, key: bytes) -> Cipher:
        """Returns a copy with another key, for values that `aes` or LangGraph encrypted."""

class Listing:
    """A running list of checkpoints."""

    def next(self) -> Call[CheckpointTuple | None]: ...

class Saver:
    """The native part of a checkpointer, over any backend."""

    def setup(self) -> Call[None]: ...
    @property
    def is_large(self) -> bool: ...
    @property
    def closed(self) -> bool:
        """Whether there is nothing to close: it is closed already, or this is a child of the process that created it."""
    def close(self) -> Call[None]: ...
    def get_tuple(self, serde: SerializerProtocol, config: RunnableConfig) -> Call[CheckpointTuple | None]: ...
    def list(
        self,
        serde: SerializerProtocol,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Listing: ...
    def put(
        self,
        serde: SerializerProtocol,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        with_all: bool,
    ) -> Call[RunnableConfig]: ...
    def put_writes(
        self,
        serde: SerializerProtocol,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> Call[None]: ...
    def delete_thread(self, thread_id: str) -> Call[None]: ...
    def delete_for_runs(self, run_ids: Sequence[str]) -> Call[None]: ...
    def copy_thread(self, source: str, target: str) -> Call[None]: ...
    def prune(self, thread_ids: Sequence[str], strategy: str) -> Call[None]: ...
    def retain(
        self,
        keep_last: int | None,
        max_age: timedelta | None,
        idle_for: timedelta | None,
        namespaces: Mapping[str, Any] | None,
        pin: Mapping[str, Any] | None,
        keep_branch_points: bool,
        include_waiting: bool,
        thread_ids: Sequence[str] | None,
        dry_run: bool,
    ) -> Call[dict[str, Any]]: ...
    def get_delta_channel_history(
        self, serde: SerializerProtocol, config: RunnableConfig, channels: Sequence[str]
    ) -> Call[dict[str, DeltaChannelHistory]]: ...
    def get_next_version(self, current: str | int | float | None) -> str: ...

def memory_saver(*, options: dict[str, Any]) -> Saver: ...
def sqlite_saver(
    path: str | os.PathLike[str],
    *,
    reader: SerializerProtocol | None,
    cipher: Cipher | None,
    options: dict[str, Any],
) -> Saver: ...
def postgres_saver(
    conn_string: str,
    *,
    cipher: Cipher | None,
    read_replica: str | None,
    compression: str,
    options: dict[str, Any],
) -> Saver: ...

def mongo_saver(
    url: str,
    *,
    cipher: Cipher | None,
    refresh_on_read: bool,
    options: dict[str, Any],
) -> Saver: ...
def redis_saver(
    url: str,
    *,
    cipher: Cipher | None,
    default_ttl: float | None,
    refresh_on_read: bool,
    options: dict[str, Any],
) -> Saver: ...

class StoreIndex:
    """The configuration of semantic search, which `langgraph_ckpt._store` creates from the users' dict."""

    def __init__(
        self,
        *,
        dims: int,
        fields: list[str],
        embeddings: str,
        distance: str,
        kind: str,
        vector_type: str,
        m: int | None,
        ef_construction: int | None,
        lists: int | None,
    ) -> None: ...

class Batch:
    """Checked operations, to be run once."""

    @property
    def texts(self) -> tuple[list[str], list[str]]:
        """The texts to embed as documents, and those to embed as queries."""

class Store:
    """The native part of a store, over any backend."""

    def prepare(self, ops: Iterable[Op]) -> Batch: ...
    def run(self, batch: Batch, documents: Iterable[Iterable[float]], queries: Iterable[Iterable[float]]) -> Call[list[Result]]: ...
    def setup(self) -> Call[None]: ...
    def sweep_ttl(self) -> Call[int]: ...
    @property
    def closed(self) -> bool:
        """Whether there is nothing to close: it is closed already, or this is a child of the process that created it."""
    def close(self) -> Call[None]: ...

def memory_store(index: StoreIndex | None, default_ttl: float | None, refresh_on_read: bool) -> Store: ...
def postgres_store(
    conn_string: str,
    index: StoreIndex | None,
    default_ttl: float | None,
    refresh_on_read: bool,
    options: dict[str, Any],
) -> Store: ...

#: Namespace, key, TTL in seconds, and the serializer's tag and bytes.
CacheEntry: TypeAlias = tuple[tuple[str, ...], str, float | None, str, bytes]

class Cache:
    """The native part of a cache, over any backend."""

    def get(self, keys: list[tuple[tuple[str, ...], str]]) -> Call[list[tuple[str, bytes] | None]]: ...
    def set(self, entries: list[CacheEntry]) -> Call[None]: ...
    def clear(self, namespaces: list[tuple[str, ...]] | None) -> Call[None]: ...
    def setup(self) -> Call[None]: ...
    @property
    def closed(self) -> bool:
        """Whether there is nothing to close: it is closed already, or this is a child of the process that created it."""
    def close(self) -> Call[None]: ...

def sqlite_cache(path: str, options: dict[str, Any]) -> Cache: ...
def postgres_cache(conn_string: str, options: dict[str, Any]) -> Cache: ...
def redis_cache(url: str, options: dict[str, Any]) -> Cache: ...
