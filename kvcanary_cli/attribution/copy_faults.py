"""Copies that wrote what was not theirs: their cause is kept, whether or not anybody reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.attribution import result as what
from kvcanary_cli.attribution.damage import Damage
from kvcanary_cli.attribution.ledger import NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvcanary_cli.attribution.damage import Cause
    from kvcanary_cli.attribution.follow import Follower
    from kvcanary_cli.attribution.result import OwnershipFinding


class CopyFaults:
    """Judges copies when they land: what the owners were then says how they went wrong.

    Args:
        follower: The ledger.
        judged: Why a copy's content stands in a slot where it does not belong.
    """

    def __init__(self, follower: Follower, judged: Callable[[Damage], Cause | None]) -> None:
        self._follower, self._judged = follower, judged
        self._causes = follower.context.misled

    def landed(self, event: int) -> None:
        """A ``copy`` has been followed."""
        rules, steps = self._follower.rules, self._follower.steps_seen()
        for found in reversed(rules.findings):
            if found.event != event:
                return
            if found.what != what.WRITE_BY_NON_OWNER:
                continue
            for slot in found.slots:
                cause = self._judged(self._damage(slot, event, steps[0]))
                if cause is not None:
                    self._causes[event, slot] = cause

    def _damage(self, slot: int, event: int, step: int) -> Damage:
        writes = self._follower.lane("target", "FULL")
        return Damage(
            worker="target",
            pool_kind="FULL",
            victim=int(self._follower.rules.state.owner[slot]),
            row=-1,
            position=-1,
            slot=slot,
            stored_position=int(writes.position[slot]),
            stored_token=NOBODY,
            expected_token=None,
            kv_only=False,
            step=step,
            event=event,
            forward=None,
            true_position=None,
            row_offset=0,
            writes=writes,
        )

    def causes(
        self, found: OwnershipFinding, slots: list[int]
    ) -> Iterator[tuple[Cause | None, list[int]]]:
        """``slots`` of a broken rule by the cause that was seen then, None = no copy did it."""
        groups: dict[tuple[str, str, int | None], tuple[Cause | None, list[int]]] = {}
        for slot in slots:
            cause = self._causes.get((found.event, slot))
            key = ("", "", None) if cause is None else (cause.cls, cause.subtype, cause.cause_event)
            groups.setdefault(key, (cause, []))[1].append(slot)
        yield from groups.values()
