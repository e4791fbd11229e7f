"""What goes from one stretch of a trace with gaps to the next, and what does not."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.replay.driver import Replay
from kvcanary_cli.replay.gaps import CARRIED, replay_stretches
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.trace.header import parse_header
from tests.attribution.events import HEAD, decode, life, numbered
from tests.replay.helpers import UNCHECKED, MemoryReader

Event = dict[str, Any]

# What a replay is made of, and its state of the pool: each stretch has its own.
OWN = frozenset(
    {
        "watcher", "header", "options", "is_cut", "capacities", "backend", "check_kv", "pool",
        "workers", "tiers", "incremental", "sweep_due", "_last_sweep", "_outer_steps", "_compiled",
        "_may_compile", "_capacity_limits", "_handlers", "_passive", "_kv",
        # Where it stopped: no stretch follows.
        "stopped_at_step", "unread_from_step",
    }
)  # fmt: skip


def test_every_attribute_is_carried_on_or_is_a_stretchs_own() -> None:
    """Who adds a count names it in ``CARRIED``, or it would begin anew behind each gap."""
    replay = Replay(parse_header(HEAD, "t"), ReplayOptions(backend="reference"))
    carried = set(CARRIED)
    assert len(carried) == len(CARRIED)
    assert not carried & OWN
    assert set(vars(replay)) == carried | OWN


@given(lost=st.sets(st.integers(1, 10), max_size=3), fed=st.integers(1, 40))
@settings(max_examples=25, deadline=None)
def test_counts_are_those_of_all_stretches(lost: set[int], fed: int) -> None:
    """Nothing but unknown events, which count as events alone, is left out."""
    events: list[Event] = life("A", [11, 12, 13], [1, 2, 3], row=1, step=1)
    for k in range(10):
        # A wrong token in each decode: every stretch has a violation of its own.
        grown = decode("A", 20 + k, 4 + k, row=1, position=3 + k, step=2 + k)
        grown[-1]["input_ids"] = [100 + fed]
        events += [{"kind": "note", "text": "x"}, *grown]
    whole = numbered(events)
    at = [e["i"] for e in whole if e["kind"] == "note"]
    gone = {at[k - 1] for k in lost}
    kept = [e for e in whole if e["i"] not in gone]

    def replayed(trace: list[Event]) -> Replay:
        reader = MemoryReader(HEAD, trace)
        options = ReplayOptions(backend="cpu")
        done = replay_stretches(reader, options, UNCHECKED, lambda _header: None)
        assert len(done.former) == (len(gone) if trace is kept else 0)
        return done.replay

    one, several = replayed(whole), replayed(kept)
    assert several.events == one.events - len(gone)
    for name in ("steps", "forwards", "checked_steps", "checked_forwards", "requests"):
        assert getattr(several, name) == getattr(one, name), name
