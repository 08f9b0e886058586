"""Measures whole graphs on the wheel's savers, next to LangGraph's own, in turns, and prints tables.

    python graphs.py [--rounds 3] [--seconds 6] [--levels 1 32] [--only wheel-postgres pg-async-pool memory]

A turn is one `ainvoke` of a graph of three async nodes that do nothing but answer, so what is measured is LangGraph and
its saver. A level is the number of conversations at the same time; each begins a new thread after some turns. LangGraph's
InMemorySaver is the limit: what a turn takes when nothing is sent. A round measures everything once, in random order; a
ratio is formed within one round. The server is that of compare_postgres.py; SQLite's files are in --directory.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time

from compare_postgres import fresh_database, table
from workload import cell, disk_sync, expect, last_line

MEMORY, POOL, SQLITE = "memory", "pg-async-pool", "sqlite-async"
WHEEL_POSTGRES, WHEEL_SQLITE = "wheel-postgres", "wheel-sqlite"
DRIVERS = (MEMORY, POOL, WHEEL_POSTGRES, SQLITE, WHEEL_SQLITE)

# The size of a message, and how many turns a conversation has: four messages each.
MESSAGE, TURNS = 1024, 25

# The driver, the level, its baseline, what is compared and how, and the goal.
GOALS = (
    (WHEEL_POSTGRES, 32, POOL, "turns_s", "at least", 4.5),
    (WHEEL_POSTGRES, 1, POOL, "turns_s", "at least", 2.2),
    (WHEEL_POSTGRES, 32, MEMORY, "client_cpu_ms", "at most", 1.0),
    (WHEEL_POSTGRES, 1, MEMORY, "client_cpu_ms", "at most", 2.0),
    (WHEEL_SQLITE, 32, MEMORY, "turns_s", "at least", 0.92),
)


# One measurement, which runs in a separate process.


@contextlib.asynccontextmanager
async def opened(driver, where):
    if driver == MEMORY:
        from langgraph.checkpoint.memory import InMemorySaver

        yield InMemorySaver()
    elif driver == POOL:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import AsyncConnectionPool

        # The connection settings of LangGraph's documentation.
        settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        async with AsyncConnectionPool(where, min_size=4, max_size=20, kwargs=settings, open=False) as pool:
            await pool.wait()
            yield AsyncPostgresSaver(pool)
    elif driver == SQLITE:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        async with AsyncSqliteSaver.from_conn_string(where) as saver:
            yield saver
    elif driver == WHEEL_POSTGRES:
        from langgraph_ckpt import PostgresSaver

        async with PostgresSaver.from_conn_string(where) as saver:
            await saver.asetup()
            yield saver
    else:
        from langgraph_ckpt import SqliteSaver

        async with SqliteSaver.from_conn_string(where) as saver:
            yield saver


def build(saver):
    """Three nodes in a row, each of which adds a message."""
    from langchain_core.messages import AIMessage
    from langgraph.graph import END, START, MessagesState, StateGraph

    text = "".join(random.choices("etaoin shrdlu", k=MESSAGE))

    def node(name):
        async def answer(state):
            return {"messages": [AIMessage(f"{name} {len(state['messages'])} {text}")]}

        return answer

    builder = StateGraph(MessagesState)
    names = ("plan", "act", "answer")
    for name in names:
        builder.add_node(name, node(name))
    for before, after in zip((START, *names), (*names, END)):
        builder.add_edge(before, after)
    return builder.compile(checkpointer=saver)


async def converse(graph, level, seconds):
    """The level's conversations until the time is over."""
    from langchain_core.messages import HumanMessage

    run, text = random.getrandbits(32), "".join(random.choices("etaoin shrdlu", k=MESSAGE))
    latencies = []

    async def turn(thread, number, questions=1):
        config = {"configurable": {"thread_id": thread}}
        asked = [HumanMessage(f"{number} {question} {text}") for question in range(questions)]
        state = await graph.ainvoke({"messages": asked}, config)
        expect(len(state["messages"]) == 4 * (number + 1))

    async def conversations(lane):
        # Before the clock starts, one turn with many questions brings the lanes out of step.
        chat, number = 0, (lane + TURNS // 2) % TURNS
        if number:
            await turn(f"{run:08x}-{lane}-0", number - 1, 4 * number - 3)
        ready.release()
        await begin.wait()
        while True:
            begun = time.perf_counter()
            await turn(f"{run:08x}-{lane}-{chat}", number)
            end = time.perf_counter()
            latencies.append((end - begun) * 1e3)
            if end > deadline:
                return
            chat, number = (chat, number + 1) if number + 1 < TURNS else (chat + 1, 0)

    ready, begin = asyncio.Semaphore(0), asyncio.Event()
    deadline = 0.0
    lanes = asyncio.gather(*(conversations(lane) for lane in range(level)))
    for _ in range(level):
        await ready.acquire()
    processor, started = time.process_time(), time.perf_counter()
    deadline = started + seconds
    begin.set()
    await lanes
    # The last turns of the lanes end soon after each other.
    took = time.perf_counter() - started
    processor = (time.process_time() - processor) * 1e3
    return {
        "turns_s": len(latencies) / took,
        "p50_ms": statistics.median(latencies),
        "client_cpu_ms": processor / len(latencies),
    }


async def measured(driver, where, level, seconds):
    async with opened(driver, where) as saver:
        return await converse(build(saver), level, seconds)


def drive(arguments):
    with contextlib.ExitStack() as stack:
        where = None
        if arguments.drive in (POOL, WHEEL_POSTGRES):
            _, where = stack.enter_context(fresh_database(arguments.sync, "chat"))
        elif arguments.drive in (SQLITE, WHEEL_SQLITE):
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.directory))
            where = os.path.join(folder, "bench.sqlite")
        return asyncio.run(measured(arguments.drive, where, arguments.level, arguments.seconds))


