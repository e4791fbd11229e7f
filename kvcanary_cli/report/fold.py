"""Repeated violations of one cause as one row with a count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import LaunchTag, fail_reason_labels
from kvcanary_cli.replay.violations import NO_REQUEST, PRIMARY, SEAM

if TYPE_CHECKING:
    from kvcanary_cli.replay.violations import ViolationTable

# What makes two violations the same complaint at two steps.
_KEY = (
    "slot",
    "position",
    "expected_position",
    "req",
    "prev_slot",
    "stored_token",
    "expected_token",
    "token_checked",
    "seam",
)


@dataclass(slots=True)
class FoldedViolation:
    """One complaint, first seen at ``first_step``, ``count`` times until ``last_step``."""

    first_step: int
    last_step: int
    count: int
    worker: str
    pool_kind: str
    tags: int
    check: str
    slot: int
    position: int
    expected_position: int
    req: str | None
    prev_slot: int
    stored_token: int
    expected_token: int | None
    fail_reasons: tuple[str, ...]
    role: str

    @property
    def launch_tags(self) -> tuple[str, ...]:
        return tuple(tag.name for tag in LaunchTag if self.tags >> tag & 1)


def fold_violations(table: ViolationTable) -> list[FoldedViolation]:
    """All complaints in order of their first step. Sweeps fold apart from forwards.

    Memory follows the number of different complaints, not of violations.
    """
    folded: dict[tuple[object, ...], FoldedViolation] = {}
    for chunk in table.chunks:
        lane = (chunk.worker, chunk.pool_kind, chunk.check, chunk.forward_mode is None)
        columns = np.stack([chunk.columns[name].astype(np.int64) for name in _KEY], axis=1)
        rows, bits, tags = columns.tolist(), chunk.bits.tolist(), chunk.tags.tolist()
        for k, row in enumerate(rows):
            key = (*lane, *row, bits[k])
            known = folded.get(key)
            if known is not None:
                known.count += 1
                known.last_step = chunk.step
                known.tags |= tags[k]
                continue
            value = dict(zip(_KEY, row, strict=True))
            folded[key] = FoldedViolation(
                first_step=chunk.step,
                last_step=chunk.step,
                count=1,
                worker=chunk.worker,
                pool_kind=chunk.pool_kind,
                tags=tags[k],
                check=chunk.check,
                slot=value["slot"],
                position=value["position"],
                expected_position=value["expected_position"],
                req=None if value["req"] == NO_REQUEST else table.requests[value["req"]],
                prev_slot=value["prev_slot"],
                stored_token=value["stored_token"],
                expected_token=value["expected_token"] if value["token_checked"] else None,
                fail_reasons=fail_reason_labels(bits[k]),
                role=SEAM if value["seam"] else PRIMARY,
            )
    return list(folded.values())
