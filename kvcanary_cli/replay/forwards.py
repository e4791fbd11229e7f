"""A recorded forward as the batch that the canary manager takes, with its rows as it read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.abi.constants import ForwardMode, PoolKind
from kvcanary_cli.canary.forward_batch import ForwardBatch
from kvcanary_cli.canary.plan_input import prefix_and_extend

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]


@dataclass(slots=True)
class Forward:
    """One ``forward`` event, taken apart once.

    Attributes:
        event: Its ``i``.
        step, worker, mode, draft_step: As recorded.
        reqs: Request of each batch row, None = padding. Padding rows stand last, whatever place
            they had in the recording: the write plan takes the batch's tail as padding.
        rows: [bs] request table row as recorded (``batch`` may read through other rows).
        prefix: [bs] positions read by each row.
        extend: [bs] tokens written by each row, 0 for padding rows.
        token_row: [num_tokens] batch row of each token that a row writes; tokens past it are
            padding.
        true_positions: [len(token_row)] position at which each token belongs.
        input_ids: [num_tokens] on the host, 0 where tokens were not recorded.
        positions, out_cache_loc: [num_tokens] on the host.
        seq_lens: [bs] on the host.
        recorded_row: [bs] where each row stood in the recorded batch.
        namespaces: [bs] namespace of each row, None if none were recorded.
        batch: For the manager, which may move it to a device.
        row_as_read: Row to the cells that the forward saw, where they differ from the table.
        tree: Flat parent indices within the row, -1 = the prefix, or None.
    """

    event: int
    step: int
    worker: str
    mode: ForwardMode
    draft_step: int | None
    reqs: list[str | None]
    rows: Ints
    prefix: Ints
    extend: Ints
    token_row: Ints
    true_positions: Ints
    input_ids: Ints
    positions: Ints
    out_cache_loc: Ints
    seq_lens: Ints
    recorded_row: Ints
    namespaces: list[str | None] | None
    batch: ForwardBatch
    row_as_read: dict[int, list[int]]
    tree: Ints | None

    @property
    def is_draft(self) -> bool:
        return self.worker == "draft"


def _tensor(values: Ints) -> torch.Tensor:
    import torch

    if not values.flags.writeable or not values.flags.c_contiguous:
        values = values.copy()
    return torch.from_numpy(values)


@dataclass(frozen=True, slots=True)
class _Order:
    """Which recorded rows and tokens a batch takes, and in which order; None = as recorded."""

    rows: Ints | None = None
    tokens: Ints | None = None

    @classmethod
    def of(cls, rows: Ints, tokens_per_row: Ints, num_tokens: int) -> _Order:
        """Active rows first, padding rows last, each kind in its recorded order.

        Args:
            rows: [bs] request table rows, 0 = padding.
            tokens_per_row: [bs] tokens of each row, padding rows included.
            num_tokens: Tokens recorded.
        """
        if not num_tokens and not tokens_per_row.any():
            # An idle batch that names rows but runs no token neither reads nor writes.
            none = np.empty(0, dtype=np.int64)
            return cls(none, none)
        padding = rows == 0
        if not (padding[:-1] & ~padding[1:]).any():
            return cls()
        token_is_padding = np.repeat(padding, tokens_per_row)
        return cls(np.argsort(padding, kind="stable"), np.argsort(token_is_padding, kind="stable"))

    def of_rows(self, values: Ints) -> Ints:
        return values if self.rows is None else values[self.rows]

    def of_tokens(self, values: Ints) -> Ints:
        return values if self.tokens is None else values[self.tokens]


def read_forward(segment: Segment, k: int) -> Forward:
    """Take event ``k`` of ``segment``, a validated ``forward``, apart.

    Args:
        segment: Where it stands.
        k: Event number within the segment.

    Raises:
        NotImplementedError: KVC-R11 for a mode that the canary has no rule for.
    """

    table = segment.tables["forward"]
    row = int(segment.row[k])
    mode = ForwardMode[segment.text("forward", "forward_mode", row) or ""]

    def ints(name: str) -> Ints:
        values = table.get_ints(name, row)
        assert values is not None
        return values

    order = _Order.of(
        ints("req_pool_indices"), _recorded_tokens(segment, row, mode), len(ints("positions"))
    )

    def lens(name: str) -> torch.Tensor | None:
        values = table.get_ints(name, row)
        return None if values is None else _tensor(order.of_rows(values))

    worker = segment.text("forward", "worker", row) or "target"
    codes = order.of_rows(table.columns["reqs"].span(row)).tolist()
    reqs = [None if code < 0 else segment.strings[code] for code in codes]
    positions = order.of_tokens(ints("positions"))
    recorded_ids = table.get_ints("input_ids", row)
    # Without recorded tokens every row holds token 0: links and positions still check.
    input_ids = np.zeros_like(positions) if recorded_ids is None else order.of_tokens(recorded_ids)
    batch = ForwardBatch(
        forward_mode=mode,
        req_pool_indices=_tensor(order.of_rows(ints("req_pool_indices"))),
        seq_lens=_tensor(order.of_rows(ints("seq_lens"))),
        input_ids=_tensor(input_ids),
        positions=_tensor(positions),
        out_cache_loc=_tensor(order.of_tokens(ints("out_cache_loc"))),
        extend_prefix_lens=lens("extend_prefix_lens"),
        extend_seq_lens=lens("extend_seq_lens"),
        draft_token_num=table.get_int("draft_token_num", row) or 0,
        req_ids=tuple(reqs),
        raw_batch_size=table.get_int("raw_bs", row),
    )
    if batch.raw_batch_size is None:
        batch.raw_batch_size = sum(req is not None for req in reqs)
    landed = segment.json("forward", "landed", row) if "landed" in table.columns else None
    if landed is not None:
        kind = PoolKind.SWA if landed["pool"] == "swa" else PoolKind.FULL
        slots = order.of_tokens(np.array(landed["slots"], dtype=np.int64))
        batch.landed = {kind: _tensor(slots)}
    as_read = segment.json("forward", "row_as_read", row) if "row_as_read" in table.columns else {}
    tree = segment.json("forward", "tree", row) if "tree" in table.columns else None
    rows = batch.req_pool_indices.numpy()
    names = table.columns.get("namespaces")
    namespaces: list[str | None] | None = None
    if names is not None and names.has(row):
        codes = order.of_rows(names.span(row)).tolist()
        namespaces = [None if code < 0 else segment.strings[code] for code in codes]
    prefix, extend, token_row = _row_lengths(batch, rows)
    draft_step = table.get_int("draft_step", row)
    parents = None if tree is None else order.of_tokens(np.array(tree["parent"], dtype=np.int64))
    return Forward(
        event=int(segment.index[k]),
        step=table.get_int("step", row) or 0,
        worker=worker,
        mode=mode,
        draft_step=draft_step,
        reqs=reqs,
        rows=rows,
        prefix=prefix,
        extend=extend,
        token_row=token_row,
        true_positions=_true_positions(
            batch, worker, draft_step or 0, prefix, extend, token_row, parents
        ),
        input_ids=input_ids,
        positions=positions,
        out_cache_loc=batch.out_cache_loc.numpy(),
        seq_lens=batch.seq_lens.numpy(),
        recorded_row=order.of_rows(np.arange(len(table.columns["reqs"].span(row)), dtype=np.int64)),
        namespaces=namespaces,
        batch=batch,
        row_as_read={int(key): cells for key, cells in (as_read or {}).items()},
        tree=parents,
    )


def _recorded_tokens(segment: Segment, row: int, mode: ForwardMode) -> Ints:
    """[bs] tokens of each recorded row, padding rows included."""
    table = segment.tables["forward"]
    extends = table.get_ints("extend_seq_lens", row)
    if extends is not None:
        return extends
    bs = len(table.columns["reqs"].span(row))
    each = 1
    if mode is ForwardMode.TARGET_VERIFY:
        each = table.get_int("draft_token_num", row) or 0
    elif mode is ForwardMode.IDLE and not len(table.columns["positions"].span(row)):
        each = 0
    return np.full(bs, each, dtype=np.int64)


def _row_lengths(batch: ForwardBatch, rows: Ints) -> tuple[Ints, Ints, Ints]:
    prefix_lens, extend_lens = prefix_and_extend(batch)
    prefix = np.zeros(len(rows), dtype=np.int64)
    prefix[: len(prefix_lens)] = prefix_lens.numpy()
    active = rows != 0
    prefix = np.where(active, prefix, 0)
    extend = np.where(active, extend_lens.numpy(), 0).clip(min=0)
    token_row = np.repeat(np.arange(len(rows), dtype=np.int64), extend)
    return prefix, extend, token_row


def _true_positions(
    batch: ForwardBatch,
    worker: str,
    draft_step: int,
    prefix: Ints,
    extend: Ints,
    token_row: Ints,
    tree: Ints | None,
) -> Ints:
    """Where each written token belongs, by the lengths and not by ``positions``."""
    if batch.forward_mode.is_decode_or_idle:
        seq_lens = batch.seq_lens.numpy()[token_row]
        # Draft decode leaves seq_lens unbumped; an inner draft step k writes k further.
        true: Ints = seq_lens + draft_step if worker == "draft" else seq_lens - 1
        return true
    first = np.cumsum(extend) - extend
    within = np.arange(len(token_row), dtype=np.int64) - first[token_row]
    if tree is None:
        linear: Ints = prefix[token_row] + within
        return linear
    return prefix[token_row] + _depths(tree[: len(token_row)], first[token_row])


def _depths(parents: Ints, first: Ints) -> Ints:
    """Depth of each node below the prefix; parents stand before their children."""
    depth = np.zeros(len(parents), dtype=np.int64)
    for node, parent in enumerate(parents.tolist()):
        if parent >= 0:
            depth[node] = depth[int(first[node]) + parent] + 1
    return depth


def rows_as_read(
    forward: Forward, table: NDArray[np.int32], pool: NDArray[np.int64] | None
) -> tuple[NDArray[np.int32], NDArray[np.int64] | None]:
    """A table of its own for a forward that did not read the table as it stands.

    Args:
        forward: The forward.
        table: [rows, row_len] request table.
        pool: Expected tokens of each batch row [bs, n], or None.

    Returns:
        Table and pool whose row b + 1 is what batch row b saw, row 0 the padding row.
    """
    width = max(1, int((forward.prefix).max(initial=0)))
    out = np.zeros((len(forward.rows) + 1, width), dtype=np.int32)
    for b, row in enumerate(forward.rows.tolist()):
        if row == 0:
            continue
        length = int(forward.prefix[b])
        out[b + 1, :length] = table[row, :length]
        cells: list[Any] = forward.row_as_read.get(row, [])
        length = min(length, len(cells))
        out[b + 1, :length] = cells[:length]
    tokens = None
    if pool is not None:
        tokens = np.zeros((len(forward.rows) + 1, max(1, pool.shape[1])), dtype=np.int64)
        tokens[1:, : pool.shape[1]] = pool
    return out, tokens
