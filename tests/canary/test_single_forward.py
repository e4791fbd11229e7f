"""One inner forward: hand-computed rows, counters, plans and the order of launches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from canary_rig import SMALL, decode, extend, full_group, ints, make_rig
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.abi.constants import ForwardMode, LaunchTag, PoolKind
from kvcanary_cli.backends import get_backend
from kvcanary_cli.canary import (
    CanaryBufferGroup,
    CanaryConfig,
    ForwardBatch,
    PhaseMismatchError,
    PlanInput,
    SnapshotTokens,
)
from kvcanary_cli.capacities import CanaryLaunchCapacities

# Rows W01 to W03 of the specification: tokens 5, 7, 9 at positions 0, 1, 2.
W01 = "0500000000000000000000000000000016b7a1a923ae7fde0000000000000000"
W02 = "070000000000000001000000000000008d404403ecc0ea910000000000000000"
W03 = "09000000000000000200000000000000db6cad6a291018520000000000000000"


def _row(buffer: torch.Tensor, slot: int) -> str:
    return bytes(buffer[slot].tolist()).hex()


@pytest.mark.parametrize("exact", [False, True])
def test_write_vectors_through_a_manager(exact: bool) -> None:
    rig = make_rig(exact_rows=exact)
    rig.manager.run(extend([1], [0], [[5, 7, 9]], [[4, 2, 9]]))
    for buffer in (rig.groups[0].k_head, rig.groups[0].k_tail):
        assert [_row(buffer, slot) for slot in (4, 2, 9)] == [W01, W02, W03]
        assert int(buffer.any(dim=1).sum()) == 3
    assert rig.ring == []


@pytest.mark.parametrize("exact", [False, True])
def test_chain_position_vector(exact: bool) -> None:
    rig = make_rig(exact_rows=exact)
    rig.map(1, [4, 2, 9, 10, 11])
    rig.manager.run(extend([1], [0], [[5, 7, 9]], [[4, 2, 9]]))
    batch = extend([1], [3], [[11, 13]], [[10, 11]])
    batch.positions = ints([4, 5])
    rig.manager.run(batch)
    # W04, once from HEAD and once from TAIL.
    assert rig.ring == [
        [tag, 10, 4, 11, 11, -7274547274657110215, 3, 16]
        for tag in (LaunchTag.HEAD_K_FULL, LaunchTag.TAIL_K_FULL)
    ]


def test_broken_predecessor_shows_at_its_successor() -> None:
    rig = make_rig()
    rig.map(1, [4, 2, 9, 10])
    rig.manager.run(extend([1], [0], [[5, 7, 9]], [[4, 2, 9]]))
    rig.groups[0].k_head[2, 0] = 8
    rig.manager.run(decode([1], [3], [1], [10]))
    # W06; the tail buffer was not touched.
    assert rig.ring == [[0, 9, 2, 9, -1, 5915495880620600539, -9022155902518320690, 1]]


@pytest.mark.parametrize("exact", [False, True])
def test_counters_of_two_forwards(exact: bool) -> None:
    rig = make_rig(exact_rows=exact)
    rig.map(1, [4, 2, 9, 10])
    rig.manager.run(extend([1], [0], [[5, 7, 9]], [[4, 2, 9]]))
    rig.manager.run(decode([1], [3], [1], [10]))
    kernels, slots = rig.state.kernel_run_counters.tolist(), rig.state.slot_run_counters.tolist()
    # Verify and write each count once per forward; 3 written, then 3 verified and 1 written.
    assert kernels == [4, 0, 4] + [0] * 9
    assert slots == [7, 0, 7] + [0] * 9
    output = rig.manager.output
    assert output.kernel_run_counters.tolist() == kernels
    assert output.slot_run_counters.tolist() == slots
    assert output.enable.tolist() == [1]
    assert output.write_index.tolist() == [0]


def test_padding_rows_and_slots() -> None:
    rig = make_rig(exact_rows=True)
    rig.map(1, [4, 2, 9, 10])
    rig.manager.run(extend([1], [0], [[5, 7, 9]], [[4, 2, 9]]))
    rig.manager.run(decode([1, 0, 0], [3, 0, 0], [1, 0, 0], [10, 0, -1]))
    assert rig.ring == []
    # Offsets give padding rows no tokens: only slot 10 is written.
    assert rig.state.slot_run_counters.tolist()[:3] == [7, 0, 7]
    assert not rig.groups[0].k_head[0].any()


def test_v_half_is_launched_only_behind_its_gate() -> None:
    for gate, tags in ((False, {0, 2}), (True, {0, 1, 2, 3})):
        rig = make_rig(groups=[full_group(v_half=True)], config=CanaryConfig(enable_mha_v=gate))
        rig.manager.run(extend([1], [0], [[5]], [[4]]))
        counters = rig.state.kernel_run_counters.tolist()
        assert {tag for tag, count in enumerate(counters) if count} == tags


def test_swa_group_writes_translated_slots() -> None:
    lut = torch.zeros(33, dtype=torch.int64)
    lut[4], lut[5] = 1, 2
    swa = CanaryBufferGroup.allocate(kind=PoolKind.SWA, num_slots=8, swa_index_lut=lut)
    # The table ends with 0, not with -1: a negative slot must stay unwritten all the same.
    rig = make_rig(groups=[full_group(), swa], swa_window_size=2, exact_rows=True)
    batch = extend([1], [0], [[5, 7, 9]], [[4, 5, 6]])
    batch.out_cache_loc = ints([4, 5, -1])
    rig.manager.run(batch)
    assert _row(swa.k_head, 1) == W01
    assert _row(swa.k_head, 2) == W02
    assert not swa.k_head[0].any()
    assert rig.state.slot_run_counters.tolist() == [2, 0, 2, 0, 0, 0, 2, 0, 2, 0, 0, 0]
    rig.state.raise_on_fault()


def test_swa_slot_beyond_the_table_is_a_fault() -> None:
    lut = torch.zeros(8, dtype=torch.int64)
    swa = CanaryBufferGroup.allocate(kind=PoolKind.SWA, num_slots=8, swa_index_lut=lut)
    rig = make_rig(groups=[full_group(), swa], swa_window_size=2, exact_rows=True)
    rig.manager.run(extend([1], [0], [[5]], [[20]]))
    with pytest.raises(ValueError, match=r"SWA slot 20 is outside .* length 8$"):
        rig.state.raise_on_fault(lut_len=8)
    assert not swa.k_head.any()


def test_draft_pool_expects_the_next_token() -> None:
    """With offset 1 the row at position p is compared with the request's token p + 1."""
    config = CanaryConfig(enable_verify_token_assert=True)
    pool = torch.full((4, 16), -7, dtype=torch.int32)
    tokens = SnapshotTokens(backend=get_backend("reference"), pool=pool)
    group = full_group(kv_token_id_vs_position_offset=1)
    rig = make_rig(groups=[group], config=config, expected_tokens=tokens, is_draft=True)
    rig.map(1, [4, 2, 9, 10])
    snapshot = {"req_all_ids_flat": ints([50, 51, 52]), "req_all_ids_lens": ints([3])}
    rig.manager.run(extend([1], [0], [[51, 60, 53]], [[4, 2, 9]], **snapshot))
    rig.manager.run(decode([1], [3], [54], [10], **snapshot))
    # Position 0 holds 51 as it should, position 1 holds 60 for 52, position 2 has no token yet.
    assert [(row[1], row[3], row[4], row[7]) for row in rig.ring] == [
        (2, 60, 52, 32),
        (2, 60, 52, 32),
    ]


