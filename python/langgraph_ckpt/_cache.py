"""The base class of the caches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from langgraph.cache.base import BaseCache, FullKey, Namespace
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ckpt._closing import Closing
from langgraph_ckpt._native import Cache as NativeCache
from langgraph_ckpt._setup import SettingUp

if TYPE_CHECKING:
    from langgraph_ckpt._native import CacheEntry

ValueT = TypeVar("ValueT")


class Cache(Closing, SettingUp, BaseCache[ValueT]):
    """A LangGraph cache of the results of nodes and tasks, implemented in Rust, for `compile(cache=...)`.

    It is safe to share between threads and event loops, and between processes. It must not be used after `fork`: create a
    new one in the child. Values are stored as the bytes of `serde`. Expired values are invisible; every `set` removes up
    to 100 of them.
    """

    _native: NativeCache

    def __init__(self, native: NativeCache, *, serde: SerializerProtocol | None) -> None:
        super().__init__(serde=serde)
        self._native = native

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, ValueT]:
        """Reads the values of keys: those that are there and have not expired.

        Args:
            keys: Pairs of a namespace and a key.
        """
        wanted = _full(keys)
        return self._loaded(wanted, self._native.get(wanted).wait()) if wanted else {}

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, ValueT]:
        """Reads values as `get` does."""
        wanted = _full(keys)
        return self._loaded(wanted, await self._native.get(wanted)) if wanted else {}

    def set(self, pairs: Mapping[FullKey, tuple[ValueT, int | None]]) -> None:
        """Stores values atomically, and replaces those of the same keys.

        Args:
            pairs: For each namespace and key the value, and its TTL in seconds, or `None` if it does not expire.

        Raises:
            TypeError: If the serializer does not support a value. Nothing was stored then.
        """
        if pairs:
            self._native.set(self._dumped(pairs)).wait()

    async def aset(self, pairs: Mapping[FullKey, tuple[ValueT, int | None]]) -> None:
        """Stores values as `set` does."""
        if pairs:
            await self._native.set(self._dumped(pairs))

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Deletes the values of namespaces.

        Args:
            namespaces: The namespaces; values of longer ones stay. `None` deletes everything.
        """
        self._native.clear(None if namespaces is None else [_namespace(one) for one in namespaces]).wait()

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Deletes values as `clear` does."""
        await self._native.clear(None if namespaces is None else [_namespace(one) for one in namespaces])

    def _dumped(self, pairs: Mapping[FullKey, tuple[ValueT, int | None]]) -> list[CacheEntry]:
        return [
            (_namespace(namespace), key, ttl, *self.serde.dumps_typed(value))
            for (namespace, key), (value, ttl) in pairs.items()
        ]

    def _loaded(self, keys: list[FullKey], found: Iterable[tuple[str, bytes] | None]) -> dict[FullKey, ValueT]:
        typed = zip(keys, found, strict=True)
        return {key: self.serde.loads_typed(one) for key, one in typed if one is not None}


def _full(keys: Iterable[FullKey]) -> list[FullKey]:
    return [(_namespace(namespace), key) for namespace, key in keys]


def _namespace(namespace: Namespace) -> Namespace:
    # A text would become its letters; it is rejected later.
    return namespace if isinstance(namespace, str) else tuple(namespace)
