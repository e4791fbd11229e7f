"""``kvcanary explain`` as it is called: text, JSON, exit codes, start-up."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.catalog import catalogue
from tests.catalog.test_log_scan import INSTALL, STATS
from tests.catalog.test_matching import B03, VIOLATION

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from syrupy.assertion import SnapshotAssertion

    Run = Callable[..., Any]

LOG = "\n".join(
    (
        f"[2026-01-02 03:04:05 TP0] {INSTALL}",
        f"[2026-01-02 03:04:06 TP0] {STATS.format(100, 0)}",
        f"[2026-01-02 03:04:07 TP0] {VIOLATION}",
        f"[2026-01-02 03:04:08 TP0] {VIOLATION.replace('TAIL_K', 'HEAD_K')}",
        "RuntimeError: " + B03,
        "kv-canary: a message of the future, number 3",
        "",
    )
)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "server.log"
    path.write_text(LOG, encoding="utf-8")
    return path


def test_an_entry_as_text(run: Run, snapshot: SnapshotAssertion) -> None:
    ran = run("explain", "kvc-b03")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == snapshot


def test_a_message_as_text(run: Run, snapshot: SnapshotAssertion) -> None:
    ran = run("explain", f"RuntimeError: {B03}")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == snapshot


def test_a_message_as_json(run: Run, snapshot: SnapshotAssertion) -> None:
    ran = run("explain", VIOLATION, "--format", "json")
    assert ran.code == 0
    result = json.loads(ran.out)
    result["tool"]["version"] = "0"
    assert result == snapshot


def test_a_log_as_text(run: Run, log: Path, snapshot: SnapshotAssertion) -> None:
    ran = run("explain", "--log", str(log))
    assert ran.code == 1
    assert ran.out.replace(str(log), "server.log") == snapshot


def test_a_log_as_json(run: Run, log: Path, snapshot: SnapshotAssertion) -> None:
    ran = run("explain", "--log", str(log), "--format", "json")
    assert ran.code == 1
    result = json.loads(ran.out)
    result["tool"]["version"] = "0"
    result["log"]["path"] = "server.log"
    assert result == snapshot


def test_the_list(run: Run) -> None:
    ran = run("explain", "--list")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert len(lines) == 1 + len(catalogue())
    for line, entry in zip(lines[1:], catalogue().values(), strict=True):
        assert line.split()[:2] == [entry.code, entry.severity.value]
        assert entry.title in line
    listed = json.loads(run("explain", "--list", "--format", "json").out)["catalogue"]
    assert [item["code"] for item in listed] == list(catalogue())


@pytest.mark.parametrize("code", list(catalogue()))
def test_every_entry_is_printed_whole(run: Run, code: str) -> None:
    ran = run("explain", code)
    assert ran.code == 0
    for heading in ("What it means", "When it happens", "What to do, best first", "Example"):
        assert f"\n{heading}\n" in ran.out
    assert catalogue()[code].message in ran.out
    (entry,) = json.loads(run("explain", code, "--format", "json").out)["entries"]
    for section in ("meaning", "when", "do", "related"):
        assert entry[section]


def test_several_arguments_and_unquoted_words(run: Run) -> None:
    result = json.loads(run("explain", "B03", VIOLATION, "kvc-r01", "--format", "json").out)
    codes = [entry["code"] for entry in result["entries"]]
    assert codes == ["KVC-B03", "KVC-V00", "KVC-V01", "KVC-V06", "KVC-R01"]
    ran = run("explain", "--format", "json", "--", *B03.split())
    assert ran.code == 0
    assert json.loads(ran.out)["entries"][0]["matched"]["fields"] == {"bs": "12", "cap": "8"}


def test_a_message_from_stdin(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(B03.encode() + b"\xff"))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert "KVC-B03" in run("explain", "-").out


def test_a_log_from_stdin(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LOG.encode())))
    ran = run("explain", "--log", "-")
    assert ran.code == 1
    assert ran.out.startswith("-: 6 lines")


def test_a_clean_log_and_an_empty_one(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"{INSTALL}\n{STATS.format(100, 0)}\n")
    ran = run("explain", "--log", str(path))
    assert ran.code == 0
    assert "reported nothing" in ran.out
    path.write_text("server started\n")
    ran = run("explain", "--log", str(path))
    assert ran.code == 5
    assert "nothing was concluded" in ran.err
    path.write_text("")
    assert run("explain", "--log", str(path)).code == 5


def test_unreadable_logs(run: Run, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.log"):
        ran = run("explain", "--log", str(path))
        assert ran.code == 4
        assert "cannot be read" in ran.err
        assert ran.out == ""


def test_a_result_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    ran = run("explain", "KVC-B03", "--format", "json", "-o", str(path))
    assert (ran.code, ran.out) == (0, "")
    assert json.loads(path.read_text())["entries"][0]["code"] == "KVC-B03"
    assert run("explain", "KVC-B03", "-o", str(tmp_path / "no" / "a")).code == 4


@pytest.mark.parametrize(
    "args", [[], ["KVC-B03", "--list"], ["--list", "--log", "x"], ["KVC-B03", "--log", "x"]]
)
def test_one_thing_at_a_time(run: Run, args: list[str]) -> None:
    ran = run("explain", *args)
    assert ran.code == 2
    assert "kvcanary explain --list" in ran.err


def test_a_wrong_code(run: Run) -> None:
    ran = run("explain", "KVC-A01", "KVC-BO3")
    assert (ran.code, ran.out) == (2, "")
    assert "did you mean KVC-B03?" in ran.err


def test_a_message_of_no_entry(run: Run) -> None:
    ran = run("explain", "kv-canary: something must be non-negative, got -1", "KVC-A01")
    assert ran.code == 5
    assert "KVC-B02" in ran.err
    assert "KVC-A01" in ran.out
    ran = run("explain", "the weather is fine", "--format", "json")
    assert ran.code == 5
    assert json.loads(ran.out)["unmatched"] == [{"text": "the weather is fine", "nearest": []}]


def test_hostile_text_stays_text(run: Run) -> None:
    ran = run(
        "explain", "kv-canary: kv_canary must be one of none/log/raise, got '[/x]\x07\x1b[2J'"
    )
    assert ran.code == 0
    assert "[/x]" in ran.out
    assert "\x07" not in ran.out
    assert "\x1b" not in ran.out


@pytest.mark.parametrize(
    "args",
    [["KVC-B03"], [B03], ["--list"], ["--log", "pyproject.toml"], ["--list", "--format", "json"]],
)
def test_nothing_heavy_is_imported(args: list[str]) -> None:
    code = (
        "import sys\n"
        "from kvcanary_cli.cli.main import main\n"
        f"main({['explain', *args]!r})\n"
        "heavy = {'torch', 'numpy', 'numba', 'triton', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_catalogue_needs_no_terminal_and_no_models() -> None:
    code = (
        "import sys\n"
        "from kvcanary_cli.catalog import catalogue, explain_text\n"
        "assert explain_text('kv-canary: lut_len must be non-negative, got -1')\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'typer', 'rich', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_ends_with_examples(run: Run) -> None:
    text = run("explain", "--help").out
    assert text[text.index("Examples:") :].count("kvcanary explain") >= 3


@pytest.mark.parametrize(
    "text",
    [
        "use_after_free",
        "late-write",
        "SUMMARY: kvcanary: double-alloc free_by_non_owner victim=A writer=B cause_event=1",
    ],
)
def test_a_class_of_findings_is_led_to_its_page(text: str, run: Run) -> None:
    ran = run("explain", text)
    assert ran.code == 5
    assert "kvcanary replay --explain-class" in ran.err
