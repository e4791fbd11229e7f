"""The forward that is being judged: who runs, what is read, and what will be written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.replay.watcher import Reads

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.follow import Follower
    from kvcanary_cli.replay.driver import Replay
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.violations import ViolationChunk

    Ints = NDArray[np.int64]


def _none() -> Ints:
    return np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class UnderWay:
    """A forward between its reads and its writes.

    Attributes:
        follower: The ledger, before the forward's writes.
        replay: What replays it, None until it is known.
        codes: [bs] name code of each batch row.
        foreign: [tokens] 1 where the writer does not own what it writes.
        lanes: For each lane [tokens] where the tokens go.
        read: What the rows read.
    """

    follower: Follower
    replay: Replay | None = None
    codes: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    foreign: Ints = field(default_factory=_none)
    lanes: list[Ints] = field(default_factory=list)
    read: Reads = field(default_factory=Reads.none)

    def enter_writes(self, forward: Forward) -> None:
        """Enter what ``forward`` wrote."""
        lut = None if self.replay is None else self.replay.pool.lut
        self.follower.forwards.written(forward, self.lanes, self.codes, self.foreign, lut)

    def is_foreign(self, slot: int) -> bool:
        """Whether the forward writes ``slot`` of the full pool without owning it."""
        if not self.lanes:
            return False
        return bool(self.foreign[self.lanes[0] == slot].any())

    def cell(self, forward: Forward | None, row: int, position: int) -> int:
        """What a row names at ``position`` for a forward; 0 if that is not known."""
        if row <= 0 or position < 0 or self.replay is None:
            return 0
        as_read = [] if forward is None else forward.row_as_read.get(row, [])
        if position < len(as_read):
            return int(as_read[position])
        table = self.replay.pool.table
        return int(table[row, position]) if position < table.shape[1] else 0

    def token(self, code: int, position: int) -> int | None:
        """The token that a request has at ``position``, None = not known."""
        name = self.follower.names.name(code)
        histories = None if self.replay is None else self.replay.pool.histories
        if name is None or histories is None or position < 0:
            return None
        tokens = histories.tokens(name)
        token = int(tokens[position]) if position < len(tokens) else -1
        return None if token == -1 else token

    def length(self, code: int) -> int:
        """How many tokens of a request are told; 0 = none are known."""
        name = self.follower.names.name(code)
        histories = None if self.replay is None else self.replay.pool.histories
        return 0 if name is None or histories is None else len(histories.tokens(name))

    def true_position_of(self, forward: Forward, slot: int, chunk: ViolationChunk) -> int:
        """Where the forward should have put what it wrote to ``slot``; -1 = it did not write it."""
        lane = 1 if chunk.pool_kind == "SWA" else 0
        at = np.flatnonzero(self.lanes[lane] == slot)
        return int(forward.true_positions[at[-1]]) if len(at) else -1
