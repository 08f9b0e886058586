"""What is particular to Redis: URLs, the clients of redis-py, TTLs, errors."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.cluster
import redis.sentinel
from conftest import Flow, put, redis_contents, thread
from langgraph_ckpt import AsyncRedisSaver, PostgresSaver, RedisCache, RedisSaver
from langgraph_ckpt._saver import Saver
from langgraph_ckpt.redis._client import read_client

OF_REDIS = [RedisSaver, AsyncRedisSaver, RedisCache]


def prefix_of(place: str) -> str:
    return place.partition("?prefix=")[2]


def read(client: Any, **options: Any) -> tuple[str, dict[str, Any]]:
    url, found = read_client(RedisSaver, Saver, None, client, options)
    return url, {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize(
    ("client", "url"),
    [
        (redis.Redis(), "redis://localhost:6379/0"),
        (redis.asyncio.Redis(host="h", port=7, db=3), "redis://h:7/3"),
        (redis.Redis(host="::1", username="a b", password="p:/@"), "redis://a%20b:p%3A%2F%40@[::1]:6379/0"),
        (redis.Redis.from_url("redis://:pw@h/2"), "redis://:pw@h:6379/2"),
        (
            redis.Redis(host="h", ssl=True, ssl_ca_certs="/a b.crt", protocol=3),
            "rediss://h:6379/0?ssl_ca_certs=%2Fa%20b.crt&protocol=3",
        ),
        (redis.asyncio.Redis.from_url("rediss://h"), "rediss://h:6379/0"),
        (redis.Redis(unix_socket_path="/run/a b", db=4), "redis+unix:///run/a%20b?db=4"),
        (
            redis.sentinel.Sentinel([("a", 1), ("b", 2)], sentinel_kwargs={"password": "x"}).master_for(
                "my/service", password="pw", db=1
            ),
            "redis+sentinel://:pw@a:1,b:2/my%2Fservice/1?sentinel_password=x",
        ),
        (
            redis.asyncio.cluster.RedisCluster(host="a", port=1, username="u", password="pw"),
            "redis+cluster://u:pw@a:1",
        ),
    ],
    ids=lambda value: urlsplit(value).scheme if isinstance(value, str) else "",
)
def test_clients_of_redis_py(client: Any, url: str) -> None:
    found, _ = read(client)
    # redis-py has a default protocol, by version.
    assert found.replace("?protocol=3", "").replace("&protocol=3", "") == url.replace("&protocol=3", "")
    if "ssl_ca_certs" not in url:
        RedisSaver(redis_client=client).close()
        RedisCache(client).close()


def test_the_options_of_a_client() -> None:
    client = redis.Redis(socket_connect_timeout=3, client_name="mine")
    assert read(client)[1] == {"connect_timeout": 3, "client_name": "mine"}
    assert read(client, connect_timeout=1.0, client_name=None)[1] == {"connect_timeout": 1.0, "client_name": "mine"}


def test_clients_that_cannot_be_read() -> None:
    provider = redis.UsernamePasswordCredentialProvider("u", "SECRET")
    for client, part in [
        (redis.Redis(credential_provider=provider), "computes its password"),
        (redis.Redis(ssl=True, ssl_cert_reqs="none"), "does not verify"),
        (redis.Redis(username="u"), "without a password"),
        (redis.sentinel.Sentinel([("a", 1)]).slave_for("s"), "replicas"),
    ]:
        with pytest.raises(ValueError, match=part) as caught:
            RedisSaver(redis_client=client)
        assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("made", OF_REDIS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("given", [5, object(), b"redis://h"], ids=str)
def test_other_objects_are_rejected(made: Any, given: Any) -> None:
    with pytest.raises(TypeError, match=f"{made.__name__} takes a URL .*, not {type(given).__name__}$"):
        made(given)
    if made is not RedisCache:
        with pytest.raises(TypeError, match=f"{made.__name__} takes a URL"):
            made(redis_client=given)
        with pytest.raises(TypeError, match="not both"):
            made("redis://h", redis_client=redis.Redis())
        with pytest.raises(TypeError, match=f"{made.__name__} takes a URL"):
            made()


@pytest.mark.parametrize("made", OF_REDIS, ids=lambda one: one.__name__)
@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("postgresql://u:SECRET@h/d", "takes a URL"),
        ("redis://u:SECRET@h?foo=SECRET", "foo"),
        ("redis://u:SECRET@h:port", "host:port"),
        ("redis+sentinel://u:SECRET@h", "service"),
        ("u:SECRET@h", "redis://"),
        ("redis://h?prefix=%7B", "key_prefix"),
    ],
)
def test_invalid_urls(made: Any, url: str, part: str) -> None:
    with pytest.raises(ValueError, match=part) as caught:
        made(url)
    assert "SECRET" not in str(caught.value)
    if made is not RedisCache and url.startswith("postgresql"):
        assert f"use {PostgresSaver.__name__}" in str(caught.value)


def test_a_client_and_a_prefix_are_heeded(redis_url: str, flow: Flow) -> None:
    url, prefix = redis_url.partition("?")[0], prefix_of(redis_url)
    with redis.Redis.from_url(url) as client:
        with RedisSaver(redis_client=client, checkpoint_prefix=prefix) as saver:
            saver.setup()
            put(flow, saver, thread("t"), {"value": [1]})
            assert client.ping()
    with RedisSaver.from_conn_string(redis_url) as saver:
        assert flow(saver).get_tuple(thread("t")).checkpoint["channel_values"] == {"value": [1]}
    with RedisSaver(redis_url, checkpoint_prefix=f"{prefix}_other") as saver:
        saver.setup()
        assert flow(saver).get_tuple(thread("t")) is None


def left(place: str, thread_id: str) -> list[int]:
    """The seconds that the keys of a thread have left, or -1."""
    url, _, prefix = place.partition("?prefix=")
    with redis.Redis.from_url(url) as client:
        return [client.ttl(f"{prefix}:{{{thread_id}}}:{end}") for end in "hi"]


def test_threads_expire(redis_url: str, flow: Flow) -> None:
    with RedisSaver(redis_url, ttl={"default_ttl": 2.5}) as saver:
        saver.setup()
        stored = put(flow, saver, thread("t"), {"value": [1]})
        flow(saver).put_writes(stored, [("value", 2)], "task")
        assert all(100 < seconds <= 150 for seconds in left(redis_url, "t"))
    with RedisSaver(redis_url, ttl={"default_ttl": 60, "refresh_on_read": True}) as saver:
        assert flow(saver).get_tuple(thread("t")).pending_writes == [("task", "value", 2)]
        assert all(3000 < seconds <= 3600 for seconds in left(redis_url, "t"))
    with RedisSaver(redis_url, ttl={"default_ttl": None}) as saver:
        put(flow, saver, thread("u"), {"value": [1]})
        assert left(redis_url, "u") == [-1, -1]
    with RedisSaver(redis_url, ttl={"default_ttl": 0.001}) as saver:
        put(flow, saver, thread("t"), {"value": [1]})
        for _ in range(1000):
            if flow(saver).get_tuple(thread("t")) is None:
                break
        assert flow(saver).list(thread("t")) == []


@pytest.mark.parametrize(
    ("ttl", "error"),
    [
        ({"default_ttl": 0}, ValueError),
        ({"default_ttl": -1}, ValueError),
        ({"default_ttl": float("nan")}, ValueError),
        ({"default_ttl": 1e300}, ValueError),
        ({"default_ttl": "1"}, TypeError),
        ({"default_tll": 1}, ValueError),
        (5, TypeError),
    ],
    ids=str,
)
def test_invalid_ttls(ttl: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        RedisSaver("redis://h", ttl=ttl)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": 23},
        {"wait_timeout": 1.0},
        {"wait_replicas": 1, "wait_timeout": 60.0},
        {"timeout": 0},
        {"client_name": "a b"},
        {"checkpoint_prefix": ""},
    ],
    ids=str,
)
def test_invalid_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        RedisSaver("redis://h", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": 3},
        {"scripts": False},
        {"max_inline_bytes": 0},
        {"client_name": "agents", "connect_timeout": 2.0, "timeout": 20.0, "max_retries": 1},
    ],
    ids=str,
)
def test_options(redis_url: str, flow: Flow, options: dict[str, Any]) -> None:
    values = {"text": ["word " * 5000], "count": 3}
    with RedisSaver(redis_url, **options) as saver:
        saver.setup()
        put(flow, saver, thread("t"), values)
        assert flow(saver).get_tuple(thread("t")).checkpoint["channel_values"] == values
    size = sum(len(value) for held in redis_contents(redis_url).values() if isinstance(held, dict) for value in held.values())
    assert (size < 10_000) == ("compression" in options)


def test_errors_are_also_those_of_redis_py(redis_url: str, flow: Flow) -> None:
    host = urlsplit(redis_url).netloc
    for made in OF_REDIS:
        with made("redis://127.0.0.1:1") as opened, pytest.raises(redis.ConnectionError) as caught:
            asyncio.run(opened.asetup())
        assert isinstance(caught.value, ConnectionError)
        assert (caught.value.kind, caught.value.retryable) == ("unavailable", True)  # type: ignore[attr-defined]
        with made(f"redis://nobody:SECRET@{host}") as opened, pytest.raises(ConnectionError, match="password") as caught:
            asyncio.run(opened.asetup())
        assert "SECRET" not in str(caught.value)


def test_a_saver_and_a_cache_share_a_prefix(redis_url: str, flow: Flow) -> None:
    with RedisSaver(redis_url) as saver, RedisCache(redis_url) as cache:
        saver.setup()
        put(flow, saver, thread('["a"]'), {"value": [1]})
        flow(cache).set({(("a",), "k"): (1, None), (("b",), "k"): (2, 60)})
        flow(cache).clear()
        assert flow(cache).get([(("a",), "k"), (("b",), "k")]) == {}
        assert flow(saver).get_tuple(thread('["a"]')).checkpoint["channel_values"] == {"value": [1]}
        assert not any(b"}:value:" in key or b"}:index" in key for key in redis_contents(redis_url))


def test_a_cache_clears_many_values(redis_url: str, flow: Flow) -> None:
    with RedisCache(redis_url) as cache:
        keys = [(("a",), str(n)) for n in range(2500)]
        flow(cache).set(dict.fromkeys(keys, (1, None)))
        assert len(flow(cache).get(keys)) == 2500
        flow(cache).clear([("a",)])
        assert flow(cache).get(keys) == {}


def test_values_of_another_program_are_an_error(redis_url: str, flow: Flow) -> None:
    url, _, prefix = redis_url.partition("?prefix=")
    with redis.Redis.from_url(url) as client, RedisCache(redis_url) as cache:
        client.set(f'{prefix}:cache:{{["a"]}}:value:k', b"something")
        with pytest.raises(ValueError, match="another prefix"):
            flow(cache).get([(("a",), "k")])