def test_snapshot_leaves_stale_tails_that_are_not_compared() -> None:
    config = CanaryConfig(enable_verify_token_assert=True)
    pool = torch.full((4, 16), 99, dtype=torch.int32)
    tokens = SnapshotTokens(backend=get_backend("reference"), pool=pool)
    rig = make_rig(config=config, expected_tokens=tokens)
    rig.map(1, [4, 2, 9, 10])
    rig.manager.run(extend([1], [0], [[5, 7, 9]], [[4, 2, 9]]))
    rig.manager.run(
        decode([1], [3], [1], [10], req_all_ids_flat=ints([5, 7]), req_all_ids_lens=ints([2]))
    )
    assert rig.ring == []
    assert pool[1, :4].tolist() == [5, 7, 99, 99]
    assert bool((pool[[0, 2, 3]] == 99).all())


def test_capacity_errors_of_a_live_manager() -> None:
    rig = make_rig()
    with pytest.raises(RuntimeError, match=r"batch_size=9 exceeds .*write_req_capacity=8; raise "):
        rig.manager.run(decode([0] * 9, [0] * 9, [0] * 9, [0] * 9))
    rig = make_rig()
    with pytest.raises(RuntimeError, match=r"token count=33 exceeds .*write_entry_capacity=32"):
        rig.manager.run(extend([1], [0], [[1] * 33], [[1] * 33]))
    rig = make_rig()
    padded = decode([0] * 9, [0] * 9, [0] * 9, [0] * 9, raw_batch_size=8)
    with pytest.raises(RuntimeError, match=r"per-forward batch size 9 exceeds static capacity 8"):
        rig.manager.run(padded)


