"""The base class of the checkpointers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
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

from langgraph_ckpt._closing import Closing
from langgraph_ckpt._native import Cipher
from langgraph_ckpt._native import Saver as NativeSaver
from langgraph_ckpt._setup import SettingUp
from langgraph_ckpt._sweeper import Sweeper
from langgraph_ckpt.retention import Limits, RetainReport, to_report

logger = logging.getLogger(__name__)

T = TypeVar("T")

def _is_conflict(error: RuntimeError) -> bool:
    return getattr(error, "kind", None) == "conflict"


class Saver(Closing, SettingUp, BaseCheckpointSaver[str]):
    """A LangGraph checkpointer implemented in Rust, with synchronous and asynchronous methods on one class.

    A saver is safe to share between threads and event loops. It is a context manager for `with` and `async with`. It must
    not be used after `fork`: create a new one in the child.

    Values are serialized by `serde`, as in LangGraph's own savers, and are otherwise opaque.
    """

    _native: NativeSaver

    def __init__(
        self, native: NativeSaver, *, serde: SerializerProtocol | None = None, cipher: Cipher | None = None
    ) -> None:
        if cipher is not None and isinstance(serde, EncryptedSerializer):
            raise ValueError("serde encrypts already: pass it or a cipher, not both")
        super().__init__(serde=serde)
        self._native = native
        self._sweeper: Sweeper | None = None

    # Overridden by backends whose Python saver stores less metadata.
    _metadata = staticmethod(get_checkpoint_metadata)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Reads the config's checkpoint, or the newest of its thread and namespace.

        Args:
            config: The thread (`thread_id`), and optionally the namespace (`checkpoint_ns`, by default the root graph's)
                and the checkpoint (`checkpoint_id`).

        Returns:
            The checkpoint with its metadata and pending writes, or `None` if there is none.

        Raises:
            KeyError: If the config has no thread.
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
        """Lists checkpoints, newest first. They are read page by page, on demand, and after the first few one page ahead.

        Args:
            config: The thread, and optionally the namespace (by default all namespaces). `None` lists every thread.
            filter: Conditions on the metadata.
            before: Only checkpoints older than this config's.
            limit: The maximum number of checkpoints.

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
        """Stores a checkpoint atomically.

        Args:
            config: The thread and the namespace; its checkpoint, if any, becomes the parent.
            checkpoint: The checkpoint.
            metadata: Its metadata. Scalars of the config's `metadata` and `configurable` are added.
            new_versions: The channels that this step changed.

        Returns:
            The config of the stored checkpoint.

        Raises:
            KeyError: If the config has no thread.
            TypeError: If the serializer does not support a value.
            ValueError: If the database cannot store a value. Nothing was stored then.
        """
        put = partial(
            self._native.put, self.serde, config, checkpoint, self._metadata(config, metadata), new_versions
        )
        try:
            return put(with_all=False).wait()
        except RuntimeError as error:
            if not _is_conflict(error):
                raise
        # The parent is gone or lacks an unchanged channel: send all values.
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
        """Stores a task's writes on a checkpoint atomically. The checkpoint may be stored later.

        Args:
            config: The thread, the namespace and the checkpoint.
            writes: Pairs of a channel and a value.
            task_id: The task.
            task_path: The task's path in the graph, by which reads sort writes.

        Raises:
            KeyError: If the config has no thread or no checkpoint.
        """
        self._native.put_writes(self.serde, config, writes, task_id, task_path).wait()

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Stores a task's writes as `put_writes` does."""
        put_writes = partial(self._native.put_writes, self.serde, config, writes, task_id, task_path)
        await (await self._begun(put_writes))

    async def _begun(self, call: Callable[[], T]) -> T:
        """Serializes a call's values; in another thread, as LangGraph's savers do, if recent values were large."""
        return await asyncio.to_thread(call) if self._native.is_large else call()

    def delete_thread(self, thread_id: str) -> None:
        """Deletes a thread with all its namespaces.

        Args:
            thread_id: The thread. A missing thread is a no-op.
        """
        self._native.delete_thread(thread_id).wait()

    async def adelete_thread(self, thread_id: str) -> None:
        """Deletes a thread as `delete_thread` does."""
        await self._native.delete_thread(thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes the checkpoints of these runs, with their writes.

        Delta channels of later checkpoints lose the deleted updates.

        Args:
            run_ids: The runs, compared with `run_id` in the metadata.
        """
        self._native.delete_for_runs(run_ids).wait()

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes the checkpoints of runs as `delete_for_runs` does."""
        await self._native.delete_for_runs(run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies every checkpoint and write of a thread to another thread, with the same ids.

        Checkpoints of the target with the same ids are replaced, others are kept.

        Args:
            source_thread_id: The thread to copy. A missing thread is a no-op.
            target_thread_id: The thread to copy into.
        """
        self._native.copy_thread(source_thread_id, target_thread_id).wait()

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies a thread as `copy_thread` does."""
        await self._native.copy_thread(source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Deletes old checkpoints of threads. Ancestors that the newest's delta channels need are kept.

        Args:
            thread_ids: The threads.
            strategy: `"keep_latest"` keeps the newest checkpoint of every namespace, `"delete"` nothing.

        Raises:
            ValueError: If the strategy is unknown.
        """
        self._native.prune(thread_ids, strategy).wait()

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Deletes old checkpoints as `prune` does."""
        await self._native.prune(thread_ids, strategy)

    def retain(
        self,
        *,
        keep_last: int | None = None,
        max_age: timedelta | None = None,
        idle_for: timedelta | None = None,
        namespaces: Mapping[str, Limits] | None = None,
        pin: Mapping[str, Any] | None = None,
        keep_branch_points: bool = False,
        include_waiting: bool = False,
        thread_ids: Sequence[str] | None = None,
        dry_run: bool = False,
    ) -> RetainReport:
        """Removes what a policy no longer keeps, in small batches, while agents go on.

        Each limit removes on its own. The newest checkpoint of each namespace stays, what a kept checkpoint needs, and
        threads that wait for a person. The age of a checkpoint is the time in its id. A run that was interrupted can be
        repeated, and several runs share the work.

        Args:
            keep_last: Keep the newest checkpoints of each namespace: this many.
            max_age: Remove checkpoints that are older.
            idle_for: Delete threads in which nothing was stored for this long.
            namespaces: Other limits for namespaces and those inside them, by name without task ids; `""` is the root.
            pin: Hold threads that have a checkpoint with this metadata.
            keep_branch_points: Keep checkpoints with several children, and these children.
            include_waiting: Treat threads that wait for a person like all others.
            thread_ids: Only these threads.
            dry_run: Remove nothing, only count.

        Returns:
            What was removed, or would be. Threads that failed are in it; they do not stop the others.

        Raises:
            ValueError: If the policy has no limit, or one that is not positive. Nothing was removed then.
            NotImplementedError: If the backend cannot do it.
        """
        policy = (keep_last, max_age, idle_for, namespaces, pin, keep_branch_points, include_waiting)
        return to_report(self._native.retain(*policy, thread_ids, dry_run).wait())

    async def aretain(
        self,
        *,
        keep_last: int | None = None,
        max_age: timedelta | None = None,
        idle_for: timedelta | None = None,
        namespaces: Mapping[str, Limits] | None = None,
        pin: Mapping[str, Any] | None = None,
        keep_branch_points: bool = False,
        include_waiting: bool = False,
        thread_ids: Sequence[str] | None = None,
        dry_run: bool = False,
    ) -> RetainReport:
        """Removes what a policy no longer keeps, as `retain` does."""
        policy = (keep_last, max_age, idle_for, namespaces, pin, keep_branch_points, include_waiting)
        return to_report(await self._native.retain(*policy, thread_ids, dry_run))

    def start_retention_sweeper(self, sweep_interval_minutes: float = 60, **policy: Any) -> Future[None]:
        """Starts a background thread that calls `retain` again and again, until `stop_retention_sweeper` or `close`.

        Args:
            sweep_interval_minutes: The interval between two sweeps. The first one begins after it.
            policy: The arguments of `retain`.

        Returns:
            A future that is done when the sweeper has stopped; cancelling it stops the sweeper.

        Raises:
            RuntimeError: If a sweeper is running.
            TypeError: If an argument is not one of `retain`.
            ValueError: If the policy or the interval is invalid.
        """
        if self._sweeper is not None and self._sweeper.is_alive():
            raise RuntimeError("a retention sweeper is running; stop it first")
        if not sweep_interval_minutes > 0:
            raise ValueError("sweep_interval_minutes must be greater than zero")
        if isinstance(policy.get("thread_ids"), str):
            raise TypeError("thread_ids must be a sequence of str, not a str")
        # Checks the policy without reading a thread.
        self.retain(**{**policy, "thread_ids": [], "dry_run": True})

        def sweep(saver: Saver) -> None:
            report = saver.retain(**policy)
            logger.debug("removed %d checkpoints", report.removed.checkpoints)
            for thread_id, error in report.failed.items():
                logger.warning("the retention policy could not be applied to thread %r: %s", thread_id, error)

        def failed() -> None:
            logger.exception("a retention sweep failed; the next one continues")

        self._sweeper = Sweeper(self, "retention-sweeper", sweep_interval_minutes * 60, sweep, failed)
        self._sweeper.start()
        return self._sweeper.future

    def stop_retention_sweeper(self, timeout: float | None = None) -> bool:
        """Stops the sweeper and waits for it.

        Args:
            timeout: The timeout in seconds. `None` waits without a limit.

        Returns:
            Whether it has stopped, or was not running.
        """
        if self._sweeper is not None:
            if not self._sweeper.stop(timeout):
                return False
            self._sweeper = None
        return True

    async def astop_retention_sweeper(self, timeout: float | None = None) -> bool:
        """Stops the sweeper as `stop_retention_sweeper` does."""
        if self._sweeper is None:
            return True
        return await asyncio.get_running_loop().run_in_executor(None, self.stop_retention_sweeper, timeout)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Reads the writes from which the values of delta channels at a checkpoint are built.

        Args:
            config: The checkpoint, or the newest of its thread and namespace.
            channels: The delta channels.

        Returns:
            For each channel the `writes`, oldest first, and the `seed` that they are applied to, if there is one.
        """
        return self._native.get_delta_channel_history(self.serde, config, channels).wait()

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Reads the history of delta channels as `get_delta_channel_history` does."""
        return await self._native.get_delta_channel_history(self.serde, config, channels)

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Returns the version of a channel after `current`."""
        return self._native.get_next_version(current)

    def close(self) -> None:
        """Closes the saver, and all savers that share its connections (those that `with_allowlist` returned).

        It stops the sweeper, waits for running calls, ends unfinished lists, and releases files, threads and connections.
        Later calls fail. Idempotent.
        """
        self.stop_retention_sweeper()
        super().close()

    async def aclose(self) -> None:
        """Closes the saver as `close` does. Cancelling it does not stop it."""
        await self.astop_retention_sweeper()
        await super().aclose()
