"""Many traces in one call: the same result wherever they are replayed, and nothing is lost."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvcanary_cli.cli.main import main
from kvcanary_cli.fleet.job import Job, run_job
from kvcanary_cli.fleet.processes import run_in_processes
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.trace.convert import convert
from tests.cli.conftest import ROOT, SCENARIOS, Ran

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.fleet.held import Held

    Run = Callable[..., Ran]

CLEAN = "examples/vllm_clean.kvtrace"
BUG = "examples/use_after_free.jsonl"
BROKEN = "README.md"
FORMATS = (("-v", "--max-rows", "1"), ("--format", "json"), ("--format", "jsonl"))


class Unwatched:
    """A watch that looks away."""

    def progress(self, number: int, read_bytes: int, total_bytes: int | None) -> None: ...

    def finished(self, number: int) -> None: ...


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ranks, single traces of every form, and two that cannot be used."""
    folder = tmp_path_factory.mktemp("recordings")
    scenarios = sorted(SCENARIOS.glob("S*.jsonl"))[:6]
    for path, suffix in zip(scenarios, (".jsonl", ".pt", ".jsonl.zst") * 2, strict=True):
        convert(path, folder / f"{path.stem}{suffix}")
    shutil.copytree(SCENARIOS / "S21_rank_divergence", folder / "ranks")
    shutil.copytree(ROOT / CLEAN, folder / "clean.kvtrace")
    (folder / "broken.jsonl").write_text("no trace\n")
    (folder / "cut.pt").write_bytes((ROOT / "examples/bug_double_free.pt").read_bytes()[:9000])
    return folder


def test_results_do_not_depend_on_the_number_of_processes(run: Run, folder: Path) -> None:
    for words in FORMATS:
        alone, many = (run("replay", str(folder), *words, "--jobs", n) for n in ("1", "3"))
        assert _told(many) == _told(alone)
        assert alone.code == 1
        assert alone.err.count("error: ") == 2


def _told(ran: Ran) -> tuple[int, str, list[str]]:
    """All that was told, but for the remark of whoever is the first to need the kernels."""
    remarks = [line for line in ran.err.splitlines() if not line.startswith("compiling kernels")]
    return ran.code, ran.out, remarks


