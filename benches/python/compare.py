"""Runs group chat of the workload in Rust and in Python, in turns, and prints a table.

The Rust driver is a program that takes --group, --sync and --path and prints one line of JSON; Python's part is this
file with --once. Every run has a fresh file in the same directory. Ratios are formed within a round.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from datetime import datetime, timezone

THREADS, STEPS = 10, 100
OPERATIONS = ("put_writes", "put", "get_latest", "get_mid", "list_10", "list_all", "put_writes_10", "delete_thread")
MASK = (1 << 64) - 1


class SplitMix64:
    def __init__(self, seed):
        self.state = seed & MASK

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)


def vocabulary():
    rng, words = SplitMix64(0x5EED), []
    for _ in range(1024):
        word = ""
        for _ in range(1 + rng.next() % 3):
            word += "bcdfghjklmnprstvw"[rng.next() % 17] + "aeiou"[rng.next() % 5]
            if rng.next() % 3 == 0:
                word += "bcdfghjklmnprstvw"[rng.next() % 17]
        words.append(word)
    return words


VOCABULARY = vocabulary()


def message(thread, k):
    rng = SplitMix64(thread * 1_000_003 + k)
    tokens = rng.next() % 900 + 100, rng.next() % 900 + 100
    out = {
        "type": "human" if k % 2 == 0 else "ai",
        "id": f"msg-{thread:08x}-{k:06}",
        "name": None,
        "content": "",
        "additional_kwargs": {},
        "response_metadata": {"model": "bench-1", "finish_reason": "stop"},
        "tool_calls": [],
        "usage_metadata": {"input_tokens": tokens[0], "output_tokens": tokens[1], "total_tokens": sum(tokens)},
    }
    size = 500 - len(json.dumps(out, separators=(",", ":")))
    content = ""
    while len(content) < size:
        word = VOCABULARY[((rng.next() % 1024) * (rng.next() % 1024)) >> 10]
        content += (" " if content else "") + word
    out["content"] = content[:size]
    return out


STATIC = {
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


class Thread:
    def __init__(self, saver, run, number, messages):
        self.saver, self.messages, self.ids = saver, messages, []
        self.thread_id = f"{run:08x}-0000-4000-8000-{number:012}"
        self.versions = {}

    def config(self, checkpoint_id=None):
        chosen = {"checkpoint_id": checkpoint_id} if checkpoint_id else {}
        return {"configurable": {"thread_id": self.thread_id, "checkpoint_ns": "", **chosen}}

    def next(self):
        """The arguments of the next step's calls: of put_writes (none for step 0) and of put."""
        from langgraph.checkpoint.base.id import uuid6

        i = len(self.ids)
        changed = ["messages", "counter", *(STATIC if i == 0 else ())]
        before = self.versions
        version = self.saver.get_next_version(before.get("messages"), None)
        self.versions = {**before, **dict.fromkeys(changed, version)}
        checkpoint = {
            "v": 4,
            "ts": datetime.now(timezone.utc).isoformat(),
            "id": str(uuid6(clock_seq=i)),
            "channel_values": {"messages": self.messages[: i + 1], "counter": i, **STATIC},
            "channel_versions": dict(self.versions),
            "versions_seen": {
                "__input__": {},
                "__start__": {},
                "agent": {k: before[k] for k in ("messages", "counter") if k in before},
                "tools": {k: before[k] for k in ("messages",) if k in before},
            },
            "updated_channels": sorted(changed),
        }
        parent = self.config(self.ids[-1] if self.ids else None)
        self.ids.append(checkpoint["id"])
        metadata = {"source": "loop" if i else "input", "step": i - 1, "parents": {}}
        writes = [("messages", self.messages[i]), ("counter", i)]
        task = (parent, writes, f"00000000-0000-4000-9000-{i:012}", "~__pregel_pull, agent")
        return task, (parent, checkpoint, metadata, {k: version for k in changed})


