"""The pool as the trace tells it: request table, translation table, histories, prefix index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import PoolKind
from kvcanary_cli.backends.cpu.pages import zeros
from kvcanary_cli.replay.history import TokenHistories
from kvcanary_cli.replay.known import Known
from kvcanary_cli.replay.lanes import Lane, Lineages
from kvcanary_cli.replay.prefixes import PrefixIndex
from kvcanary_cli.replay.requests import Requests, RowOf

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from kvcanary_cli.trace.header import TraceHeader

    Ints = NDArray[np.int64]

# From so many cells a slot on most cells are never touched.
_SPARSE = 4


class PoolState:
    """State that events change and forwards read.

    Attributes:
        table: [rows, row_len] int32 request table.
        lut: [max_slot + 2] int64 full-to-SWA table, last cell -1; None without a SWA pool, or if
            its translations were not recorded.
        histories: True tokens, None if they are not compared.
        prefixes: The prefix index.
        requests: Requests as numbers.
        row_of: Request to the table row that it last ran in.
        lanes: (worker, kind) to lane; the draft's is made when a draft first runs.
        known: What incremental verification knows, for each lane that it runs in.
    """

    def __init__(
        self,
        header: TraceHeader,
        *,
        device: str,
        check_kv: bool,
        check_tokens: bool,
        v_half: bool,
    ) -> None:
        import torch

        pool = header.pool
        # Rows are as long as the longest request may be; what is in use, not much more than slots.
        sparse = pool.rows * pool.row_len > _SPARSE * (pool.max_slot + 1)
        self.table: NDArray[np.int32] = zeros((pool.rows, pool.row_len), np.int32, sparse=sparse)
        self.requests = Requests()
        self.histories: TokenHistories | None = None
        if check_tokens:
            self.histories = TokenHistories(
                self.requests,
                rows=pool.rows,
                row_len=pool.row_len,
                sparse=sparse,
                keep_tokens=pool.max_slot + pool.row_len,
                keep_kv=check_kv and "transfer" in header.records,
            )
        self.prefixes = PrefixIndex(pool.max_slot + 1)
        self.row_of = RowOf(self.requests)
        self.lut: Ints | None = None
        self._lut_tensor: torch.Tensor | None = None
        if pool.swa_slots and "lut" in header.records:
            self.lut = np.zeros(pool.max_slot + 2, dtype=np.int64)
            self.lut[-1] = -1
            self._lut_tensor = torch.from_numpy(self.lut)
            if device != "cpu":
                self._lut_tensor = self._lut_tensor.to(device)
        self._header, self._device = header, device
        self._check_kv, self._v_half = check_kv, v_half
        self.lanes: dict[tuple[str, PoolKind], Lane] = {}
        self.lineages = Lineages()
        self.known: list[Known] = []

    def make_lanes(self, worker: str) -> list[Lane]:
        """The lanes of ``worker``: FULL, and SWA for a target with a known SWA table."""
        pool = self._header.pool
        kinds = [PoolKind.FULL]
        if worker == "target" and self.lut is not None:
            kinds.append(PoolKind.SWA)
        lanes = []
        for kind in kinds:
            swa = kind is PoolKind.SWA
            lane = Lane(
                worker=worker,
                kind=kind,
                num_slots=(pool.swa_max_slot if swa else pool.max_slot) + 1,
                device=self._device,
                v_half=self._v_half,
                check_kv=self._check_kv,
                lut=self._lut_tensor if swa else None,
                starts_mid_run=self._header.starts_mid_run,
                lineages=self.lineages,
                window=pool.swa_window if swa else 0,
            )
            self.lanes[worker, kind] = lane
            lanes.append(lane)
        return lanes

    def keep_known(self, lane: Lane) -> None:
        """Verify ``lane`` incrementally from now on."""
        histories = self.histories
        known = Known(
            records=lane.records,
            table=self.table,
            pool=None if histories is None else histories.pool,
            token_offset=lane.group.kv_token_id_vs_position_offset,
            requests=self.requests,
        )
        lane.keep_known(known)
        self.known.append(known)
        if histories is not None:
            histories.known.append(known)

    def set_lut(self, full: Ints, swa: Ints) -> None:
        """``full[k]`` now translates to ``swa[k]``; ignored without a SWA pool."""
        if self.lut is None or self._lut_tensor is None:
            return
        self.lut[full] = swa
        if self._device != "cpu":
            import torch

            index = torch.from_numpy(full).to(self._device)
            self._lut_tensor[index] = torch.from_numpy(swa).to(self._device)

    def row_cells(self, req: str) -> NDArray[np.int32] | None:
        """Cells of the table row that ``req`` last ran in, None if it never ran."""
        row = self.row_of.get(req)
        return None if row is None else self.table[row]
