"""Violations in the one-line form that the server logs, for parsers that know it (6.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.abi.constants import FailReason, LaunchTag
from kvcanary_cli.canary.violation_text import ViolationRow, violation_line
from kvcanary_cli.replay.violations import VERIFY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcanary_cli.attribution.report import Report
    from kvcanary_cli.replay.violations import Violation

_KV = int(FailReason.VERIFY_REAL_KV_HASH_MISMATCH)
_BITS = {bit.name.lower().removesuffix("_mismatch"): int(bit) for bit in FailReason if bit.name}


def ring_rows(violation: Violation) -> Iterator[ViolationRow]:
    """The ring rows behind a violation: one for each launch that saw it.

    Launches differ in nothing but the fingerprint: each compares its own half's, HEAD none.
    """
    bits = sum(_BITS[label] for label in violation.fail_reasons)
    is_verify = violation.check == VERIFY
    expected_token = violation.expected_token
    if expected_token is None:
        expected_token = -1 if is_verify else violation.stored_token
    if not is_verify:
        aux = violation.expected_position
    elif violation.expected_chain_hash is None:
        aux = violation.stored_chain_hash
    else:
        aux = violation.expected_chain_hash
    for name in violation.launch_tags:
        tag = LaunchTag[name]
        yield ViolationRow(
            kernel_kind=int(tag),
            slot=violation.slot,
            position=violation.position,
            stored_token=violation.stored_token,
            expected_token=expected_token,
            stored_chain_hash=violation.stored_chain_hash,
            expected_aux=aux,
            fail_bits=bits if name in violation.kv_tags else bits & ~_KV,
        )


def log_lines(report: Report) -> Iterator[str]:
    """Every violation of every launch, one line each."""
    for diagnosis in report.traces:
        for violation in diagnosis.replay.violations:
            for row in ring_rows(violation):
                yield violation_line(row) + "\n"
