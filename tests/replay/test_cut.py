"""Any cut of any trace shows what the whole trace shows at the same steps."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from kvcanary_cli.errors import InputError, NothingCheckedError
from kvcanary_cli.trace.reader import open_trace
from tests.replay.cut_helpers import (
    Event,
    assert_same_verdict,
    cut_to,
    events_of,
    forward_steps,
    found,
    run,
    write_jsonl,
)
from tests.replay.cut_simulator import Simulator
from tests.trace.strategies import traces

_SLOW = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
_RANDOM = st.integers(0, 1 << 32).map(Random)


def _simulated(random: Random, bugs: float, folder: Path) -> Path:
    head, events = Simulator(random, bugs).trace(random.randint(4, 24))
    return write_jsonl(folder / "whole.jsonl", head, events)


@_SLOW
@given(random=_RANDOM, bugs=st.sampled_from([0.0, 0.05, 0.2]))
def test_cut_of_a_simulated_run(random: Random, bugs: float) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = _simulated(random, bugs, folder)
        steps = forward_steps(whole)
        assume(steps)
        for _ in range(2):
            first, last = sorted(random.choices(steps, k=2))
            assert_same_verdict(whole, folder, (first, random.choice([last, None])))
        event("corrupt" if found(whole, steps=(first, last)) else "clean")


def _begin(events: list[Event], step: int) -> int:
    """``i`` of what a cut from ``step`` on begins with: a forward, or what was taken for one."""
    return min(
        e["i"]
        for e in events
        if (e["kind"] == "forward" or e.get("phase") in ("before", "sweep")) and e["step"] >= step
    )


@_SLOW
@given(random=_RANDOM, bugs=st.sampled_from([0.0, 0.05, 0.2]))
def test_cut_behind_lost_events(random: Random, bugs: float) -> None:
    """Its state is that of the replay that begins anew behind them."""
    head, events = Simulator(random, bugs).trace(random.randint(4, 24))
    forwards = [k for k, e in enumerate(events) if e["kind"] == "forward"]
    assume(len(forwards) > 2)
    at = random.choice(forwards[1:])
    lost = random.randint(1, 8)
    gap = random.randint(1, at)
    kept = [e for k, e in enumerate(events) if not gap - lost < k <= gap or k >= at]
    assume(len(kept) < len(events))
    # What is lost between a step's forwards, or its fingerprints, lies within the cut.
    step = events[at]["step"]
    begun = [e for e in kept if e["i"] >= _begin(kept, step)]
    assume(all(after["i"] == e["i"] + 1 for e, after in pairwise(begun)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = write_jsonl(folder / "whole.jsonl", head, kept)
        last = max(e["step"] for e in kept if e["kind"] == "forward")
        steps = (step, random.choice([last, None]))
        try:
            run(whole, steps=steps)
        except InputError:
            assume(False)
        assert_same_verdict(whole, folder, steps)
        cut = open_trace(folder / "cut.jsonl").header
        began_anew = bool(run(whole).coverage.lost_events)
        assert cut.starts_mid_run == (began_anew or head.get("starts_mid_run", False))


@_SLOW
@given(random=_RANDOM, bugs=st.sampled_from([0.05, 0.2]))
def test_cut_of_a_cut(random: Random, bugs: float) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = _simulated(random, bugs, folder)
        steps = forward_steps(whole)
        assume(len(steps) > 2)
        a, b, c, d = sorted(random.choices(steps, k=4))
        outer, _ = cut_to(whole, folder, (a, d))
        (folder / "deeper").mkdir()
        inner, _ = cut_to(outer, folder / "deeper", (b, c))
        assert found(inner) == found(whole, steps=(b, c))


@_SLOW
@given(random=_RANDOM, bugs=st.sampled_from([0.05, 0.2]))
def test_cut_for_a_request_keeps_its_violations(random: Random, bugs: float) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = _simulated(random, bugs, folder)
        steps = forward_steps(whole)
        assume(steps)
        first, last = sorted(random.choices(steps, k=2))
        expected = [v for v in found(whole, steps=(first, last)) if v.req is not None]
        reqs = sorted({v.req for v in expected if v.req is not None})
        assume(reqs)
        victim = random.choice(reqs)
        target, cut = cut_to(whole, folder, (first, last), [victim])
        assert cut.requests is not None
        assert victim in cut.requests
        mine = [v for v in found(target) if v.req == victim]
        assert mine == [v for v in expected if v.req == victim]
        kinds = {e["kind"] for e in events_of(target)}
        assert not kinds & {"publish", "unpublish"}
        event("smaller" if len(cut.requests) < len(reqs) else "all of them")


@settings(_SLOW, max_examples=60)
@given(trace=traces(max_events=20), random=_RANDOM)
def test_cut_of_any_valid_trace(trace: tuple[dict, list[dict]], random: Random) -> None:
    head, events = trace
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = write_jsonl(folder / "whole.jsonl", head, events)
        steps = forward_steps(whole)
        assume(steps)
        first, last = sorted(random.choices(steps, k=2))
        try:
            run(whole, steps=(first, last))
        except InputError:
            assume(False)
        assert found(whole, steps=(first, last)) == _cut_and_replay(whole, folder, first, last)


def _cut_and_replay(whole: Path, folder: Path, first: int, last: int) -> list:
    try:
        return found(cut_to(whole, folder, (first, last))[0])
    except NothingCheckedError:
        return []
