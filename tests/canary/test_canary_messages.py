"""Every message of the library is a message of the catalogue, and the rest is accounted for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from provoked import PROVOKERS, Catch

from kvcanary_cli.abi.constants import FailReason
from kvcanary_cli.canary import FutureTensors, ViolationRow, violation_block

CATALOGUE = Path(__file__).parents[1] / "data" / "errors.json"
ENTRIES = json.loads(CATALOGUE.read_text(encoding="utf-8"))["errors"]
REGEX = {entry["id"]: re.compile(entry["regex"]) for entry in ENTRIES}
SPECIFICITY = {entry["id"]: entry["specificity"] for entry in ENTRIES}
BLOCK_CODES = {f"KVC-V{n:02}" for n in (0, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13)}

# The catalogue's own overlaps: the looser regex matches the other's text as well.
ALSO_MATCHES = {
    "KVC-C07": {"KVC-B01"},
    "KVC-C09": {"KVC-B01"},
    "KVC-E03": {"KVC-E04"},
}

_COMPILED = "raised inside the server's compiled module; here the arguments are checked before"
_OTHER_VERSION = "a text of another version for a check that has changed since"
_UNRELEASED = "belongs to an extension that was never released"
WITHOUT_COUNTERPART = {
    "KVC-B09": "two plan kernels disagree; here both halves of the plan come from one total",
    "KVC-C06": "a second check of KVC-C02 in a launcher that is not separate here",
    "KVC-C08": "sizes are taken from tensors, so they cannot be negative",
    "KVC-C10": "no such flag: a table is given or it is None",
    "KVC-C14": "no stride argument: it is read from the tensor",
    "KVC-C19": _COMPILED,
    "KVC-C20": _COMPILED,
    "KVC-C21": _COMPILED,
    "KVC-S14": _COMPILED,
    "KVC-S15": _COMPILED,
    "KVC-W03": _COMPILED,
    "KVC-W04": _COMPILED,
    "KVC-R17": "bare assertions of the server; here the constructors refuse with a text",
    "KVC-L06": "logged by the server's own pool sizing",
    "KVC-Z01": _OTHER_VERSION,
    "KVC-Z03": _OTHER_VERSION,
    "KVC-Z04": _OTHER_VERSION,
    **{f"KVC-Z{n}": _UNRELEASED for n in (*range(10, 20), *range(30, 34))},
}


@pytest.fixture(scope="module")
def provoked() -> dict[str, list[str]]:
    catch = Catch()
    for provoke in PROVOKERS:
        provoke(catch)
    return catch.texts


def _matches(text: str) -> set[str]:
    return {code for code, regex in REGEX.items() if regex.search(text)}


def test_each_message_matches_its_own_entry_only(provoked: dict[str, list[str]]) -> None:
    for code, texts in provoked.items():
        for text in texts:
            found = _matches(text)
            assert code in found, (code, text)
            assert found - {code} <= ALSO_MATCHES.get(code, set()), (code, text, found)
            assert max(found, key=SPECIFICITY.__getitem__) == code, (code, text, found)


def test_capture_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(AssertionError) as caught:
        FutureTensors.device_to_host({"a": torch.zeros(1)})
    assert _matches(str(caught.value)) == {"KVC-R13"}


def test_violation_block_matches_the_frozen_entries() -> None:
    labels = {
        FailReason.VERIFY_CHAIN_HASH_MISMATCH: "KVC-V01",
        FailReason.VERIFY_POSITION_MISMATCH: "KVC-V02",
        FailReason.VERIFY_REAL_KV_HASH_MISMATCH: "KVC-V03",
        FailReason.WRITE_TOKEN_MISMATCH: "KVC-V04",
        FailReason.WRITE_POSITION_MISMATCH: "KVC-V05",
        FailReason.VERIFY_TOKEN_MISMATCH: "KVC-V06",
    }
    for bit, code in labels.items():
        row = ViolationRow(2, 10, 4, 11, 12, -3, 3, int(bit))
        block = violation_block(row, total_violations=3, ring_overflow=False, step_when_pumped=9)
        lines = block.split("\n")
        assert len(lines) == 7
        assert _matches(lines[0]) == {"KVC-V00", code}
        assert [_matches(line) for line in (lines[1], lines[2], lines[3], lines[6])] == [
            {"KVC-V10"},
            {"KVC-V11"},
            {"KVC-V12"},
            {"KVC-V13"},
        ]


def test_the_whole_catalogue_is_accounted_for(provoked: dict[str, list[str]]) -> None:
    covered = set(provoked) | BLOCK_CODES | {"KVC-R13"}
    assert not covered & set(WITHOUT_COUNTERPART)
    assert covered | set(WITHOUT_COUNTERPART) == set(REGEX)