# The rounds and the tables.


def one_round(arguments, number):
    plan = [(driver, level) for driver in arguments.only for level in arguments.levels]
    results = {"disk": []}
    for driver, level in random.sample(plan, len(plan)):
        results["disk"].append(disk_sync(arguments.directory))
        command = [sys.executable, __file__, "--drive", driver, "--level", str(level)]
        command += ["--seconds", str(arguments.seconds), "--sync", arguments.sync, "--directory", arguments.directory]
        results[driver, level] = last_line(command)
        print(f"round {number + 1}: {driver} {level}: {results[driver, level]}", file=sys.stderr)
    return results


def compared(rounds, driver, baseline, level, what):
    """The ratio to the baseline within each round, of CPU time the difference."""
    pairs = [(results[driver, level][what], results[baseline, level][what]) for results in rounds]
    return [ours - theirs if what == "client_cpu_ms" else ours / theirs for ours, theirs in pairs]


def report(arguments, rounds):
    disk = [value for results in rounds for value in results["disk"]]
    print(f"synchronous_commit {arguments.sync}; median of {len(rounds)} rounds (lowest to highest)")
    print(f"8 KiB written and synced: {cell(disk, 3)} ms")
    for level in arguments.levels:
        rows = []
        for driver in arguments.only:
            cells = [cell([results[driver, level][what] for results in rounds], digits)
                     for what, digits in (("turns_s", 0), ("p50_ms", 1), ("client_cpu_ms", 2))]
            for baseline in (MEMORY, POOL):
                cells.append(
                    cell(compared(rounds, driver, baseline, level, "turns_s"))
                    if baseline in arguments.only and baseline != driver
                    else ""
                )
            more = MEMORY in arguments.only and driver != MEMORY
            cells.append(cell(compared(rounds, driver, MEMORY, level, "client_cpu_ms")) if more else "")
            rows.append((driver, *cells))
        print(f"\nConversations at the same time: {level}")
        head = ("saver", "turns/s", "turn, p50 in ms", "client CPU of a turn in ms")
        table((*head, f"turns/s / {MEMORY}'s", f"/ {POOL}'s", f"CPU beyond {MEMORY}'s in ms"), rows)
    rows = []
    for driver, level, baseline, what, bound, goal in GOALS:
        if level not in arguments.levels or not {driver, baseline} <= {*arguments.only}:
            continue
        values = compared(rounds, driver, baseline, level, what)
        middle = statistics.median(values)
        met = "yes" if (middle >= goal if bound == "at least" else middle <= goal) else "**no**"
        kind = "CPU of a turn in ms beyond" if what == "client_cpu_ms" else "turns/s over"
        rows.append((f"{driver}, {level}: {kind} {baseline}'s", f"{bound} {goal}", cell(values), met))
    if rows:
        table(("what", "goal", "within rounds", "met"), rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6, help="the duration of each measurement")
    parser.add_argument("--levels", nargs="+", type=int, default=(1, 32), help="conversations at the same time")
    parser.add_argument("--only", nargs="+", choices=DRIVERS, default=DRIVERS)
    parser.add_argument("--sync", choices=("on", "off"), default="on", help="synchronous_commit")
    parser.add_argument("--directory", default=".", help="the folder of SQLite's files")
    parser.add_argument("--drive", choices=DRIVERS, help="runs one measurement")
    parser.add_argument("--level", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.drive:
        print(json.dumps(drive(arguments)))
        return
    if arguments.rounds < 1:
        parser.error("at least one round is needed")
    report(arguments, [one_round(arguments, number) for number in range(arguments.rounds)])


if __name__ == "__main__":
    main()
