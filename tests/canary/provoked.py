"""Provokes every message of the library: code -> the texts that were really raised or logged."""

from __future__ import annotations

import logging
import traceback
import warnings
from typing import TYPE_CHECKING, Any

import torch
from canary_rig import SMALL, decode, extend, full_group, ints, make_rig

from kvcanary_cli.abi import checks
from kvcanary_cli.abi.constants import ForwardMode, PoolKind, RealKvHashMode
from kvcanary_cli.abi.plans import VerifyPlan, WritePlan
from kvcanary_cli.abi.sources import RealKvSource
from kvcanary_cli.backends import get_backend
from kvcanary_cli.canary import (
    CanaryBufferGroup,
    CanaryConfig,
    CanaryDeviceState,
    CanaryManager,
    FutureTensors,
    PerturbConfig,
    PerturbManager,
    PoolDescription,
    PrefixNode,
    SnapshotTokens,
    SweepEntries,
    TokenOracle,
    TokenOracleManager,
    ViolationLog,
    attach_canary_buffers,
    build_sweep_plan,
    check_installable,
    install_line,
    patch_model_forward,
    real_kv_source_from_rows,
    splice_buffer_infos,
    walk_prefix_cache,
)
from kvcanary_cli.canary.object_patch import wrap_method
from kvcanary_cli.canary.perturb_config import parse_target_group, target_group_name
from kvcanary_cli.capacities import CanaryLaunchCapacities, check_batch_size

if TYPE_CHECKING:
    from collections.abc import Callable


class Catch:
    """Collects messages by code."""

    def __init__(self) -> None:
        self.texts: dict[str, list[str]] = {}

    def add(self, code: str, text: str) -> None:
        self.texts.setdefault(code, []).append(text)

    def error(self, code: str, kind: type[BaseException], call: Callable[[], object]) -> None:
        """``call`` must raise exactly ``kind`` (or a subclass)."""
        try:
            call()
        except kind as error:
            self.add(code, str(error))
            return
        raise AssertionError(f"{code}: nothing was raised")

    def log(self, codes: list[str], call: Callable[[], object]) -> None:
        """``call`` must log exactly one record for each code, in this order."""
        records: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("kvcanary.canary")
        before = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        try:
            call()
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before)
        assert len(records) == len(codes), (codes, records)
        for code, record in zip(codes, records, strict=True):
            self.add(code, record)


def _step(manager: CanaryManager, batch: Any) -> None:
    with manager.with_ops_outside_graph([0], batch), manager.with_active_single_forward_manager(0):
        manager.pre_ops_maybe_inside_graph(batch)
        manager.post_ops_maybe_inside_graph(batch)


def _manager(config: CanaryConfig | None = None, **more: Any) -> CanaryManager:
    arguments: dict[str, Any] = {
        "config": config or CanaryConfig(stats_print_every_n_steps=0),
        "groups": [full_group()],
        "capacities": SMALL,
        "req_to_token": torch.zeros((4, 16), dtype=torch.int32),
        "backend": get_backend("reference"),
    }
    manager = CanaryManager(**{**arguments, **more})
    manager.mark_init_finished()
    return manager


