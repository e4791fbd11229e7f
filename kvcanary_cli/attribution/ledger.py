"""The ledger: for every slot its owner, its last writer and how it came and went.

Arrays by slot, most of them fields of one record a slot; 1,000,000 slots in about 160 MB. Names are
interned: code 0 is an owner that the trace has not shown yet, 1 the free list, 2 the prefix cache,
others are requests. Events are ``i`` of the trace; ``NEVER`` where nothing happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.custody import Custody
from kvcanary_cli.attribution.past_frees import PastFrees
from kvcanary_cli.backends.cpu.event_records import (
    BY_COPY,
    BY_FORWARD,
    BY_NOTHING,
    BY_STATE,
    BY_VERIFY,
    FREE,
    NEVER,
    OWNERSHIP,
    PAST,
    TREE,
    UNKNOWN,
    UNTOLD,
    WRITES,
    make_records,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = [
    "BY_COPY",
    "BY_FORWARD",
    "BY_NOTHING",
    "BY_STATE",
    "BY_VERIFY",
    "FREE",
    "NEVER",
    "NOBODY",
    "TREE",
    "UNKNOWN",
    "Names",
    "Ownership",
    "Writes",
]

NOBODY = -1


class Names:
    """Requests and other owners as small integers.

    A request that comes under the name of one that ended gets a number of its own: the name means
    the newest.
    """

    def __init__(self) -> None:
        self._names: list[str] = ["?", "free", "tree"]
        self._codes: dict[str, int] = {"tree": TREE}
        # Of names that came back: where each of their requests began, and its number.
        self._lives: dict[str, list[tuple[int, int]]] = {}

    def code(self, name: str) -> int:
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self._names)
            self._names.append(name)
        return code

    def begin_again(self, name: str, event: int) -> None:
        """From ``event`` on, ``name`` is another request's."""
        lives = self._lives.setdefault(name, [(NEVER, self.code(name))])
        code = self._codes[name] = len(self._names)
        self._names.append(name)
        lives.append((event, code))

    def code_at(self, name: str, event: int) -> int:
        """Whose ``name`` was at ``event``."""
        lives = self._lives.get(name)
        if lives is None:
            return self.code(name)
        return next(code for since, code in reversed(lives) if since <= event)

    def former(self, name: str) -> list[int]:
        """The requests that had ``name`` before the one that has it now."""
        return [code for _since, code in self._lives.get(name, ())[:-1]]

    def find(self, name: str) -> int | None:
        return self._codes.get(name)

    def __len__(self) -> int:
        return len(self._names)

    def name(self, code: int) -> str | None:
        """The name, None for the free list, an unknown owner or nobody."""
        return None if code in (UNKNOWN, FREE, NOBODY) else self._names[code]


class Ownership:
    """Owners of the slots of the request-visible pool.

    Attributes:
        owner: [slots] code.
        last_owner: [slots] code of the owner before the current one.
        since: [slots] event at which the current owner got the slot.
        alloc_event: [slots] last alloc.
        free_event, free_by, free_reason: [slots] last free: event, who gave it back, index into
            ``reasons``.
        free_chain: [slots] chain value that a slot held when it was freed, 0 = not known.
        bad_event, bad_what: [slots] last alloc, free or hand-over that broke a rule of itself, and
            which.
        shared: [slots] bool, visible to others: published, or shared by a fork.
        forked: [slots] bool, shared by a fork: when the owner ends, the others keep them.
        padded: [slots] bool, a padding row, or a load of a key that nobody filled, left something
            that ``PaddedSlots`` or ``StoredKeys`` looks for in reads.
        published_event, published_by: [slots] when and by whom it last became visible.
        custody: Claims on the slots with a ``bad_event``.
        past_frees: Frees before the last ones.
        records, past: [slots] ``OWNERSHIP`` and ``PAST``, most of what is by slot above. The fields
            of a lane in ``records`` are the target's, once it runs.
    """

    def __init__(self, num_slots: int) -> None:
        self.records = records = make_records(
            num_slots, OWNERSHIP, since=NEVER, alloc_event=NEVER, published_event=NEVER
        )
        self.past = past = make_records(num_slots, PAST, free_event=NEVER)
        self.owner: NDArray[np.int32] = records["owner"]
        self.last_owner: NDArray[np.int32] = records["last_owner"]
        self.since: Ints = records["since"]
        self.alloc_event: Ints = records["alloc_event"]
        self.free_event: Ints = past["free_event"]
        self.free_chain: Ints = past["free_chain"]
        self.free_by: NDArray[np.int32] = past["free_by"]
        self.free_reason: NDArray[np.int32] = past["free_reason"]
        self.bad_event: Ints = np.full(num_slots, NEVER, dtype=np.int64)
        self.bad_what: NDArray[np.int8] = records["bad_what"]
        self.shared: NDArray[np.bool_] = records["shared"]
        self.forked: NDArray[np.bool_] = records["forked"]
        self.padded: NDArray[np.bool_] = records["padded"]
        self.published_event: Ints = records["published_event"]
        self.published_by: NDArray[np.int32] = past["published_by"]
        self.reasons: list[str] = [""]
        self.custody = Custody()
        self.past_frees = PastFrees(num_slots)

    def give(self, slots: Ints, owner: int, event: int) -> None:
        """``slots`` now belong to ``owner``."""
        self.last_owner[slots] = self.owner[slots]
        self.owner[slots] = owner
        self.since[slots] = event

    def reason_code(self, reason: str | None) -> int:
        text = reason or ""
        if text not in self.reasons:
            self.reasons.append(text)
        return self.reasons.index(text)


