"""A correct engine, one family of records not recorded: what was not seen may have happened."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.attribution.diagnose import how_many
from kvcanary_cli.cli.main import main
from kvcanary_cli.report.finding_coverage import confidence_line
from tests.attribution.events import HEAD, decode, decode_step, extend, life, numbered
from tests.attribution.helpers import diagnose
from tests.replay.cut_helpers import write_jsonl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvcanary_cli.attribution.diagnose import Diagnosis

Event = dict[str, Any]
ALL = [*HEAD["records"], "prefix", "fork", "spec", "launch"]
KINDS = {
    "transfer": ("copy", "transfer_begin", "transfer_end"),
    "prefix": ("publish", "match", "unpublish"),
    "fork": ("fork",),
}


def without(family: str, events: list[Event]) -> Diagnosis:
    """The same engine, and a recorder that did not note ``family``; empty = it noted all."""
    head = HEAD | {"records": [name for name in ALL if name != family]}
    kept = [e for e in events if e["kind"] not in KINDS.get(family, ())]
    return diagnose(head, numbered(kept))


def _brought(via: str) -> list[Event]:
    """Another worker computed A's prompt, and a transfer brought it."""
    ids = {"kind": "history", "req": "A", "start": 0, "ids": [1, 2, 3]}
    copy = {"kind": "copy", "src": {"req": "A", "pos": [0, 1, 2]}, "dst": [1, 2, 3], "via": via}
    alloc = {"kind": "alloc", "owner": "A", "slots": [1, 2, 3]}
    cells = {"kind": "map", "row": 1, "start": 0, "slots": [1, 2, 3]}
    return [ids, alloc, cells, copy | {"by": "A"}, *decode("A", 4, 4, 1, 3, 1)]


def _moved() -> list[Event]:
    """A's slots are moved to others, and its row follows."""
    return [
        *life("A", [1, 2, 3], [1, 2, 3], row=1, step=1),
        {"kind": "alloc", "owner": "A", "slots": [11, 12, 13]},
        {"kind": "copy", "src": [1, 2, 3], "dst": [11, 12, 13], "via": "d2d", "by": "A"},
        {"kind": "map", "row": 1, "start": 0, "slots": [11, 12, 13]},
        {"kind": "free", "owner": "A", "slots": [1, 2, 3]},
        *decode("A", 4, 4, 1, 3, 2),
    ]


def _permuted() -> list[Event]:
    """A's slots change places among themselves."""
    return [
        *life("A", [1, 2, 3], [1, 2, 3], row=1, step=1),
        {"kind": "copy", "src": [1, 2, 3], "dst": [2, 3, 1], "via": "d2d", "by": "A"},
        {"kind": "map", "row": 1, "start": 0, "slots": [2, 3, 1]},
        *decode("A", 4, 4, 1, 3, 2),
    ]


def _compacted() -> list[Event]:
    """Nodes 0 and 2 of a draft are accepted; node 2 moves beside node 0."""
    verify = decode_step(2, "A", 1, 4, 3, 4) | {
        "forward_mode": "TARGET_VERIFY",
        "seq_lens": [3],
        "draft_token_num": 3,
        "input_ids": [4, 8, 5],
        "positions": [3, 4, 4],
        "out_cache_loc": [4, 5, 6],
        "tree": {"parent": [-1, 0, 0]},
    }
    return [
        *life("A", [1, 2, 3], [1, 2, 3], row=1, step=1),
        {"kind": "history", "req": "A", "start": 3, "ids": [4]},
        {"kind": "alloc", "owner": "A", "slots": [4, 5, 6]},
        {"kind": "map", "row": 1, "start": 3, "slots": [4, 5, 6]},
        verify,
        {"kind": "accept", "req": "A", "nodes": [0, 2], "tokens": [4, 5, 6], "committed_len": 5},
        {"kind": "history", "req": "A", "start": 4, "ids": [5, 6]},
        {"kind": "copy", "src": [6], "dst": [5], "via": "d2d", "by": "A"},
        decode_step(3, "A", 1, 6, 5, 6),
    ]


