"""``inspect``: answers checked by hand against the scenarios, and what it refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.cli.main import main
from tests.attribution.blocks import ROOT
from tests.attribution.events import HEAD, decode, life, numbered
from tests.trace.helpers import write_jsonl

if TYPE_CHECKING:
    from pathlib import Path

SCENARIOS = "tests/data/scenarios"
S01 = f"{SCENARIOS}/S01_use_after_free.jsonl"


@pytest.fixture
def ask(capsys, monkeypatch):
    """Run ``kvcanary inspect`` and give the JSON answer."""
    monkeypatch.chdir(ROOT)

    def call(path: str, *args: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert main(["inspect", path, *args, "--format", "json"]) == code
        printed = capsys.readouterr()
        return json.loads(printed.out) if code == 0 else printed.err

    return call


def _told(answer: dict[str, Any], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(line[name] for name in names) for line in answer["lines"]]


def test_life_of_a_slot(ask) -> None:
    answer = ask(S01, "--slot", "5")
    assert _told(answer, "event", "what", "who", "position", "token") == [
        (4, "alloc", "B", None, None),
        (5, "map", None, 0, None),
        (6, "write", "B", 0, 11),
        (8, "free", "B", None, None),
        (12, "alloc", "C", None, None),
        (13, "map", None, 0, None),
        (14, "write", "C", 0, 31),
        (17, "read", "B", 0, None),
    ]
    assert answer["facts"] == {"owner_at_the_end": "C"}
    assert answer["question"] == {"slot": 5}


def test_a_padding_row_writes_too(ask) -> None:
    lines = ask(f"{SCENARIOS}/S13_pad_or_dummy_write.jsonl", "--slot", "6")["lines"]
    writes = [(x["event"], x["who"], x["note"]) for x in lines if x["what"] == "write"]
    assert writes == [
        (13, "B", "DECODE"),
        (20, "C", "EXTEND"),
        (25, None, "padding row, DECODE"),
    ]


def test_copies_are_writes(ask) -> None:
    lines = ask(f"{SCENARIOS}/S07_transfer_race.jsonl", "--slot", "5")["lines"]
    copied = [(x["event"], x["who"]) for x in lines if x["what"] == "copied into"]
    assert copied == [(8, "B"), (9, "A")]


def test_window_slots(ask) -> None:
    path = f"{SCENARIOS}/S12_bad_translation.jsonl"
    answer = ask(path, "--slot", "21", "--pool", "swa")
    assert _told(answer, "event", "what", "who", "token") == [
        (4, "write", "A", 11),
        (9, "write", "B", 21),
        (13, "read", "A", None),
    ]
    (line,) = ask(path, "--who-wrote", "21@3", "--pool", "swa")["lines"]
    assert (line["who"], line["event"], line["before"]) == ("B", 9, "A at event 4")


def test_life_of_a_request(ask) -> None:
    answer = ask(S01, "--req", "B")
    assert answer["facts"] == {
        "rows": [2],
        "first_and_last_step": [1, 3],
        "slots": [5, 6, 7, 8, 9, 10, 11],
        "history": 7,
    }
    assert _told(answer, "event", "what", "slots") == [
        (4, "alloc", [5, 6, 7, 8, 9, 10]),
        (6, "EXTEND", [5, 6, 7, 8, 9, 10]),
        (8, "free", [5, 6, 7, 8]),
        (9, "own", [9, 10]),
        (15, "alloc", [11]),
        (17, "DECODE", [11]),
    ]


def test_decodes_are_folded(ask) -> None:
    answer = ask("tests/data/captures/bug_swap_rows.jsonl.zst", "--req", "req-007")
    decode = next(line for line in answer["lines"] if line["what"] == "DECODE")
    assert decode["positions"] == list(range(73, 73 + len(decode["slots"])))
    assert "forwards until event" in decode["note"]


def test_step(ask) -> None:
    answer = ask(S01, "--step", "1")
    assert _told(answer, "row", "req", "prefix", "reads", "writes", "tokens") == [
        (1, "A", 0, [], [1, 2, 3, 4], [11, 12, 13, 14]),
        (2, "B", 0, [], [5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 25, 26]),
    ]
    (line,) = ask(S01, "--step", "3")["lines"]
    assert line["reads"] == [5, 6, 7, 8, 9, 10]


def test_row_shows_swapped_cells(ask) -> None:
    answer = ask("tests/data/captures/bug_swap_rows.jsonl.zst", "--row", "4")
    lines = [(x["event"], x["cells"], x["slots"]) for x in answer["lines"] if x["what"] == "map"]
    assert (690, [5], [12]) in lines
    assert (691, [11], [6]) in lines


def test_pool_at_an_event(ask) -> None:
    answer = ask(S01, "--at", "13")
    assert answer["facts"] == {
        "reserved": [0],
        "free": [8],
        "not_recorded": [11, 12, 13, 14, 15],
        "prefix_cache": [1, 2, 3, 4, 9, 10],
    }
    assert _told(answer, "what", "name", "row", "slots") == [
        ("owner", "C", None, [5, 6, 7]),
        ("row", "A", 1, [1, 2, 3, 4]),
        ("row", "B", 2, [5, 6, 7, 8, 9, 10]),
        ("row", None, 3, [5, 6, 7]),
    ]


def test_who_wrote(ask) -> None:
    (line,) = ask(S01, "--who-wrote", "5@3")["lines"]
    assert (line["who"], line["step"], line["event"], line["token"]) == ("C", 2, 14, 31)
    assert line["before"] == "B at event 6"
    answer = ask(S01, "--who-wrote", "5@2")
    assert _told(answer, "when", "who", "event") == [
        ("as read", "B", 6),
        ("after the step's write", "C", 14),
    ]
    (line,) = ask(S01, "--who-wrote", "5@1")["lines"][:1]
    assert line["what"] == "nobody since the recording began"


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("--slot", "99"), "has slots 0 to 15"),
        (("--slot", "12"), "nearest slot that was is 11"),
        (("--req", "BB"), "did you mean B?"),
        (("--step", "9"), "did you mean step 1, 2, 3?"),
        (("--row", "9"), "did you mean row 1, 2, 3?"),
        (("--row", "0"), "it is the padding row"),
        (("--slot", "-1"), "has slots 0 to 15"),
        (("--at", "77"), "did you mean event 17?"),
        (("--who-wrote", "5@8"), "did you mean step 1, 2, 3?"),
        (("--who-wrote", "99@1"), "has slots 0 to 15"),
    ],
)
def test_what_does_not_occur(ask, args, hint) -> None:
    assert hint in ask(S01, *args, code=5)


@pytest.mark.parametrize(
    "args",
    [(), ("--slot", "1", "--step", "2"), ("--who-wrote", "5"), ("--step", "1", "--pool", "swa")],
)
def test_wrong_usage(ask, args) -> None:
    ask(S01, *args, code=2)


def test_bad_traces(ask, tmp_path: Path) -> None:
    ask(str(tmp_path / "none.jsonl"), "--slot", "1", code=4)
    torn = tmp_path / "torn.jsonl"
    text = (ROOT / S01).read_text().splitlines()
    torn.write_text("\n".join([*text[:12], '{"kind": "alloc", "i": 12']) + "\n")
    ask(str(torn), "--slot", "5", code=4)
    # An answer that is known early does not hide that the rest cannot be read.
    ask(str(torn), "--at", "2", code=4)


def test_text_is_for_people(capsys, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["inspect", S01, "--req", "B"]) == 0
    out = capsys.readouterr().out
    assert "slots                5-11" in out
    assert main(["inspect", S01, "--slot", "5", "--max-rows", "2"]) == 0
    assert "... 6 more lines" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["[/x]", "a\x1b[2Jb", "line\nbreak", "\u202egnp"])
def test_names_are_data(name: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text((ROOT / S01).read_text().replace('"B"', json.dumps(name)))
    for args in (["--req", name], ["--slot", "5"], ["--step", "3"], ["--row", "2"], ["--at", "9"]):
        assert main(["inspect", str(path), *args]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\u202e" not in out


@pytest.mark.parametrize("slot", [1, 2, 3])
def test_who_wrote_what_a_copy_brought(ask, tmp_path: Path, slot: int) -> None:
    copy = {"kind": "copy", "src": {"req": "A", "pos": [0, 1, 2]}, "dst": [1, 2, 3]}
    events = [
        {"kind": "history", "req": "A", "start": 0, "ids": [11, 12, 13]},
        {"kind": "alloc", "owner": "A", "slots": [1, 2, 3]},
        {"kind": "map", "row": 1, "start": 0, "slots": [1, 2, 3]},
        copy | {"via": "rdma", "by": "A"},
        *decode("A", 14, 4, row=1, position=3, step=1),
    ]
    path = write_jsonl(tmp_path / "t.jsonl", HEAD, numbered(events))
    (line,) = ask(str(path), "--who-wrote", f"{slot}@1")["lines"]
    assert (line["what"], line["who"], line["event"]) == ("copy", "A", 3)
    assert (line["position"], line["token"]) == (slot - 1, 10 + slot)


@pytest.mark.parametrize("by", [{"by": "A"}, {}, {"by": "A", "canary": False}])
@pytest.mark.parametrize("tokens", ["raw", "absent"])
def test_what_a_copy_within_the_pool_moved(
    ask, tmp_path: Path, by: dict[str, Any], tokens: str
) -> None:
    """Twice, so that the second copy takes what the first one brought; then one from a host."""
    events = [
        *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
        {"kind": "alloc", "owner": "A", "slots": [4, 5, 6, 7, 8, 9]},
        {"kind": "copy", "src": [1, 2, 3], "dst": [4, 5, 6], "via": "d2d"} | by,
        {"kind": "copy", "src": [4, 5, 6], "dst": [9, 8, 7], "via": "d2d"} | by,
        {"kind": "map", "row": 1, "start": 0, "slots": [9, 8, 7]},
        *decode("A", 14, 10, row=1, position=3, step=2),
        {"kind": "copy", "src": [3], "dst": [9], "via": "load", "src_pool": "host"} | by,
        *decode("A", 15, 11, row=1, position=4, step=3),
    ]
    head = HEAD | {"tokens": tokens}
    kept = [e for e in events if tokens == "raw" or e["kind"] != "history"]
    if tokens == "absent":
        kept = [{n: v for n, v in e.items() if n != "input_ids"} for e in kept]
    path = str(write_jsonl(tmp_path / "t.jsonl", head, numbered(kept)))
    for slot, position in ((9, 0), (8, 1), (7, 2), (4, 0), (1, 0)):
        (line,) = ask(path, "--who-wrote", f"{slot}@2")["lines"]
        token = 11 + position if tokens == "raw" else None
        assert (line["position"], line["token"]) == (position, token)
    (line,) = ask(path, "--who-wrote", "9@3")["lines"]
    assert (line["what"], line["position"], line["token"]) == ("copy", None, None)


@pytest.mark.parametrize(
    "question",
    [("--slot", "3"), ("--req", "A"), ("--step", "1"), ("--row", "1"), ("--at", "0"),
     ("--who-wrote", "3@1")],
)  # fmt: skip
def test_a_trace_without_events_is_named(ask, tmp_path: Path, question: tuple[str, str]) -> None:
    path = str(write_jsonl(tmp_path / "empty.jsonl", HEAD, []))
    assert f"{path}: no events" in ask(path, *question, code=5)
