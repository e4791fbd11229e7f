"""A session of an engine that does not exist, and what its recording says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.record.ledger import Ledger
from kvcanary_cli.record.options import RecordOptions
from kvcanary_cli.record.session import Session
from kvcanary_cli.record.shadows import TableShadow
from kvcanary_cli.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path

#: How long a test waits for what must happen: only what hangs takes so long, on any machine.
WAIT_S = 900.0
SLOTS, ROWS, ROW_LEN = 64, 5, 32
HEADER: dict[str, Any] = {
    "engine": {"name": "toy", "version": "1"},
    "rank": {"tp": 0, "pp": 0, "dp": 0},
    "pool": {"slots": SLOTS, "rows": ROWS, "row_len": ROW_LEN},
    "records": ["forward", "map", "alloc"],
}


class Toy:
    """Decodes one request token by token, recorded."""

    def __init__(self, folder: Path, *, rank: int = 0, **options: Any) -> None:
        options.setdefault("tokens", "raw")
        header = {**HEADER, "rank": {"tp": rank, "pp": 0, "dp": 0}}
        self.session = Session(RecordOptions(path=str(folder / "run.kvtrace"), **options), header)
        self.table = np.zeros((ROWS, ROW_LEN), dtype=np.int32)
        self.ledger, self.shadow = Ledger(SLOTS + 1), TableShadow(self.table)
        self.session.add_state(self.ledger)
        self.session.add_state(self.shadow)
        self.steps = self.length = 0

    def step(self) -> None:
        """One decode; a full row is given back first, as another request's."""
        req, row = f"r{self.steps // ROW_LEN}", 1
        position = self.steps % ROW_LEN
        if position == 0 and self.steps:
            owned = self.table[row].astype(np.int64)
            self.session.emit_all(self.ledger.free(f"r{self.steps // ROW_LEN - 1}", owned, "end"))
        slot = np.array([1 + position + ROW_LEN * (self.steps // ROW_LEN % 2)], dtype=np.int64)
        self.session.emit_all(self.ledger.alloc(req, slot))
        self.table[row, position] = slot[0]
        self.session.emit_all(self.shadow.show([row], [position + 1]))
        self.session.emit(
            {
                "kind": "forward",
                "step": self.steps,
                "forward_mode": "DECODE",
                "reqs": [req],
                "req_pool_indices": [row],
                "seq_lens": [position + 1],
                "input_ids": [7 + position],
                "positions": [position],
                "out_cache_loc": slot,
            }
        )
        self.session.commit(step=True)
        self.steps += 1


def _number(path: Path) -> int:
    words = [word for word in path.name.split(".") if not word.startswith("kept")]
    return int(words[1]) if len(words) == 3 else 1


def parts(folder: Path) -> list[Path]:
    """The traces of a recording that no trigger has kept, in order."""
    every = (folder / "run.kvtrace").glob("*.kvtrace")
    return sorted((path for path in every if ".kept" not in path.name), key=_number)


def kept(folder: Path, rank: str = "tp0") -> list[Path]:
    """Those that a trigger has kept."""
    return sorted((folder / "run.kvtrace").glob(f"{rank}-*.kept*.kvtrace"), key=_number)


def events(trace: Path) -> list[dict[str, Any]]:
    return [event for segment in open_trace(trace).segments() for event in segment.events()]


def steps(trace: Path) -> list[int]:
    return [event["step"] for event in events(trace) if event["kind"] == "forward"]


def replay(trace: Path) -> Any:
    """Replay with ownership; the diagnosis."""
    from kvcanary_cli.attribution.diagnose import diagnose_trace
    from kvcanary_cli.replay.capacity_limits import NOT_CHECKED
    from kvcanary_cli.replay.options import ReplayOptions

    return diagnose_trace(open_trace(trace), ReplayOptions(backend="cpu"), NOT_CHECKED)


def sound_verdict(diagnosis: Any) -> str:
    """The verdict of a sound engine's recording with gaps: they may leave no read to be checked."""
    coverage = diagnosis.replay.coverage
    checked = coverage.entries_verified or not coverage.entries_skipped
    return "clean" if checked else "not_checked"
