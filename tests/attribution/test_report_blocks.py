"""The block of every finding, as a person reads it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvcanary_cli.attribution.facts import MAX_ENTRIES, MAX_LIFE, MAX_OWNERS, MAX_SLOTS
from kvcanary_cli.cli.main import main
from kvcanary_cli.report.finding_block import block_lines, headline
from kvcanary_cli.report.finding_dict import finding_dict
from tests.attribution.blocks import DATA, ROOT, blocks_of, diagnosed

if TYPE_CHECKING:
    from pathlib import Path

    from syrupy.assertion import SnapshotAssertion

CASES = sorted(
    str(path.relative_to(ROOT))
    for path in (
        *(DATA / "scenarios").glob("S*.jsonl"),
        DATA / "scenarios" / "S21_rank_divergence",
        *(DATA / "captures").glob("bug_*.jsonl.zst"),
    )
)
S01 = "tests/data/scenarios/S01_use_after_free.jsonl"
_MARKS = re.compile(
    r"^(READ|WRITE|CHECK|CAUSE|CULPRIT|BLAST RADIUS|CONFIDENCE|REMEDY) +\S", re.MULTILINE
)


@pytest.mark.parametrize("path", CASES)
def test_block(path: str, snapshot: SnapshotAssertion, capsys, monkeypatch) -> None:
    text = blocks_of(path, capsys, monkeypatch)
    assert text == snapshot


@pytest.mark.parametrize("path", [c for c in CASES if "S21" not in c])
def test_every_block_answers_the_same_questions(path: str, capsys, monkeypatch) -> None:
    text = blocks_of(path, capsys, monkeypatch)
    labels = {match.split()[0] for match in _MARKS.findall(text)}
    assert labels >= {"CAUSE", "CULPRIT", "BLAST", "CONFIDENCE", "REMEDY"}
    assert len(labels & {"READ", "WRITE", "CHECK"}) == 1
    assert "TIMELINE" in text
    assert "COVERAGE" in text


@pytest.mark.parametrize("role", ["victim", "culprit"])
def test_the_prefix_cache_is_no_request(role: str) -> None:
    """In words; programs get the name that the trace has."""
    diagnosis = diagnosed(S01)
    (finding,) = diagnosis.findings
    if role == "culprit":
        finding.culprit = replace(finding.culprit, req="tree")
    else:
        finding.victim = "tree"
    told = [headline(finding), *(line for _label, line in block_lines(finding, diagnosis, 1))]
    assert not any("request tree" in line for line in told)
    assert sum("the prefix cache (tree)" in line for line in told) == 1
    assert finding_dict(finding)[role]["req"] == "tree"


def test_programs_learn_how_many_lost_events_a_finding_rests_on() -> None:
    (finding,) = diagnosed(S01).findings
    assert finding_dict(finding)["lost_within"] == 0
    finding.lost_within = 7
    assert finding_dict(finding)["lost_within"] == 7


def test_facts_are_those_of_the_scene() -> None:
    """Checked by hand against S01: B read 5-7, which C wrote over what B had written."""
    (finding,) = diagnosed(S01).findings
    facts = finding.facts
    assert facts is not None
    assert (facts.event, facts.step, facts.reader, facts.row, facts.prefix) == (17, 3, "B", 2, 6)
    assert facts.reasons == (("verify_token", 3),)
    cells = [
        (e.slot, e.position, e.found_token, e.expected_token, e.writer.req, e.before.req)
        for e in facts.entries
    ]
    assert cells == [(5, 0, 31, 11, "C", "B"), (6, 1, 32, 12, "C", "B"), (7, 2, 33, 13, "C", "B")]
    assert [(s.slot, s.prev_slot) for s in facts.seams] == [(8, 7)]
    story = [(e.event, e.what, e.who) for e in facts.life]
    assert story == [
        (5, "map", None),
        (6, "write", "B"),
        (8, "free", "B"),
        (12, "alloc", "C"),
        (14, "write", "C"),
        (17, "read", "B"),
    ]
    marks = {o.slot: (o.owner, o.foreign, o.dangling) for o in facts.owners}
    assert marks[5] == ("C", True, False)
    assert marks[8] == ("free", False, True)
    assert marks[4] == ("tree", False, False)


def _long_damage(path: Path, slots: int) -> None:
    """A use after free of ``slots`` slots."""
    last = 3 * slots
    pool = {"slots": last, "page_size": 1, "rows": 4, "row_len": 2 * slots}
    header = {
        "kind": "header",
        "format": "kvcanary-trace",
        "version": 1,
        "engine": {"name": "synthetic"},
        "pool": pool,
        "records": ["forward", "map", "alloc", "request", "history"],
    }
    b, c = list(range(1, slots + 1)), list(range(100_000, 100_000 + slots))
    ids = list(range(1, slots + 2))

    def forward(step, mode, req, row, prefix, tokens, start, locs):
        event = {"kind": "forward", "step": step, "forward_mode": mode, "reqs": [req]}
        event |= {"req_pool_indices": [row], "seq_lens": [prefix + len(tokens)]}
        event |= {"input_ids": tokens, "positions": list(range(start, start + len(tokens)))}
        event |= {"out_cache_loc": locs}
        if mode == "EXTEND":
            event |= {"extend_prefix_lens": [prefix], "extend_seq_lens": [len(tokens)]}
        return event

    events = [
        {"kind": "history", "req": "B", "start": 0, "ids": ids},
        {"kind": "alloc", "owner": "B", "slots": b},
        {"kind": "map", "row": 1, "start": 0, "slots": b},
        forward(1, "EXTEND", "B", 1, 0, ids[:-1], 0, b),
        {"kind": "free", "owner": "B", "slots": b},
        {"kind": "history", "req": "C", "start": 0, "ids": c},
        {"kind": "alloc", "owner": "C", "slots": b},
        {"kind": "map", "row": 2, "start": 0, "slots": b},
        forward(2, "EXTEND", "C", 2, 0, c, 0, b),
        {"kind": "alloc", "owner": "B", "slots": [last]},
        {"kind": "map", "row": 1, "start": slots, "slots": [last]},
        forward(3, "DECODE", "B", 1, slots, [ids[-1]], slots, [last]),
    ]
    lines = [header, *({**event, "i": i} for i, event in enumerate(events))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_large_damage_stays_small(tmp_path: Path, capsys) -> None:
    path = tmp_path / "long.jsonl"
    _long_damage(path, 2000)
    (finding,) = diagnosed(str(path)).findings
    assert len(finding.slots) == 2000
    facts = finding.facts
    assert facts is not None
    assert facts.entries_total == 2000
    assert len(facts.entries) == MAX_ENTRIES
    assert len(facts.life) <= MAX_LIFE
    assert len(facts.owners) <= MAX_OWNERS
    assert max(len(event.slots) for event in facts.life) <= MAX_SLOTS
    assert max(event.slots_total for event in facts.life) == 2000
    main(["replay", str(path), "--max-rows", "3"])
    block = capsys.readouterr().out.split("==kvcanary==")[1].split("OWNERSHIP")[0]
    assert max(len(line) for line in block.splitlines()) < 400
    assert "slots=1-2000" in block


def test_narrow_terminal_wraps_under_the_labels() -> None:
    from kvcanary_cli.report.finding_block import LABEL_WIDTH, block_lines, laid_out

    diagnosis = diagnosed(S01)
    (finding,) = diagnosis.findings
    wide = laid_out(block_lines(finding, diagnosis, 1), 100_000)
    for width in (20, 39, 60, 100):
        text = laid_out(block_lines(finding, diagnosis, 1), width)
        assert re.sub(r"\s+", "", text) == re.sub(r"\s+", "", wide)
        if width >= 40:
            assert max(map(len, text.splitlines())) <= width
            assert all(
                line[:LABEL_WIDTH].strip() or line.startswith(" ") for line in text.split("\n")
            )


@pytest.mark.parametrize("name", ["[/x]", "a\x1b[2Jb", "line\nbreak", "\u202egnp", "", "-", 'q"q'])
def test_hostile_names(name: str, tmp_path: Path, capsys) -> None:
    text = (ROOT / S01).read_text().replace('"B"', json.dumps(name))
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    main(["replay", str(path)])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    line = next(x for x in out.splitlines() if x.startswith("SUMMARY: kvcanary: "))
    assert f"victim={json.dumps(name)} " in line or f"victim={name} " in line


def test_json_holds_the_scene(capsys, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    main(["replay", S01, "--format", "json"])
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["summary"].startswith("SUMMARY: kvcanary: use-after-free freed_by_dedup ")
    scene = finding["scene"]
    assert scene["fail_reasons"] == {"verify_token": 3}
    assert [e["found_token"] for e in scene["entries"]] == [31, 32, 33]
    assert scene["entries"][0]["written_by"] == {
        "req": "C",
        "step": 2,
        "event": 14,
        "how": "forward",
    }
    assert [e["what"] for e in scene["timeline"]] == [
        "map", "write", "free", "alloc", "write", "read",
    ]  # fmt: skip
