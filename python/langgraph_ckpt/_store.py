"""The base class of the stores."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Literal, TypedDict, cast

from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore, IndexConfig, Op, Result, TTLConfig, ensure_embeddings

from langgraph_ckpt._closing import Closing
from langgraph_ckpt._native import Store as NativeStore
from langgraph_ckpt._native import StoreIndex
from langgraph_ckpt._setup import SettingUp
from langgraph_ckpt._sweeper import Sweeper

logger = logging.getLogger(__name__)

#: How many queries of one batch are embedded concurrently.
_CONCURRENT_QUERIES = 8


class ANNIndexConfig(TypedDict, total=False):
    """How PostgreSQL finds the nearest vectors. The keys are LangGraph's."""

    kind: Literal["hnsw", "ivfflat", "flat"]
    """A graph of neighbours (the default), lists of vectors, or an exact scan."""
    vector_type: Literal["vector", "halfvec"]
    """4 or 2 bytes per dimension. Defaults to `vector`."""
    m: int
    """hnsw: how many neighbours a vector has in each layer. Defaults to 16."""
    ef_construction: int
    """hnsw: how many candidates an insertion considers. Defaults to 64."""
    nlist: int
    """ivfflat: the number of lists. Defaults to 100."""


class StoreIndexConfig(IndexConfig, total=False):
    """The configuration of semantic search: LangGraph's `IndexConfig`, with the options of its Postgres stores."""

    distance_type: Literal["cosine", "l2", "inner_product"]
    """How the distance of two vectors is measured. Defaults to `cosine`."""
    ann_index_config: ANNIndexConfig
    """How PostgreSQL finds the nearest vectors. The in-memory store is always exact."""


