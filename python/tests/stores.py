"""Fixtures of the tests of stores: the stores, and embeddings without a model."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import langgraph_ckpt
import psycopg
import pytest
from conftest import make_url
from langchain_core.embeddings import Embeddings

DIMS = 64
NS = ("memories", "ann")

STORES = ["memory", "postgres"]


class Letters(Embeddings):
    """Counts the letter pairs of a text, so that similar spellings are near. It records its calls."""

    def __init__(self, dims: int = DIMS) -> None:
        self.dims = dims
        self.calls: list[tuple[str, list[str], int, Any]] = []

    def vector(self, text: str) -> list[float]:
        counts = [0.0] * self.dims
        text = text.lower()
        for a, b in zip(text, text[1:], strict=False):
            counts[(ord(a) * 31 + ord(b)) % self.dims] += 1.0
        return counts

    def note(self, method: str, texts: Sequence[str]) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        self.calls.append((method, list(texts), threading.get_ident(), loop))

    def methods(self) -> list[str]:
        return [method for method, *_ in self.calls]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.note("embed_documents", texts)
        return [self.vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        self.note("embed_query", [text])
        return self.vector(text)

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        self.note("aembed_documents", texts)
        await asyncio.sleep(0)
        return [self.vector(text) for text in texts]

    async def aembed_query(self, text: str) -> list[float]:
        self.note("aembed_query", [text])
        await asyncio.sleep(0)
        return self.vector(text)


def index(embed: Any = None, **more: Any) -> dict[str, Any]:
    return {"dims": DIMS, "embed": embed or Letters(), "fields": ["text"], **more}


@pytest.fixture(params=STORES)
def store_kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def store_place(store_kind: str, request: pytest.FixtureRequest) -> str | None:
    """The URL of this test's data; `None` in memory."""
    return None if store_kind == "memory" else request.getfixturevalue("postgres_url")


@pytest.fixture
def open_store(store_place: str | None) -> Iterator[Callable[..., Any]]:
    """Opens stores of a kind, set up; they are closed at the test's end."""
    with contextlib.ExitStack() as stack:

        def open_ready(**options: Any) -> Any:
            if store_place is None:
                store = langgraph_ckpt.InMemoryStore(**options)
            else:
                store = langgraph_ckpt.PostgresStore(store_place, **options)
            stack.enter_context(store)
            store.setup()
            return store

        yield open_ready


@pytest.fixture(scope="session")
def plain_url(postgres_database: str) -> str:
    """The URL of a schema with the tables of a store without an index, which tests share."""
    url = make_url(postgres_database, schema="plain_store")
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA plain_store")
    with langgraph_ckpt.PostgresStore(url) as store:
        store.setup()
    return url


@pytest.fixture
def store(store_kind: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """An empty store without an index."""
    if store_kind == "memory":
        with langgraph_ckpt.InMemoryStore() as store:
            yield store
        return
    url = request.getfixturevalue("plain_url")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("TRUNCATE store")
    with langgraph_ckpt.PostgresStore(url) as store:
        yield store
