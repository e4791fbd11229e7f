"""The map of owners around a finding's slots as one line."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.attribution.facts import SlotOwner

# Cells of the map: beyond this the reader is better served by `inspect --at`.
_MAX_CELLS = 32
LEGEND = "legend: [damaged], ! not the reader's, ~ free but still named"


def slot_map(owners: Sequence[SlotOwner]) -> str:
    """``1-4:tree [5-7:C!] 8:free~ 9-10:tree``; runs of one owner are folded, gaps shown as ``..``.

    Args:
        owners: Slots, ascending.
    """
    cells: list[str] = []
    last: int | None = None
    for key, group in groupby(enumerate(owners), key=lambda item: _key(*item)):
        run = [owner for _, owner in group]
        first = run[0]
        if last is not None and first.slot != last + 1:
            cells.append("..")
        last = run[-1].slot
        name = str(first.slot) if len(run) == 1 else f"{first.slot}-{last}"
        marks = ("!" if first.foreign else "") + ("~" if first.dangling else "")
        cell = f"{name}:{first.owner}{marks}"
        cells.append(f"[{cell}]" if key[2] else cell)
    if len(cells) > _MAX_CELLS:
        cells = [*cells[:_MAX_CELLS], f"... {len(cells) - _MAX_CELLS} more"]
    return " ".join(cells)


def _key(place: int, owner: SlotOwner) -> tuple[int, str, bool, bool, bool]:
    # Slots of one run differ from their place by the same number.
    return owner.slot - place, owner.owner, owner.damaged, owner.foreign, owner.dangling
