"""The one bar of many traces."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kvcanary_cli.cli.output import Output
from kvcanary_cli.cli.replay_progress import Fleet, progress_of_many

STEP = st.tuples(st.integers(0, 4), st.integers(0, 200), st.none() | st.integers(0, 100))


@given(st.lists(STEP, max_size=30), st.permutations(range(5)))
def test_the_bar_never_leaves_its_range_and_ends_full(
    steps: list[tuple[int, int, int | None]], order: list[int]
) -> None:
    fleet = Fleet(range(5))
    running = list(order)
    for number, read, total in steps:
        if number in running:
            fleet.progress(number, read, total)
        assert 0 <= fleet.completed <= 5
    for done, number in enumerate(running, 1):
        fleet.finished(number)
        assert done <= fleet.completed <= 5
    assert fleet.completed == 5


def test_a_terminal_sees_how_many_are_done() -> None:
    shown = io.StringIO()
    out = Output()
    out.stderr = Console(file=shown, force_terminal=True, width=80)
    with progress_of_many(out, [0, 1]) as fleet:
        fleet.progress(0, 1, 2)
        fleet.finished(0)
    assert "1 of 2 traces" in shown.getvalue()


def test_quiet_shows_none() -> None:
    shown = io.StringIO()
    out = Output(quiet=True)
    out.stderr = Console(file=shown, force_terminal=True, width=80)
    with progress_of_many(out, [0, 1]) as fleet:
        fleet.finished(0)
    assert shown.getvalue() == ""
