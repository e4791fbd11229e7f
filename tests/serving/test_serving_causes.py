"""What a report says of the verify capacity, the vision tower and old versions."""

from __future__ import annotations

import json

import pytest

from kvcanary_cli.report.capacities_json import check_json
from kvcanary_cli.report.capacities_text import render
from kvcanary_cli.serving.check_report import build_report
from kvcanary_cli.serving.check_result import Status
from kvcanary_cli.serving.demand import stated_demands
from kvcanary_cli.serving.model_config import parse_model_config
from kvcanary_cli.serving.read_overrides import set_statement
from kvcanary_cli.serving.read_source import read_source_text
from kvcanary_cli.serving.read_sources import Reading, merge
from tests.serving.launches import GQA, launch


def reading(text: str, *settings: str, version: str = "0.5.23") -> Reading:
    given = [set_statement(one, version) for one in settings]
    return merge([read_source_text(text, "c.yaml")], given, version=version)


@pytest.mark.parametrize(
    ("capacity", "status", "cause", "demand"),
    [
        (3000, Status.FAILS, "the server allocated 3000 entries", 4000),
        (4000, Status.OK, "never: 4 requests of full context are 4000 entries", 4000),
        (90_000, Status.OK, "never: 4 requests of full context are 4000 entries", 4000),
    ],
)
def test_the_verify_check_and_its_cause_agree(
    capacity: int, status: Status, cause: str, demand: int
) -> None:
    found = build_report(
        reading(
            "max-running-requests: 4\ncontext-length: 1000\n",
            "max_total_num_tokens=50000",
            f"canary_verify_capacity={capacity}",
        )
    )
    (check,) = [one for one in found.checks if one.code == "KVC-B08"]
    assert (check.status, check.demand) == (status, demand)
    assert check.cause.startswith(cause)
    assert (check.status is Status.FAILS) == bool(check.message)


def test_a_peak_above_the_pool_reads_more() -> None:
    given = reading("max-running-requests: 4\ncontext-length: 1000\n", "max_total_num_tokens=50000")
    report = build_report(given, stated_demands(peak_batch_size=7, peak_tokens=None))
    (check,) = [one for one in report.checks if one.code == "KVC-B08"]
    assert check.demand == 7000
    assert check.cause.startswith("never: 7 requests of full context are 7000 entries")


@pytest.mark.parametrize("key", ["num_hidden_layers", "depth", "num_layers"])
def test_the_layers_of_a_vision_tower_under_any_name(key: str) -> None:
    config = {**GQA, "vision_config": {key: 32, "hidden_size": 1280}}
    assert parse_model_config(config, "m").vision_layers == 32
    found = launch("0.5.23", gpu_memory_mib=81559, model_config=config)
    plain = launch("0.5.23", gpu_memory_mib=81559, model_config=GQA)
    ratio = 32 * 1280**2 / (24 * 1024**2)
    lowered = found.value("mem_fraction_static") / plain.value("mem_fraction_static")
    # The prefill graphs, off for a multimodal model, leave a little more.
    assert lowered == pytest.approx(0.95 * (1 - 0.1 * (ratio - 1)), abs=0.01)
    assert not any("vision tower" in one.text for one in found.remarks)


def test_a_vision_tower_without_a_size_is_told() -> None:
    config = {**GQA, "vision_config": {"patch_size": 14}}
    found = launch("0.5.23", gpu_memory_mib=81559, model_config=config)
    assert any("vision tower" in one.text for one in found.remarks)


def test_a_version_below_the_oldest_read_is_told() -> None:
    report = build_report(reading("tp-size: 2\n", version="0.3.0"))
    sentence = "0.3.0 is older than every version that was read; the rules of 0.4.0.post2 apply"
    shown = [str(part) for part in render(report, width=120, verbose=False)]
    assert f"server: sglang 0.4.0.post2 ({sentence})" in shown
    version = json.loads(check_json(report))["server_version"]
    assert version["stated"] == "0.3.0"
    assert version["basis"] == sentence
