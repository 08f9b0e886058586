"""What the checkpointers have in common."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from langgraph_ckpt import _native
from langgraph_ckpt._closing import Closing

T = TypeVar("T")

#: What the URL of a database begins with, and the class that opens it.
_SCHEMES = {"postgres": "PostgresSaver", "postgresql": "PostgresSaver", "sqlite": "SqliteSaver"}


def check_conn_string(conn_string: object, mine: str, wanted: str) -> str:
    """Refuses what does not name a database of this class. What was given may hold a password, and is not shown."""
    if not isinstance(conn_string, str):
        raise TypeError(f"{mine} takes {wanted}, not {type(conn_string).__name__}")
    # Elsewhere it may be a part of a password.
    if url := re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", conn_string):
        scheme = url[1]
        owner = _SCHEMES.get(scheme)
        if owner is None:
            raise ValueError(f"{mine} takes {wanted}, and this is a URL of {scheme}")
        if owner != mine:
            raise ValueError(f"{mine} takes {wanted}, and this is a URL of {scheme}: use {owner}")
    return conn_string


def _is_conflict(error: RuntimeError) -> bool:
    return getattr(error, "kind", None) == "conflict"


class Saver(Closing, BaseCheckpointSaver[str]):
    """A LangGraph checkpointer whose work is done in Rust, with synchronous and asynchronous methods on one class.

    A saver may be used by any number of threads and event loops at once. It is a context manager, with `with` and with
    `async with`, that closes itself. It belongs to the process that made it: make a new one in a child of `fork`.

    Values go through `serde`, as in LangGraph's own savers, and nothing else looks into them.
    """

    def __init__(
        self, native: _native.Saver, *, serde: SerializerProtocol | None = None, cipher: _native.Cipher | None = None
    ) -> None:
        if cipher is not None and isinstance(serde, EncryptedSerializer):
            raise ValueError("serde encrypts already: give it or a cipher, not both")
        super().__init__(serde=serde)
        self._native = native

    # A backend whose own saver in Python keeps less in the metadata replaces it.
    _metadata = staticmethod(get_checkpoint_metadata)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Reads the checkpoint that the config names, or the newest of its thread and namespace.

        Args:
            config: Names the thread (`thread_id`), perhaps the namespace (`checkpoint_ns`, the root graph's unless given)
                and the checkpoint (`checkpoint_id`).

        Returns:
            The checkpoint with its metadata and pending writes, or `None` if there is none.

        Raises:
            KeyError: If the config names no thread.
            RuntimeError: If the tables are missing: run `setup()` once.
        """
        return self._native.get_tuple(self.serde, config).wait()

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Reads a checkpoint as `get_tuple` does."""
        return await self._native.get_tuple(self.serde, config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Lists checkpoints, newest first. They are read page by page, as they are asked for.

        Args:
            config: The thread, and perhaps the namespace: without one it lists all of them. `None` lists every thread.
            filter: What the metadata must have.
            before: Only checkpoints that are older than this config's.
            limit: At most so many.

        Yields:
            Checkpoints with their metadata and pending writes.
        """
        listing = self._native.list(self.serde, config or None, filter, before, limit)
        while (found := listing.next().wait()) is not None:
            yield found

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Lists checkpoints as `list` does."""
        listing = self._native.list(self.serde, config or None, filter, before, limit)
        while (found := await listing.next()) is not None:
            yield found

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Stores a checkpoint, whole or not at all.

        Args:
            config: The thread and the namespace; its checkpoint, if any, becomes the parent.
            checkpoint: The checkpoint.
            metadata: Its metadata. Scalars of the config's `metadata` and `configurable` are added.
            new_versions: The channels that this step changed.

        Returns:
            The config of what was stored.

        Raises:
            KeyError: If the config names no thread.
            TypeError: If the serializer does not know a value.
            ValueError: If the database cannot hold something. Nothing was stored then.
        """
        put = partial(
            self._native.put, self.serde, config, checkpoint, self._metadata(config, metadata), new_versions
        )
        try:
            return put(with_all=False).wait()
        except RuntimeError as error:
            if not _is_conflict(error):
                raise
        # The parent has not (any more) what did not change.
        return put(with_all=True).wait()

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Stores a checkpoint as `put` does."""
        put = partial(
            self._native.put, self.serde, config, checkpoint, self._metadata(config, metadata), new_versions
        )
        try:
            return await (await self._begun(partial(put, with_all=False)))
        except RuntimeError as error:
            if not _is_conflict(error):
                raise
        return await (await self._begun(partial(put, with_all=True)))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Stores what a task wrote on a checkpoint, all of it or nothing. The checkpoint may come later.

        Args:
            config: The thread, the namespace and the checkpoint.
            writes: Pairs of a channel and a value.
            task_id: The task.
            task_path: The task's place in the graph, by which writes are ordered when they are read.

        Raises:
            KeyError: If the config names no thread or no checkpoint.
        """
        self._native.put_writes(self.serde, config, writes, task_id, task_path).wait()

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Stores what a task wrote as `put_writes` does."""
        put_writes = partial(self._native.put_writes, self.serde, config, writes, task_id, task_path)
        await (await self._begun(put_writes))

    async def _begun(self, call: Callable[[], T]) -> T:
        """A call, whose values are serialized: in another thread, as by LangGraph's savers, where they have been large."""
        return await asyncio.to_thread(call) if self._native.is_large else call()

    def delete_thread(self, thread_id: str) -> None:
        """Deletes everything of a thread, in every namespace.

        Args:
            thread_id: The thread; it need not exist.
        """
        self._native.delete_thread(thread_id).wait()

    async def adelete_thread(self, thread_id: str) -> None:
        """Deletes a thread as `delete_thread` does."""
        await self._native.delete_thread(thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes the checkpoints whose metadata names one of these runs, with their writes.

        Delta channels of later checkpoints lose what these held.

        Args:
            run_ids: The runs, as `run_id` in the metadata names them.
        """
        self._native.delete_for_runs(run_ids).wait()

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes the checkpoints of runs as `delete_for_runs` does."""
        await self._native.delete_for_runs(run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies every checkpoint and write of a thread, ids and all, into another thread.

        What the target has under the same ids is replaced, the rest of it stays.

        Args:
            source_thread_id: The thread to copy; it need not exist.
            target_thread_id: The thread to copy into.
        """
        self._native.copy_thread(source_thread_id, target_thread_id).wait()

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies a thread as `copy_thread` does."""
        await self._native.copy_thread(source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Deletes old checkpoints of threads. What delta channels of the newest still need stays.

        Args:
            thread_ids: The threads.
            strategy: `"keep_latest"` keeps the newest checkpoint of every namespace, `"delete"` nothing.

        Raises:
            ValueError: If the strategy is another one.
        """
        self._native.prune(thread_ids, strategy).wait()

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Deletes old checkpoints as `prune` does."""
        await self._native.prune(thread_ids, strategy)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """For each channel, what its value is made of at a checkpoint.

        Args:
            config: The checkpoint, or the newest of its thread and namespace.
            channels: The delta channels.

        Returns:
            For each channel the `writes`, oldest first, and the `seed` that they follow, if there is one.
        """
        return self._native.get_delta_channel_history(self.serde, config, channels).wait()

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What the values of delta channels are made of, as `get_delta_channel_history` has it."""
        return await self._native.get_delta_channel_history(self.serde, config, channels)

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Makes the version of a channel after `current`."""
        return self._native.get_next_version(current)

    def setup(self) -> None:
        """Creates or upgrades the tables. Safe to repeat, and to run from many processes at once."""
        self._native.setup().wait()

    async def asetup(self) -> None:
        """Creates or upgrades the tables as `setup` does."""
        await self._native.setup()

    def close(self) -> None:
        """Closes the saver, and all that share its connections (what `with_allowlist` returned).

        It waits for calls that are under way. A listing that is not read to its end is over. May be repeated.
        """
        if not self._native.closed:
            self._native.close().wait()

    async def aclose(self) -> None:
        """Closes the saver as `close` does."""
        if not self._native.closed:
            await self._native.close()
