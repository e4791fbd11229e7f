"""Variables that a manifest, a unit or a Dockerfile sets for its command."""

from __future__ import annotations

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.serving.read_source import detect, read_source_text
from kvcanary_cli.serving.read_sources import merge

LAUNCH = "python3 -m sglang.launch_server --model-path m"
POD = """\
apiVersion: v1
kind: Pod
spec:
  containers:
  - name: s
    image: lmsysorg/sglang:v0.5.20
{command}    env:
    - name: TP
      value: "4"
    - name: MRR
      value: "12"
    - name: SGLANG_KV_CANARY_RING_CAPACITY
      value: "7"
"""
SHELL = f"""\
    command: ["/bin/bash", "-c"]
    args:
    - |
      {LAUNCH} \\
        --tp $TP --max-running-requests $(MRR)
"""
EXEC = """\
    command: [python3, -m, sglang.launch_server]
    args: [--model-path, m, --tp, $(TP), --max-running-requests=$(MRR)]
"""
UNIT = f"""\
[Unit]
Description=x
[Service]
Environment=SGLANG_KV_CANARY_RING_CAPACITY=7 "MRR=12"
Environment="TP=4"
ExecStart=/usr/bin/{LAUNCH} --tp ${{TP}} \\
    --max-running-requests $MRR
Restart=always
"""
COMPOSE = f"""\
services:
  a:
    image: lmsysorg/sglang:v0.5.18
    environment:
{{environment}}
    command: {LAUNCH} --tp $${{{{TP}}}} --max-running-requests $$MRR
"""
COMPOSE_LIST = COMPOSE.format(
    environment="      - TP=4\n      - MRR=12\n      - SGLANG_KV_CANARY_RING_CAPACITY=7"
)
COMPOSE_MAP = COMPOSE.format(
    environment='      TP: "4"\n      MRR: 12\n      SGLANG_KV_CANARY_RING_CAPACITY: 7'
)
DOCKERFILE = f"""\
FROM lmsysorg/sglang:v0.5.18
ARG TP=4
ENV MRR 12
ENV SGLANG_KV_CANARY_RING_CAPACITY=7
CMD {LAUNCH} --tp $TP --max-running-requests ${{MRR}}
"""
NESTED = f"""\
export TP=4 MRR=12 SGLANG_KV_CANARY_RING_CAPACITY=7
bash -c '{LAUNCH} --tp $TP --max-running-requests $MRR'
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("shell.yaml", POD.format(command=SHELL)),
        ("exec.yaml", POD.format(command=EXEC)),
        ("x.service", UNIT),
        ("list.yaml", COMPOSE_LIST),
        ("map.yaml", COMPOSE_MAP),
        ("Dockerfile", DOCKERFILE),
        ("nested.sh", NESTED),
    ],
)
def test_variables_that_the_text_sets_are_expanded(name: str, text: str) -> None:
    given = {one.name: one.value for one in merge([read_source_text(text, name)]).given}
    assert given["tp_size"] == 4
    assert given["max_running_requests"] == 12
    assert given["SGLANG_KV_CANARY_RING_CAPACITY"] == 7
    assert "TP" not in given


def test_the_environment_of_another_container_is_not_ours() -> None:
    text = POD.format(command=EXEC).replace("name: TP", "name: OTHER")
    with pytest.raises(InputError, match="invalid int value"):
        merge([read_source_text(text, "c.yaml")])


def test_a_variable_that_nothing_sets_is_named() -> None:
    text = UNIT.replace('Environment="TP=4"\n', "")
    with pytest.raises(InputError) as caught:
        merge([read_source_text(text, "x.service")])
    assert "the text does not set $TP" in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    "text",
    [
        POD.format(command="    args: [--model-path, m, --tp, '4']\n"),
        "services:\n  a:\n    image: lmsysorg/sglang:v0.5.18\n    command: --tp 4\n",
        "kind: Deployment\napiVersion: apps/v1\n",
    ],
)
def test_a_manifest_without_a_launch_is_called_one(text: str) -> None:
    assert detect(text, "c.yaml") == "container"
    with pytest.raises(InputError, match="a manifest without a launch command"):
        merge([read_source_text(text, "c.yaml")])


def test_a_configuration_is_no_manifest() -> None:
    text = "model-path: m\ntp-size: 2\nkv-canary: log\n"
    assert detect(text, "c.yaml") == "yaml"


def test_a_missing_configuration_of_a_script_has_advice_that_works() -> None:
    script = f"{LAUNCH} --config nowhere/at/all.yaml --tp 4\n"
    with pytest.raises(InputError) as caught:
        merge([read_source_text(script, "b.sh")])
    assert "no such file" in caught.value.message
    # A source of its own beside the script would meet the same error again.
    assert "source of its own" not in str(caught.value.hint)


def test_the_version_of_an_image_has_its_place() -> None:
    found = merge([read_source_text(UNIT, "x.service")]).resolve()
    assert "sglang_version" not in found.given
    found = merge([read_source_text(POD.format(command=EXEC), "c.yaml")]).resolve()
    assert found.stated_version == "0.5.20"
    assert found.given["sglang_version"].source == "c.yaml:6:29"
