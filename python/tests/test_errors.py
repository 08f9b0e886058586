"""Invalid input: the exception that a user of LangGraph expects, with a message that says what to do."""

import copy
import os
import pickle
import socket
import sqlite3
import subprocess
import sys
from collections import UserList
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import POSTGRES, Flow, Kind, kinds, make_url, open_at, put, server_url, thread
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph_ckpt import InMemorySaver, MongoSaver, PostgresCache, PostgresSaver, PostgresStore, SqliteSaver


@kinds("postgres", "redis")
def test_before_setup(kind: Kind, place: str, flow: Flow) -> None:
    with open_at(kind, place) as saver:
        for call in (
            lambda: flow(saver).get_tuple(thread("t")),
            lambda: flow(saver).list(thread("t")),
            lambda: put(flow, saver, thread("t"), {"value": [1]}),
            lambda: flow(saver).delete_thread("t"),
        ):
            with pytest.raises(RuntimeError, match=r"setup\(\)") as caught:
                call()
            assert caught.value.kind == "schema"  # type: ignore[attr-defined]
            assert caught.value.retryable is False  # type: ignore[attr-defined]
        flow(saver).setup()
        put(flow, saver, thread("t"), {"value": [1]})
        assert flow(saver).get_tuple(thread("t")).checkpoint["channel_values"] == {"value": [1]}


@kinds("memory", "sqlite", "mongo")
def test_no_setup_is_needed(kind: Kind, place: str, flow: Flow) -> None:
    """Like Python's savers."""
    with open_at(kind, place) as saver:
        assert flow(saver).get_tuple(thread("t")) is None
        put(flow, saver, thread("t"), {"value": [1]})
        assert flow(saver).get_tuple(thread("t")).checkpoint["channel_values"] == {"value": [1]}


def test_setup_again_and_again(kind: Kind, place: str, flow: Flow) -> None:
    with open_at(kind, place) as saver:
        flow(saver).setup()
        put(flow, saver, thread("t"), {"value": [1]})
        flow(saver).setup()
        assert flow(saver).get_tuple(thread("t")).checkpoint["channel_values"] == {"value": [1]}


def test_a_closed_saver(saver: Any, flow: Flow) -> None:
    stored = put(flow, saver, thread("t"), {"value": [1]})
    flow_close(flow, saver)
    for call in (
        lambda: flow(saver).get_tuple(thread("t")),
        lambda: flow(saver).list(thread("t")),
        lambda: flow(saver).list(None),
        lambda: put(flow, saver, thread("t"), {"value": [1]}),
        lambda: flow(saver).put_writes(stored, [("value", 1)], "task"),
        lambda: flow(saver).delete_thread("t"),
        lambda: flow(saver).copy_thread("t", "u"),
        lambda: flow(saver).prune(["t"]),
        lambda: flow(saver).delete_for_runs(["r"]),
        lambda: flow(saver).get_delta_channel_history(config=stored, channels=["value"]),
        lambda: flow(saver).setup(),
    ):
        with pytest.raises(RuntimeError, match="closed"):
            call()
    # Closing is idempotent, sync and async.
    saver.close()
    flow_close(flow, saver)


def flow_close(flow: Flow, saver: Any) -> None:
    if flow.is_async:
        flow.run(saver.aclose())
    else:
        saver.close()


def test_a_saver_after_its_with_block(kind: Kind, place: str, flow: Flow) -> None:
    with open_at(kind, place) as saver:
        saver.setup()
    with pytest.raises(RuntimeError, match="closed"):
        flow(saver).get_tuple(thread("t"))


def test_an_exception_leaves_the_with_block(kind: Kind, place: str) -> None:
    with pytest.raises(ZeroDivisionError):
        with open_at(kind, place):
            _ = 1 / 0


NOWHERE: list[dict[str, Any]] = [{"configurable": {}}, {"configurable": {"checkpoint_ns": ""}}, {}]


