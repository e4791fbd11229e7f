"""The triton backend on hand-made cases: requests that clash, slot 0, sources, set-up."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from kvcanary_cli.abi.constants import CHAIN_HEAD_HASH, RealKvHashMode
from kvcanary_cli.abi.faults import Fault, new_fault_cell, unpack_fault
from kvcanary_cli.abi.plans import VerifyPlan, WritePlan
from kvcanary_cli.abi.sources import RealKvSource
from kvcanary_cli.backends import get_backend
from kvcanary_cli.backends.triton.write_marks import (
    CONFLICT_CELL,
    PADDING_ORDER_CELL,
    launch_write_marks_kernel,
)

_SENTINEL = -77
# Chain after (5, 0), (7, 1), (9, 2) as int64: vectors V04 to V07 of the specification.
_V04, _V05, _V06, _V07 = (
    -2414019407054260458,
    -7932315673760087923,
    5915495880620600539,
    -7274547274657110215,
)


def _i64(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


class _Rig:
    """A canary buffer of 16 rows with a ring and counters, all filled with known values."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.canary_buf = torch.zeros((16, 32), dtype=torch.uint8, device=device)
        self.ring = torch.full((8, 8), _SENTINEL, dtype=torch.int64, device=device)
        self.write_index = torch.zeros(1, dtype=torch.int32, device=device)
        self.slot_counter = torch.zeros(1, dtype=torch.int64, device=device)
        self.kernel_counter = torch.zeros(1, dtype=torch.int64, device=device)

    def context(self, kernel_kind: int) -> dict[str, Any]:
        return {
            "canary_buf": self.canary_buf,
            "kernel_kind": kernel_kind,
            "violation_ring": self.ring,
            "violation_write_index": self.write_index,
            "slot_run_counter": self.slot_counter,
            "kernel_run_counter": self.kernel_counter,
        }

    def rows(self) -> list[list[int]]:
        return self.canary_buf.view(torch.int64).tolist()

    def violations(self) -> list[list[int]]:
        return sorted(self.ring[: int(self.write_index)].tolist())

    def write_plan(self, offsets: list[int], seeds: list[int]) -> WritePlan:
        return WritePlan(
            write_offsets=_i64(*offsets).to(self.device),
            write_seed_slot_indices=_i64(*seeds).to(self.device),
            write_num_valid_reqs=torch.tensor([len(seeds)], dtype=torch.int32, device=self.device),
        )

    def write(
        self,
        offsets: list[int],
        seeds: list[int],
        entries: list[tuple[int, int, int]],
        kernel_kind: int = 0,
        **more: Any,
    ) -> None:
        """Write ``entries`` of (token, position, slot)."""
        ids, positions, locs = (
            _i64(*column).to(self.device) for column in zip(*entries, strict=True)
        )
        get_backend("triton").write(
            **self.context(kernel_kind),
            plan=self.write_plan(offsets, seeds),
            input_ids=ids,
            positions=positions,
            out_cache_loc=locs,
            enable_chain_position_assert=torch.ones(1, dtype=torch.int32, device=self.device),
            **more,
        )

    def scratch(self, offsets: list[int], seeds: list[int], locs: list[int]) -> torch.Tensor:
        return launch_write_marks_kernel(
            canary_words=self.canary_buf.view(torch.int64),
            plan=self.write_plan(offsets, seeds),
            slot_run_counter=self.slot_counter,
            kernel_run_counter=self.kernel_counter,
            out_cache_loc=_i64(*locs).to(self.device),
            real_kv_sources=(),
            real_kv_hash_mode=RealKvHashMode.NONE,
            fault=new_fault_cell(self.device),
        )

    def verify(self, entries: list[tuple[int, int, int, int]], kernel_kind: int = 0) -> None:
        """Verify ``entries`` of (slot, expected token, position, predecessor)."""
        slots, tokens, positions, prevs = (
            _i64(*column).to(self.device) for column in zip(*entries, strict=True)
        )
        get_backend("triton").verify(
            **self.context(kernel_kind),
            plan=VerifyPlan(
                verify_slot_indices=slots,
                verify_expected_tokens=tokens,
                verify_expected_positions=positions,
                verify_prev_slot_indices=prevs,
                verify_num_valid=torch.tensor(
                    [len(entries)], dtype=torch.int32, device=self.device
                ),
                enable=torch.ones(1, dtype=torch.int32, device=self.device),
            ),
        )


