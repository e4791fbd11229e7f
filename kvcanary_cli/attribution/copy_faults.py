"""Copies that wrote what was not theirs: their cause is kept, whether or not anybody reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.attribution import result as what
from kvcanary_cli.attribution.damage import Damage
from kvcanary_cli.attribution.ledger import NOBODY
from kvcanary_cli.attribution.result import CONFIDENCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.damage import Cause
    from kvcanary_cli.attribution.follow import Follower
    from kvcanary_cli.attribution.result import OwnershipFinding
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.watcher import Reads

    Ints = NDArray[np.int64]


class CopyFaults:
    """Judges copies when they land: what the owners were then says how they went wrong.

    Args:
        follower: The ledger.
        judged: Why a copy's content stands in a slot where it does not belong.
        astray: Which copy took elsewhere what a slot lacks.
    """

    def __init__(
        self,
        follower: Follower,
        judged: Callable[[Damage], Cause | None],
        astray: Callable[[Damage], Cause | None],
    ) -> None:
        self._follower, self._judged, self._astray = follower, judged, astray
        self._seen: set[tuple[int, int, int]] = set()
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
                owner = int(rules.state.owner[slot])
                cause = self._judged(self._damage(slot, event, steps[0], owner))
                if cause is not None:
                    self._causes[event, slot] = cause

    def missed(
        self, forward: Forward, reads: Reads, entries: Ints, codes: NDArray[np.int32]
    ) -> None:
        """Look at those ``entries`` [n] of ``reads`` that broke a rule: nothing came into some.

        What such a slot holds may be what belongs there, from an earlier stay of the request.
        """
        state = self._follower.rules.state
        slots = reads.slots[entries]
        came = self._follower.lane(forward.worker, "FULL").came(slots)
        for k in entries[came < state.alloc_event[slots]].tolist():
            b, slot = int(reads.batch_rows[k]), int(reads.slots[k])
            key = int(codes[b]), slot, int(state.alloc_event[slot])
            if key in self._seen or forward.worker != "target":
                continue
            self._seen.add(key)
            damage = self._damage(slot, forward.event, forward.step, key[0])
            damage.row, damage.position = int(forward.rows[b]), int(reads.positions[k])
            damage.forward = forward
            cause = self._astray(damage)
            if cause is not None:
                self._causes[forward.event, slot] = cause

    def _damage(self, slot: int, event: int, step: int, victim: int) -> Damage:
        writes = self._follower.lane("target", "FULL")
        return Damage(
            worker="target",
            pool_kind="FULL",
            victim=victim,
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
        """``slots`` of a broken rule by the cause that was seen then, None = no copy did it.

        Of several slots the cause that is least sure stands for all.
        """
        groups: dict[tuple[int, str, str], list[tuple[Cause | None, int]]] = {}
        for slot in slots:
            cause = self._causes.get((found.event, slot))
            caused = NOBODY if cause is None or cause.cause_event is None else cause.cause_event
            key = (caused, "", "") if cause is None else (caused, cause.cls, cause.subtype)
            groups.setdefault(key, []).append((cause, slot))
        # The order must not hang on the slots' numbers.
        for key in sorted(groups):
            causes = [cause for cause, _ in groups[key]]
            yield max(causes, key=_doubt), [slot for _, slot in groups[key]]


def _doubt(cause: Cause | None) -> int:
    return 0 if cause is None else CONFIDENCES.index(cause.confidence)
