"""What the ledger costs: a replay with the diagnosis against the same replay without it.

Run ``python -m benchmarks.bench_ledger``; it prints one line a trace. The larger trace is the
largest capture several times over, each copy with requests and steps of its own.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcanary_cli.attribution.diagnose import diagnose_trace
from kvcanary_cli.attribution.ledger import Ownership, Writes
from kvcanary_cli.replay.capacity_limits import NOT_CHECKED
from kvcanary_cli.replay.driver import replay_trace
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.trace.reader import open_trace
from kvcanary_cli.trace.writer import open_writer

if TYPE_CHECKING:
    from collections.abc import Callable

CAPTURES = Path(__file__).parents[1] / "tests" / "data" / "captures"
LARGEST = CAPTURES / "clean_radix.jsonl.zst"
COPIES = 4
ROUNDS = 5


def _later_copy(event: dict[str, Any], copy: int, events: int, steps: int) -> dict[str, Any]:
    """An event of the ``copy``-th round: other requests, later steps and numbers."""

    def named(name: str | None) -> str | None:
        return name if name in (None, "tree") else f"{name}.{copy}"

    out = dict(event)
    out["i"] += copy * events
    for key in ("req", "owner", "from"):
        if key in out:
            out[key] = named(out[key])
    if "reqs" in out:
        out["reqs"] = [named(req) for req in out["reqs"]]
    if "step" in out:
        out["step"] += copy * steps
    return out


def write_larger(path: Path) -> None:
    """The largest capture ``COPIES`` times; between rounds everything still owned is freed."""
    reader = open_trace(LARGEST)
    events = [event for segment in reader.segments() for event in segment.events()]
    owners: dict[int, str] = {}
    for event in events:
        if event["kind"] in ("alloc", "own"):
            owners.update(dict.fromkeys(event["slots"], event["owner"]))
        elif event["kind"] == "free":
            for slot in event["slots"]:
                owners.pop(slot, None)
    last = events[-1]["i"]
    for owner in sorted(set(owners.values())):
        last += 1
        held = [slot for slot, name in owners.items() if name == owner]
        events.append({"kind": "free", "i": last, "owner": owner, "slots": held})
    steps = max(event.get("step", 0) for event in events) + 1
    with open_writer(path, reader.header, overwrite=True) as writer:
        for copy in range(COPIES):
            for event in events:
                writer.write_event(_later_copy(event, copy, len(events), steps))


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def measure(path: Path) -> tuple[float, float, int]:
    """Median seconds without and with the ledger, taken in turns; forwards."""
    options = ReplayOptions(backend="cpu")
    diagnosis = diagnose_trace(open_trace(path), options, NOT_CHECKED)
    assert diagnosis.verdict == "clean"
    plain, watched = [], []
    for _ in range(ROUNDS):
        plain.append(_seconds(lambda: replay_trace(open_trace(path), options, NOT_CHECKED)))
        watched.append(_seconds(lambda: diagnose_trace(open_trace(path), options, NOT_CHECKED)))
    return statistics.median(plain), statistics.median(watched), diagnosis.replay.trace.forwards


def _mebibytes(slots: int) -> float:
    holders = (Ownership(slots), Writes(slots))
    return sum(getattr(v, "nbytes", 0) for h in holders for v in vars(h).values()) / 2**20


def main() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        larger = Path(folder) / "larger.pt"
        write_larger(larger)
        for name, path in ((LARGEST.name, LARGEST), (f"{COPIES} x {LARGEST.name}", larger)):
            plain, watched, forwards = measure(path)
            print(
                f"{name}: {forwards} forwards, replay {plain:.2f} s, with the ledger "
                f"{watched:.2f} s, ratio {watched / plain:.2f}"
            )
    print(f"ledger of 1,000,000 slots: {_mebibytes(1_000_000):.0f} MiB")


if __name__ == "__main__":
    main()
