"""Numbers by name code or batch row, as arrays that compiled code keeps, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.ledger import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_FIRST_ROOM = 64


class ByCode:
    """One number for each code; what was never set is not there.

    Attributes:
        values: [room] numbers, ``NEVER`` = not set; replaced when it grows.
    """

    def __init__(self) -> None:
        self.values: Ints = np.full(_FIRST_ROOM, NEVER, dtype=np.int64)

    def has_room(self, codes: int) -> None:
        """Make room for codes below ``codes``."""
        had = len(self.values)
        if codes > had:
            more = np.full(max(codes, 2 * had) - had, NEVER, dtype=np.int64)
            self.values = np.concatenate([self.values, more])

    def __setitem__(self, code: int, value: int) -> None:
        self.has_room(code + 1)
        self.values[code] = value

    def get(self, code: int, default: int) -> int:
        value = int(self.values[code]) if 0 <= code < len(self.values) else NEVER
        return default if value == NEVER else value

    def update(self, items: Iterable[tuple[int, int]]) -> None:
        for code, value in items:
            self[code] = value


class DecodedRows:
    """Where each batch row decoded into last: its slot, and the step.

    Attributes:
        slots, steps: ``ByCode`` by batch row.
    """

    def __init__(self) -> None:
        self.slots, self.steps = ByCode(), ByCode()

    def __setitem__(self, row: int, place: tuple[int, int]) -> None:
        self.slots[row], self.steps[row] = place

    def get(self, row: int) -> tuple[int, int] | None:
        slot = self.slots.get(row, NEVER)
        return None if slot == NEVER else (slot, self.steps.get(row, NEVER))
