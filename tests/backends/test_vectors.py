"""Pinned vectors of the specification: hashes (2.4), rows and violations (W), plans (P)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from kvcanary_cli.abi.constants import ANCHOR, CHAIN_HEAD_HASH, RealKvHashMode
from kvcanary_cli.backends.reference.hashes import (
    chain_step,
    fold,
    mix64,
    slot_hash,
    to_signed,
    to_unsigned,
)
from tests.tools.canary_ops import PREFILL, Inputs, Outputs, run_op

if TYPE_CHECKING:
    from kvcanary_cli.backends.interface import Backend

V05, V06, V07 = 0x91EAC0EC0344408D, 0x521810296AAD6CDB, 0x9B0B9DCBC046E739
RAMP16, RAMP32, AA16 = bytes(range(16)), bytes(range(32)), b"\xaa" * 16

CHAIN_VECTORS = [
    pytest.param(CHAIN_HEAD_HASH, 5, 0, V05, id="V05"),
    pytest.param(V05, 7, 1, V06, id="V06"),
    pytest.param(V06, 9, 2, V07, id="V07"),
    pytest.param(CHAIN_HEAD_HASH, 0, 0, 0xF0D7FE5EB92C788F, id="V08"),
    pytest.param(0, 0, 0, 0, id="V09"),
    pytest.param(CHAIN_HEAD_HASH, -1, 0, 0xE5A9A05404A720CF, id="V10"),
    pytest.param(CHAIN_HEAD_HASH, 0, 5, 0xA7F8B56A297B7B66, id="V11"),
]
FOLD_VECTORS = [
    pytest.param(RAMP16, 0x447F1B95028CE131, id="V12"),
    pytest.param(bytes(16), 0, id="V13"),
    pytest.param(b"\xff" * 16, 0xD6BDF7544574C9CB, id="V14"),
    pytest.param(RAMP32, 0xFAB780417B7BE8AD, id="V15"),
]
ALL, PARTIAL, NONE = RealKvHashMode.ALL, RealKvHashMode.PARTIAL, RealKvHashMode.NONE
SOURCE_VECTORS = [
    pytest.param([RAMP16], ALL, 0xD6D75024DFD6C30C, id="V17"),
    pytest.param([RAMP32], ALL, 0xB44181DFE9420039, id="V18"),
    pytest.param([RAMP32], PARTIAL, 0xD6D75024DFD6C30C, id="V19"),
    pytest.param([RAMP16, AA16], ALL, 0x9ECC9BB72AE35F8B, id="V20"),
    pytest.param([AA16, RAMP16], ALL, 0x5F04FEB3EE6E0750, id="V21"),
    pytest.param([bytes(16)], ALL, 0, id="V22"),
    pytest.param([RAMP16], NONE, 0, id="V25"),
    pytest.param([], ALL, 0, id="no source"),
]


@pytest.mark.parametrize(
    ("x", "want"),
    [
        pytest.param(0, 0, id="V01"),
        pytest.param(1, 0x5692161D100B05E5, id="V02"),
        pytest.param((1 << 64) - 1, 0xB4D055FCF2CBBD7B, id="V03"),
        pytest.param(ANCHOR, 0xDE7FAE23A9A1B716, id="V04"),
    ],
)
def test_mix(x: int, want: int) -> None:
    assert mix64(x) == want


def test_head_is_the_mixed_anchor() -> None:
    assert slot_hash(None) == CHAIN_HEAD_HASH == mix64(ANCHOR)
    assert to_signed(CHAIN_HEAD_HASH) == -2414019407054260458


def test_signs_cross_over() -> None:
    assert to_signed(V05) == -7932315673760087923
    assert to_unsigned(-7932315673760087923) == V05
    assert to_signed(1 << 63) == -(1 << 63)
    assert to_signed((1 << 63) - 1) == (1 << 63) - 1


@pytest.mark.parametrize(("h", "token", "position", "want"), CHAIN_VECTORS)
def test_chain_step(h: int, token: int, position: int, want: int) -> None:
    assert chain_step(h, token, position) == want
    assert slot_hash((token, position, to_signed(h), 123)) == want


@pytest.mark.parametrize(
    ("data", "want"),
    [*FOLD_VECTORS, pytest.param(bytes(range(9)), 0x942DDFD0DEF53671, id="V16")],
)
def test_fold(data: bytes, want: int) -> None:
    assert fold(data) == want


@pytest.mark.parametrize(("h", "token", "position", "want"), CHAIN_VECTORS)
def test_backend_chains_from_a_seed(
    backend: Backend, h: int, token: int, position: int, want: int
) -> None:
    buf = _buffer(8)
    buf[3] = _row(token, position, h)
    out = _write(backend, buf, seed=3, tokens=[1], positions=[position + 1], slots=[5])
    assert _fields(out, 5)[2] == to_signed(want)


@pytest.mark.parametrize(("data", "want"), FOLD_VECTORS)
def test_backend_folds_one_source(backend: Backend, data: bytes, want: int) -> None:
    assert _real_kv(backend, [data], ALL) == to_signed(mix64(want))


@pytest.mark.parametrize(("sources", "mode", "want"), SOURCE_VECTORS)
def test_backend_fingerprint(
    backend: Backend, sources: list[bytes], mode: RealKvHashMode, want: int
) -> None:
    assert _real_kv(backend, sources, mode) == to_signed(want)


@pytest.mark.parametrize(
    ("slot", "want"),
    [
        pytest.param(6, 0xE5E59803AB65ABF6, id="V23"),
        pytest.param(3, 0x686B9676AC2A1DE1, id="V24"),
    ],
)
def test_backend_fingerprint_of_a_page(backend: Backend, slot: int, want: int) -> None:
    rows, width = torch.arange(2).view(2, 1), torch.arange(80)
    source = {
        "tensor": ((7 * width + 3 + 100 * rows) % 256).to(torch.uint8),
        "page_size": 4,
        "num_bytes_per_token": 16,
        "read_bytes": 16,
    }
    inputs = {
        "slots": torch.tensor([slot]),
        "real_kv_sources": [source],
        "real_kv_hash_mode": int(ALL),
    }
    assert run_op(backend, "real_kv_hash", inputs)["hashes"].tolist() == [to_signed(want)]


def test_w01_to_w03_rows_of_a_prefill(backend: Backend) -> None:
    out = _write(backend, _buffer(12), seed=-1, tokens=[5, 7, 9], positions=[0, 1, 2], slots=_ABC)
    for slot, row in (
        (4, "0500000000000000 0000000000000000 16b7a1a923ae7fde 0000000000000000"),
        (2, "0700000000000000 0100000000000000 8d404403ecc0ea91 0000000000000000"),
        (9, "0900000000000000 0200000000000000 db6cad6a29101852 0000000000000000"),
    ):
        assert bytes(out["canary_buf"][slot].tolist()) == bytes.fromhex(row)
    untouched = [s for s in range(12) if s not in _ABC]
    assert not out["canary_buf"][untouched].any()
    assert _counters(out) == (3, 1, 0)


def test_w04_chain_position_assert(backend: Backend) -> None:
    out = _extended(backend)
    assert _violations(out) == [[2, 10, 4, 11, 11, -7274547274657110215, 3, 16]]
    assert _fields(out, 10) == [11, 4, -7274547274657110215, 0]
    assert _fields(out, 11) == [13, 5, 3926042933496226682, 0]


def test_w05_verify_reports_token_and_position_together(backend: Backend) -> None:
    entries = [(4, 5, 0, -1), (2, -1, 1, 4), (9, -1, 2, 2), (10, 12, 3, 9), (11, -1, 5, 10)]
    out = _verify(backend, _extended(backend)["canary_buf"], entries)
    chain = -7274547274657110215
    assert _violations(out) == [[0, 10, 4, 11, 12, chain, chain, 34]]
    assert _counters(out) == (5, 1, 1)


def test_w06_a_spoilt_token_shows_at_the_successor(backend: Backend) -> None:
    out = _write(backend, _buffer(12), seed=-1, tokens=[5, 7, 9], positions=[0, 1, 2], slots=_ABC)
    out["canary_buf"][2, 0] = 8
    out = _verify(backend, out["canary_buf"], [(4, -1, 0, -1), (2, -1, 1, 4), (9, -1, 2, 2)])
    want = [0, 9, 2, 9, -1, 5915495880620600539, -9022155902518320690, 1]
    assert _violations(out) == [want]


FULL_ENTRIES = [
    (3, -1, 0, -1),
    (4, -1, 1, 3),
    (5, -1, 2, 4),
    (6, -1, 3, 5),
    (8, -1, 0, -1),
    (9, -1, 1, 8),
]


def test_p01_full_plan(backend: Backend) -> None:
    out = _plan(backend)
    assert _entries(out) == FULL_ENTRIES
    _check_write_plan(out, seeds=[6, -1, 9])


def test_p02_window_with_table(backend: Backend) -> None:
    lut = torch.tensor([0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, -1])
    out = _plan(backend, swa_window_size=2, full_to_swa_index_mapping=lut)
    assert _entries(out) == [(1, -1, 2, 0), (2, -1, 3, 1), (4, -1, 0, -1), (5, -1, 1, 4)]
    _check_write_plan(out, seeds=[2, -1, 5])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_p03_expected_tokens_of_a_draft_pool(backend: Backend, dtype: torch.dtype) -> None:
    pool = torch.tensor([[0] * 5, [50, 51, 52, 53, 54], [60, 61, 62, 63, 0]], dtype=dtype)
    out = _plan(
        backend,
        req_to_verify_expected_tokens=pool,
        req_to_verify_expected_tokens_valid_lens=torch.tensor([4, 0, 2]),
        kv_token_id_vs_position_offset=1,
    )
    tokens = [51, 52, 53, -1, 61, -1]
    want = [(e[0], token, *e[2:]) for e, token in zip(FULL_ENTRIES, tokens, strict=True)]
    assert _entries(out) == want


def test_p04_overflow_stores_no_entry(backend: Backend) -> None:
    out = _plan(backend, verify_capacity=5)
    assert (int(out["verify_num_valid"]), int(out["enable"])) == (5, 0)
    if backend.name != "triton":
        assert out["verify_slot_indices"].tolist() == [PREFILL] * 5
    _check_write_plan(out, seeds=[6, -1, 9])


_ABC = [4, 2, 9]


def _buffer(num_slots: int) -> torch.Tensor:
    return torch.zeros((num_slots, 32), dtype=torch.uint8)


def _row(token: int, position: int, h: int) -> torch.Tensor:
    return torch.tensor([token, position, to_signed(h), 0]).view(torch.uint8)


def _fields(out: Outputs, slot: int) -> list[int]:
    return out["canary_buf"][slot].view(torch.int64).tolist()


def _violations(out: Outputs) -> list[list[int]]:
    return out["violation_ring"][: int(out["violation_write_index"])].tolist()


def _counters(out: Outputs) -> tuple[int, int, int]:
    names = ("slot_run_counter", "kernel_run_counter", "violation_write_index")
    slots, launches, violations = (int(out[name]) for name in names)
    return slots, launches, violations


def _context(buf: torch.Tensor, kind: int) -> Inputs:
    return {
        "canary_buf": buf,
        "kernel_kind": kind,
        "violation_ring": torch.zeros((4, 8), dtype=torch.int64),
        "violation_write_index": torch.zeros(1, dtype=torch.int32),
        "slot_run_counter": torch.zeros(1, dtype=torch.int64),
        "kernel_run_counter": torch.zeros(1, dtype=torch.int64),
        "real_kv_sources": [],
        "real_kv_hash_mode": 0,
    }


def _write(
    backend: Backend,
    buf: torch.Tensor,
    *,
    seed: int,
    tokens: list[int],
    positions: list[int],
    slots: list[int],
) -> Outputs:
    inputs = {
        **_context(buf, kind=2),
        "write_offsets": torch.tensor([0, len(tokens)]),
        "write_seed_slot_indices": torch.tensor([seed]),
        "write_num_valid_reqs": torch.ones(1, dtype=torch.int32),
        "input_ids": torch.tensor(tokens),
        "positions": torch.tensor(positions),
        "out_cache_loc": torch.tensor(slots),
        "enable_chain_position_assert": torch.ones(1, dtype=torch.int32),
        "enable_write_input_assert": False,
        "expected_input_tokens": None,
        "expected_input_positions": None,
    }
    return run_op(backend, "write", inputs)


def _extended(backend: Backend) -> Outputs:
    out = _write(backend, _buffer(12), seed=-1, tokens=[5, 7, 9], positions=[0, 1, 2], slots=_ABC)
    buf = out["canary_buf"]
    return _write(backend, buf, seed=9, tokens=[11, 13], positions=[4, 5], slots=[10, 11])


def _verify(
    backend: Backend, buf: torch.Tensor, entries: list[tuple[int, int, int, int]]
) -> Outputs:
    columns = torch.tensor(entries).T.contiguous()
    inputs = {
        **_context(buf, kind=0),
        "verify_slot_indices": columns[0],
        "verify_expected_tokens": columns[1],
        "verify_expected_positions": columns[2],
        "verify_prev_slot_indices": columns[3],
        "verify_num_valid": torch.tensor([len(entries)], dtype=torch.int32),
        "enable": torch.ones(1, dtype=torch.int32),
        "check_verify_expected_token": True,
    }
    return run_op(backend, "verify", inputs)


def _real_kv(backend: Backend, sources: list[bytes], mode: RealKvHashMode) -> int:
    """Fingerprint of slot 0, each source being one row of the given bytes."""
    inputs = {
        "slots": torch.tensor([0]),
        "real_kv_sources": [
            {
                "tensor": torch.tensor([list(data)], dtype=torch.uint8),
                "page_size": 1,
                "num_bytes_per_token": len(data),
                "read_bytes": len(data),
            }
            for data in sources
        ],
        "real_kv_hash_mode": int(mode),
    }
    return int(run_op(backend, "real_kv_hash", inputs)["hashes"])


def _plan(backend: Backend, **changes: Any) -> Outputs:
    table = [[0] * 8, [3, 4, 5, 6, 7, 0, 0, 0], [8, 9, 10, 0, 0, 0, 0, 0]]
    inputs = {
        "req_pool_indices": torch.tensor([1, 0, 2]),
        "prefix_lens": torch.tensor([4, 0, 2]),
        "extend_seq_lens": torch.tensor([1, 0, 3]),
        "req_to_token": torch.tensor(table, dtype=torch.int32),
        "swa_window_size": 0,
        "full_to_swa_index_mapping": None,
        "verify_capacity": 16,
        "write_req_capacity": 4,
        "req_to_verify_expected_tokens": None,
        "req_to_verify_expected_tokens_valid_lens": None,
        "kv_token_id_vs_position_offset": 0,
    }
    return run_op(backend, "plan", inputs | changes)


def _entries(out: Outputs) -> list[tuple[int, ...]]:
    assert int(out["enable"]) == 1
    names = ("slot_indices", "expected_tokens", "expected_positions", "prev_slot_indices")
    columns = [out[f"verify_{name}"].tolist() for name in names]
    return list(zip(*columns, strict=True))[: int(out["verify_num_valid"])]


def _check_write_plan(out: Outputs, seeds: list[int]) -> None:
    assert out["write_offsets"].tolist() == [0, 1, 1, 4, 0]
    assert out["write_seed_slot_indices"].tolist() == [*seeds, PREFILL]
    assert int(out["write_num_valid_reqs"]) == 3
