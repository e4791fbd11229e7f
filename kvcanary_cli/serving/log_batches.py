"""Batch lines and canary messages of a log: the load it met (SPEC_SERVING_ARGS 4.5, 4.6)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from kvcanary_cli.serving.observed import LoggedError

if TYPE_CHECKING:
    from kvcanary_cli.serving.observed import Observations
    from kvcanary_cli.serving.values import Place

_BATCH = re.compile(r"\b(Prefill|Decode) batch(?: \[\d+\])?([.,])")
_PAIR = re.compile(r"(#[\w\-]+(?: token)?): (\d+)")
_MESSAGES = (
    (
        "KVC-B03",
        re.compile(
            r"forward_batch\.batch_size=(\d+) exceeds pre-allocated write_req_capacity=(\d+)"
        ),
    ),
    (
        "KVC-B04",
        re.compile(
            r"forward_batch token count=(\d+) exceeds pre-allocated write_entry_capacity=(\d+)"
        ),
    ),
    ("KVC-B05", re.compile(r"per-forward batch size (\d+) exceeds static capacity (\d+)")),
    (
        "KVC-B08",
        re.compile(
            r"per-forward verify skipped this step due to overflow \(total=(\d+), capacity=(\d+)\)"
        ),
    ),
)
#: Newest version whose batch lines have a full stop after "batch".
_LAST_WITH_FULL_STOP = "0.5.3.post3"
_MAX_DIGITS = 18


class BatchForm(NamedTuple):
    """What the form of a batch line tells: the newest version that writes like this, or None."""

    newest: str | None


_OLD_FORM = BatchForm(_LAST_WITH_FULL_STOP)
_NEW_FORM = BatchForm(None)


def read_batch_line(text: str, place: Place, observed: Observations) -> BatchForm | None:
    """Note the peaks of a batch line; None if it is none."""
    found = _BATCH.search(text)
    if found is None:
        return None
    pairs = {
        name: int(number)
        for name, number in _PAIR.findall(text, found.end())
        if len(number) <= _MAX_DIGITS
    }
    observed.batch_lines += 1
    if found.group(1) == "Decode":
        if "#running-req" in pairs:
            observed.see("decode_requests", pairs["#running-req"], place, "decode batch")
    else:
        tokens = pairs.get("#new-token", 0) + pairs.get("#replay-token", 0)
        observed.see("prefill_tokens", tokens, place, "prefill batch")
        observed.see("prefill_requests", pairs.get("#new-seq", 0), place, "prefill batch")
    return _OLD_FORM if found.group(2) == "." else _NEW_FORM


def read_canary_message(text: str, place: Place, observed: Observations) -> None:
    """Note a capacity message or a violation line of the canary."""
    if "kv_canary violation:" in text:
        observed.violations += 1
        observed.first_violation = observed.first_violation or place
        observed.last_violation = place
        return
    if "exceeds" not in text and "overflow" not in text:
        return
    for code, pattern in _MESSAGES:
        found = pattern.search(text)
        if found and max(map(len, found.groups())) <= _MAX_DIGITS:
            observed.see_error(LoggedError(code, int(found.group(1)), int(found.group(2)), place))