def test_options_reach_every_process(run: Run, folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "serving.yaml"
    config.write_text("max-running-requests: 1\ncuda_graph_max_bs: 1\nchunked_prefill_size: 4\n")
    options = ["--config", str(config), "--capacity", "verify=2", "--steps", "1:3", "--req", "A"]
    words = ["replay", str(folder), *options, "--backend", "reference", "--format", "json"]
    alone, many = (run(*words, "--jobs", n) for n in ("1", "2"))
    assert _told(many) == _told(alone)
    data = json.loads(many.out)
    assert {t["backend"]["name"] for t in data["traces"]} == {"reference"}
    assert data["capacity_violations"]
    assert data["coverage"]["filters"]


def test_ranks_are_compared_whoever_replayed_them(run: Run, folder: Path) -> None:
    data = json.loads(run("replay", str(folder), "-j", "2", "--format", "json").out)
    paths = [t["trace"]["path"] for t in data["traces"]]
    found = [f for f in data["findings"] if f["class"] == "rank_divergence"]
    assert len(found) == 1
    assert [os.path.relpath(paths[k], folder) for k in found[0]["traces"]] == [
        "ranks/rank0.jsonl",
        "ranks/rank1.jsonl",
    ]
    for name in ("violations", "ownership"):
        assert all(0 <= cell["trace"] < len(paths) for cell in data[name])


def test_traces_of_other_runs_are_not_taken_for_ranks(run: Run) -> None:
    names = [str(path) for path in sorted(SCENARIOS.glob("S*.jsonl"))]
    data = json.loads(run("replay", *names, "--format", "json").out)
    assert len(data["traces"]) == len(names)
    assert "rank_divergence" not in {finding["class"] for finding in data["findings"]}
    assert data["coverage"]["notes"]
    assert not any("ranks were not compared" in note for note in data["coverage"]["notes"])


def test_two_runs_in_one_folder_are_each_compared(run: Run, tmp_path: Path) -> None:
    for name in ("mon", "tue"):
        for rank in (0, 1):
            source = SCENARIOS / "S21_rank_divergence" / f"rank{rank}.jsonl"
            shutil.copy(source, tmp_path / f"{name}-rank{rank}.jsonl")
    data = json.loads(run("replay", str(tmp_path), "-j", "2", "--format", "json").out)
    assert [f["traces"] for f in data["findings"]] == [[0, 1], [2, 3]]


def test_ranks_that_nothing_tells_apart_are_said_to_be_unchecked(run: Run, tmp_path: Path) -> None:
    for name in ("rank0", "rank1"):
        shutil.copy(SCENARIOS / "S21_rank_divergence" / "rank0.jsonl", tmp_path / f"{name}.jsonl")
    ran = run("replay", str(tmp_path))
    assert "ranks were not compared" in ran.out
    assert "ranks were not compared" in ran.err


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize(
    ("names", "words", "code", "verdict"),
    [
        ((CLEAN, CLEAN), (), 0, "clean"),
        ((CLEAN, BUG), (), 1, "corrupt"),
        ((CLEAN, BUG), ("--exit-zero",), 0, "corrupt"),
        ((CLEAN, BROKEN), (), 4, "not_checked"),
        ((CLEAN, BROKEN), ("--exit-zero",), 4, "not_checked"),
        ((BROKEN, BUG), (), 1, "corrupt"),
        ((BROKEN, BUG), ("--exit-zero",), 4, "corrupt"),
        ((BROKEN, "no/such.pt"), (), 4, "not_checked"),
        ((CLEAN, "tests/cli"), (), 4, "not_checked"),
    ],
)
def test_exit_code(
    run: Run, jobs: str, names: Sequence[str], words: Sequence[str], code: int, verdict: str
) -> None:
    ran = run("replay", *names, *words, "--format", "json", "--jobs", jobs)
    data = json.loads(ran.out)
    assert (ran.code, data["verdict"]) == (code, verdict)
    bad = [name for name in names if name not in (CLEAN, BUG)]
    assert [failed["path"] for failed in data["failed"]] == bad
    assert {failed["exit_code"] for failed in data["failed"]} <= {4}
    assert len(data["traces"]) == len(names) - len(bad)
    assert all(name in ran.err for name in bad)
    assert all(data["coverage"]["checks"].values()) <= (not bad)


def test_a_fault_of_ours_costs_one_trace(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvcanary_cli.attribution import diagnose

    real = diagnose.diagnose_trace

    def fail(reader, *args, **kwargs):  # type: ignore[no-untyped-def]
        if reader.name == BUG:
            raise ZeroDivisionError("oops")
        return real(reader, *args, **kwargs)

    monkeypatch.setattr(diagnose, "diagnose_trace", fail)
    ran = run("replay", BUG, CLEAN, BROKEN)
    assert ran.code == 3
    assert f"error: {BUG}: internal error: ZeroDivisionError: oops" in ran.err
    assert f"  {BUG}: internal error: ZeroDivisionError: oops" in ran.out
    assert "SUMMARY: kvcanary replay: NOT CHECKED" in ran.out
    assert "1 trace, 2 NOT CHECKED" in ran.out
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        (("--req", "nobody"), "--req nobody: no forward of it was checked"),
        (("--slot", "9999999"), "--slot 9999999: nothing in the trace writes or names it"),
        (("--steps", "99998:99999"), "--steps: no step of the trace lies in that range"),
    ],
)
def test_a_filter_that_names_nothing_hides_no_failure(
    run: Run, words: Sequence[str], warning: str
) -> None:
    alone = run("replay", CLEAN, CLEAN, *words)
    assert (alone.code, alone.out) == (5, "")
    assert warning in alone.err
    ran = run("replay", BUG, BROKEN, *words)
    assert ran.code == 4
    assert f"error: {BROKEN}" in ran.err
    assert warning in ran.err
    assert "NOT CHECKED: 1 of 2 inputs" in ran.out
    assert "SUMMARY: kvcanary replay: NOT CHECKED: 0 findings" in ran.out


