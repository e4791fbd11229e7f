"""What a person sees of a replay."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import EXAMPLES, ROOT, SCENARIOS, Ran

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from syrupy.assertion import SnapshotAssertion

    Run = Callable[..., Ran]

S01 = "tests/data/scenarios/S01_use_after_free.jsonl"
SUMMARY = re.compile(
    r"^SUMMARY: kvcanary replay: (CLEAN|CORRUPT|CAPACITY|NOT CHECKED): "
    r"[\d,]+ findings?, [\d,]+ violations?(, first at step \d+)?"
    r"(, [\d,]+ broken ownership rules?)?, [\d,]+ capacity violations?, "
    r"[\d,]+ steps? and [\d,]+ (entry|entries) checked"
    r"(, [\d,]+ (entry|entries) not checked)?(, \d+ traces)?"
    r"(, only steps [^,]* checked)?(, only .*: [\d,]+ violations? elsewhere)?$"
)


@pytest.mark.parametrize(
    "scenario",
    ["S01_use_after_free", "S13_pad_or_dummy_write", "S15_position_misalign", "S20_key_aliasing"],
)
def test_text_in_a_pipe(run: Run, snapshot: SnapshotAssertion, scenario: str) -> None:
    ran = run("replay", f"tests/data/scenarios/{scenario}.jsonl")
    assert ran.out == snapshot
    assert SUMMARY.match(ran.out.splitlines()[-1])


def test_capacity_violations_are_a_table(run: Run, snapshot: SnapshotAssertion) -> None:
    ran = run("replay", S01, "--capacity", "write_req=1,write_entry=4,verify=3")
    assert ran.code == 1
    assert ran.out == snapshot


def test_json_of_a_scenario(run: Run, snapshot: SnapshotAssertion) -> None:
    ran = run("replay", S01, "--format", "json")
    assert ran.code == 1
    assert json.dumps(json.loads(ran.out), indent=1) == snapshot


def test_jsonl_of_a_scenario(run: Run) -> None:
    lines = [json.loads(line) for line in run("replay", S01, "--format", "jsonl").out.splitlines()]
    assert [line["kind"] for line in lines] == [
        *["violation"] * 4,
        "ownership",
        "finding",
        "summary",
    ]
    assert lines[-1]["violations"] == 4


def test_log_lines_are_the_servers(run: Run, snapshot: SnapshotAssertion) -> None:
    ran = run("replay", S01, "--log-lines")
    assert ran.out == snapshot
    assert len(ran.out.splitlines()) == 8  # 4 violations, each seen by HEAD and TAIL


def test_a_filter_is_told_and_what_it_leaves_out(run: Run) -> None:
    ran = run("replay", S01, "--slot", "1")
    assert ran.code == 0
    assert "FILTER      slots 1" in ran.out
    assert ran.out.splitlines()[-1].endswith("only slots 1: 4 violations elsewhere")
    data = json.loads(run("replay", S01, "--slot", "5", "--format", "json").out)
    assert data["coverage"]["filters"] == ["slots 5"]
    assert (len(data["violations"]), data["coverage"]["filtered_out"]) == (1, 3)


def test_a_filter_that_names_nothing_beside_one_that_does_is_warned_of(run: Run) -> None:
    ran = run("replay", S01, "--req", "B", "--req", "nobody")
    assert ran.code == 1
    assert "warning: --req nobody" in ran.err


def test_log_lines_say_what_they_cannot_show(run: Run) -> None:
    ran = run("replay", "tests/data/scenarios/S20_key_aliasing.jsonl", "--log-lines")
    assert (ran.code, ran.out) == (1, "")
    assert "1 finding shows no violation" in ran.err


def test_only_the_summary_when_quiet(run: Run) -> None:
    ran = run("replay", S01, "-q")
    assert len(ran.out.splitlines()) == 1
    assert SUMMARY.match(ran.out.strip())
    assert ran.err == ""


def test_max_rows_counts_what_it_leaves_out(run: Run) -> None:
    ran = run("replay", S01, "--max-rows", "1")
    assert "... 3 more rows" in ran.out


def _in_terminal(columns: int, *args: str, env: dict[str, str] | None = None) -> str:
    """Output of the command in a terminal of that width."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kvcanary_cli", *args],
        stdout=child,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color", **(env or {})},
    )
    os.close(child)
    data = b""
    while True:
        try:
            chunk = os.read(parent, 65536)
        except OSError:
            break
        if not chunk:
            break
        data += chunk
    process.wait()
    os.close(parent)
    return data.decode()


def test_nothing_is_cut_in_a_narrow_terminal() -> None:
    text = _in_terminal(60, "replay", S01, env={"NO_COLOR": "1"})
    flat = re.sub(r"\s+", "", text)
    for word in ("verify_chain_hash", "target/FULL", "seam", "expectedtoken"):
        assert word in flat
    assert "…" not in text
    plain = re.sub(r"\x1b\[[0-9;]*m|\r", "", text)
    # Lines for grep stay one line for whoever copies them; the terminal folds them.
    lines = [x for x in plain.splitlines() if not x.startswith("SUMMARY: kvcanary")]
    assert max(len(line) for line in lines) <= 60


