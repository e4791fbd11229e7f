"""Reads of slots that a transfer had not filled yet: what became of the transfer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.attribution.ledger import NEVER
from kvcanary_cli.attribution.result import CERTAIN, PROBABLE, RuledOut

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcanary_cli.attribution.context import Window
    from kvcanary_cli.attribution.result import Finding


def tell_awaited(waiting: Iterable[tuple[Finding, Window, int]]) -> None:
    """Say it when the trace has ended.

    Args:
        waiting: Findings, the transfer that each waited for, and the slot.
    """
    for finding, window, slot in waiting:
        came = window.brought.get(slot)
        end = "never ended" if window.ended == NEVER else f"ended at event {window.ended}"
        began = f"began at event {window.begun}, {end}"
        if came is not None:
            finding.confidence = PROBABLE if finding.lost_within else CERTAIN
            text = f"its copy came at event {came}, after the read"
            finding.evidence.append(
                f"transfer {window.key} was to fill slot {slot} ({began}): {text}"
            )
        elif window.brought:
            text = "its copies filled other slots"
            finding.evidence.append(
                f"transfer {window.key} was to fill slot {slot} ({began}): {text}"
            )
        else:
            text = "the trace has no copy whose content could be compared"
            finding.evidence.append(
                f"transfer {window.key} was to fill it ({began}), but no copy of it is recorded: "
                "whether it brought the content, the trace does not show"
            )
        finding.ruled_out.append(RuledOut("transfer_mismatch", text))
