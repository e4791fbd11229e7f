"""Versions, their order, and GPU memory classes."""

from __future__ import annotations

import pytest

from kvcanary_cli.errors import InputError, UsageError
from kvcanary_cli.serving.gpus import (
    MIB_BY_GPU,
    class_text,
    gpu_key,
    is_hip,
    is_hopper,
    memory_of_gpu,
    parse_gpu_memory,
)
from kvcanary_cli.serving.versions import NEWEST, READ_VERSIONS, choose_version, parse_version


def test_order() -> None:
    texts = ["0.4.9.post6", "0.4.10.post2", "0.5.9", "0.5.10", "0.5.12", "0.5.12.post1", "0.5.13"]
    versions = [parse_version(text) for text in texts]
    assert versions == sorted(versions)
    assert list(READ_VERSIONS) == sorted(READ_VERSIONS)


@pytest.mark.parametrize(
    ("text", "release", "post"),
    [
        ("v0.5.13.post1", (0, 5, 13), 1),
        ("0.5.14.dev3+g12ab", (0, 5, 14), 0),
        ("0.5.3rc0", (0, 5, 3), 0),
        (" 0.5.16-cu130 ", (0, 5, 16), 0),
    ],
)
def test_forms(text: str, release: tuple[int, int, int], post: int) -> None:
    version = parse_version(text)
    assert (version.release, version.post) == (release, post)


@pytest.mark.parametrize("text", ["", "main", "0.5", "0.5.x", "0.5.3.4", "0.5.3 beta", "9" * 99])
def test_no_version(text: str) -> None:
    with pytest.raises(InputError, match="is not a server version"):
        parse_version(text)


def test_version_that_was_read() -> None:
    choice = choose_version("0.5.13.post1")
    assert (choice.release, choice.basis) == ((0, 5, 13), "given")


@pytest.mark.parametrize(
    ("text", "rules", "word"),
    [
        (None, NEWEST, "no version was stated"),
        ("0.5.17", "0.5.16", "was not read"),
        ("0.5.19", "0.5.18", "was not read"),
        ("0.5.21", "0.5.20", "was not read"),
        ("0.6.0", NEWEST, "newer than every version"),
        ("0.3.6", "0.4.0.post2", "older than every version"),
    ],
)
def test_assumed_version_is_said(text: str | None, rules: str, word: str) -> None:
    choice = choose_version(text)
    assert str(choice.rules) == rules
    assert word in choice.basis
    assert rules in choice.basis


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("h100", 81559),
        ("NVIDIA H100 80GB HBM3", 81559),
        ("H200", 143771),
        ("NVIDIA H20-3e", 143771),
        ("NVIDIA L40S", 46068),
        ("NVIDIA GeForce RTX 5090", 32607),
        ("rtx 4090", 24564),
        ("NVIDIA RTX 6000 Ada Generation", 49140),
        ("NVIDIA A100-SXM4-80GB", 81920),
        ("NVIDIA A100-SXM4-40GB", 40960),
        ("NVIDIA H100 PCIe", 81559),
        ("b200", 183359),
    ],
)
def test_gpu_by_name(name: str, mib: int) -> None:
    assert memory_of_gpu(name).mib == mib


def test_unknown_gpu_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        memory_of_gpu("h1000")
    assert "h100" in str(caught.value.hint)
    assert gpu_key("nothing like it") is None


@pytest.mark.parametrize(
    ("text", "mib", "exact"),
    [
        ("81559MiB", 81559, True),
        ("81559", 81559, True),
        ("81559 MB", 81559, True),
        ("80GB", 81559, False),
        ("80g", 81559, False),
        ("80", 81559, False),
        ("141GB", 143771, False),
        ("24gb", 24564, False),
        ("80GiB", 81920, True),
        ("100GB", 102400, False),
    ],
)
def test_memory_size(text: str, mib: int, exact: bool) -> None:
    memory = parse_gpu_memory(text)
    assert (memory.mib, memory.exact) == (mib, exact)
    assert str(mib) in memory.text


@pytest.mark.parametrize("text", ["", "0", "0GB", "-1", "lots", "80TB", "1e9"])
def test_no_memory_size(text: str) -> None:
    with pytest.raises(UsageError, match="is not a memory size"):
        parse_gpu_memory(text)


def test_kinds() -> None:
    assert is_hopper("NVIDIA H100 80GB HBM3")
    assert not is_hopper("b200")
    assert is_hip("mi300x")
    assert class_text(81559) == "80 GB class"
    assert all(1024 < mib < 400 * 1024 for mib in MIB_BY_GPU.values())
