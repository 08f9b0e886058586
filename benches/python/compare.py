"""Measures the SQLite saver next to Python's, in turns, and prints tables.

The Rust driver (--workload) prints the chats that both store, so both write the same bytes. Python's driver is this
file, started again with --drive. A round runs everything once, in random order; each run has a fresh file in the same
directory. A ratio is formed within one round.
"""

import argparse
import datetime
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

CONC_LEVELS = (1, 8, 32)

# What is compared: the operation in Python, and in Rust.
ROWS = (
    ("put", "put"),
    ("put_writes", "put_writes"),
    ("step", "step"),
    ("put_writes_10", "put_writes_10"),
    ("delete_thread", "delete_thread"),
    ("get_latest", "get_latest_decoded"),
    ("get_mid", "get_mid_decoded"),
    ("list_10", "list_10_decoded"),
    ("list_all", "list_all_decoded"),
    ("get_latest", "get_latest"),
    ("get_mid", "get_mid"),
    ("list_10", "list_10"),
    ("list_all", "list_all"),
)

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


class Clock:
    """Collects latencies in milliseconds by operation."""

    def __init__(self):
        self.latencies = {}

    def run(self, operation, call, *arguments):
        begun = time.perf_counter_ns()
        result = call(*arguments)
        self.add(operation, (time.perf_counter_ns() - begun) / 1e6)
        return result

    def add(self, operation, milliseconds):
        self.latencies.setdefault(operation, []).append(milliseconds)

    def last(self, operation):
        return self.latencies[operation][-1]

    def medians(self):
        # The nearest rank, as in the Rust driver.
        return {name: {"p50_ms": sorted(all_)[len(all_) // 2]} for name, all_ in self.latencies.items()}


class Chat:
    """One thread; `next_step` makes the arguments of the calls, which is not timed."""

    def __init__(self, saver, run, number, messages):
        self.saver, self.messages = saver, messages
        self.thread_id = f"{run:08x}-0000-4000-8000-{number:012}"
        self.ids, self.versions = [], {}

    def config(self, checkpoint_id=None):
        place = {"thread_id": self.thread_id, "checkpoint_ns": ""}
        if checkpoint_id is not None:
            place["checkpoint_id"] = checkpoint_id
        return {"configurable": place}

    def next_step(self):
        from langgraph.checkpoint.base.id import uuid6

        number, before = len(self.ids), self.versions
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
            "channel_values": {"messages": self.messages[: number + 1], "counter": number} | UNCHANGING,
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
        writes = [("messages", self.messages[number]), ("counter", number)]
        task = f"00000000-0000-4000-9000-{number:012}"
        return (parent, writes, task, TASK_PATH), (parent, checkpoint, metadata, new_versions)


def drive(path, sync, chats):
    """Group chat on Python's synchronous saver."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    clock, run = Clock(), random.getrandbits(32)
    with SqliteSaver.from_conn_string(path) as saver:
        saver.setup()
        # As an application sets it; FULL is what SQLite comes with.
        saver.conn.execute("PRAGMA synchronous=" + {"on": "FULL", "off": "NORMAL"}[sync])
        for _ in range(2):
            warm = Chat(saver, run, 999_999, chats[0])
            saver.put(*warm.next_step()[1])
            writes, checkpoint = warm.next_step()
            saver.put_writes(*writes)
            saver.put(*checkpoint)
            saver.get_tuple(warm.config())
        saver.delete_thread(warm.thread_id)

        threads = [Chat(saver, run, number, messages) for number, messages in enumerate(chats)]
        for thread in threads:
            saver.put(*thread.next_step()[1])
            for _ in thread.messages[1:]:
                writes, checkpoint = thread.next_step()
                clock.run("put_writes", saver.put_writes, *writes)
                clock.run("put", saver.put, *checkpoint)
                clock.add("step", clock.last("put_writes") + clock.last("put"))
        for turn in range(200):
            got = clock.run("get_latest", saver.get_tuple, threads[turn % 10].config())
            values = got.checkpoint["channel_values"]
            expect(len(values["messages"]) == 101 and values["counter"] == 100 and len(values) == 7)
            expect(not got.pending_writes)
        for turn in range(200):
            thread = threads[turn % 10]
            got = clock.run("get_mid", saver.get_tuple, thread.config(thread.ids[50]))
            expect(len(got.checkpoint["channel_values"]["messages"]) == 51 and len(got.pending_writes) == 2)
        for operation, turns, limit, wanted in (("list_10", 50, 10, 10), ("list_all", 10, None, 101)):
            for turn in range(turns):
                config = threads[turn % 10].config()
                got = clock.run(operation, lambda: list(saver.list(config, limit=limit)))
                expect(len(got) == wanted)
                del got
        ten = [("messages", message) for message in chats[7][:10]]
        for turn in range(200):
            thread = threads[turn % 10]
            task = f"00000000-0000-4000-a000-{turn:012}"
            clock.run("put_writes_10", saver.put_writes, thread.config(thread.ids[-1]), ten, task, TASK_PATH)
        for thread in threads:
            clock.run("delete_thread", saver.delete_thread, thread.thread_id)
            expect(saver.get_tuple(thread.config()) is None)
    return {"impl": "python-sqlite", "group": "chat", "sync": sync, "ops": clock.medians()}


def expect(holds):
    if not holds:
        raise SystemExit("Python's saver returned something else than was stored")


def disk_sync(directory):
    """The median of 64 times 8 KiB written and synced, in milliseconds: what one commit costs at least."""
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


def run_python(arguments, data):
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        path = os.path.join(folder, "bench.sqlite")
        return last_line([sys.executable, __file__, "--drive", path, "--sync", arguments.sync], input=data)


def run_rust(arguments, *more):
    common = ["--sync", arguments.sync, "--directory", arguments.directory]
    return last_line([arguments.workload, *common, *more])


def one_round(arguments, data):
    """Everything once, by name."""
    runs = {
        "python": lambda: run_python(arguments, data),
        "rust": lambda: run_rust(arguments, "--group", "chat"),
    }
    for level in CONC_LEVELS:
        more = ("--group", "conc", "--level", str(level), "--seconds", str(arguments.seconds))
        runs[level] = lambda more=more: run_rust(arguments, *more)
    results = {"disk": []}
    for name in random.sample(list(runs), len(runs)):
        results["disk"].append(disk_sync(arguments.directory))
        results[name] = runs[name]()["ops"]
    return results


def cell(values, digits=2):
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def report(arguments, rounds):
    disk = [value for results in rounds for value in results["disk"]]
    print(f"synchronous {arguments.sync}, median of {len(rounds)} rounds (lowest to highest)\n")
    print(f"8 KiB written and synced: {cell(disk, 3)} ms\n")
    print("| operation | Python, p50 in ms | Rust, p50 in ms | Python / Rust |\n|---|---|---|---|")
    for in_python, in_rust in ROWS:
        python = [results["python"][in_python]["p50_ms"] for results in rounds]
        rust = [results["rust"][in_rust]["p50_ms"] for results in rounds]
        ratios = [slow / fast for slow, fast in zip(python, rust)]
        print(f"| {in_rust} | {cell(python, 3)} | {cell(rust, 3)} | {cell(ratios)} |")
    print("\n| tasks at the same time, Rust | steps/s | step, p50 in ms | steps/s of one task times |\n|---|---|---|---|")
    for level in CONC_LEVELS:
        steps = [results[level]["step"]["steps_s"] for results in rounds]
        wall = [results[level]["step"]["p50_ms"] for results in rounds]
        gain = [results[level]["step"]["steps_s"] / results[1]["step"]["steps_s"] for results in rounds]
        print(f"| {level} | {cell(steps, 0)} | {cell(wall)} | {cell(gain)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", help="the Rust driver")
    parser.add_argument("--directory", default=".", help="where the files are made")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sync", choices=("on", "off"), default="on", help="synchronous FULL, or NORMAL")
    parser.add_argument("--seconds", type=float, default=3, help="how long the tasks of one level run")
    parser.add_argument("--drive", metavar="PATH", help="run Python's part on this file; the chats come on stdin")
    arguments = parser.parse_args()
    if arguments.drive:
        chats = [json.loads(line) for line in sys.stdin]
        print(json.dumps(drive(arguments.drive, arguments.sync, chats)))
        return
    if not arguments.workload or arguments.rounds < 1:
        parser.error("--workload and at least one round are needed")
    command = [arguments.workload, "--group", "data"]
    data = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    rounds = []
    for number in range(arguments.rounds):
        rounds.append(one_round(arguments, data))
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    report(arguments, rounds)


if __name__ == "__main__":
    main()