def test_lines_for_grep_are_whole_in_a_narrow_terminal(run: Run) -> None:
    def summaries(text: str) -> list[str]:
        plain = re.sub(r"\x1b\[[0-9;]*m|\r", "", text)
        return [line for line in plain.splitlines() if line.startswith("SUMMARY: ")]

    whole = summaries(run("replay", S01).out)
    assert len(whole) == 2
    assert summaries(_in_terminal(40, "replay", S01)) == whole


def test_colour_follows_terminal_and_no_color() -> None:
    assert "\x1b[" in _in_terminal(200, "replay", S01)
    plain = _in_terminal(200, "replay", S01, env={"NO_COLOR": "1"})
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", plain)


def test_a_closed_pipe_keeps_the_exit_code() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kvcanary_cli", "replay", S01, "--format", "jsonl"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    error = process.stderr.read()
    assert process.wait() == 1, error
    assert b"Traceback" not in error
    assert b"BrokenPipe" not in error


EVIL = ["[/x]", "[bold red]r[/]", "a\x1b[2Jb", "line\nbreak", "\u202egnp", "\ud83d\ude00ok", ""]


@pytest.mark.parametrize("name", EVIL)
def test_request_ids_are_data(run: Run, tmp_path: Path, name: str) -> None:
    name = name.encode("utf-16", "surrogatepass").decode("utf-16")
    text = (SCENARIOS / "S01_use_after_free.jsonl").read_text()
    path = tmp_path / "evil.jsonl"
    path.write_text(text.replace('"B"', json.dumps(name)))
    ran = run("replay", str(path))
    assert ran.code == 1
    assert "\x1b" not in ran.out
    assert "\u202e" not in ran.out
    row = next(line for line in ran.out.splitlines() if "verify_token" in line)
    assert len(row.split("  ")) > 5
    data = json.loads(run("replay", str(path), "--format", "json").out)
    assert {v["req"] for v in data["violations"]} == {name}


def test_several_traces_carry_their_rank(run: Run) -> None:
    folder = "tests/data/scenarios/S21_rank_divergence"
    ran = run("replay", S01, f"{folder}/rank1.jsonl", "--format", "json")
    data = json.loads(ran.out)
    assert ran.code == 1
    assert [t["trace"]["rank"] for t in data["traces"]] == ["tp0-pp0-dp0", "tp0-pp1-dp0"]
    assert all(v["rank"] == 0 for v in data["violations"])


def test_a_folder_stands_for_its_traces(run: Run) -> None:
    ran = run("replay", "tests/data/scenarios/S21_rank_divergence", "--format", "json")
    assert len(json.loads(ran.out)["traces"]) == 2


def test_result_goes_to_a_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    ran = run("replay", S01, "--format", "json", "-o", str(path))
    assert (ran.code, ran.out) == (1, "")
    assert json.loads(path.read_text())["verdict"] == "corrupt"


def test_demo_finds_the_corruption(run: Run) -> None:
    ran = run("demo")
    assert ran.code == 0
    assert "CORRUPT" in ran.out
    assert "Try next" in ran.err


@pytest.mark.parametrize("example", sorted(p.name for p in EXAMPLES.iterdir() if p.suffix != ".md"))
def test_examples_replay(run: Run, example: str) -> None:
    expected = 0 if example.split(".")[0] in ("clean_radix", "vllm_clean") else 1
    assert run("replay", f"examples/{example}", "-q").code == expected


@pytest.mark.parametrize("quiet", [[], ["--quiet"]], ids=["", "quiet"])
def test_waiting_for_the_kernel_of_large_traces_is_said(
    run: Run, monkeypatch: pytest.MonkeyPatch, quiet: list[str]
) -> None:
    from kvcanary_cli.backends.cpu import warm
    from kvcanary_cli.replay import compiled

    trace = str(SCENARIOS / "S01_use_after_free.jsonl")
    assert "large traces" not in run("replay", trace).err
    monkeypatch.setattr(compiled, "_LEAST_EVENTS", 0)
    monkeypatch.setattr(warm, "is_complete", lambda what: what != warm.EVENTS)
    warm.event_kernel.cache_clear()
    ran = run("replay", trace, *quiet)
    assert ran.code == 1
    assert ran.err.count("compiling kernels for large traces") == (0 if quiet else 1)


def test_lost_events_are_in_the_last_line(run: Run, tmp_path: Path) -> None:
    lines = (SCENARIOS / "S16_wrong_token_fed.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    for i, event in enumerate(events[1:]):
        event["i"] = i + 3 * (i > 2)
    trace = tmp_path / "gap.jsonl"
    trace.write_text("".join(json.dumps(event) + "\n" for event in events))
    last = run("replay", str(trace)).out.splitlines()[-1]
    assert last.endswith(" checked, 3 events lost in recording")


def test_absent_tokens_hide_what_only_they_show_whatever_the_header_says(
    run: Run, tmp_path: Path
) -> None:
    lines = (SCENARIOS / "S16_wrong_token_fed.jsonl").read_text().splitlines()
    head, *events = [json.loads(line) for line in lines]
    assert "history" in head["records"]
    head["tokens"] = "absent"
    kept = [event for event in events if event["kind"] != "history"]
    for event in kept:
        event.pop("input_ids", None)
    trace = tmp_path / "absent.jsonl"
    trace.write_text("".join(json.dumps(event) + "\n" for event in [head, *kept]))
    (blind,) = [line for line in run("replay", str(trace)).out.splitlines() if "BLIND" in line]
    assert "wrong_token_fed" in blind
