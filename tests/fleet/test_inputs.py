"""What names stand for: folders, subfolders, recordings, URLs, in one order."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.errors import UsageError
from kvcanary_cli.fleet.inputs import expand, refuse_pipes

if TYPE_CHECKING:
    from pathlib import Path


def _names(*names: str) -> list[str]:
    inputs = expand(names)
    assert all(one.problem is None for one in inputs)
    return [one.name for one in inputs]


def _touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def test_numbers_order_by_value_and_subfolders_stand_in_their_place(tmp_path: Path) -> None:
    names = ["a.pt", "rank2.jsonl", "rank10.jsonl", "run/rank0.jsonl.zst", "z/0.pt"]
    _touch(*(tmp_path / name for name in random.sample(names, len(names))))
    _touch(tmp_path / ".hidden.pt", tmp_path / "notes.md", tmp_path / "run" / ".x.pt")
    found = expand([str(tmp_path)])
    assert [os.path.relpath(one.name, tmp_path) for one in found] == names
    assert found[0].found_in == str(tmp_path)
    assert found[3].found_in == str(tmp_path / "run")


@given(st.lists(st.integers(0, 300), min_size=1, max_size=8, unique=True), st.randoms())
def test_the_order_is_that_of_the_names_and_not_of_the_store(
    numbers: list[int], shuffle: random.Random
) -> None:
    store = fsspec.filesystem("memory")
    store.store.clear()
    store.pseudo_dirs[:] = [""]
    mixed = list(numbers)
    shuffle.shuffle(mixed)
    for number in mixed:
        store.pipe(f"/runs/rank{number}.pt", b"")
    wanted = [f"memory://runs/rank{number}.pt" for number in sorted(numbers)]
    assert _names("memory://runs") == wanted
    assert [name.replace(":///", "://") for name in _names("memory://runs/rank*.pt")] == wanted


def test_names_keep_the_order_given_and_belong_to_no_folder(tmp_path: Path) -> None:
    _touch(tmp_path / "b.pt", tmp_path / "a.pt")
    inputs = expand([str(tmp_path / "b.pt"), str(tmp_path / "a.pt"), "-"])
    assert [one.name for one in inputs] == [str(tmp_path / "b.pt"), str(tmp_path / "a.pt"), "-"]
    assert {one.found_in for one in inputs} == {None}


def test_a_recording_is_a_folder_of_its_ranks(tmp_path: Path) -> None:
    for rank in (0, 1):
        _touch(tmp_path / "run.kvtrace" / f"tp{rank}-pp0-dp0.kvtrace" / "manifest.json")
    _touch(tmp_path / "old.kvtrace" / "000000.pt")
    names = [os.path.relpath(name, tmp_path) for name in _names(str(tmp_path))]
    assert names == [
        "old.kvtrace",
        "run.kvtrace/tp0-pp0-dp0.kvtrace",
        "run.kvtrace/tp1-pp0-dp0.kvtrace",
    ]


def test_what_cannot_be_expanded_is_an_input_with_a_problem(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    _touch(tmp_path / "a.pt")
    names = [str(tmp_path / "empty"), str(tmp_path / "a.pt"), "memory://none/*.pt", "no://x"]
    inputs = expand(names)
    assert [one.name for one in inputs] == names
    problems = ["" if one.problem is None else one.problem.message for one in inputs]
    assert "holds no trace" in problems[0]
    assert problems[1] == ""
    assert "matches nothing" in problems[2]
    assert "cannot be read" in problems[3]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_links_that_lead_back_or_nowhere_come_to_an_end(scheme: str, tmp_path: Path) -> None:
    folder = tmp_path / "a folder #1"
    _touch(folder / "a.pt")
    (folder / "back").symlink_to(folder)
    (folder / "nowhere.pt").symlink_to(tmp_path / "none")
    inputs = expand([f"{scheme}{folder}"])
    assert [one.name for one in inputs] == [f"{scheme}{folder}/{n}" for n in ("a.pt", "nowhere.pt")]
    assert {one.problem for one in inputs} == {None}


@pytest.mark.parametrize("broken", ["b", "b.pt", ""])
def test_what_a_store_says_nothing_of_hides_nothing_beside_it(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fsspec.filesystem("memory")
    store.store.clear()
    for name in ("a.pt", "b/x.pt", "b.pt", "c.pt"):
        store.pipe(f"/bucket/{name}", b"x")
    call = "info" if broken else "ls"
    real = getattr(MemoryFileSystem, call)

    def failing(self: Any, path: str, *args: Any, **options: Any) -> Any:
        if path.rstrip("/").endswith(f"bucket/{broken}".rstrip("/")):
            raise RuntimeError("connection reset")
        return real(self, path, *args, **options)

    monkeypatch.setattr(MemoryFileSystem, call, failing)
    inputs = expand(["memory://bucket"])
    store.store.clear()
    wrong = {one.name: one.problem.message for one in inputs if one.problem is not None}
    assert list(wrong) == [f"memory://bucket/{broken}".rstrip("/")]
    assert "connection reset" in wrong[f"memory://bucket/{broken}".rstrip("/")]
    fine = [one.name.removeprefix("memory://bucket/") for one in inputs if one.problem is None]
    everything = {"a.pt", "b/x.pt", "b.pt", "c.pt"}
    hidden = {"b": {"b/x.pt"}, "b.pt": {"b.pt"}, "": everything}[broken]
    assert set(fine) == everything - hidden


def test_a_pipe_is_not_handed_to_another_process(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("-", str(tmp_path / "pipe")):
        with pytest.raises(UsageError, match="a pipe cannot be handed"):
            refuse_pipes(expand([name]))
    refuse_pipes(expand([str(tmp_path / "no.pt"), "memory://x.pt"]))
