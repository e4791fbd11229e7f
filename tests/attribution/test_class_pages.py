"""Class pages: complete, consistent with the replay's table of families, shown offline."""

from __future__ import annotations

import json

import pytest

from kvcanary_cli.attribution.classes import class_pages, remedy
from kvcanary_cli.attribution.result import CLASSES
from kvcanary_cli.cli.main import main
from kvcanary_cli.replay.coverage import CLASS_NEEDS, WITHOUT
from kvcanary_cli.trace.schema import FAMILIES
from tests.attribution.blocks import ROOT, diagnosed
from tests.attribution.test_report_blocks import CASES


def test_each_class_has_a_page() -> None:
    pages = class_pages()
    assert tuple(pages) == CLASSES
    for page in pages.values():
        assert page.title
        assert page.meaning
        assert page.check
        assert page.look_at
        assert page.remedy
        assert page.stop_gap
        assert page.related
        assert set(page.related) <= set(CLASSES) - {page.name}
        assert page.subtypes or page.name == "not_corruption"


def test_families_are_known_and_named_once() -> None:
    assert set(CLASS_NEEDS) <= set(CLASSES)
    assert set(CLASSES) - set(CLASS_NEEDS) == {"rank_divergence", "not_corruption"}
    for ways in CLASS_NEEDS.values():
        for way in ways:
            assert way <= set(FAMILIES)
    assert set(WITHOUT) == {*FAMILIES, "free", "own"}


@pytest.mark.parametrize("path", [c for c in CASES if "S21" not in c])
def test_subtypes_of_findings_have_words(path: str) -> None:
    for finding in diagnosed(path).findings:
        assert class_pages()[finding.cls].subtype(finding.subtype) is not None
        assert finding.remedy == remedy(finding.cls, finding.subtype)


def test_remedy_knows_the_subtype() -> None:
    general = remedy("use_after_free")
    assert remedy("use_after_free", "no_such_subtype") == general
    assert remedy("use_after_free", "freed_by_dedup") != general
    assert remedy("transfer_race", "h2d_read_after_free") != remedy("transfer_race")


@pytest.mark.parametrize("name", CLASSES)
def test_explain_class(name: str, capsys) -> None:
    assert main(["replay", "--explain-class", name]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{name.replace('_', '-')}: ")
    for label in ("MEANING", "CHECK", "NEEDS", "LOOK AT", "REMEDY", "STOP-GAP", "RELATED"):
        assert f"\n{label} " in out
    for subtype in class_pages()[name].subtypes:
        assert f" {subtype.name}: " in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("json_first", [True, False])
@pytest.mark.parametrize("name", CLASSES)
def test_explain_class_as_json(name: str, json_first: bool, capsys) -> None:
    asked = ["--explain-class", name]
    how = ["--format", "json"]
    assert main(["replay", *(how + asked if json_first else asked + how)]) == 0
    told = json.loads(capsys.readouterr().out)
    page = class_pages()[name]
    assert (told["class"], told["title"], told["remedy"]) == (name, page.title, page.remedy)
    assert [one["name"] for one in told["subtypes"]] == [one.name for one in page.subtypes]
    assert [set(way) for way in told["needs"]] == [set(way) for way in page.needs]


@pytest.mark.parametrize("name", ["jsonl", "sarif", "junit"])
def test_other_formats_of_a_class_are_refused(name: str, capsys) -> None:
    assert main(["replay", "--explain-class", "late_write", "--format", name]) == 2
    told = capsys.readouterr()
    assert name in told.err
    assert not told.out


def test_dashes_are_accepted(capsys) -> None:
    assert main(["replay", "--explain-class", "Use-After-Free"]) == 0
    assert "freed_by_dedup" in capsys.readouterr().out


def test_unknown_class_is_wrong_usage(capsys) -> None:
    assert main(["replay", "--explain-class", "late_wrte"]) == 2
    assert "did you mean late_write?" in capsys.readouterr().err


def test_classes_are_documented() -> None:
    text = (ROOT / "docs" / "attribution.md").read_text()
    for name in CLASSES:
        assert f"`{name}`" in text
