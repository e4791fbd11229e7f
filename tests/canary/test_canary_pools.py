"""Buffer groups, sources and transfer lists of described pools; method patches; configuration."""

from __future__ import annotations

import pytest
import torch
from canary_rig import SMALL, extend, full_group, ints

from kvcanary_cli.abi.constants import LaunchTag, PoolKind, RealKvHashMode
from kvcanary_cli.backends import get_backend
from kvcanary_cli.canary import (
    CanaryBufferGroup,
    CanaryConfig,
    CanaryManager,
    CanaryMode,
    PoolDescription,
    attach_canary_buffers,
    patch_model_forward,
    real_kv_source_from_rows,
    splice_buffer_infos,
)
from kvcanary_cli.canary.pool_patch import patch_buffer_infos


def test_mha_pool() -> None:
    rows = torch.zeros((10, 2, 8), dtype=torch.bfloat16)
    pool = PoolDescription(class_name="MHATokenToKVPool", k_rows=rows, v_rows=rows)
    for mode, read in ((RealKvHashMode.NONE, None), (RealKvHashMode.PARTIAL, 16), (2, 32)):
        [group] = attach_canary_buffers(pool, real_kv_hash_mode=RealKvHashMode(mode))
        assert (group.kind, group.num_slots, group.has_v_half) == (PoolKind.FULL, 10, True)
        assert [source.read_bytes for source in group.real_kv_sources_k] == (
            [] if read is None else [read]
        )
    # A live view: what is written to the pool later is what gets fingerprinted.
    rows[3, 0, 0] = 1.0
    assert bool(group.real_kv_sources_k[0].tensor[3].any())


def test_swa_and_v4_pools() -> None:
    rows = torch.zeros((10, 16), dtype=torch.uint8)
    lut = torch.zeros(12, dtype=torch.int64)
    full, swa = attach_canary_buffers(
        PoolDescription(
            class_name="SWAKVPool",
            k_rows=rows,
            v_rows=rows,
            swa_k_rows=rows[:4],
            swa_v_rows=rows[:4],
            swa_index_lut=lut,
        ),
        real_kv_hash_mode=RealKvHashMode.NONE,
        kv_token_id_vs_position_offset=1,
    )
    assert (full.kind, full.num_slots, full.swa_index_lut) == (PoolKind.FULL, 10, None)
    assert (swa.kind, swa.num_slots) == (PoolKind.SWA, 4)
    assert swa.swa_index_lut is lut
    assert full.kv_token_id_vs_position_offset == swa.kv_token_id_vs_position_offset == 1
    [v4] = attach_canary_buffers(
        PoolDescription(class_name="DeepSeekV4TokenToKVPool", swa_slots=6, swa_index_lut=lut),
        real_kv_hash_mode=RealKvHashMode.ALL,
    )
    assert (v4.kind, v4.num_slots, v4.has_v_half) == (PoolKind.SWA, 6, False)
    assert v4.real_kv_sources_k == ()
    with pytest.raises(ValueError, match="needs K and V rows for its FULL group"):
        attach_canary_buffers(
            PoolDescription(class_name="SWAKVPool"), real_kv_hash_mode=RealKvHashMode.NONE
        )


def test_groups_refuse_contradictions() -> None:
    buffer = torch.zeros((4, 32), dtype=torch.uint8)
    with pytest.raises(ValueError, match="takes no full_to_swa_index_mapping"):
        CanaryBufferGroup(kind=PoolKind.FULL, k_head=buffer, k_tail=buffer, swa_index_lut=ints([0]))
    with pytest.raises(ValueError, match="v_head and v_tail must both"):
        CanaryBufferGroup(kind=PoolKind.FULL, k_head=buffer, k_tail=buffer, v_head=buffer)


def test_endpoints_in_order() -> None:
    manager = _manager(groups=[full_group(v_half=True), _swa()])
    assert [endpoint.tag for endpoint in manager.endpoints] == [
        LaunchTag.HEAD_K_FULL,
        LaunchTag.HEAD_V_FULL,
        LaunchTag.TAIL_K_FULL,
        LaunchTag.TAIL_V_FULL,
        LaunchTag.SWEEP_K_FULL,
        LaunchTag.SWEEP_V_FULL,
        LaunchTag.HEAD_K_SWA,
        LaunchTag.TAIL_K_SWA,
        LaunchTag.SWEEP_K_SWA,
    ]
    with pytest.raises(ValueError, match="at most one buffer group of each kind"):
        _manager(groups=[full_group(), full_group()])


