"""``inspect`` where events were lost: it begins anew there, as a replay does, and says so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.cli.main import main
from tests.attribution.events import HEAD, decode, life, numbered

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
Ask = Any

# A's life up to event 7, a gap, and what went on: who owned slots 1 to 4 is told no more.
BEFORE = [*life("A", [11, 12, 13], [1, 2, 3], row=1, step=1), *decode("A", 14, 4, 1, 3, 2)]
BEHIND = [*decode("A", 15, 5, 1, 4, 3), *life("B", [21, 22], [7, 8], row=2, step=4)]
FIRST = 20


@pytest.fixture
def ask(tmp_path: Path, capsys: Any) -> Ask:
    events = [*numbered(BEFORE), *(e | {"i": e["i"] + FIRST} for e in numbered(BEHIND))]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(e) + "\n" for e in [HEAD, *events]))

    def call(*args: str, text: bool = False) -> Any:
        assert main(["inspect", str(path), *args, *([] if text else ["--format", "json"])]) == 0
        printed = capsys.readouterr().out
        return printed if text else json.loads(printed)

    return call


def _lost(answer: Any) -> list[int]:
    return [line["event"] for line in answer["lines"] if line["what"] == "events lost"]


def test_a_pool_is_not_known_from_before_the_gap(ask: Ask) -> None:
    held = {"A": [1, 2, 3, 4]}
    before = ask("--at", str(len(BEFORE) - 1))
    owners = {x["name"]: x["slots"] for x in before["lines"] if x["what"] == "owner"}
    assert owners == held
    assert "known_since_event" not in before["facts"]
    behind = ask("--at", str(FIRST + len(BEHIND) - 1))
    owners = {x["name"]: x["slots"] for x in behind["lines"] if x["what"] == "owner"}
    assert owners == {"A": [5], "B": [7, 8]}
    assert behind["facts"]["known_since_event"] == FIRST
    assert {1, 2, 3, 4} <= set(behind["facts"]["not_recorded"])


@pytest.mark.parametrize(("slot", "owner"), [(3, "not recorded"), (5, "A")])
def test_a_slots_owner_at_the_end(ask: Ask, slot: int, owner: str) -> None:
    answer = ask("--slot", str(slot))
    assert answer["facts"] == {"owner_at_the_end": owner}
    assert _lost(answer) == [FIRST]


def test_a_reader_behind_the_gap_is_a_new_run_of_reads(ask: Ask) -> None:
    reads = [x for x in ask("--row", "1")["lines"] if x["what"] == "DECODE"]
    assert [x["event"] for x in reads] == [len(BEFORE) - 1, FIRST + 3]


@pytest.mark.parametrize("args", [("--slot", "3"), ("--req", "A"), ("--row", "1")])
def test_lives_say_where_events_were_lost(ask: Ask, args: tuple[str, str]) -> None:
    answer = ask(*args)
    assert _lost(answer) == [FIRST]
    assert "events lost" in ask(*args, text=True)
    (line,) = [x for x in answer["lines"] if x["what"] == "events lost"]
    assert set(line) == set(answer["lines"][0])
    assert f"lost after event {len(BEFORE) - 1}" in line["note"]


def test_what_begins_behind_the_gap_may_have_begun_before(ask: Ask) -> None:
    assert next(x["what"] for x in ask("--req", "B")["lines"]) == "events lost"


@pytest.mark.parametrize(
    ("asked", "what", "since"),
    [
        ("3@2", "forward", None),
        ("3@3", f"not known: events were lost before event {FIRST}", FIRST),
        ("7@4", f"not known: events were lost before event {FIRST}", FIRST),
    ],
)
def test_who_wrote(ask: Ask, asked: str, what: str, since: int | None) -> None:
    answer = ask("--who-wrote", asked)
    assert answer["lines"][0]["what"] == what
    assert answer["facts"].get("known_since_event") == since


@pytest.mark.parametrize(("step", "since"), [(2, None), (3, FIRST)])
def test_a_step_before_the_gap_was_known_whole(ask: Ask, step: int, since: int | None) -> None:
    answer = ask("--step", str(step))
    assert answer["facts"].get("known_since_event") == since
    reads = answer["lines"][0]["reads"]
    assert reads == ([1, 2, 3] if step == 2 else [0, 0, 0, 0])
