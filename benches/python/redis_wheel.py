"""Measures the wheel's Redis saver and prints a table.

    python redis_wheel.py URL [--rounds 500]

A state is a list of messages of 210 characters, a counter and settings that do not change; each step adds one message. The
calls are those of LangGraph's synchronous loop. What LangGraph serializes (the values of writes and channels) is part of
the time.
"""

import argparse
import random

from workload import Blocking, Chat, Clock

SIZES = (20, 200, 2000)


async def measure(saver, run, size, rounds):
    clock = Clock()
    for number in range(max(1, rounds // 20)):
        messages = [
            {"role": "user", "content": f"{turn:08} " + "".join(random.choices("abcdefgh ", k=200))}
            for turn in range(size + 20)
        ]
        chat = Chat(Blocking(saver), run, size * 1000 + number, messages[: size + 1])
        chat.state = lambda step, messages=messages: messages[: size + step]
        for step in range(20):
            writes, checkpoint = chat.next_step()
            # The first step stores the whole state.
            timed = clock if step else Clock()
            await timed.run("put_writes", chat.saver.put_writes, *writes)
            await timed.run("put", chat.saver.put, *checkpoint)
            found = await timed.run("get_tuple", chat.saver.get_tuple, chat.config())
            assert found.checkpoint["channel_values"]["messages"] == chat.state(step), "another state was read"
        await clock.run("list 10", chat.saver.list, chat.config(), 10)
        await chat.saver.delete_thread(chat.thread_id)
    return clock.result()


def main():
    import asyncio

    from langgraph_ckpt.redis import RedisSaver

    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=500)
    arguments = parser.parse_args()
    run = random.getrandbits(32)
    print("| messages | call | p50 µs | CPU of the client µs |\n|---|---|---|---|")
    with RedisSaver.from_conn_string(arguments.url) as saver:
        saver.setup()
        for size in SIZES:
            for name, found in asyncio.run(measure(saver, run, size, arguments.rounds)).items():
                print(f"| {size} | `{name}` | {found['p50_ms'] * 1e3:.0f} | {found['client_cpu_ms'] * 1e3:.0f} |")


if __name__ == "__main__":
    main()
