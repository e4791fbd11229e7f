"""Groups of layers: which are told, under what names, and whose their blocks are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.attribution.diagnose import diagnose_trace
from kvcanary_cli.record.vllm.batches import Batch
from kvcanary_cli.record.vllm.blocks import BlockLedger
from kvcanary_cli.record.vllm.groups import Windows, belongs_to, told_groups
from kvcanary_cli.record.vllm.pool_calls import PoolCalls
from kvcanary_cli.record.vllm.tables import BlockTableShadow
from kvcanary_cli.replay.options import ReplayOptions
from tests.replay.helpers import UNCHECKED, MemoryReader, header, numbered

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 4


class FullAttentionSpec:
    pass


class MLAAttentionSpec(FullAttentionSpec):
    pass


class RSWASpec(FullAttentionSpec):
    """Gives back blocks in the middle."""


class SlidingWindowSpec:
    pass


class ChunkedLocalAttentionSpec:
    pass


class MambaSpec:
    pass


class UniformTypeKVCacheSpecs:
    def __init__(self, spec: Any) -> None:
        self.kv_cache_specs = {"layer": spec}


FULL, SLIDING, STATE = FullAttentionSpec(), SlidingWindowSpec(), MambaSpec()


@pytest.mark.parametrize(
    ("specs", "told"),
    [
        ([FULL], [("", False)]),
        ([SLIDING, FULL], [("", False), ("/group-0", True)]),
        (
            [FULL, SLIDING, MLAAttentionSpec()],
            [("", False), ("/group-1", True), ("/group-2", False)],
        ),
        ([SLIDING, SLIDING], [("", True), ("/group-1", True)]),
        ([STATE, FULL], [("", False)]),
        ([FULL, ChunkedLocalAttentionSpec()], [("", False), ("/group-1", True)]),
        ([UniformTypeKVCacheSpecs(SLIDING)], [("", True)]),
        ([RSWASpec()], []),
        ([STATE], []),
        ([], []),
    ],
)
def test_layers_that_keep_a_slot_for_each_token_are_told(
    specs: list[Any], told: list[tuple[str, bool]]
) -> None:
    groups = told_groups(specs, [SIZE] * len(specs), 8, 9)
    assert [(group.suffix, group.slides) for group in groups] == told
    assert [group.rows_before for group in groups] == [8 * k for k in range(len(told))]
    assert [specs[group.number] for group in groups[1:]] == [
        specs[int(suffix.rpartition("-")[2])] for suffix, _ in told[1:]
    ]


def test_groups_of_other_block_sizes_and_beyond_the_limit_are_left_out() -> None:
    specs = [FULL, SLIDING, SLIDING]
    assert [g.number for g in told_groups(specs, [4, 8, 4], 1, 9)] == [0, 2]
    assert [g.number for g in told_groups(specs, [4, 4, 4], 1, 1)] == [0]


@pytest.mark.parametrize(
    ("name", "req", "does"),
    [
        ("a", "a", True),
        ("a/group-1", "a", True),
        ("ab/group-1", "a", False),
        ("a", "a/group-1", False),
        (None, "a", False),
        (object(), "a", False),
    ],
)
def test_whose_a_name_is(name: Any, req: str, does: bool) -> None:
    assert belongs_to(name, req) == does


def _reads(spec: Any, at: int) -> set[int]:
    """Positions that the token at position ``at`` looks at, itself included."""
    if isinstance(spec, ChunkedLocalAttentionSpec):
        chunk = vars(spec)["attention_chunk_size"]
        return set(range(at // chunk * chunk, at + 1))
    return set(range(max(0, at + 1 - vars(spec)["sliding_window"]), at + 1))


@given(
    kind=st.sampled_from([SlidingWindowSpec, ChunkedLocalAttentionSpec]),
    size=st.integers(1, 9),
    computed=st.integers(0, 40),
)
def test_what_no_later_token_reads(kind: type, size: int, computed: int) -> None:
    spec = kind()
    name = "sliding_window" if kind is SlidingWindowSpec else "attention_chunk_size"
    setattr(spec, name, size)
    group, *_ = told_groups([spec], [SIZE], 8, 1)
    unread = group.unread(computed)
    later = set().union(*(_reads(spec, at) for at in range(computed, computed + 20)))
    assert min(later) == unread
    full, *_ = told_groups([FULL], [SIZE], 8, 1)
    assert full.unread(computed) == 0


@given(nulls=st.lists(st.integers(0, 6), max_size=6))
def test_blocks_that_fell_out_of_a_window_are_counted_on(nulls: list[int]) -> None:
    table = [SimpleNamespace(is_null=False) for _ in range(6)]
    windows = Windows()
    for count in sorted(nulls):
        for block in table[:count]:
            block.is_null = True
        assert windows.gone("a", table) == count
    windows.forget("a")
    assert windows.gone("a", [SimpleNamespace(is_null=False)]) == 0


def test_cells_of_blocks_that_are_gone_hold_the_padding_slot() -> None:
    shadow = BlockTableShadow(3, 4, SIZE)
    blocks = np.array([5, 6, 7])
    assert [e["slots"].tolist() for e in shadow.show(1, blocks)] == [list(range(20, 32))]
    (told,) = shadow.show(1, blocks, 2)
    assert (told["start"], told["slots"].tolist()) == (0, [0] * 8)
    assert not shadow.show(1, blocks, 2)
    assert blocks.tolist() == [5, 6, 7]


def test_what_a_row_reads_begins_where_its_window_may() -> None:
    batch = Batch(
        reqs=["a", "b"],
        counts=np.array([1, 1]),
        prefix=np.array([10, 3]),
        blocks=[np.array([9, 5, 6]), np.array([7])],
        block_size=SIZE,
        input_ids=None,
        positions=np.array([10, 3]),
        slots=np.array([26, 31]),
        drafts=np.zeros(2, dtype=np.int64),
        prompts=np.array([1, 1]),
        gone=(1, 0),
    )
    assert batch.prefix_slots().tolist() == [20, 21, 22, 23, 24, 25, 28, 29, 30]
    assert batch.take([1]).gone == (0,)


class _Engine:
    """The pool of an engine whose requests share blocks, followed by the recorder."""

    def __init__(self, groups: int) -> None:
        specs = [FULL, SLIDING][:groups]
        self.tables: dict[str, list[list[Any]]] = {}
        coordinator = SimpleNamespace(get_blocks=lambda req: self.tables[req])
        self.manager = SimpleNamespace(coordinator=coordinator)
        self.pool = SimpleNamespace(free_block_queue=object())
        self.events: list[dict[str, Any]] = []
        session: Any = SimpleNamespace(defer=self._defer, emit_all=self.events.extend)
        self.calls = PoolCalls(
            session,
            SimpleNamespace(  # type: ignore[arg-type]
                scheduler=SimpleNamespace(kv_cache_manager=self.manager),
                blocks=self.pool,
                told=told_groups(specs, [SIZE] * groups, 4, 9),
            ),
            BlockLedger(32, SIZE),
        )
        self.free = list(range(1, 32))
        self.groups = groups

    def _defer(self, make: Callable[[], list[dict[str, Any]]]) -> None:
        self.events += make()

    def allocate(self, req: str, count: int, served: list[list[Any]] | None = None) -> None:
        """``req`` gets ``count`` blocks in each group, behind those that it is served from."""
        request = SimpleNamespace(request_id=req)
        assert self.calls.enter_allocate(self.manager, request)
        tables = self.tables[req] = [list(blocks) for blocks in served or [[]] * self.groups]
        for blocks in tables:
            for block in blocks:
                block.ref_cnt += 1
            new = [
                SimpleNamespace(block_id=self.free.pop(0), ref_cnt=1, is_null=False, block_hash=1)
                for _ in range(count)
            ]
            self.calls.on_new_blocks(None, new, False, self.pool)
            blocks += new
        self.calls.end_allocate(request)

    def give_back(self, req: str, group: int, count: int) -> None:
        """The first blocks of ``req`` in ``group`` fall out of its window."""
        blocks = self.tables[req][group][:count]
        assert self.calls.enter_skipped(self.manager, req)
        del self.tables[req][group][:count]
        for block in blocks:
            block.ref_cnt -= 1
        queued = [block for block in blocks if not block.ref_cnt]
        self.calls.on_queued(None, None, False, self.pool.free_block_queue, queued)
        self.calls.on_freed(None, None, False, self.pool, blocks)
        self.calls.leave_actor(True)

    def end(self, req: str) -> None:
        request = SimpleNamespace(request_id=req)
        held = self.calls.enter_free(self.manager, request)
        assert held is not None
        for block in held:
            block.ref_cnt -= 1
        queued = [block for block in held if not block.ref_cnt]
        self.calls.on_queued(None, None, False, self.pool.free_block_queue, queued)
        del self.tables[req]
        self.calls.leave_free(held, None, False, self.manager, request)

    def broken_rules(self) -> list[Any]:
        """What a replay says of the owners."""
        pool = {"slots": 31 * SIZE, "max_slot": 32 * SIZE - 1, "reserved": list(range(SIZE))}
        head = header(pool={**pool, "page_size": SIZE, "rows": 5, "row_len": 64})
        plain = [
            {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in event.items()}
            for event in self.events
        ]
        reader = MemoryReader(head, numbered(plain), 37)
        return list(diagnose_trace(reader, ReplayOptions(backend="cpu"), UNCHECKED).ownership)


@pytest.mark.parametrize("groups", [1, 2])
@given(data=st.data())
def test_sound_sharing_breaks_no_rule_of_ownership(groups: int, data: st.DataObject) -> None:
    """Requests share blocks, lose them behind windows and end, in any order."""
    engine, alive = _Engine(groups), list[str]()
    for number in range(data.draw(st.integers(2, 6))):
        req = f"r{number}"
        served = None
        if alive and data.draw(st.booleans()):
            served = engine.tables[data.draw(st.sampled_from(alive))]
        engine.allocate(req, data.draw(st.integers(1, 2)), served)
        alive.append(req)
        if data.draw(st.booleans()):
            group = groups - 1
            loser = data.draw(st.sampled_from(alive))
            count = data.draw(st.integers(0, len(engine.tables[loser][group])))
            engine.give_back(loser, group, count)
        if data.draw(st.booleans()):
            engine.end(alive.pop(data.draw(st.integers(0, len(alive) - 1))))
    for req in alive:
        engine.end(req)
    assert not engine.broken_rules()
    owners = {e["owner"] for e in engine.events if e["kind"] == "alloc"}
    assert any(owner.endswith("/group-1") for owner in owners) == (groups == 2)
