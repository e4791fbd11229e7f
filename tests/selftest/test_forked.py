"""Children: every answer comes back under its number, and one that dies is told, not lost."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.selftest.forked import Lost, TaskError, run_forked, run_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(0, 300_000), max_size=8), jobs=st.integers(1, 5))
def test_answers_do_not_depend_on_jobs(sizes: list[int], jobs: int) -> None:
    """Answers larger than a pipe holds come back whole."""
    tasks: list[Callable[[], bytes]] = [partial(bytes, size) for size in sizes]
    assert dict(run_forked(tasks, jobs)) == dict(run_here(tasks))


def test_a_task_starts_from_the_state_of_its_moment() -> None:
    state = [0]

    def bump() -> int:
        state[0] += 100
        return state[0]

    def tasks() -> Iterator[Callable[[], int]]:
        for _ in range(5):
            state[0] += 1
            yield bump

    assert dict(run_forked(tasks(), 2)) == {0: 101, 1: 102, 2: 103, 3: 104, 4: 105}
    assert state == [5]


def _die(number: int) -> int:
    os.kill(os.getpid(), number)
    return number


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_child_is_told(death: signal.Signals) -> None:
    answers = dict(run_forked([lambda: "before", partial(_die, death), lambda: "behind"], 2))
    lost = answers.pop(1)
    assert isinstance(lost, Lost)
    assert death.name in lost.why
    assert answers == {0: "before", 2: "behind"}


def test_an_exit_without_an_answer_is_told() -> None:
    ((number, lost),) = run_forked([lambda: os._exit(7)], 1)
    assert number == 0
    assert isinstance(lost, Lost)
    assert "7" in lost.why


def _raise() -> None:
    raise ValueError("told by the child")


def test_an_exception_comes_with_its_traceback() -> None:
    with pytest.raises(TaskError, match="told by the child"):
        list(run_forked([_raise], 1))


def test_stopping_early_leaves_no_child() -> None:
    def wait() -> None:
        signal.pause()

    # In a process of its own: this one may have children of other tests.
    pid = os.fork()
    if pid == 0:
        left = 1
        try:
            running: Any = run_forked([lambda: os.getpid(), wait, wait], 3)
            assert isinstance(next(running)[1], int)
            running.close()
            with pytest.raises(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
            left = 0
        finally:
            os._exit(left)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_child_ends_by_the_signal_whatever_its_parent_does_then() -> None:
    """A library may have set a handler that turns it into an exception."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    try:
        (told,) = run_forked([lambda: _die(signal.SIGTERM)], 1)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert isinstance(told[1], Lost)
    assert "SIGTERM" in told[1].why
