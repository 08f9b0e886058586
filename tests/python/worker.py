"""Runs commands, each in a process that is forked from this one.

To import LangGraph takes more than a second of processor time, and a fork only some milliseconds. So this process imports
everything once, prints the port of this machine on which it listens, and forks for each connection. The first line of a
connection is a JSON object: {"module": …, "arguments": […], "environment": {…}}, where a variable that is null is removed.
The connection then is the standard input and output of the module's `main`. It ends when its own standard input does.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback

MODULES = {name: importlib.import_module(name) for name in sys.argv[1:]}


def run(connection):
    sys.stdin, sys.stdout = (connection.makefile(mode, encoding="utf-8") for mode in "rw")
    with sys.stdin, sys.stdout:
        request = json.loads(sys.stdin.readline())
        for name, value in request["environment"].items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        MODULES[request["module"]].main(*request["arguments"])


def main():
    listener = socket.create_server(("127.0.0.1", 0))
    # Children are not waited for. What is there already is not looked at again by their garbage collections.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    print(listener.getsockname()[1], flush=True)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            # Whoever started this process has ended.
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            status = 1
            try:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                run(connection)
                # Connections to databases close as at the end of a process.
                gc.collect()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        connection.close()


main()
