"""Measures the PostgreSQL saver and store next to Python's and next to floors, in turns, and prints tables.

    python compare_postgres.py --workload target/release/workload [--rounds 5] [--sync on] [--groups chat conc scale big]
    python compare_postgres.py --workload target/release/workload --groups store
    python compare_postgres.py --workload target/release/workload --wheel --groups chat conc store

The server is the one of BENCH_PG_HOST, BENCH_PG_PORT, BENCH_PG_USER and BENCH_PG_PASSWORD, whose role may make
databases; every measurement makes one of its own and drops it. A round measures everything once, in random order; a
ratio is formed within one round. The floors are the same statements without a saver: by pgbench, by the Rust driver
with nothing encoded or decoded, and reads by libpq with LangGraph's own SELECT, but each blob looked up by its key; of
the store by the Rust driver and by libpq. Without pgbench on the PATH its floors are left out. With --save FILE every measurement is kept as a line of JSON; --report FILE... prints the tables of such files.
With --wheel it is the wheel's savers and stores, installed in this Python, that are measured next to Python's.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import time

import stores
from workload import (
    Blocking,
    Chat,
    Clock,
    Waiting,
    cell,
    disk_sync,
    drive_big,
    drive_chat,
    drive_conc,
    drive_scale,
    expect,
    last_line,
    start_windowed,
)

LEVELS = {"conc": (1, 8, 32, 64), "scale": (100, 1000, 5000), "chat": (None,), "big": (None,), "store": (None,)}
# The groups by default: those of the saver.
SAVER_GROUPS = ("conc", "scale", "chat", "big")
RUST, FLOOR, PGBENCH = "rust-postgres", "rust-floor", "rust-pgbench"
BLOCKING, POOL, LIBPQ = "pg-sync-conn", "pg-async-pool", "libpq"
WHEEL_SYNC, WHEEL_ASYNC = "wheel-sync", "wheel-async"

# The drivers of a group.
DRIVERS = {
    "chat": (RUST, FLOOR, PGBENCH, BLOCKING, POOL, LIBPQ),
    "conc": (RUST, FLOOR, PGBENCH, POOL),
    "scale": (RUST, FLOOR, BLOCKING, POOL, LIBPQ),
    "big": (RUST, FLOOR, BLOCKING, POOL),
    "store": (RUST, FLOOR, BLOCKING, POOL, LIBPQ),
}

# The same for the wheel; each of its drivers is next to Python's equivalent.
WHEEL_DRIVERS = (WHEEL_SYNC, BLOCKING, WHEEL_ASYNC, POOL)

# How often a measurement is repeated while the disk is slow.
ATTEMPTS = 4

# The limits of saver and store: the group, the operation, the baseline's operation, and the maximum ratio.
GOALS = (
    ("chat", "put", PGBENCH, "put", 1.2),
    ("chat", "put_encoded", PGBENCH, "put", 1.2),
    ("chat", "put_writes", PGBENCH, "put_writes", 1.2),
    ("chat", "put_writes_encoded", PGBENCH, "put_writes", 1.2),
    ("chat", "put_writes_10", PGBENCH, "put_writes_10", 1.2),
    ("chat", "put_writes_10_encoded", PGBENCH, "put_writes_10", 1.2),
    ("chat", "get_latest", LIBPQ, "get_latest", 1.3),
    ("chat", "list_all", LIBPQ, "list_all", 1.3),
    *(
        ("store", operation, floor, operation, 1.3)
        for floor in (LIBPQ, FLOOR)
        for operation in ("put", "get", "search_all", "search_user", "batch_100")
    ),
)

BLOB_JOIN = """inner join checkpoint_blobs bl
            on bl.thread_id = checkpoints.thread_id
            and bl.checkpoint_ns = checkpoints.checkpoint_ns
            and bl.channel = jsonb_each_text.key
            and bl.version = jsonb_each_text.value"""
BLOB_LOOKUP = """cross join lateral (
            select channel, type, blob from checkpoint_blobs
            where thread_id = checkpoints.thread_id
            and checkpoint_ns = checkpoints.checkpoint_ns
            and channel = jsonb_each_text.key
            and version = jsonb_each_text.value
            limit 1
        ) bl"""


# Python's part, which runs in a separate process.


def url(database, sync="on"):
    from urllib.parse import quote

    host, port = os.environ.get("BENCH_PG_HOST", "127.0.0.1"), os.environ.get("BENCH_PG_PORT", "5432")
    user, password = (quote(os.environ.get(f"BENCH_PG_{name}", "postgres"), "") for name in ("USER", "PASSWORD"))
    options = quote(f"-c synchronous_commit={sync}")
    return f"postgresql://{user}:{password}@{host}:{port}/{database}?sslmode=disable&gssencmode=disable&options={options}"


def run_sql(database, sql):
    import psycopg

    with psycopg.connect(url(database), autocommit=True) as connection:
        connection.execute(sql)


@contextlib.contextmanager
def fresh_database(sync, group):
    from langgraph.checkpoint.postgres import PostgresSaver

    opened = stores.blocking if group == "store" else PostgresSaver.from_conn_string
    name = f"bench_{random.getrandbits(48):012x}"
    run_sql("postgres", f"CREATE DATABASE {name}")
    try:
        with opened(url(name)) as saver_or_store:
            saver_or_store.setup()
        run_sql(name, "CHECKPOINT")
        yield name, url(name, sync)
    finally:
        run_sql("postgres", f"DROP DATABASE {name} WITH (FORCE)")


class Libpq:
    """Prepared statements by libpq alone; results are binary and not decoded."""

    def __init__(self, where):
        import psycopg

        self.connection = psycopg.connect(where, autocommit=True)
        # Otherwise the server may plan each execution again.
        self.connection.execute("SET plan_cache_mode = force_generic_plan")
        self.statements = {}

    async def run(self, sql, *parameters):
        from psycopg import pq

        if sql not in self.statements:
            self.statements[sql] = b"s%d" % len(self.statements)
            self.connection.pgconn.prepare(self.statements[sql], sql.encode())
        values = [parameter.encode() for parameter in parameters]
        found = self.connection.pgconn.exec_prepared(self.statements[sql], values, None, pq.Format.BINARY)
        if found.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            raise SystemExit(found.error_message.decode())
        return found


async def read_by_libpq(where, group, chats, level, analyze):
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.checkpoint.postgres.base import SELECT_SQL

    expect(BLOB_JOIN in SELECT_SQL)
    one = SELECT_SQL.replace(BLOB_JOIN, BLOB_LOOKUP) + "WHERE thread_id = $1 AND checkpoint_ns = ''"
    newest = one + " ORDER BY checkpoint_id DESC"
    clock = Clock()
    with PostgresSaver.from_conn_string(where) as saver:
        if group == "scale":
            threads = await start_windowed([Blocking(saver)], chats[0], level)
        else:
            run = random.getrandbits(32)
            threads = [Chat(Blocking(saver), run, number, messages) for number, messages in enumerate(chats)]
            for thread in threads:
                await saver_start(thread)
    analyze()
    libpq = Libpq(where)
    reads = [("get_latest", newest + " LIMIT 1", 200, 1), ("list_10", newest + " LIMIT 10", 50, 10)]
    if group == "chat":
        reads.append(("get_mid", one + " AND checkpoint_id = $2", 200, 1))
        reads.append(("list_all", newest, 10, 101))
    for operation, sql, turns, rows in reads:
        for turn in range(-10, turns):
            thread = threads[turn % len(threads)]
            place = [thread.thread_id] + ([thread.ids[50]] if operation == "get_mid" else [])
            if turn < 0:
                await libpq.run(sql, *place)
            else:
                expect((await clock.run(operation, libpq.run, sql, *place)).ntuples == rows)
    return clock.result()


async def saver_start(thread):
    """A whole chat."""
    await thread.saver.put(*thread.next_step()[1])
    for _ in thread.messages[1:]:
        await thread.step()


async def drive_group(saver, group, chats, level, seconds, analyze):
    if group == "chat":
        return await drive_chat(saver, chats, analyze)
    if group == "conc":
        return await drive_conc([saver] * level, chats[0], seconds)
    if group == "scale":
        return await drive_scale(saver, chats[0], level, analyze)
    return await drive_big(saver)


async def drive_pool(where, *more):
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    # The connection settings of LangGraph's documentation.
    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(where, min_size=4, max_size=20, kwargs=settings, open=False) as pool:
        await pool.wait()
        return await drive_group(Waiting(AsyncPostgresSaver(pool)), *more)


async def drive_wheel(driver, where, *more):
    from langgraph_ckpt import PostgresSaver

    with PostgresSaver.from_conn_string(where) as saver:
        saver.setup()
        return await drive_group((Waiting if driver == WHEEL_ASYNC else Blocking)(saver), *more)


async def drive_stores(driver, where, printed, analyze):
    items = stores.Items(printed)
    if driver == LIBPQ:
        return await stores.drive_floor(Libpq(where), items, analyze)
    if driver in (WHEEL_SYNC, WHEEL_ASYNC):
        from langgraph_ckpt import PostgresStore

        with PostgresStore.from_conn_string(where) as store:
            of = stores.WaitingStore if driver == WHEEL_ASYNC else stores.BlockingStore
            return await stores.drive_store(of(store), items, analyze)
    if driver == POOL:
        async with stores.pooled(where) as store:
            return await stores.drive_store(store, items, analyze)
    with stores.blocking(where) as store:
        return await stores.drive_store(stores.BlockingStore(store), items, analyze)


def drive(arguments, chats):
    """One measurement of Python, in the Rust driver's format."""
    group, level = arguments.group, arguments.level
    with fresh_database(arguments.sync, group) as (name, where):

        def analyze():
            run_sql(name, "VACUUM (ANALYZE)")

        if group == "store":
            ops = asyncio.run(drive_stores(arguments.drive, where, *chats, analyze))
        elif arguments.drive == LIBPQ:
            ops = asyncio.run(read_by_libpq(where, group, chats, level, analyze))
        elif arguments.drive in (WHEEL_SYNC, WHEEL_ASYNC):
            work = drive_wheel(arguments.drive, where, group, chats, level, arguments.seconds, analyze)
            ops = asyncio.run(work)
        elif arguments.drive == POOL:
            ops = asyncio.run(drive_pool(where, group, chats, level, arguments.seconds, analyze))
        else:
            from langgraph.checkpoint.postgres import PostgresSaver

            with PostgresSaver.from_conn_string(where) as saver:
                work = drive_group(Blocking(saver), group, chats, level, arguments.seconds, analyze)
                ops = asyncio.run(work)
    return {"impl": arguments.drive, "group": group, "sync": arguments.sync, "level": level, "ops": ops}


