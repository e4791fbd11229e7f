"""The ledger: for every slot its owner, its last writer and how it came and went.

Flat arrays by slot, 1,000,000 slots in about 150 MB. Names are interned: code 0 is an owner
that the trace has not shown yet, 1 the free list, 2 the prefix cache, others are requests.
Events are ``i`` of the trace; ``NEVER`` where nothing happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.custody import Custody

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

UNKNOWN, FREE, TREE = 0, 1, 2
NOBODY = -1
NEVER = np.iinfo(np.int64).min

# How the last content of a slot came there.
BY_NOTHING, BY_FORWARD, BY_VERIFY, BY_COPY, BY_STATE = range(5)


class Names:
    """Requests and other owners as small integers."""

    def __init__(self) -> None:
        self._names: list[str] = ["?", "free", "tree"]
        self._codes: dict[str, int] = {"tree": TREE}

    def code(self, name: str) -> int:
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self._names)
            self._names.append(name)
        return code

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
        bad_event, bad_what: [slots] last alloc, free or hand-over that broke a rule of itself, and
            which.
        shared: [slots] bool, visible to others: published, or shared by a fork.
        published_event, published_by: [slots] when and by whom it last became visible.
        custody: Claims on the slots with a ``bad_event``.
    """

    def __init__(self, num_slots: int) -> None:
        def events() -> Ints:
            return np.full(num_slots, NEVER, dtype=np.int64)

        def codes() -> NDArray[np.int32]:
            return np.zeros(num_slots, dtype=np.int32)

        self.owner, self.last_owner = codes(), codes()
        self.since, self.alloc_event, self.free_event = events(), events(), events()
        self.free_by, self.free_reason, self.published_by = codes(), codes(), codes()
        self.bad_event = events()
        self.bad_what: NDArray[np.int8] = np.zeros(num_slots, dtype=np.int8)
        self.shared: NDArray[np.bool_] = np.zeros(num_slots, dtype=np.bool_)
        self.published_event = events()
        self.reasons: list[str] = [""]
        self.custody = Custody()

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
        settle: Brings the events of reads up to date, None = they are.
    """

    def __init__(self, num_slots: int) -> None:
        def events() -> Ints:
            return np.full(num_slots, NEVER, dtype=np.int64)

        def numbers(value: int = 0) -> NDArray[np.int32]:
            return np.full(num_slots, value, dtype=np.int32)

        self.req, self.step, self.position = numbers(NOBODY), numbers(NOBODY), numbers(NOBODY)
        self.event, self.before_event, self.pad_event = events(), events(), events()
        self.moved_event = events()
        self.true_position, self.batch_row = numbers(NOBODY), numbers(NOBODY)
        self.kind: NDArray[np.int8] = np.zeros(num_slots, dtype=np.int8)
        self.namespace = numbers()
        self.before_req, self.before_step = numbers(NOBODY), numbers(NOBODY)
        self.foreign: NDArray[np.bool_] = np.zeros(num_slots, dtype=np.bool_)
        self.pad_step, self.pad_row = numbers(NOBODY), numbers(NOBODY)
        self.reads = events()
        self.settle: Callable[[], None] | None = None

    @property
    def read_event(self) -> Ints:
        """[slots] last forward that verified the slot and found nothing, an ``i``."""
        if self.settle is not None:
            self.settle()
        return self.reads

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
