"""Traces that are parts of one recording: what a reader may not expect of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcanary_cli.attribution.runs import Candidate

_PART = re.compile(r"(\.kept\d+)?(\.\d+)?\.kvtrace$")


def part_notes(candidates: Sequence[Candidate]) -> Iterator[str]:
    """A sentence for each recording of which several parts are among ``candidates``.

    Parts of one recording have one name and rank, but for their number, and all but the first say
    that the server was running already when they began.
    """
    recordings: dict[tuple[str, object], list[Candidate]] = {}
    for one in candidates:
        path = one.path.rstrip("/")
        if _PART.search(path):
            recordings.setdefault((_PART.sub("", path), one.record.place), []).append(one)
    for (name, _place), parts in recordings.items():
        if len(parts) > 1 and sum(not part.record.starts_mid_run for part in parts) <= 1:
            yield (
                f"{name}: {len(parts)} parts of one recording, each replayed by itself from the "
                "state that it begins with: damage whose cause lies in an earlier part is found, "
                "but the cause is not looked for there"
            )
