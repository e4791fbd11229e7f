"""``kvcanary explain``."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvcanary_cli.cli.common_options import FormatName, OutputFile, OutputFormat
from kvcanary_cli.cli.output import Output, result_output
from kvcanary_cli.errors import (
    EXIT_CLEAN,
    EXIT_FOUND,
    EXIT_NOTHING_CHECKED,
    InputError,
    UsageError,
)

if TYPE_CHECKING:
    from kvcanary_cli.catalog import Entry, Explanation, LogSummary

EPILOG = (
    "Examples:\n\n"
    "  kvcanary explain KVC-B03\n\n"
    '  kvcanary explain "kv-canary: forward_batch.batch_size=12 exceeds pre-allocated '
    'write_req_capacity=8; raise --cuda-graph-max-bs-decode ..."\n\n'
    "  kvcanary explain --log server.log\n\n"
    "  kvcanary explain --list --format json\n\n"
    "Exit codes: 0 explained, or a log without errors; 1 the log holds errors, warnings or "
    "violations; 2 wrong usage or an unknown code; 4 unreadable; 5 nothing was recognised."
)
_CODE = re.compile(r"(?:kvc[-_]?\w{0,8}|[a-z]\d{1,3})", re.IGNORECASE)
# A code in the middle of prose has to look more like one.
_CODE_IN_PROSE = re.compile(r"\bkvc[-_ ]?[a-z][-_ ]?\d{2}\b", re.IGNORECASE)
_BETWEEN_CODES = re.compile(r"[\s,;/+&|]+")
_AROUND_CODES = " \t\r\n.,;:!?()[]<>{}\"'`*_"
_PIPE_COLUMNS = 100
_RULE = "\n" + "-" * 20 + "\n\n"
_SHOWN = 160
# A message is a few lines; more than this is a log.
_MAX_MESSAGE_BYTES = 1 << 20


def explain(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CODE|MESSAGE",
            help="Codes such as KVC-B03 in any case, or a message as it was copied, in quotes; "
            "- reads the message from stdin.",
            show_default=False,
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(help="Count all known messages in this server log, - for stdin."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the whole catalogue.")] = False,
    format_: OutputFormat = FormatName.text,
    output: OutputFile = None,
) -> None:
    """Say what a message of the canary means, when it happens and what to do about it."""
    if sum((bool(what), log is not None, list_)) != 1:
        raise UsageError(
            "explain takes codes or a message, or --log, or --list: one of them, and only one",
            hint="kvcanary explain KVC-B03; kvcanary explain --log server.log; "
            "kvcanary explain --list",
        )
    summary = None if log is None else _scan(log)
    with result_output(output) as out:
        as_json = format_ is FormatName.json
        if list_:
            code = _print_list(out, as_json)
        elif summary is not None:
            code = _print_log(out, summary, as_json)
        else:
            code = _print_explanations(out, what or [], as_json)
    if code:
        raise typer.Exit(code)


def _write_json(out: Output, result: dict[str, Any]) -> None:
    out.write([json.dumps(result, indent=2, ensure_ascii=True), "\n"])


def _print_list(out: Output, as_json: bool) -> int:
    from kvcanary_cli.catalog import catalogue

    entries = list(catalogue().values())
    if as_json:
        from kvcanary_cli.report.explain_json import list_object

        _write_json(out, list_object(entries))
    else:
        from kvcanary_cli.report.explain_text import list_table

        out.print(list_table(entries, width=out.width))
    return EXIT_CLEAN


def _scan(path: Path) -> LogSummary:
    from kvcanary_cli.catalog import scan_log

    if str(path) == "-":
        return scan_log(sys.stdin.buffer, "-")
    try:
        with path.open("rb") as stream:
            return scan_log(stream, str(path))
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}", hint="give the server's log file, or -"
        ) from error


def _print_log(out: Output, summary: LogSummary, as_json: bool) -> int:
    from kvcanary_cli.catalog import catalogue

    entries = catalogue()
    verdict = summary.verdict(entries)
    if as_json:
        from kvcanary_cli.report.explain_json import log_object

        _write_json(out, log_object(summary))
    else:
        from kvcanary_cli.report.explain_log_text import log_parts

        for part in log_parts(summary, entries, width=out.width):
            out.print(part)
    if verdict == "not_checked":
        out.warn(
            "no message of the canary in this log: nothing was concluded. Was the server started "
            "with --kv-canary log or raise, and is this the log of its scheduler?"
        )
    return {"clean": EXIT_CLEAN, "found": EXIT_FOUND}.get(verdict, EXIT_NOTHING_CHECKED)


def _texts(what: list[str]) -> list[str]:
    """Codes one by one; words that stand between them, unquoted, as one message."""
    texts: list[str] = []
    words: list[str] = []

    def flush() -> None:
        if words:
            texts.append(" ".join(words))
            words.clear()

    for text in what:
        if text == "-":
            flush()
            texts.append(
                sys.stdin.buffer.read(_MAX_MESSAGE_BYTES).decode("utf-8", errors="replace")
            )
        elif _is_code(text) or any(char.isspace() for char in text.strip()):
            flush()
            texts.append(text)
        else:
            words.append(text)
    flush()
    return texts


def _code_words(text: str) -> list[str]:
    """The words of a text that holds nothing but codes; empty if it holds something else."""
    from kvcanary_cli.catalog import plain_marks

    parts = _BETWEEN_CODES.split(plain_marks(text).strip(_AROUND_CODES))
    words = [part.strip(_AROUND_CODES) for part in parts]
    return words if all(_CODE.fullmatch(word) for word in words) else []


def _is_code(text: str) -> bool:
    return len(_code_words(text)) == 1


def _codes_in_prose(text: str) -> list[str]:
    from kvcanary_cli.catalog import plain_marks

    return _CODE_IN_PROSE.findall(plain_marks(text))


def _look_up(text: str) -> Entry:
    """The entry of a code.

    Raises:
        UsageError: There is none of that name.
    """
    from kvcanary_cli.catalog import entry_of, nearest_codes

    entry = entry_of(text.replace(" ", "-"))
    if entry is None:
        near = nearest_codes(text)
        raise UsageError(
            f"no entry has the code '{text.strip()}'",
            hint=(f"did you mean {' or '.join(near)}? " if near else "")
            + "kvcanary explain --list shows all codes",
        )
    return entry


def _print_explanations(out: Output, what: list[str], as_json: bool) -> int:
    from kvcanary_cli.catalog import explain_code, explain_text, merged, nearest_entries

    explanations: list[Explanation] = []
    unmatched: list[tuple[str, list[Entry]]] = []
    for text in _texts(what):
        codes = _code_words(text)
        found = [] if codes else explain_text(text)
        found += [explain_code(_look_up(code)) for code in codes or _codes_in_prose(text)]
        explanations += found
        if not found:
            unmatched.append((text, nearest_entries(text)))
    explanations = merged(explanations)
    if as_json:
        from kvcanary_cli.report.explain_json import explanations_object

        _write_json(out, explanations_object(explanations, unmatched))
    else:
        from kvcanary_cli.report.explain_text import explanation_lines

        width = shutil.get_terminal_size().columns if out.is_terminal else _PIPE_COLUMNS
        for number, explanation in enumerate(explanations):
            if number:
                out.write([_RULE])
            out.write(f"{line}\n" for line in explanation_lines(explanation, width=width))
    for text, nearest in unmatched:
        _warn_unmatched(out, text, nearest)
    return EXIT_NOTHING_CHECKED if unmatched else EXIT_CLEAN


def _named_class(text: str) -> str | None:
    """The root-cause class that a text names, as a report's lines do, None = none."""
    from kvcanary_cli.attribution.result import CLASSES

    words = (word.strip(_AROUND_CODES).replace("-", "_").lower() for word in text.split())
    return next((word for word in words if word in CLASSES), None)


def _warn_unmatched(out: Output, text: str, nearest: list[Entry]) -> None:
    from kvcanary_cli.report.explain_text import suggestion_lines
    from kvcanary_cli.report.words import safe

    cls = _named_class(text)
    if cls is not None:
        out.warn(f"'{cls}' is a root-cause class of a finding, not a message of the canary")
        out.note(f"kvcanary replay --explain-class {cls} explains it")
        return
    shown = " ".join(text.split())
    shown = safe(shown if len(shown) <= _SHOWN else shown[:_SHOWN] + " ...")
    if not nearest:
        out.warn(
            f"no message of the catalogue in '{shown}', and none is near; "
            "kvcanary explain --list shows all"
        )
        return
    out.warn(f"no message of the catalogue, or none for certain, in '{shown}'; the nearest:")
    for line in suggestion_lines(nearest):
        out.note(line)
