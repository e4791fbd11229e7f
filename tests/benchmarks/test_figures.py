"""The benchmarks' own parts: the table, runs of commands, the floor, what is read from texts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import bench_all, bench_scale, scale_traces
from benchmarks.decode_steps import DecodeSteps
from benchmarks.figures import Figure, run_command, table
from benchmarks.floor import Floor, floor_seconds
from kvcanary_cli.replay.capacity_limits import NOT_CHECKED
from kvcanary_cli.replay.driver import Replay
from kvcanary_cli.replay.options import ReplayOptions, Verify
from kvcanary_cli.trace.reader import open_trace

RESULTS = Path(bench_all.__file__).parent / "results"


def test_the_table_lines_up() -> None:
    figures = [
        Figure("a step", "12 us", "a bound", "10 us", 1.2),
        Figure("something longer", "1 us", "peer", "1,000 us", None),
    ]
    head, first, second = table(figures).splitlines()
    assert head.index("bound or peer") == first.index("a bound") == second.index("peer")
    assert first.endswith("1.20")
    assert table([Figure("f", "", "", "", 0.000512)]).endswith(" 0.00051")
    assert second.endswith("1,000 us")


def test_a_command_is_measured() -> None:
    code = "x = bytearray(80 << 20); print(sum(range(10 ** 6)))"
    run = run_command([sys.executable, "-c", code])
    assert run.output == "499999500000\n"
    assert run.wall_s > 0
    assert run.cpu_s > 0
    assert run.peak_bytes > 80 << 20


def test_the_memory_of_who_measures_is_not_the_commands() -> None:
    held = b"x" * (200 << 20)
    assert run_command([sys.executable, "-c", "pass"]).peak_bytes < len(held)


def test_a_command_that_fails_ends_the_benchmark() -> None:
    with pytest.raises(SystemExit, match="ended with 3:\nno"):
        run_command([sys.executable, "-c", "print('no'); raise SystemExit(3)"])


@pytest.mark.parametrize("shape", ["decode", "prefill"])
def test_the_floor_does_the_work_of_a_replay(shape: str, tmp_path: Path) -> None:
    """It leaves the canary rows that a replay leaves."""
    path = tmp_path / "trace.pt"
    if shape == "decode":
        scale_traces.decode_heavy(
            path, tokens=2000, slots=700, batch=8, prefill=40, decode=32, shared=8, groups=4
        )
    else:
        scale_traces.prefill_heavy(path, tokens=2000, slots=1000, batch=3, prefill=200, chunk=64)
    floor = Floor(path)
    seconds, tokens = floor.run()
    reader = open_trace(path)
    replay = Replay(reader.header, ReplayOptions(backend="cpu"), NOT_CHECKED)
    replay.run(reader)
    assert tokens == reader.checked.tokens
    assert seconds > 0
    rows = replay.workers["target"].lanes[0].buffers()["k", "head"].numpy().view(np.int64)
    assert np.array_equal(floor.canary[1:], rows[1:])


def test_the_floor_refuses_a_trace_that_is_not_clean(tmp_path: Path) -> None:
    from tests.trace.helpers import read_events, write_trace

    path = tmp_path / "trace.pt"
    scale_traces.long_context(path, context=40, steps=5, batch=2)
    events = read_events(path)
    for event in events:
        if event["kind"] == "map" and event["start"] == 42:
            event["slots"] = [1]
    header = dict(open_trace(path).header.raw)
    write_trace(path, header, events)
    with pytest.raises(ValueError, match="misplaced"):
        floor_seconds(path, rounds=1)


def test_figures_are_read_from_what_the_kernels_benchmark_prints() -> None:
    lines = (RESULTS / "kernels_cpu.txt").read_text()
    found = [match.groupdict() for match in bench_all._KERNEL.finditer(lines)]
    assert {match["op"] for match in found} == {"plan", "verify", "write"}


def test_what_a_replay_keeps_grows_with_the_slots() -> None:
    few, many = (bench_scale.kept_bytes(slots, 9, 100) for slots in (100_000, 200_000))
    per_slot = (many - few) / 100_000
    assert 100 < per_slot < 400


@pytest.mark.parametrize("verify", Verify)
def test_decode_steps_are_replayed_clean(verify: Verify) -> None:
    assert DecodeSteps(context=30, steps=5).step_us(verify, rounds=1) > 0


def test_decode_steps_that_are_not_clean_are_no_measurement() -> None:
    made = DecodeSteps(context=30, steps=5)
    cells = made.decodes[0].tables["map"].columns["slots"].values
    cells[0] = cells[1]
    with pytest.raises(ValueError, match="found something"):
        made.step_us(Verify.INCREMENTAL, rounds=1)
