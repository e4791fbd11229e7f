"""Whatever is planted into whatever run an engine makes is a fault that shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from kvcanary_cli.inject.clean_run import CleanRun
from kvcanary_cli.inject.kinds import KINDS
from kvcanary_cli.inject.planting import build
from kvcanary_cli.selftest.draw import plant
from tests.attribution.helpers import diagnose
from tests.replay.simulator import Settings, simulate

if TYPE_CHECKING:
    from kvcanary_cli.inject.planting import Built

Event = dict[str, Any]
ALONE = sorted(name for name, kind in KINDS.items() if not kind.several_ranks)


@st.composite
def engine_settings(draw: st.DrawFn) -> Settings:
    window, drafts = draw(st.sampled_from([0, 0, 4])), draw(st.sampled_from([0, 0, 4]))
    return Settings(
        seed=draw(st.integers(0, 1 << 32)),
        page_size=1 if window else draw(st.sampled_from([1, 2, 4])),
        window=window,
        draft_worker=draw(st.booleans()),
        draft_tokens=drafts,
        tree=bool(drafts) and draw(st.booleans()),
        padding=draw(st.sampled_from(["none", "end", "middle"])),
        host_tier=not window and draw(st.booleans()),
        kv_hash_every=draw(st.sampled_from([0, 1, 3])),
        slots=draw(st.sampled_from([24, 48])),
        steps=24,
    )


def planted(engine: Settings, name: str, seed: int) -> tuple[Event, list[Event], Built] | None:
    head, events = simulate(engine)
    run, kind = CleanRun(head, events), KINDS[name]
    fault = None if kind.missing(run) else plant(run, kind, seed)
    if fault is None:
        return None
    built = build(run, fault)
    return head, [*events[: built.first], *built.tail], built


# A draft that was backed up where it lay is loaded where another one is expected.
BACKED_UP = Settings(
    seed=3378840331, page_size=4, draft_tokens=4, tree=True, padding="end", host_tier=True,
    kv_hash_every=3, slots=24, rows=8, chunk=16,
)  # fmt: skip
# What some steps wrote was never fingerprinted.
SOME_PRINTED = Settings(
    seed=1224092215, page_size=4, draft_tokens=3, padding="end", kv_hash_every=3, salted=True,
    share=False, chunk=3,
)  # fmt: skip


@given(engine_settings(), st.sampled_from(ALONE), st.integers(0, 1 << 16))
@example(BACKED_UP, "path_not_compacted", 0)
@example(BACKED_UP, "path_not_compacted", 1)
@example(SOME_PRINTED, "flipped_kv_bytes", 1)
@settings(
    max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
def test_what_is_planted_shows(engine: Settings, name: str, seed: int) -> None:
    made = planted(engine, name, seed)
    assume(made is not None)
    assert made is not None
    head, events, _ = made
    diagnosis = diagnose(head, events)
    assert diagnosis.findings or diagnosis.ownership