def configuration(catch: Catch) -> None:
    def config(**flags: Any) -> Callable[[], object]:
        return lambda: CanaryConfig.from_env({}, **flags)

    catch.error("KVC-A01", ValueError, config(kv_canary=" Warn "))
    catch.error("KVC-A02", ValueError, config(kv_canary="none", kv_canary_sweep_interval=5))
    try:
        config(kv_canary="log", kv_canary_real_data="some")()
    except KeyError as error:
        catch.add("KVC-A05", traceback.format_exception_only(error)[0].rstrip())
    for name, value in (("RING_CAPACITY", "abc"), ("ENABLE_MHA_V", "on")):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            CanaryConfig.from_env({f"SGLANG_KV_CANARY_{name}": value}, kv_canary="log")
        assert [warning.category for warning in caught] == [UserWarning]
        catch.add("KVC-A13", str(caught[0].message))
    for code, kind, arguments in (
        ("KVC-A03", AssertionError, ("cuda", "tc_piecewise", True)),
        ("KVC-A04", ValueError, ("xpu", "disabled", True)),
    ):
        device, prefill, decode_graphs = arguments
        catch.error(
            code,
            kind,
            lambda d=device, p=prefill, g=decode_graphs: check_installable(
                device_type=d, prefill_graph_backend=p, can_capture_decode=g
            ),
        )
    catch.error("KVC-A09", ValueError, lambda: ViolationLog.allocate(ring_capacity=0))
    catch.error(
        "KVC-A10", ValueError, lambda: CanaryDeviceState.allocate(config=CanaryConfig(), num_tags=0)
    )
    catch.error(
        "KVC-A11",
        ValueError,
        lambda: CanaryDeviceState.allocate(config=CanaryConfig(enable_verify_token_assert=True)),
    )
    line = install_line(
        config=CanaryConfig(),
        perturb_config=PerturbConfig(),
        capacities=SMALL,
        groups=[full_group()],
        swa_window_size=0,
        speculative_num_steps=0,
    )
    catch.add("KVC-L01", line)


def pools(catch: Catch) -> None:
    def attach(name: str) -> Callable[[], object]:
        rows = torch.zeros((8, 2, 8), dtype=torch.bfloat16)
        pool = PoolDescription(class_name=name, k_rows=rows, v_rows=rows)
        return lambda: attach_canary_buffers(pool, real_kv_hash_mode=RealKvHashMode.ALL)

    catch.error("KVC-A06", NotImplementedError, attach("MLATokenToKVPool"))
    catch.log(["KVC-L02"], attach("MHATokenToKVPool"))

    class Model:
        def forward(self, *_: object) -> None:
            return None

    model = Model()
    catch.error("KVC-A07", AttributeError, lambda: wrap_method(model, "run", lambda f: f))
    patch_model_forward(model, _manager())
    catch.error("KVC-A08", RuntimeError, lambda: patch_model_forward(model, _manager()))
    catch.error("KVC-R02", AssertionError, lambda: model.forward(3))
    catch.error(
        "KVC-A12",
        RuntimeError,
        lambda: splice_buffer_infos(([1], [2], [3]), full_group(v_half=True), page_size=1),
    )
    catch.error(
        "KVC-C01", ValueError, lambda: CanaryBufferGroup.allocate(kind=PoolKind.SWA, num_slots=4)
    )
    rows = torch.zeros((4, 48), dtype=torch.uint8)
    catch.error(
        "KVC-S08", ValueError, lambda: real_kv_source_from_rows(rows[:, :40], read_bytes=16)
    )
    for read_bytes in (-16, 64, 24):
        catch.error(
            "KVC-S09", ValueError, lambda n=read_bytes: real_kv_source_from_rows(rows, read_bytes=n)
        )


def sources(catch: Catch) -> None:
    def source(tensor: torch.Tensor | None = None, **more: Any) -> RealKvSource:
        arguments: dict[str, Any] = {
            "tensor": torch.zeros((4, 64), dtype=torch.uint8) if tensor is None else tensor,
            "page_size": 1,
            "num_bytes_per_token": 32,
            "read_bytes": 16,
        }
        return RealKvSource(**{**arguments, **more})

    catch.error("KVC-S01", ValueError, lambda: source(page_size=0))
    catch.error("KVC-S02", ValueError, lambda: source(num_bytes_per_token=24))
    catch.error("KVC-S03", ValueError, lambda: source(read_bytes=48))
    catch.error("KVC-S04", ValueError, lambda: source(torch.zeros(64, dtype=torch.uint8)))
    wide = torch.zeros((4, 72), dtype=torch.uint8)
    catch.error("KVC-S05", ValueError, lambda: source(wide[:, :64]))
    catch.error("KVC-S06", ValueError, lambda: source(page_size=4))
    buffer = torch.zeros((4, 32), dtype=torch.uint8)
    strided = torch.zeros((4, 64, 2), dtype=torch.uint8)[:, :, 0]
    for code, given in (
        ("KVC-S07", [source()] * 5),
        ("KVC-S10", [source(strided)]),
        ("KVC-S11", [source(torch.zeros((4, 32, 2), dtype=torch.uint8))]),
    ):
        catch.error(code, ValueError, lambda s=given: checks.check_sources(s, "canary_buf", buffer))


