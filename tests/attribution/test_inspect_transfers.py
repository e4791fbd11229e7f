"""``inspect``: how transfers ended, slots on the free list twice, and who counts as a request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.cli.main import main
from tests.attribution.events import HEAD, life, numbered

if TYPE_CHECKING:
    from pathlib import Path


def _ask(
    events: list[dict[str, Any]], tmp_path: Path, capsys: Any, *args: str, code: int = 0
) -> Any:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(e) + "\n" for e in [HEAD, *numbered(events)]))
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
