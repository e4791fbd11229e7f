"""Traces behind URLs: the same result as from a file, and no failure taken for something else."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from kvcanary_cli.trace.convert import convert
from kvcanary_cli.trace.reader import open_trace
from tests.cli.conftest import ROOT, SCENARIOS, Ran

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Run = Callable[..., Ran]

TRACES = ("a.pt", "b.jsonl.zst", "c.jsonl", "run.kvtrace")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of every form."""
    folder = tmp_path_factory.mktemp("traces")
    for path, name in zip(sorted(SCENARIOS.glob("S*.jsonl")), TRACES[:3], strict=False):
        convert(path, folder / name)
    shutil.copytree(ROOT / "examples/vllm_clean.kvtrace", folder / "run.kvtrace")
    return folder


def _put(source: Path, target: str) -> None:
    store = fsspec.filesystem("memory")
    files = [source] if source.is_file() else [p for p in source.rglob("*") if p.is_file()]
    for path in files:
        inside = "" if path == source else f"/{path.relative_to(source)}"
        store.pipe(f"/{target}{inside}", path.read_bytes())


@pytest.fixture
def store(folder: Path) -> Iterator[None]:
    """A store in memory that holds the same, and two ranks."""
    fsspec.filesystem("memory").store.clear()
    for name in TRACES:
        _put(folder / name, f"bucket/{name}")
    _put(SCENARIOS / "S21_rank_divergence", "ranks")
    yield
    fsspec.filesystem("memory").store.clear()


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_url_gives_what_the_file_gives(run: Run, folder: Path, scheme: str, name: str) -> None:
    url = f"memory://bucket/{name}" if scheme == "memory" else f"file://{folder}/{name}"
    path = str(folder / name)
    far, near = run("replay", url, "--format", "json"), run("replay", path, "--format", "json")
    assert far.code == near.code
    assert far.out.replace(url, path) == near.out


@pytest.mark.usefixtures("store")
def test_folders_and_globs_of_a_store(run: Run) -> None:
    for name in ("memory://ranks", "memory://ranks/rank*.jsonl"):
        ran = run("replay", name, "--format", "json")
        data = json.loads(ran.out)
        assert [t["trace"]["path"].rpartition("/")[2] for t in data["traces"]] == [
            "rank0.jsonl",
            "rank1.jsonl",
        ]
        assert [f["class"] for f in data["findings"]] == ["rank_divergence"]


def test_local_urls_go_to_other_processes_too(run: Run) -> None:
    url = f"file://{SCENARIOS}/S21_rank_divergence"
    alone, many = (run("replay", url, "-j", n) for n in ("1", "2"))
    assert (many.code, many.out) == (alone.code, alone.out)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("memory://no/such.pt", "No such file or directory"),
        ("memory://no/such/*.pt", "matches nothing"),
        ("nowhere://a/b.pt", "Protocol not known"),
    ],
)
def test_a_url_that_leads_nowhere_is_an_input_error(run: Run, url: str, what: str) -> None:
    ran = run("replay", url)
    assert (ran.code, ran.out) == (4, "")
    assert url in ran.err
    assert what in ran.err


@pytest.mark.parametrize("missing", ["fsspec.core", "s3fs"])
def test_a_missing_package_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    ran = run("replay", "s3://bucket/a.pt")
    assert (ran.code, ran.out) == (4, "")
    assert "needs a package that is not installed" in ran.err
    assert "pip install 'kvcanary[remote]'" in ran.err


class _StoreError(Exception):
    """What a store's client raises: no OSError."""


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("call", ["info", "get_file"])
@pytest.mark.parametrize("name", ["manifest.json", "last"])
def test_a_store_that_fails_is_no_torn_recording(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, call: str
) -> None:
    segments = sorted(p.name for p in (ROOT / "examples/vllm_clean.kvtrace").glob("*.pt"))
    end = segments[-1] if name == "last" else name
    real = getattr(MemoryFileSystem, call)

    def failing(self: Any, path: str, *args: Any, **options: Any) -> Any:
        if path.endswith(end):
            raise _StoreError("connection reset")
        return real(self, path, *args, **options)

    with monkeypatch.context() as broken:
        broken.setattr(MemoryFileSystem, call, failing)
        ran = run("replay", "memory://bucket/run.kvtrace")
    assert (ran.code, ran.out) == (4, "")
    assert "connection reset" in ran.err
    assert run("replay", "memory://bucket/run.kvtrace").code == 0


@pytest.mark.usefixtures("store")
def test_other_commands_read_urls_too(run: Run, folder: Path, tmp_path: Path) -> None:
    for words in (["trace", "info"], ["trace", "validate"], ["inspect", "--slot", "5"]):
        far, near = run(*words, "memory://bucket/a.pt"), run(*words, str(folder / "a.pt"))
        assert far.code == near.code == 0
        assert far.out.replace("memory://bucket/a.pt", str(folder / "a.pt")) == near.out
    assert run("trace", "convert", "memory://bucket/a.pt", str(tmp_path / "b.jsonl")).code == 0


@pytest.mark.usefixtures("store")
def test_copies_go_when_the_trace_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    reader = open_trace("memory://bucket/run.kvtrace")
    assert sum(len(segment) for segment in reader.segments())
    assert list(tmp_path.rglob("*"))
    del reader
    assert list(tmp_path.rglob("*")) == []
