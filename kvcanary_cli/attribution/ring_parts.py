"""Traces that are parts of one recording: what a reader may not expect of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcanary_cli.attribution.runs import Candidate

_PART = re.compile(r"(\.kept\d+)?(\.\d+)?\.kvtrace$")


def part_notes(candidates: Sequence[Candidate]) -> Iterator[str]:
    """A sentence for each recording of which several parts are among ``candidates``."""
    for name, parts in _recordings(candidates):
        yield (
            f"{name}: {len(parts)} parts of one recording, each replayed by itself from the "
            "state that it begins with: damage whose cause lies in an earlier part is found, "
            "but the cause is not looked for there"
        )


def idle_parts(candidates: Sequence[Candidate], forwards: Sequence[int]) -> Iterator[int]:
    """Numbers of parts in which nothing ran, beside parts of the same recording in which it did.

    A server that is stopped after a trigger leaves one behind the ring that was kept.

    Args:
        candidates: Traces.
        forwards: How many each has.
    """
    for _name, parts in _recordings(candidates):
        if any(forwards[k] for k in parts):
            yield from (k for k in parts if not forwards[k] and candidates[k].record.starts_mid_run)


def _recordings(candidates: Sequence[Candidate]) -> Iterator[tuple[str, list[int]]]:
    """Name of each recording of which there are several parts, and their numbers.

    Parts of one recording have one name and rank, but for their number, and all but the first say
    that the server was running already when they began.
    """
    recordings: dict[tuple[str, object], list[int]] = {}
    for k, one in enumerate(candidates):
        path = one.path.rstrip("/")
        if _PART.search(path):
            recordings.setdefault((_PART.sub("", path), one.record.place), []).append(k)
    for (name, _place), parts in recordings.items():
        first = sum(not candidates[k].record.starts_mid_run for k in parts)
        if len(parts) > 1 and first <= 1:
            yield name, parts
