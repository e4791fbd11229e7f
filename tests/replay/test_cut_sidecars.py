"""Side data at the head of a cut: what stands beside slots as far as nothing rewrote them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvcanary_cli.attribution.diagnose import diagnose_trace
from kvcanary_cli.replay.capacity_limits import NOT_CHECKED
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.trace.reader import open_trace
from tests.attribution.events import HEAD, extend, numbered
from tests.replay.cut_helpers import cut_to, write_jsonl

Event = dict[str, Any]

HEADER = HEAD | {
    "pool": {"slots": 64, "rows": 9, "row_len": 64, "swa_slots": 80, "swa_window": 8},
    "records": [*HEAD["records"], "sidecar_hash", "lut"],
}
POOLS = ("full", "swa", "draft", "host")
# What may happen before the cut: a pool's slot is written, copied to, or its side data recorded.
THING = st.tuples(
    st.sampled_from(["after", "before", "forward", "copy"]),
    st.sampled_from(POOLS),
    st.integers(1, 3),
    st.integers(5, 6),
)
FIRST = 50


def _happened(number: int, what: str, pool: str, slot: int, value: int) -> list[Event]:
    step = number + 1
    if what in ("after", "before"):
        event = {"kind": "sidecar_hash", "phase": what, "step": step, "name": "k_scale"}
        return [event | {"slots": [slot], "hash": [value], "pool": pool}]
    if what == "copy":
        copy: Event = {"kind": "copy", "src": [value - 4], "dst": [slot]}
        return [copy | {"src_pool": pool, "dst_pool": pool}]
    if pool == "host":
        return []
    req, worker = f"r{number}", {"worker": "draft"} if pool == "draft" else {}
    lut = [{"kind": "lut", "full": [slot], "swa": [slot if pool == "swa" else 20 + slot]}]
    return [
        *lut,
        {"kind": "history", "req": req, "start": 0, "ids": [7]},
        {"kind": "map", "row": 1, "start": 0, "slots": [slot]},
        extend(step, req, 1, 0, [7], [slot]) | worker,
    ]


def _told(path: Path, steps: tuple[int, None] | None) -> set[tuple[str, str, str, int]]:
    options = ReplayOptions(backend="cpu", steps=steps)
    diagnosis = diagnose_trace(open_trace(path), options, NOT_CHECKED)
    return {
        (f.worker, f.pool_kind, f.subtype, slot)
        for f in diagnosis.findings
        if f.cls == "payload_mutation"
        for slot in f.slots
    }


@given(things=st.lists(THING, min_size=1, max_size=8), value=st.integers(5, 6))
@example(things=[("after", "full", 1, 5), ("forward", "full", 1, 5)], value=6)
@example(things=[("after", "full", 1, 5), ("copy", "full", 1, 5)], value=6)
@example(things=[("before", "full", 1, 5)], value=6)
@example(things=[("after", "draft", 1, 5), ("forward", "full", 1, 5)], value=6)
@settings(max_examples=15, deadline=None)
def test_a_cut_tells_what_the_whole_tells(
    things: list[tuple[str, str, int, int]], value: int
) -> None:
    events = [e for k, thing in enumerate(things) for e in _happened(k, *thing)]
    events += _happened(FIRST - 1, "forward", "full", 30, 0)
    for pool in POOLS:
        for slot in (1, 2, 3):
            events += _happened(FIRST, "before", pool, slot, value)
    with TemporaryDirectory() as folder:
        whole = write_jsonl(Path(folder) / "whole.jsonl", HEADER, numbered(events))
        target, _ = cut_to(whole, Path(folder), (FIRST, None))
        assert _told(target, None) == _told(whole, (FIRST, None))
