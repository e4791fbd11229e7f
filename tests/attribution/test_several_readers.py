"""One cause, several readers of one forward: the scene tells each what that one met."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.cli.main import main
from tests.attribution.events import HEAD, decode, life, numbered
from tests.attribution.helpers import diagnose
from tests.replay.cut_helpers import write_jsonl

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
LAST = {"step": 9, "forward_mode": "DECODE"}


def _together(decodes: list[list[Event]]) -> list[Event]:
    """The decodes of several requests in one forward."""
    forwards = [each[-1] for each in decodes]
    names = ("reqs", "req_pool_indices", "seq_lens", "input_ids", "positions", "out_cache_loc")
    joined = {name: [value for f in forwards for value in f[name]] for name in names}
    before = [event for each in decodes for event in each[:-1]]
    return [*before, {"kind": "forward"} | LAST | joined]


def _lost(slots: dict[str, list[int]], order: str) -> list[Event]:
    """One free gives slots of A and of B back, C writes them, and both go on in one forward."""
    mine = {"A": [1, 2, 3], "B": [4, 5, 6]}
    events = [*life("A", [11, 12, 13], mine["A"], row=1, step=1)]
    events += life("B", [21, 22, 23], mine["B"], row=2, step=2)
    events += [{"kind": "own", "from": r, "owner": "tree", "slots": mine[r]} for r in "AB"]
    lost = [slot for r in "AB" for slot in slots[r]]
    events += [{"kind": "free", "owner": "tree", "slots": lost, "reason": "evict"}]
    events += life("C", [30 + k for k in range(len(lost))], lost, row=3, step=3)
    last = {
        "A": decode("A", 14, 41, row=1, position=3, step=9),
        "B": decode("B", 24, 42, row=2, position=3, step=9),
    }
    return numbered([*events, *_together([last[req] for req in order])])


@pytest.mark.parametrize("order", ["AB", "BA"])
@pytest.mark.parametrize(
    "slots", [{"A": [2], "B": [5]}, {"A": [1, 2], "B": [6]}, {"A": [3], "B": [4, 5, 6]}]
)
def test_each_reader_has_its_own(slots: dict[str, list[int]], order: str) -> None:
    (finding,) = diagnose(HEAD, _lost(slots, order)).findings
    first, second = order
    assert (finding.cls, finding.victim) == ("use_after_free", first)
    assert finding.slots == {*slots["A"], *slots["B"]}
    facts = finding.facts
    assert facts is not None
    assert facts.row == {"A": 1, "B": 2}[first]
    assert facts.not_met == frozenset(slots[second])
    (other,) = facts.others
    assert (other.reader, other.row, other.prefix) == (second, {"A": 1, "B": 2}[second], 3)
    assert other.slots == tuple(slots[second])
    read = {(e.who, e.slots) for e in facts.life if e.what == "read"}
    assert read == {(req, tuple(slots[req])) for req in order}


def test_text_and_json_tell_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write_jsonl(tmp_path / "t.jsonl", HEAD, _lost({"A": [1, 2], "B": [6]}, "AB")))
    assert main(["replay", path]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("READ "))
    assert lines[at].startswith(
        "READ          of slots 1-2 by A (row 1, DECODE, prefix 3) at step 9"
    )
    assert lines[at + 1] == "              of slot 6 by B (row 2, prefix 3)"
    assert main(["replay", path, "--format", "json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["slots"] == [1, 2, 6]
    assert finding["scene"]["others"] == [
        {"req": "B", "row": 2, "prefix": 3, "slots": [6], "slots_total": 1}
    ]


def test_what_all_share_is_the_first_readers() -> None:
    """Two rows name one slot: the second one has nothing of its own."""
    events = life("A", [11, 12, 13], [1, 2, 3], row=1, step=1)
    events += [{"kind": "own", "from": "A", "owner": "tree", "slots": [1, 2, 3], "entry": "E"}]
    events += [
        {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13]},
        {"kind": "match", "req": "B", "entry": "E", "slots": [1, 2, 3]},
        {"kind": "map", "row": 2, "start": 0, "slots": [1, 2, 3]},
        {"kind": "free", "owner": "tree", "slots": [2]},
        *life("C", [31], [2], row=3, step=3),
    ]
    last = [decode(r, 14, 40 + n, row=n, position=3, step=9) for n, r in ((1, "A"), (2, "B"))]
    head = HEAD | {"records": [*HEAD["records"], "prefix"]}
    (finding,) = diagnose(head, numbered([*events, *_together(last)])).findings
    assert list(finding.blast_radius) == ["A", "B"]
    assert finding.facts is not None
    assert (finding.facts.others, finding.facts.not_met) == ((), frozenset())


@pytest.mark.parametrize("order", ["ABC", "BAC", "CBA", "BCA", "CAB"])
def test_the_scene_is_the_victims_where_a_rule_was_broken_by_several(order: str) -> None:
    """A and B read cached slots in the forward in which C, who was given them, writes them."""
    owned = {"kind": "own", "from": "A", "owner": "tree", "slots": [1, 2, 3]}
    events = [*life("A", [11, 12, 13], [1, 2, 3], row=1, step=1), owned]
    events += [
        {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13]},
        {"kind": "map", "row": 2, "start": 0, "slots": [1, 2, 3]},
        {"kind": "free", "owner": "C", "slots": [1, 2, 3]},
        {"kind": "history", "req": "C", "start": 0, "ids": [31, 32, 33]},
        {"kind": "alloc", "owner": "C", "slots": [1, 2, 3]},
        {"kind": "map", "row": 3, "start": 0, "slots": [1, 2, 3]},
    ]
    for req, row, slot in (("A", 1, 41), ("B", 2, 42)):
        events += decode(req, 14, slot, row=row, position=3, step=9)[:-1]
    rows = {
        "A": {"row": 1, "prefix": 3, "ids": [14], "slots": [41]},
        "B": {"row": 2, "prefix": 3, "ids": [14], "slots": [42]},
        "C": {"row": 3, "prefix": 0, "ids": [31, 32, 33], "slots": [1, 2, 3]},
    }
    batch = [rows[req] for req in order]
    lengths = [len(row["ids"]) for row in batch]
    forward = {
        "kind": "forward",
        "step": 9,
        "forward_mode": "MIXED",
        "reqs": list(order),
        "req_pool_indices": [row["row"] for row in batch],
        "seq_lens": [row["prefix"] + n for row, n in zip(batch, lengths, strict=True)],
        "extend_prefix_lens": [row["prefix"] for row in batch],
        "extend_seq_lens": lengths,
        "input_ids": [token for row in batch for token in row["ids"]],
        "positions": [row["prefix"] + k for row in batch for k in range(len(row["ids"]))],
        "out_cache_loc": [slot for row in batch for slot in row["slots"]],
    }
    (finding,) = diagnose(HEAD, numbered([*events, forward])).findings
    first = next(req for req in order if req != "C")
    assert (finding.cls, finding.victim) == ("double_alloc", first)
    facts = finding.facts
    assert facts is not None
    assert (facts.reader, facts.row, facts.prefix) == (first, rows[first]["row"], 3)
