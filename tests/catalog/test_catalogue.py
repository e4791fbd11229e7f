"""The catalogue is whole: every message, every section, and nothing that only repeats."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvcanary_cli.catalog import Entry, Phase, catalogue, entry_of, explain_code
from kvcanary_cli.catalog.fill import fill
from kvcanary_cli.catalog.numbers import values_of

REFERENCE = {
    entry["id"]: entry
    for entry in json.loads(
        (Path(__file__).parents[1] / "data" / "errors.json").read_text(encoding="utf-8")
    )["errors"]
}
ENTRIES = list(catalogue().values())
ENTRY = pytest.mark.parametrize("entry", ENTRIES, ids=[entry.code for entry in ENTRIES])


def test_the_same_codes_as_the_reference() -> None:
    assert len(REFERENCE) == 133
    assert set(catalogue()) == set(REFERENCE)


@ENTRY
def test_message_and_severity_are_the_references(entry: Entry) -> None:
    reference = REFERENCE[entry.code]
    assert entry.message == reference["message"]
    assert entry.severity == reference["severity"]
    assert reference["raised_as"].startswith(entry.raised_as)


@ENTRY
def test_every_section_is_filled(entry: Entry) -> None:
    explanation = explain_code(entry)
    for texts in (explanation.meaning, explanation.when, explanation.do):
        assert texts
        for text in texts:
            assert text.endswith((".", ")")), text
            assert not re.search(r"\[\[|\]\]|\{[a-z_]\w*\}", text), text
            assert "  " not in text
    assert explanation.before
    assert explanation.after
    assert explanation.before != explanation.after
    assert entry.title
    assert entry.title[-1] not in ".:"
    assert len(entry.title) <= 79


@ENTRY
def test_the_meaning_says_more_than_the_message(entry: Entry) -> None:
    words = set(re.findall(r"[a-z]{4,}", " ".join(entry.meaning).lower()))
    own = words - set(re.findall(r"[a-z]{4,}", entry.message.lower()))
    assert len(own) >= 12, sorted(own)
    assert len(entry.do) >= 2 or entry.code == "KVC-C07" or entry.code == "KVC-S01"


@ENTRY
def test_related_entries_exist_and_point_back(entry: Entry) -> None:
    assert entry.related
    assert entry.code not in entry.related
    for code in entry.related:
        assert entry.code in catalogue()[code].related, code


@ENTRY
def test_placeholders_are_values_of_the_message(entry: Entry) -> None:
    fields = {piece.text: "1" for piece in entry.matcher.pieces if piece.kind is not None}
    known = values_of(entry, {name: "0x1" if "aux" in name else "1" for name in fields})
    texts = [*entry.meaning, *entry.when, *entry.do, *entry.before, *entry.after]
    used = {name for text in texts for name in re.findall(r"\{([a-z_]\w*)(?:\|[^{}]*)?\}", text)}
    if entry.code == "KVC-V05":  # explained from the fields of the frozen line
        used -= {"position", "aux_number"}
    assert used <= set(known)
    for case in entry.cases:
        assert case.field in fields
        re.compile(case.matches)


def test_the_entry_that_started_the_project() -> None:
    text = " ".join(
        [*(e := explain_code(catalogue()["KVC-B03"])).meaning, *e.when, *e.do, *e.before, *e.after]
    )
    for said in (
        "allocated once",
        "before any kernel launch so that they cannot be overrun",
        "meets a load peak",
        "come from different arguments",
        "--against",
        "--max-running-requests",
        "--cuda-graph-max-bs 8",
        "--cuda-graph-max-bs 64",
    ):
        assert said in text, said
    related = {"KVC-B01", "KVC-B04", "KVC-C06", "KVC-C08", "KVC-C13"}
    assert related <= set(catalogue()["KVC-B03"].related)


@pytest.mark.parametrize("code", ["KVC-B03", "kvc-b03", "B03", "kvc_b03", " Kvc-B03 "])
def test_codes_in_any_case(code: str) -> None:
    found = entry_of(code)
    assert found is not None
    assert found.code == "KVC-B03"


def test_what_was_never_released_says_so() -> None:
    for entry in ENTRIES:
        assert (entry.phase is Phase.NEVER) == (entry.last is None)
        assert (REFERENCE[entry.code]["status"] == "unreleased") == (entry.last is None)


def test_fill_leaves_out_what_is_not_known() -> None:
    assert fill("raise it[[ to {bs}]].", {}) == "raise it."
    assert fill("raise it[[ to {bs}]].", {"bs": "12"}) == "raise it to 12."
    assert fill("--bs {bs|64}", {}) == "--bs 64"
    assert fill("in {log, raise}", {}) == "in {log, raise}"
    with pytest.raises(KeyError):
        fill("to {bs}", {})
