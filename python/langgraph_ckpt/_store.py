"""What the stores have in common."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Literal, TypedDict

from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore, IndexConfig, Op, Result, TTLConfig, ensure_embeddings

from langgraph_ckpt import _native
from langgraph_ckpt._closing import Closing

logger = logging.getLogger(__name__)

#: How many queries of one batch are embedded at the same time.
_QUERIES_AT_ONCE = 8


class ANNIndexConfig(TypedDict, total=False):
    """How PostgreSQL finds the nearest vectors. The keys are LangGraph's."""

    kind: Literal["hnsw", "ivfflat", "flat"]
    """A graph of neighbours, which is the default; lists of vectors; or an exact search of all of them."""
    vector_type: Literal["vector", "halfvec"]
    """4 or 2 bytes for each dimension: `vector` unless set."""
    m: int
    """hnsw: how many neighbours a vector has in each layer, 16 unless set."""
    ef_construction: int
    """hnsw: how many candidates are looked at when a vector is added, 64 unless set."""
    nlist: int
    """ivfflat: how many lists there are, 100 unless set."""


class StoreIndexConfig(IndexConfig, total=False):
    """What makes a store search by meaning: LangGraph's `IndexConfig`, and what its Postgres stores take besides."""

    distance_type: Literal["cosine", "l2", "inner_product"]
    """How the nearness of two vectors is measured: `cosine` unless set."""
    ann_index_config: ANNIndexConfig
    """How PostgreSQL finds the nearest ones. The store in memory is always exact."""


