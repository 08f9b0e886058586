"""Resources of event loops: sockets while a loop lives, nothing after."""

import asyncio
import contextlib
import contextvars
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Flow, kinds, put, thread
from test_runtime import LOOPS

# As many as a saver's connections may be more meanwhile. A pair of sockets with each turn would be many more.
FEW = 6


class WatchesNothing(asyncio.SelectorEventLoop):
    """Like Windows' loop, which cannot watch sockets."""

    def add_reader(self, *_: Any) -> None:
        raise NotImplementedError


@pytest.fixture(params=list(LOOPS))
def make(request: pytest.FixtureRequest) -> Callable[[], Any]:
    return LOOPS[request.param]


def open_files() -> int:
    """Sockets and the like. SQLite's own files come and go as it has to read several things at a time."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += not os.readlink(f"/proc/self/fd/{name}").startswith("/")
    return found


@pytest.fixture
def files(saver: Any) -> Iterator[Callable[[], int]]:
    """The number of files opened since the start."""
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("open files are counted in /proc")

    async def warm() -> None:
        # With the saver's connections, which are opened as they are needed.
        for _ in range(3):
            await asyncio.gather(*(saver.aget_tuple(thread("t")) for _ in range(64)))

    asyncio.run(warm())
    gc.collect()
    before = open_files()
    yield lambda: open_files() - before


def until(reached: Callable[[], bool]) -> bool:
    """Whether it comes so, once the calls under way have ended on the runtime's threads."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        gc.collect()
        if reached():
            return True
        time.sleep(0.05)
    return False


procfs = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are counted in /proc")


@procfs
@kinds(lasting=True)
def test_two_loops_in_turn(saver: Any, make: Callable[[], Any], files: Callable[[], int]) -> None:
    loops = [make(), make()]
    for _ in range(50):
        for loop in loops:
            assert loop.run_until_complete(saver.aget_tuple(thread("t"))) is None
    # Each has files of its own besides.
    assert files() <= 2 * 5 + FEW
    for loop in loops:
        loop.close()
    assert until(lambda: files() <= FEW)


@procfs
@kinds(lasting=True)
def test_a_lasting_loop_beside_short_ones(
    saver: Any, make: Callable[[], Any], files: Callable[[], int]
) -> None:
    lasting = make()
    for _ in range(50):
        for loop in (lasting, make()):
            loop.run_until_complete(saver.aget_tuple(thread("t")))
            if loop is not lasting:
                loop.close()
    assert files() <= 2 * 5 + FEW
    lasting.close()


@procfs
@kinds(lasting=True)
def test_a_loop_that_several_threads_run(
    saver: Any, make: Callable[[], Any], files: Callable[[], int]
) -> None:
    loop = make()
    found = []

    def run() -> None:
        found.append(loop.run_until_complete(saver.aget_tuple(thread("t"))))

    for _ in range(30):
        worker = threading.Thread(target=run)
        worker.start()
        worker.join()
    assert found == [None] * 30
    assert files() <= 5 + FEW
    loop.close()
    assert until(lambda: files() <= FEW)


class Local:
    """What a task holds."""


def leave_a_call_under_way(saver: Any, loop: Any) -> tuple[weakref.ref[Local], bool]:
    """Leaves a task on a loop that never runs again: its local object, and whether it was still running."""
    refs: list[weakref.ref[Local]] = []
    tasks: list[Any] = []

    async def call(local: Local) -> None:
        await saver.aget_tuple(thread("t"))
        del local

    async def main() -> None:
        local = Local()
        refs.append(weakref.ref(local))
        tasks.append(asyncio.ensure_future(call(local)))
        await asyncio.sleep(0)

    loop.run_until_complete(main())
    # What asyncio says of it otherwise is meant for others.
    tasks[0]._log_destroy_pending = False
    return refs[0], not tasks[0].done()


@kinds(lasting=True)
def test_loops_that_end_with_a_call_under_way(
    saver: Any, make: Callable[[], Any], files: Callable[[], int]
) -> None:
    held: list[weakref.ref[Any]] = []
    under_way = 0
    for _ in range(30):
        loop = make()
        local, left = leave_a_call_under_way(saver, loop)
        held += [local, weakref.ref(loop)]
        under_way += left
        loop.close()
        del loop
    assert under_way >= 5
    assert until(lambda: [one() for one in held] == [None] * 60)
    assert until(lambda: files() <= FEW)


@kinds(lasting=True)
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not kept"])
def test_a_task_that_only_its_call_holds(saver: Any, make: Callable[[], Any], kept: bool) -> None:
    """It is not garbage collected while its loop lives."""
    put(Flow(None), saver, thread("t"), {"value": [1]})
    for loop in (make(), WatchesNothing()):
        ended: list[Any] = []

        async def call(ended: list[Any] = ended) -> None:
            ended.append(await saver.aget_tuple(thread("t")))

        async def main(call: Any = call, ended: list[Any] = ended) -> None:
            tasks = [asyncio.ensure_future(call()) for _ in range(8)]
            if not kept:
                tasks.clear()
            for _ in range(3):
                await asyncio.sleep(0)
                gc.collect()
            while len(ended) < 8:
                await asyncio.sleep(0.001)

        loop.run_until_complete(asyncio.wait_for(main(), 20))
        assert [one.checkpoint["channel_values"] for one in ended] == [{"value": [1]}] * 8
        loop.close()


@kinds(lasting=True)
def test_loops_that_watch_no_sockets(saver: Any, files: Callable[[], int]) -> None:
    held: list[weakref.ref[Any]] = []
    for _ in range(30):
        loop = WatchesNothing()

        async def main() -> None:
            calls = (saver.aget_tuple(thread("t")) for _ in range(8))
            assert await asyncio.gather(*calls) == [None] * 8

        for _ in range(2):
            loop.run_until_complete(main())
        held += [weakref.ref(loop), leave_a_call_under_way(saver, loop)[0]]
        loop.close()
        del loop

    def gone() -> bool:
        # What was dropped without the GIL goes with the next call.
        saver.get_tuple(thread("t"))
        return [one() for one in held] == [None] * 60

    assert until(gone)
    assert until(lambda: files() <= FEW)


@kinds(lasting=True)
def test_the_first_callers_context_is_not_kept(saver: Any, make: Callable[[], Any]) -> None:
    loop = make()
    held: contextvars.ContextVar[Any] = contextvars.ContextVar("held")

    async def main() -> weakref.ref[Any]:
        thing = type("Thing", (), {})()
        held.set(thing)
        assert await saver.aget_tuple(thread("t")) is None
        return weakref.ref(thing)

    thing = loop.run_until_complete(main())
    assert until(lambda: thing() is None)
    loop.close()
