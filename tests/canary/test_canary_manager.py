"""Many steps: read-backs one step late, raise mode, health, statistics, sweeps, reports."""

from __future__ import annotations

import json
import logging
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
    CanaryMode,
    ForwardBatch,
    PhaseMismatchError,
    PrefixNode,
    parse_violation_line,
    real_kv_source_from_rows,
)
from kvcanary_cli.capacities import CanaryLaunchCapacities


class Tree:
    def __init__(self, root: PrefixNode) -> None:
        self.prefix_root = root


def make_manager(
    *,
    config: CanaryConfig | None = None,
    groups: list[CanaryBufferGroup] | None = None,
    capacities: CanaryLaunchCapacities = SMALL,
    init_finished: bool = True,
    **more: Any,
) -> tuple[CanaryManager, torch.Tensor]:
    table = torch.zeros((4, 16), dtype=torch.int32)
    manager = CanaryManager(
        config=config or CanaryConfig(stats_print_every_n_steps=0),
        groups=[full_group()] if groups is None else groups,
        capacities=capacities,
        req_to_token=table,
        backend=get_backend("reference"),
        **more,
    )
    if init_finished:
        manager.mark_init_finished()
    return manager, table


def step(manager: CanaryManager, batch: ForwardBatch) -> None:
    with manager.with_ops_outside_graph([0], batch), manager.with_active_single_forward_manager(0):
        manager.pre_ops_maybe_inside_graph(batch)
        manager.post_ops_maybe_inside_graph(batch)


def idle() -> ForwardBatch:
    return decode([0], [0], [0], [0])


def _corrupted(mode: CanaryMode, **config: Any) -> tuple[CanaryManager, ForwardBatch]:
    """A manager whose next decode finds two damaged rows, head and tail."""
    manager, table = make_manager(
        config=CanaryConfig(mode=mode, stats_print_every_n_steps=0, **config)
    )
    table[1, :4] = ints([4, 2, 9, 10])
    step(manager, extend([1], [0], [[5, 7, 9]], [[4, 2, 9]]))
    table[1, 1] = 9
    return manager, decode([1], [3], [1], [10])


def test_violations_are_logged_one_step_late_and_once(caplog: pytest.LogCaptureFixture) -> None:
    manager, batch = _corrupted(CanaryMode.LOG)
    with caplog.at_level(logging.WARNING, "kvcanary.canary"):
        step(manager, batch)
        assert caplog.messages == []
        step(manager, idle())
        # HEAD and TAIL each see position 1 (wrong chain and position) and position 2 (chain).
        assert len(caplog.messages) == 4
        assert all("step_when_pumped=3" in message for message in caplog.messages)
        rows = [parse_violation_line(message) for message in caplog.messages]
        assert [(row.kernel_kind, row.slot, row.fail_bits) for row in rows if row] == [
            (0, 9, 3),
            (0, 9, 1),
            (2, 9, 3),
            (2, 9, 1),
        ]
        step(manager, idle())
        assert len(caplog.messages) == 4


def test_flush_reports_without_another_step(caplog: pytest.LogCaptureFixture) -> None:
    manager, batch = _corrupted(CanaryMode.LOG)
    step(manager, batch)
    with caplog.at_level(logging.WARNING, "kvcanary.canary"):
        manager.flush()
    assert len(caplog.messages) == 4


def test_raise_mode_raises_once_with_all_rows() -> None:
    manager, batch = _corrupted(CanaryMode.RAISE)
    step(manager, batch)
    with pytest.raises(RuntimeError, match=r"^kv_canary violation: launch_tag=HEAD_K") as caught:
        step(manager, idle())
    text = str(caught.value)
    assert text.count("kv_canary violation: ") == 4
    assert text.count("total_violations=4 ring_overflow=False step_when_pumped=3") == 4
    for _ in range(3):
        step(manager, batch)


def test_ring_is_filled_once(caplog: pytest.LogCaptureFixture) -> None:
    manager, batch = _corrupted(CanaryMode.LOG, ring_capacity=3)
    with caplog.at_level(logging.WARNING, "kvcanary.canary"):
        for _ in range(3):
            step(manager, batch)
        step(manager, idle())
    # Each decode finds the four rows again; only three were ever kept. The total is that of the
    # moment of the report, when the second decode had already run.
    assert int(manager.state.violation_log.write_index) == 12
    assert len(caplog.messages) == 3
    assert all("total_violations=8 ring_overflow=True" in text for text in caplog.messages)


def test_position_assert_waits_for_the_end_of_start_up() -> None:
    manager, table = make_manager(init_finished=False)
    table[1, :4] = ints([4, 2, 9, 10])
    batch = extend([1], [1], [[7, 9]], [[2, 9]])
    batch.positions = ints([5, 6])
    with manager.with_active_single_forward_manager(0):
        # No outer operations: a captured warm-up does exactly this.
        manager.pre_ops_maybe_inside_graph(batch)
        manager.post_ops_maybe_inside_graph(batch)
    chain = [row for row in manager.state.violation_log.rows() if row[7] == 16]
    assert chain == []
    manager.mark_init_finished()
    step(manager, batch)
    chain = [row for row in manager.state.violation_log.rows() if row[7] == 16]
    assert [row[0] for row in chain] == [0, 2]


