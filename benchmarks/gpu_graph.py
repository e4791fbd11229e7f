"""A step captured in a CUDA graph: that its replays equal the eager step, and what it takes.

In Triton's interpreter there are no graphs; a replay then runs the step again.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu_pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvcanary_cli.backends.interface import Backend

_WARM_UPS = 3
_SAMPLES = 20


class _Eager:
    """Stands in for a graph where there is no GPU: a replay runs the step again."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.replay = step


def capture(step: Callable[[], None], device: str) -> Any:
    """Capture ``step`` after warming it up on a side stream, as capture asks for."""
    if device == "cpu":
        return _Eager(step)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def measure(step: Callable[[], None], device: str) -> tuple[float, float, float]:
    """Median, 20th and 80th percentile of a captured step in microseconds.

    A graph leaves the host's launch time out, as a server's decode does.
    """
    if device == "cpu":
        start = time.perf_counter()
        step()
        once = 1e6 * (time.perf_counter() - start)
        return once, once, once
    graph = capture(step, device)
    for _ in range(_WARM_UPS):
        graph.replay()
    times = []
    for _ in range(_SAMPLES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    cuts = statistics.quantiles(times, n=10)
    return statistics.median(times), cuts[1], cuts[7]


def graph_differences(backend: Backend, replays: int) -> Iterator[str | None]:
    """A captured step, replayed on changed inputs, against the same step launched eagerly."""
    for rows, prefix, extend, clash in ((8, 33, 1, False), (5, 7, 40, False), (6, 9, 4, True)):
        pool = Pool(backend, rows=rows, prefix=prefix, extend=extend, num_slots=4096)
        graph = capture(pool.step, backend.device)
        own_slots = pool.batch["out_cache_loc"].clone()
        for i in range(replays):
            pool.batch["input_ids"].random_(0, 1 << 40)
            pool.plan_inputs["prefix_lens"].copy_(
                torch.randint(1, prefix + 1, (rows,), device=backend.device)
            )
            pool.batch["out_cache_loc"].copy_(own_slots)
            if clash and i % 2:
                # Every other replay takes the in-order path: all rows write to one slot.
                pool.batch["out_cache_loc"].fill_(int(pool.plan_inputs["req_to_token"][1, 0]))
            states = []
            before = pool.context["canary_buf"].clone()
            for run in (pool.step, graph.replay):
                pool.clear()
                pool.context["canary_buf"].copy_(before)
                run()
                states.append(pool.state())
            eager, replayed = states
            total = int(eager["num_valid"])
            for name in ("slots", "prevs"):
                eager[name], replayed[name] = eager[name][:total], replayed[name][:total]
            wrong = [n for n in eager if not torch.equal(eager[n], replayed[n])]
            yield f"rows {rows}, replay {i}: {', '.join(wrong)}" if wrong else None
