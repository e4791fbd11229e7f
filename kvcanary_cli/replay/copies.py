"""KV moved outside a forward: between slots, from a clean run, to and from other tiers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.abi.constants import CHAIN_HEAD_HASH, NO_EXPECTED_TOKEN
from kvcanary_cli.backends.reference.hashes import chain_step, to_signed
from kvcanary_cli.replay.lanes import get_rows, set_rows
from kvcanary_cli.trace.schema import DEVICE_POOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from kvcanary_cli.replay.history import TokenHistories
    from kvcanary_cli.replay.lanes import Lane
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

BETWEEN_POOLS = "between pools"
"""Where a copy between two device pools passes through."""


@dataclass(slots=True)
class StoredSlot:
    """What one slot of another tier holds: canary rows by buffer, fingerprints by half.

    ``unlinked``, ``unknown`` and ``lineage`` are those of ``Lane``.
    """

    rows: dict[tuple[str, str], NDArray[np.int64]] | None
    kv: dict[str, tuple[int, bool]]
    unlinked: bool
    unknown: bool
    lineage: int


_EMPTY = StoredSlot(None, {}, unlinked=False, unknown=False, lineage=0)


class Tiers:
    """Content of pools that are not the device's (host, remote), slot by slot."""

    def __init__(self) -> None:
        self._slots: dict[tuple[str, int], StoredSlot] = {}

    def save(self, lane: Lane, src: Ints, pool: str, dst: Ints, *, canary: bool) -> None:
        """Device slots ``src`` were copied to ``dst`` of ``pool``."""
        rows = {key: get_rows(buffer, src) for key, buffer in lane.buffers().items()}
        kv = {half: (prints.get(src), ~prints.unhashed[src]) for half, prints in lane.kv.items()}
        lineage = lane.lineage_of(src)
        for k, slot in enumerate(dst.tolist()):
            prints_of = {half: (int(h[k]), bool(known[k])) for half, (h, known) in kv.items()}
            if not canary:
                before = self._slots.get((pool, slot)) or _EMPTY
                self._slots[pool, slot] = replace(before, kv=prints_of)
                continue
            self._slots[pool, slot] = StoredSlot(
                rows={key: values[k] for key, values in rows.items()},
                kv=prints_of,
                unlinked=bool(lane.unlinked[src[k]]),
                unknown=lane.unknown is not None and bool(lane.unknown[src[k]]),
                lineage=int(lineage[k]),
            )

    def load(self, pool: str, src: Ints, lane: Lane, dst: Ints, *, canary: bool) -> Ints:
        """Copy ``src`` of ``pool`` into device slots; the slots whose content is not known."""
        lost = []
        for src_slot, dst_slot in zip(src.tolist(), dst.tolist(), strict=True):
            stored = self._slots.get((pool, src_slot))
            to = np.array([dst_slot], dtype=np.int64)
            if stored is None or (canary and (stored.rows is None or stored.unknown)):
                lost.append(dst_slot)
                continue
            if canary and stored.rows is not None:
                for key, buffer in lane.buffers().items():
                    set_rows(buffer, to, stored.rows[key][None])
                lane.note_written(to)
                if stored.unlinked:
                    lane.unlink(to)
                if stored.lineage:
                    lane.set_lineage(to, np.array([stored.lineage], dtype=np.int64))
            for half, prints in lane.kv.items():
                value, known = stored.kv.get(half, (0, False))
                if known and (canary or not prints.unhashed[dst_slot]):
                    prints.set(to, np.array([value], dtype=np.int64))
                elif canary:
                    prints.forget(to)
                if canary:
                    prints.unhashed[to] = not known
        return np.array(lost, dtype=np.int64)

    def content(self) -> Iterator[tuple[str, dict[int, StoredSlot]]]:
        """(pool, slot to content) of every pool, in order of first use."""
        pools: dict[str, dict[int, StoredSlot]] = {}
        for (pool, slot), stored in self._slots.items():
            if pool != BETWEEN_POOLS:
                pools.setdefault(pool, {})[slot] = stored
        yield from pools.items()

    def restore(self, pool: str, slot: int, stored: StoredSlot) -> None:
        self._slots[pool, slot] = stored

    def at(self, pool: str, slot: int) -> StoredSlot | None:
        return self._slots.get((pool, slot))

    def set_prints(self, pool: str, half: str, slots: Ints, hashes: Ints) -> None:
        """The bytes of ``slots`` now have these fingerprints; their canary rows stay."""
        for slot, value in zip(slots.tolist(), hashes.tolist(), strict=True):
            stored = self._slots.get((pool, slot)) or _EMPTY
            kv = stored.kv | {half: (value, True)}
            self._slots[pool, slot] = replace(stored, kv=kv)

    def drop(self, pool: str) -> None:
        """Forget a pool that only passes content on."""
        for key in [key for key in self._slots if key[0] == pool]:
            del self._slots[key]

    def copy(self, src_pool: str, src: Ints, dst_pool: str, dst: Ints) -> None:
        """Between two pools off the device."""
        moved = [self._slots.get((src_pool, slot)) for slot in src.tolist()]
        for slot, stored in zip(dst.tolist(), moved, strict=True):
            if stored is None:
                self._slots.pop((dst_pool, slot), None)
            else:
                self._slots[dst_pool, slot] = stored


