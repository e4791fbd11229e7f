"""A cut behind a verification of drafts still knows what was verified, and what was accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.attribution.diagnose import diagnose_trace
from kvcanary_cli.replay.capacity_limits import NOT_CHECKED
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.trace.reader import open_trace
from tests.attribution.events import HEAD, decode_step, index_of, life, numbered
from tests.replay.cut_helpers import cut_to, events_of, forward_steps, write_jsonl

if TYPE_CHECKING:
    from pathlib import Path

    from kvcanary_cli.attribution.result import Finding

Event = dict[str, Any]
_HEAD = HEAD | {"records": [*HEAD["records"], "spec"]}
# By fault: what is accepted, the history behind it, and what the row names then.
_FAULTS: dict[str, dict[str, Any]] = {
    # The accepted node 2 stays where it was written.
    "accepted_path_not_compacted": {"nodes": [0, 2], "tokens": [21, 23, 31], "length": 5},
    # One token more is taken as committed than was accepted.
    "committed_len_too_high": {"nodes": [0, 1], "tokens": [21, 22, 31], "length": 6},
}


def _events(fault: str | None, drafts: tuple[str, ...] = ("A",)) -> list[Event]:
    """A prompt, a verification of three drafts, and two decodes, of each of ``drafts``."""
    case = _FAULTS.get(fault or "", {"nodes": [0, 1], "tokens": [21, 22, 31], "length": 5})
    events: list[Event] = []
    for k, req in enumerate(drafts):
        base, row = 20 * k, k + 1
        events += life(req, [11, 12, 13], [base + 1, base + 2, base + 3], row=row, step=1 + k)
    for k, req in enumerate(drafts):
        base, row = 20 * k, k + 1
        slots = [base + 4, base + 5, base + 6]
        events += [
            {"kind": "alloc", "owner": req, "slots": slots},
            {"kind": "map", "row": row, "start": 3, "slots": slots},
            {
                "kind": "forward",
                "step": 5 + k,
                "forward_mode": "TARGET_VERIFY",
                "reqs": [req],
                "req_pool_indices": [row],
                "seq_lens": [3],
                "input_ids": [21, 22, 23],
                "positions": [3, 4, 4 if case["nodes"] == [0, 2] else 5],
                "out_cache_loc": slots,
                "draft_token_num": 3,
                "tree": {"parent": [-1, 0, 0 if case["nodes"] == [0, 2] else 1]},
            },
            {
                "kind": "accept",
                "req": req,
                "nodes": case["nodes"],
                "tokens": case["tokens"],
                "committed_len": case["length"],
            },
            {"kind": "history", "req": req, "start": 3, "ids": [*case["tokens"], 32, 33]},
        ]
    ids = [11, 12, 13, *case["tokens"], 32, 33]
    for n in range(2):
        for k, req in enumerate(drafts):
            position, slot, row = case["length"] + n, 20 * k + 10 + n, k + 1
            events += [
                {"kind": "alloc", "owner": req, "slots": [slot]},
                {"kind": "map", "row": row, "start": position, "slots": [slot]},
                decode_step(10 + 2 * n + k, req, row, ids[position], position, slot),
            ]
    return numbered(events)


def _found(path: Path, first: int | None = None) -> list[tuple[Any, ...]]:
    options = ReplayOptions(backend="cpu", steps=(first, None))
    return [_facts(f) for f in diagnose_trace(open_trace(path), options, NOT_CHECKED).findings]


def _facts(f: Finding) -> tuple[Any, ...]:
    return f.cls, f.subtype, f.victim, f.culprit, f.cause_event, f.first_bad_step, sorted(f.slots)


@pytest.mark.parametrize("drafts", [("A",), ("A", "B")])
@pytest.mark.parametrize("fault", _FAULTS)
def test_it_is_the_accept_that_is_to_blame(
    fault: str, drafts: tuple[str, ...], tmp_path: Path
) -> None:
    events = _events(fault, drafts)
    whole = write_jsonl(tmp_path / "whole.jsonl", _HEAD, events)
    assert [(f[1], f[4]) for f in _found(whole)] == [
        (fault, index_of(events, "accept", req=req)) for req in drafts
    ]
    for first in forward_steps(whole):
        folder = tmp_path / str(first)
        folder.mkdir()
        cut, _ = cut_to(whole, folder, (first, None))
        expected = _found(whole, first)
        assert _found(cut) == expected, first
        (folder / "again").mkdir()
        again, _ = cut_to(cut, folder / "again", (first, None))
        assert _found(again) == expected, first
        if not any("A" in e["reqs"] for e in events if e.get("step", 0) >= first):
            continue
        (folder / "one").mkdir()
        one, _ = cut_to(whole, folder / "one", (first, None), ["A"])
        assert _found(one) == [f for f in expected if f[2] == "A"], first


def test_what_was_accepted_rightly_is_no_finding(tmp_path: Path) -> None:
    whole = write_jsonl(tmp_path / "whole.jsonl", _HEAD, _events(None))
    for first in forward_steps(whole):
        assert not _found(cut_to(whole, tmp_path, (first, None))[0]), first


def test_what_an_ended_request_accepted_is_not_carried(tmp_path: Path) -> None:
    events = _events(None, ("A", "B"))
    last = events.pop()
    events = numbered([*events, {"kind": "finish", "req": "A"}, last])
    whole = write_jsonl(tmp_path / "whole.jsonl", _HEAD, events)
    cut, _ = cut_to(whole, tmp_path, (last["step"], None))
    carried = [e for e in events_of(cut) if e["kind"] == "accept"]
    assert [(e["req"], e["at"]) for e in carried] == [("B", index_of(events, "accept", req="B"))]
