"""Threads, event loops, forks, signals, the end of the process: a saver lives in a Python program."""

import asyncio
import contextlib
import gc
import operator
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from conftest import Flow, Kind, kinds, open_at, put, thread
from langgraph.graph import START, StateGraph
from test_values import Reversing

try:
    import uvloop
except ImportError:  # There is none for Windows.
    uvloop = None  # type: ignore[assignment]

LOOPS: dict[str, Any] = {"asyncio": asyncio.new_event_loop}
if uvloop is not None:
    LOOPS["uvloop"] = uvloop.new_event_loop


@pytest.fixture(params=list(LOOPS))
def loop(request: pytest.FixtureRequest) -> Iterator[Any]:
    loop = LOOPS[request.param]()
    try:
        yield loop
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def three_steps(saver: Any) -> Any:
    async def step(state: State) -> State:
        await asyncio.sleep(0)
        return {"log": [f"step {len(state['log'])}"]}

    builder = StateGraph(State)
    for name, after in [("a", START), ("b", "a"), ("c", "b")]:
        builder.add_node(name, step)
        builder.add_edge(after, name)
    return builder.compile(checkpointer=saver)


def test_32_tasks_at_a_time(saver: Any, loop: Any) -> None:
    graph = three_steps(saver)

    async def talk(number: int) -> None:
        for turn in range(2):
            result = await graph.ainvoke({"log": [f"{number} {turn}"]}, thread(f"t{number}"))
        wanted = []
        for turn in range(2):
            wanted += [f"{number} {turn}", *(f"step {4 * turn + 1 + i}" for i in range(3))]
        assert result["log"] == wanted
        assert len([one async for one in saver.alist(thread(f"t{number}"))]) == 10

    async def main() -> None:
        await asyncio.gather(*(talk(number) for number in range(32)))

    loop.run_until_complete(main())
    assert len(list(saver.list(None))) == 320


def test_16_threads(saver: Any) -> None:
    def talk(number: int) -> list[str]:
        for turn in range(3):
            stored = put(Flow(None), saver, thread(f"t{number}"), {"value": [f"{number} {turn}"]})
            saver.put_writes(stored, [("value", turn)], "task")
        return saver.get_tuple(thread(f"t{number}")).checkpoint["channel_values"]["value"]

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(talk, range(64)))
    # All three have one version of the channel, of which the first counts where values are kept apart.
    assert [one[0].split()[0] for one in found] == [str(number) for number in range(64)]
    assert len(list(saver.list(None))) == 192


def test_sync_calls_in_a_running_loop(saver: Any, loop: Any) -> None:
    async def main() -> None:
        put(Flow(None), saver, thread("t"), {"value": [1]})
        assert saver.get_tuple(thread("t")).checkpoint["channel_values"] == {"value": [1]}
        # With asynchronous ones under way, on the same loop.
        tasks = [asyncio.create_task(saver.aget_tuple(thread("t"))) for _ in range(8)]
        for _ in range(8):
            await asyncio.sleep(0)
            assert len(list(saver.list(thread("t")))) == 1
        for found in await asyncio.gather(*tasks):
            assert found.checkpoint["channel_values"] == {"value": [1]}
        saver.delete_thread("t")
        assert await saver.aget_tuple(thread("t")) is None

    loop.run_until_complete(main())


def test_one_saver_on_several_loops(saver: Any) -> None:
    graph = three_steps(saver)
    for turn, make in enumerate([*LOOPS.values()] * 2):
        loop = make()
        result = loop.run_until_complete(graph.ainvoke({"log": ["in"]}, thread("t")))
        assert len(result["log"]) == 4 * (turn + 1)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    def in_a_thread() -> int:
        return len(asyncio.run(graph.ainvoke({"log": ["in"]}, thread("t")))["log"])

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(in_a_thread).result() == 4 * (turn + 2)


def test_a_list_that_is_not_read_to_its_end(saver: Any, flow: Flow) -> None:
    for number in range(5):
        put(flow, saver, thread(f"t{number}"), {"value": [number]})
    listing = saver.list(None)
    first = next(listing).config["configurable"]["thread_id"]
    newest = "meanwhile"
    # Others may write meanwhile.
    put(flow, saver, thread(newest), {"value": [1]})
    del listing

    async def first_of() -> Any:
        async for found in saver.alist(None):
            return found

    if flow.is_async:
        assert flow.run(first_of()).config["configurable"]["thread_id"] == newest
    assert first == "t4"
    assert len(flow(saver).list(None)) == 6
    # As many lists as one likes, unread.
    unread = [saver.list(None) for _ in range(50)]
    assert {next(one).config["configurable"]["thread_id"] for one in unread} == {newest}
    put(flow, saver, thread("later"), {"value": [1]})


