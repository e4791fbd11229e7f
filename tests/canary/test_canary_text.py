"""The frozen violation text: the worked example, the forms, and the way back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.canary import (
    ViolationRow,
    parse_violation_line,
    violation_block,
    violation_line,
)

INT64 = st.integers(-(2**63), 2**63 - 1)

EXAMPLE = """\
kv_canary violation: launch_tag=TAIL_K_FULL fail_reason=write_position slot_idx=10 position=4 \
stored_token=11 expected_token=11 stored_chain_hash=0x0000011f71fb04cb \
expected_aux=0x0000000000000003
KV cache canary violation detected (kernel_kind=TAIL_K_FULL, slot_idx=10, position=4)
canary_kind:       per_forward_tail_k_full
  fail_reasons: write_position
  actual:   token_id=11   position=4 prev_hash=0x0000011f71fb04cb
  expected: token_id=11   position=3
  total_violations=3 ring_overflow=False step_when_pumped=17"""


def test_worked_example() -> None:
    row = ViolationRow.from_ring([2, 10, 4, 11, 11, 0x11F71FB04CB, 3, 16])
    block = violation_block(row, total_violations=3, ring_overflow=False, step_when_pumped=17)
    assert block == EXAMPLE


def test_verify_forms() -> None:
    plain = violation_block(
        ViolationRow(4, 9, 2, 9, -1, -1, 5, 3),
        total_violations=1,
        ring_overflow=True,
        step_when_pumped=2,
    ).split("\n")
    assert plain[0].startswith(
        "kv_canary violation: launch_tag=SWEEP_K_FULL "
        "fail_reason=verify_chain_hash+verify_position slot_idx=9 "
    )
    assert plain[2:6] == [
        "canary_kind:       sweep_k_full",
        "  fail_reasons: verify_chain_hash verify_position",
        "  stored:   token_id=9   position=2 prev_hash=0xffffffffffffffff",
        "  expected: prev_hash=0x0000000000000005",
    ]
    with_token = violation_block(
        ViolationRow(0, 10, 4, 11, 12, 7, 7, 34),
        total_violations=1,
        ring_overflow=False,
        step_when_pumped=2,
    ).split("\n")
    assert with_token[3] == "  fail_reasons: verify_position verify_token"
    assert with_token[5] == "  expected: token_id=12 prev_hash=0x0000000000000007"


def test_no_reason_and_unknown_tag() -> None:
    line = violation_line(ViolationRow(77, 1, 2, 3, 4, 5, 6, 0))
    assert line.startswith(
        "kv_canary violation: launch_tag=unknown(77) fail_reason=none slot_idx=1"
    )


@given(
    kind=st.integers(0, 11) | st.integers(12, 10**6),
    fields=st.tuples(INT64, INT64, INT64, INT64, INT64, INT64),
    bits=st.integers(0, 63),
    prefix=st.sampled_from(["", "[2026-11-30 18:00:00 TP0] WARNING "]),
)
def test_frozen_line_round_trip(
    kind: int, fields: tuple[int, int, int, int, int, int], bits: int, prefix: str
) -> None:
    row = ViolationRow(kind, *fields, bits)
    assert parse_violation_line(prefix + violation_line(row)) == row


def test_what_is_not_a_frozen_line() -> None:
    line = violation_line(ViolationRow(0, 1, 2, 3, 4, 5, 6, 1))
    assert parse_violation_line("nothing of the kind") is None
    assert parse_violation_line(line.replace("HEAD_K_FULL", "HEAD_Q_FULL")) is None
    assert parse_violation_line(line.replace("verify_chain_hash", "verify_colour")) is None
    assert parse_violation_line(line[:-1]) is None
