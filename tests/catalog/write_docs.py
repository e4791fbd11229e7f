"""Writes docs/errors.md from the catalogue: ``python -m tests.catalog.write_docs``."""

from __future__ import annotations

from pathlib import Path

from kvcanary_cli.catalog import Entry, Explanation, catalogue, explain_code

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
_INTRO = """# Messages of the KV-cache canary

What each message means, when it happens and what to do. The same texts, with the numbers of a
message filled in: `kvcanary explain CODE`, `kvcanary explain "MESSAGE"`,
`kvcanary explain --log server.log`. This page is generated from the catalogue
(`python -m tests.catalog.write_docs`).

A code is never reused. Severities: *fatal* ends the device context, *error* ends the server or the
call, *violation* is a mismatch in the cache, *warning* is a check that did not take place or a
setting that was not taken, *info* needs nothing.
"""
_GROUPS = {
    "A": "Settings and installation",
    "B": "Capacities",
    "C": "Plan",
    "S": "Sources and buffers",
    "W": "Write",
    "R": "Life cycle",
    "E": "Expected tokens",
    "O": "Token oracle",
    "P": "Perturbations",
    "L": "Information",
    "V": "Violations",
    "Z": "Other versions, and never released",
}


def _group(entry: Entry) -> str:
    return entry.code[len("KVC-")]


def _anchor(code: str) -> str:
    return code.lower()


def _entry(explanation: Explanation) -> str:
    entry = explanation.entry
    related = ", ".join(f"[{other.code}](#{_anchor(other.code)})" for other in explanation.related)
    return "\n".join(
        (
            f"### {entry.code}",
            "",
            f"**{entry.title[0].upper()}{entry.title[1:]}.** {entry.severity.capitalize()}, "
            f"{entry.raised_as}; {entry.versions}. Appears {entry.phase.words}.",
            "",
            "```text",
            entry.message,
            "```",
            "",
            "\n\n".join(explanation.meaning),
            "",
            "When it happens:",
            "",
            *(f"- {text}" for text in explanation.when),
            "",
            "What to do, best first:",
            "",
            *(f"{number}. {text}" for number, text in enumerate(explanation.do, 1)),
            "",
            "```text",
            "before:",
            *(f"  {line}" for line in explanation.before),
            "after:",
            *(f"  {line}" for line in explanation.after),
            "```",
            "",
            f"Related: {related}",
            "",
        )
    )


def page() -> str:
    """The page as text."""
    parts = [_INTRO]
    entries = list(catalogue().values())
    for group, title in _GROUPS.items():
        own = [entry for entry in entries if _group(entry) == group]
        parts.append(f"## {group}. {title}\n")
        parts.append("| code | severity | meaning |\n|---|---|---|")
        parts[-1] += "".join(
            f"\n| [{entry.code}](#{_anchor(entry.code)}) | {entry.severity.value} | {entry.title} |"
            for entry in own
        )
        parts[-1] += "\n"
        parts += [_entry(explain_code(entry)) for entry in own]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
