"""How a replay grows: with context, with recorded tokens, with memory.

    python -m benchmarks.bench_scale [--seconds S] [--tokens N] [--folder DIR] [--large-gb G]

On generated traces (``scale_traces``). Times are CPU seconds of all threads, so that a shared
machine does not decide; tokens a second are by the clock, of a whole command. Sizes follow from the
speed found in a first small run, so that a replay takes about ``--seconds``; ``--tokens`` says
itself how many the larger trace of each shape has.

- a decode step against the context of its requests (``decode_steps``);
- a recorded token at N and at 4 N tokens;
- tokens a second, decode-heavy and prefill-heavy, beside a bare compiled loop over the same columns
  (``floor``) run right after;
- memory, beside what the rows, the table and the ledger take.

``--large-gb`` also makes a trace of that size of each shape, replays it, prints its memory and
speed, and deletes it.
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
from benchmarks.bench_reading import widened_bytes
from benchmarks.decode_steps import BATCH, DecodeSteps
from benchmarks.figures import KVCANARY, Figure, Run, cpu_seconds, machine, run_command, table
from kvcanary_cli.attribution.diagnose import diagnose_trace
from kvcanary_cli.replay.capacity_limits import NOT_CHECKED
from kvcanary_cli.replay.options import ReplayOptions, Verify
from kvcanary_cli.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Callable

#: Recorded tokens a second that the whole command should reach on a quiet machine.
TARGETS = {"decode-heavy": 5_000_000, "prefill-heavy": 15_000_000}
CONTEXTS = (1024, 8192, 32_768, 131_072)
_MAKERS: dict[str, Callable[..., int]] = {
    "decode-heavy": scale_traces.decode_heavy,
    "prefill-heavy": scale_traces.prefill_heavy,
}
#: Of a recorded token in a trace.
_BYTES = {"decode-heavy": 57, "prefill-heavy": 32}
#: A smaller trace is mostly the first requests' beginning.
_SIZES = (1_000_000, 4_000_000, 10_000_000, 20_000_000)
#: Decode steps that are timed, and how often. In full verification each looks at every prefix, so
#: fewer do, at one context.
_STEPS, _ROUNDS = 2000, 5
_FULL_STEPS, _FULL_CONTEXT = 40, 32_768
_FLAT, _LINEAR, _MEMORY = 1.5, 1.1, 1.5
_LARGE_BOUND = 2 << 30
_LARGE_RUNS = 3


def replay(path: Path) -> Run:
    """``kvcanary replay`` of a trace that is clean; anything else is an error."""
    run = run_command([*KVCANARY, "replay", str(path), "--backend", "cpu"])
    if "CLEAN" not in run.output:
        raise SystemExit(f"a generated trace was not clean:\n{run.output}")
    return run


def replay_s(path: Path, rounds: int = 2) -> float:
    """CPU seconds of a replay in this process, reading and ledger included, the least of some.

    What every command pays once, the interpreter, its imports and compiled code, is no part of
    them: it is seconds, and varies by more than a step or a small trace takes.
    """
    options = ReplayOptions(backend="cpu", verify=Verify.INCREMENTAL)

    def once() -> None:
        diagnosis = diagnose_trace(open_trace(path), options, NOT_CHECKED, ranks=False)
        if diagnosis.verdict != "clean":
            raise SystemExit(f"{path.name}: the replay found something in a clean trace")

    return min(cpu_seconds(once) for _ in range(rounds))


class Scale:
    """The measurements; each gives its figures.

    Args:
        folder: For the traces.
        seconds: About how long a replay may take, in CPU seconds.
        tokens: Of the larger trace of each shape; None = what the time is enough for.
    """

    def __init__(self, folder: Path, seconds: float, tokens: int | None = None) -> None:
        self._folder = folder
        self._seconds = seconds
        self._tokens = tokens
        idle = folder / "idle.pt"
        # So many events that the kernels are the same as those of a large trace.
        scale_traces.decode_heavy(
            idle, tokens=20_000, slots=4000, batch=4, prefill=32, decode=16, shared=8
        )
        for _ in range(2):
            replay(idle)  # fills the compile cache
        #: A replay of next to nothing: the interpreter, its imports and its compiled code.
        self.start = replay(idle)

    def trace(self, shape: str, tokens: int) -> Path:
        """A trace of that shape, made when it is first asked for."""
        path = self._folder / f"{shape}-{tokens}.pt"
        if not path.exists():
            _MAKERS[shape](path, tokens=tokens)
        return path

    def steps(self) -> list[Figure]:
        """CPU time of a decode step at each context, and what it is in full verification."""
        costs = {}
        for context in CONTEXTS:
            made = DecodeSteps(context, _STEPS)
            costs[context] = made.step_us(Verify.INCREMENTAL, _ROUNDS)
        first = CONTEXTS[0]
        figures = [
            Figure(
                f"decode step, batch {BATCH}, context {context:,}",
                f"{cost:.1f} us",
                f"context {first:,}; flat is up to {_FLAT}",
                f"{costs[first]:.1f} us",
                cost / costs[first],
            )
            for context, cost in list(costs.items())[1:]
        ]
        full = DecodeSteps(_FULL_CONTEXT, _FULL_STEPS).step_us(Verify.FULL, 1)
        figures.append(
            Figure(
                f"decode step, batch {BATCH}, context {_FULL_CONTEXT:,}",
                f"{costs[_FULL_CONTEXT]:.1f} us",
                "the same with --verify full",
                f"{full:,.0f} us",
                costs[_FULL_CONTEXT] / full,
            )
        )
        return figures

    def _size(self, shape: str) -> int:
        """Tokens N so that 4 N take about the time given, or are as many as asked for."""
        if self._tokens is not None:
            return self._tokens // 4
        replay_s(self.trace(shape, _SIZES[0]), rounds=1)  # loads the kernels
        tokens = _SIZES[0]
        for larger in _SIZES[1:]:
            cost = replay_s(self.trace(shape, tokens), rounds=1) / tokens
            if 4 * larger * cost > self._seconds:
                break
            tokens = larger
        return tokens

    def throughput(self, shape: str) -> list[Figure]:
        """Linearity and speed of one shape, and its floor."""
        from benchmarks.floor import floor_seconds

        tokens = self._size(shape)
        print(f"  {shape}: N = {tokens:,} tokens", flush=True)
        paths = [self.trace(shape, n) for n in (tokens, 4 * tokens)]
        recorded = [_recorded(path) for path in paths]
        costs = [replay_s(path) / n for path, n in zip(paths, recorded, strict=True)]
        floor, floor_tokens = floor_seconds(paths[0])
        run = replay(paths[1])
        beyond_s = max(run.cpu_s - self.start.cpu_s, 1e-3)
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
            _speed(shape, f"{recorded[1]:,} tokens", recorded[1], run),
            Figure(
                f"{shape}, {recorded[1]:,} tokens, tokens a second of CPU, beyond an idle replay's",
                f"{recorded[1] / beyond_s:,.0f}",
                "target by the clock of a quiet machine",
                f"{TARGETS[shape]:,}",
                recorded[1] / beyond_s / TARGETS[shape],
            ),
        ]

    def memory(self) -> list[Figure]:
        """Peak memory beyond an idle replay's, with many slots, beside what is kept for them."""
        path = self._folder / "memory.pt"
        slots, batch, tokens = 1_000_000, 256, 2_000_000
        scale_traces.decode_heavy(path, tokens=tokens, slots=slots, batch=batch)
        run = replay(path)
        kept = kept_bytes(slots, batch + 1, 64 + 320 + 512 + 2)
        segment = max(widened_bytes(segment) for segment in open_trace(path).segments())
        bound = _MEMORY * kept + segment
        beyond = run.peak_bytes - self.start.peak_bytes
        return [
            Figure(
                f"memory beyond an idle replay's {_mib(self.start.peak_bytes)}, {slots:,} slots",
                _mib(beyond),
                f"{_MEMORY} x (rows, table, ledger: {_mib(kept)}) + a segment",
                _mib(bound),
                beyond / bound,
            )
        ]

    def large(self, shape: str, gigabytes: float) -> list[Figure]:
        """A trace larger than memory's bound, replayed and deleted.

        Beside it the start of a command is little, so its speed is by the clock of the whole.
        """
        path = self._folder / "large.kvtrace"
        tokens = int(gigabytes * 1e9 / _BYTES[shape])
        try:
            start = time.perf_counter()
            recorded = _MAKERS[shape](path, tokens=tokens)
            gb = f"{sum(part.stat().st_size for part in path.iterdir()) / 1e9:.2f} GB"
            print(
                f"  {shape}: {gb}, {recorded:,} tokens, made in "
                f"{time.perf_counter() - start:.0f} s",
                flush=True,
            )
            read = run_command([*KVCANARY, "trace", "validate", str(path)])
            runs = sorted((replay(path) for _ in range(_LARGE_RUNS)), key=lambda run: run.wall_s)
        finally:
            shutil.rmtree(path, ignore_errors=True)
        return [
            *(
                Figure(
                    f"{shape}, {gb}, memory of {name}",
                    _mib(peak),
                    "2 GB",
                    _mib(_LARGE_BOUND),
                    peak / _LARGE_BOUND,
                )
                for name, peak in (
                    ("trace validate", read.peak_bytes),
                    ("replay", max(run.peak_bytes for run in runs)),
                )
            ),
            _speed(
                shape,
                f"{gb}, {recorded:,} tokens, median of {_LARGE_RUNS} runs",
                recorded,
                runs[len(runs) // 2],
            ),
        ]


def _speed(shape: str, what: str, recorded: int, run: Run) -> Figure:
    """Tokens a second of a whole command."""
    return Figure(
        f"{shape}, {what}, tokens a second by the clock, start included",
        f"{recorded / run.wall_s:,.0f}",
        "target by the clock of a quiet machine",
        f"{TARGETS[shape]:,}",
        recorded / run.wall_s / TARGETS[shape],
    )


def _recorded(path: Path) -> int:
    """Tokens of a trace's forwards."""
    from kvcanary_cli.trace.pt_reader import load_stored

    return len(load_stored(path).tables["forward"].columns["out_cache_loc"].values)


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


def measure(
    folder: Path, seconds: float, tokens: int | None = None, large_gb: float = 0
) -> list[Figure]:
    """All figures; each part is shown when it is there, since all of them take minutes."""
    scale = Scale(folder, seconds, tokens)
    parts: list[Callable[[], list[Figure]]] = [
        lambda: scale.throughput("decode-heavy"),
        lambda: scale.throughput("prefill-heavy"),
        scale.memory,
        scale.steps,
    ]
    if large_gb:
        parts += [
            lambda: scale.large("decode-heavy", large_gb),
            lambda: scale.large("prefill-heavy", large_gb),
        ]
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
    parser.add_argument("--tokens", type=int, help="of the larger trace of each shape")
    parser.add_argument("--folder", type=Path, help="where the traces are made; default: temporary")
    parser.add_argument("--large-gb", type=float, default=0, metavar="G")
    args = parser.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        print(table(measure(Path(folder), args.seconds, args.tokens, args.large_gb)))


if __name__ == "__main__":
    main()