def test_a_list_in_a_list(saver: Any, flow: Flow) -> None:
    for number in range(3):
        put(flow, saver, thread(f"t{number}"), {"value": [number]})
    seen = []
    for outer in saver.list(None):
        seen += [inner.config for inner in saver.list(outer.config)]
    assert len(seen) == 3


def test_a_saver_that_is_never_closed(kind: Kind, place: str) -> None:
    saver = open_at(kind, place)
    saver.setup()
    assert saver.get_tuple(thread("t")) is None
    del saver
    gc.collect()
    # Its data is free for others.
    with open_at(kind, place) as saver:
        saver.setup()
        put(Flow(None), saver, thread("t"), {"value": [1]})


def test_a_saver_is_dropped_while_a_cancelled_call_needs_its_serde(kind: Kind, place: str, loop: Any) -> None:
    """To prune, SQLite's writer asks the serde what a checkpoint holds: it is not waited for under the GIL."""

    async def main() -> None:
        for _ in range(7):
            saver = open_at(kind, place, serde=Reversing())
            await saver.asetup()
            checkpoints = [{"value": list(range(200))}] * 10
            for values in checkpoints:
                await asyncio.to_thread(put, Flow(None), saver, thread("t"), values)
            task = asyncio.ensure_future(saver.aprune(["t"]))
            await asyncio.sleep(0)
            task.cancel()
            del saver
            with contextlib.suppress(asyncio.CancelledError):
                await task
            del task
            gc.collect()

    loop.run_until_complete(main())