class Writes:
    """Last writers of one lane's slots, and the writer before.

    Attributes:
        req, step, event, kind, position, batch_row: [slots] of the last write; ``req`` is a name
            code, ``position`` where the writer put the token.
        true_position: [slots] where the token belonged by the batch's lengths.
        namespace: [slots] code of the namespace it was written under, 0 = none recorded.
        before_req, before_step, before_event: [slots] of the write before.
        moved_event: [slots] when the last content was copied here from another slot of the pool,
            whose writer it keeps; ``NEVER`` = it was written here.
        foreign: [slots] bool, the last write was not the owner's.
        pad_event, pad_step, pad_row: [slots] last write by a padding row, which changes bytes only.
        records: [slots] ``WRITES``, all that is by slot above but the padding rows.
        settle: Brings the events of reads up to date, None = they are.
    """

    def __init__(self, num_slots: int) -> None:
        self.records = records = make_records(
            num_slots,
            WRITES,
            event=NEVER,
            before_event=NEVER,
            moved_event=NEVER,
            req=NOBODY,
            step=NOBODY,
            position=NOBODY,
            true_position=NOBODY,
            batch_row=NOBODY,
            before_req=NOBODY,
            before_step=NOBODY,
        )
        self.req: NDArray[np.int32] = records["req"]
        self.step: NDArray[np.int32] = records["step"]
        self.event: Ints = records["event"]
        self.kind: NDArray[np.int8] = records["kind"]
        self.position: NDArray[np.int32] = records["position"]
        self.true_position: NDArray[np.int32] = records["true_position"]
        self.batch_row: NDArray[np.int32] = records["batch_row"]
        self.namespace: NDArray[np.int32] = records["namespace"]
        self.before_req: NDArray[np.int32] = records["before_req"]
        self.before_step: NDArray[np.int32] = records["before_step"]
        self.before_event: Ints = records["before_event"]
        self.moved_event: Ints = records["moved_event"]
        self.foreign: NDArray[np.bool_] = records["foreign"]
        # Rare, or kept by whoever knows no records.
        self.pad_event: Ints = np.full(num_slots, NEVER, dtype=np.int64)
        self.pad_step: NDArray[np.int32] = np.full(num_slots, NOBODY, dtype=np.int32)
        self.pad_row: NDArray[np.int32] = np.full(num_slots, NOBODY, dtype=np.int32)
        self._reads: Ints | None = None
        self.settle: Callable[[], None] | None = None

    @property
    def keeps_reads(self) -> bool:
        """Whether the events of reads are kept in a lane's records."""
        return self._reads is not None

    def keep_reads_in(self, reads: Ints, settle: Callable[[], None] | None) -> None:
        """From now on ``reads`` [slots] are kept by a lane; ``UNTOLD`` where it cannot tell."""
        reads[reads != UNTOLD] = NEVER
        self._reads, self.settle = reads, settle

    def note_read(self, slots: Ints, event: int) -> None:
        """A forward at ``event`` verified ``slots`` and found nothing."""
        if self._reads is not None:
            self._reads[slots[self._reads[slots] != UNTOLD]] = event

    def sound_reads(self, slots: Ints) -> Ints:
        """[n] last forward that verified each of ``slots`` [n] and found nothing, an ``i``.

        ``NEVER`` where there was none, and where what it compared does not tell whose content the
        slot holds.
        """
        if self._reads is None:
            return np.full(len(slots), NEVER, dtype=np.int64)
        if self.settle is not None:
            self.settle()
        events = self._reads[slots]
        return np.where(events == UNTOLD, NEVER, events)

    def sound_read(self, slot: int) -> int:
        """``sound_reads`` of one slot."""
        return int(self.sound_reads(np.array([slot], dtype=np.int64))[0])

    def put(
        self,
        slots: Ints,
        *,
        req: NDArray[np.int32] | int,
        step: int,
        event: int,
        kind: int,
        position: Ints | int = NOBODY,
        true_position: Ints | int = NOBODY,
        batch_row: Ints | int = NOBODY,
        namespace: NDArray[np.int32] | int = 0,
        foreign: NDArray[np.bool_] | bool = False,
    ) -> None:
        """Note a write of ``slots``."""
        self.before_req[slots] = self.req[slots]
        self.before_step[slots] = self.step[slots]
        self.before_event[slots] = self.event[slots]
        self.req[slots], self.step[slots], self.event[slots] = req, step, event
        self.kind[slots], self.position[slots] = kind, position
        self.true_position[slots], self.batch_row[slots] = true_position, batch_row
        self.namespace[slots], self.foreign[slots] = namespace, foreign
        self.moved_event[slots] = NEVER

    def came(self, slots: Ints) -> Ints:
        """[n] events at which the content of ``slots`` [n] came there, by a write or a move."""
        came: Ints = np.maximum(self.event[slots], self.moved_event[slots])
        return came
