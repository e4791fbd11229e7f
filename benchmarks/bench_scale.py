"""How a replay grows: with context, with recorded tokens, with memory.

    python -m benchmarks.bench_scale [--seconds S] [--folder DIR] [--large-gb G]

Whole commands, start to end, on generated traces (``scale_traces``). Times are CPU seconds of all
threads, so that a shared machine does not decide; the clock's are beside them. Sizes follow from
the speed found in a first small run, so that a command takes about ``--seconds``.

- a decode step against the context of its requests: two traces that differ in steps only;
- a recorded token at N and at 4 N tokens;
- tokens a second, decode-heavy and prefill-heavy, beside a bare compiled loop over the same columns
  (``floor``) run right after;
- reading and checking alone (``trace validate``);
- memory, beside what the rows, the table and the ledger take.

``--large-gb`` also makes a trace of that size, replays it, prints its memory and deletes it.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import scale_traces
from benchmarks.figures import KVCANARY, Figure, Run, machine, run_command, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Recorded tokens a second that the whole command should reach on a quiet machine.
TARGETS = {"decode-heavy": 5_000_000, "prefill-heavy": 15_000_000}
CONTEXTS = (1024, 8192, 32_768, 131_072)
_MAKERS: dict[str, Callable[..., int]] = {
    "decode-heavy": scale_traces.decode_heavy,
    "prefill-heavy": scale_traces.prefill_heavy,
}
_SIZES = (64_000, 250_000, 1_000_000, 4_000_000, 10_000_000, 20_000_000)
_TINY = 1
_MOST_STEPS = 51_200
_FLAT, _LINEAR, _MEMORY = 1.5, 1.1, 1.5
_LARGE_BOUND = 2 << 30


def replay(path: Path, *extra: str) -> Run:
    """``kvcanary replay`` of a trace that is clean; anything else is an error."""
    run = run_command([*KVCANARY, "replay", str(path), "--backend", "cpu", *extra])
    if "CLEAN" not in run.output:
        raise SystemExit(f"a generated trace was not clean:\n{run.output}")
    return run


def has_verify_option() -> bool:
    """Whether this kvcanary knows ``--verify``."""
    return "--verify" in run_command([*KVCANARY, "replay", "--help"]).output


class Scale:
    """The measurements; each gives its figures.

    Args:
        folder: For the traces.
        seconds: About how long a command may take, in CPU seconds.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._ways: tuple[tuple[str, ...], ...] = ((),)
        if has_verify_option():
            self._ways = (("--verify", "incremental"), ("--verify", "full"))
        tiny = self.trace("decode-heavy", _TINY)
        replay(tiny)  # fills the compile cache
        #: A replay of next to nothing: the interpreter, its imports and its compiled code.
        self.start = replay(tiny)

    def trace(self, shape: str, tokens: int) -> Path:
        """A trace of that shape, made when it is first asked for."""
        path = self._folder / f"{shape}-{tokens}.pt"
        if not path.exists():
            small = {"slots": 4000, "batch": 4, "prefill": 32, "decode": 16}
            _MAKERS[shape](path, tokens=tokens, **(small if tokens == _TINY else {}))
        return path

    def steps(self) -> list[Figure]:
        """CPU time of a decode step at each context, both ways of verifying."""
        figures = []
        for way in self._ways:
            name = way[-1] if way else "as it is"
            costs = []
            for context in CONTEXTS:
                costs.append(self._step_us(context, way))
                print(f"  {name}, context {context}: {costs[-1]:.0f} us a step", flush=True)
            figures += [
                Figure(
                    f"decode step, batch 8, {name}, context {context:,}",
                    f"{cost:,.0f} us",
                    f"context {CONTEXTS[0]:,}; flat is up to {_FLAT}",
                    f"{costs[0]:,.0f} us",
                    cost / costs[0],
                )
                for context, cost in zip(CONTEXTS[1:], costs[1:], strict=True)
            ]
        return figures

    def _step_us(self, context: int, way: Sequence[str]) -> float:
        steps, least = 100, self._seconds / 5
        few, many = (self._folder / f"context-{k}.pt" for k in ("few", "many"))
        scale_traces.long_context(few, context=context, steps=4)
        before = replay(few, *way).cpu_s
        while True:
            scale_traces.long_context(many, context=context, steps=4 + steps)
            grown = replay(many, *way).cpu_s - before
            if grown >= least or steps >= _MOST_STEPS:
                # Less than this is lost between two starts of the interpreter.
                return 1e6 * max(grown, 0.01) / steps
            steps *= 8

    def _size(self, shape: str) -> tuple[int, float]:
        """Tokens N so that 4 N take about the time given; CPU seconds a token so far."""
        tokens = _SIZES[0]
        run = replay(self.trace(shape, tokens))
        for larger in _SIZES[1:]:
            cost = max(run.cpu_s - self.start.cpu_s, 0.01) / tokens
            if 4 * larger * cost > self._seconds:
                break
            tokens = larger
            run = replay(self.trace(shape, tokens))
        return tokens, max(run.cpu_s - self.start.cpu_s, 0.01) / tokens

    def throughput(self, shape: str) -> list[Figure]:
        """Linearity and speed of one shape, its floor, and reading alone."""
        from benchmarks.floor import floor_seconds

        tokens, _ = self._size(shape)
        print(f"  {shape}: N = {tokens:,} tokens", flush=True)
        paths = [self.trace(shape, n) for n in (tokens, 4 * tokens)]
        recorded = [_recorded(path) for path in paths]
        runs = [replay(path) for path in paths]
        costs = [(run.cpu_s - self.start.cpu_s) / n for run, n in zip(runs, recorded, strict=True)]
        floor, floor_tokens = floor_seconds(paths[0])
        read = run_command([*KVCANARY, "trace", "validate", str(paths[1])])
        nothing = run_command([*KVCANARY, "trace", "validate", str(self.trace(shape, _TINY))])
        whole = recorded[1] / runs[1].wall_s
        size = paths[1].stat().st_size
        read_s = max(read.cpu_s - nothing.cpu_s, 1e-3)
        floor_ns = 1e9 * floor / floor_tokens
        return [
            Figure(
                f"{shape}, CPU time a token at {recorded[1]:,} tokens",
                f"{1e9 * costs[1]:,.0f} ns",
                f"at {recorded[0]:,}; linear is up to {_LINEAR}",
                f"{1e9 * costs[0]:,.0f} ns",
                costs[1] / costs[0],
            ),
            Figure(
                f"{shape}, CPU time a token",
                f"{1e9 * costs[1]:,.0f} ns",
                "bare compiled loop over the columns",
                f"{floor_ns:,.0f} ns",
                1e9 * costs[1] / floor_ns,
            ),
            Figure(
                f"{shape}, tokens a second by the clock, start included",
                f"{whole:,.0f}",
                "target on a quiet machine",
                f"{TARGETS[shape]:,}",
                whole / TARGETS[shape],
            ),
            Figure(
                f"{shape}, reading and checking, CPU time a token",
                f"{1e9 * read_s / recorded[1]:,.0f} ns",
                f"copy of its {size / recorded[1]:.0f} bytes a token",
                f"{1e9 * copy_seconds(size) / recorded[1]:,.0f} ns",
                read_s / copy_seconds(size),
            ),
        ]

    def memory(self) -> list[Figure]:
        """Peak memory beyond an idle replay's, with many slots, beside what is kept for them."""
        path = self._folder / "memory.pt"
        slots, batch, tokens = 1_000_000, 256, 20_000
        scale_traces.decode_heavy(path, tokens=tokens, slots=slots, batch=batch)
        run = replay(path)
        kept = kept_bytes(slots, batch + 1, 64 + 320 + 512 + 2)
        beyond = run.peak_bytes - self.start.peak_bytes
        return [
            Figure(
                f"memory beyond an idle replay's {_mib(self.start.peak_bytes)}, {slots:,} slots",
                _mib(beyond),
                f"rows, table and ledger; bound {_MEMORY}",
                _mib(kept),
                beyond / kept,
            )
        ]

    def large(self, gigabytes: float) -> list[Figure]:
        """A trace larger than memory's bound, replayed and deleted."""
        path = self._folder / "large.kvtrace"
        tokens = int(gigabytes * 1e9 / 57)
        try:
            start = time.perf_counter()
            recorded = scale_traces.decode_heavy(path, tokens=tokens)
            size = sum(part.stat().st_size for part in path.iterdir())
            print(
                f"  large: {size / 1e9:.2f} GB, {recorded:,} tokens, made in "
                f"{time.perf_counter() - start:.0f} s",
                flush=True,
            )
            read = run_command([*KVCANARY, "trace", "validate", str(path)])
            figures = [
                Figure(
                    f"memory of trace validate, {size / 1e9:.2f} GB",
                    _mib(read.peak_bytes),
                    "2 GB",
                    _mib(_LARGE_BOUND),
                    read.peak_bytes / _LARGE_BOUND,
                )
            ]
            run = replay(path)
        finally:
            shutil.rmtree(path, ignore_errors=True)
        return [
            *figures,
            Figure(
                f"memory of replay, {size / 1e9:.2f} GB, {recorded:,} tokens, {run.wall_s:.0f} s",
                _mib(run.peak_bytes),
                "2 GB",
                _mib(_LARGE_BOUND),
                run.peak_bytes / _LARGE_BOUND,
            ),
        ]


