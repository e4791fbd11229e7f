"""Rows as long as the longest request may be, of which most use little."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from kvcanary_cli.replay.pool import PoolState
from kvcanary_cli.trace.header import parse_header
from tests.attribution.events import HEAD

_ROWS, _ROW_LEN, _USED = 128, 1 << 16, 16


def _resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.skipif(sys.platform != "linux", reason="counts resident pages as Linux tells them")
def test_cells_that_are_never_touched_cost_nothing() -> None:
    """A huge page would cost whole rows, wherever one is touched."""
    pool = {"slots": _ROWS * _USED, "rows": _ROWS, "row_len": _ROW_LEN}
    header = parse_header(HEAD | {"pool": pool}, "made")
    state = PoolState(header, device="cpu", check_kv=False, check_tokens=True, v_half=False)
    assert state.histories is not None
    cells = state.table, state.histories.pool
    assert all(table.shape == (_ROWS, _ROW_LEN) for table in cells)
    before = _resident()
    for table in cells:
        table[:, :_USED] = 1
    assert _resident() - before < sum(table.nbytes for table in cells) / 8
