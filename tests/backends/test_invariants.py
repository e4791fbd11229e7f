"""Properties that hold whatever the hashes are; nothing here computes one."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcanary_cli.abi.constants import FailReason
from kvcanary_cli.backends import get_backend
from tests.backends._cases import random_plan_case
from tests.backends._scene import Scene, reasons, violations

if TYPE_CHECKING:
    from kvcanary_cli.backends.interface import Backend

CHAIN = FailReason.VERIFY_CHAIN_HASH_MISMATCH
POSITION = FailReason.VERIFY_POSITION_MISMATCH
REAL_KV = FailReason.VERIFY_REAL_KV_HASH_MISMATCH
TOKEN = FailReason.VERIFY_TOKEN_MISMATCH

# The interpreter takes a tenth of a second a launch, so Triton's own tests look further.
EXAMPLES = {"reference": 40, "cpu": 60, "triton": 3}


@pytest.fixture(params=list(EXAMPLES))
def each(request: pytest.FixtureRequest) -> Backend:
    return get_backend(request.param)


def examples(backend: Backend) -> list[Random]:
    return [Random(seed) for seed in range(EXAMPLES[backend.name])]


def test_what_was_written_verifies(each: Backend) -> None:
    for rng in examples(each):
        scene = Scene.random(rng)
        wrote = scene.write(each)
        checked = scene.verify(each)
        count = len(scene.entries())
        assert violations(wrote) == violations(checked) == []
        assert int(wrote["fault"]) == int(checked["fault"]) == 0
        for out in (wrote, checked):
            assert int(out["slot_run_counter"]) == count
            assert int(out["kernel_run_counter"]) == 1


def test_verify_changes_nothing_but_its_counters(each: Backend) -> None:
    for rng in examples(each):
        scene = Scene.random(rng)
        scene.write(each)
        scene.buf[rng.randrange(len(scene.buf))] ^= 255
        out = scene.verify(each)
        assert torch.equal(out["canary_buf"], scene.buf)
        rows = int(out["violation_write_index"])
        assert (out["violation_ring"][rows:] == -1).all()


def test_write_changes_only_the_rows_that_it_names(each: Backend) -> None:
    for rng in examples(each):
        scene = Scene.random(rng)
        before = scene.buf.clone()
        scene.write(each)
        named = {slot for slots in scene.slots for slot in slots}
        others = [slot for slot in range(len(before)) if slot not in named]
        assert torch.equal(scene.buf[others], before[others])
        assert torch.equal(scene.buf[:, 32:], before[:, 32:])


def test_any_flipped_byte_is_seen_at_its_slot_or_the_next(each: Backend) -> None:
    for rng in examples(each):
        scene = Scene.random(rng)
        scene.write(each)
        slots = rng.choice(scene.slots)
        place = rng.randrange(len(slots))
        byte = rng.randrange(32)
        scene.buf[slots[place], byte] ^= 1 << rng.randrange(8)
        want = {slots[place]: [TOKEN, POSITION, CHAIN, REAL_KV][byte // 8]}
        # The fingerprint is no part of the chain, the other three fields are.
        if byte < 24 and place + 1 < len(slots):
            want[slots[place + 1]] = CHAIN
        assert reasons(scene.verify(each)) == want


def test_a_flipped_kv_byte_is_seen_exactly_where_it_is_read(each: Backend) -> None:
    seen = set()
    for rng in examples(each):
        scene = Scene.random(rng)
        scene.write(each)
        if not scene.sources:
            continue
        source = rng.choice(scene.sources)
        slot = rng.choice(scene.slots[0])
        strip = source["num_bytes_per_token"]
        byte = rng.randrange(strip)
        row = source["tensor"][slot // source["page_size"]].view(torch.uint8)
        row[(slot % source["page_size"]) * strip + byte] ^= 1 << rng.randrange(8)
        read = [0, 16, source["read_bytes"]][scene.mode]
        want = {slot: REAL_KV} if byte < read else {}
        assert reasons(scene.verify(each)) == want
        seen.add(bool(want))
    assert seen == {True, False} or each.name == "triton"


def test_entries_are_independent_of_their_order(each: Backend) -> None:
    for rng in examples(each):
        scene = Scene.random(rng)
        scene.write(each)
        for _ in range(3):
            scene.buf[rng.randrange(len(scene.buf)), rng.randrange(32)] ^= 1
        entries = scene.entries()
        shuffled = rng.sample(entries, len(entries))
        cut = rng.randint(1, len(entries))
        whole = violations(scene.verify(each))
        assert violations(scene.verify(each, shuffled)) == whole
        halves = [part for part in (entries[:cut], entries[cut:]) if part]
        rows = [row for part in halves for row in violations(scene.verify(each, part))]
        assert sorted(rows) == whole


def test_requests_may_be_written_in_any_order(each: Backend) -> None:
    for rng in examples(each):
        scene = Scene.random(rng)
        start = scene.buf.clone()
        scene.write(each)
        written = scene.buf
        scene.buf = start
        parts = [(r, 0, len(slots)) for r, slots in enumerate(scene.slots)]
        scene.write(each, rng.sample(parts, len(parts)))
        assert torch.equal(scene.buf, written)


def test_a_request_may_be_written_in_chunks(each: Backend) -> None:
    """A later chunk, in the same launch or another, goes on from the seed's row."""
    for rng in examples(each):
        scene = Scene.random(rng)
        start = scene.buf.clone()
        scene.write(each)
        written = scene.buf
        for same_launch in (True, False):
            scene.buf = start
            heads = [(r, 0, rng.randint(1, len(slots))) for r, slots in enumerate(scene.slots)]
            tails = [(r, stop, len(scene.slots[r])) for r, _, stop in heads]
            launches = [heads + tails] if same_launch else [heads, tails]
            rows = [violations(scene.write(each, parts)) for parts in launches]
            assert not any(rows)
            assert torch.equal(scene.buf, written)


