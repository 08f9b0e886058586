"""Uses the installed wheel. `cargo xtask wheel` runs it in a container that has nothing but Python and the wheel."""

import asyncio
import os
import shutil
import tempfile

from langgraph.checkpoint.base import empty_checkpoint
from langgraph_ckpt import InMemorySaver, InMemoryStore, MongoSaver, PostgresSaver, RedisSaver, SqliteSaver, _native

assert not [name for name in ("cargo", "rustc", "cc", "gcc", "clang") if shutil.which(name)]

THREAD = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}


def stored(saver):
    checkpoint = empty_checkpoint()
    version = saver.get_next_version(None, None)
    checkpoint |= {"channel_values": {"log": ["hello"]}, "channel_versions": {"log": version}}
    return saver.put(THREAD, checkpoint, {"source": "input", "step": -1}, {"log": version})


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "agents.sqlite")
    with SqliteSaver.from_conn_string(path) as saver:
        config = stored(saver)
        saver.put_writes(config, [("log", "there")], "task")
    with SqliteSaver.from_conn_string(path) as saver:
        found = asyncio.run(saver.aget_tuple(THREAD))
        assert found.checkpoint["channel_values"] == {"log": ["hello"]}
        assert found.pending_writes == [("task", "log", "there")]
        assert len(list(saver.list(THREAD))) == 1

memory = InMemorySaver()
stored(memory)
assert memory.get_tuple(THREAD).checkpoint["channel_values"] == {"log": ["hello"]}

store = InMemoryStore()
store.put(("a",), "k", {"v": 1})
assert store.get(("a",), "k").value == {"v": 1}

# Nothing listens there.
for unreachable in (
    PostgresSaver.from_conn_string("postgresql://127.0.0.1:1/none", max_retries=0),
    MongoSaver.from_conn_string("mongodb://127.0.0.1:1", max_retries=0, connect_timeout=1),
    RedisSaver.from_conn_string("redis://127.0.0.1:1", max_retries=0),
):
    with unreachable as saver:
        try:
            saver.get_tuple(THREAD)
        except ConnectionError:
            pass
        else:
            raise AssertionError("a connection was made")

print(f"langgraph-ckpt {_native.__version__} works")