def clean_rows(
    histories: TokenHistories | None, req: str, positions: Ints, *, token_offset: int
) -> tuple[Ints, NDArray[np.bool_]]:
    """The canary rows that a clean run of ``req`` holds at ``positions``.

    Args:
        histories: True tokens, or None if none were recorded.
        req: The request.
        positions: Positions asked for.
        token_offset: 0 for the target's pools, 1 for the draft's (position p holds token p + 1).

    Returns:
        [n, 4] rows without fingerprint, and which of them the histories allow to know.
    """
    rows = np.zeros((len(positions), 4), dtype=np.int64)
    known = np.zeros(len(positions), dtype=np.bool_)
    if histories is None or not len(positions):
        return rows, known
    tokens = histories.tokens(req)[token_offset:].tolist()
    wanted: dict[int, list[int]] = {}
    for k, position in enumerate(positions.tolist()):
        wanted.setdefault(position, []).append(k)
    h = CHAIN_HEAD_HASH
    for position in range(min(int(positions.max()) + 1, len(tokens))):
        token = tokens[position]
        if token == NO_EXPECTED_TOKEN:
            break
        for k in wanted.get(position, ()):
            rows[k, :3] = token, position, to_signed(h)
            known[k] = True
        h = chain_step(h, token, position)
    return rows, known


def copy_from_request(
    lane: Lane,
    histories: TokenHistories | None,
    source: dict[str, Any],
    dst: Ints,
    *,
    canary: bool,
) -> int:
    """Slots ``dst`` receive what a clean run of ``source["req"]`` holds at ``source["pos"]``.

    Returns:
        How many slots received content that the trace cannot tell.
    """
    req, positions = source["req"], np.array(source["pos"], dtype=np.int64)
    offset = lane.group.kv_token_id_vs_position_offset
    rows, known = clean_rows(histories, req, positions, token_offset=offset)
    hashes = np.zeros(len(positions), dtype=np.int64)
    hashed = np.zeros(len(positions), dtype=np.bool_)
    if histories is not None:
        hashes, hashed = histories.kv(req, positions)
    for half, prints in lane.kv.items():
        good = hashed if half == "k" else np.zeros_like(hashed)
        if not canary:
            # A row without a fingerprint of its own goes on without one.
            good &= ~prints.unhashed[dst]
        prints.set(dst[good], hashes[good])
        if canary:
            prints.forget(dst[~good])
            prints.unhashed[dst[good]] = False
    if not canary:
        return 0
    if lane.kv:
        rows[hashed, 3] = hashes[hashed]
    lane.put_rows(dst[known], rows[known])
    lane.forget(dst[~known])
    return int((~known).sum())


def is_device_pool(pool: str) -> bool:
    return pool in DEVICE_POOLS


def apply_copy(
    segment: Segment,
    row: int,
    *,
    lane_of: Callable[[str], Lane | None],
    tiers: Tiers,
    histories: TokenHistories | None,
) -> int:
    """Apply a ``copy`` event.

    Args:
        segment: Where it stands.
        row: Row of the ``copy`` table.
        lane_of: Lane of a device pool, None for other pools.
        tiers: Content of the other pools.
        histories: True tokens, or None.

    Returns:
        How many slots received content that the trace cannot tell.
    """
    table = segment.tables["copy"]
    dst = table.get_ints("dst", row)
    assert dst is not None
    source = segment.json("copy", "src", row)
    canary = table.get_bool("canary", row) is not False
    src_pool = segment.text("copy", "src_pool", row) or "full"
    dst_pool = segment.text("copy", "dst_pool", row) or "full"
    lane = lane_of(dst_pool)
    if isinstance(source, dict):
        if lane is None:
            return 0
        return copy_from_request(lane, histories, source, dst, canary=canary)
    src = np.array(source, dtype=np.int64)
    origin = lane_of(src_pool)
    if origin is not None and lane is not None:
        if origin is lane:
            lane.copy(src, dst, canary=canary)
            return 0
        tiers.save(origin, src, BETWEEN_POOLS, dst, canary=canary)
        src_pool, src = BETWEEN_POOLS, dst
    elif origin is not None:
        tiers.save(origin, src, dst_pool, dst, canary=canary)
        return 0
    if lane is not None:
        lost = tiers.load(src_pool, src, lane, dst, canary=canary)
        if src_pool == BETWEEN_POOLS:
            tiers.drop(BETWEEN_POOLS)
        if not canary:
            return 0
        lane.forget(lost)
        return len(lost)
    tiers.copy(src_pool, src, dst_pool, dst)
    return 0