def test_a_ring_never_holds_more_than_its_rows(each: Backend) -> None:
    for rng in examples(each):
        scene = Scene.random(rng)
        entries = scene.entries()
        # Nothing was written: every entry fails one way or another.
        out = scene.verify(each, [(slot, -1, 77, prev) for slot, _, _, prev in entries])
        assert int(out["violation_write_index"]) == len(entries)
        assert len(violations(out)) == len(entries)


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(rng=st.randoms(use_true_random=False))
@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_a_plan_names_each_prefix_position_once(name: str, rng: Random) -> None:
    case = random_plan_case(rng, faults=False)
    inputs, out = case.inputs, case.run(get_backend(name))
    window = inputs["swa_window_size"] or 1 << 62
    rows = inputs["req_pool_indices"].tolist()
    prefixes = inputs["prefix_lens"].tolist()
    extends = inputs["extend_seq_lens"].tolist()
    wanted = [
        (r, position)
        for r, (row, prefix) in enumerate(zip(rows, prefixes, strict=True))
        for position in range(max(0, prefix - window), prefix)
        if row
    ]
    writes = [max(0, n) if row else 0 for row, n in zip(rows, extends, strict=True)]
    assert out["write_offsets"][: len(rows) + 1].diff().tolist() == writes
    assert not out["write_offsets"][len(rows) + 1 :].any()
    capacity = inputs["verify_capacity"]
    assert int(out["verify_num_valid"]) == min(len(wanted), capacity)
    assert int(out["enable"]) == (len(wanted) <= capacity)
    if int(out["enable"]):
        positions = out["verify_expected_positions"][: len(wanted)].tolist()
        assert positions == [position for _, position in wanted]
        prevs = out["verify_prev_slot_indices"][: len(wanted)].tolist()
        slots = out["verify_slot_indices"][: len(wanted)].tolist()
        for n, (r, position) in enumerate(wanted):
            if position == 0:
                assert prevs[n] == -1
            elif n and wanted[n - 1] == (r, position - 1):
                assert prevs[n] == slots[n - 1]
