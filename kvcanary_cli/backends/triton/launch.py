"""What the launchers share: grid sizes, block sizes, fault cells, the view of a canary buffer."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import torch
import triton

from kvcanary_cli.abi.constants import SLOT_BYTES
from kvcanary_cli.abi.faults import new_fault_cell, raise_on_fault
from kvcanary_cli.backends.triton.mix import mix

if TYPE_CHECKING:
    from collections.abc import Iterator

WORD_BYTES = 8

INTERPRETED = not isinstance(mix, triton.JITFunction)
"""Whether the kernels of this process run in Triton's interpreter; fixed when they are imported."""

# Enough programs of 256 threads to fill every multiprocessor (2048 threads each).
_PROGRAMS_PER_MULTIPROCESSOR = 8

# The interpreter runs programs one after another and pays per operation, not per lane. Two
# programs and small blocks still make every loop over blocks turn.
_INTERPRETER_PROGRAMS = 2


def block_lanes(compiled: int, interpreted: int) -> int:
    """Lanes of a block: what suits the device, or what suits the interpreter."""
    return interpreted if INTERPRETED else compiled


@cache
def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def persistent_grid(device: torch.device, lanes: int, block: int) -> tuple[int]:
    """Programs of a grid-stride loop over at most ``lanes`` lanes.

    Depends on shapes and on the device only, never on data, so that a captured launch fits every
    later batch.
    """
    programs = _INTERPRETER_PROGRAMS
    if device.type != "cpu":
        programs = _multiprocessors(device) * _PROGRAMS_PER_MULTIPROCESSOR
    return (max(1, min(programs, triton.cdiv(lanes, block))),)


def canary_words(canary_buf: torch.Tensor) -> torch.Tensor:
    """View [num_slots, stride] uint8 as [num_slots, stride / 8] int64.

    Raises:
        ValueError: The buffer does not start on an 8-byte boundary.
    """
    if canary_buf.data_ptr() % WORD_BYTES or canary_buf.storage_offset() % WORD_BYTES:
        raise ValueError(
            "kv-canary: canary_buf must start on an 8-byte boundary, got address "
            f"{canary_buf.data_ptr():#x}; allocate it on its own, rows of {SLOT_BYTES} bytes"
        )
    return canary_buf.view(torch.int64)


@contextmanager
def fault_cell(
    given: torch.Tensor | None, device: torch.device, **sizes: int
) -> Iterator[torch.Tensor]:
    """Yield the cell that a launch records faults in; read our own back where none was given.

    Raises:
        ValueError: A fault, if no cell was given (``raise_on_fault``). This synchronises.
    """
    if given is not None:
        yield given
        return
    own = new_fault_cell(device)
    yield own
    raise_on_fault(own, **sizes)