def test_replay_records_what_would_not_have_fitted_and_goes_on() -> None:
    tiny = CanaryLaunchCapacities(
        per_forward_verify_capacity=2,
        per_forward_write_req_capacity=1,
        per_forward_write_entry_capacity=2,
    )
    rig = make_rig(capacities=tiny, exact_rows=True)
    rig.map(1, [4, 2, 9, 10])
    rig.manager.run(extend([1, 0], [0, 0], [[5, 7, 9], []], [[4, 2, 9], []]))
    found = [(v.code, v.actual, v.capacity) for v in rig.manager.capacity_violations]
    assert found == [("KVC-B03", 2, 1), ("KVC-B04", 3, 2)]
    rig.manager.run(decode([1], [3], [1], [10]))
    found = [(v.code, v.actual, v.capacity) for v in rig.manager.capacity_violations]
    assert found == [("KVC-B08", 3, 2)]
    rig.manager.run(decode([1, 0], [3, 0], [1, 0], [10, 0], raw_batch_size=1))
    assert [v.code for v in rig.manager.capacity_violations] == ["KVC-B05", "KVC-B08"]
    rig.manager.run(decode([1, 0, 0], [0] * 3, [1, 0, 0], [10, 0, 0], raw_batch_size=2))
    assert [v.code for v in rig.manager.capacity_violations] == ["KVC-B03", "KVC-B04"]


def test_replay_verifies_what_a_server_would_have_dropped() -> None:
    tiny = CanaryLaunchCapacities(
        per_forward_verify_capacity=2,
        per_forward_write_req_capacity=1,
        per_forward_write_entry_capacity=4,
    )
    rig = make_rig(capacities=tiny, exact_rows=True)
    rig.map(1, [4, 2, 9, 10])
    rig.manager.run(extend([1], [0], [[5, 7, 9]], [[4, 2, 9]]))
    rig.manager.run(decode([1], [3], [1], [10]))
    assert [v.code for v in rig.manager.capacity_violations] == ["KVC-B08"]
    assert rig.state.slot_run_counters.tolist()[:3] == [7, 0, 7]
    assert rig.manager.output.enable.tolist() == [1]


def test_overflow_drops_the_whole_group_in_a_live_manager() -> None:
    small = CanaryLaunchCapacities(
        per_forward_verify_capacity=2,
        per_forward_write_req_capacity=4,
        per_forward_write_entry_capacity=32,
    )
    rig = make_rig(capacities=small)
    rig.map(1, [4, 2, 9, 10])
    rig.manager.run(extend([1], [0], [[5, 7, 9]], [[4, 2, 9]]))
    rig.manager.run(decode([1], [3], [1], [10]))
    assert rig.manager.output.enable.tolist() == [0]
    assert rig.state.slot_run_counters.tolist()[:3] == [4, 0, 4]
    assert rig.state.kernel_run_counters.tolist()[:3] == [4, 0, 4]


class _Oracle:
    def __init__(self, tokens: list[int], positions: list[int]) -> None:
        self._pair = ints(tokens), ints(positions)

    def expected_inputs(self, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor]:
        return self._pair


