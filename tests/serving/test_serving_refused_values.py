"""Values that a server would not take: refused with its own words, or told as doubtful."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.serving.option_values import parse_option_value
from kvcanary_cli.serving.options import OptionError, lookup
from tests.serving.launches import GQA, MLA, launch

if TYPE_CHECKING:
    from kvcanary_cli.serving.values import Resolution

REMOVED = "tc_piecewise was removed; select breakable, full, or disabled"


def messages(found: Resolution, *, certain: bool = True) -> list[str]:
    return [one.message for one in found.refusals if one.certain is certain]


@pytest.mark.parametrize("canary", ["none", "log"])
@pytest.mark.parametrize(
    "values",
    [
        {"cuda_graph_backend_prefill": "tc_piecewise"},
        {"cuda_graph_config": {"prefill": {"backend": "tc_piecewise"}}},
    ],
)
def test_the_compiled_prefill_graph_is_gone_from_0_5_22_on(
    values: dict[str, Any], canary: str
) -> None:
    for version in ("0.5.22", "0.5.23"):
        found = launch(version, kv_canary=canary, model_config=GQA, gpu_memory_mib=81559, **values)
        assert messages(found) == [REMOVED]
        (name,) = values
        assert found.refusals[0].source == f"{name} of the test"
    before = launch("0.5.20", kv_canary=canary, model_config=GQA, gpu_memory_mib=81559, **values)
    assert REMOVED not in messages(before)


def test_replicas_and_attention_workers_exclude_each_other() -> None:
    found = launch("0.5.23", tp_size=8, dp_size=2, attn_dp_size=4)
    assert messages(found) == ["dp_size 2 together with attn_dp_size 4"]
    assert messages(launch("0.5.23", tp_size=8, dp_size=1, attn_dp_size=4)) == []
    assert messages(launch("0.5.23", tp_size=8, dp_size=2)) == []
    old = launch("0.5.23", tp_size=8, dp_size=2, attn_dp_size=4, enable_dp_attention=True)
    assert messages(old) == []
    assert messages(old, certain=False) == ["dp_size 2 together with attn_dp_size 4"]


def test_attention_workers_divide_the_ranks() -> None:
    found = launch("0.5.23", tp_size=6, attn_dp_size=4)
    assert messages(found) == ["tp_size 6 is no multiple of the attention DP size 4"]


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_unknown_graph_back_ends_are_refused(phase: str) -> None:
    option = lookup(f"--cuda-graph-backend-{phase}", "0.5.23")
    assert parse_option_value(option, ["breakable"], "0.5.23") == "breakable"
    with pytest.raises(OptionError, match="invalid choice: 'breakabel'"):
        parse_option_value(option, ["breakabel"], "0.5.23")
    with pytest.raises(InputError, match=f"{phase}.backend is 'breakabel'"):
        launch(cuda_graph_config={phase: {"backend": "breakabel"}})
    with pytest.raises(InputError, match=f"{phase}.backend is 7"):
        launch(cuda_graph_config={phase: {"backend": 7}})


def test_misspelt_keys_of_the_graph_config() -> None:
    with pytest.raises(InputError, match="no phase 'decod'") as caught:
        launch(cuda_graph_config={"decod": {"max_bs": 8}})
    assert caught.value.hint == "did you mean decode?"
    with pytest.raises(InputError, match=r"no key 'decode\.maxbs'"):
        launch(cuda_graph_config={"decode": {"maxbs": 8}})
    found = launch(cuda_graph_config={"prefill": {"some_new_thing": 8}})
    assert any("prefill.some_new_thing is not known" in one.text for one in found.remarks)
    known = launch(cuda_graph_config={"prefill": {"max_context_size": 8, "backend": "full"}})
    assert not any("is not known and is left out" in one.text for one in known.remarks)


@pytest.mark.parametrize(
    ("name", "bad", "meant", "good"),
    [
        ("kv_cache_dtype", "fp8e4m3", "fp8_e4m3", ("auto", "fp8_e5m2", "bf16", "nvfp4", "mxfp8")),
        ("speculative_algorithm", "EAGEL3", "EAGLE3", ("EAGLE", "eagle3", "NEXTN", "NGRAM")),
    ],
)
def test_values_of_no_known_version_are_doubtful(
    name: str, bad: str, meant: str, good: tuple[str, ...]
) -> None:
    (refusal,) = launch("0.5.23", **{name: bad}).refusals
    assert not refusal.certain
    assert f"invalid choice: '{bad}'" in refusal.message
    assert refusal.fix.startswith(f"did you mean {meant}? ")
    for value in good:
        assert launch("0.5.23", **{name: value}).refusals == ()


def test_the_page_of_fa4_needs_the_model() -> None:
    found = launch("0.5.23", attention_backend="fa4", max_total_tokens=100)
    assert "page_size" in found.unknown
    assert "pool_slot_count" in found.unknown
    assert (
        launch("0.5.23", attention_backend="fa4", max_total_tokens=256)
        .values["pool_slot_count"]
        .value
        == 256
    )
    assert launch("0.5.23", attention_backend="fa4", page_size=64).value("page_size") == 64
    assert launch("0.5.23", attention_backend="fa4", model_config=GQA).value("page_size") == 128
    assert launch("0.5.23", attention_backend="fa4", model_config=MLA).value("page_size") == 1


@pytest.mark.parametrize("platform", ["hip", "xpu"])
@pytest.mark.parametrize("version", ["0.5.14", "0.5.16", "0.5.20"])
def test_the_prefill_graph_outside_cuda_is_told(version: str, platform: str) -> None:
    values = {"platform": platform, "model_config": GQA, "kv_canary": "log"}
    found = launch(version, **values)
    assert found.value("prefill_graph_backend") == "disabled"
    assert found.source("prefill_graph_backend") == (
        f"the compiled prefill graph does not run on platform {platform}"
    )
    assert any("tc_piecewise, which the canary refuses" in one.text for one in found.remarks)
    sure = launch(version, **values, cuda_graph_backend_prefill="disabled")
    assert sure.source("prefill_graph_backend") == "cuda_graph_backend_prefill of the test"
    assert not any("tc_piecewise" in one.text for one in sure.remarks)
