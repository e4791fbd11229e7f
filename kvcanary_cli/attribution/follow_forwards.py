"""What forwards write, as the ledger enters it: tokens of their rows, and of padding rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import PADDING_ROW, ForwardMode
from kvcanary_cli.attribution.follow_cut import NAMESPACE_PREFIX
from kvcanary_cli.attribution.ledger import BY_FORWARD, BY_VERIFY, Names, Writes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvcanary_cli.attribution.context import Context
    from kvcanary_cli.replay.forwards import Forward

    Ints = NDArray[np.int64]


class ForwardWrites:
    """Enters them.

    Args:
        names: Interned names.
        context: Takes the padded batches, and which slot each decoded row wrote last.
        lane: Writers of a lane, by worker and pool.
    """

    def __init__(self, names: Names, context: Context, lane: Callable[[str, str], Writes]) -> None:
        self._names, self._context, self._lane = names, context, lane

    @staticmethod
    def padding_slots(forward: Forward) -> Ints:
        """Slots that padding rows of the batch target."""
        pad: Ints = forward.out_cache_loc[len(forward.token_row) :]
        return pad[pad > 0]

    def written(
        self,
        forward: Forward,
        lanes: list[Ints],
        codes: NDArray[np.int32],
        foreign: Ints,
        lut: Ints | None,
    ) -> None:
        """Enter what a forward wrote."""
        kind = BY_VERIFY if forward.mode is ForwardMode.TARGET_VERIFY else BY_FORWARD
        row = forward.token_row
        positions = forward.batch.positions.numpy()[: len(row)]
        for index, slots in enumerate(lanes):
            keep = slots >= 0
            batch_rows: Ints = row[keep]
            lane_foreign = foreign[keep] != 0
            if index == 1:
                # A SWA slot remembers its full slot, and whether the table agreed.
                full = forward.out_cache_loc[: len(row)][keep]
                batch_rows = full
                lane_foreign = (
                    np.zeros(len(full), dtype=np.bool_)
                    if lut is None
                    else lut[np.maximum(full, 0)] != slots[keep]
                )
            self._lane(forward.worker, "SWA" if index else "FULL").put(
                slots[keep],
                req=codes[row[keep]],
                step=forward.step,
                event=forward.event,
                kind=kind,
                position=positions[keep],
                true_position=forward.true_positions[keep],
                batch_row=batch_rows,
                namespace=self._namespaces(forward)[row[keep]],
                foreign=lane_foreign,
            )
        self.note_padding(forward)

    def _namespaces(self, forward: Forward) -> NDArray[np.int32]:
        if forward.namespaces is None:
            return np.zeros(len(forward.reqs), dtype=np.int32)
        return np.array(
            [0 if name is None else self.namespace_code(name) for name in forward.namespaces],
            dtype=np.int32,
        )

    def namespace_code(self, name: str) -> int:
        """Interned namespace, with the version of its adapter."""
        return self._names.code(NAMESPACE_PREFIX + self._context.namespace(name))

    @staticmethod
    def padded_rows(forward: Forward) -> dict[int, list[int]]:
        """By batch row, the slots that a padding row writes."""
        tail = forward.out_cache_loc[len(forward.token_row) :]
        bs, active = len(forward.rows), int((forward.rows != PADDING_ROW).sum())
        out: dict[int, list[int]] = {}
        for k, slot in enumerate(tail.tolist()):
            if slot > 0:
                out.setdefault(min(active + k, bs - 1), []).append(slot)
        return out

    def note_padding(self, forward: Forward, only: int | None = None) -> None:
        """Enter which slots padding rows wrote, or that ``only`` one; twice is as good as once."""
        writes = self._lane(forward.worker, "FULL")
        for row, slots in self.padded_rows(forward).items():
            hit = slots if only is None else [slot for slot in slots if slot == only]
            if not hit:
                continue
            writes.pad_event[hit], writes.pad_step[hit] = forward.event, forward.step
            writes.pad_row[hit] = forward.recorded_row[row]
            active = int((forward.rows != PADDING_ROW).sum())
            self._context.pad_batches[forward.event] = (active, len(forward.rows))
        if forward.mode.is_decode_or_idle:
            for b, slot in enumerate(forward.out_cache_loc[: len(forward.token_row)].tolist()):
                self._context.batch_row_slot[b] = (slot, forward.step)