def test_brackets() -> None:
    manager, _ = make_manager(speculative_num_steps=4)
    assert len(manager.single_forward_managers) == 3
    batch = idle()
    with (
        pytest.raises(AssertionError, match="nested with_active_single_forward_manager"),
        manager.with_active_single_forward_manager(0),
        manager.with_active_single_forward_manager(1),
    ):
        pass
    with pytest.raises(AssertionError, match=r"post_ops_maybe_inside_graph called without active"):
        manager.post_ops_maybe_inside_graph(batch)
    with (
        pytest.raises(AssertionError, match=r"manager\(2\) exited with .*_index=1; nested or"),
        manager.with_active_single_forward_manager(2),
    ):
        manager._active = 1
    with manager.with_ops_outside_graph([0, 1, 2], batch):
        for index in range(3):
            with manager.with_active_single_forward_manager(index):
                manager.pre_ops_maybe_inside_graph(batch)
                manager.post_ops_maybe_inside_graph(batch)
    assert manager.state.kernel_run_counters.tolist()[:3] == [6, 0, 6]


def test_a_step_without_an_inner_forward_breaks_the_phase() -> None:
    manager, _ = make_manager()
    with pytest.raises(PhaseMismatchError), manager.with_ops_outside_graph([0], idle()):
        pass


def test_an_exception_inside_survives_and_the_next_step_runs() -> None:
    manager, _ = make_manager()

    def broken_forward() -> None:
        with (
            manager.with_ops_outside_graph([0], idle()),
            manager.with_active_single_forward_manager(0),
        ):
            manager.pre_ops_maybe_inside_graph(idle())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken_forward()
    step(manager, idle())
    assert manager.outer_step_counter == 2


def test_overflow_warns_once_per_forward_one_step_late(caplog: pytest.LogCaptureFixture) -> None:
    small = CanaryLaunchCapacities(
        per_forward_verify_capacity=2,
        per_forward_write_req_capacity=4,
        per_forward_write_entry_capacity=32,
    )
    manager, table = make_manager(capacities=small)
    table[1, :4] = ints([4, 2, 9, 10])
    with caplog.at_level(logging.WARNING, "kvcanary.canary"):
        step(manager, extend([1], [0], [[5, 7, 9]], [[4, 2, 9]]))
        step(manager, decode([1], [3], [1], [10]))
        assert caplog.messages == []
        step(manager, decode([1], [3], [1], [10]))
        step(manager, idle())
        step(manager, idle())
    assert caplog.messages == [
        "kv-canary: per-forward verify skipped this step due to overflow "
        f"(total={total}, capacity=2); check ServerArgs / pool sizing"
        for total in (1, 2)
    ]


def test_health_check_is_silent_while_everything_runs() -> None:
    manager, _ = make_manager(groups=[full_group(v_half=True)])
    for _ in range(210):
        step(manager, idle())


def test_health_check_raises_when_a_forward_path_bypasses_the_canary() -> None:
    manager, _ = make_manager(init_finished=False)
    batch = idle()
    for _ in range(100):
        with manager.with_ops_outside_graph([0], batch):
            pass
    with (
        pytest.raises(RuntimeError, match="canary path is not executing") as caught,
        manager.with_ops_outside_graph([0], batch),
    ):
        pass
    assert str(caught.value) == (
        "kv-canary: kernel_run_counter did not increase since previous check for "
        "tags=[HEAD_K_FULL, TAIL_K_FULL] at step=101; canary path is not executing"
    )


@pytest.mark.parametrize(("interval", "fails_at"), [(100, None), (200, 201)])
def test_a_sweep_interval_above_100_ends_in_the_health_check(
    interval: int, fails_at: int | None
) -> None:
    config = CanaryConfig(sweep_interval=interval, stats_print_every_n_steps=0)
    manager, _ = make_manager(config=config)
    manager.prefix_index = Tree(PrefixNode())
    last_good = 310 if fails_at is None else fails_at - 1
    for _ in range(last_good):
        step(manager, idle())
    if fails_at is not None:
        with pytest.raises(RuntimeError, match=rf"tags=\[SWEEP_K_FULL\] at step={fails_at};"):
            step(manager, idle())


def test_a_draft_runner_expects_no_sweep() -> None:
    config = CanaryConfig(sweep_interval=10, stats_print_every_n_steps=0)
    manager, _ = make_manager(config=config, is_draft=True)
    for _ in range(110):
        step(manager, idle())
    assert manager.sweeps.passes == 0