@pytest.fixture
def rig() -> _Rig:
    return _Rig(get_backend("triton").device)


def test_chain_of_one_request_then_its_continuation(rig: _Rig) -> None:
    rig.write([0, 3], [-1], [(5, 0, 4), (7, 1, 2), (9, 2, 9)])
    assert rig.rows()[4] == [5, 0, _V04, 0]
    assert rig.rows()[2] == [7, 1, _V05, 0]
    assert rig.rows()[9] == [9, 2, _V06, 0]
    assert (int(rig.slot_counter), int(rig.kernel_counter)) == (3, 1)
    assert rig.violations() == []
    rig.write([0, 2], [9], [(11, 4, 10), (13, 5, 11)], kernel_kind=2)
    assert rig.violations() == [[2, 10, 4, 11, 11, _V07, 3, 16]]
    assert rig.rows()[10] == [11, 4, _V07, 0]
    assert rig.rows()[11] == [13, 5, 3926042933496226682, 0]
    rig.ring.fill_(_SENTINEL)
    rig.write_index.zero_()
    rig.verify([(4, 5, 0, -1), (2, -1, 1, 4), (9, -1, 2, 2), (10, 12, 3, 9), (11, -1, 5, 10)])
    assert rig.violations() == [[0, 10, 4, 11, 12, _V07, _V07, 34]]
    assert rig.ring[1:].eq(_SENTINEL).all()


def test_seed_written_by_an_earlier_request_of_the_launch(rig: _Rig) -> None:
    rig.write([0, 2, 3], [-1, 2], [(5, 0, 4), (7, 1, 2), (9, 2, 9)])
    assert rig.rows()[9] == [9, 2, _V06, 0]
    assert rig.violations() == []


def test_seed_written_by_a_later_request_is_read_as_it_was(rig: _Rig) -> None:
    rig.write([0, 2], [-1], [(5, 0, 4), (7, 1, 2)])
    rig.write([0, 1, 2], [2, -1], [(9, 2, 9), (1, 0, 2)])
    assert rig.rows()[9] == [9, 2, _V06, 0]
    assert rig.rows()[2] == [1, 0, _V04, 0]


def test_slot_written_by_two_requests_keeps_the_later_one(rig: _Rig) -> None:
    rig.write([0, 1, 2], [-1, -1], [(5, 0, 3), (6, 0, 3)])
    assert rig.rows()[3] == [6, 0, _V04, 0]
    assert int(rig.slot_counter) == 2


def test_slot_zero_keeps_the_last_write_in_order(rig: _Rig) -> None:
    # The second request is the last in order though the first one is longer.
    rig.write([0, 3, 4], [-1, -1], [(5, 0, 0), (7, 1, 0), (9, 2, 0), (8, 0, 0)])
    assert rig.rows()[0] == [8, 0, _V04, 0]
    rig.write([0, 3], [-1], [(5, 0, 0), (7, 1, 0), (9, 2, 3)])
    assert rig.rows()[0] == [7, 1, _V05, 0]
    assert rig.rows()[3] == [9, 2, _V06, 0]


@pytest.mark.parametrize(
    ("offsets", "seeds", "locs", "conflict"),
    [
        ([0, 1, 2], [-1, -1], [3, 4], False),
        ([0, 1, 2], [7, 7], [3, 4], False),  # a seed may be shared
        ([0, 1, 2], [-1, -1], [3, 3], True),
        ([0, 2], [-1], [3, 3], True),
        ([0, 1, 2], [-1, 3], [3, 4], True),
        ([0, 1, 2], [4, -1], [3, 4], True),
        ([0, 1, 2], [-1, -1], [0, 0], False),  # unmapped SWA slots
        ([0, 1, 2], [-1, 0], [0, 4], True),
        ([0, 1, 1], [-1, 3], [3, 4], False),  # the seed of an empty row is not read
        ([0, 1, 2], [-1, -1], [-1, -1], False),
    ],
)
def test_conflicts(
    rig: _Rig, offsets: list[int], seeds: list[int], locs: list[int], conflict: bool
) -> None:
    scratch = rig.scratch(offsets, seeds, locs)
    assert bool(scratch[CONFLICT_CELL.value]) is conflict


