"""Replays on a real Ray cluster of this machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvcanary_cli.cli.main import main
from tests.cli.conftest import ROOT, SCENARIOS, Ran

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fleet.held import Held

    Run = Callable[..., Ran]

BUG = "examples/use_after_free.jsonl"


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster with two CPUs that ends with the module's tests."""
    pytest.importorskip("ray")
    # Ray's sockets lie in it, and a socket's path is short.
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    given = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    given["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    with pytest.MonkeyPatch.context() as environment:
        for name, value in given.items():
            environment.setenv(name, value)
        words = ["start", "--head", "--block", "--port=0", "--num-cpus=2", f"--temp-dir={folder}"]
        words += ["--include-dashboard=false", "--object-store-memory=80000000"]
        ray = Path(sysconfig.get_path("scripts")) / "ray"
        process = subprocess.Popen(
            [str(ray), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        said: list[str] = []
        try:
            yield _address(process, said)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)


def _address(process: subprocess.Popen[str], said: list[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        found = re.search(r"--address='([^']+)'", line)
        if found:
            # What it says from here on must not fill the pipe.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return found[1]
    raise AssertionError("ray start ended: " + "".join(said))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ranks of a run, another trace, and one that cannot be used."""
    shutil.copytree(SCENARIOS / "S21_rank_divergence", tmp_path / "ranks")
    shutil.copy(ROOT / BUG, tmp_path)
    (tmp_path / "broken.jsonl").write_text("no trace\n")
    return tmp_path


def test_a_cluster_gives_the_same_to_the_byte(run: Run, folder: Path, cluster: str) -> None:
    names = [str(folder), f"file://{folder}/ranks", BUG]
    for words in (["--format", "json"], ["-v"]):
        alone = run("replay", *names, *words)
        many = run("replay", *names, *words, "--cluster", cluster, "--jobs", "2")
        assert (many.code, many.out) == (alone.code, alone.out)
        assert many.code == 1
        assert "broken.jsonl" in many.err


def test_one_trace_on_a_cluster(run: Run, cluster: str) -> None:
    ran = run("replay", BUG, "--cluster", cluster, "--format", "json")
    assert ran.out == run("replay", BUG, "--format", "json").out
    bad = run("replay", "no/such.pt", "--cluster", cluster)
    assert (bad.code, bad.out) == (4, "")
    assert "no/such.pt: cannot be read" in bad.err


def test_a_lost_worker_costs_its_trace_and_no_other(run: Run, cluster: str, held: Held) -> None:
    killer = threading.Thread(target=lambda: os.kill(held.holder(), signal.SIGKILL), daemon=True)
    killer.start()
    names = ("examples/vllm_clean.kvtrace", str(held.path), "examples/vllm_clean.kvtrace")
    ran = run("replay", *names, "--cluster", cluster, "--exit-zero")
    killer.join()
    assert ran.code == 5
    assert "NOT CHECKED: 1 of 3 inputs" in ran.out
    assert f"{held.path}: not checked: the worker that replayed it was lost" in ran.err


def test_an_interrupt_ends_the_tasks(
    cluster: str, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    holders: list[int] = []

    def interrupt() -> None:
        holders.append(held.holder())
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    try:
        assert main(["replay", str(held.path), BUG, "--cluster", cluster]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    while held.is_open_in(holders[0]):
        time.sleep(0.05)


def test_no_ray_says_how_to_get_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    ran = run("replay", BUG, "--cluster", "auto")
    assert (ran.code, ran.out) == (2, "")
    assert "pip install 'kvcanary[ray]'" in ran.err


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "a:99999", "nowhere:http"])
def test_no_cluster_is_an_input_error(
    run: Run, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ran = run("replay", BUG, "--cluster", address)
    assert (ran.code, ran.out) == (4, "")
    assert f"--cluster {address}: cannot be reached" in ran.err