def _swa() -> CanaryBufferGroup:
    lut = torch.zeros(33, dtype=torch.int64)
    return CanaryBufferGroup.allocate(kind=PoolKind.SWA, num_slots=8, swa_index_lut=lut)


def _manager(groups: list[CanaryBufferGroup]) -> CanaryManager:
    manager = CanaryManager(
        config=CanaryConfig(),
        groups=groups,
        capacities=SMALL,
        req_to_token=torch.zeros((4, 16), dtype=torch.int32),
        backend=get_backend("reference"),
    )
    manager.mark_init_finished()
    return manager


def test_splice() -> None:
    halves = full_group(8, v_half=True)
    infos = ([100, 101, 200, 201], [8, 8, 8, 8], [4, 4, 4, 4])
    addresses, totals, pages = splice_buffer_infos(infos, halves, page_size=2)
    k_head, k_tail = halves.k_head.data_ptr(), halves.k_tail.data_ptr()
    assert halves.v_head is not None
    assert halves.v_tail is not None
    v_head, v_tail = halves.v_head.data_ptr(), halves.v_tail.data_ptr()
    assert addresses == [k_head, 100, 101, k_tail, v_head, 200, 201, v_tail]
    assert totals == [256, 8, 8, 256, 256, 8, 8, 256]
    assert pages == [64, 4, 4, 64, 64, 4, 4, 64]
    keys = full_group(8)
    addresses, _, _ = splice_buffer_infos(([1, 2, 3], [8] * 3, [4] * 3), keys, page_size=1)
    assert addresses == [keys.k_head.data_ptr(), 1, 2, 3, keys.k_tail.data_ptr()]


def test_patched_transfer_list() -> None:
    class Pool:
        def get_contiguous_buf_infos(self) -> tuple[list[int], list[int], list[int]]:
            return [1], [2], [3]

    pool, other = Pool(), Pool()
    patch_buffer_infos(pool, "get_contiguous_buf_infos", full_group(8), page_size=1)
    assert len(pool.get_contiguous_buf_infos()[0]) == 3
    assert len(other.get_contiguous_buf_infos()[0]) == 1


def test_patched_model_brackets_only_the_outermost_call() -> None:
    manager = _manager([full_group()])

    class Model:
        def forward(self, ids: object, batch: object, depth: int = 1) -> str:
            if depth:
                self.forward(ids, batch, depth - 1)
            return "logits"

    model = Model()
    patch_model_forward(model, manager)
    batch = extend([1], [0], [[5]], [[4]])
    with manager.with_ops_outside_graph([0], batch), manager.with_active_single_forward_manager(0):
        assert model.forward(None, batch) == "logits"
    assert manager.state.kernel_run_counters.tolist()[:3] == [2, 0, 2]


def test_source_of_paged_rows() -> None:
    pages = torch.zeros((3, 4 * 16), dtype=torch.uint8)
    [source] = real_kv_source_from_rows(pages, read_bytes=16, page_size=4)
    assert (source.page_size, source.num_bytes_per_token) == (4, 16)


def test_config_from_flags_and_environment() -> None:
    prefix = "SGLANG_KV_CANARY_"
    config = CanaryConfig.from_env(
        {
            prefix + "RING_CAPACITY": "64",
            prefix + "ENABLE_MHA_V": "Yes",
            prefix + "ENABLE_VERIFY_TOKEN_ASSERT": "n",
            "UNRELATED": "1",
        },
        kv_canary=" LOG ",
        kv_canary_real_data="partial",
        kv_canary_sweep_interval=50,
    )
    assert config == CanaryConfig(
        mode=CanaryMode.LOG,
        ring_capacity=64,
        enable_mha_v=True,
        real_kv_hash_mode=RealKvHashMode.PARTIAL,
        sweep_interval=50,
    )
    with pytest.warns(UserWarning, match=r'^Invalid value for .*RING_CAPACITY: .*default "1024"$'):
        config = CanaryConfig.from_env({prefix + "RING_CAPACITY": "many"}, kv_canary="raise")
    assert config.ring_capacity == 1024