def test_input_assert() -> None:
    config = CanaryConfig(enable_write_input_assert=True)
    rig = make_rig(config=config)
    with pytest.raises(RuntimeError, match="requires a TokenOracleManager"):
        rig.manager.run(extend([1], [0], [[5]], [[4]]))
    rig = make_rig(config=config, is_draft=True)
    rig.manager.run(decode([1], [0], [5], [4]))
    rig = make_rig(config=config, oracle=_Oracle([5, 8], [0, 1]))
    rig.manager.run(extend([1], [0], [[5, 7]], [[4, 2]]))
    assert [row[1:5] + row[6:] for row in rig.ring] == [[2, 1, 7, 8, 1, 8]] * 2
    rig = make_rig(config=config, oracle=_Oracle([5], [0]))
    with pytest.raises(RuntimeError, match=r"expected_inputs.tokens shape 1 != num_tokens 2"):
        rig.manager.run(extend([1], [0], [[5, 7]], [[4, 2]]))


class _Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def after_plan(self, group_index: int, verify_plan: Any, write_plan: Any) -> None:
        self.calls.append(("plan", group_index))
        # Every predecessor unknown: no chain is checked.
        verify_plan.verify_prev_slot_indices.zero_()

    def before_verify(self, endpoint: Any, plan: Any) -> None:
        self.calls.append(("before_verify", endpoint.tag.name))

    def after_verify(self, endpoint: Any, plan: Any) -> None:
        self.calls.append(("after_verify", endpoint.tag.name))

    def before_write(self, endpoint: Any, plan: Any, *tensors: Any) -> None:
        self.calls.append(("before_write", endpoint.tag.name))

    def after_write(self, endpoint: Any, plan: Any, *tensors: Any) -> None:
        self.calls.append(("after_write", endpoint.tag.name))


def test_observer_sees_every_launch_in_order_and_may_edit_the_plan() -> None:
    recorder = _Recorder()
    rig = make_rig(exact_rows=True, observer=recorder)
    rig.map(1, [4, 2, 9, 10])
    rig.manager.run(extend([1], [0], [[5, 7, 9]], [[4, 2, 9]]))
    launches = [
        (step, tag)
        for tag in ("HEAD_K_FULL", "TAIL_K_FULL")
        for step in ("before_verify", "after_verify", "before_write", "after_write")
    ]
    assert recorder.calls == [("plan", 0), *launches]
    rig.groups[0].k_head[2, 0] = 8
    rig.manager.run(decode([1], [3], [1], [10]))
    assert rig.ring == []


def test_phases() -> None:
    rig = make_rig()
    batch = extend([1], [0], [[5]], [[4]])
    with pytest.raises(PhaseMismatchError, match=r"^SimplePhaseChecker: phase mismatch$") as caught:
        rig.manager.pre_ops_maybe_inside_graph(batch)
    assert caught.value.fail_line == (
        "[SimplePhaseChecker FAIL] caller_tag=1 expect=1 next=2 actual=0"
    )
    rig = make_rig()
    rig.manager.pre_ops_outside_graph(batch)
    with pytest.raises(PhaseMismatchError) as caught:
        rig.manager.pre_ops_outside_graph(batch)
    assert caught.value.fail_line.endswith("caller_tag=1 expect=0 next=1 actual=1")


def test_dtypes() -> None:
    rig = make_rig()
    batch = extend([1], [0], [[5]], [[4]])
    batch.input_ids = batch.input_ids.to(torch.int32)
    rig.manager.run(batch)
    assert _row(rig.groups[0].k_head, 4) == W01
    for name in ("input_ids", "positions", "out_cache_loc"):
        rig = make_rig()
        batch = extend([1], [0], [[5]], [[4]])
        setattr(batch, name, getattr(batch, name).to(torch.float32))
        with pytest.raises(TypeError, match=rf"{name} must have dtype torch.int32 or torch.int64"):
            rig.manager.run(batch)


def test_idle_batch_without_rows() -> None:
    for exact in (False, True):
        rig = make_rig(exact_rows=exact)
        batch = decode([], [], [], [])
        batch.forward_mode = ForwardMode.IDLE
        rig.manager.run(batch)
        assert rig.state.kernel_run_counters.tolist()[:3] == [2, 0, 2]


