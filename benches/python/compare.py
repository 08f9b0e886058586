"""Measures the SQLite saver next to Python's, in turns, and prints tables.

The Rust driver (--workload) prints the chats that both store, so both write the same bytes. Python's driver is this
file, started again with --drive. A round runs everything once, in random order; each run has a fresh file in the same
directory. A ratio is formed within one round.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile

from workload import Blocking, cell, disk_sync, drive_chat, last_line

CONC_LEVELS = (1, 8, 32)

# The compared operations: in Python, and in Rust.
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


def drive(path, sync, chats):
    """Group chat on Python's synchronous saver."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(path) as saver:
        saver.setup()
        # As applications set it; FULL is SQLite's default.
        saver.conn.execute("PRAGMA synchronous=" + {"on": "FULL", "off": "NORMAL"}[sync])
        ops = asyncio.run(drive_chat(Blocking(saver), chats))
    return {"impl": "python-sqlite", "group": "chat", "sync": sync, "ops": ops}


def run_python(arguments, data):
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        path = os.path.join(folder, "bench.sqlite")
        return last_line([sys.executable, __file__, "--drive", path, "--sync", arguments.sync], input=data)


def run_rust(arguments, *more):
    common = ["--sync", arguments.sync, "--directory", arguments.directory]
    return last_line([arguments.workload, *common, *more])


def one_round(arguments, data):
    """Runs everything once, by name."""
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
    parser.add_argument("--directory", default=".", help="the folder of the files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sync", choices=("on", "off"), default="on", help="synchronous FULL, or NORMAL")
    parser.add_argument("--seconds", type=float, default=3, help="the duration of each level")
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
