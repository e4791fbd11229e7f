"""Positions and tokens that the slots of a pool hold, through writes and copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

_UNKNOWN = -1


class Contents:
    """Follows one device pool.

    Args:
        num_slots: Slots of the pool.
        pool: Its name.
        has_tokens: Whether the trace has tokens.
    """

    def __init__(self, num_slots: int, pool: str, *, has_tokens: bool) -> None:
        self._pool, self._recorded = pool, has_tokens
        self._positions: Ints = np.full(num_slots, _UNKNOWN, dtype=np.int64)
        self._tokens: Ints = np.zeros(num_slots, dtype=np.int64)
        self._has_token: NDArray[np.bool_] = np.zeros(num_slots, dtype=np.bool_)
        # Of requests that go on: first position and tokens, newest last.
        self._texts: dict[str, list[tuple[int, Ints]]] = {}

    def begin_anew(self) -> None:
        """Events were lost: nothing is known."""
        self._positions[:] = _UNKNOWN
        self._has_token[:] = False
        self._texts.clear()

    def written(self, forward: Forward, slots: Ints) -> None:
        """What a forward wrote to ``slots`` [tokens of rows], negative = nowhere."""
        keep = slots >= 0
        mine = slots[keep]
        self._positions[mine] = forward.positions[: len(slots)][keep]
        self._tokens[mine] = forward.input_ids[: len(slots)][keep]
        self._has_token[mine] = self._recorded

    def event(self, segment: Segment, kind: str, row: int) -> None:
        """Take a text, a request's end, or a copy."""
        table = segment.tables[kind]
        if kind == "history":
            ids, start = table.get_ints("ids", row), table.get_int("start", row)
            if ids is not None and start is not None:
                texts = self._texts.setdefault(segment.text(kind, "req", row) or "", [])
                texts.append((start, ids.copy()))
        elif kind in ("finish", "abort"):
            self._texts.pop(segment.text(kind, "req", row) or "", None)
        elif kind == "copy":
            self._copy(segment, row)

    def _copy(self, segment: Segment, row: int) -> None:
        table = segment.tables["copy"]

        def pool(name: str) -> str:
            return (segment.text("copy", name, row) if name in table.columns else None) or "full"

        dst = table.get_ints("dst", row)
        if dst is None or pool("dst_pool") != self._pool:
            return
        source = segment.json("copy", "src", row)
        if isinstance(source, dict):
            self._positions[dst] = source["pos"]
            tokens = [self._token(source["req"], int(position)) for position in source["pos"]]
            self._tokens[dst] = [0 if token is None else token for token in tokens]
            self._has_token[dst] = [token is not None for token in tokens]
        elif pool("src_pool") == self._pool:
            src = np.array(source, dtype=np.int64)
            for column in (self._positions, self._tokens, self._has_token):
                column[dst] = column[src]
        else:
            self._positions[dst], self._has_token[dst] = _UNKNOWN, False

    def _token(self, req: str, position: int) -> int | None:
        for start, ids in reversed(self._texts.get(req, [])):
            if start <= position < start + len(ids):
                return int(ids[position - start])
        return None

    def of(self, slot: int) -> tuple[int | None, int | None]:
        """Position and token in ``slot``, None = not known."""
        position = int(self._positions[slot])
        token = int(self._tokens[slot]) if self._has_token[slot] else None
        return (None if position == _UNKNOWN else position), token
