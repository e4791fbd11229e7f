"""The ledger of what stands before a cut: who wrote and who owned each slot there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.abi.constants import PoolKind
from kvcanary_cli.attribution.follow import Follower
from kvcanary_cli.attribution.follow_cut import NAMESPACE_PREFIX
from kvcanary_cli.attribution.ledger import BY_FORWARD, BY_VERIFY, NEVER
from kvcanary_cli.attribution.sidecars import Sidecars

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.replay.driver import Replay
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.lanes import Lane
    from kvcanary_cli.replay.violations import ViolationChunk
    from kvcanary_cli.replay.watcher import Reads
    from kvcanary_cli.trace.header import TraceHeader
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]


class Past:
    """Watches the replay of the past, and tells what a cut must say of it.

    Attributes:
        follower: The ledger.
        sidecars: What stands beside the slots, as far as nothing rewrote them since.
    """

    def __init__(self, header: TraceHeader) -> None:
        self.follower = Follower(header)
        self.sidecars = Sidecars(self.follower)
        self.replay: Replay | None = None
        self._codes: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self._foreign: Ints = np.empty(0, dtype=np.int64)
        self._lanes: list[Ints] = []

    # Watcher.

    def ledger(self) -> None:
        """Compiled code would go on where the state of a cut is to be taken."""
        return

    def event(self, segment: Segment, k: int, kind: str, row: int) -> None:
        if kind == "sidecar_hash":
            # What changed before a cut is no finding of the cut.
            self.sidecars.event(segment, k, row, None)
        elif kind == "copy":
            self.sidecars.copied(segment, row, int(segment.index[k]))
        self.follower.event(segment, k, kind, row)

    def begun(self, forward: Forward, reads: Reads, written: list[Ints]) -> None:
        self._codes = self.follower.req_codes(forward)
        self._foreign = self.follower.write_rules(forward, written[0], self._codes)
        self._lanes = written

    def finished(self, forward: Forward, found: list[ViolationChunk]) -> None:
        lut = None if self.replay is None else self.replay.pool.lut
        self.follower.forwards.written(forward, self._lanes, self._codes, self._foreign, lut)
        self.sidecars.written(forward, self._lanes)

    def swept(self, step: int, event: int, found: list[ViolationChunk]) -> None:
        pass

    def ended(self) -> None:
        pass

    # What the cut says.

    def writers(self, lane: Lane, slots: Ints) -> dict[str, Any]:
        """Optional fields of ``canary_rows``: who wrote ``slots`` [n] last.

        Empty where no event wrote any of them, and for the window pool, whose slots are known by
        the full slots that they stand for.
        """
        writes = self.follower.writes.get((lane.worker, "FULL"))
        if lane.kind is not PoolKind.FULL or writes is None:
            return {}
        known = np.isin(writes.kind[slots], (BY_FORWARD, BY_VERIFY))
        if (writes.event[slots] == NEVER).all():
            return {}
        name = self.follower.names.name
        reqs = {code: name(code) for code in np.unique(writes.req[slots]).tolist()}
        out: dict[str, Any] = {
            "writer": [
                reqs[code] if is_known else None
                for code, is_known in zip(writes.req[slots].tolist(), known.tolist(), strict=True)
            ],
            "writer_step": np.where(known, writes.step[slots], -1).astype(np.int64),
            "writer_event": writes.came(slots),
            "writer_position": np.where(known, writes.true_position[slots], -1).astype(np.int64),
        }
        codes = np.where(known, writes.namespace[slots], 0)
        if codes.any():
            spaces = {
                code: None if not code else (name(code) or "").removeprefix(NAMESPACE_PREFIX)
                for code in np.unique(codes).tolist()
            }
            out["namespace"] = [spaces[code] for code in codes.tolist()]
        masks = {
            "not_owned": known & writes.foreign[slots],
            "verified": writes.kind[slots] == BY_VERIFY,
        }
        return out | {name: slots[mask] for name, mask in masks.items() if mask.any()}

    def mapped(self, row: int, count: int) -> Ints:
        """[count] event that set each of the first cells of a table row."""
        at = np.full(count, NEVER, dtype=np.int64)
        for fact in self.follower.context.row(row).maps:
            at[fact.start : fact.stop] = fact.event
        return at

    def allocated(self, slots: Ints) -> Ints:
        """[n] event with which ``slots`` [n] came to their owner, as far as it is known.

        Where no ``alloc`` was seen, the content is taken to be as old as the tenancy.
        """
        state = self.follower.rules.state
        at = state.alloc_event[slots]
        # What was written before an owner was shown is not older than its slot.
        since = state.since[slots]
        for (_worker, kind), writes in self.follower.writes.items():
            if kind == "FULL":
                event = writes.came(slots)
                since = np.where(event == NEVER, since, np.minimum(since, event))
        return np.where(at == NEVER, since, at)

    def shared(self, slots: Ints) -> Ints:
        """Those of ``slots`` that a publish or a fork made visible to others."""
        return slots[self.follower.rules.state.shared[slots]]

    def freed(self, slots: Ints) -> tuple[Ints, list[str]]:
        """[n] event that gave ``slots`` [n] back, and its reason (empty: none recorded)."""
        state = self.follower.rules.state
        reasons = state.free_reason[slots].tolist()
        return state.free_event[slots], [state.reasons[code] for code in reasons]
