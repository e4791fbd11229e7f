"""Random cases for plan, verify, write, the fingerprint and the scatter.

``random_<op>_case(rng)`` takes a ``random.Random`` (Hypothesis' ``st.randoms()`` serves too) and
returns a ``Case``: the operation's name and its inputs in the form of the golden files. Every call
of ``Case.run`` works on fresh copies, so one case is run on as many backends as wanted:

    case = random_verify_case(random.Random(7))
    expected = case.run(ReferenceBackend())
    assert case.difference(expected, case.run(backend), in_order=False) is None

Cases are small (some ten slots, entries and tokens) but cover what the specification varies: chains
that hold and chains that don't, 40 and 48 byte strides, several real-KV sources, windows, tables,
overflow, faults, duplicates, extreme integers. ``shrink`` makes a failing case smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kvcanary_cli.abi.constants import CHAIN_HEAD_HASH, RealKvHashMode
from kvcanary_cli.backends.reference.faults import FaultLog
from kvcanary_cli.backends.reference.hashes import chain_step, to_signed
from kvcanary_cli.backends.reference.real_kv import real_kv_hash_of_slot
from tests.tools.canary_ops import Inputs, Outputs, first_difference, make_sources, run_op

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from kvcanary_cli.backends.interface import Backend

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
EXTREMES = (INT64_MIN, INT64_MIN + 1, -(1 << 31), -1, 0, 1, (1 << 31), INT64_MAX - 1, INT64_MAX)


@dataclass(frozen=True)
class Case:
    """One operation and its inputs; nothing in it is ever changed."""

    op: str
    inputs: Inputs

    def run(self, backend: Backend) -> Outputs:
        """Outputs on the CPU, with the launch's fault cell as ``fault``."""
        return run_op(backend, self.op, self.inputs)

    def difference(self, want: Outputs, got: Outputs, *, in_order: bool = True) -> str | None:
        """See ``first_difference``."""
        return first_difference(self.op, self.inputs, want, got, in_order=in_order)

    def __str__(self) -> str:
        lines = [f"{self.op} of"]
        for name, value in self.inputs.items():
            shown = value.tolist() if torch.is_tensor(value) else value
            lines.append(f"  {name} = {shown!r}")
        return "\n".join(lines)


def random_plan_case(rng: Random, *, faults: bool = True) -> Case:
    """A plan over a small request table; ``faults`` allows rows that are out of range."""
    rows, row_len, bs = rng.randint(2, 6), rng.randint(1, 12), rng.randint(0, 6)
    lut_len = rng.choice([None, None, rng.randint(1, 24)])
    max_slot = 30 if lut_len is None or (faults and rng.random() < 0.2) else lut_len - 1
    table = _ints(rng, rows * row_len, -1 if rng.random() < 0.3 else 0, max_slot)
    req = [rng.choice([0, *range(1, rows), *range(1, rows)]) for _ in range(bs)]
    prefix = _ints(rng, bs, 0, row_len)
    extend = [rng.choice([0, 1, 1, 2, 5, -1, -3]) for _ in range(bs)]
    if faults and rng.random() < 0.2:
        _poke(rng, req, [-1, rows, rows + 7, *EXTREMES])
        _poke(rng, prefix, [-1, row_len + 1, *EXTREMES])
    pool, valid_lens = _token_pool(rng, rows, bs, row_len)
    return Case(
        "plan",
        {
            "req_pool_indices": _i64(req),
            "prefix_lens": _i64(prefix),
            "extend_seq_lens": _i64(extend),
            "req_to_token": torch.tensor(table, dtype=torch.int32).view(rows, row_len),
            "swa_window_size": rng.choice([0, 0, 1, 2, 5, row_len, 1 << 40]),
            "full_to_swa_index_mapping": (
                None if lut_len is None else _i64([*_ints(rng, lut_len - 1, 0, 9), -1])
            ),
            "verify_capacity": rng.choice([bs * row_len + 1, rng.randint(1, 20)]),
            "write_req_capacity": max(1, bs + rng.choice([0, 0, 1, 4])),
            "req_to_verify_expected_tokens": pool,
            "req_to_verify_expected_tokens_valid_lens": valid_lens,
            "kv_token_id_vs_position_offset": rng.choice([0, 0, 1, 2, -1, 100]),
        },
    )


