"""What a decode step costs against the context of its requests, without reading.

A server's events are made in memory (``scale_traces``), prompts first and decode steps in segments
of their own, so that the steps alone are timed and not what comes before them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.scale_server import Server
from benchmarks.scale_traces import header
from kvcanary_cli.attribution.diagnoser import Diagnoser
from kvcanary_cli.replay.capacity_limits import NOT_CHECKED
from kvcanary_cli.replay.driver import Replay
from kvcanary_cli.replay.options import ReplayOptions, Verify
from kvcanary_cli.trace.header import parse_header
from kvcanary_cli.trace.notes import TraceNotes

if TYPE_CHECKING:
    from kvcanary_cli.trace.segment import Segment

BATCH = 8


class DecodeSteps:
    """Requests with contexts of one length, and decode steps of all of them.

    Args:
        context: Tokens of each prompt.
        steps: DECODE forwards.

    Attributes:
        prompts: Segments of the prompts.
        decodes: Segments of the steps.
    """

    def __init__(self, context: int, steps: int) -> None:
        self.steps = steps
        sizes = {
            "slots": BATCH * (context + steps),
            "batch": BATCH,
            "row_len": context + steps + 2,
        }
        self._header = parse_header(header(**sizes), "made")
        self.prompts: list[Segment] = []
        self.decodes: list[Segment] = []
        server = Server(self.prompts.append, **sizes)
        rows = np.array([server.begin(context) for _ in range(BATCH)])
        server.prefill(rows, 8192)
        server.flush()
        server.out = self.decodes.append
        server.decode(rows, steps)
        server.flush()

    def step_us(self, verify: Verify, rounds: int) -> float:
        """CPU microseconds of a step, ledger included, the least of some replays.

        Raises:
            ValueError: The replay found something.
        """
        return min(self._once(verify) for _ in range(rounds))

    def _once(self, verify: Verify) -> float:
        # The kernels of whole events are asked for: so few steps would not be worth loading them.
        compiled = True if verify is Verify.INCREMENTAL else None
        options = ReplayOptions(backend="cpu", verify=verify, compiled=compiled)
        diagnoser = Diagnoser(self._header, TraceNotes(), ranks=False)
        replay = Replay(self._header, options, NOT_CHECKED, diagnoser)
        diagnoser.replay = replay
        for segment in self.prompts:
            replay.feed(segment)
        replay.flush()
        start = time.process_time()
        for segment in self.decodes:
            replay.feed(segment)
        replay.flush()
        taken = time.process_time() - start
        if diagnoser.findings or len(replay.violations):
            raise ValueError("the replay found something in clean decode steps")
        return 1e6 * taken / self.steps
