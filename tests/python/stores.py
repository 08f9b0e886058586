"""The Python side of the cross-language tests of stores.

`worker.py` runs it in a process of its own. Reads commands from standard input, one JSON array in a line: the name of a
command and its arguments. Writes the result of each as one JSON object in a line: {"result": …}, or {"error": the
exception's class}.

A store is opened by ["open", url, {"index": …, "ttl": …}], and all others work on the one that was opened last. With
CHECKPOINT_TEST_ASYNC=1 it is the asynchronous one.
"""

import asyncio
import inspect
import json
import os
import sys
import traceback
from datetime import datetime, timedelta, timezone

from langgraph.store.base import GetOp, Item, ListNamespacesOp, MatchCondition, PutOp, SearchItem, SearchOp
from langgraph.store.postgres import AsyncPostgresStore, PostgresStore
from psycopg import AsyncConnection, Connection
from psycopg.rows import dict_row

def asynchronous():
    return os.environ.get("CHECKPOINT_TEST_ASYNC") == "1"


def embed(texts):
    """Counts bytes by their value modulo eight, in thirds, so that not every number is exact in few bits. Rust does the
    same."""
    vectors = []
    for text in texts:
        counts = [1] + [0] * 7
        for byte in text.encode():
            counts[byte % 8] += 1
        vectors.append([count / 3 for count in counts])
    return vectors


async def aembed(texts):
    return embed(texts)


def microseconds(time):
    return (time - datetime.fromtimestamp(0, timezone.utc)) // timedelta(microseconds=1)


def plain(result):
    """A result as JSON."""
    if isinstance(result, Item):
        item = {
            "namespace": list(result.namespace),
            "key": result.key,
            "value": result.value,
            "created_at": microseconds(result.created_at),
            "updated_at": microseconds(result.updated_at),
        }
        return {**item, "score": result.score} if isinstance(result, SearchItem) else item
    if isinstance(result, (list, tuple)):
        return [plain(one) for one in result]
    return result


def operation(kind, arguments):
    if kind == "get":
        return GetOp(tuple(arguments.pop("namespace")), **arguments)
    if kind == "put":
        return PutOp(tuple(arguments.pop("namespace")), **{"value": None, **arguments})
    if kind == "search":
        return SearchOp(tuple(arguments.pop("prefix")), **arguments)
    conditions = tuple(MatchCondition(kind, tuple(path)) for kind, path in arguments.pop("match", []))
    return ListNamespacesOp(conditions, **arguments)


class Calls:
    def __init__(self):
        self.store = None

    async def call(self, method, *arguments, **options):
        called = getattr(self.store, "a" + method if asynchronous() and hasattr(self.store, "a" + method) else method)
        result = called(*arguments, **options)
        return await result if inspect.isawaitable(result) else result

    async def open(self, url, options):
        if self.store is not None:
            await self.close()
        index = options.get("index")
        if index is not None:
            index = {"dims": 8, "embed": aembed if asynchronous() else embed, **index}
            # Python writes the options of an index in the order in which it was given them: here m comes first.
            index["ann_index_config"] = dict(sorted(index["ann_index_config"].items(), reverse=True))
        kind = AsyncConnection if asynchronous() else Connection
        connection = kind.connect(url, autocommit=True, prepare_threshold=0, row_factory=dict_row)
        connection = await connection if asynchronous() else connection
        self.store = (AsyncPostgresStore if asynchronous() else PostgresStore)(connection, index=index, ttl=options.get("ttl"))

    async def close(self):
        result = self.store.conn.close()
        if inspect.isawaitable(result):
            await result
        self.store = None

    async def setup(self):
        return await self.call("setup")

    async def get(self, namespace, key, options={}):
        return await self.call("get", tuple(namespace), key, **options)

    async def put(self, namespace, key, value, options={}):
        return await self.call("put", tuple(namespace), key, value, **options)

    async def delete(self, namespace, key):
        return await self.call("delete", tuple(namespace), key)

    async def search(self, prefix, options={}):
        return await self.call("search", tuple(prefix), **options)

    async def namespaces(self, options={}):
        paths = {name: tuple(options.pop(name)) for name in ("prefix", "suffix") if name in options}
        return await self.call("list_namespaces", **paths, **options)

    async def sweep(self):
        return await self.call("sweep_ttl")

    async def batch(self, operations):
        return await self.call("batch", [operation(*one) for one in operations])


async def serve():
    calls = Calls()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        name, *arguments = json.loads(line)
        try:
            answer = {"result": plain(await getattr(calls, name)(*arguments))}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), flush=True)


def main():
    asyncio.run(serve())
