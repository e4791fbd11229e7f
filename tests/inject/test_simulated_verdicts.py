"""What is said of faults in whatever run an engine makes: a wrong culprit is never certain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from kvcanary_cli.inject.clean_run import CleanRun
from kvcanary_cli.inject.kinds import KINDS
from kvcanary_cli.inject.planting import build
from kvcanary_cli.selftest.draw import plant
from kvcanary_cli.selftest.outcome import judge
from tests.attribution.helpers import diagnose
from tests.inject.test_simulated import ALONE, engine_settings
from tests.replay.simulator import Settings, simulate

Event = dict[str, Any]
# Two holders of one slot hit each other; who did it first, the truth tells of the target only.
OTHERS = sorted({*ALONE} - {"double_free", "double_alloc", "free_by_non_owner"})
FAST = {"max_examples": 25, "suppress_health_check": list(HealthCheck)}


def _check(engine: Settings, name: str, seed: int) -> None:
    run, kind = CleanRun(*simulate(engine)), KINDS[name]
    planted = None if kind.missing(run) else plant(run, kind, seed)
    assume(planted is not None)
    assert planted is not None
    built = build(run, planted)
    events = [*run.events[: built.first], *built.tail]
    diagnosis = diagnose(run.header, events)
    outcome = judge(kind, seed, built, diagnosis.findings, diagnosis.ownership)
    assert outcome.detected
    covering = (f for f in diagnosis.findings if f.slots & planted.slots)
    finding = next(covering, diagnosis.findings[0] if diagnosis.findings else None)
    if finding is not None and finding.confidence == "certain":
        assert (outcome.cls_right, outcome.culprit_right) == (True, True), (outcome, finding)


# Rows whose new tenant was served from the cache, while the one before sets its own cells.
SERVED = Settings(seed=364522461, kv_hash_every=1, padding="middle", slots=24)
# Loads into slots that the prefix cache had held before; bytes that change behind a load.
LOADS = Settings(seed=2014071574, draft_tokens=4, tree=True, host_tier=True, kv_hash_every=1,
                 slots=24)  # fmt: skip


@pytest.mark.parametrize("engine", [SERVED, LOADS], ids=["served", "loads"])
@pytest.mark.parametrize("seed", range(4))
def test_a_recycled_row_is_its_new_tenants(engine: Settings, seed: int) -> None:
    _check_right(engine, "recycled_row", seed)


@pytest.mark.parametrize("name", ["copy_to_wrong_pages", "misaligned_copy"])
@pytest.mark.parametrize("page_size", [2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_a_wrong_load_is_the_copys(name: str, page_size: int, seed: int) -> None:
    _check_right(replace(LOADS, page_size=page_size, slots=48), name, seed)


def _check_right(engine: Settings, name: str, seed: int) -> None:
    run, kind = CleanRun(*simulate(engine)), KINDS[name]
    planted = plant(run, kind, seed)
    if planted is None:
        pytest.skip("the run offers this seed no occasion")
    built = build(run, planted)
    events = [*run.events[: built.first], *built.tail]
    diagnosis = diagnose(run.header, events)
    outcome = judge(kind, seed, built, diagnosis.findings, diagnosis.ownership)
    assert (outcome.cls_right, outcome.subtype_right, outcome.culprit_right) == (
        True,
        True,
        True,
    ), outcome


@given(engine_settings(), st.sampled_from(OTHERS), st.integers(0, 1 << 16))
@example(SERVED, "recycled_row", 0)
@example(LOADS, "early_free", 1)
@example(LOADS, "flipped_after_write", 0)
@settings(**FAST)
def test_what_is_certain_is_right(engine: Settings, name: str, seed: int) -> None:
    _check(engine, name, seed)


@given(
    engine_settings(),
    st.sampled_from(["double_free", "double_alloc", "free_by_non_owner"]),
    st.integers(0, 1 << 16),
)
@settings(**FAST | {"max_examples": 10})
def test_of_two_holders_the_one_that_wrote_first_is_named(
    engine: Settings, name: str, seed: int
) -> None:
    _check(replace(engine, draft_worker=False), name, seed)