def test_order_of_slot_zero_is_by_row_then_token(rig: _Rig) -> None:
    scratch = rig.scratch([0, 3, 4], [-1, -1], [0, 0, 0, 5])
    assert int(scratch[PADDING_ORDER_CELL.value]) == 2
    scratch = rig.scratch([0, 3, 4], [-1, -1], [0, 0, 0, 0])
    assert int(scratch[PADDING_ORDER_CELL.value]) == 1 << 31


def test_source_that_starts_at_an_odd_byte(rig: _Rig) -> None:
    data = torch.arange(1 + 2 * 32, dtype=torch.uint8, device=rig.device)
    assert data.data_ptr() % 8 == 0
    arguments: dict[str, Any] = {
        "slots": _i64(1).to(rig.device),
        "real_kv_hash_mode": RealKvHashMode.ALL,
    }
    hashes = [
        get_backend("triton")
        .real_kv_hash(
            real_kv_sources=[
                RealKvSource(tensor=t, page_size=1, num_bytes_per_token=32, read_bytes=32)
            ],
            **arguments,
        )
        .item()
        for t in (data[1:].view(2, 32), data[1:].clone().view(2, 32))
    ]
    assert hashes[0] == hashes[1] != 0


@pytest.mark.parametrize(
    ("data", "mode", "want"),
    [
        ([list(range(16))], RealKvHashMode.ALL, 0xD6D75024DFD6C30C),  # V17
        ([list(range(32))], RealKvHashMode.ALL, 0xB44181DFE9420039),  # V18
        ([list(range(32))], RealKvHashMode.PARTIAL, 0xD6D75024DFD6C30C),  # V19
        ([list(range(16)), [0xAA] * 16], RealKvHashMode.ALL, 0x9ECC9BB72AE35F8B),  # V20
        ([[0xAA] * 16, list(range(16))], RealKvHashMode.ALL, 0x5F04FEB3EE6E0750),  # V21
        ([[0] * 16], RealKvHashMode.ALL, 0),  # V22
        ([list(range(16))], RealKvHashMode.NONE, 0),  # V25
    ],
)
def test_fingerprint_vectors(
    rig: _Rig, data: list[list[int]], mode: RealKvHashMode, want: int
) -> None:
    sources = [
        RealKvSource(
            tensor=torch.tensor([strip], dtype=torch.uint8, device=rig.device),
            page_size=1,
            num_bytes_per_token=len(strip),
            read_bytes=len(strip),
        )
        for strip in data
    ]
    hashes = get_backend("triton").real_kv_hash(
        slots=_i64(0).to(rig.device), real_kv_sources=sources, real_kv_hash_mode=mode
    )
    assert hashes.tolist() == [_signed(want)]


def test_fault_without_a_cell_is_raised_and_with_one_is_kept(rig: _Rig) -> None:
    with pytest.raises(ValueError, match=r"out_cache_loc 16 is outside \[\.\., canary slots 16\)"):
        rig.write([0, 1], [-1], [(5, 0, 16)])
    cell = new_fault_cell(rig.device)
    rig.write([0, 2], [99], [(5, 0, 16), (7, 1, 2)], fault=cell)
    assert unpack_fault(int(cell)) == (Fault.WRITE_SEED, 99)
    assert rig.rows()[2] == [7, 1, _signed(CHAIN_HEAD_HASH), 0]


def test_misaligned_canary_buffer_is_refused(rig: _Rig) -> None:
    odd = torch.zeros(4 + 16 * 32, dtype=torch.uint8, device=rig.device)[4:].view(16, 32)
    rig.canary_buf = odd
    with pytest.raises(ValueError, match="must start on an 8-byte boundary"):
        rig.verify([(1, -1, 0, -1)])


def test_neither_gpu_nor_interpreter_says_what_to_do() -> None:
    code = (
        "from kvcanary_cli.backends import get_backend\n"
        "try:\n    get_backend('triton')\n"
        "except RuntimeError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "needs a GPU and torch sees none" in done.stdout
    assert "TRITON_INTERPRET=1" in done.stdout


def test_asking_for_a_gpu_that_is_not_there() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match="torch sees no GPU"):
        get_backend("triton", "cuda")
