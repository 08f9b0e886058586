"""Encryption: LangGraph's serializer and our cipher, each alone."""

import operator
import sqlite3
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from conftest import KINDS, Flow, Kind, async_peer, kinds, mongo_contents, open_at, peer, redis_contents
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from langgraph_ckpt import AsyncPostgresSaver, Cipher, PostgresSaver, SqliteSaver

KEY = bytes(range(32))
OTHER = bytes(range(1, 33))
SECRET = "the-hidden-treasure"


class State(TypedDict, total=False):
    scalar: str
    log: Annotated[list[str], operator.add]


def asking(saver: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("ask", lambda state: {"scalar": SECRET, "log": [f"{SECRET} {interrupt(SECRET)}"]})
    builder.add_edge(START, "ask")
    return builder.compile(checkpointer=saver)


def stored(kind: Kind, place: str) -> bytes:
    """The content of all tables, as bytes."""
    rows: list[Any] = []
    tables = ["checkpoints", "checkpoint_blobs", "checkpoint_writes"]
    if kind.name == "sqlite":
        with sqlite3.connect(place) as connection:
            for table in ("checkpoints", "writes"):
                rows += connection.execute(f"SELECT * FROM {table}").fetchall()
        # And the raw bytes of the file.
        rows.append((Path(place).read_bytes(),))
    elif kind.name == "mongo":
        rows += [tuple(document.items()) for document in mongo_contents(place)]
        # Bytes as they are, and not as Python shows them.
        rows += [[one for one in document.values() if isinstance(one, bytes)] for document in mongo_contents(place)]
    elif kind.name == "redis":
        for key, held in redis_contents(place).items():
            rows.append((key, *(held.keys() if isinstance(held, dict) else ())))
            rows.append(tuple(held.values()) if isinstance(held, dict) else tuple(held))
    else:
        with psycopg.connect(place) as connection:
            for table in tables:
                columns = "*" if table != "checkpoints" else "checkpoint::text, metadata::text, thread_id"
                rows += connection.execute(f"SELECT {columns} FROM {table}").fetchall()
    assert rows
    return b"\n".join(one if isinstance(one, bytes) else str(one).encode() for row in rows for one in row)


def encrypted(key: bytes = KEY) -> EncryptedSerializer:
    return EncryptedSerializer.from_pycryptodome_aes(key=key)


# Rows in Python's format are for LangGraph's serializer to open, which says so in its own way.
NO_KEY = (ValueError, NotImplementedError)


def run_halfway(flow: Flow, saver: Any, config: dict[str, Any]) -> None:
    flow(asking(saver)).invoke({"scalar": SECRET, "log": [f"{SECRET} begins"]}, config)


DONE = {"scalar": SECRET, "log": [f"{SECRET} begins", f"{SECRET} yes"]}


def finish(flow: Flow, saver: Any, config: dict[str, Any]) -> None:
    graph = flow(asking(saver))
    assert graph.get_state(config).interrupts[0].value == SECRET
    assert graph.invoke(Command(resume="yes"), config) == DONE


def with_peer(flow: Flow, kind: Kind, place: str, serde: Any, use: Callable[[Any], None]) -> None:
    """Does something with Python's own saver, sync or async."""
    if not flow.is_async:
        with peer(kind, place, serde=serde) as saver:
            use(saver)
        return
    context = async_peer(kind, place, serde=serde)
    saver = flow.run(context.__aenter__())
    try:
        use(saver)
    finally:
        flow.run(context.__aexit__(None, None, None))


def test_langgraphs_serializer(open_saver: Callable[..., Any], flow: Flow, config: dict[str, Any]) -> None:
    saver = open_saver(serde=encrypted())
    run_halfway(flow, saver, config)
    finish(flow, saver, config)
    assert [one.checkpoint["channel_values"].get("log") for one in flow(saver).list(config)][0] == DONE["log"]


@kinds(lasting=True)
def test_langgraphs_serializer_hides_what_python_hides(
    kind: Kind, place: str, open_saver: Callable[..., Any], flow: Flow, config: dict[str, Any]
) -> None:
    with open_saver(serde=encrypted()) as saver:
        run_halfway(flow, saver, config)
    text = stored(kind, place)
    assert f"{SECRET} begins".encode() not in text
    assert b"msgpack+aes" in text
    with open_saver(serde=encrypted(OTHER)) as saver, pytest.raises(ValueError, match="MAC"):
        flow(saver).get_tuple(config)


@kinds(peer=True)
@pytest.mark.parametrize("begins", ["theirs", "ours"])
def test_python_reads_what_ours_wrote_and_back(
    kind: Kind, place: str, open_saver: Callable[..., Any], flow: Flow, config: dict[str, Any], begins: str
) -> None:
    def begin(saver: Any) -> None:
        run_halfway(flow, saver, config)

    def end(saver: Any) -> None:
        finish(flow, saver, config)

    def look(saver: Any) -> None:
        assert [one.values for one in flow(asking(saver)).get_state_history(config)][0] == DONE

    def with_ours(use: Callable[[Any], None]) -> None:
        with open_saver(serde=encrypted()) as saver:
            use(saver)

    def with_theirs(use: Callable[[Any], None]) -> None:
        with_peer(flow, kind, place, encrypted(), use)

    first, second = (with_ours, with_theirs) if begins == "ours" else (with_theirs, with_ours)
    first(begin)
    second(end)
    with_ours(look)
    with_theirs(look)


CIPHERS: dict[str, Callable[[], Any]] = {
    "gcm": lambda: Cipher.aes_gcm("k1", KEY),
    "eax": lambda: Cipher.aes(KEY),
}


@kinds(lasting=True)
@pytest.mark.parametrize("cipher", CIPHERS.values(), ids=list(CIPHERS))
def test_our_cipher(
    open_saver: Callable[..., Any], flow: Flow, config: dict[str, Any], cipher: Callable[[], Any]
) -> None:
    saver = open_saver(cipher=cipher())
    run_halfway(flow, saver, config)
    finish(flow, saver, config)
    state = flow(asking(saver)).get_state(config)
    assert state.values == DONE


@kinds(lasting=True)
def test_without_a_cipher_there_is_plaintext(
    kind: Kind, place: str, open_saver: Callable[..., Any], flow: Flow, config: dict[str, Any]
) -> None:
    with open_saver() as saver:
        run_halfway(flow, saver, config)
    assert f"{SECRET} begins".encode() in stored(kind, place)


@kinds(lasting=True)
@pytest.mark.parametrize("cipher", CIPHERS.values(), ids=list(CIPHERS))
def test_our_cipher_leaves_no_plaintext(
    kind: Kind,
    place: str,
    open_saver: Callable[..., Any],
    flow: Flow,
    config: dict[str, Any],
    cipher: Callable[[], Any],
) -> None:
    with open_saver(cipher=cipher()) as saver:
        run_halfway(flow, saver, config)
    text = stored(kind, place)
    assert SECRET.encode() not in text
    # Proves that this test can fail: unencrypted fields are found.
    assert config["configurable"]["thread_id"].encode() in text
    # Without the key, reads fail with a clear error.
    with open_saver() as saver, pytest.raises(NO_KEY, match="(?i)cipher|key|aes"):
        flow(saver).get_tuple(config)
    with open_saver(cipher=Cipher.aes_gcm("k1", OTHER)) as saver, pytest.raises(ValueError):
        flow(saver).get_tuple(config)
    with open_saver(cipher=cipher()) as saver:
        finish(flow, saver, config)


@kinds(peer=True)
@pytest.mark.parametrize("begins", ["theirs", "ours"])
def test_our_eax_cipher_is_pythons_format(
    kind: Kind, place: str, open_saver: Callable[..., Any], flow: Flow, config: dict[str, Any], begins: str
) -> None:
    def use(saver: Any) -> None:
        (run_halfway if begins == "theirs" else finish)(flow, saver, config)

    if begins == "theirs":
        with_peer(flow, kind, place, encrypted(), use)
        with open_saver(cipher=Cipher.aes(KEY)) as saver:
            finish(flow, saver, config)
        return
    with open_saver(cipher=Cipher.aes(KEY)) as saver:
        run_halfway(flow, saver, config)
    with_peer(flow, kind, place, encrypted(), use)
    with open_saver(cipher=Cipher.aes(KEY)) as saver:
        assert flow(asking(saver)).get_state(config).values == DONE


@kinds(lasting=True)
@pytest.mark.parametrize(
    "old, ring",
    [
        (Cipher.aes_gcm("old", KEY), Cipher.aes_gcm("new", OTHER).with_aes_gcm_decryption_key("old", KEY)),
        (Cipher.aes(KEY), Cipher.aes_gcm("new", OTHER).with_aes_decryption_key(KEY)),
    ],
    ids=["aes_gcm", "aes"],
)
def test_keys_rotate(
    open_saver: Callable[..., Any], flow: Flow, config: dict[str, Any], old: Cipher, ring: Cipher
) -> None:
    with open_saver(cipher=old) as saver:
        run_halfway(flow, saver, config)
    with open_saver(cipher=ring) as saver:
        finish(flow, saver, config)
    with open_saver(cipher=Cipher.aes_gcm("new", OTHER)) as saver:
        assert flow(saver).get_tuple(config).checkpoint["channel_values"]["scalar"] == SECRET


class CustomEncryption:
    """Encrypts like LangGraph's serializer, but has another type."""

    def __init__(self) -> None:
        self.dumps_typed, self.loads_typed = encrypted().dumps_typed, encrypted().loads_typed


@kinds(lasting=True)
def test_serializer_and_cipher_together_are_rejected(
    open_saver: Callable[..., Any], flow: Flow, config: dict[str, Any]
) -> None:
    cipher = Cipher.aes_gcm("k1", KEY)
    with pytest.raises(ValueError, match="not both"):
        open_saver(serde=encrypted(), cipher=cipher)
    saver = open_saver(serde=CustomEncryption(), cipher=cipher)
    with pytest.raises(ValueError):
        run_halfway(flow, saver, config)
    assert flow(saver).list(config) == []


@pytest.mark.parametrize("make", [lambda: Cipher.aes(b"short"), lambda: Cipher.aes_gcm("k", b"\x00" * 31)])
def test_keys_of_a_wrong_length(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="bytes"):
        make()


@kinds(lasting=True)
def test_keys_are_not_shown(kind: Kind, place: str) -> None:
    key = b"0123456789abcdef0123456789abcdef"
    cipher = Cipher.aes_gcm("k1", key)
    with open_at(kind, place, cipher=cipher) as saver:
        for text in (repr(cipher), str(cipher), repr(saver), str(saver)):
            assert "0123456789abcdef" not in text
            assert key.hex() not in text
            assert str(list(key))[:20] not in text


@kinds(lasting=True)
def test_the_key_of_the_environment_in_one_call(
    kind: Kind,
    place: str,
    open_saver: Callable[..., Any],
    flow: Flow,
    config: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The variable of LangGraph's serializer, which reads the rest."""
    monkeypatch.delenv("LANGGRAPH_AES_KEY", raising=False)
    assert Cipher.from_env() is None
    # Nothing is stored in clear because a variable is missing.
    with pytest.raises(ValueError, match="LANGGRAPH_AES_KEY environment variable is not set"):
        Cipher.aes()
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "too short")
    with pytest.raises(ValueError, match="LANGGRAPH_AES_KEY"):
        Cipher.aes()
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "a key of 32 bytes for this test.")
    with open_saver(cipher=Cipher.aes()) as saver:
        run_halfway(flow, saver, config)
    assert SECRET.encode() not in stored(kind, place)
    serde = EncryptedSerializer.from_pycryptodome_aes()
    if kind.peer:
        with_peer(flow, kind, place, serde, lambda saver: finish(flow, saver, config))


def test_langgraphs_serializer_on_postgres_warns_once(
    postgres_url: str, sqlite_path: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    warnings.simplefilter("always")
    monkeypatch.setattr("langgraph_ckpt.postgres._has_warned", False)
    SqliteSaver(sqlite_path, serde=encrypted()).close()
    PostgresSaver(postgres_url).close()
    assert len(recwarn) == 0
    for saver in (PostgresSaver, AsyncPostgresSaver):
        saver(postgres_url, serde=encrypted()).close()
    [warned] = recwarn
    assert warned.category is UserWarning and "cipher=Cipher.aes()" in str(warned.message)
    assert warned.filename == __file__


def test_langgraphs_serializer_leaves_scalars_in_clear_on_postgres(
    postgres_url: str, flow: Flow, config: dict[str, Any]
) -> None:
    """What the warning is about."""
    kind = next(kind for kind in KINDS if kind.name == "postgres")
    with open_at(kind, postgres_url, serde=encrypted()) as saver:
        flow.run(saver.asetup()) if flow.is_async else saver.setup()
        run_halfway(flow, saver, config)
    assert SECRET.encode() in stored(kind, postgres_url)