def plans(catch: Catch) -> None:
    catch.error("KVC-B06", ValueError, lambda: VerifyPlan.allocate(verify_capacity=0))
    catch.error("KVC-B07", ValueError, lambda: WritePlan.allocate(write_req_capacity=0))
    backend = get_backend("reference")

    def plan(bs: int = 2, **more: Any) -> Callable[[], object]:
        arguments: dict[str, Any] = {
            "req_pool_indices": torch.ones(bs, dtype=torch.int64),
            "prefix_lens": torch.ones(bs, dtype=torch.int64),
            "extend_seq_lens": torch.ones(bs, dtype=torch.int64),
            "req_to_token": torch.full((4, 16), 20, dtype=torch.int32),
            "verify_plan_out": VerifyPlan.allocate(verify_capacity=4),
            "write_plan_out": WritePlan.allocate(write_req_capacity=max(1, bs)),
            "swa_window_size": 0,
            "full_to_swa_index_mapping": None,
            "verify_capacity": 4,
        }
        return lambda: backend.plan(**{**arguments, **more})

    catch.error("KVC-C02", ValueError, plan(bs=4097))
    catch.error("KVC-C03", ValueError, plan(verify_capacity=5))
    catch.error("KVC-C04", ValueError, plan(full_to_swa_index_mapping=ints([0] * 8)))
    tokens = torch.zeros((4, 16), dtype=torch.int32)
    catch.error("KVC-C05", ValueError, plan(req_to_verify_expected_tokens=tokens))
    catch.error("KVC-C09", ValueError, plan(req_to_token=torch.zeros((4, 0), dtype=torch.int32)))
    catch.error("KVC-C11", ValueError, plan(full_to_swa_index_mapping=ints([])))
    catch.error(
        "KVC-C13", ValueError, plan(write_plan_out=WritePlan.allocate(write_req_capacity=1))
    )
    catch.error("KVC-C15", ValueError, plan(prefix_lens=torch.ones(2)))
    catch.error("KVC-C16", ValueError, plan(prefix_lens=ints([1, 1]).reshape(1, 2)))
    catch.error("KVC-C17", ValueError, plan(prefix_lens=ints([1, 1, 1])))
    catch.error("KVC-C18", ValueError, plan(prefix_lens=ints([1, 1]).to("meta")))
    catch.error("KVC-S12", ValueError, plan(prefix_lens=ints([1, 1, 1, 1])[::2]))

    def write_plan(offsets: int) -> WritePlan:
        good = WritePlan.allocate(write_req_capacity=2)
        return WritePlan(
            write_offsets=torch.zeros(offsets, dtype=torch.int64),
            write_seed_slot_indices=good.write_seed_slot_indices,
            write_num_valid_reqs=good.write_num_valid_reqs,
        )

    catch.error("KVC-C07", ValueError, plan(write_plan_out=write_plan(0)))
    catch.error("KVC-C12", ValueError, plan(write_plan_out=write_plan(2)))


