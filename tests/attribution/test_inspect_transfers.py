"""``inspect``: how transfers ended, slots on the free list twice, and who counts as a request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.cli.main import main
from tests.attribution.events import HEAD, decode, life, numbered

if TYPE_CHECKING:
    from pathlib import Path


def _ask(
    events: list[dict[str, Any]],
    tmp_path: Path,
    capsys: Any,
    *args: str,
    code: int = 0,
    head: dict[str, Any] = HEAD,
) -> Any:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(e) + "\n" for e in [head, *numbered(events)]))
    assert main(["inspect", str(path), *args, "--format", "json"]) == code
    captured = capsys.readouterr()
    return json.loads(captured.out) if code == 0 else captured.err


@pytest.mark.parametrize("ask", [("--slot", "1"), ("--req", "A")])
@pytest.mark.parametrize(
    ("end", "note"), [({"kind": "transfer_end"}, "id T"), ({"kind": "transfer_fail"}, "id T")]
)
@pytest.mark.parametrize("reason", [None, "timeout"])
def test_the_end_of_a_transfer_is_told(
    ask: tuple[str, str],
    end: dict[str, Any],
    note: str,
    reason: str | None,
    tmp_path: Path,
    capsys: Any,
) -> None:
    begin = {"kind": "transfer_begin", "id": "T", "req": "A", "slots": [1, 2], "via": "rdma"}
    told = end | {"id": "T"} | ({"reason": reason} if reason and "fail" in end["kind"] else {})
    other = end | {"id": "U"}
    events = [*life("A", [1, 2], [1, 2], row=1, step=1), begin, other, told]
    answer = _ask(events, tmp_path, capsys, *ask)
    (line,) = [each for each in answer["lines"] if each["what"] == end["kind"]]
    assert line["event"] == len(events) - 1
    assert note in line["note"]
    assert ("timeout" in line["note"]) == ("reason" in told)


def test_a_slot_is_on_the_free_list_twice(tmp_path: Path, capsys: Any) -> None:
    free = {"kind": "free", "owner": "A", "slots": [1, 2]}
    again = free | {"slots": [2]}
    events = [*life("A", [1, 2], [1, 2], row=1, step=1), free, again]
    once = _ask(events, tmp_path, capsys, "--at", str(len(events) - 2))
    twice = _ask(events, tmp_path, capsys, "--at", str(len(events) - 1))
    assert "free_more_than_once" not in once["facts"]
    assert twice["facts"]["free_more_than_once"] == [2]


def test_the_prefix_cache_is_no_request(tmp_path: Path, capsys: Any) -> None:
    own = {"kind": "own", "from": "A", "owner": "tree", "slots": [1, 2], "entry": "e"}
    events = [*life("A", [1, 2], [1, 2], row=1, step=1), own]
    said = _ask(events, tmp_path, capsys, "--req", "ZZ", code=5)
    assert "tree" not in said
    assert "A" in said


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(
    ("slot", "lines"),
    [
        (1, [("copied from", "to host slot 2")]),
        (2, [("copied from", "to host slot 3")]),
        (3, []),
        (4, [("copied into", "from host slot 2")]),
        (5, [("copied into", "from slot 2")]),
    ],
)
def test_a_copy_concerns_the_slots_of_its_pools(
    told: bool, slot: int, lines: list[tuple[str, str]], tmp_path: Path, capsys: Any
) -> None:
    """Slots of another tier have numbers of their own; the full pool may be left out."""
    out, into = ({"src_pool": "full"}, {"dst_pool": "full"}) if told else ({}, {})
    events = [
        *life("A", [1, 2, 3, 4, 5], [1, 2, 3, 4, 5], row=1, step=1),
        {"kind": "copy", "src": [1, 2], "dst": [2, 3], "dst_pool": "host"} | out,
        {"kind": "copy", "src": [2], "dst": [4], "src_pool": "host"} | into,
        {"kind": "copy", "src": [2], "dst": [5]} | out | into,
    ]
    answer = _ask(events, tmp_path, capsys, "--slot", str(slot))
    found = [(x["what"], x["note"]) for x in answer["lines"] if x["what"].startswith("copied")]
    within = [("copied from", "to slot 5")] if slot == 2 else []
    assert found == lines + within


@pytest.mark.parametrize("told", [True, False])
def test_what_comes_from_the_full_pool_has_no_writer_of_the_window_pool(
    told: bool, tmp_path: Path, capsys: Any
) -> None:
    """A slot's number says nothing of the slot with that number in another pool."""
    head = HEAD | {
        "pool": HEAD["pool"] | {"swa_slots": 32, "swa_window": 8},
        "records": [*HEAD["records"], "lut"],
    }
    first, *rest = life("A", [1, 2], [1, 2], row=1, step=1)
    events = [
        first,
        {"kind": "lut", "full": [1, 2], "swa": [1, 2]},
        *rest,
        {"kind": "copy", "src": [1], "dst": [9], "dst_pool": "swa"}
        | ({"src_pool": "full"} if told else {}),
        *decode("A", 3, 3, row=1, position=2, step=2),
    ]
    answer = _ask(events, tmp_path, capsys, "--who-wrote", "9@2", "--pool", "swa", head=head)
    assert [(x["what"], x["who"], x["event"]) for x in answer["lines"]] == [("copy", None, 5)]
