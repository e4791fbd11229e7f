"""What copies brought and where it went: what a reader misses may stand in another slot."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvcanary_cli.attribution.ledger import NOBODY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from kvcanary_cli.attribution.context import Window

    Ints = NDArray[np.int64]

#: Token or position that the trace does not tell.
UNKNOWN_CONTENT = -1
# What copies brought is kept for so many slots in all; the oldest copies go first.
_SLOTS = 1 << 20
_KEYS = 65536
# Contents of a slot of another tier that are kept, and how many of its slots together.
_CONTENTS = 4
_BLOCK = 64


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """A copy to slots of another tier.

    Attributes:
        event: ``i`` of it.
        by: Name code of who stored, ``NOBODY`` = not known.
        key: What the content is filed under, None without one.
        transfer: Id of its transfer, None without one.
        tokens, positions: [n] of what it stored, ``UNKNOWN_CONTENT`` = not told.
        writers: [n] name codes of who had written that.
        came_from: [n] of a copy from another tier, what each source slot had held.
    """

    event: int
    by: int
    key: str | None
    transfer: str | None
    tokens: Ints
    positions: Ints
    writers: NDArray[np.int32]
    came_from: list[Held] | None = None

    def holds(self, k: int, position: int, token: int | None) -> bool:
        """Whether its k-th slot got that for sure."""
        return token == int(self.tokens[k]) != UNKNOWN_CONTENT and position == self.positions[k]


#: Contents of a slot of another tier, newest first: the store, and which of its slots.
Held = tuple[tuple[Store, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Cargo:
    """What a copy to slots of the full pool brought.

    Attributes:
        event: ``i`` of the copy.
        senders: [n] name codes of who sent each entry, ``NOBODY`` = not known.
        reqs: Name codes of those that it was made for, as far as the trace tells.
        transfer: Id of its transfer, None without one.
        window: That transfer, None without one, or where it named no slots.
        key: What its source is filed under, None without one.
        begun: Event at which its transfer began, ``NEVER`` without one.
        pool: Pool that it read, None = rows of a request's clean run.
        src, dst: [n] slots; ``src`` is -1 where it names no slot.
        came: [n] events at which what it brought had come into ``src`` of the full pool, ``NEVER``
            elsewhere.
        tokens, positions: [n] of what it brought, ``UNKNOWN_CONTENT`` = not told.
        writers: [n] name codes of who had written that, ``NOBODY`` = not told.
        owners: [n] name codes of who had ``dst``.
        stray: [n] bool, ``dst`` was nobody's that it was made for.
        outside: [n] bool, ``dst`` is no slot that ``window`` names; False without one.
        over: [n] bool, ``dst`` was nobody's, or had been filled since it was given to somebody.
        waiting: [w] slots of the prefix cache that nobody had filled, of a copy that names nobody
            and fills none of them.
        meant: Slot that a fork meant an entry for, where that is not its ``dst``, to the entry.
        held: [n] of a copy from another tier, what each source slot held.
    """

    event: int
    senders: NDArray[np.int32]
    reqs: frozenset[int]
    transfer: str | None
    window: Window | None
    key: str | None
    begun: int
    pool: str | None
    src: Ints
    dst: Ints
    came: Ints
    tokens: Ints
    positions: Ints
    writers: NDArray[np.int32]
    owners: NDArray[np.int32]
    stray: NDArray[np.bool_]
    outside: NDArray[np.bool_]
    over: NDArray[np.bool_]
    waiting: Ints
    meant: dict[int, int] = field(default_factory=dict)
    held: list[Held] | None = None

    def entries(self, position: int, token: int | None) -> list[int]:
        """Entries that brought what belongs at ``position``, None = which token is not known."""
        fit = self.positions == position
        if token is not None:
            fit &= (self.tokens == token) | (self.tokens == UNKNOWN_CONTENT)
        found: list[int] = np.flatnonzero(fit).tolist()
        return found

    def entry(self, slot: int) -> int | None:
        """The last entry that went to ``slot``."""
        at = np.flatnonzero(self.dst == slot)
        return int(at[-1]) if len(at) else None

    def untold_outside(self) -> int | None:
        """The first entry outside its window of which the trace does not tell what it brought."""
        at = np.flatnonzero(self.outside & (self.positions == UNKNOWN_CONTENT))
        return int(at[0]) if len(at) else None


class _Places:
    """Where one request's copies put what: a transfer may damage as many slots as it has copies.

    Args:
        cargos: The copies, oldest first.
    """

    def __init__(self, cargos: Sequence[Cargo]) -> None:
        self._cargos = cargos
        positions = np.concatenate([cargo.positions for cargo in cargos])
        numbers = np.repeat(np.arange(len(cargos)), [len(cargo.positions) for cargo in cargos])
        order = np.argsort(positions, kind="stable")
        self._positions, self._numbers = positions[order], numbers[order]
        self._untold = {k for k, cargo in enumerate(cargos) if cargo.untold_outside() is not None}
        self._meant: dict[int, set[int]] = {}
        for k, cargo in enumerate(cargos):
            for slot in cargo.meant:
                self._meant.setdefault(slot, set()).add(k)

    def find(self, slot: int, position: int) -> list[Cargo]:
        """Copies that may have brought what ``slot`` lacks at ``position``, newest first."""
        first, last = np.searchsorted(self._positions, [position, position + 1])
        numbers = {*self._numbers[first:last].tolist(), *self._untold, *self._meant.get(slot, ())}
        return [self._cargos[k] for k in sorted(numbers, reverse=True)]


class _Block(NamedTuple):
    """Neighbouring slots of another tier.

    Attributes:
        stores: [block, contents] their stores, newest first, None = none.
        entries: [block, contents] which slot of the store each is.
    """

    stores: NDArray[np.object_]
    entries: NDArray[np.int32]

    @classmethod
    def empty(cls) -> _Block:
        shape = _BLOCK, _CONTENTS
        return cls(np.full(shape, None, dtype=np.object_), np.zeros(shape, dtype=np.int32))


class Cargos:
    """The copies that are remembered."""

    def __init__(self) -> None:
        self._by_event: OrderedDict[int, Cargo] = OrderedDict()
        self._by_req: dict[int, OrderedDict[int, Cargo]] = {}
        # Those that name nobody, and wrote where nothing was missing.
        self._unnamed: OrderedDict[int, Cargo] = OrderedDict()
        # Made when a request misses something, void with its next copy.
        self._places: dict[int, _Places] = {}
        self._slots = 0

    def add(self, cargo: Cargo) -> None:
        """Remember a copy, at the cost of the oldest."""
        self._by_event[cargo.event] = cargo
        for req in cargo.reqs:
            self._by_req.setdefault(req, OrderedDict())[cargo.event] = cargo
            self._places.pop(req, None)
        if not cargo.reqs and cargo.over.any():
            self._unnamed[cargo.event] = cargo
        self._slots += len(cargo.dst) + 1
        while self._slots > _SLOTS and len(self._by_event) > 1:
            self._drop(*self._by_event.popitem(last=False))

    def _drop(self, event: int, cargo: Cargo) -> None:
        self._slots -= len(cargo.dst) + 1
        self._unnamed.pop(event, None)
        for req in cargo.reqs:
            mine = self._by_req[req]
            del mine[event]
            self._places.pop(req, None)
            if not mine:
                del self._by_req[req]

    def at(self, event: int) -> Cargo | None:
        """The copy at ``event``."""
        return self._by_event.get(event)

    def unnamed(self, since: int) -> Iterator[Cargo]:
        """Copies behind event ``since`` that name nobody and wrote where nothing was missing.

        Newest first.
        """
        for cargo in reversed(self._unnamed.values()):
            if cargo.event <= since:
                return
            yield cargo

    def made_for(
        self, reqs: Iterable[int], since: int, slot: int, position: int
    ) -> Iterator[Cargo]:
        """Copies for any of ``reqs`` that may have what ``slot`` lacks at ``position``.

        Only those behind event ``since``, newest first for each of ``reqs``.
        """
        for req in reqs:
            mine = self._by_req.get(req)
            if mine is None:
                continue
            places = self._places.get(req)
            if places is None:
                places = self._places[req] = _Places(list(mine.values()))
            for cargo in places.find(slot, position):
                if cargo.event <= since:
                    break
                yield cargo


class OtherTiers:
    """What stands in slots of pools that are not the device's, and what stood there before.

    How many slots such a pool has is not known: those that are used are kept by the block.
    """

    def __init__(self) -> None:
        self._blocks: dict[tuple[str, int], _Block] = {}
        self._last: OrderedDict[str, Store] = OrderedDict()

    def store(self, pool: str, slots: Ints, store: Store) -> None:
        """``store`` wrote ``slots`` [n] of ``pool``, in its order."""
        blocks = slots // _BLOCK
        for number in np.unique(blocks).tolist():
            mine = np.flatnonzero(blocks == number)
            block = self._blocks.get((pool, number))
            if block is None:
                block = self._blocks[pool, number] = _Block.empty()
            at = slots[mine] % _BLOCK
            block.stores[at, 1:] = block.stores[at, :-1]
            block.entries[at, 1:] = block.entries[at, :-1]
            block.stores[at, 0], block.entries[at, 0] = store, mine
        if store.key is not None:
            self._last[store.key] = store
            self._last.move_to_end(store.key)
            if len(self._last) > _KEYS:
                self._last.popitem(last=False)

    def held(self, pool: str, slots: Iterable[int]) -> list[Held]:
        """What each of ``slots`` holds, and held before; empty where that is not known."""
        return [self._held(pool, slot) for slot in slots]

    def _held(self, pool: str, slot: int) -> Held:
        block = self._blocks.get((pool, slot // _BLOCK))
        if block is None:
            return ()
        at = slot % _BLOCK
        pairs = zip(block.stores[at].tolist(), block.entries[at].tolist(), strict=True)
        return tuple((store, k) for store, k in pairs if store is not None)

    def has_content(self, key: str) -> bool:
        """Whether some copy stored content under ``key``."""
        return key in self._last

    def refiled(self, store: Store, k: int) -> Store | None:
        """A later store under the key of ``store`` that has the position of its k-th slot, too."""
        last = None if store.key is None else self._last.get(store.key)
        if last is None or last is store or int(store.positions[k]) not in last.positions:
            return None
        return last


def nothing_known(count: int) -> tuple[Ints, Ints]:
    """Tokens and positions [count] that the trace does not tell."""
    return (
        np.full(count, UNKNOWN_CONTENT, dtype=np.int64),
        np.full(count, UNKNOWN_CONTENT, dtype=np.int64),
    )


def content_of(held: list[Held]) -> tuple[Ints, Ints, NDArray[np.int32]]:
    """Tokens, positions and writers [n] of what slots of another tier hold."""
    tokens, positions = nothing_known(len(held))
    writers = np.full(len(held), NOBODY, dtype=np.int32)
    for at, contents in enumerate(held):
        if contents:
            store, k = contents[0]
            tokens[at], positions[at] = store.tokens[k], store.positions[k]
            writers[at] = store.writers[k]
    return tokens, positions, writers
