"""Logs of any shape: what is in them is counted, where it stands and when."""

from __future__ import annotations

import io
import random
import sys
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.catalog import Entry, LogSummary, catalogue, scan_log
from kvcanary_cli.catalog import log_scan as module
from kvcanary_cli.catalog.match import LABEL_CODES
from tests.catalog.messages import SEARCHABLE, message_of
from tests.catalog.test_matching import B03, VIOLATION

STATS = "[canary] step={} protected_tokens=9 sweep_passes=0 violations={} launch_tags_active=4/12"
SWA = 'kv_canary_swa_divergence={"forward_ct":7,"verify_full":1}'
INSTALL = (
    "install_canary: disaggregation_mode=null config=CanaryConfig(mode=<CanaryMode.LOG: 'log'>) "
    "perturb_config=PerturbConfig(x=(1, 2)) launch_capacities=CanaryLaunchCapacities("
    "per_forward_verify_capacity=9) n_buffer_groups=1 buffer_group_kinds=['FULL'] "
    "swa_window_size=0 speculative_num_steps=0"
)
NOISE = (
    "Decode batch. #running-req: 3, token usage: 0.02",
    "server_args=ServerArgs(kv_canary='log', kv_canary_sweep_interval=0)",
    "launching: python -m sglang.launch_server --kv-canary log",
    "AssertionError",
    "KeyError: 'ABC'",
)


def scan(text: str | bytes) -> LogSummary:
    data = text if isinstance(text, bytes) else text.encode()
    return scan_log(io.BytesIO(data), "server.log")


def counts(summary: LogSummary) -> dict[str, int]:
    return {code: found.count for code, found in summary.kinds.items()}


def test_interleaved_kinds_are_counted_with_their_places() -> None:
    stamp = "[2026-01-02 03:04:{:02} TP0] "
    lines = [
        stamp.format(0) + INSTALL,
        *NOISE,
        stamp.format(1) + STATS.format(100, 0),
        stamp.format(2) + VIOLATION,
        stamp.format(3) + VIOLATION.replace("TAIL_K", "HEAD_K"),
        stamp.format(4) + SWA,
        stamp.format(5) + VIOLATION,
        stamp.format(6) + STATS.format(200, 3),
        stamp.format(7) + "Scheduler hit an exception: Traceback (most recent call last):",
        '  File "manager.py", line 133, in check',
        f"RuntimeError: {B03}",
    ]
    summary = scan("\r\n".join(lines) + "\r\n")
    expected = {"KVC-L01": 1, "KVC-L03": 2, "KVC-V00": 3, "KVC-L05": 1, "KVC-B03": 1}
    assert counts(summary) == expected
    assert summary.lines == len(lines)
    assert summary.kinds["KVC-L03"].first.line == 7
    assert summary.kinds["KVC-L03"].last.line == 12
    assert summary.kinds["KVC-L03"].last.timestamp == "2026-01-02 03:04:06"
    assert summary.kinds["KVC-B03"].first.timestamp == "2026-01-02 03:04:07"
    reason = "verify_chain_hash+verify_token"
    assert {key: n.count for key, n in summary.violations.items()} == {
        ("TAIL_K_FULL", reason): 2,
        ("HEAD_K_FULL", reason): 1,
    }
    assert summary.most_violations == 3
    assert summary.last_fields["KVC-B03"] == {"bs": "12", "cap": "8"}
    assert summary.verdict(catalogue()) == "found"
    assert not summary.unknown


def test_verdicts() -> None:
    assert scan("").verdict(catalogue()) == "not_checked"
    assert scan("\n".join(NOISE)).verdict(catalogue()) == "not_checked"
    clean = f"{INSTALL}\n{STATS.format(100, 0)}\n"
    assert scan(clean).verdict(catalogue()) == "clean"
    assert scan(clean + STATS.format(200, 1)).verdict(catalogue()) == "found"
    unknown = scan(clean + "kv-canary: something new happened 17 times\n")
    assert unknown.verdict(catalogue()) == "found"
    assert list(unknown.unknown) == ["kv-canary: something new happened N times"]