# The rounds.


def measure(arguments, driver, group, level, data):
    settings = ["--group", group, "--sync", arguments.sync, "--seconds", str(arguments.seconds)]
    settings += [] if level is None else ["--level", str(level)]
    if driver.startswith("rust-"):
        program = [arguments.workload, "--impl", driver.removeprefix("rust-"), *settings]
        return last_line(program + (arguments.rust if driver == RUST else []))
    return last_line([sys.executable, __file__, "--drive", driver, *settings], input=data[group])


def one_round(arguments, number, data):
    plan = [
        (driver, group, level)
        for group in arguments.groups
        for level in LEVELS[group]
        for driver in (WHEEL_DRIVERS if arguments.wheel else DRIVERS[group])
        if (not arguments.only or driver in arguments.only) and (driver != PGBENCH or shutil.which("pgbench"))
    ]
    lines = []
    for driver, group, level in random.sample(plan, len(plan)):
        begun = time.monotonic()
        for _ in range(ATTEMPTS):
            before = disk_sync(".")
            line = measure(arguments, driver, group, level, data)
            disk = max(before, disk_sync("."))
            if disk <= arguments.disk_ms:
                break
        line |= {"impl": driver, "group": group, "level": level, "round": number, "disk_sync_ms": disk}
        lines.append(line)
        if arguments.save:
            with open(arguments.save, "a") as file:
                print(json.dumps(line), file=file)
        took = time.monotonic() - begun
        print(f"round {number + 1}: {driver} {group} {level or ''} took {took:.1f} s", file=sys.stderr)
    return lines


