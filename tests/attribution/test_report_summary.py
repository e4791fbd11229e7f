"""The frozen line: its grammar, held by a parser of its own (docs/attribution.md)."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.attribution.result import CLASSES, Culprit, Finding
from kvcanary_cli.report.finding_summary import MAX_RANGES, summary_line
from tests.attribution.blocks import ROOT, diagnosed
from tests.attribution.test_report_blocks import CASES

_LINE = re.compile(
    r"SUMMARY: kvcanary: (?P<cls>[a-z]+(?:-[a-z]+)*) (?P<subtype>\w+)"
    r' victim=(?P<victim>"(?:[^"\\]|\\.)*"|[^\s"]+)'
    r' writer=(?P<writer>"(?:[^"\\]|\\.)*"|[^\s"]+)'
    r" cause_event=(?P<cause>-?\d+(?:--?\d+)?|-)"
    r" first_bad_step=(?P<step>-?\d+|-)"
    r" slots=(?P<slots>-|\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*(?:,\+\d+)?)"
    r"(?P<more>(?: [a-z_]+=\S+)*)"
)


def parsed(line: str) -> dict[str, object]:
    """What a line says; fails on a line that the grammar does not know."""
    match = _LINE.fullmatch(line)
    assert match is not None, line

    def name(word: str) -> str | None:
        if word == "-":
            return None
        value = json.loads(word) if word.startswith('"') else word
        assert isinstance(value, str)
        return value

    slots: set[int] = set()
    left = 0
    for part in [] if match["slots"] == "-" else match["slots"].split(","):
        if part.startswith("+"):
            left = int(part)
            continue
        first, _, last = part.partition("-")
        slots.update(range(int(first), int(last or first) + 1))
    return {
        "class": match["cls"].replace("-", "_"),
        "subtype": match["subtype"],
        "victim": name(match["victim"]),
        "writer": name(match["writer"]),
        "cause": match["cause"],
        "step": None if match["step"] == "-" else int(match["step"]),
        "slots": slots,
        "left": left,
        "more": dict(word.split("=", 1) for word in match["more"].split()),
    }


def test_the_line_is_frozen() -> None:
    (finding,) = diagnosed("tests/data/scenarios/S01_use_after_free.jsonl").findings
    assert summary_line(finding) == (
        "SUMMARY: kvcanary: use-after-free freed_by_dedup victim=B writer=C cause_event=8 "
        "first_bad_step=3 slots=5-7"
    )


@pytest.mark.parametrize("path", [c for c in CASES if "S21" not in c])
def test_the_line_says_what_the_finding_says(path: str) -> None:
    for finding in diagnosed(path).findings:
        said = parsed(summary_line(finding))
        assert said["class"] == finding.cls
        assert said["subtype"] == finding.subtype
        assert said["victim"] == finding.victim
        assert said["writer"] == finding.culprit.req
        assert said["slots"] == finding.slots
        lane = f"{finding.worker}/{finding.pool_kind}"
        assert said["more"] == ({} if lane == "target/FULL" else {"lane": lane})


NAMES = st.none() | st.text() | st.sampled_from(["-", '"', "a b", "=", "\\", "x=1 y=2", "é", "\n"])


@given(
    cls=st.sampled_from(CLASSES),
    victim=NAMES,
    writer=NAMES,
    cause=st.none() | st.integers(0, 1 << 40),
    window=st.none() | st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40)),
    step=st.none() | st.integers(0, 1 << 40),
    slots=st.sets(st.integers(0, 300), max_size=200),
    rank=st.none() | st.integers(0, 64),
)
def test_any_finding_is_one_line_that_reads_back(
    cls, victim, writer, cause, window, step, slots, rank
) -> None:
    finding = Finding(
        id="F1",
        cls=cls,
        subtype="some_subtype",
        first_bad_step=step,
        cause_event=cause,
        cause_window=window,
        corrupting_event=None,
        victim=victim,
        culprit=Culprit(req=writer, step=None, event=None),
        slots=set(slots),
        rank=rank,
    )
    line = summary_line(finding)
    assert len(line.splitlines()) == 1
    said = parsed(line)
    assert (said["victim"], said["writer"], said["step"]) == (victim, writer, step)
    assert said["slots"] <= slots
    assert len(said["slots"]) + said["left"] == len(slots)
    if cause is not None:
        assert said["cause"] == str(cause)
    elif window is not None:
        assert said["cause"] == f"{window[0]}-{window[1]}"
    else:
        assert said["cause"] == "-"
    assert said["more"] == ({} if rank is None else {"rank": str(rank)})


def test_many_ranges_are_counted() -> None:
    finding = Finding(
        id="F1",
        cls="double_alloc",
        subtype="double_free",
        first_bad_step=1,
        cause_event=1,
        corrupting_event=None,
        victim="A",
        culprit=Culprit(req=None, step=None, event=None),
        slots=set(range(0, 1000, 2)),
    )
    said = parsed(summary_line(finding))
    assert said["slots"] == set(range(0, 2 * MAX_RANGES, 2))
    assert said["left"] == 500 - MAX_RANGES


def test_the_grammar_is_documented() -> None:
    text = (ROOT / "docs" / "attribution.md").read_text()
    assert "SUMMARY: kvcanary: use-after-free freed_by_dedup victim=B writer=C" in text
    for field in ("victim", "writer", "cause_event", "first_bad_step", "slots", "lane", "rank"):
        assert f"`{field}`" in text