@pytest.mark.parametrize(
    ("mode", "more", "prefix", "extends"),
    [
        (ForwardMode.DECODE, {"positions": [6, 3, 0]}, [6, 3, 0], [1, 1, 1]),
        (ForwardMode.DECODE, {"positions": [6, 3]}, [6, 3, 0], [1, 1, 1]),
        (ForwardMode.IDLE, {"positions": []}, [0, 0, 0], [1, 1, 1]),
        (ForwardMode.TARGET_VERIFY, {"draft_token_num": 4}, [7, 4, 1], [4, 4, 4]),
        (ForwardMode.DRAFT_EXTEND_V2, {"extend_seq_lens": [2, 1, 1]}, [5, 3, 0], [2, 1, 1]),
        *(
            (
                mode,
                {"extend_prefix_lens": [5, 0, 0], "extend_seq_lens": [2, 4, 1]},
                [5, 0, 0],
                [2, 4, 1],
            )
            for mode in (
                ForwardMode.EXTEND,
                ForwardMode.MIXED,
                ForwardMode.SPLIT_PREFILL,
                ForwardMode.DLLM_EXTEND,
            )
        ),
    ],
)
def test_plan_input_by_mode(
    mode: ForwardMode, more: dict[str, Any], prefix: list[int], extends: list[int]
) -> None:
    fields: dict[str, Any] = {
        key: ints(value) if isinstance(value, list) else value for key, value in more.items()
    }
    fields.setdefault("positions", ints([0] * sum(extends)))
    batch = ForwardBatch(
        forward_mode=mode,
        req_pool_indices=ints([1, 2, 3]),
        seq_lens=ints([7, 4, 1]),
        input_ids=torch.zeros_like(fields["positions"]),
        out_cache_loc=torch.zeros_like(fields["positions"]),
        **fields,
    )
    padded = PlanInput.padded(batch, rows=5, valid_lens=ints([9, 8, 7]))
    assert padded.req_pool_indices.tolist() == [1, 2, 3, 0, 0]
    assert padded.prefix_lens.tolist() == [*prefix, 0, 0]
    assert padded.extend_seq_lens.tolist() == [*extends, 0, 0]
    assert padded.req_to_verify_expected_tokens_valid_lens.tolist() == [9, 8, 7, 0, 0]
    exact = PlanInput.exact(batch, valid_lens=None)
    assert exact.prefix_lens.tolist() == prefix
    assert exact.extend_seq_lens.tolist() == extends
    assert exact.req_to_verify_expected_tokens_valid_lens.tolist() == [0, 0, 0]


def test_prebuilt_has_no_rule() -> None:
    rig = make_rig()
    batch = decode([1], [0], [1], [1])
    batch.forward_mode = ForwardMode.PREBUILT
    with pytest.raises(NotImplementedError, match=r"^Unsupported forward mode for kv-canary: 7$"):
        rig.manager.run(batch)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_exact_and_padded_managers_agree(data: st.DataObject) -> None:
    """Declared capacities and exact sizes give the same buffers, ring and counters."""
    table = torch.tensor(
        data.draw(
            st.lists(st.lists(st.integers(0, 31), min_size=16, max_size=16), min_size=4, max_size=4)
        ),
        dtype=torch.int32,
    )
    lut = torch.tensor(
        [*data.draw(st.lists(st.integers(0, 15), min_size=32, max_size=32)), -1],
        dtype=torch.int64,
    )
    window = data.draw(st.integers(0, 6))
    rigs = []
    for exact in (False, True):
        swa = CanaryBufferGroup.allocate(kind=PoolKind.SWA, num_slots=16, swa_index_lut=lut)
        rig = make_rig(
            groups=[full_group(), swa], swa_window_size=window, exact_rows=exact, capacities=SMALL
        )
        rig.req_to_token.copy_(table)
        rigs.append(rig)
    for _ in range(3):
        rows = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
        prefix = [data.draw(st.integers(0, 8)) for _ in rows]
        tokens = [
            data.draw(st.lists(st.integers(-3, 9), min_size=0, max_size=3)) if row else []
            for row in rows
        ]
        slots = [[data.draw(st.integers(-1, 31)) for _ in ids] for ids in tokens]
        for rig in rigs:
            rig.manager.run(extend(rows, prefix, tokens, slots))
    left, right = rigs
    assert left.ring == right.ring
    assert left.state.slot_run_counters.tolist() == right.state.slot_run_counters.tolist()
    assert left.state.kernel_run_counters.tolist() == right.state.kernel_run_counters.tolist()
    for one, two in zip(left.groups, right.groups, strict=True):
        assert torch.equal(one.k_head, two.k_head)
        assert torch.equal(one.k_tail, two.k_tail)
