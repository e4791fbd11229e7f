"""The text of a violation, which log parsers rely on, and the way back (specification 6.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcanary_cli.abi.constants import FailReason, LaunchTag, fail_reason_labels

if TYPE_CHECKING:
    from collections.abc import Sequence

_WRITE_BITS = FailReason.WRITE_TOKEN_MISMATCH | FailReason.WRITE_POSITION_MISMATCH
_BIT_OF_LABEL = {label: bit for bit in map(int, FailReason) for label in fail_reason_labels(bit)}
_UINT64 = (1 << 64) - 1

_LINE = re.compile(
    r"kv_canary violation: launch_tag=(?P<tag>[A-Z_]+|unknown\((?P<number>-?\d+)\)) "
    r"fail_reason=(?P<reason>[a-z_]+(?:\+[a-z_]+)*) slot_idx=(?P<slot>-?\d+) "
    r"position=(?P<position>-?\d+) stored_token=(?P<stored>-?\d+) "
    r"expected_token=(?P<expected>-?\d+) stored_chain_hash=0x(?P<chain>[0-9a-f]{16}) "
    r"expected_aux=0x(?P<aux>[0-9a-f]{16})"
)


def hex64(value: int) -> str:
    """``0x`` and 16 lower-case digits of the value as unsigned 64-bit."""
    return f"0x{value & _UINT64:016x}"


def _signed(digits: str) -> int:
    value = int(digits, 16)
    return value - (1 << 64) if value >> 63 else value


@dataclass(frozen=True, slots=True)
class ViolationRow:
    """One row of the ring, fields in ring order (specification 1.10)."""

    kernel_kind: int
    slot: int
    position: int
    stored_token: int
    expected_token: int
    stored_chain_hash: int
    expected_aux: int
    fail_bits: int

    @classmethod
    def from_ring(cls, row: Sequence[int]) -> ViolationRow:
        """Make a row of the ring's eight int64 fields."""
        return cls(*(int(field) for field in row))

    @property
    def is_write(self) -> bool:
        return bool(self.fail_bits & _WRITE_BITS)

    @property
    def tag_name(self) -> str:
        """Name of the launch tag, ``unknown(n)`` for a number that has none."""
        try:
            return LaunchTag(self.kernel_kind).name
        except ValueError:
            return f"unknown({self.kernel_kind})"


def violation_line(row: ViolationRow) -> str:
    """The frozen one-line form."""
    reason = "+".join(fail_reason_labels(row.fail_bits)) or "none"
    return (
        f"kv_canary violation: launch_tag={row.tag_name} fail_reason={reason} "
        f"slot_idx={row.slot} position={row.position} stored_token={row.stored_token} "
        f"expected_token={row.expected_token} stored_chain_hash={hex64(row.stored_chain_hash)} "
        f"expected_aux={hex64(row.expected_aux)}"
    )


def violation_block(
    row: ViolationRow, *, total_violations: int, ring_overflow: bool, step_when_pumped: int
) -> str:
    """The frozen line and the lines that follow it in one log record.

    Args:
        row: The violation.
        total_violations: Violations so far, lost ones included.
        ring_overflow: Whether some did not fit the ring.
        step_when_pumped: Outer step of the report, at least one after the detection.
    """
    tag = row.tag_name.lower()
    token_and_position = f"token_id={row.stored_token}   position={row.position}"
    if row.is_write:
        seen = f"  actual:   {token_and_position} prev_hash={hex64(row.stored_chain_hash)}"
        expected = f"  expected: token_id={row.expected_token}   position={row.expected_aux}"
    else:
        seen = f"  stored:   {token_and_position} prev_hash={hex64(row.stored_chain_hash)}"
        token = ""
        if row.fail_bits & FailReason.VERIFY_TOKEN_MISMATCH:
            token = f"token_id={row.expected_token} "
        expected = f"  expected: {token}prev_hash={hex64(row.expected_aux)}"
    return "\n".join(
        (
            violation_line(row),
            f"KV cache canary violation detected (kernel_kind={row.tag_name}, "
            f"slot_idx={row.slot}, position={row.position})",
            f"canary_kind:       {tag if tag.startswith('sweep') else f'per_forward_{tag}'}",
            f"  fail_reasons: {' '.join(fail_reason_labels(row.fail_bits)) or 'none'}",
            seen,
            expected,
            f"  total_violations={total_violations} ring_overflow={ring_overflow} "
            f"step_when_pumped={step_when_pumped}",
        )
    )


def parse_violation_line(text: str) -> ViolationRow | None:
    """Read the first frozen line in ``text`` back, or None if there is none.

    A tag or label that this version does not know makes the line unreadable (None) rather than
    half read.
    """
    match = _LINE.search(text)
    if match is None:
        return None
    if match["number"] is not None:
        kind = int(match["number"])
    elif match["tag"] in LaunchTag.__members__:
        kind = int(LaunchTag[match["tag"]])
    else:
        return None
    bits = 0
    if match["reason"] != "none":
        for label in match["reason"].split("+"):
            bit = _BIT_OF_LABEL.get(label)
            if bit is None:
                return None
            bits |= bit
    return ViolationRow(
        kernel_kind=kind,
        slot=int(match["slot"]),
        position=int(match["position"]),
        stored_token=int(match["stored"]),
        expected_token=int(match["expected"]),
        stored_chain_hash=_signed(match["chain"]),
        expected_aux=_signed(match["aux"]),
        fail_bits=bits,
    )