def chat(path, sync):
    from langgraph.checkpoint.sqlite import SqliteSaver

    wall = defaultdict(list)

    @contextmanager
    def timed(name):
        begun = time.perf_counter_ns()
        yield
        wall[name].append(time.perf_counter_ns() - begun)

    run = random.getrandbits(32)
    data = [[message(t, k) for k in range(STEPS + 1)] for t in range(THREADS)]
    with SqliteSaver.from_conn_string(path) as saver:
        saver.setup()
        saver.conn.execute(f"PRAGMA synchronous={'FULL' if sync == 'on' else 'NORMAL'}")
        warm = Thread(saver, run, 999_999, data[0])
        saver.put(*warm.next()[1])
        for _ in range(2):
            task, checkpoint = warm.next()
            saver.put_writes(*task)
            saver.put(*checkpoint)
            saver.get_tuple(warm.config())
        saver.delete_thread(warm.thread_id)
        threads = [Thread(saver, run, t, data[t]) for t in range(THREADS)]
        for thread in threads:
            saver.put(*thread.next()[1])
            for _ in range(STEPS):
                task, checkpoint = thread.next()
                with timed("put_writes"):
                    saver.put_writes(*task)
                with timed("put"):
                    saver.put(*checkpoint)
        for i in range(200):
            thread = threads[i % THREADS]
            with timed("get_latest"):
                got = saver.get_tuple(thread.config())
            assert len(got.checkpoint["channel_values"]["messages"]) == STEPS + 1 and not got.pending_writes
        for i in range(200):
            thread = threads[i % THREADS]
            with timed("get_mid"):
                got = saver.get_tuple(thread.config(thread.ids[STEPS // 2]))
            assert len(got.checkpoint["channel_values"]["messages"]) == 51 and len(got.pending_writes) == 2
        for name, times, limit, count in (("list_10", 50, 10, 10), ("list_all", 10, None, STEPS + 1)):
            for i in range(times):
                with timed(name):
                    got = list(saver.list(threads[i % THREADS].config(), limit=limit))
                assert len(got) == count
        ten = [("messages", message(7, k)) for k in range(10)]
        for i in range(200):
            thread = threads[i % THREADS]
            config = thread.config(thread.ids[-1])
            with timed("put_writes_10"):
                saver.put_writes(config, ten, f"00000000-0000-4000-a000-{i:012}", "~__pregel_pull, agent")
        for thread in threads:
            with timed("delete_thread"):
                saver.delete_thread(thread.thread_id)
    return {"impl": "python-sqlite", "group": "chat", "sync": sync, "ops": {k: summary(v) for k, v in wall.items()}}


def summary(wall):
    ms = sorted(ns / 1e6 for ns in wall)
    at = lambda q: ms[min(len(ms) - 1, int(q * len(ms)))]
    return {"n": len(ms), "mean_ms": statistics.fmean(ms), "p50_ms": at(0.5), "p95_ms": at(0.95), "p99_ms": at(0.99)}


def measure(command, directory):
    """One run in a fresh file, at most ten minutes long."""
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        command = [*command, "--path", os.path.join(folder, "bench.sqlite")]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    return json.loads(done.stdout.strip().splitlines()[-1])["ops"]


def compare(arguments):
    commands = {
        "rust": [arguments.workload, "--group", "chat", "--sync", arguments.sync],
        "python": [sys.executable, __file__, "--once", "--sync", arguments.sync],
    }
    rounds = []
    for number in range(arguments.rounds):
        results = {}
        for name in random.sample(list(commands), len(commands)):
            results[name] = measure(commands[name], arguments.directory)
        rounds.append(results)
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    print(f"p50 in ms, median of {len(rounds)} rounds (range), synchronous {arguments.sync}\n")
    print("| operation | Rust | Python | Python / Rust |\n|---|---|---|---|")

    def cell(values):
        return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"

    for operation in OPERATIONS:
        rust, python = ([r[name][operation]["p50_ms"] for r in rounds] for name in ("rust", "python"))
        ratios = [p / r for p, r in zip(python, rust)]
        print(f"| {operation} | {cell(rust)} | {cell(python)} | {cell(ratios)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--once", action="store_true", help="only Python's part, one line of JSON")
    parser.add_argument("--path", help="the file of --once")
    parser.add_argument("--workload", help="the Rust driver")
    parser.add_argument("--directory", default=".")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sync", choices=("on", "off"), default="on")
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps(chat(arguments.path, arguments.sync)))
    else:
        compare(arguments)