class Store(Closing, SettingUp, BaseStore):
    """A LangGraph store implemented in Rust, with synchronous and asynchronous methods on one class.

    The methods of LangGraph's `BaseStore` (`get`, `put`, `search`, `delete`, `list_namespaces`, and their variants with the
    prefix `a`) are inherited from it and call `batch` or `abatch`. A store is a context manager for `with` and
    `async with`.

    Embeddings are LangChain's, or functions. `batch` calls `embed_documents` and `embed_query` in the caller's thread;
    `abatch` awaits `aembed_documents` and `aembed_query` on the caller's event loop. Their exceptions are raised unchanged,
    and nothing was stored then.
    """

    supports_ttl = True

    _native: NativeStore

    def __init__(
        self, native: NativeStore, index: StoreIndexConfig | None, embeddings: Embeddings | None, ttl: TTLConfig | None
    ) -> None:
        super().__init__()
        self._native = native
        self._sweeper: Sweeper | None = None
        self.index_config = index
        self.embeddings = embeddings
        self.ttl_config = ttl

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Runs operations, and returns one result for each, in their order.

        The reads see the store as it was before the batch. Then the puts are applied atomically; of several puts to one
        key the last one counts.

        Without an index, the query of a search is ignored, with one warning per store.

        Raises:
            InvalidNamespaceError: If a namespace is invalid, or is reserved in a put.
            TypeError: If a value is no dict, or has a value that JSON lacks.
            ValueError: If another part of an operation is invalid.
        """
        batch = self._native.prepare(ops)
        documents, queries = batch.texts
        if not documents and not queries:
            return self._native.run(batch, [], []).wait()
        return self._native.run(batch, *self._embed(documents, queries)).wait()

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Runs operations as `batch` does."""
        batch = self._native.prepare(ops)
        documents, queries = batch.texts
        if not documents and not queries:
            return await self._native.run(batch, [], [])
        return await self._native.run(batch, *await self._aembed(documents, queries))

    def sweep_ttl(self) -> int:
        """Removes expired items, and returns their number."""
        return self._native.sweep_ttl().wait()

    async def asweep_ttl(self) -> int:
        """Removes expired items, as `sweep_ttl` does."""
        return await self._native.sweep_ttl()

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Starts a background thread that removes expired items, until `stop_ttl_sweeper` or `close`.

        Args:
            sweep_interval_minutes: The interval between two sweeps. Defaults to that of `ttl`, else 5 minutes.

        Returns:
            A future that is done when the sweeper has stopped; cancelling it stops the sweeper. In a store without `ttl`
            there is nothing to sweep, and it is done immediately.
        """
        if not self.ttl_config:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        if self._sweeper is None or not self._sweeper.is_alive() or self._sweeper.future.done():
            minutes = sweep_interval_minutes or self.ttl_config.get("sweep_interval_minutes") or 5
            interval = float(minutes) * 60
            self._sweeper = Sweeper(self, "ttl-sweeper", interval, _sweep_ttl, _sweep_failed)
            self._sweeper.start()
        return self._sweeper.future

    async def astart_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> asyncio.Future[None]:
        """Starts the sweeper, as `start_ttl_sweeper` does."""
        return asyncio.wrap_future(Store.start_ttl_sweeper(self, sweep_interval_minutes))

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stops the sweeper and waits for it.

        Args:
            timeout: The timeout in seconds. `None` waits without a limit.

        Returns:
            Whether it has stopped, or was not running.
        """
        if self._sweeper is not None:
            if not self._sweeper.stop(timeout):
                return False
            self._sweeper = None
        return True

    async def astop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stops the sweeper, as `stop_ttl_sweeper` does."""
        if self._sweeper is None:
            return True
        return await asyncio.get_running_loop().run_in_executor(None, Store.stop_ttl_sweeper, self, timeout)

    def close(self) -> None:
        """Stops the sweeper, waits for running calls, and closes the connections. Later calls fail. Idempotent."""
        Store.stop_ttl_sweeper(self)
        super().close()

    async def aclose(self) -> None:
        """Closes the store, as `close` does."""
        await self.astop_ttl_sweeper()
        await super().aclose()

    def _embed(self, documents: list[str], queries: list[str]) -> tuple[Any, Any]:
        embeddings = self.embeddings
        assert embeddings is not None, "only an index asks for vectors"
        vectors = embeddings.embed_documents(documents) if documents else []
        if len(queries) < 2:
            return vectors, [embeddings.embed_query(query) for query in queries]
        # A context can be entered by only one thread at a time.
        contexts = [copy_context() for _ in queries]
        with ThreadPoolExecutor(min(len(queries), _CONCURRENT_QUERIES)) as threads:
            found = threads.map(lambda context, query: context.run(embeddings.embed_query, query), contexts, queries)
            return vectors, list(found)

    async def _aembed(self, documents: list[str], queries: list[str]) -> tuple[Any, Any]:
        embeddings = self.embeddings
        assert embeddings is not None, "only an index asks for vectors"
        vectors = await embeddings.aembed_documents(documents) if documents else []
        slots = asyncio.Semaphore(_CONCURRENT_QUERIES)

        async def embed_query(query: str) -> Any:
            async with slots:
                return await embeddings.aembed_query(query)

        return vectors, await asyncio.gather(*map(embed_query, queries))


def _sweep_ttl(store: Store) -> None:
    logger.debug("removed %d expired items", store._native.sweep_ttl().wait())


def _sweep_failed() -> None:
    logger.exception("expired items were not removed; the next sweep tries again")


def read_index(
    index: Mapping[str, Any] | None,
) -> tuple[StoreIndexConfig | None, Embeddings | None, StoreIndex | None]:
    """Checks a user's index. Returns it as the store's `index_config`, with the embeddings and the native index."""
    if not index:
        return None, None, None
    known = StoreIndexConfig.__annotations__.keys() | IndexConfig.__annotations__.keys()
    _reject_unknown_keys("index", index, known)
    if index.get("dims") is None:
        raise ValueError("index needs 'dims': the length of the embeddings' vectors")
    embeddings = ensure_embeddings(index.get("embed"))
    fields = index.get("fields") or ["$"]
    if isinstance(fields, str):
        fields = [fields]
    ann = index.get("ann_index_config") or {}
    _reject_unknown_keys("ann_index_config", ann, ANNIndexConfig.__annotations__.keys() | {"lists"})
    native = StoreIndex(
        dims=index["dims"],
        fields=list(fields),
        embeddings=type(embeddings).__name__,
        distance=index.get("distance_type") or "cosine",
        kind=ann.get("kind") or "hnsw",
        vector_type=ann.get("vector_type") or "vector",
        m=ann.get("m"),
        ef_construction=ann.get("ef_construction"),
        lists=ann.get("lists", ann.get("nlist")),
    )
    return cast(StoreIndexConfig, dict(index)), embeddings, native


def read_ttl(ttl: Mapping[str, Any] | None) -> tuple[TTLConfig | None, float | None, bool]:
    """Checks a user's TTL config. Returns it, with the default TTL in minutes and whether reads refresh it."""
    if ttl is None:
        return None, None, True
    _reject_unknown_keys("ttl", ttl, TTLConfig.__annotations__.keys())
    return cast(TTLConfig, dict(ttl)), ttl.get("default_ttl"), ttl.get("refresh_on_read", True)


def _reject_unknown_keys(what: str, given: object, known: Iterable[str]) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} must be a dict, not {type(given).__name__}")
    unknown = sorted(given.keys() - set(known))
    if unknown:
        raise ValueError(f"{what} has unknown keys: {', '.join(unknown)}; it takes {', '.join(sorted(known))}")
