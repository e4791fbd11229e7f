"""Helper of the event kernel: numbers that tell what an event has looked at already."""

from __future__ import annotations

from kvcanary_cli.backends.cpu.event_state import State
from kvcanary_cli.backends.cpu.jit import helper
from kvcanary_cli.backends.cpu.memory import load_i64, store_i64

# They fit into 32 bits. After so many they come again, and an event that meets an old one by that
# chance goes the general path.
_STAMPS = (1 << 31) - 1
_STAMP = int(State.STAMP)


@helper
def next_stamp(state):  # type: ignore[no-untyped-def]
    """The number of another event, never 0."""
    stamp = load_i64(state, _STAMP) % _STAMPS + 1
    store_i64(state, _STAMP, stamp)
    return stamp
