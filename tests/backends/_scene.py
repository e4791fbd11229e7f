"""A small consistent world: requests whose tokens a backend has written, to be spoilt by a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tests.backends._cases import random_sources
from tests.tools.canary_ops import Inputs, Outputs, run_op

if TYPE_CHECKING:
    from random import Random

    from kvcanary_cli.backends.interface import Backend

Entry = tuple[int, int, int, int]
"""Slot, expected token, position, predecessor."""


@dataclass(kw_only=True)
class Scene:
    """Requests that own disjoint slots, and the canary buffer of their pool.

    Attributes:
        slots: Per request its slots in order of position.
        tokens: Per request its tokens.
        sources: Real-KV sources in golden form.
        mode: Real-KV hash mode.
        buf: [num_slots, stride] uint8.
    """

    slots: list[list[int]]
    tokens: list[list[int]]
    sources: list[dict[str, Any]]
    mode: int
    buf: torch.Tensor = field(repr=False)

    @classmethod
    def random(cls, rng: Random) -> Scene:
        """Up to four requests of up to five tokens, nothing written yet."""
        lens = [rng.randint(1, 5) for _ in range(rng.randint(1, 4))]
        num_slots = sum(lens) + rng.randint(1, 5)
        free = rng.sample(range(1, num_slots), sum(lens))
        stride = rng.choice([32, 40, 48])
        generator = torch.Generator().manual_seed(rng.randrange(1 << 32))
        size = (num_slots, stride)
        buf = torch.randint(256, size, dtype=torch.uint8, generator=generator)
        return cls(
            slots=[[free.pop() for _ in range(n)] for n in lens],
            tokens=[[rng.randint(0, 1 << 40) for _ in range(n)] for n in lens],
            sources=random_sources(rng, num_slots, faults=False),
            mode=rng.randint(0, 2),
            buf=buf,
        )

    def entries(self) -> list[Entry]:
        """One verify entry for each token of each request."""
        found = []
        for slots, tokens in zip(self.slots, self.tokens, strict=True):
            prevs = [-1, *slots[:-1]]
            found += list(zip(slots, tokens, range(len(slots)), prevs, strict=True))
        return found

    def context(self) -> Inputs:
        return {
            "canary_buf": self.buf,
            "kernel_kind": 2,
            "violation_ring": torch.full((256, 8), -1),
            "violation_write_index": torch.zeros(1, dtype=torch.int32),
            "slot_run_counter": torch.zeros(1, dtype=torch.int64),
            "kernel_run_counter": torch.zeros(1, dtype=torch.int64),
            "real_kv_sources": self.sources,
            "real_kv_hash_mode": self.mode,
        }

    def write(self, backend: Backend, parts: list[tuple[int, int, int]] | None = None) -> Outputs:
        """Write tokens [start, stop) of requests in one launch and keep the buffer.

        Args:
            parts: (request, start, stop) each; default all requests from their start.
        """
        if parts is None:
            parts = [(r, 0, len(slots)) for r, slots in enumerate(self.slots)]
        offsets, seeds = [0], []
        ids: list[int] = []
        positions: list[int] = []
        locs: list[int] = []
        for r, start, stop in parts:
            ids += self.tokens[r][start:stop]
            positions += range(start, stop)
            locs += self.slots[r][start:stop]
            offsets.append(len(ids))
            seeds.append(self.slots[r][start - 1] if start else -1)
        inputs = {
            **self.context(),
            "write_offsets": torch.tensor(offsets),
            "write_seed_slot_indices": torch.tensor(seeds),
            "write_num_valid_reqs": torch.tensor([len(seeds)], dtype=torch.int32),
            "input_ids": torch.tensor(ids, dtype=torch.int64),
            "positions": torch.tensor(positions, dtype=torch.int64),
            "out_cache_loc": torch.tensor(locs, dtype=torch.int64),
            "enable_chain_position_assert": torch.ones(1, dtype=torch.int32),
            "enable_write_input_assert": False,
            "expected_input_tokens": None,
            "expected_input_positions": None,
        }
        out = run_op(backend, "write", inputs)
        self.buf = out["canary_buf"]
        return out

    def verify(self, backend: Backend, entries: list[Entry] | None = None) -> Outputs:
        """Verify entries (default all) with the token compare on; the buffer is kept as it is."""
        columns = torch.tensor(self.entries() if entries is None else entries).T.contiguous()
        inputs = {
            **self.context(),
            "verify_slot_indices": columns[0],
            "verify_expected_tokens": columns[1],
            "verify_expected_positions": columns[2],
            "verify_prev_slot_indices": columns[3],
            "verify_num_valid": torch.tensor([columns.shape[1]], dtype=torch.int32),
            "enable": torch.ones(1, dtype=torch.int32),
            "check_verify_expected_token": True,
        }
        return run_op(backend, "verify", inputs)


def violations(out: Outputs) -> list[tuple[int, ...]]:
    """Rows of the ring that a launch filled, sorted."""
    rows = out["violation_ring"][: int(out["violation_write_index"])]
    return sorted(map(tuple, rows.tolist()))


def reasons(out: Outputs) -> dict[int, int]:
    """Fail bits by slot."""
    return {row[1]: row[7] for row in violations(out)}