def _token_pool(
    rng: Random, rows: int, bs: int, row_len: int
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if rng.random() < 0.5:
        return None, None
    width = rng.randint(1, row_len + 3)
    wide = rng.random() < 0.5
    tokens = [_token(rng) if wide else rng.randint(-2, 2**31 - 1) for _ in range(rows * width)]
    pool = torch.tensor(tokens, dtype=torch.int64 if wide else torch.int32).view(rows, width)
    # A request's ids may outgrow the pool's row (1.14); a negative length holds nothing.
    return pool, _i64([rng.choice([0, 1, width, width + 2, -1, row_len]) for _ in range(bs)])


def random_verify_case(rng: Random, *, faults: bool = True) -> Case:
    """A verify launch over chains that mostly hold, with some cells spoilt."""
    num_slots = rng.randint(2, 14)
    sources = random_sources(rng, num_slots, faults=faults)
    mode = rng.choice(list(RealKvHashMode))
    chains = [_Chain(rng, num_slots) for _ in range(rng.randint(1, 3))]
    words = _rows_of_chains(rng, chains, num_slots, sources, mode)
    entries = [entry for chain in chains for entry in chain.entries()]
    if entries and rng.random() < 0.3:
        entries += rng.choices(entries, k=2)
    for entry in entries:
        entry[1] = rng.choice([-1, entry[1], entry[1], _token(rng)])
        if rng.random() < 0.1:
            entry[3] = rng.choice([0, -1, -9, rng.randrange(num_slots)])
        if rng.random() < 0.1:
            entry[2] = rng.choice([to_signed(entry[2] + 1), *EXTREMES])
        if faults and rng.random() < 0.04:
            entry[0] = rng.choice([-1, num_slots, num_slots + 3, INT64_MIN, INT64_MAX])
        if faults and rng.random() < 0.04:
            entry[3] = rng.choice([num_slots, num_slots + 3, INT64_MAX])
        if rng.random() < 0.05:
            entry[0] = 0
    capacity = max(1, len(entries) + rng.choice([0, 0, 2]))
    entries += [[rng.randint(-3, 3) for _ in range(4)] for _ in range(capacity - len(entries))]
    slots, tokens, positions, prevs = (_i64([entry[f] for entry in entries]) for f in range(4))
    num_valid = rng.choice([capacity, capacity, rng.randint(0, capacity), capacity + 9, -1])
    return Case(
        "verify",
        {
            **_context(rng, words, sources, mode),
            "verify_slot_indices": slots,
            "verify_expected_tokens": tokens,
            "verify_expected_positions": positions,
            "verify_prev_slot_indices": prevs,
            "verify_num_valid": _i32(num_valid),
            "enable": _i32(rng.choice([1, 1, 1, 1, 2, -1, 0])),
            "check_verify_expected_token": rng.random() < 0.6,
        },
    )


def random_write_case(rng: Random, *, faults: bool = True, independent: bool = False) -> Case:
    """A write launch; ``independent`` keeps each request off every other's slots and seed."""
    num_slots = rng.randint(3, 20)
    sources = random_sources(rng, num_slots, faults=faults)
    mode = rng.choice(list(RealKvHashMode))
    chains = [_Chain(rng, num_slots)]
    words = _rows_of_chains(rng, chains, num_slots, sources, mode)
    free = rng.sample(range(num_slots), num_slots)
    lens, seeds, locs, positions = [], [], [], []
    for _ in range(rng.randint(0, 5)):
        count = min(rng.choice([0, 1, 1, 2, 6]), max(0, len(free) - 1))
        seed = rng.choice([-1, -1, -4, free.pop() if free else -1])
        if not independent and rng.random() < 0.3:
            seed = rng.randrange(num_slots)
        start = words[seed][1] + 1 if seed >= 0 else rng.choice([0, 0, 7, INT64_MAX - 2])
        lens.append(count)
        seeds.append(seed)
        locs += [free.pop() for _ in range(count)]
        positions += [to_signed(start + i) for i in range(count)]
    for i in range(len(locs)):
        if rng.random() < 0.1:
            locs[i] = rng.choice([-1, -1, INT64_MIN])
        if not independent and rng.random() < 0.15:
            locs[i] = rng.choice([0, rng.randrange(num_slots)])
        if faults and rng.random() < 0.03:
            locs[i] = rng.choice([num_slots, num_slots + 5, INT64_MAX])
        if rng.random() < 0.1:
            positions[i] = rng.choice([positions[i] ^ 1, *EXTREMES])
    if faults and seeds and rng.random() < 0.1:
        _poke(rng, seeds, [num_slots, num_slots + 5, INT64_MAX])
    offsets = [sum(lens[:r]) for r in range(len(lens) + 1)]
    spare = rng.choice([0, 0, 3]) if lens else 1
    offsets += [0] * spare
    if faults and rng.random() < 0.12:
        _poke(rng, offsets, [-1, -3, len(locs) + 1, len(locs) + 6, INT64_MIN, INT64_MAX])
    num_tokens = len(locs) + rng.choice([0, 0, 3])
    locs += [rng.randint(-1, num_slots - 1) for _ in range(num_tokens - len(locs))]
    positions += [0] * (num_tokens - len(positions))
    ids = [_token(rng) for _ in range(num_tokens)]
    check = rng.random() < 0.4
    capacity = len(lens) + spare
    return Case(
        "write",
        {
            **_context(rng, words, sources, mode),
            "write_offsets": _i64(offsets),
            "write_seed_slot_indices": _i64(seeds + [-1] * spare),
            "write_num_valid_reqs": _i32(
                rng.choice([capacity, capacity, rng.randint(0, capacity), capacity + 4, -2])
            ),
            "input_ids": _i64(ids),
            "positions": _i64(positions),
            "out_cache_loc": _i64(locs),
            "enable_chain_position_assert": _i32(rng.choice([0, 1, 1, 5])),
            "enable_write_input_assert": check,
            "expected_input_tokens": _i64(_mostly(rng, ids)) if check else None,
            "expected_input_positions": _i64(_mostly(rng, positions)) if check else None,
        },
    )


def random_real_kv_case(rng: Random, *, faults: bool = True) -> Case:
    """A free-standing fingerprint launch."""
    num_slots = rng.randint(1, 12)
    slots = _ints(rng, rng.randint(0, 6), 0, num_slots - 1)
    if faults and rng.random() < 0.3:
        _poke(rng, slots, [-1, num_slots + 99, INT64_MIN, INT64_MAX])
    return Case(
        "real_kv_hash",
        {
            "slots": _i64(slots),
            "real_kv_sources": random_sources(rng, num_slots, faults=faults),
            "real_kv_hash_mode": int(rng.choice(list(RealKvHashMode))),
        },
    )


def random_scatter_case(rng: Random, *, duplicates: bool = True) -> Case:
    """A scatter; ``duplicates`` allows one row twice in a batch (the later request wins)."""
    rows, width, bs = rng.randint(1, 7), rng.randint(1, 6), rng.randint(0, 6)
    lens = [rng.choice([0, 1, 2, width, width + 3]) for _ in range(bs)]
    indices = _ints(rng, bs, -1, rows)
    if not duplicates:
        indices = rng.sample(range(-1, max(rows, bs) + 1), bs)
    return Case(
        "scatter",
        {
            "flat_in": _i64([_token(rng) for _ in range(sum(lens) + rng.choice([0, 2]))]),
            "offsets": _i64([sum(lens[:r]) for r in range(bs + 1)]),
            "req_pool_indices": _i64(indices),
            "pool_out": torch.full((rows, width), -5, dtype=torch.int32),
        },
    )


RANDOM_CASES: dict[str, Callable[[Random], Case]] = {
    "plan": random_plan_case,
    "verify": random_verify_case,
    "write": random_write_case,
    "real_kv_hash": random_real_kv_case,
    "scatter": random_scatter_case,
}


def random_sources(rng: Random, num_slots: int, *, faults: bool = True) -> list[dict[str, Any]]:
    """0 to 4 real-KV sources in golden form: dtypes, page sizes, wide rows, wide strides."""
    sources = []
    for _ in range(rng.choice([0, 0, 1, 1, 2, 4])):
        dtype = rng.choice([torch.uint8, torch.int8, torch.bfloat16, torch.float16, torch.float32])
        item = torch.empty(0, dtype=dtype).element_size()
        page = rng.choice([1, 1, 2, 4, 16])
        strip = rng.choice([16, 32, 48])
        width = page * strip + rng.choice([0, 0, 16])
        stride = width + rng.choice([0, 0, 16, 64])
        rows = -(-num_slots // page)
        if faults and rng.random() < 0.1:
            rows = rng.randint(1, rows)
        data = torch.zeros(rows * stride, dtype=torch.uint8)
        if rng.random() > 0.1:
            # One draw for all bytes: what they are is of no interest to whoever shrinks a case.
            generator = torch.Generator().manual_seed(rng.randrange(1 << 32))
            data = torch.randint(256, (rows * stride,), dtype=torch.uint8, generator=generator)
        sources.append(
            {
                "tensor": data.view(rows, stride).view(dtype)[:, : width // item],
                "page_size": page,
                "num_bytes_per_token": strip,
                "read_bytes": rng.choice(range(16, strip + 1, 16)),
            }
        )
    return sources


class _Chain:
    """A request's slots in order with the tokens and positions that it wrote there."""

    def __init__(self, rng: Random, num_slots: int) -> None:
        self.slots = rng.sample(range(num_slots), rng.randint(1, min(6, num_slots)))
        self.tokens = [_token(rng) for _ in self.slots]
        self.start = rng.choice([0, 0, 0, 5, -1, INT64_MAX - 1])

    def entries(self) -> Iterator[list[int]]:
        """Verify entries: slot, token, position, predecessor."""
        prev = -1
        for i, slot in enumerate(self.slots):
            yield [slot, self.tokens[i], to_signed(self.start + i), prev]
            prev = slot


def _rows_of_chains(
    rng: Random,
    chains: list[_Chain],
    num_slots: int,
    sources: list[dict[str, Any]],
    mode: RealKvHashMode,
) -> list[list[int]]:
    """Canary rows as four int64 each: chains written in turn, then some cells spoilt."""
    words = [[0] * 4 for _ in range(num_slots)]
    bound = make_sources(sources, "cpu")
    for chain in chains:
        h = CHAIN_HEAD_HASH
        for i, slot in enumerate(chain.slots):
            token, position = chain.tokens[i], to_signed(chain.start + i)
            kv_hash = real_kv_hash_of_slot(slot, bound, mode, FaultLog())
            words[slot] = [token, position, to_signed(h), to_signed(kv_hash)]
            h = chain_step(h, token, position)
    for row in words:
        if rng.random() < 0.12:
            row[rng.randrange(4)] = rng.choice(EXTREMES)
    return words


def _context(
    rng: Random, words: list[list[int]], sources: list[dict[str, Any]], mode: RealKvHashMode
) -> Inputs:
    stride = rng.choice([32, 32, 40, 48])
    pad = [rng.choice(EXTREMES) for _ in range((stride - 32) // 8)]
    capacity = rng.choice([32, 32, 3, 1, 0])
    return {
        "canary_buf": _i64([row + pad for row in words]).view(torch.uint8),
        "kernel_kind": rng.randrange(12),
        "violation_ring": torch.full((capacity, 8), -3, dtype=torch.int64),
        "violation_write_index": _i32(rng.choice([0, 0, 0, 1, 2, 40])),
        "slot_run_counter": _i64([rng.choice([0, 100, 1 << 40])]),
        "kernel_run_counter": _i64([rng.choice([0, 5])]),
        "real_kv_sources": sources,
        "real_kv_hash_mode": int(mode),
    }


def _token(rng: Random) -> int:
    return rng.choice([rng.randint(0, 50), rng.randint(0, 50), rng.choice(EXTREMES)])


def _mostly(rng: Random, values: list[int]) -> list[int]:
    return [rng.choice(EXTREMES) if rng.random() < 0.15 else value for value in values]


def _ints(rng: Random, count: int, low: int, high: int) -> list[int]:
    return [rng.randint(low, max(low, high)) for _ in range(count)]


def _poke(rng: Random, values: list[int], choices: list[int]) -> None:
    """Replace one value, if there is one."""
    if values:
        values[rng.randrange(len(values))] = rng.choice(choices)


def _i64(values: list[Any]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _i32(value: int) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.int32)


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The smallest case found by dropping entries, requests and sources one at a time."""
    while True:
        for smaller in _smaller(case):
            if fails(smaller):
                case = smaller
                break
        else:
            return case


def _smaller(case: Case) -> Iterator[Case]:
    inputs = case.inputs

    def changed(**changes: Any) -> Case:
        return Case(case.op, {**inputs, **changes})

    sources = inputs.get("real_kv_sources", [])
    for i in range(len(sources)):
        yield changed(real_kv_sources=sources[:i] + sources[i + 1 :])
    if case.op == "plan":
        yield from _without_index(case, _PLAN_VECTORS)
    elif case.op == "verify":
        yield from _without_index(case, _VERIFY_VECTORS)
    elif case.op == "real_kv_hash":
        yield from _without_index(case, ("slots",))
    elif case.op == "write":
        # Tokens are hidden rather than cut out, which keeps the offsets as they are.
        for i in torch.nonzero(inputs["out_cache_loc"] >= 0).flatten().tolist():
            locs = inputs["out_cache_loc"].clone()
            locs[i] = -1
            yield changed(out_cache_loc=locs)


_PLAN_VECTORS = (
    "req_pool_indices",
    "prefix_lens",
    "extend_seq_lens",
    "req_to_verify_expected_tokens_valid_lens",
)
_VERIFY_VECTORS = (
    "verify_slot_indices",
    "verify_expected_tokens",
    "verify_expected_positions",
    "verify_prev_slot_indices",
)


def _without_index(case: Case, names: tuple[str, ...]) -> Iterator[Case]:
    vectors = {n: case.inputs[n] for n in names if case.inputs[n] is not None}
    length = next(iter(vectors.values())).shape[0]
    for i in range(length):
        kept = {n: torch.cat([v[:i], v[i + 1 :]]) for n, v in vectors.items()}
        yield Case(case.op, {**case.inputs, **kept})
