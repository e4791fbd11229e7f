"""Notes what copies bring, and what stands in other tiers, before the ledger follows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.abi.constants import FIELD_POSITION, FIELD_TOKEN, PoolKind
from kvcanary_cli.attribution.cargo import (
    UNKNOWN_CONTENT,
    Cargo,
    Held,
    Store,
    content_of,
    nothing_known,
)
from kvcanary_cli.attribution.context import transfer_key
from kvcanary_cli.attribution.follow_copies import POOL_LANE
from kvcanary_cli.attribution.ledger import FREE, NEVER, NOBODY, TREE, UNKNOWN
from kvcanary_cli.replay.lanes import get_rows
from kvcanary_cli.trace.schema import DEVICE_POOLS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.follow import Follower
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

_FULL = "full"


class CargoNotes:
    """Fills ``Context.cargos`` and ``Context.tiers``.

    Args:
        follower: The ledger, before the copy is entered.
    """

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        # Else nothing follows from it that a slot's owner is not known.
        self._knows_owners = "alloc" in follower.header.records

    def copy(self, segment: Segment, row: int, event: int) -> None:
        """A ``copy`` event is about to be followed."""
        table, context = segment.tables["copy"], self._follower.context
        dst = table.get_ints("dst", row)
        assert dst is not None
        source: Any = segment.json("copy", "src", row)

        def text(name: str) -> str | None:
            return segment.text("copy", name, row) if name in table.columns else None

        dst_pool, src_pool = text("dst_pool") or _FULL, text("src_pool") or _FULL
        if dst_pool in DEVICE_POOLS and dst_pool != _FULL:
            return
        transfer = transfer_key(segment.json("copy", "id", row) if "id" in table.columns else None)
        key = transfer_key(segment.json("copy", "key", row) if "key" in table.columns else None)
        if key is None and transfer is not None:
            key = context.served.get(transfer, (NOBODY, None))[1]
        held: list[Held] | None = None
        if isinstance(source, dict):
            tokens, positions, writers = self._of_request(source["req"], source["pos"])
            src = np.full(len(dst), UNKNOWN_CONTENT, dtype=np.int64)
        else:
            src = np.array(source, dtype=np.int64)
            if src_pool in DEVICE_POOLS:
                tokens, positions, writers = self._in_pool(src_pool, src)
            else:
                held = context.tiers.held(src_pool, source)
                tokens, positions, writers = content_of(held)
        by = text("by") or (source["req"] if isinstance(source, dict) else None)
        code = NOBODY if by is None else self._follower.names.code(by)
        in_pool = isinstance(source, list) and src_pool == _FULL
        senders = self._senders(code, context.serves(transfer), src if in_pool else None, len(dst))
        if dst_pool not in DEVICE_POOLS:
            if table.get_bool("canary", row) is False:
                tokens, positions = nothing_known(len(dst))
            stored_by = int(senders[0]) if len(senders) else NOBODY
            store = Store(event, stored_by, key, transfer, tokens, positions, writers, held)
            context.tiers.store(dst_pool, dst, store)
            return
        self._note(
            event=event,
            code=code,
            transfer=transfer,
            key=key,
            pool=None if isinstance(source, dict) else src_pool,
            src=src,
            dst=dst,
            tokens=tokens,
            positions=positions,
            writers=writers,
            senders=senders,
            held=held,
        )

    def _note(
        self,
        *,
        event: int,
        code: int,
        transfer: str | None,
        key: str | None,
        pool: str | None,
        src: Ints,
        dst: Ints,
        tokens: Ints,
        positions: Ints,
        writers: NDArray[np.int32],
        senders: NDArray[np.int32],
        held: list[Held] | None,
    ) -> None:
        """Remember a copy to the full pool; ``code`` of who made it, ``NOBODY`` = not named."""
        context, owners = self._follower.context, self._follower.rules.state.owner
        served = context.serves(transfer)
        window = None if transfer is None else context.window(transfer)
        meant = self._meant(src, dst) if pool == _FULL else {}
        reqs = {code, served, *np.unique(senders).tolist(), *owners[list(meant)].tolist()}
        reqs -= {NOBODY, UNKNOWN, FREE}
        had = owners[dst]
        stray = ~np.isin(had, list(reqs)) & (self._knows_owners | (had != UNKNOWN))
        over = (had == FREE) | ((had == UNKNOWN) & self._knows_owners) | self._is_filled(dst)
        if code != NOBODY:
            stray &= self._follower.copies.for_whom(dst, code, served) != had
        context.cargos.add(
            Cargo(
                event=event,
                senders=senders,
                reqs=frozenset(reqs),
                transfer=transfer,
                window=window,
                key=key,
                begun=NEVER if transfer is None else context.transfers.get(transfer, NEVER),
                pool=pool,
                src=src,
                # The event's own array would keep its whole segment.
                dst=dst.copy(),
                came=self._came(src) if pool == _FULL else np.full_like(src, NEVER),
                tokens=tokens,
                positions=positions,
                writers=writers,
                owners=had,
                stray=stray,
                outside=np.zeros_like(stray) if window is None else ~window.names(dst),
                over=over,
                waiting=self._waiting(dst) if not reqs and over.any() else _none(),
                meant=meant,
                held=held,
            )
        )

    def _is_filled(self, slots: Ints) -> NDArray[np.bool_]:
        """[n] which of ``slots`` [n] got content since they were given to somebody."""
        came, given = self._came(slots), self._follower.rules.state.alloc_event[slots]
        filled: NDArray[np.bool_] = (came > NEVER) & (came >= given)
        return filled

    def _waiting(self, dst: Ints) -> Ints:
        """Empty slots that the prefix cache was given; none where ``dst`` is one of them."""
        state = self._follower.rules.state
        slots = np.flatnonzero((state.owner == TREE) & (state.alloc_event > NEVER))
        empty: Ints = slots[~self._is_filled(slots)]
        return empty if not np.isin(dst, empty).any() else _none()

    def _senders(self, code: int, served: int, src: Ints | None, count: int) -> NDArray[np.int32]:
        """[count] name codes of who sent what: who is named, or had it in the full pool."""
        named = served if code == NOBODY else code
        senders = np.full(count, named, dtype=np.int32)
        if code == NOBODY and src is not None:
            owners = self._follower.rules.state.owner[src]
            known = owners > FREE
            senders[known] = owners[known]
        return senders

    def _came(self, src: Ints) -> Ints:
        """[n] when the content of slots of the full pool came there."""
        return self._follower.lane(*POOL_LANE[_FULL]).came(src)

    def _meant(self, src: Ints, dst: Ints) -> dict[int, int]:
        """Slots that forks meant copies of ``src`` for, where these go elsewhere, to the entry."""
        context, out = self._follower.context, {}
        if not context.cow_from:
            return {}
        for k, (one, other) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
            _fork, slot = context.cow_from.get(one, (NEVER, other))
            # What another fork meant a copy for may get one.
            if slot != other and other not in context.cow_event:
                out[slot] = k
        return out

    def _of_request(self, req: str, places: list[int]) -> tuple[Ints, Ints, NDArray[np.int32]]:
        """What a clean run of ``req`` holds at some positions: tokens, positions, writers [n]."""
        positions = np.array(places, dtype=np.int64)
        tokens, _ = nothing_known(len(positions))
        histories = None if self._follower.pool is None else self._follower.pool.histories
        if histories is not None:
            true = histories.tokens(req)
            known = positions < len(true)
            tokens[known] = true[positions[known]]
        writers = np.full(len(positions), self._follower.names.code(req), dtype=np.int32)
        return tokens, positions, writers

    def _in_pool(self, pool: str, src: Ints) -> tuple[Ints, Ints, NDArray[np.int32]]:
        """What slots of the device hold: tokens, positions, writers [n]."""
        tokens, positions = nothing_known(len(src))
        follower = self._follower
        lane = None if follower.pool is None else follower.pool.lanes.get(("target", PoolKind.FULL))
        if pool == _FULL and lane is not None:
            known = self._came(src) != NEVER
            rows = get_rows(lane.group.k_head, src)
            tokens[known] = rows[known, FIELD_TOKEN]
            positions[known] = rows[known, FIELD_POSITION]
        return tokens, positions, follower.lane(*POOL_LANE[pool]).req[src]


def _none() -> Ints:
    return np.empty(0, dtype=np.int64)
