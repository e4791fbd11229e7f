"""PerturbManager: five kinds of damage that the canary must notice (specification 5.10)."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from kvcanary_cli.abi.constants import PoolKind
from kvcanary_cli.canary.perturb_config import PerturbConfig, target_group_name
from kvcanary_cli.canary.prefix_walk import walk_prefix_cache

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from kvcanary_cli.canary.buffer_group import CanaryBufferGroup
    from kvcanary_cli.canary.forward_batch import ForwardBatch

logger = logging.getLogger("kvcanary.canary")

_NO_BATCH = "maybe_inaccurate_forward_batch is unavailable"


class PerturbManager:
    """Damages the request table, real-KV bytes or sampled tokens, at most once each per step.

    All draws come from one seeded generator, so a run can be repeated.
    """

    def __init__(
        self,
        *,
        config: PerturbConfig,
        groups: Sequence[CanaryBufferGroup],
        req_to_token: torch.Tensor,
        swa_window_size: int = 0,
        sweep_interval: int = 0,
        seed: int = 0,
    ) -> None:
        """
        Args:
            config: Probabilities.
            groups: Their K sources are live views whose bytes get inverted.
            req_to_token: [rows, row_len] int32 request table, changed in place.
            swa_window_size: Window of the SWA group, in tokens.
            sweep_interval: Outer steps between sweeps; 0 switches real_kv_unused_cache off.
            seed: Of the generator.
        """
        self._config = config
        self._groups = tuple(groups)
        self._table = req_to_token
        self._window = swa_window_size
        self._sweep_interval = sweep_interval
        self._random = random.Random(seed)
        self._said_disabled = False
        self._said_enabled = False
        self._sampler_step = 0

    def before_forward(
        self, outer_step: int, batch: ForwardBatch | None, prefix_index: object | None = None
    ) -> None:
        """req_to_token, then real_kv_used, then real_kv_unused_cache."""
        config = self._config
        if self._draw(config.req_to_token_prob, outer_step):
            self._req_to_token(batch)
        if self._draw(config.real_kv_used_prob, outer_step):
            self._real_kv_used(batch)
        interval = self._sweep_interval
        if (
            interval > 0
            and outer_step % interval == 0
            and self._draw(config.real_kv_unused_cache_prob, outer_step)
        ):
            self._real_kv_unused_cache(prefix_index)

    def after_forward(self, outer_step: int, batch: ForwardBatch | None) -> None:
        """real_kv_post_forward; runs before the sweep."""
        if not self._draw(self._config.real_kv_post_forward_prob, outer_step):
            return
        name = "real_kv_post_forward"
        if batch is None:
            self._skip(name, _NO_BATCH)
            return
        written = [slot for slot in batch.out_cache_loc.tolist() if slot > 0]
        if not written:
            self._skip(name, "maybe_inaccurate_forward_batch.out_cache_loc had no valid slot")
            return
        self._flip(name, self._random.choice(written))

    def swap_next_tokens(self, tokens: torch.Tensor) -> None:
        """Exchange two requests' sampled tokens in place; [bs], bs >= 2 to have an effect.

        Called by the sampler, with a step counter of its own.
        """
        step, self._sampler_step = self._sampler_step, self._sampler_step + 1
        if tokens.shape[0] < 2 or not self._draw(self._config.next_token_swap_prob, step):
            return
        i, j = self._random.sample(range(int(tokens.shape[0])), 2)
        tokens[[i, j]] = tokens[[j, i]]
        logger.info(f"kv_canary perturb next_token_swap: swapped i={i} j={j} step={step}")

    def _draw(self, probability: float, step: int) -> bool:
        if probability <= 0:
            return False
        if step < self._config.warmup_steps:
            if not self._said_disabled:
                self._said_disabled = True
                logger.info(
                    "kv_canary perturb: disabled during warmup window "
                    f"(first {self._config.warmup_steps} forward steps)"
                )
            return False
        if not self._said_enabled:
            self._said_enabled = True
            logger.info(f"kv_canary perturb: enabled after warmup window at step={step}")
        return self._random.random() < probability

    def _skip(self, name: str, why: str) -> None:
        logger.info(f"kv_canary perturb {name}: skipped because {why}")

    def _live_cells(self, batch: ForwardBatch, window: int = 0) -> list[tuple[int, int, int]]:
        """(row, position, slot) of the batch's live cells that hold a slot which this forward
        does not write; with a window only those inside it."""
        written = set(batch.out_cache_loc.tolist())
        cells: list[tuple[int, int, int]] = []
        rows, lens = batch.req_pool_indices.tolist(), batch.seq_lens.tolist()
        for row, length in zip(rows, lens, strict=True):
            if row == 0:
                continue
            slots = self._table[row, : max(0, length)].tolist()
            start = max(0, length - window) if window > 0 else 0
            cells.extend(
                (row, position, slot)
                for position, slot in enumerate(slots[start:], start)
                if slot >= 1 and slot not in written
            )
        return cells

    def _req_to_token(self, batch: ForwardBatch | None) -> None:
        name = "req_to_token"
        if batch is None:
            self._skip(name, _NO_BATCH)
            return
        cells = self._live_cells(batch)
        if not cells:
            self._skip(name, "no active nonzero slots were found")
            return
        row, position, original = self._random.choice(cells)
        others = sorted({slot for _, _, slot in cells} - {original})
        if not others:
            self._skip(name, f"no replacement slot differs from original_slot={original}")
            return
        replacement = self._random.choice(others)
        self._table[row, position] = replacement
        logger.info(
            f"kv_canary perturb req_to_token: req_pool_idx={row} position={position} "
            f"original_slot={original} new_slot={replacement}"
        )

    def _real_kv_used(self, batch: ForwardBatch | None) -> None:
        name = "real_kv_used"
        if batch is None:
            self._skip(name, _NO_BATCH)
            return
        kind = self._config.required_target_group()
        cells = self._live_cells(batch, self._window if kind is PoolKind.SWA else 0)
        if not cells:
            self._skip(name, f"no active slot was found for group={target_group_name(kind)}")
            return
        self._flip(name, self._random.choice(cells)[2])

    def _real_kv_unused_cache(self, prefix_index: object | None) -> None:
        name = "real_kv_unused_cache"
        kind = self._config.required_target_group()
        slots: list[int] = []
        if prefix_index is not None:
            slots = walk_prefix_cache(
                prefix_index, unlocked_only=True, swa_resident_only=kind is PoolKind.SWA
            ).slots
        if not slots:
            self._skip(name, f"no orphan sweep slot was found for group={target_group_name(kind)}")
            return
        self._flip(name, self._random.choice(slots))

    def _flip(self, name: str, full_slot: int) -> None:
        """Invert byte 0 of the slot's strip in one K source of the target group."""
        kind = self._config.required_target_group()
        label = target_group_name(kind)
        group = next((g for g in self._groups if g.kind is kind), None)
        if group is None:
            self._skip(name, f"no target group matched target_group_kind={label} slot={full_slot}")
            return
        sources = group.real_kv_sources_k
        if not sources:
            self._skip(
                name,
                f"no target group with real_kv_sources_k matched target_group_kind={label}",
            )
            return
        slot = full_slot
        if group.swa_index_lut is not None:
            inside = full_slot < int(group.swa_index_lut.shape[0])
            slot = int(group.swa_index_lut[full_slot]) if inside else -1
        index = self._random.randrange(len(sources))
        source = sources[index]
        row = slot // source.page_size
        col = slot % source.page_size * source.num_bytes_per_token
        if slot <= 0 or row >= int(source.tensor.shape[0]):
            self._skip(
                name,
                f"slot={full_slot} could not be mapped into group={label} source_idx={index}",
            )
            return
        import torch

        strip = source.tensor.view(torch.uint8)[row]
        old = int(strip[col])
        strip[col] = old ^ 0xFF
        logger.info(
            f"kv_canary perturb {name}: group={label} source_idx={index} slot={slot} row={row} "
            f"col={col} original_byte=0x{old:02X} new_byte=0x{old ^ 0xFF:02X}"
        )
