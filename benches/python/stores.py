"""Group store: the calls that the Rust driver makes, on Python's stores, and their floor by libpq.

The Rust driver prints the items, so all store the same.
"""

import contextlib
import json

from workload import Clock, expect

SEARCHES, LISTS = 100, 50
PREFIX = "bench"


class Item:
    """An item that the Rust driver printed."""

    def __init__(self, printed):
        self.prefix, self.key, self.value = printed["namespace"], printed["key"], printed["value"]
        self.namespace = tuple(self.prefix.split("."))


class Items:
    """The items that are put one by one, those that are read of them, and batches of others."""

    def __init__(self, printed):
        self.puts = [Item(item) for item in printed["puts"]]
        self.gets = [self.puts[number] for number in printed["gets"]]
        self.batches = [[Item(item) for item in batch] for batch in printed["batches"]]

    def searches(self):
        """By operation, for each call the namespace, the kind that the items have to have, and the keys to be found."""
        for operation, of_user in (("search_all", False), ("search_user", True)):
            calls = []
            for turn in range(SEARCHES):
                prefix, kind = self.puts[turn].prefix if of_user else PREFIX, f"k{turn % 10}"
                found = [
                    item.key for item in self.puts if item.prefix.startswith(prefix) and item.value["kind"] == kind
                ]
                calls.append((prefix, kind, found[:-11:-1]))
            yield operation, calls


class BlockingStore:
    """A synchronous store. Its coroutines never yield."""

    def __init__(self, store):
        self.store = store

    async def put(self, *arguments):
        self.store.put(*arguments)

    async def get(self, *arguments):
        return self.store.get(*arguments)

    async def search(self, prefix, where):
        return self.store.search(prefix, filter=where, limit=10)

    async def batch(self, operations):
        return self.store.batch(operations)

    async def list_namespaces(self, prefix):
        return self.store.list_namespaces(prefix=prefix, limit=100)


class WaitingStore:
    """An asynchronous store."""

    def __init__(self, store):
        self.store = store
        self.put, self.get, self.batch = store.aput, store.aget, store.abatch

    async def search(self, prefix, where):
        return await self.store.asearch(prefix, filter=where, limit=10)

    async def list_namespaces(self, prefix):
        return await self.store.alist_namespaces(prefix=prefix, limit=100)


def blocking(where):
    """`PostgresStore` with one connection."""
    from langgraph.store.postgres import PostgresStore

    return PostgresStore.from_conn_string(where)


@contextlib.asynccontextmanager
async def pooled(where):
    """`AsyncPostgresStore` with a pool of 4 to 20."""
    from langgraph.store.postgres.aio import AsyncPostgresStore

    pool = {"min_size": 4, "max_size": 20}
    async with AsyncPostgresStore.from_conn_string(where, pool_config=pool) as store:
        yield WaitingStore(store)


async def drive_store(store, items, between):
    """Group store. `between` is called after the puts."""
    from langgraph.store.base import PutOp

    clock = Clock()
    await store.put(("warm",), "k", {"a": 1})
    await store.get(("warm",), "k")
    for item in items.puts:
        await clock.run("put", store.put, item.namespace, item.key, item.value)
    between()
    for item in items.gets:
        got = await clock.run("get", store.get, item.namespace, item.key)
        expect(got.value == item.value)
    for operation, calls in items.searches():
        for prefix, kind, keys in calls:
            got = await clock.run(operation, store.search, tuple(prefix.split(".")), {"kind": kind})
            expect([found.key for found in got] == keys)
    for batch in items.batches:
        operations = [PutOp(item.namespace, item.key, item.value) for item in batch]
        await clock.run("batch_100", store.batch, operations)
    for _ in range(LISTS):
        got = await clock.run("list_namespaces", store.list_namespaces, (PREFIX,))
        expect(len(got) == 100)
    for item in (batch[-1] for batch in items.batches):
        expect((await store.get(item.namespace, item.key)).value == item.value)
    return clock.result()


# The same as single statements: an item by its primary key, a range of the prefixes' index in the place of LIKE, arrays for
# a batch.
COLUMNS = "SELECT prefix, key, value, created_at, updated_at FROM store"
UPSERT = "ON CONFLICT (prefix, key) DO UPDATE SET value = EXCLUDED.value, updated_at = CURRENT_TIMESTAMP"
PUT = f"INSERT INTO store (prefix, key, value) VALUES ($1, $2, $3) {UPSERT}"
PUT_MANY = (
    f"INSERT INTO store (prefix, key, value) SELECT * FROM unnest($1::text[], $2::text[], $3::jsonb[]) {UPSERT}"
)
GET = f"{COLUMNS} WHERE prefix = $1 AND key = $2"
SEARCH = (
    f"{COLUMNS} WHERE prefix ~>=~ $1 AND prefix ~<~ $2 AND value->'kind' = $3::jsonb ORDER BY updated_at DESC LIMIT 10"
)
NAMESPACES = f"SELECT DISTINCT prefix FROM store WHERE prefix LIKE '{PREFIX}.%' ORDER BY prefix LIMIT 100"


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def array(values):
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in quoted) + "}"


async def drive_floor(libpq, items, between):
    """Group store on a connection that runs prepared statements and decodes nothing."""
    clock = Clock()

    async def measure(operation, sql, calls, rows):
        await libpq.run(sql, *calls[0])
        for call, wanted in zip(calls, rows, strict=True):
            expect((await clock.run(operation, libpq.run, sql, *call)).ntuples == wanted)

    puts = [(item.prefix, item.key, compact(item.value)) for item in items.puts]
    await measure("put", PUT, puts, [0] * len(puts))
    between()
    await measure("get", GET, [(item.prefix, item.key) for item in items.gets], [1] * len(items.gets))
    for operation, searches in items.searches():
        # All descendants of the first label; a user's namespace has none.
        below = "." if operation == "search_all" else ""
        calls = [(prefix + below, f"{prefix}/", compact(kind)) for prefix, kind, _ in searches]
        await measure(operation, SEARCH, calls, [len(keys) for _, _, keys in searches])
    calls = [
        (array(item.prefix for item in batch), array(item.key for item in batch), array(compact(item.value) for item in batch))
        for batch in items.batches
    ]
    await measure("batch_100", PUT_MANY, calls, [0] * len(calls))
    await measure("list_namespaces", NAMESPACES, [()] * LISTS, [100] * LISTS)
    return clock.result()