def launches(catch: Catch) -> None:
    backend = get_backend("reference")
    log = ViolationLog.allocate(ring_capacity=4)
    counter = torch.zeros(1, dtype=torch.int64)

    def write(width: int = 32, **more: Any) -> Callable[[], object]:
        arguments: dict[str, Any] = {
            "canary_buf": torch.zeros((8, width), dtype=torch.uint8),
            "plan": WritePlan.allocate(write_req_capacity=1),
            "kernel_kind": 0,
            "violation_ring": log.ring,
            "violation_write_index": log.write_index,
            "slot_run_counter": counter,
            "kernel_run_counter": counter,
            "input_ids": ints([1]),
            "positions": ints([0]),
            "out_cache_loc": ints([1]),
            "enable_chain_position_assert": torch.ones(1, dtype=torch.int32),
        }
        return lambda: backend.write(**{**arguments, **more})

    catch.error("KVC-S13", ValueError, write(width=24))
    catch.error("KVC-W01", ValueError, write(enable_write_input_assert=True))
    catch.error(
        "KVC-W02",
        ValueError,
        write(expected_input_tokens=ints([1]), expected_input_positions=ints([0])),
    )

    def scatter(rows: int = 2, **more: Any) -> Callable[[], object]:
        arguments: dict[str, Any] = {
            "flat_in": ints([1] * rows),
            "offsets": torch.arange(rows + 1),
            "req_pool_indices": ints([1] * rows),
            "pool_out": torch.zeros((4, 16), dtype=torch.int32),
        }
        return lambda: backend.scatter_req_token_ids(**{**arguments, **more})

    catch.error("KVC-E03", ValueError, scatter(flat_in=ints([1, 1]).reshape(1, 2)))
    catch.error("KVC-E04", TypeError, scatter(flat_in=torch.ones(2)))
    catch.error("KVC-E05", ValueError, scatter(offsets=torch.arange(4)))
    catch.error("KVC-E06", ValueError, scatter(rows=512))


def capacities(catch: Catch) -> None:
    def from_args(**more: int) -> Callable[[], object]:
        arguments: dict[str, Any] = {
            "req_to_token_pool_size": 8,
            "max_seq_len_per_req": 16,
            "pool_slot_count": 32,
            "max_prefill_tokens": 32,
        }
        return lambda: CanaryLaunchCapacities.from_args(**{**arguments, **more})

    for name in (
        "req_to_token_pool_size",
        "max_seq_len_per_req",
        "pool_slot_count",
        "max_prefill_tokens",
    ):
        catch.error("KVC-B01", ValueError, from_args(**{name: 0}))
    for name in ("cuda_graph_max_bs", "speculative_num_draft_tokens"):
        catch.error("KVC-B02", ValueError, from_args(**{name: -1}))
    nine = decode([0] * 9, [0] * 9, [0] * 9, [0] * 9)
    catch.error("KVC-B03", RuntimeError, lambda: make_rig().manager.run(nine))
    old = check_batch_size(batch_size=9, capacity=8, engine_version="0.5.13")
    assert old is not None
    catch.add("KVC-Z02", old.message)
    long = extend([1], [0], [[1] * 33], [[1] * 33])
    catch.error("KVC-B04", RuntimeError, lambda: make_rig().manager.run(long))
    padded = decode([0] * 9, [0] * 9, [0] * 9, [0] * 9, raw_batch_size=8)
    catch.error("KVC-B05", RuntimeError, lambda: make_rig().manager.run(padded))
    tiny = CanaryLaunchCapacities(
        per_forward_verify_capacity=1,
        per_forward_write_req_capacity=4,
        per_forward_write_entry_capacity=8,
    )
    manager = _manager(capacities=tiny)

    def overflow() -> None:
        for _ in range(2):
            _step(manager, decode([1], [3], [1], [-1]))

    catch.log(["KVC-B08"], overflow)


