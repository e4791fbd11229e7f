"""Self-test damage: each kind is done as described, repeatable, and found by the canary."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from canary_rig import SMALL, decode, extend, full_group, ints

from kvcanary_cli.abi.constants import PoolKind, RealKvHashMode
from kvcanary_cli.backends import get_backend
from kvcanary_cli.canary import (
    CanaryBufferGroup,
    CanaryConfig,
    CanaryManager,
    ForwardBatch,
    PerturbConfig,
    PerturbManager,
    PrefixNode,
    real_kv_source_from_rows,
)


class Tree:
    def __init__(self, root: PrefixNode) -> None:
        self.prefix_root = root


def _step(manager: CanaryManager, batch: ForwardBatch) -> None:
    with manager.with_ops_outside_graph([0], batch), manager.with_active_single_forward_manager(0):
        manager.pre_ops_maybe_inside_graph(batch)
        manager.post_ops_maybe_inside_graph(batch)


def _run(seed: int = 0, sweep_interval: int = 0, **config: Any) -> tuple[list[list[int]], Any]:
    """Prefill three tokens, then decode once with damage from step 1 on."""
    kv = torch.arange(1, 32 * 16 + 1).to(torch.uint8).reshape(32, 16)
    group = full_group(real_kv_sources_k=real_kv_source_from_rows(kv, read_bytes=16))
    table = torch.zeros((4, 16), dtype=torch.int32)
    table[1, :4] = ints([4, 2, 9, 10], torch.int32)
    before = table.clone(), kv.clone()
    perturb = PerturbManager(
        config=PerturbConfig(warmup_steps=1, target_group=PoolKind.FULL, **config),
        groups=[group],
        req_to_token=table,
        sweep_interval=sweep_interval,
        seed=seed,
    )
    manager = CanaryManager(
        config=CanaryConfig(
            real_kv_hash_mode=RealKvHashMode.PARTIAL,
            sweep_interval=sweep_interval,
            stats_print_every_n_steps=0,
        ),
        groups=[group],
        capacities=SMALL,
        req_to_token=table,
        backend=get_backend("reference"),
        perturb=perturb,
    )
    manager.mark_init_finished()
    manager.prefix_index = Tree(PrefixNode(children=[PrefixNode(slots=[4, 2, 9])]))
    _step(manager, extend([1], [0], [[5, 7, 9]], [[4, 2, 9]]))
    assert torch.equal(table, before[0])
    assert torch.equal(kv, before[1])
    _step(manager, decode([1], [3], [1], [10]))
    changed = (table != before[0]).nonzero().tolist(), (kv != before[1]).nonzero().tolist()
    return manager.state.violation_log.rows(), changed


def test_table_cell_is_replaced_and_found() -> None:
    rows, (cells, bytes_changed) = _run(req_to_token_prob=1.0)
    assert len(cells) == 1
    assert cells[0][0] == 1
    assert cells[0][1] < 3
    assert bytes_changed == []
    assert {row[0] for row in rows} == {0, 2}
    # The misplaced slot differs in position; its chain or its successor's does too.
    assert any(row[7] & 2 for row in rows)
    assert any(row[7] & 1 for row in rows)


def test_byte_of_a_used_slot_is_found_at_tail() -> None:
    rows, (cells, changed) = _run(real_kv_used_prob=1.0)
    assert cells == []
    [(slot, column)] = changed
    assert column == 0
    assert [(row[0], row[1], row[7]) for row in rows] == [(2, slot, 4)]


def test_byte_of_a_cached_slot_is_found_by_the_sweep() -> None:
    rows, (_, changed) = _run(real_kv_unused_cache_prob=1.0, sweep_interval=1)
    [(slot, _)] = changed
    assert (4, slot, 4) in [(row[0], row[1], row[7]) for row in rows]


def test_byte_of_a_written_slot_is_not_seen_in_its_own_step() -> None:
    rows, (_, changed) = _run(real_kv_post_forward_prob=1.0)
    assert changed == [[10, 0]]
    assert rows == []


def test_same_seed_same_damage() -> None:
    for seed in range(4):
        assert _run(seed, req_to_token_prob=0.5) == _run(seed, req_to_token_prob=0.5)
    assert len({str(_run(seed, req_to_token_prob=1.0)[1]) for seed in range(8)}) > 1


def test_window_group_flips_the_translated_slot() -> None:
    kv = torch.zeros((8, 16), dtype=torch.uint8)
    lut = torch.zeros(33, dtype=torch.int64)
    lut[9] = 5
    group = CanaryBufferGroup.allocate(
        kind=PoolKind.SWA,
        num_slots=8,
        swa_index_lut=lut,
        real_kv_sources_k=real_kv_source_from_rows(kv, read_bytes=16),
    )
    table = torch.zeros((4, 16), dtype=torch.int32)
    table[1, :4] = ints([4, 2, 9, 10], torch.int32)
    perturb = PerturbManager(
        config=PerturbConfig(warmup_steps=0, target_group=PoolKind.SWA, real_kv_used_prob=1.0),
        groups=[group],
        req_to_token=table,
        swa_window_size=2,
    )
    # Only positions 2 and 3 are in the window, and slot 10 is being written.
    perturb.before_forward(0, decode([1], [3], [1], [10]))
    assert kv.nonzero().tolist() == [[5, 0]]
    assert int(kv[5, 0]) == 0xFF


def test_swap_exchanges_two_tokens() -> None:
    perturb = PerturbManager(
        config=PerturbConfig(warmup_steps=1, next_token_swap_prob=1.0),
        groups=[],
        req_to_token=torch.zeros((1, 1), dtype=torch.int32),
    )
    tokens = ints([10, 20, 30])
    perturb.swap_next_tokens(tokens)
    assert tokens.tolist() == [10, 20, 30]
    perturb.swap_next_tokens(tokens)
    assert sorted(tokens.tolist()) == [10, 20, 30]
    assert sum(a != b for a, b in zip(tokens.tolist(), [10, 20, 30], strict=True)) == 2
    single = ints([10])
    perturb.swap_next_tokens(single)
    assert single.tolist() == [10]


def test_config_from_the_environment() -> None:
    prefix = "SGLANG_KV_CANARY_PERTURB_"
    config = PerturbConfig.from_env(
        {
            prefix + "REAL_KV_USED_PROB": "0.25",
            prefix + "TARGET_GROUP": "SWA",
            prefix + "WARMUP_STEPS": "7",
        }
    )
    assert config == PerturbConfig(
        real_kv_used_prob=0.25, target_group=PoolKind.SWA, warmup_steps=7
    )
    with pytest.raises(ValueError, match="'full' or 'swa' when real_kv_post_forward perturbation"):
        PerturbConfig.from_env({prefix + "REAL_KV_POST_FORWARD_PROB": "0.1"})