def test_pipes_stay_with_this_process(run: Run) -> None:
    for words in (("-", BUG, "-j", "2"), ("-", "--cluster", "local")):
        ran = run("replay", *words)
        assert (ran.code, ran.out) == (2, "")
        assert "a pipe cannot be handed to another process" in ran.err


def test_another_version_replays_nothing() -> None:
    job = _job(str(ROOT / BUG), version="0.0.0")
    failed = run_job(job).failed
    assert failed is not None
    assert "kvcanary 0.0.0 asks" in failed.message


def _job(name: str, number: int = 0, version: str | None = None) -> Job:
    return Job(
        number=number,
        name=name,
        found_in=None,
        several=True,
        options=ReplayOptions(backend="cpu"),
        config=None,
        overrides={},
        folder=os.getcwd(),
        **({} if version is None else {"version": version}),
    )


def _meanwhile(action: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, 5), (signal.SIGTERM, 5), (signal.SIGSEGV, 3)]
)
def test_a_worker_that_dies_costs_its_trace_and_no_other(
    held: Held, number: signal.Signals, code: int
) -> None:
    names = [str(ROOT / BUG), str(held.path), str(ROOT / CLEAN), str(ROOT / BROKEN)]
    jobs = [_job(name, k) for k, name in enumerate(names)]
    killer = _meanwhile(lambda: os.kill(held.holder(), number))
    outcomes = run_in_processes(jobs, 2, Unwatched())
    killer.join()
    assert [o.number for o in outcomes] == [0, 1, 2, 3]
    assert [o.diagnosis is None for o in outcomes] == [False, True, False, True]
    failed = outcomes[1].failed
    assert failed is not None
    assert (failed.path, failed.exit_code) == (str(held.path), code)
    assert f"not checked: the process that replayed it was ended by {number.name}" in failed.message


def test_a_killed_worker_is_never_green(run: Run, held: Held) -> None:
    killer = _meanwhile(lambda: os.kill(held.holder(), signal.SIGKILL))
    ran = run("replay", CLEAN, str(held.path), CLEAN, "-j", "2", "--exit-zero")
    killer.join()
    assert ran.code == 5
    assert "NOT CHECKED: 1 of 3 inputs" in ran.out
    assert "SUMMARY: kvcanary replay: NOT CHECKED" in ran.out
    assert "SIGKILL" in ran.err
    assert str(held.path) in ran.err


def test_an_interrupt_ends_every_worker(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    children: list[int] = []

    def interrupt() -> None:
        holder = held.holder()
        # A terminal sends it to all of them.
        os.kill(holder, signal.SIGINT)
        children.extend(c.pid for c in multiprocessing.active_children() if c.pid is not None)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    thread = _meanwhile(interrupt)
    try:
        assert main(["replay", str(held.path), str(held.path), BUG, "-j", "3"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    assert children
    assert not any(_runs(pid) for pid in children)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


#: A command line that takes a named pipe for a file.
COMMAND = """
import sys
from kvcanary_cli.cli.main import main
from kvcanary_cli.fleet import inputs
if __name__ == "__main__":
    inputs.refuse_pipes = lambda inputs: None
    sys.exit(main(["replay", "--backend", "reference", "-j", "2", *sys.argv[1:]]))
"""


def test_workers_end_when_their_parent_is_killed(held: Held, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(COMMAND)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    parent = subprocess.Popen(
        [sys.executable, str(script), str(held.path), str(held.path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    worker = held.holder()
    parent.kill()
    parent.wait()
    while _runs(worker):
        time.sleep(0.05)