def life_cycle(catch: Catch) -> None:
    batch = extend([1], [0], [[5, 7]], [[4, 2]])
    rig = make_rig()
    catch.log(
        ["KVC-R10"],
        lambda: catch.error(
            "KVC-R09", AssertionError, lambda: rig.manager.post_ops_outside_graph(batch)
        ),
    )
    asserted = CanaryConfig(enable_write_input_assert=True)
    catch.error("KVC-W05", RuntimeError, lambda: make_rig(config=asserted).manager.run(batch))

    class Short:
        def expected_inputs(self, batch: Any) -> Any:
            return batch.input_ids, batch.positions[:1]

    catch.error(
        "KVC-R04",
        RuntimeError,
        lambda: make_rig(config=asserted, oracle=Short()).manager.run(batch),
    )
    wrong = extend([1], [0], [[5]], [[4]])
    wrong.positions = wrong.positions.to(torch.uint8)
    catch.error("KVC-R03", TypeError, lambda: make_rig().manager.run(wrong))
    prebuilt = decode([1], [0], [5], [4])
    prebuilt.forward_mode = ForwardMode.PREBUILT
    catch.error("KVC-R11", NotImplementedError, lambda: make_rig().manager.run(prebuilt))
    manager = _manager()
    head, sweep = manager.endpoints[0], manager.endpoints[-1]
    plan = VerifyPlan.allocate(verify_capacity=1)
    catch.error("KVC-R12", NotImplementedError, lambda: head.launch_sweep(plan))
    catch.error(
        "KVC-R12",
        NotImplementedError,
        lambda: sweep.launch_per_forward(None, None),  # type: ignore[arg-type]
    )

    def nested() -> None:
        with (
            manager.with_active_single_forward_manager(0),
            manager.with_active_single_forward_manager(0),
        ):
            pass

    def changed() -> None:
        with manager.with_active_single_forward_manager(0):
            manager._active = None

    catch.error("KVC-R05", AssertionError, nested)
    catch.error("KVC-R07", AssertionError, changed)
    catch.error("KVC-R08", AssertionError, lambda: manager.pre_ops_maybe_inside_graph(batch))
    catch.error("KVC-R08", AssertionError, lambda: manager.post_ops_maybe_inside_graph(batch))

    stalled = _manager(CanaryConfig(sweep_interval=200, stats_print_every_n_steps=0))

    def two_hundred_steps() -> None:
        idle = decode([0], [0], [0], [0])
        for _ in range(101):
            _step(stalled, idle)

    catch.error("KVC-R01", RuntimeError, two_hundred_steps)
    catch.error("KVC-R06", NotImplementedError, lambda: walk_prefix_cache([]))
    entries = SweepEntries(slots=[1], positions=[0], prev_slots=[-1])
    catch.error(
        "KVC-R16",
        AssertionError,
        lambda: build_sweep_plan(entries, swa_window_size=2, full_to_swa_index_mapping=None),
    )
    future = FutureTensors.device_to_host({"a": torch.zeros(1)})
    future.wait()
    catch.error("KVC-R14", RuntimeError, future.wait)
    catch.error("KVC-R15", ValueError, lambda: FutureTensors.device_to_host({"a": 1}))


def tokens(catch: Catch) -> None:
    pool = torch.zeros((4, 16), dtype=torch.int32)
    snapshot = SnapshotTokens(backend=get_backend("reference"), pool=pool)

    def refresh(flat: list[int], lens: list[int]) -> Callable[[], object]:
        batch = decode([1], [0], [5], [4])
        batch.req_all_ids_flat, batch.req_all_ids_lens = ints(flat), ints(lens)
        return lambda: snapshot.refresh(batch)

    catch.error("KVC-E01", RuntimeError, refresh([1, 2], [1, 1]))
    catch.error("KVC-E02", RuntimeError, refresh([1, 2], [3]))
    oracle = TokenOracleManager(TokenOracle(vocab_size=10))
    catch.error("KVC-O01", RuntimeError, lambda: oracle.oracle.sample(None, ints([0])))
    batch = extend([1], [0], [[5]], [[4]])
    batch.extend_seq_lens = None
    catch.error("KVC-O02", RuntimeError, lambda: oracle.expected_inputs(batch))
    short = decode([1, 2], [0], [5], [4], seq_lens=ints([1, 1]))
    catch.error("KVC-O03", RuntimeError, lambda: oracle.expected_inputs(short))


