"""``kvcanary check-capacities``: exit codes, JSON, text, errors, start-up."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import ROOT, Ran, run
from tests.serving_read.test_log import NEW

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from syrupy.assertion import SnapshotAssertion

    Run = Callable[..., Ran]

__all__ = ["run"]

LOW = "configs/low_cuda_graph_max_bs.yaml"
GPU = ("--gpu", "h100", "--model-config", "configs/models/gqa_8b.json", "--weights-bytes", "16GB")
S01 = "tests/data/scenarios/S01_use_after_free.jsonl"


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["configs/single_gpu.yaml", *GPU], 0),
        ([LOW, *GPU], 0),
        ([LOW, *GPU, "--peak-batch-size", "8"], 0),
        ([LOW, *GPU, "--peak-batch-size", "9"], 1),
        ([LOW, *GPU, "--peak-batch-size", "9", "--exit-zero"], 0),
        ([LOW, *GPU, "--trace", S01], 0),
        (["configs/single_gpu.yaml"], 5),
        (["configs/mla_refused.yaml"], 5),
        ([], 2),
        (["-", "-"], 2),
        ([LOW, "--no-such-option"], 2),
        ([LOW, "--gpu", "abacus"], 2),
        ([LOW, "--gpu-mem", "much"], 2),
        ([LOW, "--gpus", "0"], 2),
        ([LOW, "--set", "x"], 2),
        ([LOW, "--weights-bytes", "heavy"], 2),
        ([LOW, "--peak-batch-size", "0"], 2),
        ([LOW, "--log", "pyproject.toml"], 4),
        (["no/such.yaml"], 4),
        (["configs"], 4),
        ([S01], 4),
        ([LOW, "--sglang-version", "0.5.23"], 4),
        ([LOW, "--sglang-version", "new"], 4),
        ([LOW, "--trace", "README.md"], 4),
        ([LOW, "--model-config", "README.md"], 4),
        ([LOW, "--against", "no/such.yaml"], 4),
        ([LOW, *GPU, "-o", "/no/such/folder/x"], 4),
    ],
)
def test_exit_code(run: Run, args: list[str], code: int) -> None:
    ran = run("check-capacities", *args)
    assert ran.code == code, ran.err
    assert "Traceback" not in ran.err
    if code in (2, 4):
        assert ran.out == ""


def test_the_failing_configuration_as_text(run: Run, snapshot: SnapshotAssertion) -> None:
    ran = run("check-capacities", LOW, *GPU, "--peak-batch-size", "12")
    assert ran.out == snapshot
    assert ran.err == snapshot


def test_narrow_terminals_get_blocks() -> None:
    from kvcanary_cli.cli.check_capacities import make_report
    from kvcanary_cli.cli.serving_options import ServingOptions
    from kvcanary_cli.report.capacities_text import render

    options = ServingOptions(
        sources=[str(ROOT / LOW)],
        words=[],
        version=None,
        gpu_mem="80GB",
        gpu=None,
        gpus=None,
        model_config=None,
        weights_bytes=None,
        settings=[],
        launch=None,
        traces=[],
        logs=[],
        peak_batch_size=12,
        peak_tokens=None,
    )
    report, notes = make_report(options, None)
    assert notes == ["--gpu-mem 80GB: 80 GB class taken as 81559 MiB (H100 80 GB)"]
    text = "\n".join(str(part) for part in render(report, width=80, verbose=False))
    assert "verdict      FAILS" in text
    assert "forward_batch.batch_size=12 exceeds pre-allocated write_req_capacity=8" in text


def test_json(run: Run) -> None:
    ran = run("check-capacities", LOW, *GPU, "--peak-batch-size", "12", "--format", "json")
    value = json.loads(ran.out)
    assert (value["schema_version"], value["command"]) == (1, "check-capacities")
    assert value["verdict"] == "violations"
    assert value["resolved"]["cuda_graph_max_bs"] == {"value": 8, "source": f"{LOW}:5:1"}
    verify = value["capacities"]["per_forward_verify_capacity"]
    assert verify["formula"] == "3 * pool_slot_count"
    assert verify["from"] == ["pool_slot_count"]
    assert verify["value"] == 3 * value["resolved"]["pool_slot_count"]["value"]
    (batch,) = [check for check in value["checks"] if check["code"] == "KVC-B03"]
    assert batch["name"] == "batch_size"
    assert (batch["limit"], batch["demand"], batch["margin"], batch["ok"]) == (8, 12, -4, False)
    assert batch["demand_source"] == "--peak-batch-size"
    first = batch["fixes"][0]
    assert (first["flag"], first["from"], first["to"]) == ("--cuda-graph-max-bs-decode", 8, 12)
    assert isinstance(first["cost_bytes"], int)
    assert first["why"]
    assert value["workspace_bytes"] > 0
    assert value["canary_buffer_bytes"] == 128 * value["resolved"]["pool_slot_count"]["value"]
    assert value["unknown"] == []


def test_json_of_the_unknown(run: Run) -> None:
    value = json.loads(run("check-capacities", "configs/single_gpu.yaml", "--format", "json").out)
    assert value["verdict"] == "not_checked"
    assert not {entry["name"] for entry in value["unknown"]} & value["resolved"].keys()
    assert all(entry["why"] and entry["give"] for entry in value["unknown"])
    assert all(check["ok"] is not False for check in value["checks"])


def test_demand_of_a_trace(run: Run) -> None:
    ran = run("check-capacities", LOW, *GPU, "--trace", S01, "--format", "json")
    demands = [d for d in json.loads(ran.out)["demands"] if d["observed"]]
    forwards = [
        event
        for line in (ROOT / S01).read_text().splitlines()
        if (event := json.loads(line)).get("kind") == "forward"
    ]
    by_quantity = {d["quantity"]: d["value"] for d in demands}
    assert by_quantity["batch_size"] == max(len(event["reqs"]) for event in forwards)
    assert by_quantity["tokens"] == max(len(event["positions"]) for event in forwards)
    assert all(d["source"].startswith(f"{S01} step ") for d in demands)


def test_demand_of_a_log(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(NEW)
    ran = run("check-capacities", LOW, *GPU, "--log", str(log), "--format", "json")
    (batch,) = [c for c in json.loads(ran.out)["checks"] if c["code"] == "KVC-B03"]
    assert batch["demand"] == 33
    assert batch["demand_source"] == f"{log}:13 (KVC-B03 raised)"


def test_against_a_log(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(NEW)
    ran = run("check-capacities", LOW, *GPU, "--against", str(log), "--format", "json")
    value = json.loads(ran.out)
    by_name = {entry["name"]: entry for entry in value["differences"]}
    assert by_name["cuda_graph_max_bs"]["here"] == 8
    assert by_name["cuda_graph_max_bs"]["there"] == 32
    rows = by_name["per_forward_write_req_capacity"]
    assert (rows["here"], rows["there"]) == (8, 32)
    assert rows["effect"] == "buffers of 8 meet KVC-B03 under a load of 9 to 32"
    same = run("check-capacities", LOW, *GPU, "--against", LOW)
    assert f"no difference to {LOW}" in same.out


def test_stdin(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "python -m sglang.launch_server --max-running-requests 8 --cuda-graph-max-bs-decode 8"

    class Stdin:
        buffer = io.BytesIO(text.encode())

    monkeypatch.setattr(sys, "stdin", Stdin())
    ran = run("check-capacities", "-", "--peak-batch-size", "12", "-q")
    assert ran.code == 1
    assert "KVC-B03" in ran.out


def test_a_command_after_dashes(run: Run) -> None:
    ran = run(
        "check-capacities",
        *GPU,
        "configs/single_gpu.yaml",
        "--format",
        "json",
        "--",
        "python",
        "-m",
        "sglang.launch_server",
        "--max-running-requests",
        "64",
    )
    value = json.loads(ran.out)
    assert value["sources"] == ["configs/single_gpu.yaml", "command line"]
    assert value["resolved"]["req_to_token_pool_size"]["value"] == 64
    assert value["resolved"]["context_length"]["value"] == 32768


def test_one_of_several_commands(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "pd.sh"
    script.write_text(
        "sglang serve --max-running-requests 64 --disaggregation-mode prefill &\n"
        "sglang serve --max-running-requests 32 --disaggregation-mode decode\n"
    )
    assert run("check-capacities", str(script), *GPU).code == 4
    ran = run("check-capacities", str(script), *GPU, "--launch", "2", "--format", "json")
    value = json.loads(ran.out)
    assert value["resolved"]["req_to_token_pool_size"]["value"] == 32
    assert value["resolved"]["disaggregation_mode"]["source"].startswith(f"{script}:2:")


def test_draft_model(run: Run) -> None:
    args = ("configs/eagle.yaml", *GPU, "--format", "json")
    assumed = json.loads(run("check-capacities", *args).out)
    told = json.loads(
        run("check-capacities", *args, "--draft-model-config", "configs/models/gqa_8b.json").out
    )
    cells = [value["resolved"]["cell_bytes"]["value"] for value in (assumed, told)]
    # 32 layers of 4096 bytes, and as many for a draft of one layer or of 32.
    assert cells == [33 * 4096, 64 * 4096]


def test_output_file_and_quiet(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    ran = run("check-capacities", LOW, *GPU, "-q", "-o", str(path))
    assert (ran.out, ran.err) == ("", "")
    assert path.read_text() == "ok: 7 checks passed\n"


def test_all_problems_come_in_one_run(run: Run, tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.sh"
    first.write_text("tp-size: x\nkv-canary: off\n")
    second.write_text("sglang serve --page-size x --tpp 1\n")
    ran = run("check-capacities", str(first), str(second), "--sglang-version", "0.5.23")
    assert ran.code == 4
    assert "error: 4 problems in the input:" in ran.err
    for place in (f"{first}:1:10:", f"{first}:2:12:", f"{second}:1:26:", f"{second}:1:28:"):
        assert place in ran.err


def test_hostile_names_stay_on_their_line(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text('"a\\e[31m\\nb [/x]": 1\n')
    ran = run("check-capacities", str(path))
    assert ran.code == 4
    assert "\x1b" not in ran.err
    assert "\\x1b[31m\\nb [/x]" in ran.err


@pytest.mark.parametrize("command", ["check-capacities", "suggest-flags"])
def test_start_without_heavy_libraries(command: str) -> None:
    code = (
        "import sys\n"
        "from kvcanary_cli.cli.main import main\n"
        f"status = main([{command!r}, {LOW!r}, '--gpu', 'h100', '--peak-batch-size', '12', '-q'])\n"
        "heavy = [m for m in ('torch', 'triton', 'numba', 'numpy') if m in sys.modules]\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["check-capacities", "suggest-flags"])
def test_help_ends_with_examples(run: Run, command: str) -> None:
    text = run(command, "--help").out
    examples = text[text.index("Examples:") :]
    assert examples.count(f"kvcanary {command} ") >= 2
