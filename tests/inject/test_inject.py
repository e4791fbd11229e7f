"""Faults put into real clean batches: valid traces, true truths, clear refusals."""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.attribution.report import Report
from kvcanary_cli.cli.main import main
from kvcanary_cli.errors import NothingCheckedError
from kvcanary_cli.inject.clean_run import CleanRun
from kvcanary_cli.inject.inject import inject_faults, load_run, truth_name
from kvcanary_cli.inject.kinds import KINDS
from kvcanary_cli.inject.planting import build
from kvcanary_cli.trace.reader import open_trace
from tests.attribution.events import HEAD, decode, life, numbered
from tests.attribution.helpers import CAPTURES, SCENARIOS, diagnose, diagnose_path, events_of
from tests.trace.helpers import write_jsonl

if TYPE_CHECKING:
    from pathlib import Path

TRACES = ("canary_clean_all", "swa_canary_clean", "ngram_clean", "vllm_clean")


@pytest.fixture(scope="module")
def runs() -> dict[str, CleanRun]:
    return {name: load_run(str(CAPTURES / f"{name}.jsonl.zst")) for name in TRACES}


def _first(kind: str, runs: dict[str, CleanRun]) -> tuple[CleanRun, Any] | None:
    for run in runs.values():
        if not KINDS[kind].missing(run):
            planted = KINDS[kind].plant(run, random.Random(5))
            if planted is not None:
                return run, planted
    return None