# The tables.


class Results:
    def __init__(self, lines):
        self.lines = lines

    def of(self, driver, group, level=None):
        place = (driver, group, level)
        return [line for line in self.lines if (line["impl"], line["group"], line["level"]) == place]

    def values(self, driver, group, operation, level=None, what="p50_ms"):
        """By round."""
        return {
            line["round"]: line["ops"][operation][what]
            for line in self.of(driver, group, level)
            if what in line["ops"].get(operation, {})
        }

    def shown(self, *place, digits=3, **more):
        values = self.values(*place, **more)
        return cell(list(values.values()), digits) if values else ""

    def ratios(self, over, under):
        return [over[number] / under[number] for number in over if number in under]

    def ratio(self, over, under):
        ratios = self.ratios(over, under)
        return cell(ratios) if ratios else ""


def table(head, rows):
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")


def report_goals(results):
    rows = []

    def row(what, over, under, goal, holds):
        if ratios := results.ratios(over, under):
            met = "yes" if holds(sorted(ratios)[len(ratios) // 2]) else "**no**"
            rows.append((what, goal, cell(ratios), met))

    for group, operation, driver, floor, most in GOALS:
        ours, floors = results.values(RUST, group, operation), results.values(driver, group, floor)
        row(f"{operation} / {driver}'s", ours, floors, f"at most {most}", lambda ratio, most=most: ratio <= most)
    short, long = (results.values(RUST, "scale", "get_latest", level) for level in (100, 5000))
    row("get_latest, 5,000 steps / 100", long, short, "0.8 to 1.2", lambda ratio: 0.8 <= ratio <= 1.2)
    steps = results.values(RUST, "conc", "step", 32, what="steps_s")
    floor = results.values(PGBENCH, "conc", "step", 32, what="steps_s")
    row("steps/s of 32 tasks / pgbench's", steps, floor, "at least 0.85", lambda ratio: ratio >= 0.85)
    python = results.values(POOL, "conc", "step", 32, what="steps_s")
    row(f"steps/s of 32 tasks / {POOL}'s", steps, python, "at least 5", lambda ratio: ratio >= 5)
    ours, python = (results.values(driver, "chat", "step", what="client_cpu_ms") for driver in (RUST, POOL))
    row(f"client CPU of a step, {POOL}'s / ours", python, ours, "at least 5", lambda ratio: ratio >= 5)
    ours, python = (results.values(driver, "conc", "step", 32, what="client_cpu_ms") for driver in (RUST, POOL))
    row("the same of 32 tasks", python, ours, "at least 5", lambda ratio: ratio >= 5)
    ours = results.values(RUST, "store", "list_namespaces")
    for driver in (BLOCKING, POOL):
        python = results.values(driver, "store", "list_namespaces")
        row(f"list_namespaces, {driver}'s / ours", python, ours, "at least 20", lambda ratio: ratio >= 20)
    if rows:
        table(("what", "goal", "ratio within rounds", "met"), rows)


def report_group(results, group, level, what="p50_ms"):
    """Operations by drivers, with the ratios of the others to ours."""
    drivers = [driver for driver in DRIVERS[group] if results.of(driver, group, level)]
    operations = dict.fromkeys(name for line in results.of(RUST, group, level) for name in line["ops"])
    rows = []
    for operation in operations:
        plain = operation.removesuffix("_decoded").removesuffix("_encoded")
        cells = [results.shown(RUST, group, operation, level, what=what)]
        ours = results.values(RUST, group, operation, level, what=what)
        for driver in drivers[1:]:
            theirs = results.values(driver, group, plain, level, what=what)
            cells.append(f"{cell(list(theirs.values()), 3)}; {results.ratio(theirs, ours)}" if theirs else "")
        rows.append((operation, *cells))
    if rows:
        print(f"\nGroup {group}{f', {level:,} steps' if level else ''}, {what.replace('_', ' ')}")
        table(("operation", RUST, *(f"{driver}; / ours" for driver in drivers[1:])), rows)


def report_wheel(results):
    """The wheel against Python's: the ratio of latencies, and of steps per second."""
    rows = []
    for group in ("chat", "store"):
        operations = dict.fromkeys(name for line in results.of(WHEEL_SYNC, group) for name in line["ops"])
        for operation in operations:
            cells = []
            for ours, theirs in ((WHEEL_SYNC, BLOCKING), (WHEEL_ASYNC, POOL)):
                for what in ("p50_ms", "client_cpu_ms"):
                    mine, other = (results.values(name, group, operation, what=what) for name in (ours, theirs))
                    cells.append(f"{cell(list(mine.values()), 3)}; {results.ratio(other, mine)}" if mine else "")
            rows.append((operation, *cells))
    if rows:
        whats = ("p50 in ms", "client CPU in ms")
        pairs = ((WHEEL_SYNC, BLOCKING), (WHEEL_ASYNC, POOL))
        table(("operation", *(f"{ours}, {what}; {theirs} / it" for ours, theirs in pairs for what in whats)), rows)
    rows = []
    for level in LEVELS["conc"]:
        cells = []
        for driver in WHEEL_DRIVERS:
            values = results.values(driver, "conc", "step", level, what="steps_s")
            processor = results.shown(driver, "conc", "step", level, what="client_cpu_ms")
            cells.append(f"{cell(list(values.values()), 0)}; {processor}" if values else "")
        ours, theirs = (results.values(name, "conc", "step", level, what="steps_s") for name in (WHEEL_ASYNC, POOL))
        if any(cells):
            rows.append((level, *cells, results.ratio(ours, theirs)))
    if rows:
        print("\nSteps a second of tasks at the same time; client CPU of a step in ms")
        table(("tasks", *WHEEL_DRIVERS, f"{WHEEL_ASYNC} / {POOL}"), rows)


def report_conc(results):
    rows = []
    for level in LEVELS["conc"]:
        ours = results.values(RUST, "conc", "step", level, what="steps_s")
        if not ours:
            continue
        cells = [cell(list(ours.values()), 0)]
        for driver in DRIVERS["conc"][1:]:
            theirs = results.values(driver, "conc", "step", level, what="steps_s")
            cells.append(f"{cell(list(theirs.values()), 0)}; {results.ratio(ours, theirs)}" if theirs else "")
        cells.append(results.shown(RUST, "conc", "step", level, what="p50_ms"))
        cells.append(results.shown(RUST, "conc", "step", level, what="client_cpu_ms"))
        rows.append((level, *cells))
    if rows:
        print("\nGroup conc, steps a second")
        others = (f"{driver}; ours /" for driver in DRIVERS["conc"][1:])
        table(("tasks", RUST, *others, "step, p50 in ms", "client CPU of a step in ms"), rows)


def report(lines):
    if not lines:
        raise SystemExit("no measurement is left")
    results = Results(lines)
    syncs = sorted({line["sync"] for line in lines})
    rounds = len({line["round"] for line in lines})
    disk = cell([line["disk_sync_ms"] for line in lines], 3)
    print(f"synchronous_commit {', '.join(syncs)}; median of {rounds} rounds (lowest to highest)")
    print(f"8 KiB written and synced: {disk} ms")
    if any(line["impl"] == WHEEL_SYNC for line in lines):
        report_wheel(results)
        return
    report_goals(results)
    for group in ("chat", "big", "scale", "store"):
        for level in LEVELS[group]:
            report_group(results, group, level)
    for group in ("chat", "store"):
        report_group(results, group, None, "client_cpu_ms")
    report_conc(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", help="the Rust driver")
    parser.add_argument("--rust", nargs=argparse.REMAINDER, default=[], help="more arguments for our own runs; last")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sync", choices=("on", "off"), default="on", help="synchronous_commit")
    parser.add_argument("--groups", nargs="+", choices=tuple(LEVELS), default=SAVER_GROUPS)
    parser.add_argument("--only", nargs="+", choices=sorted({*WHEEL_DRIVERS, *(name for all_ in DRIVERS.values() for name in all_)}))
    parser.add_argument("--wheel", action="store_true", help="measures the wheel's savers and stores next to Python's")
    parser.add_argument("--seconds", type=float, default=5, help="the duration of each level")
    parser.add_argument(
        "--disk-ms",
        type=float,
        default=float("inf"),
        help="repeat a measurement, a few times, before or after which 8 KiB took longer to be synced; leave it out then",
    )
    parser.add_argument("--save", metavar="FILE", help="adds each measurement to this file")
    parser.add_argument("--report", nargs="+", metavar="FILE", help="prints the tables of saved measurements")
    parser.add_argument("--drive", metavar="DRIVER", help="one measurement of Python's; the data comes on stdin")
    parser.add_argument("--group")
    parser.add_argument("--level", type=int)
    arguments = parser.parse_args()
    if arguments.drive:
        chats = [json.loads(line) for line in sys.stdin]
        print(json.dumps(drive(arguments, chats)))
        return
    lines = []
    for name in arguments.report or []:
        with open(name) as file:
            lines += [json.loads(line) for line in file]
    if not arguments.report:
        if not arguments.workload or arguments.rounds < 1:
            parser.error("--workload and at least one round are needed")
        data = {}
        for group in arguments.groups:
            command = [arguments.workload, "--group", "items" if group == "store" else "data"]
            data[group] = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        for number in range(arguments.rounds):
            lines += one_round(arguments, number, data)
    report([line for line in lines if line["disk_sync_ms"] <= arguments.disk_ms])


if __name__ == "__main__":
    main()
