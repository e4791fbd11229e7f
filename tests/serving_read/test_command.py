"""Launch commands: in scripts, in container definitions, after ``--``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.serving.read_command import read_script, read_words
from kvcanary_cli.serving.read_source import read_source_text
from kvcanary_cli.serving.read_sources import Reading, merge
from kvcanary_cli.serving.shell_words import ShellError, split_commands

if TYPE_CHECKING:
    from pathlib import Path


def values(reading: Reading) -> dict[str, object]:
    return {one.name: one.value for one in reading.given}


def script(text: str, version: str | None = "0.5.23", pick: int | None = None) -> Reading:
    return merge([read_script(text, "run.sh", pick=pick)], version=version)


def problem(text: str, version: str | None = "0.5.23") -> str:
    with pytest.raises(InputError) as caught:
        script(text, version)
    return caught.value.message


def words_of(text: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in split_commands(text)]


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("a b  c", [["a", "b", "c"]]),
        ("a 'b c' \"d e\"f", [["a", "b c", "d ef"]]),
        ("a \\\n  b # c d\ne", [["a", "b"], ["e"]]),
        ("a#b '#c' #d", [["a#b", "#c"]]),
        ("a; b && c | d & e", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("a > f 2>&1 b < g >> h", [["a", "b"]]),
        ("X=1 a $X ${X} ${Y:-2} $Y", [["X=1", "a", "$X", "${X}", "2", "$Y"]]),
        ("X=1\na $X ${X}2 '$X' \"$X\"", [["X=1"], ["a", "1", "12", "$X", "1"]]),
        ("export X='1 2'\na $X \"$X\"", [["export", "X=1 2"], ["a", "1", "2", "1 2"]]),
        ('A=(1 "2 3")\nA+=(4)\nb "${A[@]}" c', [["b", "1", "2 3", "4", "c"]]),
        ("a <<EOF\nx ' y\nEOF\nb", [["a"], ["b"]]),
        ("a $(b 'c' $(d)) `e f`", [["a", "$(b 'c' $(d))", "`e f`"]]),
        ('a "\\"b\\" \\n" \\c', [["a", '"b" \\n', "c"]]),
        ("a\r\nb\r\n", [["a"], ["b"]]),
    ],
)
def test_shell_words(text: str, commands: list[list[str]]) -> None:
    assert words_of(text) == commands


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "a $(b", "a `b", "A=(b", "a ${b c"])
def test_unclosed(text: str) -> None:
    with pytest.raises(ShellError) as caught:
        split_commands(text)
    assert caught.value.line == 1


def test_places_of_words() -> None:
    command = split_commands("a \\\n   bb ccc\n")[0]
    assert [(w.text, w.line, w.column) for w in command.words] == [
        ("a", 1, 1),
        ("bb", 2, 4),
        ("ccc", 2, 7),
    ]


@pytest.mark.parametrize(
    "launch",
    [
        "python -m sglang.launch_server",
        "python3 -u -m sglang.launch_server",
        "SGLANG_X=1 nohup /usr/bin/python3.11 -m sglang.launch_server",
        "sglang serve",
        "/opt/bin/sglang serve",
        "python -m sglang_router.launch_server",
        "python /sgl/python/sglang/launch_server.py",
        "docker run --gpus all -e A=b --rm lmsysorg/sglang:latest python3 -m sglang.launch_server",
        "exec numactl -N 0 python -m sglang.launch_server",
        "srun --nodes 2 python -m sglang.launch_server",
    ],
)
def test_launch_commands(launch: str) -> None:
    reading = script(f"set -e\n{launch} --model-path m --tp 8 &\nwait\n")
    assert values(reading)["tp_size"] == 8
    (source,) = [one.source for one in reading.given if one.name == "tp_size"]
    assert source.startswith("run.sh:2:")


@pytest.mark.parametrize(
    "shell",
    [
        "bash -c 'python -m sglang.launch_server --tp 8'",
        'ssh host "cd x && python -m sglang.launch_server --tp 8"',
        "docker exec c sh -c 'exec python -m sglang.launch_server --tp 8'",
    ],
)
def test_commands_in_commands(shell: str) -> None:
    assert values(script(shell))["tp_size"] == 8


def test_spellings_of_values() -> None:
    reading = script(
        "python -m sglang.launch_server --tp=8 --chunked -1 --enable-mixed-chunk "
        "--cuda-graph-bs-decode 1 2 4 --mem-frac .8"
    )
    assert values(reading) == {
        "tp_size": 8,
        "chunked_prefill_size": -1,
        "enable_mixed_chunk": True,
        "cuda_graph_bs_decode": [1, 2, 4],
        "mem_fraction_static": 0.8,
    }


def test_the_last_one_wins() -> None:
    reading = script("sglang serve --tp 2 --tp-size 4")
    assert [one.value for one in reading.given if one.name == "tp_size"] == [2, 4]
    assert reading.resolve().value("tp_size") == 4


def test_environment() -> None:
    reading = script(
        "export SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT=true\n"
        "SGLANG_KV_CANARY_RING_CAPACITY=64 python -m sglang.launch_server --tp 1\n"
    )
    assert values(reading)["SGLANG_KV_CANARY_RING_CAPACITY"] == 64
    assert values(reading)["SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT"] is True
    docker = script(
        "docker run -e SGLANG_KV_CANARY_RING_CAPACITY=32 --env=SGLANG_KV_CANARY_ENABLE_MHA_V=1 "
        "lmsysorg/sglang:v0.5.14-cu129 python -m sglang.launch_server",
        version=None,
    )
    assert values(docker)["SGLANG_KV_CANARY_RING_CAPACITY"] == 32
    assert values(docker)["SGLANG_KV_CANARY_ENABLE_MHA_V"] is True
    assert (docker.version, docker.version_basis) == ("0.5.14", "given")


def test_environment_of_the_wrong_type_is_the_default_as_on_the_server() -> None:
    reading = script("SGLANG_KV_CANARY_ENABLE_MHA_V=on python -m sglang.launch_server")
    assert "SGLANG_KV_CANARY_ENABLE_MHA_V" not in values(reading)
    assert "KVC-A13" in str(reading.notices[0])
    assert "did you mean SGLANG_KV_CANARY_RING_CAPACITY?" in _hint(
        "SGLANG_KV_CANARY_RING_CAPACTY=1 python -m sglang.launch_server"
    )


def _hint(text: str) -> str:
    with pytest.raises(InputError) as caught:
        script(text)
    return caught.value.hint or caught.value.message


def test_variables_and_arrays() -> None:
    text = 'TP=8\nARGS=(--tp "$TP"\n --max-running-requests 64)\n'
    text += 'python -m sglang.launch_server "${ARGS[@]}" --page-size ${PAGE:-16}\n'
    assert values(script(text)) == {"tp_size": 8, "max_running_requests": 64, "page_size": 16}


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("sglang serve --tp x", "run.sh:1:19", "invalid int value: 'x'"),
        ("sglang serve --tp $TP", "run.sh:1:19", "invalid int value: '$TP'"),
        ("sglang serve --tp", "run.sh:1:14", "expected one argument"),
        ("sglang serve --tp 1 2", "run.sh:1:21", "'2' belongs to no option"),
        ("sglang serve m --tp 1 --enable-mixed-chunk yes", "run.sh:1:44", "belongs to no option"),
        ("sglang serve --enable-mixed-chunk=1", "run.sh:1:14", "takes no value"),
        ("sglang serve --tpp 1", "run.sh:1:14", "unknown option --tpp"),
        ("sglang serve --pp 1", "run.sh:1:14", "ambiguous"),
        ("sglang serve --cuda-graph-max-bs 8", "run.sh:1:14", "ambiguous"),
        ("sglang serve --tp 1 \\ \n --pp-size 1", "run.sh:1:21", "the command ends on this line"),
        ("sglang serve 'a", "run.sh:1:14", "the quote ' is not closed"),
        ("echo hello", "run.sh:1:1", "no launch command found"),
        ("sglang serve --config a.txt", "run.sh:1:23", "expected a .yaml or .yml"),
        ("sglang serve --config no-such.yaml", "run.sh:1:23", "no such file"),
        ("sglang serve --config=a.yaml", "run.sh:1:14", "is not read by the server"),
        ("sglang serve --config", "run.sh:1:14", "has no file after it"),
    ],
)
def test_problems_have_places(text: str, place: str, words: str) -> None:
    message = problem(text)
    assert message.startswith(f"{place}: ")
    assert words in message


def test_unset_variable_is_named() -> None:
    with pytest.raises(InputError) as caught:
        script("sglang serve --tp $TP")
    assert caught.value.hint == "the text does not set $TP; put the number in its place"


def test_several_commands_have_to_be_picked() -> None:
    text = (
        "sglang serve --tp 2 --disaggregation-mode prefill &\n"
        "sglang serve --tp 4 --disaggregation-mode decode\n"
    )
    assert "2 launch commands in one file (1 at run.sh:1:1, 2 at run.sh:2:1)" in problem(text)
    assert values(script(text, pick=2))["tp_size"] == 4
    with pytest.raises(InputError, match="the file holds 2 launch commands"):
        script(text, pick=3)


def test_config_file_stands_before_the_command(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("tp-size: 2\npage-size: 16\n")
    run = tmp_path / "run.sh"
    run.write_text("sglang serve --config c.yaml --tp 8\n")
    reading = merge([read_script(run.read_text(), str(run))], version="0.5.23")
    resolution = reading.resolve()
    assert resolution.value("tp_size") == 8
    assert resolution.value("page_size") == 16
    assert resolution.source("page_size") == f"{tmp_path / 'c.yaml'}:2:1"


def test_problems_of_the_config_file_name_it(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("tp-size: 2\npage-size: no\n")
    raw = read_words(["python", "-m", "sglang.launch_server", "--config", str(tmp_path / "c.yaml")])
    with pytest.raises(InputError) as caught:
        merge([raw])
    assert caught.value.message.startswith(f"{tmp_path / 'c.yaml'}:2:12: ")


def test_words_after_dashes() -> None:
    raw = read_words(["python", "-m", "sglang.launch_server", "--tp", "8"])
    (tp,) = merge([raw]).given
    assert (tp.value, tp.source) == (8, "command line, word 4")
    bare = merge([read_words(["--tp", "8"])])
    assert values(bare) == {"tp_size": 8}
    with pytest.raises(InputError, match="no launch command in 'ls -l'"):
        merge([read_words(["ls", "-l"])])


COMPOSE = """\
services:
  llm:
    image: lmsysorg/sglang:v0.5.16
    environment:
      SGLANG_KV_CANARY_RING_CAPACITY: 128
    command: >
      python3 -m sglang.launch_server
      --model-path m --tp 4
"""
MANIFEST = """\
apiVersion: v1
kind: Pod
spec:
  containers:
    - name: llm
      image: lmsysorg/sglang:v0.5.16
      command: ["python3", "-m", "sglang.launch_server"]
      args: ["--model-path", "m", "--tp", "4"]
      env:
        - name: SGLANG_KV_CANARY_RING_CAPACITY
          value: "128"
---
kind: Service
"""


@pytest.mark.parametrize("text", [COMPOSE, MANIFEST])
def test_container_definitions(text: str) -> None:
    reading = merge([read_source_text(text, "pod.yaml")])
    assert values(reading)["tp_size"] == 4
    assert values(reading)["SGLANG_KV_CANARY_RING_CAPACITY"] == 128
    assert reading.version == "0.5.16"


def test_a_later_source_wins_and_says_so() -> None:
    first = read_source_text("tp-size: 2\n", "a.yaml")
    reading = merge([first, read_words(["--tp", "8"])], version="0.5.23")
    assert reading.resolve().value("tp_size") == 8
    assert str(reading.notices[0]) == (
        "command line, word 1: tp_size is 8 here and 2 at a.yaml:1:1; the later source counts"
    )
