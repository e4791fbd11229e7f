"""docs/errors.md is what the catalogue says."""

from __future__ import annotations

from kvcanary_cli.catalog import catalogue
from tests.catalog.write_docs import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_code_has_its_heading() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for code in catalogue():
        assert text.count(f"\n### {code}\n") == 1
