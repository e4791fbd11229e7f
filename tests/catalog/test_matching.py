"""Messages are found as people paste them, and their values come back."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.catalog import Entry, catalogue, explain_text, nearest_codes, nearest_entries
from kvcanary_cli.catalog.match import LABEL_CODES, find_messages
from kvcanary_cli.catalog.template import squeeze
from tests.catalog.messages import SEARCHABLE, message_of
from tests.catalog.test_catalogue import REFERENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

ENTRY = pytest.mark.parametrize("entry", SEARCHABLE, ids=[entry.code for entry in SEARCHABLE])
FEW = settings(max_examples=8)
# The reasons stand within the frozen line, and one list of reasons has an entry for each.
WITH_REASONS = {"KVC-V00", *LABEL_CODES.values()}
B03 = (
    "kv-canary: forward_batch.batch_size=12 exceeds pre-allocated write_req_capacity=8; raise "
    "--cuda-graph-max-bs-decode or check CanaryLaunchCapacities.from_args"
)
VIOLATION = (
    "kv_canary violation: launch_tag=TAIL_K_FULL fail_reason=verify_chain_hash+verify_token "
    "slot_idx=10 position=4 stored_token=11 expected_token=12 "
    "stored_chain_hash=0x0000011f71fb04cb expected_aux=0x0000000000000003"
)


def _check(entry: Entry, text: str, values: dict[str, str], *, last_too: bool = True) -> None:
    matches = find_messages(text)
    codes = [match.entry.code for match in matches]
    if entry.code in WITH_REASONS:
        assert entry.code in codes, text
    else:
        assert codes == [entry.code], text
    match = next(match for match in matches if match.entry.code == entry.code)
    names = list(values)
    if not last_too and entry.matcher.pieces[-1].kind is not None:
        names = names[:-1]
    for name in names:
        assert squeeze(match.fields[name]) == squeeze(values[name]), (name, text)


@ENTRY
def test_a_message_is_its_own_entrys(entry: Entry) -> None:
    @FEW
    @given(message_of(entry))
    def check(message: tuple[str, dict[str, str]]) -> None:
        text, values = message
        _check(entry, text, values)
        _check(entry, f'"{text}"', values)
        _check(entry, f"\x1b[31m{text}\x1b[0m", values)
        _check(entry, f"Traceback (most recent call last):\nRuntimeError: {text}", values)
        _check(entry, f"[2026-01-02 03:04:05 TP0] {text}", values)
        assert re.search(REFERENCE[entry.code]["regex"], text + " ")

    check()


@ENTRY
def test_wrapping_hides_nothing(entry: Entry) -> None:
    @FEW
    @given(message_of(entry), st.integers(20, 90), st.sampled_from(["", "  ", "> "]))
    def check(message: tuple[str, dict[str, str]], width: int, indent: str) -> None:
        text, values = message
        words = textwrap.wrap(text, width, break_on_hyphens=False)
        _check(entry, "\n".join(indent + line for line in words), values, last_too=False)
        hard = [text[at : at + width] for at in range(0, len(text), width)]
        _check(entry, "\r\n".join(hard), values, last_too=False)

    check()


@ENTRY
def test_a_cut_message_is_never_taken_for_another(entry: Entry) -> None:
    @FEW
    @given(message_of(entry), st.floats(0, 1), st.sampled_from(["", " ...", "…"]))
    def check(message: tuple[str, dict[str, str]], share: float, mark: str) -> None:
        text = message[0][: int(share * len(message[0]))]
        for match in find_messages(text + mark):
            own = match.entry.family == entry.family
            assert own or {match.entry.code, entry.code} <= WITH_REASONS, text

    check()


@ENTRY
def test_a_message_cut_within_one_of_few_words_is_never_taken_for_another(entry: Entry) -> None:
    for n, piece in enumerate(entry.matcher.pieces):
        for word in piece.words():
            before = "".join(p.text if p.kind is None else "7" for p in entry.matcher.pieces[:n])
            for end in range(1, len(word)):
                for match in find_messages(before + word[:end]):
                    assert match.entry.family == entry.family, before + word[:end]


@pytest.mark.parametrize("cut", range(len("kv-canary: forward_batch.b"), len(B03)))
def test_every_longer_beginning_is_explained(cut: int) -> None:
    (explanation,) = explain_text(B03[:cut] + " ...")
    assert explanation.entry.family == "KVC-B03"


def test_the_numbers_of_the_message_are_filled_in() -> None:
    (explanation,) = explain_text(B03)
    assert explanation.entry.code == "KVC-B03"
    assert explanation.match is not None
    assert explanation.match.fields == {"bs": "12", "cap": "8"}
    assert "at least 12; the next captured size is 12" in explanation.do[0]
    assert "--cuda-graph-max-bs-decode 8" in explanation.before
    (odd,) = explain_text(B03.replace("=12", "=13"))
    assert "at least 13; the next captured size is 16" in odd.do[0]


def test_the_spelling_of_the_option_tells_the_version() -> None:
    (old,) = explain_text(B03.replace("-bs-decode", "-bs"))
    assert old.entry.code == "KVC-Z02"
    assert old.before == ("--cuda-graph-max-bs 8",)
    assert (old.entry.first, old.entry.last) == ("0.5.13", "0.5.18")


def test_two_entries_with_one_template_are_told_apart_by_the_name() -> None:
    same: dict[str, list[str]] = {}
    for entry in SEARCHABLE:
        if entry.code in WITH_REASONS:
            continue
        same.setdefault(entry.template, []).append(entry.code)
    assert [codes for codes in same.values() if len(codes) > 1] == [["KVC-B02", "KVC-C08"]]
    text = "kv-canary: {} must be non-negative, got -1"
    for name, code in (("cuda_graph_max_bs", "KVC-B02"), ("lut_len", "KVC-C08")):
        assert [e.entry.code for e in explain_text(text.format(name))] == [code]
    assert explain_text(text.format("something_else")) == []
    near = {entry.code for entry in nearest_entries(text.format("something_else"))}
    assert near >= {"KVC-B02", "KVC-C08"}


def test_a_violation_is_followed_by_its_reasons() -> None:
    found = explain_text(VIOLATION)
    assert [e.entry.code for e in found] == ["KVC-V00", "KVC-V01", "KVC-V06"]
    assert "after the model ran" in found[0].remarks[0]
    written = VIOLATION.replace("verify_chain_hash+verify_token", "write_position")
    found = explain_text(written)
    assert [e.entry.code for e in found] == ["KVC-V00", "KVC-V05"]
    assert "Position 4 was written; 3 was expected." in found[0].remarks
    assert "4 was written, 3 expected" in found[1].do[0]


def test_a_block_is_one_violation() -> None:
    from kvcanary_cli.canary import ViolationRow, violation_block

    row = ViolationRow(2, 10, 4, 11, 12, -3, 3, 1)
    block = violation_block(row, total_violations=3, ring_overflow=False, step_when_pumped=9)
    for text in (block, textwrap.indent(block, "│ "), repr(block)):
        assert [e.entry.code for e in explain_text(text)] == ["KVC-V00", "KVC-V01"]


@pytest.mark.parametrize("label", sorted(LABEL_CODES))
def test_a_bare_reason(label: str) -> None:
    assert [e.entry.code for e in explain_text(label)] == [LABEL_CODES[label]]


def test_common_texts_count_only_by_themselves() -> None:
    assert [e.entry.code for e in explain_text("AssertionError")] == ["KVC-R17"]
    assert [e.entry.code for e in explain_text("KeyError: 'WARN'")] == ["KVC-A05"]
    trace = "Traceback:\n  File \"srt/kv_canary/config.py\", line 71\nKeyError: 'WARN'"
    assert [e.entry.code for e in explain_text(trace)] == ["KVC-A05"]
    assert explain_text(trace.replace("kv_canary", "managers")) == []
    assert explain_text("AssertionError: something of somebody else") == []


@given(st.text(max_size=200))
def test_no_text_breaks_it(text: str) -> None:
    assert isinstance(explain_text(text), list)
    assert len(nearest_entries(text)) <= 3


@pytest.mark.parametrize("size", [10_000, 100_000])
@pytest.mark.parametrize("filler", ["kv-canary: ", "x", "(", "fail_reason=a+", "a b\n"])
def test_long_text_is_searched_in_one_pass(size: int, filler: str) -> None:
    text = (filler * size)[:size]
    assert B03[:40] not in text
    assert "KVC-B03" in [m.entry.code for m in find_messages(text + "\n" + B03)]


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("KVC-B3", "KVC-B03"), ("KVC-BO3", "KVC-B03"), ("b003", "KVC-B03"), ("KVC-B93", "KVC-B03")],
)
def test_did_you_mean(wrong: str, meant: str) -> None:
    assert meant in nearest_codes(wrong)


@pytest.fixture(scope="module")
def provoked() -> Iterator[dict[str, list[str]]]:
    folder = str(Path(__file__).parents[1] / "canary")
    sys.path.insert(0, folder)
    try:
        from provoked import PROVOKERS, Catch

        catch = Catch()
        for provoke in PROVOKERS:
            provoke(catch)
        yield catch.texts
    finally:
        sys.path.remove(folder)


def test_what_the_library_really_says_is_explained(provoked: dict[str, list[str]]) -> None:
    assert len(provoked) >= 90
    for code, texts in provoked.items():
        for text in texts:
            assert [e.entry.code for e in explain_text(text)] == [code], text
            entry = catalogue()[code]
            if not entry.whole:
                assert entry.matcher.strict.search(text)