def _recorded(path: Path) -> int:
    """Tokens of a trace's forwards."""
    from kvcanary_cli.trace.pt_reader import load_stored

    return len(load_stored(path).tables["forward"].columns["out_cache_loc"].values)


def copy_seconds(size_bytes: int) -> float:
    """CPU seconds that a copy of so many bytes takes here, the best of three."""
    import numpy as np

    source = np.ones(min(size_bytes, 1 << 28), dtype=np.uint8)
    target = np.ones_like(source)
    best = float("inf")
    for _ in range(3):
        start = time.thread_time()
        np.copyto(target, source)
        best = min(best, time.thread_time() - start)
    return best * size_bytes / len(source)


def kept_bytes(slots: int, rows: int, row_len: int) -> int:
    """Bytes of canary rows, request table and ledger, as the replay allocates them."""
    from kvcanary_cli.abi.constants import SLOT_BYTES
    from kvcanary_cli.attribution.diagnoser import Diagnoser
    from kvcanary_cli.trace.header import parse_header
    from kvcanary_cli.trace.notes import TraceNotes

    made = scale_traces.header(slots=slots, batch=rows - 1, row_len=row_len)
    tracemalloc.start()
    diagnoser = Diagnoser(parse_header(made, "made"), TraceNotes(), ranks=False)
    diagnoser.follower.lane("target", "FULL")
    ledger, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A lane has rows of its own for HEAD and for TAIL.
    return 2 * slots * SLOT_BYTES + rows * row_len * 4 + ledger


def _mib(size: float) -> str:
    return f"{size / 2**20:,.0f} MiB"


def measure(folder: Path, seconds: float, large_gb: float = 0) -> list[Figure]:
    """All figures; each part is shown when it is there, since all of them take minutes."""
    scale = Scale(folder, seconds)
    parts: list[Callable[[], list[Figure]]] = [
        lambda: scale.throughput("decode-heavy"),
        lambda: scale.throughput("prefill-heavy"),
        scale.memory,
        scale.steps,
    ]
    if large_gb:
        parts.append(lambda: scale.large(large_gb))
    figures: list[Figure] = []
    for part in parts:
        found = part()
        figures += found
        for figure in found:
            print(f"  {figure.name}: {figure.value} against {figure.other}", flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--folder", type=Path, help="where the traces are made; default: temporary")
    parser.add_argument("--large-gb", type=float, default=0, metavar="G")
    args = parser.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        print(table(measure(Path(folder), args.seconds, args.large_gb)))


if __name__ == "__main__":
    main()