class Lock:
    """A lock held by another connection, so that writes wait."""

    def __init__(self, place: str) -> None:
        self.place = place

    def until_waited_for(self) -> None:
        """Waits until a call waits for it."""
        if not self.place.startswith("postgres"):
            # Waiting for a file lock is not observable.
            time.sleep(0.3)
            return
        waiting = """
            SELECT 1 FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock' AND backend_type = 'client backend'
        """
        with psycopg.connect(self.place, autocommit=True) as connection:
            for _ in range(1000):
                if connection.execute(waiting).fetchone():
                    return
                time.sleep(0.01)
        pytest.fail("nobody waits")


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
connection.execute("ROLLBACK")
connection.close()
"""


@pytest.fixture
def lock(kind: Kind, place: str) -> Callable[[], contextlib.AbstractContextManager[Lock]]:
    @contextlib.contextmanager
    def held() -> Iterator[Lock]:
        if kind.name == "sqlite":
            # By another process: two SQLite libraries in one process do not see each other's locks.
            command = [sys.executable, "-c", HOLDER, place]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
                assert holder.stdin is not None and holder.stdout is not None
                assert holder.stdout.readline() == "held\n"
                yield Lock(place)
                holder.stdin.close()
                assert holder.wait() == 0
        else:
            with psycopg.connect(place) as connection:
                connection.execute("LOCK TABLE checkpoints IN ACCESS EXCLUSIVE MODE")
                yield Lock(place)
                connection.rollback()

    return held


#: The backends on which a test can hold up its own writes, and nobody else's.
LOCKING = kinds("sqlite", "postgres")

Held = Callable[[], contextlib.AbstractContextManager[Lock]]


@LOCKING
def test_cancellation(saver: Any, loop: Any, lock: Held) -> None:
    """A cancelled call ends while the lock is still held. Its write is applied completely or not at all."""
    before = put(Flow(loop), saver, thread("t"), {"value": ["before"]})

    async def main() -> None:
        for calls in (1, 8):
            with lock() as held:
                task = asyncio.gather(*(saver.adelete_thread("t") for _ in range(calls)))
                await asyncio.get_running_loop().run_in_executor(None, held.until_waited_for)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            found = await saver.aget_tuple(thread("t"))
            assert found is None or found.config == before
        await saver.adelete_thread("t")
        assert await saver.aget_tuple(thread("t")) is None

    loop.run_until_complete(main())


def test_cancellation_at_any_moment(saver: Any, loop: Any) -> None:
    """Each checkpoint is complete or absent, and the saver still works."""
    graph = three_steps(saver)

    async def main() -> None:
        for turns in range(40):
            task = asyncio.ensure_future(graph.ainvoke({"log": ["in"]}, thread(f"t{turns}")))
            for _ in range(turns):
                await asyncio.sleep(0.0005)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for turns in range(40):
            async for snapshot in graph.aget_state_history(thread(f"t{turns}")):
                wanted = ["in", "step 1", "step 2", "step 3"][: snapshot.metadata["step"] + 1]
                assert snapshot.values["log"] == wanted
            result = await graph.ainvoke({"log": ["in"]}, thread(f"t{turns}"))
            assert result["log"][-4:-3] == ["in"]

    loop.run_until_complete(main())


def test_close_waits_for_calls(kind: Kind, place: str, loop: Any) -> None:
    """And a running list ends."""

    async def main() -> None:
        saver = open_at(kind, place)
        await saver.asetup()
        stored = put(Flow(None), saver, thread("t"), {"value": [1]})
        put(Flow(None), saver, stored, {"value": [2]})
        listing, alisting = saver.list(None), saver.alist(None)
        next(listing)
        await anext(alisting)
        writes = [("value", "x" * 1000)]
        tasks = [asyncio.ensure_future(saver.aput_writes(stored, writes, f"task {n}")) for n in range(100)]
        await asyncio.sleep(0)
        await saver.aclose()
        if kind.name == "sqlite":
            # The log is in the file, and nobody has it open.
            assert os.listdir(os.path.dirname(place)) == [os.path.basename(place)]
        with pytest.raises(RuntimeError, match="closed"):
            next(listing)
        with pytest.raises(RuntimeError, match="closed"):
            await anext(alisting)
        assert await asyncio.gather(*tasks) == [None] * 100
        with pytest.raises(RuntimeError, match="closed"):
            await saver.aget_tuple(thread("t"))
        await saver.aclose()
        if kind.lasting:
            with open_at(kind, place) as again:
                assert len(again.get_tuple(stored).pending_writes) == 100

    loop.run_until_complete(main())


@kinds("sqlite")
def test_everybody_who_closes_waits_for_the_end(kind: Kind, place: str, loop: Any) -> None:
    """Two who close at once: for both the log is in the file, and nobody has it open."""

    async def close(saver: Any) -> list[str]:
        await saver.aclose()
        return os.listdir(os.path.dirname(place))

    async def main() -> None:
        saver = open_at(kind, place)
        await saver.asetup()
        stored = put(Flow(None), saver, thread("t"), {"value": [1]})
        writes = [("value", "x" * 1000)]
        tasks = [asyncio.ensure_future(saver.aput_writes(stored, writes, f"task {n}")) for n in range(100)]
        await asyncio.sleep(0)
        assert await asyncio.gather(close(saver), close(saver)) == [[os.path.basename(place)]] * 2
        assert await asyncio.gather(*tasks) == [None] * 100

    loop.run_until_complete(main())


@LOCKING
def test_a_cancelled_close_goes_on(kind: Kind, place: str, loop: Any, lock: Held) -> None:
    async def main() -> None:
        saver = open_at(kind, place)
        await saver.asetup()
        with lock() as held:
            delete = asyncio.ensure_future(saver.adelete_thread("t"))
            await asyncio.get_running_loop().run_in_executor(None, held.until_waited_for)
            closing = asyncio.ensure_future(saver.aclose())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert not delete.done()
        await delete
        with pytest.raises(RuntimeError, match="closed"):
            for _ in range(1000):
                await saver.aget_tuple(thread("t"))
                await asyncio.sleep(0.01)
        await saver.aclose()

    loop.run_until_complete(main())


@LOCKING
def test_a_timeout(kind: Kind, saver: Any, loop: Any, lock: Held) -> None:
    """`asyncio.wait_for` works on our calls."""

    async def main() -> None:
        with lock():
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(saver.adelete_thread("t"), 0.05)
        assert await saver.aget_tuple(thread("t")) is None

    loop.run_until_complete(main())


@LOCKING
def test_the_gil_is_released(kind: Kind, saver: Any, lock: Held) -> None:
    """Other threads run while a call waits."""
    ended = threading.Event()

    def call() -> None:
        saver.delete_thread("t")
        ended.set()

    worker = threading.Thread(target=call)
    with lock() as held:
        worker.start()
        held.until_waited_for()
        assert not ended.is_set()
    worker.join()
    assert ended.is_set()


# The following tests need separate processes.

PREAMBLE = """
import asyncio, os, signal, sys, threading
import langgraph_ckpt
sys.path.insert(0, sys.argv[3])
from conftest import KINDS, Flow, open_at, put, thread
kind = next(kind for kind in KINDS if kind.name == sys.argv[1])
place = sys.argv[2]
def opened():
    saver = open_at(kind, place)
    saver.setup()
    return saver
