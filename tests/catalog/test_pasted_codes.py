"""Codes as people paste them, several messages at once, and files that are no log."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.catalog import (
    catalogue,
    entry_of,
    explain_code,
    explain_text,
    log_scan,
    merged,
    plain_marks,
    scan_log,
)
from tests.catalog.messages import SEARCHABLE, message_of
from tests.catalog.test_log_scan import INSTALL, STATS
from tests.catalog.test_matching import B03, VIOLATION

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.catalog import Entry

    Run = Callable[..., Any]


def codes(run: Run, *what: str) -> list[str]:
    ran = run("explain", *what, "--format", "json")
    assert ran.code == 0, ran.err
    return [one["code"] for one in json.loads(ran.out)["entries"]]


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("KVC\u2011B03", ["KVC-B03"]),
        ("KVC\u2013B03", ["KVC-B03"]),
        ("\u201cKVC-B03\u201d", ["KVC-B03"]),
        ("'kvc-b03'.", ["KVC-B03"]),
        ("\u200bKVC-B03\u00a0", ["KVC-B03"]),
        ("KVC-B03 KVC-C06", ["KVC-B03", "KVC-C06"]),
        ("KVC-B03, c06; KVC_B04", ["KVC-B03", "KVC-C06", "KVC-B04"]),
        ("KVC-B03/KVC-B03", ["KVC-B03"]),
        ("see KVC-C06", ["KVC-C06"]),
        ("what is kvc b03, please?", ["KVC-B03"]),
        (f"KVC-C06: {B03}", ["KVC-B03", "KVC-C06"]),
        (f"KVC-B03: {B03}", ["KVC-B03"]),
    ],
)
def test_codes_as_they_are_pasted(run: Run, what: str, expected: list[str]) -> None:
    assert codes(run, what) == expected


@pytest.mark.parametrize("what", ["KVC-X99", "see KVC-X99", "KVC-B03 KVC-X99"])
def test_a_code_of_no_entry_is_an_error(run: Run, what: str) -> None:
    ran = run("explain", what)
    assert ran.code == 2
    assert "no entry has the code 'KVC-X99'" in ran.err


def test_messages_with_the_marks_of_a_word_processor() -> None:
    pasted = B03.replace("--", "\u2014").replace("-", "\u2011").replace(" ", "\u00a0")
    (found,) = explain_text(f"\u201c{pasted}\u201d")
    assert found.entry.code == "KVC-B03"
    assert found.match is not None
    assert found.match.whole


def test_plain_marks_leave_the_catalogue_alone() -> None:
    for entry in catalogue().values():
        assert plain_marks(entry.template) == entry.template


def test_several_messages_of_one_entry_are_explained_once(run: Run) -> None:
    more = B03.replace("batch_size=12", "batch_size=99")
    explained = explain_text(f"{B03}\n{more}\n{B03}\n")
    (one,) = explained
    assert one.match is not None
    # The advice has to cover the largest.
    assert one.match.fields["bs"] == "99"
    assert [match.fields["bs"] for match in one.further] == ["12"]
    ran = run("explain", B03, more, "b03")
    assert ran.out.count("What it means") == 1
    assert "bs = 99, cap = 8\n  also: bs = 12, cap = 8\n" in ran.out


def test_merging_keeps_the_message_over_the_bare_code() -> None:
    entry = entry_of("B03")
    assert entry is not None
    (one,) = merged([explain_code(entry), *explain_text(B03)])
    assert one.match is not None
    assert one.match.fields["bs"] == "12"


@pytest.mark.parametrize("entry", catalogue().values(), ids=lambda entry: str(entry.code))
def test_an_old_text_has_the_related_entries_of_todays(entry: Entry) -> None:
    related = [one.code for one in explain_code(entry).related]
    assert len(set(related)) == len(related)
    assert entry.code not in related
    if entry.variant_of is not None:
        today = catalogue()[entry.variant_of]
        of_today = {one.code for one in explain_code(today).related}
        assert of_today - {entry.code} <= set(related)
        assert today.code in related


@pytest.mark.parametrize(
    "line",
    [
        "kv-canary: log",
        'kv-canary: "raise"  # on',
        "  - kv-canary: none",
        "kv-canary:",
        "kv-canary: off",
    ],
)
def test_a_setting_of_a_configuration_is_no_message(line: str) -> None:
    text = f"model-path: m\n{line}\nmax-running-requests: 8\n"
    summary = scan_log(io.BytesIO(text.encode()), "c.yaml")
    assert summary.verdict(catalogue()) == "not_checked"
    unknown = scan_log(io.BytesIO(b"kv-canary: log is full\n"), "x.log")
    assert unknown.verdict(catalogue()) == "found"


def test_a_continuation_has_the_time_of_its_record() -> None:
    lines = [f"[2026-01-02 03:04:00 TP0] {INSTALL}"]
    for second in range(1, 6):
        lines += [
            f"[2026-01-02 03:04:0{second} TP0] {VIOLATION}",
            "KV cache canary violation detected (kernel_kind=TAIL_K_FULL, slot_idx=3, position=0)",
        ]
    lines.append(f"[2026-01-02 03:04:09 TP0] {STATS.format(100, 5)}")
    summary = scan_log(io.BytesIO("\n".join(lines).encode()), "server.log")
    found = summary.kinds["KVC-V10"]
    assert found.first.timestamp == "2026-01-02 03:04:01"
    assert found.last.timestamp == "2026-01-02 03:04:05"


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_message_is_lost_by_its_shape(data: st.DataObject) -> None:
    text = data.draw(message_of(data.draw(st.sampled_from(SEARCHABLE))))[0]
    shape = log_scan._SHAPE_NUMBER.sub("N", text)
    wanted = [one.code for anchor, one in log_scan._by_specificity() if anchor in text]
    kept = [one.code for anchor, one in log_scan._candidates(shape) if anchor in text]
    assert kept == wanted
