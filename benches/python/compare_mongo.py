"""Counts what the wheel's MongoDB saver and `MongoDBSaver` of langgraph-checkpoint-mongodb send, and prints tables.

    python compare_mongo.py mongodb://HOST [--steps 100]

Both run the same graph against the same server, through a proxy that counts commands and bytes. It makes databases of its own
and drops them. Speed is not measured. langgraph-checkpoint-mongodb has to be installed next to the wheel.
"""

import argparse
import random
import socket
import struct
import threading
import uuid
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import bson
import pymongo
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import START, MessagesState, StateGraph

PREPARATION = {"hello", "isMaster", "ismaster", "buildInfo", "endSessions", "saslStart", "saslContinue"}
LISTS = {"documents", "updates", "deletes"}


@dataclass
class Counts:
    commands: dict[str, int] = field(default_factory=dict)
    documents: int = 0
    sent: int = 0
    received: int = 0


class Proxy:
    """A TCP proxy that counts the messages between drivers and a server."""

    def __init__(self, host: str, port: int) -> None:
        self.server = host, port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"mongodb://127.0.0.1:{self.listener.getsockname()[1]}"
        self.lock = threading.Lock()
        self.counts = Counts()
        threading.Thread(target=self.accept, daemon=True).start()

    def take(self) -> Counts:
        with self.lock:
            taken, self.counts = self.counts, Counts()
        return taken

    def accept(self) -> None:
        while True:
            client, _ = self.listener.accept()
            server = socket.create_connection(self.server)
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            counted: set[int] = set()
            threading.Thread(target=self.forward, args=(client, server, counted, self.sent), daemon=True).start()
            threading.Thread(target=self.forward, args=(server, client, counted, self.received), daemon=True).start()

    def forward(self, source, target, counted, count) -> None:
        try:
            stream = source.makefile("rb")
            while header := stream.read(16):
                length, request, answers, code = struct.unpack("<iiii", header)
                body = stream.read(length - 16)
                count(counted, length, request, answers, code, body)
                target.sendall(header + body)
        except OSError:
            pass
        for one in (source, target):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def received(self, counted, length, request, answers, code, body) -> None:
        if answers in counted:
            with self.lock:
                self.counts.received += length

    def sent(self, counted, length, request, answers, code, body) -> None:
        # Drivers greet the server with another kind of message.
        if code != 2013:
            return
        name, documents, rest = None, 0, body[4:]
        while rest:
            kind, size = rest[0], struct.unpack_from("<i", rest, 1)[0]
            if kind == 0:
                command = bson.decode(rest[1 : 1 + size])
                name = next(iter(command))
                documents += sum(len(command[one]) for one in LISTS & command.keys())
            else:
                rows = rest[1 + rest.index(0, 5) : 1 + size]
                while rows:
                    documents += 1
                    rows = rows[struct.unpack_from("<i", rows)[0] :]
            rest = rest[1 + size :]
        if name in PREPARATION:
            return
        counted.add(request)
        with self.lock:
            self.counts.commands[name] = self.counts.commands.get(name, 0) + 1
            self.counts.documents += documents
            self.counts.sent += length


def chat(saver):
    words = random.Random(1)
    builder = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [AIMessage("".join(words.choices("abcdefgh ", k=1000)))]})
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def grow(saver, config, steps: int) -> None:
    graph = chat(saver)
    for step in range(steps):
        graph.invoke({"messages": [f"question {step}"]}, config, durability="sync")


def stored(url: str, name: str) -> list[int]:
    """The size of every document of a database."""
    with pymongo.MongoClient(url) as client:
        kinds = client[name].list_collection_names()
        return [len(bson.encode(one)) for kind in kinds for one in client[name][kind].find(batch_size=50)]


def row(name: str, what: str, counts: Counts) -> None:
    commands = sum(counts.commands.values())
    each = ", ".join(f"{count} {command}" for command, count in sorted(counts.commands.items()))
    print(f"| {what} | {name} | {commands} ({each}) | {counts.documents} | {counts.sent:,} | {counts.received:,} |")


def calls(name: str, saver, proxy: Proxy, config, steps: int) -> None:
    """One of each call, on a thread that has grown."""
    newest = saver.get_tuple(config)
    proxy.take()
    saver.get_tuple(config)
    row(name, "`get_tuple`, again", proxy.take())
    checkpoint = {**newest.checkpoint, "id": str(uuid6())}
    saver.put_writes(newest.config, [("messages", AIMessage("x" * 1000))], "task")
    row(name, "`put_writes`", proxy.take())
    channel = newest.checkpoint["channel_values"]["messages"]
    version = saver.get_next_version(newest.checkpoint["channel_versions"]["messages"], None)
    checkpoint["channel_values"] = {**checkpoint["channel_values"], "messages": [*channel, AIMessage("y" * 1000)]}
    checkpoint["channel_versions"] = {**checkpoint["channel_versions"], "messages": version}
    saver.put(newest.config, checkpoint, {"source": "loop", "step": 10**6, "parents": {}}, {"messages": version})
    row(name, "`put`", proxy.take())
    assert len(list(saver.list(config, limit=100))) == min(100, 3 * steps + 1)
    row(name, "`list`, 100", proxy.take())
    saver.delete_thread(config["configurable"]["thread_id"])
    row(name, "`delete_thread`", proxy.take())


def main() -> None:
    from langgraph.checkpoint.mongodb import MongoDBSaver
    from langgraph_ckpt import MongoSaver

    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=100, help="how many turns the graph takes")
    arguments = parser.parse_args()
    parts = urlsplit(arguments.url)
    proxy = Proxy(parts.hostname, parts.port or 27017)
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    kinds = {
        "here": lambda name: MongoSaver.from_conn_string(f"{proxy.url}/{name}"),
        "peer": lambda name: MongoDBSaver.from_conn_string(proxy.url, name),
    }
    print("| what | saver | commands | documents and statements sent | bytes sent | bytes received |\n|---|---|---|---|---|---|")
    kept = {}
    for kind, opened in kinds.items():
        name = f"bench_{uuid.uuid4().hex[:12]}"
        try:
            with opened(name) as saver:
                saver.get_tuple(config)
                proxy.take()
                grow(saver, config, arguments.steps)
                row(kind, f"{arguments.steps} turns", proxy.take())
            with opened(name) as saver:
                saver.get_tuple({"configurable": {"thread_id": "nobody", "checkpoint_ns": ""}})
                proxy.take()
                saver.get_tuple(config)
                row(kind, "`get_tuple`, first", proxy.take())
                kept[kind] = stored(arguments.url, name)
                calls(kind, saver, proxy, config, arguments.steps)
        finally:
            with pymongo.MongoClient(arguments.url) as client:
                client.drop_database(name)
    print("\n| saver | documents stored | bytes | largest |\n|---|---|---|---|")
    for kind, sizes in kept.items():
        print(f"| {kind} | {len(sizes):,} | {sum(sizes):,} | {max(sizes):,} |")


if __name__ == "__main__":
    main()