saver = opened()
"""


def start(kind: Kind, place: str, script: str) -> subprocess.Popen[str]:
    text = PREAMBLE + textwrap.dedent(script)
    command = [sys.executable, "-X", "faulthandler", "-c", text, kind.name, place, os.path.dirname(__file__)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]


def finished(process: subprocess.Popen[str], said: str = "") -> None:
    """It succeeds, and prints nothing else."""
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"it hangs: {out}{err}")
    assert (process.returncode, out.strip(), err.strip()) == (0, said, "")


ENDINGS = {
    "unused": "",
    "sync": "saver.get_tuple(thread('t'))",
    "async": "asyncio.run(saver.aget_tuple(thread('t')))",
    "several": "more = [opened() for _ in range(5)]; [put(Flow(None), one, thread('t'), {'v': [1]}) for one in more]",
    "unread list": """
put(Flow(None), saver, thread('t'), {'v': [1]}); put(Flow(None), saver, thread('u'), {'v': [1]})
listing = saver.list(None)
next(listing)
""",
    "in a with block": "saver.__enter__(); saver.get_tuple(thread('t')); sys.exit(0)",
    "dropped": "put(Flow(None), saver, thread('t'), {'v': [1]}); del saver",
    "in a cycle": "cycle = [saver]; cycle.append(cycle); saver.cycle = cycle",
    "call under way": """
async def main():
    task = asyncio.create_task(saver.aget_tuple(thread('t')))
    await asyncio.sleep(0)
asyncio.run(main())
""",
    "in a thread": """
worker = threading.Thread(target=lambda: [saver.get_tuple(thread('t')) for _ in range(20)])
worker.start()
""",
    "in atexit": "import atexit; atexit.register(lambda: put(Flow(None), saver, thread('t'), {'v': [1]}))",
}


LATE = """
import atexit, time
stop = threading.Event()
def work():
    try:
        while not stop.is_set():
            put(Flow(None), saver, thread('t'), {'v': [1]})
    except RuntimeError as error:
        assert 'exiting' in str(error) or 'closed' in str(error), error
worker = threading.Thread(target=work, daemon=True)
def last():
    stop.set()
    worker.join()
    saver.close()
    saver.close()
    print('ended')
atexit.unregister(langgraph_ckpt.shut_down)
atexit.register(last)
atexit.register(langgraph_ckpt.shut_down)
worker.start()
time.sleep(0.1)
"""


@pytest.mark.parametrize("turn", range(3))
def test_exit_handlers_registered_before_ours_run_after_it(kind: Kind, place: str, turn: int) -> None:
    """It may join a thread in the middle of a call, and close what is closed."""
    finished(start(kind, place, LATE), said="ended")


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_the_end_of_the_process(kind: Kind, place: str, ending: str) -> None:
    """With savers open: no message, no hang, exit code 0."""
    finished(start(kind, place, ENDINGS[ending]))


CLOSED_ON_THE_LOOP = """
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
asked, go_on = threading.Event(), threading.Event()
class Slow(JsonPlusSerializer):
    def dumps_typed(self, value):
        asked.set()
        go_on.wait()
        return super().dumps_typed(value)
slow = open_at(kind, place, serde=Slow())
slow.setup()
go_on.set()
# After a large value the next ones are serialized in another thread.
stored = put(Flow(None), slow, thread('t'), {'v': ['x' * 1_000_000]})
asked.clear()
go_on.clear()
async def main():
    task = asyncio.create_task(slow.aput_writes(stored, [('v', 1)], 'task'))
    await asyncio.to_thread(asked.wait)
    go_on.set()
    slow.close()
    try:
        await task
    except RuntimeError as error:
        print('closed' if 'closed' in str(error) else error)