def perturbations(catch: Catch) -> None:
    catch.error("KVC-P01", ValueError, lambda: PerturbConfig(real_kv_used_prob=0.5))
    catch.error("KVC-P01", ValueError, PerturbConfig().required_target_group)
    catch.error("KVC-P02", ValueError, lambda: parse_target_group("half"))
    catch.error("KVC-P03", ValueError, lambda: target_group_name("half"))
    kv = torch.zeros((32, 16), dtype=torch.uint8)
    with_kv = full_group(real_kv_sources_k=real_kv_source_from_rows(kv, read_bytes=16))
    table = torch.zeros((4, 16), dtype=torch.int32)
    table[1, :4] = ints([4, 2, 9, 10], torch.int32)
    batch = decode([1], [3], [1], [10])
    empty = decode([0], [0], [0], [0])
    one = decode([2], [1], [1], [10])
    table[2, :2] = ints([4, 10], torch.int32)

    def perturb(group: CanaryBufferGroup | None = with_kv, **config: Any) -> PerturbManager:
        return PerturbManager(
            config=PerturbConfig(**{"warmup_steps": 0, "target_group": PoolKind.FULL, **config}),
            groups=[] if group is None else [group],
            req_to_token=table,
            sweep_interval=1,
        )

    table_only = perturb(warmup_steps=1, req_to_token_prob=1.0)
    catch.log(["KVC-P10"], lambda: table_only.before_forward(0, batch))
    catch.log(["KVC-P11", "KVC-P14"], lambda: table_only.before_forward(1, batch))
    for given in (None, empty, one):
        catch.log(["KVC-P12"], lambda b=given: table_only.before_forward(2, b))
    enabled = ["KVC-P11"]
    used = {"real_kv_used_prob": 1.0}
    catch.log([*enabled, "KVC-P13"], lambda: perturb(**used).before_forward(0, batch))
    for given in (None, empty):
        catch.log([*enabled, "KVC-P12"], lambda b=given: perturb(**used).before_forward(0, b))
    bare = full_group()
    for group in (None, bare):
        catch.log(
            [*enabled, "KVC-P12"], lambda g=group: perturb(g, **used).before_forward(0, batch)
        )
    small = full_group(real_kv_sources_k=real_kv_source_from_rows(kv[:1], read_bytes=16))
    catch.log([*enabled, "KVC-P12"], lambda: perturb(small, **used).before_forward(0, batch))
    cache = {"real_kv_unused_cache_prob": 1.0}

    class Tree:
        prefix_root = PrefixNode(children=[PrefixNode(slots=[4])])

    catch.log([*enabled, "KVC-P13"], lambda: perturb(**cache).before_forward(0, batch, Tree()))
    catch.log([*enabled, "KVC-P12"], lambda: perturb(**cache).before_forward(0, batch, None))
    post = {"real_kv_post_forward_prob": 1.0}
    catch.log([*enabled, "KVC-P13"], lambda: perturb(**post).after_forward(0, batch))
    for given in (None, empty):
        catch.log([*enabled, "KVC-P12"], lambda b=given: perturb(**post).after_forward(0, b))
    swap = perturb(next_token_swap_prob=1.0)
    catch.log([*enabled, "KVC-P15"], lambda: swap.swap_next_tokens(ints([1, 2, 3])))


def reports(catch: Catch) -> None:
    lut = torch.zeros(33, dtype=torch.int64)
    swa = CanaryBufferGroup.allocate(kind=PoolKind.SWA, num_slots=8, swa_index_lut=lut)
    config = CanaryConfig(
        sweep_interval=2, stats_print_every_n_steps=2, swa_divergence_stats_interval=2
    )
    manager = _manager(config, groups=[full_group(), swa], swa_window_size=2)

    class Tree:
        prefix_root = PrefixNode()

    manager.prefix_index = Tree()

    def three_steps() -> None:
        for _ in range(3):
            _step(manager, decode([0], [0], [0], [0]))

    catch.log(["KVC-L04", "KVC-L04", "KVC-L03", "KVC-L05"], three_steps)


PROVOKERS = (
    configuration,
    pools,
    sources,
    plans,
    launches,
    capacities,
    life_cycle,
    tokens,
    perturbations,
    reports,
)