class Store(Closing, BaseStore):
    """A LangGraph store whose work is done in Rust, with synchronous and asynchronous methods on one class.

    Everything that LangGraph's `BaseStore` offers (`get`, `put`, `search`, `delete`, `list_namespaces`, and the same with
    an `a` in front) comes from there and ends in `batch` or `abatch`. A store is a context manager, with `with` and with
    `async with`, that closes itself.

    Embeddings are LangChain's, or functions. `batch` calls `embed_documents` and `embed_query` in the caller's thread;
    `abatch` awaits `aembed_documents` and `aembed_query` on the caller's event loop. When they fail, their exception comes
    as it is, and nothing was stored.
    """

    supports_ttl = True

    def __init__(
        self, native: _native.Store, index: StoreIndexConfig | None, embeddings: Embeddings | None, ttl: TTLConfig | None
    ) -> None:
        super().__init__()
        self._native = native
        self._sweeper: _Sweeper | None = None
        self.index_config = index
        self.embeddings = embeddings
        self.ttl_config = ttl

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Runs operations, and returns one result for each, in their order.

        The reads see the store as it was before the batch. Then all puts take effect at once, or none; of several puts
        to one key the last one counts.

        Raises:
            InvalidNamespaceError: If a namespace cannot be, or nothing can be put under it.
            TypeError: If a value is no dict, or holds what JSON cannot.
            ValueError: If another part of an operation cannot be.
            NotImplementedError: If a search has a query and the store has no index.
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

    def setup(self) -> None:
        """Creates or upgrades the tables. Safe to repeat, and to run from many processes at once."""
        self._native.setup().wait()

    async def asetup(self) -> None:
        """Creates or upgrades the tables, as `setup` does."""
        await self._native.setup()

    def sweep_ttl(self) -> int:
        """Removes the items that have expired, and returns how many they were."""
        return self._native.sweep_ttl().wait()

    async def asweep_ttl(self) -> int:
        """Removes the items that have expired, as `sweep_ttl` does."""
        return await self._native.sweep_ttl()

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Removes expired items again and again, until `stop_ttl_sweeper` or `close`.

        Args:
            sweep_interval_minutes: The pause between two sweeps. Unless given, it is what `ttl` says, or 5 minutes.

        Returns:
            A future that is done when the sweeper has stopped; cancelling it stops the sweeper. Without `ttl` in the
            store there is nothing to sweep, and it is done at once.
        """
        if not self.ttl_config:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        if self._sweeper is None or not self._sweeper.is_alive() or self._sweeper.future.done():
            minutes = sweep_interval_minutes or self.ttl_config.get("sweep_interval_minutes") or 5
            self._sweeper = _Sweeper(self, float(minutes) * 60)
            self._sweeper.start()
        return self._sweeper.future

    async def astart_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> asyncio.Future[None]:
        """Removes expired items again and again, as `start_ttl_sweeper` does."""
        return asyncio.wrap_future(self.start_ttl_sweeper(sweep_interval_minutes))

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stops the sweeper, and waits for it so many seconds, or as long as it takes.

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
        return await asyncio.get_running_loop().run_in_executor(None, self.stop_ttl_sweeper, timeout)

    def close(self) -> None:
        """Stops the sweeper, waits for calls that are under way, and closes the connections. May be repeated."""
        self.stop_ttl_sweeper()
        if not self._native.closed:
            self._native.close().wait()

    async def aclose(self) -> None:
        """Closes the store, as `close` does."""
        await self.astop_ttl_sweeper()
        if not self._native.closed:
            await self._native.close()

    def _embed(self, documents: list[str], queries: list[str]) -> tuple[Any, Any]:
        embeddings = self.embeddings
        assert embeddings is not None, "only an index asks for vectors"
        vectors = embeddings.embed_documents(documents) if documents else []
        if len(queries) < 2:
            return vectors, [embeddings.embed_query(query) for query in queries]
        # A context can be run by one thread at a time.
        contexts = [copy_context() for _ in queries]
        with ThreadPoolExecutor(min(len(queries), _QUERIES_AT_ONCE)) as threads:
            found = threads.map(lambda context, query: context.run(embeddings.embed_query, query), contexts, queries)
            return vectors, list(found)

    async def _aembed(self, documents: list[str], queries: list[str]) -> tuple[Any, Any]:
        embeddings = self.embeddings
        assert embeddings is not None, "only an index asks for vectors"
        vectors = await embeddings.aembed_documents(documents) if documents else []
        slots = asyncio.Semaphore(_QUERIES_AT_ONCE)

        async def embed_query(query: str) -> Any:
            async with slots:
                return await embeddings.aembed_query(query)

        return vectors, await asyncio.gather(*map(embed_query, queries))


class _Sweeper(threading.Thread):
    """Sweeps a store until it is stopped, or until nobody has the store any more."""

    def __init__(self, store: Store, interval: float) -> None:
        super().__init__(name="ttl-sweeper", daemon=True)
        self.future: Future[None] = Future()
        self.future.add_done_callback(lambda _: self._stopped.set())
        self._store = weakref.ref(store)
        self._interval = interval
        self._stopped = threading.Event()
        weakref.finalize(store, self._stopped.set)

    def run(self) -> None:
        while not self._stopped.wait(self._interval):
            self._sweep()
        try:
            self.future.set_result(None)
        except InvalidStateError:
            pass  # It was cancelled.

    def _sweep(self) -> None:
        store = self._store()
        if store is None:
            return
        try:
            swept = store.sweep_ttl()
        except Exception:
            if not self._stopped.is_set():
                logger.exception("expired items are not removed; the next sweep tries again")
        else:
            logger.debug("removed %d expired items", swept)

    def stop(self, timeout: float | None) -> bool:
        self._stopped.set()
        if self is not threading.current_thread():
            self.join(timeout)
        return not self.is_alive()


def read_index(
    index: Mapping[str, Any] | None,
) -> tuple[StoreIndexConfig | None, Embeddings | None, _native.StoreIndex | None]:
    """Checks an index as users write it: what the store shows of it, the embeddings, and what Rust takes."""
    if not index:
        return None, None, None
    known = StoreIndexConfig.__annotations__.keys() | IndexConfig.__annotations__.keys()
    _refuse_others("index", index, known)
    if index.get("dims") is None:
        raise ValueError("index needs 'dims': how many numbers the embeddings' vectors have")
    embeddings = ensure_embeddings(index.get("embed"))
    fields = index.get("fields") or ["$"]
    if isinstance(fields, str):
        fields = [fields]
    ann = index.get("ann_index_config") or {}
    _refuse_others("ann_index_config", ann, ANNIndexConfig.__annotations__.keys() | {"lists"})
    native = _native.StoreIndex(
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
    return StoreIndexConfig(**index), embeddings, native


def read_ttl(ttl: Mapping[str, Any] | None) -> tuple[TTLConfig | None, float | None, bool]:
    """Checks lives as users write them: what the store shows of it, the default in minutes, and whether reads refresh."""
    if ttl is None:
        return None, None, True
    _refuse_others("ttl", ttl, TTLConfig.__annotations__.keys())
    return TTLConfig(**ttl), ttl.get("default_ttl"), ttl.get("refresh_on_read", True)


def _refuse_others(what: str, given: object, known: Iterable[str]) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} is a dict, not {type(given).__name__}")
    others = sorted(given.keys() - set(known))
    if others:
        raise ValueError(f"{what} has unknown keys: {', '.join(others)}; it takes {', '.join(sorted(known))}")