@settings(max_examples=60)
@given(st.data())
def test_every_message_is_found_in_a_log(data: st.DataObject) -> None:
    entries = data.draw(
        st.lists(st.sampled_from(SEARCHABLE), min_size=1, max_size=6, unique_by=lambda e: e.code)
    )
    lines = []
    for entry in entries:
        lines += [data.draw(st.sampled_from(NOISE)), data.draw(message_of(entry))[0]]
    # A reason stands alone only in this test; in a server it is part of the frozen line.
    text = "".join(f"[2026-01-02 03:04:05] {line} \n" for line in lines)
    found = counts(scan(text))
    for entry in entries:
        if entry.code not in LABEL_CODES.values():
            assert found.get(entry.code) == 1, text


@pytest.mark.parametrize("entry", SEARCHABLE, ids=[entry.code for entry in SEARCHABLE])
def test_every_message_holds_a_needle(entry: Entry) -> None:
    fixed = [piece.text.encode() for piece in entry.matcher.pieces if piece.kind is None]
    if entry.code not in LABEL_CODES.values():  # those stand in the frozen line
        assert any(needle in text for needle in module.NEEDLES for text in fixed)


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
def test_the_block_size_changes_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    choices = [*NOISE, VIOLATION, B03, INSTALL, SWA, STATS.format(5, 0), "kv-canary: new", ""]
    text = "\n".join(rng.choice(choices) for _ in range(120)).encode()
    whole = scan(text)
    monkeypatch.setattr(module, "BLOCK_BYTES", block)
    parts = scan(text)
    assert parts == whole


def test_common_texts_need_a_traceback_of_the_canary() -> None:
    other = 'Traceback:\n  File "srt/managers/a.py", line 3\nAssertionError\n'
    own = other.replace("managers", "kv_canary")
    assert counts(scan(other)) == {}
    assert counts(scan(own)) == {"KVC-R17": 1}


def test_invalid_bytes_and_colours() -> None:
    line = b"\xff\xfe\x00 \x1b[31m" + VIOLATION.encode() + b"\x1b[0m \xc3\n"
    assert counts(scan(line * 3))["KVC-V00"] == 3


@pytest.mark.parametrize("gap", [10, 60_000, 61_440, 65_530, 200_000])
def test_a_huge_line_hides_nothing(gap: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 100_000)
    line = "x" * gap + " " + B03 + " " + "y" * gap + " " + VIOLATION + " " + "z" * gap
    summary = scan(f"first\n{line}\n{STATS.format(1, 0)}\n")
    found = counts(summary)
    assert (found["KVC-B03"], found["KVC-V00"], found["KVC-L03"]) == (1, 1, 1)
    assert summary.kinds["KVC-V00"].first.line == 2
    assert summary.kinds["KVC-L03"].first.line == 3
    assert len(summary.kinds["KVC-V00"].first.text) < 400
    assert VIOLATION[:40] in summary.kinds["KVC-V00"].first.text


class _Endless(io.RawIOBase):
    """A log that is made while it is read."""

    def __init__(self, line: bytes, size: int) -> None:
        self._line, self.left = line, size

    def read(self, size: int = -1) -> bytes:
        size = min(size, self.left)
        self.left -= size
        return (self._line * (size // len(self._line) + 1))[:size]


def test_a_large_log_is_never_held() -> None:
    size = 100 << 20
    line = ("x" * 150 + "\n").encode() * 400 + STATS.format(1, 0).encode() + b"\n"
    tracemalloc.start()
    try:
        summary = scan_log(_Endless(line, size), "-")  # type: ignore[arg-type]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert summary.size_bytes == size
    assert counts(summary)["KVC-L03"] > 1000
    assert peak < 10 * module.BLOCK_BYTES


def test_many_unknown_forms_are_bounded() -> None:
    words = ("".join(chr(97 + int(digit)) for digit in str(n)) for n in range(500))
    summary = scan("\n".join(f"kv-canary: new kind {word}" for word in words))
    assert len(summary.unknown) == 50
    assert summary.unknown_dropped == 450
    assert sys.getsizeof(summary.unknown) < 1 << 16
