"""The table rows and the tokens that a forward reads through, and what it has to check of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import PoolKind
from kvcanary_cli.replay.forwards import rows_as_read
from kvcanary_cli.replay.tokens import RecordedTokens, expected_tokens

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from kvcanary_cli.abi.plans import VerifyPlan
    from kvcanary_cli.canary.single_forward_manager import VerifyPlanner
    from kvcanary_cli.replay.collector import Collector
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.history import TokenHistories
    from kvcanary_cli.replay.known import Known
    from kvcanary_cli.replay.lanes import Lane

    Ints = NDArray[np.int64]


class _UnknownEntries:
    """Plans what incremental verification has to check in the FULL group of one forward."""

    def __init__(
        self, known: Known, forward: Forward, lens: Ints | None, collector: Collector
    ) -> None:
        self._known, self._forward, self._lens = known, forward, lens
        self._collector = collector

    def room(self, group_index: int) -> int | None:
        return self._known.room(self._forward) if group_index == 0 else None

    def fill(self, group_index: int, plan: VerifyPlan) -> None:
        collector = self._collector
        collector.entries = self._known.plan(self._forward, self._lens, plan)


def _changed_slots(forward: Forward) -> Ints:
    """FULL-pool slots whose bytes ``forward`` changes; negative = none."""
    landed = forward.batch.landed.get(PoolKind.FULL)
    return forward.out_cache_loc if landed is None else landed.numpy()


class ForwardRows:
    """What each forward of one worker reads through.

    Args:
        cells: [rows, row_len] int32 request table.
        histories: True tokens, None if they are not compared.
        lane: The worker's FULL lane.
        collector: Is told of the plan's entries and of the tokens that are due.
        device: Of the backend.

    Attributes:
        tokens: What the manager asks for tokens, None if they are not compared.
        table: The request table as a tensor that shares its memory.
    """

    def __init__(
        self,
        *,
        cells: NDArray[np.int32],
        histories: TokenHistories | None,
        lane: Lane,
        collector: Collector,
        device: str,
    ) -> None:
        import torch

        self._cells, self._histories, self._lane = cells, histories, lane
        self._collector, self._device = collector, device
        self._on_host = device == "cpu"
        self.table = torch.from_numpy(cells)
        self._pool_tensor = None if histories is None else torch.from_numpy(histories.pool)
        self.tokens = None if self._pool_tensor is None else RecordedTokens(self._pool_tensor)

    def read_by(self, forward: Forward) -> tuple[torch.Tensor, VerifyPlanner | None]:
        """What the manager is pointed at for ``forward``, whose batch may be changed.

        Returns:
            The table that its rows are read from, and what plans the entries to be checked, None =
            the manager itself, which plans them all.
        """
        import torch

        lens = self._bind_tokens(forward)
        active_rows = forward.rows[forward.rows != 0]
        shared = len(np.unique(active_rows)) != len(active_rows)
        own_rows = bool(forward.row_as_read) or shared or not self._on_host
        pool = self._row_tokens(forward, lens) if lens is not None and own_rows else None
        if self.tokens is not None:
            self.tokens.forward = forward
            self.tokens.lens = None if lens is None else torch.from_numpy(lens)
            self.tokens.expected = self._expected(forward, pool, lens)
            self._collector.expected = self.tokens.expected
        self._collector.entries = None
        if own_rows:
            return self._own_table(forward, pool), None
        if self.tokens is not None and self._pool_tensor is not None:
            self.tokens.pool = self._pool_tensor
        known = self._lane.known
        if known is None:
            return self.table, None
        known.prepare(forward, _changed_slots(forward), lens)
        return self.table, _UnknownEntries(known, forward, lens, self._collector)

    def _own_table(self, forward: Forward, pool: Ints | None) -> torch.Tensor:
        """A table with one row for each batch row, which the batch names from then on."""
        import torch

        cells, tokens = rows_as_read(forward, self._cells, pool)
        numbers = np.arange(1, len(forward.rows) + 1, dtype=np.int64)
        indices = np.where(forward.rows != 0, numbers, 0)
        forward.batch.req_pool_indices = torch.from_numpy(indices)
        table = torch.from_numpy(cells)
        if self.tokens is not None and tokens is not None:
            self.tokens.pool = torch.from_numpy(tokens)
        return table if self._on_host else self._moved(forward, table)

    def _moved(self, forward: Forward, table: torch.Tensor) -> torch.Tensor:
        """``table``, the batch and its tokens on the device."""
        device, batch = self._device, forward.batch
        for name in (
            "req_pool_indices",
            "seq_lens",
            "input_ids",
            "positions",
            "out_cache_loc",
            "extend_prefix_lens",
            "extend_seq_lens",
        ):
            tensor = getattr(batch, name)
            if tensor is not None:
                setattr(batch, name, tensor.to(device))
        batch.landed = {kind: slots.to(device) for kind, slots in batch.landed.items()}
        if self.tokens is not None:
            self.tokens.pool = self.tokens.pool.to(device)
            if self.tokens.lens is not None:
                self.tokens.lens = self.tokens.lens.to(device)
        return table.to(device)

    def _expected(self, forward: Forward, own: Ints | None, lens: Ints | None) -> Ints | None:
        """Token that each written token should be, None where nothing is compared.

        Args:
            forward: The forward.
            own: [bs, n] tokens of each batch row, None = those of the pool count.
            lens: [bs] known tokens of each row, or None.
        """
        if lens is None or self._histories is None:
            return None
        if own is not None:
            return expected_tokens(forward, own, np.arange(len(lens), dtype=np.int64), lens)
        return expected_tokens(forward, self._histories.pool, forward.rows, lens)

    def _bind_tokens(self, forward: Forward) -> Ints | None:
        """Known history length of each batch row, with the histories bound to their rows."""
        histories = self._histories
        if histories is None or not histories.any:
            return None
        lens = np.zeros(len(forward.rows), dtype=np.int64)
        for b, (row, req) in enumerate(zip(forward.rows.tolist(), forward.reqs, strict=True)):
            if row and req is not None:
                lens[b] = histories.bind(row, req)
        return lens

    def _row_tokens(self, forward: Forward, lens: Ints) -> NDArray[np.int64]:
        """[bs, n] known tokens of each batch row."""
        assert self._histories is not None
        width = int(lens.max(initial=0))
        rows = forward.rows
        if len(np.unique(rows)) == len(rows):
            tokens: NDArray[np.int64] = self._histories.pool[rows, :width]
            return tokens
        # Two requests in one table row: its pool row can hold only one of them.
        tokens = np.full((len(rows), width), -1, dtype=np.int64)
        for b, req in enumerate(forward.reqs):
            if req is not None:
                own = self._histories.tokens(req)[:width]
                tokens[b, : len(own)] = own
        return tokens