@pytest.mark.parametrize("config", NOWHERE, ids=["nothing", "namespace", "no-configurable"])
def test_without_a_thread_id(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    wanted = "thread_id" if "configurable" in config else "configurable"
    checkpoint = empty_checkpoint()
    for call in (
        lambda: flow(saver).get_tuple(config),
        lambda: flow(saver).put(config, checkpoint, {"step": 1}, {}),
        lambda: flow(saver).put_writes(config, [("value", 1)], "task"),
    ):
        with pytest.raises(KeyError, match=wanted):
            call()
    assert flow(saver).list(None) == []


def test_a_graph_without_a_thread_id(saver: Any, flow: Flow) -> None:
    """LangGraph checks it before the saver does."""
    builder = StateGraph(MessagesState)
    builder.add_node("node", lambda state: {"messages": []})
    builder.add_edge(START, "node")
    with pytest.raises(ValueError, match="thread_id"):
        flow(builder.compile(checkpointer=saver)).invoke({"messages": []})


def test_writes_without_a_checkpoint_id(saver: Any, flow: Flow) -> None:
    with pytest.raises(KeyError, match="checkpoint_id"):
        flow(saver).put_writes(thread("t", ""), [("value", 1)], "task")


def test_writes_are_any_sequences_of_two(saver: Any, flow: Flow) -> None:
    """LangGraph's caches return lists."""
    stored = put(flow, saver, thread("t"), {"value": [1]})
    writes = [["a", [1]], ("b", "text"), UserList(["c", None])]
    flow(saver).put_writes(stored, writes, "task")
    assert flow(saver).get_tuple(stored).pending_writes == [("task", "a", [1]), ("task", "b", "text"), ("task", "c", None)]


@pytest.mark.parametrize("write", ["ab", ["a"], ["a", 1, 2], {"a", "b"}, {"a": 1, "b": 2}, None, ["a", 1, 2, 3]], ids=str)
def test_other_writes_are_rejected(saver: Any, flow: Flow, write: Any) -> None:
    stored = put(flow, saver, thread("t"), {"value": [1]})
    with pytest.raises(TypeError, match=f"a pair of channel and value, not {type(write).__name__}"):
        flow(saver).put_writes(stored, [("good", 1), write], "task")
    assert flow(saver).get_tuple(stored).pending_writes == []


def test_a_checkpoint_without_an_id(saver: Any, flow: Flow) -> None:
    checkpoint: dict[str, Any] = {**empty_checkpoint()}
    del checkpoint["id"]
    with pytest.raises(KeyError, match="id"):
        flow(saver).put(thread("t", ""), checkpoint, {"step": 1}, {})


def test_what_cannot_be_serialized(saver: Any, flow: Flow) -> None:
    """The serializer's own exception, and nothing is stored."""
    with pytest.raises(TypeError, match="serializable"):
        put(flow, saver, thread("t"), {"good": [1], "bad": [object()]})
    assert flow(saver).get_tuple(thread("t")) is None
    stored = put(flow, saver, thread("t"), {"good": [1]})
    with pytest.raises(TypeError, match="serializable"):
        flow(saver).put_writes(stored, [("good", 1), ("bad", object())], "task")
    assert flow(saver).get_tuple(thread("t")).pending_writes == []


class Failing:
    """A serde that fails."""

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        raise ZeroDivisionError("in dumps_typed")

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        raise ZeroDivisionError("in loads_typed")


def test_exceptions_of_a_serde_pass(saver: Any, flow: Flow) -> None:
    put(flow, saver, thread("t"), {"value": [1]})
    broken = copy.copy(saver)
    broken.serde = Failing()
    with pytest.raises(ZeroDivisionError, match="in loads_typed"):
        flow(broken).get_tuple(thread("t"))
    with pytest.raises(ZeroDivisionError, match="in loads_typed"):
        flow(broken).list(thread("t"))
    with pytest.raises(ZeroDivisionError, match="in dumps_typed"):
        put(flow, broken, thread("u"), {"value": [1]})
    assert flow(saver).get_tuple(thread("u")) is None
    assert flow(saver).get_tuple(thread("t")).checkpoint["channel_values"] == {"value": [1]}


@pytest.mark.parametrize(
    ("saver", "url", "wanted"),
    [
        (SqliteSaver, "postgres://user:hunter2@127.0.0.1/db", "PostgresSaver"),
        (SqliteSaver, "postgresql://user:hunter2@127.0.0.1/db", "PostgresSaver"),
        (PostgresSaver, "sqlite:///some/file.sqlite", "SqliteSaver"),
        (PostgresSaver, "mysql://user:hunter2@127.0.0.1/db", "mysql|postgres"),
        (SqliteSaver, "mongodb://u:hunter2@127.0.0.1/db", "MongoSaver"),
        (MongoSaver, "postgresql://user:hunter2@127.0.0.1/db", "PostgresSaver"),
        (SqliteSaver, "redis://:hunter2@127.0.0.1:6379", "redis|file"),
        (PostgresSaver, "agents.sqlite", r"has no value \(no = sign\)"),
        (PostgresSaver, "host=h password='hunter2", "no closing quote"),
    ],
)
def test_the_url_of_another_backend(saver: Any, url: str, wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted) as caught:
        saver.from_conn_string(url)
    assert "hunter2" not in str(caught.value)


def test_missing_connection_parameters_come_from_the_environment(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in psycopg, so that Python's own savers can be replaced."""
    parts = psycopg.conninfo.conninfo_to_dict(postgres_url)
    password = parts.pop("password")
    strings = [psycopg.conninfo.make_conninfo(**parts), "gssencmode=disable"]
    monkeypatch.setenv("PGPASSWORD", password)
    for conn_string in strings:
        with PostgresSaver.from_conn_string(conn_string) as saver:
            saver.setup()
            assert saver.get_tuple(thread("t")) is None
        with PostgresStore.from_conn_string(conn_string) as store:
            store.setup()
            assert store.get(("a",), "b") is None
        for name, value in parts.items():
            variable = {"dbname": "DATABASE"}.get(name, name.upper())
            monkeypatch.setenv(f"PG{variable}", str(value))


def test_an_unreachable_server(flow: Flow) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with PostgresSaver.from_conn_string(f"postgres://user:hunter2@127.0.0.1:{port}/db") as saver:
        for call in (lambda: flow(saver).setup(), lambda: flow(saver).get_tuple(thread("t"))):
            with pytest.raises(ConnectionError) as caught:
                call()
            assert caught.value.kind == "unavailable"  # type: ignore[attr-defined]
            assert caught.value.retryable is True  # type: ignore[attr-defined]
            assert "hunter2" not in f"{caught.value}{caught.value.__cause__}"


REFUSED = [PostgresSaver, PostgresStore, PostgresCache]


@pytest.mark.parametrize("made", REFUSED, ids=lambda one: one.__name__)
def test_a_wrong_password(made: Any, flow: Flow) -> None:
    url = server_url(POSTGRES)
    start, _, end = url.partition("@")
    wrong = f"{start.rpartition(':')[0]}:hunter2@{end}"
    with made.from_conn_string(wrong) as opened, pytest.raises(ConnectionError, match="(?i)password") as caught:
        flow(opened).setup()
    assert isinstance(caught.value, psycopg.OperationalError)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("made", REFUSED, ids=lambda one: one.__name__)
def test_a_missing_database(made: Any, flow: Flow) -> None:
    url = make_url(server_url(POSTGRES), dbname="no_such_database")
    with made.from_conn_string(url) as opened, pytest.raises(ConnectionError, match="no_such_database") as caught:
        flow(opened).setup()
    # What code for LangGraph's classes catches.
    assert isinstance(caught.value, psycopg.OperationalError)
    assert (caught.value.kind, caught.value.retryable) == ("invalid configuration", False)  # type: ignore[attr-defined]


def test_a_missing_privilege_is_no_connection_error(postgres_url: str, flow: Flow) -> None:
    role = f"reader_{os.urandom(6).hex()}"
    schema = psycopg.conninfo.conninfo_to_dict(postgres_url)["options"].partition("=")[2].partition(",")[0]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
        try:
            connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
            with PostgresSaver(postgres_url) as saver:
                saver.setup()
            conn_string = psycopg.conninfo.make_conninfo(postgres_url, user=role, password="secret")
            with PostgresSaver(conn_string) as saver, pytest.raises(ValueError, match="privilege"):
                flow(saver).get_tuple(thread("t"))
        finally:
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")


def test_errors_are_the_drivers_too(postgres_url: str, sqlite_path: str, flow: Flow) -> None:
    """Code for LangGraph's classes catches psycopg's and sqlite3's `OperationalError`."""
    with PostgresSaver(postgres_url, statement_timeout=0.2) as saver, psycopg.connect(postgres_url) as connection:
        saver.setup()
        connection.execute("LOCK TABLE checkpoints IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(TimeoutError, match="statement_timeout") as caught:
            flow(saver).get_tuple(thread("t"))
        assert isinstance(caught.value, psycopg.OperationalError)
    with SqliteSaver(sqlite_path) as saver:
        saver.setup()
    holder = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('BEGIN IMMEDIATE'); print(1, flush=True); input()"
    # In another process, because two libraries in one do not see each other's locks.
    with subprocess.Popen(
        [sys.executable, "-c", holder, sqlite_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as locking:
        assert locking.stdout is not None and locking.stdout.readline() == b"1\n"
        with SqliteSaver(sqlite_path, busy_timeout=0.05) as saver, pytest.raises(TimeoutError) as caught:
            put(flow, saver, thread("t"), {"value": [1]})
        locking.communicate(b"\n")
    assert isinstance(caught.value, sqlite3.OperationalError)
    assert caught.value.retryable is True  # type: ignore[attr-defined]
    # It can be sent to another process.
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is TimeoutError and again.args == caught.value.args and again.kind == "timeout"


def test_without_a_driver_errors_are_pythons() -> None:
    code = (
        "import sys; from langgraph_ckpt import PostgresSaver\n"
        "assert 'psycopg' not in sys.modules\n"
        "try: PostgresSaver('postgres://u@127.0.0.1:1/d', max_retries=0).setup()\n"
        "except ConnectionError as error: assert type(error) is ConnectionError, type(error)\n"
        "else: raise AssertionError('it connected')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_file_that_is_no_database(tmp_path: Path, flow: Flow) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Sir or Madam, " * 100)
    with pytest.raises((RuntimeError, ValueError, ConnectionError), match="database"):
        with SqliteSaver.from_conn_string(str(path)) as saver:
            flow(saver).setup()
    assert path.read_text().startswith("Dear")


def test_a_missing_folder(tmp_path: Path, flow: Flow) -> None:
    with pytest.raises((RuntimeError, ValueError, ConnectionError), match="directory does not exist"):
        with SqliteSaver.from_conn_string(str(tmp_path / "no" / "such" / "folder.sqlite")) as saver:
            flow(saver).setup()


def test_a_database_of_another_kind(tmp_path: Path, flow: Flow) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE checkpoints (something TEXT)")
    with pytest.raises(RuntimeError, match="checkpoints"):
        with SqliteSaver.from_conn_string(str(path)) as saver:
            flow(saver).setup()
            flow(saver).get_tuple(thread("t"))


@pytest.mark.parametrize("limit", [-1, "many"])
def test_invalid_limits(saver: Any, flow: Flow, limit: Any) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        flow(saver).list(thread("t"), limit=limit)
    assert flow(saver).list(thread("t"), limit=0) == []


def test_an_unknown_strategy(saver: Any, flow: Flow) -> None:
    put(flow, saver, thread("t"), {"value": [1]})
    with pytest.raises(ValueError, match="keep_latest"):
        flow(saver).prune(["t"], strategy="everything")
    assert flow(saver).get_tuple(thread("t")) is not None


def test_a_config_for_no_checkpoint(saver: Any, flow: Flow) -> None:
    put(flow, saver, thread("t"), {"value": [1]})
    assert flow(saver).get_tuple(thread("t", "", checkpoint_id="no-such-checkpoint")) is None
    assert flow(saver).list(thread("t", "", checkpoint_id="no-such-checkpoint")) == []


def test_unknown_options(kind: Kind, place: str) -> None:
    with pytest.raises(TypeError):
        open_at(kind, place, no_such_option=True)
    with pytest.raises((TypeError, ValueError)):
        open_at(kind, place, cipher="secret")


def test_savers_in_memory_share_nothing(flow: Flow) -> None:
    with InMemorySaver() as left, InMemorySaver() as right:
        put(flow, left, thread("t"), {"value": [1]})
        assert flow(right).get_tuple(thread("t")) is None