asyncio.run(main())
"""


def test_close_does_not_wait_for_what_its_own_loop_has_to_start(kind: Kind, place: str) -> None:
    finished(start(kind, place, CLOSED_ON_THE_LOOP), said="closed")


@kinds(lasting=True)
def test_writes_before_the_end_are_durable(kind: Kind, place: str) -> None:
    finished(start(kind, place, "put(Flow(None), saver, thread('t'), {'v': [1]})"))
    with open_at(kind, place) as saver:
        assert saver.get_tuple(thread("t")).checkpoint["channel_values"] == {"v": [1]}


@LOCKING
def test_the_end_while_a_daemon_thread_waits(kind: Kind, place: str, saver: Any, lock: Held) -> None:
    script = """
    threading.Thread(target=saver.delete_thread, args=("t",), daemon=True).start()
    sys.stdin.readline()
    """
    with lock() as held:
        process = start(kind, place, script)
        held.until_waited_for()
        finished_with_a_line(process)


def finished_with_a_line(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()
    finished(process)


FORK = """
put(Flow(None), saver, thread('t'), {'v': ['parent']})
if %(warm)s:
    asyncio.run(saver.aget_tuple(thread('t')))
pid = os.fork()
if pid == 0:
    status = 1
    try:
        for call in (
            lambda: saver.get_tuple(thread('t')),
            lambda: list(saver.list(None)),
            lambda: asyncio.run(saver.aget_tuple(thread('t'))),
            lambda: saver.setup(),
        ):
            try:
                call()
                print('no error')
            except RuntimeError as error:
                assert 'fork' in str(error), error
        saver.close()
        new = opened()
        if kind.lasting:
            assert new.get_tuple(thread('t')).checkpoint['channel_values'] == {'v': ['parent']}
        put(Flow(None), new, thread('c'), {'v': ['child']})
        found = asyncio.run(new.aget_tuple(thread('c')))
        assert found.checkpoint['channel_values'] == {'v': ['child']}
        status = 0
    except BaseException as error:
        print(type(error), error, flush=True)
    sys.stdout.flush()
    if %(leave)s:
        os._exit(status)
    sys.exit(status)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert saver.get_tuple(thread('t')).checkpoint['channel_values'] == {'v': ['parent']}
put(Flow(None), saver, thread('p'), {'v': ['after']})
if kind.lasting:
    assert saver.get_tuple(thread('c')).checkpoint['channel_values'] == {'v': ['child']}
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("leave", [True, False], ids=["_exit", "exit"])
def test_a_fork(kind: Kind, place: str, warm: bool, leave: bool) -> None:
    """The child gets a clear error from its parent's saver, can open its own, and does not affect the parent."""
    finished(start(kind, place, FORK % {"warm": warm, "leave": leave}))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_workers(kind: Kind, place: str) -> None:
    """Like those of a web server: forked before anything is used."""
    script = """
    import multiprocessing

    def work(number):
        with opened() as own:
            put(Flow(None), own, thread(f"w{number}"), {"v": [number]})
            found = asyncio.run(own.aget_tuple(thread(f"w{number}")))
            return found.checkpoint["channel_values"]["v"][0]

    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(work, range(8)) == list(range(8))
    if kind.lasting:
        assert len(list(saver.list(None))) == 8
    """
    finished(start(kind, place, script))


@LOCKING
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send here")
def test_ctrl_c_in_a_sync_call(kind: Kind, place: str, saver: Any, lock: Held) -> None:
    put(Flow(None), saver, thread("t"), {"v": [1]})
    script = """
    # A shell starts what runs in the background with this signal ignored, which is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        print("calls", flush=True)
        saver.delete_thread("t")
        print("not interrupted")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    sys.stdin.readline()
    saver.delete_thread("t")
    assert saver.get_tuple(thread("t")) is None
    """
    with lock() as held:
        process = start(kind, place, script)
        assert process.stdout is not None
        assert process.stdout.readline() == "calls\n"
        held.until_waited_for()
        process.send_signal(signal.SIGINT)
        # The lock is still held, so the signal ended the call.
        assert process.stdout.readline() == "interrupted\n"
    finished_with_a_line(process)


@LOCKING
@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
def test_a_signal_handler_runs_while_a_call_waits(kind: Kind, place: str, saver: Any, lock: Held) -> None:
    script = """
    signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
    print("calls", flush=True)
    saver.delete_thread("t")
    """
    with lock() as held:
        process = start(kind, place, script)
        assert process.stdout is not None
        assert process.stdout.readline() == "calls\n"
        held.until_waited_for()
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "handled\n"
        process.kill()
        process.communicate()