# What no recorded engine run holds is planted into hand-written ones below.
ELSEWHERE = {
    "missing_copy",
    "misaligned_copy",
    "namespace_alias",
    "future_ring_wrap",
    "sidecar_scale",
}


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ELSEWHERE])
def test_the_injected_trace_is_valid_and_numbered(kind: str, runs: dict[str, CleanRun]) -> None:
    found = _first(kind, runs)
    assert found is not None
    run, planted = found
    before = json.dumps(run.events)
    built = build(run, planted)
    assert json.dumps(run.events) == before

    events = [*run.events[: built.first], *built.tail]
    numbers = [event["i"] for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert events != run.events or planted.bytes
    # Reading it validates it.
    diagnosis = diagnose(run.header, events)
    assert diagnosis.replay.coverage.lost_events == 0
    if not KINDS[kind].several_ranks:
        assert diagnosis.findings


@pytest.mark.parametrize("form", [".jsonl", ".jsonl.zst", ".pt"])
def test_command_writes_trace_and_truth(form: str, tmp_path: Path) -> None:
    clean = CAPTURES / "canary_clean_all.jsonl.zst"
    bad = tmp_path / f"bad{form}"
    arguments = ["inject", str(clean), "-o", str(bad), "--fault", "free_by_non_owner"]
    assert main([*arguments, "--seed", "2"]) == 0
    truth = json.loads((tmp_path / "bad.truth.json").read_text(encoding="utf-8"))["faults"][0]
    finding = diagnose_path(bad).findings[0]
    assert finding.cls == truth["class"] == "double_alloc"
    assert finding.subtype in truth["subtypes"]
    assert finding.first_bad_step == truth["first_bad_step"]
    assert finding.cause_event in truth["cause_events"]
    assert finding.culprit.req in truth["culprits"]
    assert finding.victim in truth["victims"]
    assert set(truth["slots"]) & finding.slots
    # The output is not overwritten unasked.
    assert main(arguments) == 2


def test_command_plants_at_the_step(tmp_path: Path) -> None:
    clean, bad = CAPTURES / "canary_clean_all.jsonl.zst", tmp_path / "bad.jsonl"
    arguments = ["inject", str(clean), "-o", str(bad), "--fault", "wrong_token", "--at", "40"]
    assert main(arguments) == 0
    truth = json.loads((tmp_path / "bad.truth.json").read_text(encoding="utf-8"))["faults"][0]
    assert truth["first_bad_step"] == 40


def test_several_faults_keep_their_truths(runs: dict[str, CleanRun]) -> None:
    run = runs["canary_clean_all"]
    events, built = inject_faults(
        run, KINDS["late_write"], step=None, seed=1, count=3, name="clean"
    )
    by_number = {event["i"]: event for event in events}
    assert len(by_number) == len(events)
    findings = diagnose(run.header, events).findings
    for one in built:
        assert all(by_number[i]["kind"] in ("free", "forward") for i in one.causes)
        mine = [f for f in findings if f.slots & one.planted.slots]
        assert [f.cls for f in mine] == ["late_write"]
        assert mine[0].first_bad_step == one.planted.step


def test_the_wished_for_step_is_kept(runs: dict[str, CleanRun]) -> None:
    run = runs["canary_clean_all"]
    events, built = inject_faults(run, KINDS["wrong_token"], step=40, seed=0, count=1, name="clean")
    assert built[0].planted.step == 40
    assert diagnose(run.header, events).findings[0].first_bad_step == 40


@pytest.mark.parametrize("count", [1, 3])
def test_a_step_without_occasion_is_named(runs: dict[str, CleanRun], count: int) -> None:
    with pytest.raises(NothingCheckedError) as told:
        inject_faults(
            runs["ngram_clean"], KINDS["wrong_token"], step=9999, seed=0, count=count, name="t"
        )
    assert told.value.message == (
        "t: the run offers no occasion for a fault of kind wrong_token that shows at step 9999"
    )


def test_more_faults_than_there_is_room_for_are_counted(tmp_path: Path) -> None:
    events = [*life("A", [11, 12], [1, 2], row=1, step=1)]
    for step in (2, 3, 4):
        events += decode("A", 20 + step, 1 + step, row=1, position=step, step=step)
    run = load_run(str(write_jsonl(tmp_path / "t.jsonl", HEAD, numbered(events))))
    with pytest.raises(NothingCheckedError) as told:
        inject_faults(run, KINDS["wrong_token"], step=None, seed=0, count=30, name="t")
    found = re.search(r"for 30 faults of kind wrong_token: only (\d+) found", told.value.message)
    assert found
    made = int(found[1])
    assert made > 0
    _, built = inject_faults(run, KINDS["wrong_token"], step=None, seed=0, count=made, name="t")
    assert len(built) == made


def test_the_same_seed_gives_the_same_trace(runs: dict[str, CleanRun]) -> None:
    run = runs["ngram_clean"]
    one, other, third = (
        inject_faults(run, KINDS["stale_cell"], step=None, seed=seed, count=1, name="x")[0]
        for seed in (4, 4, 5)
    )
    assert one == other
    assert one != third


def test_a_divergent_rank_shows_beside_the_clean_one(tmp_path: Path) -> None:
    clean = CAPTURES / "canary_clean_all.jsonl.zst"
    bad = tmp_path / "rank1.jsonl"
    assert main(["inject", str(clean), "-o", str(bad), "--fault", "divergent_rank"]) == 0
    truth = json.loads(truth_name(str(bad)).read_text(encoding="utf-8"))["faults"][0]
    report = Report.of([diagnose_path(clean), diagnose_path(bad)])
    divergence = report.divergences[0]
    assert divergence.cls == "rank_divergence"
    assert divergence.first_bad_step == truth["first_bad_step"]
    assert divergence.cause_event in truth["cause_events"]
    assert divergence.victim in truth["victims"]
    assert open_trace(bad).header.rank["tp"] == 1


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [("stale_lut", 5, "lut"), ("sidecar_scale", 5, "sidecar_hash"), ("no_such", 2, "no_such")],
)
def test_refusals(
    fault: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean = str(CAPTURES / "canary_clean_all.jsonl.zst")
    out = tmp_path / "bad.jsonl"
    assert main(["inject", clean, "-o", str(out), "--fault", fault]) == code
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_list_names_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inject", "--list"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in KINDS)


def _hand_written(name: str, **header: Any) -> CleanRun:
    head, events = events_of(SCENARIOS / name)
    return CleanRun(head | header, events)


def test_namespace_alias() -> None:
    """Two requests of one namespace share a prefix; the fault moves the second one out of it."""
    run = _hand_written("S20_key_aliasing.jsonl")
    names = {n for e in run.events if e.get("namespaces") for n in e["namespaces"] if n}
    first = sorted(names)[0]
    for event in run.events:
        if event.get("namespaces"):
            event["namespaces"] = [first if n else None for n in event["namespaces"]]
    assert diagnose(run.header, run.events).verdict == "clean"
    planted = KINDS["namespace_alias"].plant(run, random.Random(1))
    assert planted is not None
    built = build(run, planted)
    findings = diagnose(run.header, [*run.events[: built.first], *built.tail]).findings
    assert [f.cls for f in findings] == ["key_aliasing"]
    assert findings[0].slots == planted.slots
    assert findings[0].victim in planted.victims
    assert findings[0].culprit.req in planted.culprits


def test_sidecar_scale() -> None:
    run = _hand_written("S23_payload_mutation.jsonl")
    known: dict[int, int] = {}
    for event in run.events:
        if event["kind"] == "sidecar_hash":
            if event["phase"] == "after":
                known.update(zip(event["slots"], event["hash"], strict=True))
            else:
                event["hash"] = [known[slot] for slot in event["slots"]]
    assert diagnose(run.header, run.events).verdict == "clean"
    planted = KINDS["sidecar_scale"].plant(run, random.Random(1))
    assert planted is not None
    built = build(run, planted)
    findings = diagnose(run.header, [*run.events[: built.first], *built.tail]).findings
    assert [(f.cls, f.subtype) for f in findings] == [("payload_mutation", "sidecar_scale")]
    assert findings[0].slots == planted.slots
    assert findings[0].first_bad_step == planted.step


@pytest.mark.parametrize("kind", ["missing_copy", "misaligned_copy"])
def test_copies(kind: str) -> None:
    """A host load that is right in the clean run is skipped, or pairs its blocks wrongly."""
    run = _hand_written("S09_transfer_mismatch.jsonl")
    for event in run.events:
        if event.get("id") == "T1":
            event["src"]["pos"] = [2, 3, 4, 5]
    assert diagnose(run.header, run.events).verdict == "clean"
    planted = KINDS[kind].plant(run, random.Random(1))
    assert planted is not None
    built = build(run, planted)
    findings = diagnose(run.header, [*run.events[: built.first], *built.tail]).findings
    assert findings[0].cls == KINDS[kind].cls
    assert findings[0].slots & planted.slots
    assert findings[0].first_bad_step == planted.step


def test_future_ring_wrap() -> None:
    """The clean run gets the token that was put for it; the fault lets another one in between."""
    run = _hand_written("S16_wrong_token_fed.jsonl")
    events = [event for event in run.events if event["i"] != 13]
    for number, event in enumerate(events):
        event["i"] = number
        if event["kind"] == "future_get":
            event["token"] = 13
        if event.get("input_ids") == [26]:
            event["input_ids"] = [13]
    run = CleanRun(run.header, events)
    assert diagnose(run.header, events).verdict == "clean"
    planted = KINDS["future_ring_wrap"].plant(run, random.Random(2))
    assert planted is not None
    built = build(run, planted)
    findings = diagnose(run.header, [*run.events[: built.first], *built.tail]).findings
    assert [(f.cls, f.subtype) for f in findings] == [("wrong_token_fed", "future_ring_wrap")]
    assert findings[0].culprit.req in planted.culprits
    assert findings[0].cause_event in built.causes


@pytest.mark.parametrize("name", ["bug_swap_rows", "bug_double_free", "bug_kv_bytes"])
def test_a_trace_that_is_not_clean_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corrupt = str(CAPTURES / f"{name}.jsonl.zst")
    arguments = ["inject", corrupt, "-o", str(tmp_path / "bad.jsonl"), "--fault", "wrong_token"]
    assert main(arguments) == 5
    assert "not clean" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main([*arguments, "--unchecked"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"bad.jsonl", "bad.truth.json"}


def test_a_second_kind_of_fault_goes_into_an_injected_trace(tmp_path: Path) -> None:
    clean, one, two = CAPTURES / "ngram_clean.jsonl.zst", tmp_path / "1.pt", tmp_path / "2.pt"
    assert main(["inject", str(clean), "-o", str(one), "--fault", "wrong_token"]) == 0
    again = ["inject", str(one), "-o", str(two), "--fault", "stale_cell"]
    assert main(again) == 5
    assert main([*again, "--unchecked"]) == 0
    assert {f.cls for f in diagnose_path(two).findings} >= {"wrong_token_fed", "stale_mapping"}


def test_nothing_is_replayed_for_an_output_that_exists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean, bad = CAPTURES / "ngram_clean.jsonl.zst", tmp_path / "bad.jsonl"
    (tmp_path / "bad.truth.json").write_text("{}")
    assert main(["inject", str(clean), "-o", str(bad), "--fault", "wrong_token"]) == 2
    told = capsys.readouterr().err
    assert "bad.truth.json exists already" in told
    assert "replaying" not in told


def test_stdout_has_no_place_for_the_truth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = str(CAPTURES / "ngram_clean.jsonl.zst")
    args = ["inject", source, "--fault", "wrong_token", "--unchecked", "--overwrite"]
    assert main([*args, "-o", "-"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "trace convert FILE -" in printed.err
    assert list(tmp_path.iterdir()) == []