def _published_first() -> list[Event]:
    """The cache gets slots that a load fills, and B is served from there."""
    return [
        *life("A", [1, 2, 3], [1, 2, 3], row=1, step=1),
        {"kind": "alloc", "owner": "tree", "slots": [11, 12]},
        {"kind": "copy", "src": [1, 2], "dst": [11, 12], "via": "load", "by": "tree"},
        {"kind": "publish", "entry": "e", "slots": [11, 12]},
        {"kind": "history", "req": "B", "start": 0, "ids": [1, 2, 9]},
        {"kind": "match", "req": "B", "entry": "e", "slots": [11, 12]},
        {"kind": "alloc", "owner": "B", "slots": [13]},
        {"kind": "map", "row": 2, "start": 0, "slots": [11, 12, 13]},
        extend(2, "B", 2, 2, [9], [13]),
    ]


MOVES = {
    "rdma": _brought("rdma"),
    "load": _brought("load"),
    "defrag": _moved(),
    "permuted": _permuted(),
    "draft": _compacted(),
    "cache": _published_first(),
}


@pytest.mark.parametrize("name", MOVES)
def test_what_a_copy_may_have_done_is_never_certain(name: str) -> None:
    assert without("", MOVES[name]).verdict == "clean"
    findings = without("transfer", MOVES[name]).findings
    assert findings
    for finding in findings:
        assert (finding.confidence, finding.unseen) == ("possible", ("transfer",))
        line = confidence_line(finding)
        assert line.startswith("possible: ")
        assert "transfer (copies are not known)" in line
        assert any("transfer events were not recorded" in text for text in finding.evidence)


def _overrun_behind_move() -> list[Event]:
    """A copy fills a slot of A, whose queued decode lands when A has given everything back."""
    step = extend(2, "A", 1, 2, [3], [4]) | {"forward_mode": "DECODE"}
    del step["extend_prefix_lens"], step["extend_seq_lens"]
    return [
        *life("A", [1, 2], [1, 2], row=1, step=1),
        {"kind": "alloc", "owner": "A", "slots": [3]},
        {"kind": "copy", "src": [2], "dst": [3], "via": "d2d", "by": "A"},
        {"kind": "map", "row": 1, "start": 1, "slots": [3]},
        {"kind": "free", "owner": "A", "slots": [2]},
        {"kind": "history", "req": "A", "start": 2, "ids": [3]},
        {"kind": "alloc", "owner": "A", "slots": [4]},
        {"kind": "map", "row": 1, "start": 2, "slots": [4]},
        {"kind": "launch", "req": "A", "step": 2},
        {"kind": "free", "owner": "A", "slots": [1, 3, 4]},
        {"kind": "finish", "req": "A"},
        step,
    ]


def _forked_then_shared() -> list[Event]:
    """C's copy on write fills a slot; later its row is set to the parent's, which is cached."""
    return [
        *life("A", [11, 12], [1, 2], row=1, step=1),
        {"kind": "history", "req": "C", "start": 0, "ids": [11, 12, 13, 14]},
        {"kind": "fork", "parent": "A", "child": "C", "shared": [1], "copy_on_write": [[2, 3]]},
        {"kind": "alloc", "owner": "C", "slots": [3]},
        {"kind": "copy", "src": [2], "dst": [3], "via": "cow", "by": "C"},
        {"kind": "map", "row": 2, "start": 0, "slots": [1, 3]},
        *decode("C", 13, 4, row=2, position=2, step=2)[1:],
        {"kind": "own", "from": "A", "owner": "tree", "slots": [1, 2], "entry": "E1"},
        {"kind": "finish", "req": "A"},
        {"kind": "map", "row": 2, "start": 0, "slots": [1, 2]},
        {"kind": "free", "owner": "C", "slots": [3], "reason": "dedup"},
        *decode("C", 14, 5, row=2, position=3, step=3)[1:],
    ]


