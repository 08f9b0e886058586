"""The workload in Python: the calls that the Rust driver makes, on Python's savers, and what the comparisons share.

The Rust driver prints the messages, so both store the same.
"""

import asyncio
import contextlib
import datetime
import json
import os
import random
import statistics
import subprocess
import tempfile
import time

UNCHANGING = {
    "user_id": "user-000042",
    "locale": "en-US",
    "temperature": 0.2,
    "settings": {
        "theme": "dark",
        "units": "metric",
        "max_tokens": 1024,
        "stream": True,
        "stop": ["END"],
        "safety": {"level": "default", "block": False},
    },
    "tools": ["search", "calculator", "calendar"],
}
TASK_PATH = "~__pregel_pull, agent"


WINDOW = 20


class Clock:
    """Collects latencies and CPU time by operation."""

    def __init__(self):
        self.latencies, self.processor = {}, {}

    @contextlib.contextmanager
    def of(self, operation):
        processor, begun = time.process_time_ns(), time.perf_counter_ns()
        yield
        took = time.perf_counter_ns() - begun
        self.add(operation, took / 1e6, (time.process_time_ns() - processor) / 1e6)

    async def run(self, operation, call, *arguments):
        with self.of(operation):
            return await call(*arguments)

    def add(self, operation, milliseconds, processor):
        self.latencies.setdefault(operation, []).append(milliseconds)
        self.processor[operation] = self.processor.get(operation, 0) + processor

    def result(self):
        # The nearest rank, as in the Rust driver.
        return {
            name: {
                "n": len(all_),
                "p50_ms": sorted(all_)[len(all_) // 2],
                "mean_ms": statistics.fmean(all_),
                "client_cpu_ms": self.processor[name] / len(all_),
            }
            for name, all_ in self.latencies.items()
        }


class Blocking:
    """A synchronous saver. Its coroutines never yield."""

    def __init__(self, saver):
        self.saver, self.get_next_version = saver, saver.get_next_version

    async def put(self, *arguments):
        return self.saver.put(*arguments)

    async def put_writes(self, *arguments):
        self.saver.put_writes(*arguments)

    async def get_tuple(self, config):
        return self.saver.get_tuple(config)

    async def list(self, config, limit=None):
        return list(self.saver.list(config, limit=limit))

    async def delete_thread(self, thread_id):
        self.saver.delete_thread(thread_id)


class Waiting:
    """An asynchronous saver."""

    def __init__(self, saver):
        self.saver, self.get_next_version = saver, saver.get_next_version
        self.put, self.put_writes = saver.aput, saver.aput_writes
        self.get_tuple, self.delete_thread = saver.aget_tuple, saver.adelete_thread

    async def list(self, config, limit=None):
        return [found async for found in self.saver.alist(config, limit=limit)]


class Chat:
    """One thread; `next_step` makes the arguments of the calls, which is not timed."""

    def __init__(self, saver, run, number, messages, window=None):
        self.saver, self.messages, self.window = saver, messages, window
        self.thread_id = f"{run:08x}-0000-4000-8000-{number:012}"
        self.ids, self.versions = [], {}

    def config(self, checkpoint_id=None):
        place = {"thread_id": self.thread_id, "checkpoint_ns": ""}
        if checkpoint_id is not None:
            place["checkpoint_id"] = checkpoint_id
        return {"configurable": place}

    def state(self, number):
        if self.window is None:
            return self.messages[: number + 1]
        return [self.messages[(number + turn) % len(self.messages)] for turn in range(self.window)]

    async def step(self):
        writes, checkpoint = self.next_step()
        await self.saver.put_writes(*writes)
        await self.saver.put(*checkpoint)

    def next_step(self):
        from langgraph.checkpoint.base.id import uuid6

        number, before = len(self.ids), self.versions
        messages = self.state(number)
        parent = self.config(self.ids[-1] if self.ids else None)
        version = self.saver.get_next_version(before.get("messages"), None)
        new_versions = {"messages": version, "counter": version}
        if number == 0:
            new_versions.update({channel: version for channel in UNCHANGING})
        self.versions = before | new_versions
        self.ids.append(str(uuid6(clock_seq=number)))

        def seen(*channels):
            return {channel: before[channel] for channel in channels if channel in before}

        checkpoint = {
            "v": 4,
            "ts": datetime.datetime.now(datetime.timezone.utc).isoformat(),
            "id": self.ids[-1],
            "channel_values": {"messages": messages, "counter": number} | UNCHANGING,
            "channel_versions": dict(self.versions),
            "versions_seen": {
                "__input__": {},
                "__start__": {},
                "agent": seen("messages", "counter"),
                "tools": seen("messages"),
            },
            "updated_channels": sorted(new_versions),
        }
        metadata = {"source": "loop" if number else "input", "step": number - 1, "parents": {}}
        writes = [("messages", messages[-1]), ("counter", number)]
        task = f"00000000-0000-4000-9000-{number:012}"
        return (parent, writes, task, TASK_PATH), (parent, checkpoint, metadata, new_versions)


async def drive_chat(saver, chats, between=lambda: None):
    """Group chat. `between` is called after the writes."""
    clock, run = Clock(), random.getrandbits(32)
    for _ in range(2):
        warm = Chat(saver, run, 999_999, chats[0])
        await saver.put(*warm.next_step()[1])
        await warm.step()
        await saver.get_tuple(warm.config())
    await saver.delete_thread(warm.thread_id)

    threads = [Chat(saver, run, number, messages) for number, messages in enumerate(chats)]
    for thread in threads:
        await saver.put(*thread.next_step()[1])
        for _ in thread.messages[1:]:
            writes, checkpoint = thread.next_step()
            with clock.of("step"):
                await clock.run("put_writes", saver.put_writes, *writes)
                await clock.run("put", saver.put, *checkpoint)
    between()
    for turn in range(200):
        got = await clock.run("get_latest", saver.get_tuple, threads[turn % 10].config())
        values = got.checkpoint["channel_values"]
        expect(len(values["messages"]) == 101 and values["counter"] == 100 and len(values) == 7)
        expect(not got.pending_writes)
    for turn in range(200):
        thread = threads[turn % 10]
        got = await clock.run("get_mid", saver.get_tuple, thread.config(thread.ids[50]))
        expect(len(got.checkpoint["channel_values"]["messages"]) == 51 and len(got.pending_writes) == 2)
    for operation, turns, limit, wanted in (("list_10", 50, 10, 10), ("list_all", 10, None, 101)):
        for turn in range(turns):
            config = threads[turn % 10].config()
            got = await clock.run(operation, saver.list, config, limit)
            expect(len(got) == wanted)
            del got
    ten = [("messages", message) for message in chats[7][:10]]
    for turn in range(200):
        thread = threads[turn % 10]
        task = f"00000000-0000-4000-a000-{turn:012}"
        await clock.run("put_writes_10", saver.put_writes, thread.config(thread.ids[-1]), ten, task, TASK_PATH)
    for thread in threads:
        await clock.run("delete_thread", saver.delete_thread, thread.thread_id)
        expect(await saver.get_tuple(thread.config()) is None)
    return clock.result()


async def start_windowed(savers, messages, steps):
    """Threads with a constant number of messages, one for each saver, with this many steps."""
    run = random.getrandbits(32)
    threads = [Chat(saver, run, number, messages, WINDOW) for number, saver in enumerate(savers)]
    for thread in threads:
        await thread.saver.put(*thread.next_step()[1])
        for _ in range(steps):
            await thread.step()
    return threads


async def drive_conc(savers, messages, seconds):
    """Group conc: one task for each saver given, which may be the same."""
    threads = await start_windowed(savers, messages, 1)
    latencies = []
    processor, deadline = time.process_time(), time.perf_counter() + seconds

    async def work(thread):
        while True:
            writes, checkpoint = thread.next_step()
            begun = time.perf_counter()
            await thread.saver.put_writes(*writes)
            await thread.saver.put(*checkpoint)
            end = time.perf_counter()
            if end > deadline:
                return
            latencies.append((end - begun) * 1e3)

    await asyncio.gather(*(work(thread) for thread in threads))
    processor = (time.process_time() - processor) * 1e3
    step = {
        "steps_s": len(latencies) / seconds,
        "p50_ms": sorted(latencies)[len(latencies) // 2],
        "client_cpu_ms": processor / len(latencies),
    }
    return {"step": step}


async def drive_scale(saver, messages, length, between=lambda: None):
    """Group scale. `between` is called after the writes."""
    clock = Clock()
    (thread,) = await start_windowed([saver], messages, length)
    between()
    for operation, turns, call in (
        ("get_latest", 200, lambda: saver.get_tuple(thread.config())),
        ("list_10", 30, lambda: saver.list(thread.config(), 10)),
    ):
        for _ in range(40):
            await call()
        for _ in range(turns):
            await clock.run(operation, call)
    for _ in range(100):
        with clock.of("step"):
            await thread.step()
    await clock.run("delete_thread", saver.delete_thread, thread.thread_id)
    return clock.result()


async def drive_big(saver):
    """Group big: 21 times 1 MiB of incompressible bytes."""
    from langgraph.checkpoint.base.id import uuid6

    clock, version = Clock(), None
    newest = {"configurable": {"thread_id": str(uuid6()), "checkpoint_ns": ""}}
    config = newest
    for number in range(21):
        blob = os.urandom(1 << 20)
        version = saver.get_next_version(version, None)
        checkpoint = {
            "v": 4,
            "ts": datetime.datetime.now(datetime.timezone.utc).isoformat(),
            "id": str(uuid6(clock_seq=number)),
            "channel_values": {"blob": blob},
            "channel_versions": {"blob": version},
            "versions_seen": {},
            "updated_channels": ["blob"],
        }
        metadata = {"source": "loop", "step": number - 1, "parents": {}}
        put = (config, checkpoint, metadata, {"blob": version})
        config = await (clock.run("put_1mb", saver.put, *put) if number else saver.put(*put))
    for _ in range(20):
        got = await clock.run("get_latest_1mb", saver.get_tuple, newest)
        expect(got.checkpoint["channel_values"]["blob"] == blob)
    return clock.result()


def expect(holds):
    if not holds:
        raise SystemExit("Python's saver or store returned something else than was stored")


def disk_sync(directory):
    """The median of 64 writes of 8 KiB with a sync, in milliseconds: the minimum cost of a commit."""
    times = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for turn in range(64):
            begun = time.perf_counter_ns()
            os.pwrite(file.fileno(), os.urandom(8192), turn * 8192)
            os.fdatasync(file.fileno())
            times.append((time.perf_counter_ns() - begun) / 1e6)
    return statistics.median(times)


def last_line(command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=1200, **options)
    return json.loads(done.stdout.splitlines()[-1])


def cell(values, digits=2):
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
