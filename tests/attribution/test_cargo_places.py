"""Copies are looked up by what a reader misses: a transfer may have as many as it damaged slots."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.attribution.cargo import UNKNOWN_CONTENT, Cargo, Cargos
from kvcanary_cli.attribution.context import Window
from kvcanary_cli.attribution.ledger import NEVER

_REQ = 7
_SLOTS = st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True)


def _cargo(
    event: int,
    dst: list[int],
    positions: list[int],
    window: Window | None = None,
    meant: dict[int, int] | None = None,
) -> Cargo:
    count = len(dst)
    slots = np.array(dst, dtype=np.int64)
    return Cargo(
        event=event,
        senders=np.full(count, _REQ, dtype=np.int32),
        reqs=frozenset({_REQ}),
        transfer=None if window is None else window.key,
        window=window,
        key=None,
        begun=NEVER,
        pool="host",
        src=slots,
        dst=slots,
        came=np.full(count, NEVER, dtype=np.int64),
        tokens=np.full(count, UNKNOWN_CONTENT, dtype=np.int64),
        positions=np.array(positions, dtype=np.int64),
        writers=np.full(count, _REQ, dtype=np.int32),
        owners=np.full(count, _REQ, dtype=np.int32),
        stray=np.zeros(count, dtype=np.bool_),
        outside=np.zeros(count, dtype=np.bool_) if window is None else ~window.names(slots),
        over=np.zeros(count, dtype=np.bool_),
        waiting=np.empty(0, dtype=np.int64),
        meant=meant or {},
    )


@st.composite
def _copies(draw: st.DrawFn) -> list[Cargo]:
    out = []
    for event in range(draw(st.integers(1, 8))):
        dst = draw(_SLOTS)
        place = st.integers(UNKNOWN_CONTENT, 5)
        positions = draw(st.lists(place, min_size=len(dst), max_size=len(dst)))
        named = draw(st.none() | _SLOTS)
        window = None if named is None else Window("T", 0, np.array(named, dtype=np.int64))
        meant = draw(st.dictionaries(st.integers(1, 12), st.just(0), max_size=1))
        out.append(_cargo(event, dst, positions, window, meant))
    return out


@given(
    copies=_copies(),
    slot=st.integers(1, 12),
    position=st.integers(0, 5),
    since=st.integers(NEVER, 8),
    asked_at=st.integers(0, 8),
)
@settings(max_examples=100, deadline=None)
def test_no_copy_that_may_matter_is_left_out(
    copies: list[Cargo], slot: int, position: int, since: int, asked_at: int
) -> None:
    """Those that brought the position, that a fork meant for the slot, or that do not tell."""
    cargos = Cargos()
    for k, cargo in enumerate(copies):
        if k == asked_at:
            # What was found before the next copy is of no use behind it.
            list(cargos.made_for([_REQ], NEVER, slot, position))
        cargos.add(cargo)
    want = [
        cargo.event
        for cargo in reversed(copies)
        if cargo.event > since
        and (
            position in cargo.positions
            or slot in cargo.meant
            or (cargo.outside & (cargo.positions == UNKNOWN_CONTENT)).any()
        )
    ]
    assert [c.event for c in cargos.made_for([_REQ, 8], since, slot, position)] == want


def test_of_many_copies_only_the_one_that_matters_is_looked_at() -> None:
    cargos = Cargos()
    window = Window("T", 0, np.arange(1, 16001, dtype=np.int64))
    for event in range(1000):
        at = list(range(16 * event, 16 * event + 16))
        cargos.add(_cargo(event, [slot + 1 for slot in at], at, window))
    for position in (0, 5000, 15999):
        (found,) = cargos.made_for([_REQ], NEVER, 20000, position)
        assert found.event == position // 16
    assert not list(cargos.made_for([_REQ], NEVER, 20000, 16000))


@given(named=_SLOTS, slots=st.lists(st.integers(0, 14)))
@settings(max_examples=50, deadline=None)
def test_a_transfer_names_its_slots_in_any_order(named: list[int], slots: list[int]) -> None:
    window = Window("T", 0, np.array(named, dtype=np.int64))
    assert window.names(np.array(slots, dtype=np.int64)).tolist() == [s in named for s in slots]