@pytest.mark.parametrize("engine", [_overrun_behind_move, _forked_then_shared])
def test_what_follows_a_copy_that_was_not_seen_is_never_certain(
    engine: Callable[[], list[Event]],
) -> None:
    assert not without("", engine()).findings
    found = without("transfer", engine()).findings
    assert {finding.confidence for finding in found} == {"possible"}


def _forked() -> list[Event]:
    """C shares A's slots, and gives them back for both."""
    return [
        *life("A", [11, 12], [1, 2], row=1, step=1),
        {"kind": "history", "req": "C", "start": 0, "ids": [11, 12, 13]},
        {"kind": "fork", "parent": "A", "child": "C", "shared": [1, 2]},
        {"kind": "map", "row": 2, "start": 0, "slots": [1, 2]},
        *decode("C", 13, 4, row=2, position=2, step=2)[1:],
        {"kind": "finish", "req": "A"},
        {"kind": "free", "owner": "C", "slots": [1, 2, 4], "reason": "finish"},
        {"kind": "finish", "req": "C"},
    ]


def _hit() -> list[Event]:
    """B is served from what A published."""
    return [
        *life("A", [1, 2, 3], [1, 2, 3], row=1, step=1),
        {"kind": "publish", "entry": "e", "req": "A", "slots": [1, 2]},
        {"kind": "history", "req": "B", "start": 0, "ids": [1, 2, 9]},
        {"kind": "match", "req": "B", "entry": "e", "slots": [1, 2]},
        {"kind": "alloc", "owner": "B", "slots": [13]},
        {"kind": "map", "row": 2, "start": 0, "slots": [1, 2, 13]},
        extend(2, "B", 2, 2, [9], [13]),
    ]


SHARED = {"fork": _forked, "prefix": _hit, "transfer": _moved}


@pytest.mark.parametrize("family", SHARED)
def test_the_report_says_that_a_sound_engine_may_look_so(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the evidence, in the finding's coverage and confidence, and in that of the whole."""
    events = SHARED[family]()
    assert without("", events).verdict == "clean"
    head = HEAD | {"records": [name for name in ALL if name != family]}
    kept = numbered(e for e in events if e["kind"] not in KINDS[family])
    path = str(write_jsonl(tmp_path / "t.jsonl", head, kept))
    assert main(["replay", path, "--format", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    sound = "a sound engine may leave the same trace"
    for finding in told["findings"]:
        assert (finding["confidence"], family in finding["unseen"]) == ("possible", True)
        assert sound in finding["evidence"]
        assert any(f"{family} events were not recorded" in line for line in finding["evidence"])
    count = len(told["findings"])
    those = "the finding is" if count == 1 else f"all {count} findings are"
    note = f"{family} events were not recorded: without them {those} possible only"
    (line,) = [text for text in told["coverage"]["notes"] if text.startswith(note)]
    assert line.endswith(sound)

    assert main(["replay", path]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum(line in text for text in lines) == 1
    assert sum(text.strip() == sound for text in lines) == count
    for label in ("COVERAGE      ", "CONFIDENCE    possible"):
        of_findings = [text for text in lines if text.startswith(label)]
        assert len(of_findings) == count
        assert all(f"{family} (" in text for text in of_findings)


def test_what_is_certain_all_the_same_has_no_such_note() -> None:
    """A's slot is read when it is B's, whatever copies there were."""
    events = [
        *life("A", [1, 2, 3], [1, 2, 3], row=1, step=1),
        {"kind": "free", "owner": "A", "slots": [2]},
        *life("B", [8], [2], row=2, step=2),
        *decode("A", 4, 4, 1, 3, 3),
    ]
    diagnosis = without("transfer", events)
    assert [f.confidence for f in diagnosis.findings] == ["certain"]
    assert not any("sound engine" in note for note in diagnosis.replay.coverage.notes)


@pytest.mark.parametrize(
    ("some", "of_all", "words"),
    [
        (1, 1, "the finding is"),
        (2, 2, "all 2 findings are"),
        (1, 2, "1 of 2 findings is"),
        (2, 3, "2 of 3 findings are"),
    ],
)
def test_how_many_findings(some: int, of_all: int, words: str) -> None:
    assert how_many(some, of_all) == words
