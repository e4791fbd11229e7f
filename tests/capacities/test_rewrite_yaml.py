"""``suggest-flags --write`` on files that use more of YAML than ``name: value`` lines."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.errors import InputError
from kvcanary_cli.serving.check_result import Change
from kvcanary_cli.serving.rewrite_yaml import rewrite

ADDED = "  # added by kvcanary suggest-flags"


def to(name: str, after: object) -> Change:
    return Change(name=name, flag=f"--{name.replace('_', '-')}", before=None, after=after)


def attempt(text: str, change: Change) -> str | InputError:
    """The new text, or the refusal."""
    try:
        return rewrite(text, [change], "0.5.23", "c.yaml")
    except InputError as error:
        return error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "tp-size: &x 8\npage-size: *x # al\n",
            "tp-size: &x 8\npage-size: 16 # al\n",
            id="alias",
        ),
        pytest.param("page-size: &x 8\n", "page-size: 16\n", id="anchor nobody uses"),
        pytest.param(
            "page-size: >-\n  8\ntp-size: 2\n", "page-size: 16\ntp-size: 2\n", id="folded"
        ),
        pytest.param(
            "page-size: |\n  8\n\n# mid\ntp-size: 2\n",
            "page-size: 16\n\n# mid\ntp-size: 2\n",
            id="literal",
        ),
        pytest.param(
            "---\ntp-size: 2 \n...\n",
            f"---\ntp-size: 2 \npage-size: 16{ADDED}\n...\n",
            id="end mark",
        ),
        pytest.param(
            "  tp-size: 2\n  dp-size: 2\n",
            f"  tp-size: 2\n  dp-size: 2\n  page-size: 16{ADDED}\n",
            id="indented",
        ),
        pytest.param("---\n", f"---\npage-size: 16{ADDED}\n", id="empty document"),
        pytest.param('"page-size" : 8   # why\n', '"page-size" : 16   # why\n', id="quoted key"),
        pytest.param("page-size: # later\ntp-size: 2\n", None, id="no value but a comment"),
    ],
)
def test_forms_of_yaml(text: str, expected: str | None) -> None:
    new = rewrite(text, [to("page_size", 16)], "0.5.23", "c.yaml")
    assert expected is None or new == expected
    assert yaml.safe_load(new) == {**(yaml.safe_load(text) or {}), "page-size": 16}


def test_comments_around_a_block_list_stay() -> None:
    text = "cuda-graph-bs-decode:\n- 1\n- 8 # eight\n# mid\ntp-size: 8\n"
    new = rewrite(text, [to("cuda_graph_bs_decode", [1, 8, 12])], "0.5.23", "c.yaml")
    assert new == "cuda-graph-bs-decode: [1, 8, 12] # eight\n# mid\ntp-size: 8\n"


@pytest.mark.parametrize(
    "text",
    [
        "cuda-graph-config:\n  decode: {max_bs: 8}\ntp-size: 2\n",
        'cuda-graph-config: {"decode": {"max_bs": 8}} # c\ntp-size: 2\n',
        'cuda-graph-config: \'{"decode":{"max_bs":8}}\'\ntp-size: 2\n',
        "tp-size: 2",
    ],
)
def test_json_values_come_out_as_quoted_json(text: str) -> None:
    value = {"decode": {"max_bs": 12, "backend": "full"}}
    new = rewrite(text, [to("cuda_graph_config", value)], "0.5.23", "c.yaml")
    read = yaml.safe_load(new)
    assert read["tp-size"] == 2
    assert yaml.safe_load(read["cuda-graph-config"]) == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("page-size: &x 8\ntp-size: *x\n", "other lines take their value from &x"),
        ("{page-size: 8}\n", "is not written as one option a line"),
        ("? page-size\n: 8\n? tp-size\n: - 2\n", None),
    ],
)
def test_what_cannot_be_changed_alone_is_refused(text: str, says: str | None) -> None:
    """Either a refusal, or a file in which only the wanted value is another."""
    new = attempt(text, to("page_size", 16))
    if isinstance(new, str):
        assert says is None
        assert yaml.safe_load(new) == {**yaml.safe_load(text), "page-size": 16}
    else:
        assert says is None or says in str(new)
        assert "change it by hand" in (new.hint or "")


pairs = st.lists(
    st.sampled_from(
        [
            "tp-size: &a 2",
            "tp-size: 2",
            "page-size: &b 8 # eight",
            "page-size: |\n  8",
            "page-size: >-\n\n  8\n",
            "page-size: '8'",
            "max-running-requests: *a",
            "max-running-requests: *b # running",
            "max-running-requests: 5",
            "cuda-graph-bs-decode:\n- 1\n# inside\n- 2",
            "cuda-graph-bs-decode: [1,\n  2]",
            "cuda-graph-bs-decode: &l [1, 2]",
            "cuda-graph-bs-prefill: *l",
            "# a comment",
            "",
        ]
    ),
    max_size=7,
    unique_by=lambda line: line.partition(":")[0],
)


def stripped(read: dict[str, object]) -> dict[str, object]:
    """A literal that ends the file gains its line end when an option is added after it."""
    return {key: one.rstrip() if isinstance(one, str) else one for key, one in read.items()}


@settings(max_examples=300, deadline=None)
@given(
    pairs,
    st.sampled_from(["", "---\n", "# top\n---\n"]),
    st.sampled_from(["", "\n", "\n...\n", "\n...\n# after\n"]),
    st.sampled_from(["page_size", "tp_size", "max_running_requests", "cuda_graph_bs_decode"]),
)
def test_only_the_wanted_value_changes(parts: list[str], head: str, tail: str, name: str) -> None:
    text = head + "\n".join(parts) + tail
    try:
        before = yaml.safe_load(text)
    except yaml.YAMLError:
        # An alias without its anchor.
        return
    after: object = [4, 5] if name == "cuda_graph_bs_decode" else 77
    new = attempt(text, to(name, after))
    if isinstance(new, InputError):
        assert "take their value from" in str(new)
        return
    wanted = {**(before or {}), name.replace("_", "-"): after}
    assert stripped(yaml.safe_load(new)) == stripped(wanted)
    for comment in ("# top", "# a comment", "# eight", "# running", "# after"):
        assert (comment in new) == (comment in text)