def test_statistics_line(caplog: pytest.LogCaptureFixture) -> None:
    config = CanaryConfig(stats_print_every_n_steps=2)
    manager, table = make_manager(config=config, groups=[full_group(v_half=True)])
    table[1, :4] = ints([4, 2, 9, 10])
    with caplog.at_level(logging.INFO, "kvcanary.canary"):
        step(manager, extend([1], [0], [[5, 7, 9]], [[4, 2, 9]]))
        step(manager, decode([1], [3], [1], [10]))
        assert caplog.messages == []
        step(manager, idle())
    # 2 x (3 written + 3 verified + 1 written); V tags exist but are not launched.
    assert caplog.messages == [
        "[canary] step=2 protected_tokens=14 sweep_passes=0 violations=0 launch_tags_active=2/6"
    ]


def test_sweep_finds_what_no_forward_reads(caplog: pytest.LogCaptureFixture) -> None:
    kv = torch.arange(32 * 16, dtype=torch.int64).view(torch.uint8)[: 32 * 16].reshape(32, 16)
    kv = kv.clone()
    group = full_group(real_kv_sources_k=real_kv_source_from_rows(kv, read_bytes=16))
    config = CanaryConfig(
        sweep_interval=2,
        real_kv_hash_mode=RealKvHashMode.PARTIAL,
        stats_print_every_n_steps=0,
    )
    manager, _ = make_manager(config=config, groups=[group])
    child = PrefixNode(slots=[9], key_len=1)
    manager.prefix_index = Tree(
        PrefixNode(children=[PrefixNode(slots=[4, 2], key_len=2, children=[child])])
    )
    with caplog.at_level(logging.INFO, "kvcanary.canary"):
        step(manager, extend([1], [0], [[5, 7, 9]], [[4, 2, 9]]))
        assert manager.state.violation_log.rows() == []
        step(manager, idle())
        kv[9, 3] ^= 0xFF
        step(manager, idle())
    rows = manager.state.violation_log.rows()
    assert [(row[0], row[1], row[2], row[4], row[7]) for row in rows] == [(4, 9, 2, -1, 4)]
    assert caplog.messages == [
        "[canary] sweep succeeded 1 times (last_step=0)",
        "[canary] sweep succeeded 2 times (last_step=2)",
    ]
    assert manager.state.slot_run_counters.tolist()[4] == 6


def test_sweep_of_a_window_pool_translates_and_skips_evicted_slots() -> None:
    lut = torch.zeros(33, dtype=torch.int64)
    lut[-1] = -1
    lut[2], lut[9] = 3, 5
    swa = CanaryBufferGroup.allocate(kind=PoolKind.SWA, num_slots=8, swa_index_lut=lut)
    config = CanaryConfig(sweep_interval=1, stats_print_every_n_steps=0)
    manager, _ = make_manager(config=config, groups=[full_group(), swa], swa_window_size=2)
    manager.prefix_index = Tree(PrefixNode(children=[PrefixNode(slots=[4, 2, 9])]))
    step(manager, extend([1], [0], [[5, 7, 9]], [[4, 2, 9]]))
    assert manager.state.violation_log.rows() == []
    # All three entries are counted, slot 4's translation 0 included; damage slot 9's row.
    assert manager.state.slot_run_counters.tolist()[10] == 3
    swa.k_tail[5, 8] = 7
    step(manager, idle())
    rows = [row for row in manager.state.violation_log.rows() if row[0] == 10]
    assert [(row[1], row[2], row[7]) for row in rows] == [(5, 7, 2)]


def test_swa_divergence_line(caplog: pytest.LogCaptureFixture) -> None:
    lut = torch.zeros(33, dtype=torch.int64)
    lut[-1] = -1
    lut[2], lut[9] = 2, 5
    swa = CanaryBufferGroup.allocate(kind=PoolKind.SWA, num_slots=8, swa_index_lut=lut)
    config = CanaryConfig(swa_divergence_stats_interval=2, stats_print_every_n_steps=0)
    manager, table = make_manager(config=config, groups=[full_group(), swa], swa_window_size=2)
    table[1, :4] = ints([4, 2, 9, 10])
    with caplog.at_level(logging.INFO, "kvcanary.canary"):
        step(manager, extend([1], [0], [[5, 7, 9]], [[4, 2, 9]]))
        step(manager, decode([1], [3], [1], [10]))
        step(manager, idle())
    name, payload = caplog.messages[0].split("=", 1)
    assert name == "kv_canary_swa_divergence"
    assert " " not in payload
    assert json.loads(payload) == {
        "forward_ct": 2,
        "verify_full": 3,
        "verify_swa": 2,
        # Live cells 4, 2, 9, 10: slot 9 is SWA slot 5, slots 4 and 10 are unmapped.
        "swa_full_idx_divergence": 1,
        "swa_out_of_window_tokens": 2,
    }


def test_faulty_data_is_an_error_one_step_later() -> None:
    manager, table = make_manager()
    table[1, :4] = ints([4, 2, 9, 10])
    step(manager, decode([1], [0], [1], [77]))
    with pytest.raises(ValueError, match=r"out_cache_loc 77 is outside \[\.\., canary slots 32\)"):
        step(manager, idle())
    step(manager, idle())
