"""What a retention policy keeps, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypedDict


class Limits(TypedDict, total=False):
    """The limits of a namespace, in place of the general ones."""

    keep_last: int
    """How many checkpoints stay."""
    max_age: timedelta
    """How old checkpoints may become."""


@dataclass(frozen=True)
class Freed:
    """What goes, or went."""

    threads: int = 0
    """Threads that lose anything."""
    checkpoints: int = 0
    writes: int = 0
    """Pending writes."""
    bytes: int = 0
    """Bytes of values and metadata as they are stored, without keys and indexes."""


@dataclass(frozen=True)
class RetainReport:
    """What a run found, and removed unless it was a dry run."""

    dry_run: bool
    threads: int
    """The threads of which anything was stored."""
    checkpoints: int
    """The checkpoints that they had."""
    waiting: int
    """Of these threads, those that stay as they are because they wait for a person."""
    pinned: int
    """Of these threads, those that stay as they are because they are pinned."""
    removed: Freed
    """What went, or would go."""
    by_rule: Mapping[str, Freed]
    """The same by `idle_for`, `keep_last` and `max_age`. Where several apply, the first one counts."""
    busy: Sequence[str] = field(default=())
    """Threads that others were changing all the time: nothing of them was removed."""
    failed: Mapping[str, Exception] = field(default_factory=dict)
    """Threads that failed, up to a thousand of them: nothing of them was removed."""


def to_report(found: Mapping[str, Any]) -> RetainReport:
    """The report of the native part's dict."""
    by_rule = {rule: Freed(*freed) for rule, freed in found["by_rule"].items()}
    return RetainReport(**{**found, "removed": Freed(*found["removed"]), "by_rule": by_rule})
