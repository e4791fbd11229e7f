"""``kvcanary suggest-flags``."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvcanary_cli.cli.common_options import FormatName, OutputFile, OutputFormat
from kvcanary_cli.cli.output import Output, result_output
from kvcanary_cli.cli.serving_options import (
    DraftModelConfig,
    Gpu,
    GpuMem,
    Gpus,
    Launch,
    Logs,
    ModelConfig,
    PeakBatch,
    PeakTokens,
    Quiet,
    ServingOptions,
    Setting,
    Sources,
    Traces,
    Version,
    WeightsBytes,
    launch_words,
    read_demands,
    read_serving,
)
from kvcanary_cli.errors import (
    EXIT_CLEAN,
    EXIT_FOUND,
    EXIT_NOTHING_CHECKED,
    InputError,
    KvCanaryError,
    UsageError,
)

if TYPE_CHECKING:
    from kvcanary_cli.serving.check_result import Suggestion
    from kvcanary_cli.serving.demand import Demand
    from kvcanary_cli.serving.read_raw import RawReading
    from kvcanary_cli.serving.read_sources import Reading
    from kvcanary_cli.serving.suggest import Outcome
    from kvcanary_cli.serving.write_back import Rewritten

EPILOG = (
    "Examples:\n\n"
    "  kvcanary suggest-flags configs/low_cuda_graph_max_bs.yaml --peak-batch-size 12\n\n"
    "  kvcanary suggest-flags configs/low_cuda_graph_max_bs.yaml --peak-batch-size 12 "
    "--headroom 10% --as diff\n\n"
    "  kvcanary suggest-flags --peak-tokens 20000 --gpu h100 -- python -m sglang.launch_server "
    "--chunked-prefill-size 32768"
)
_MAX_HEADROOM = 1000.0


class FormName(StrEnum):
    """Choices of --as."""

    flags = "flags"
    yaml = "yaml"
    diff = "diff"


def suggest_flags(
    ctx: typer.Context,
    sources: Sources = None,
    sglang_version: Version = None,
    gpu_mem: GpuMem = None,
    gpu: Gpu = None,
    gpus: Gpus = None,
    model_config: ModelConfig = None,
    draft_model_config: DraftModelConfig = None,
    weights_bytes: WeightsBytes = None,
    setting: Setting = None,
    launch: Launch = None,
    trace: Traces = None,
    log: Logs = None,
    peak_batch_size: PeakBatch = None,
    peak_tokens: PeakTokens = None,
    headroom: Annotated[
        str, typer.Option(help="Raise observed demands by this share, such as 10%.")
    ] = "0%",
    budget: Annotated[
        str | None, typer.Option(help="Most memory that a change may cost per rank, such as 2GiB.")
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(help="Write the YAML source with the suggested flags to this file."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Let --write replace a file that is no source.")
    ] = False,
    form: Annotated[
        FormName | None,
        typer.Option("--as", help="Only the suggestion: as flags, as YAML lines, as a diff."),
    ] = None,
    output_format: OutputFormat = FormatName.text,
    output: OutputFile = None,
    quiet: Quiet = False,
) -> None:
    """Find the smallest change of flags with which every capacity check passes."""
    from kvcanary_cli.report import capacities_json, suggest_text
    from kvcanary_cli.serving.read_overrides import parse_bytes
    from kvcanary_cli.serving.write_back import rewritten_source

    if form is not None and output_format is FormatName.json:
        raise UsageError("--as is a text form: leave --format out")
    options = ServingOptions(
        sources=list(sources or ()),
        words=launch_words(ctx),
        version=sglang_version,
        gpu_mem=gpu_mem,
        gpu=gpu,
        gpus=gpus,
        model_config=model_config,
        draft_model_config=draft_model_config,
        weights_bytes=weights_bytes,
        settings=list(setting or ()),
        launch=launch,
        traces=list(trace or ()),
        logs=list(log or ()),
        peak_batch_size=peak_batch_size,
        peak_tokens=peak_tokens,
    )
    if write is not None and not overwrite:
        _refuse_to_replace(write, options.sources)
    percent = parse_percent(headroom)
    budget_bytes = None if budget is None else parse_bytes(budget, "--budget")
    looked = look(options, percent, budget_bytes)
    outcome = looked.outcome
    best = outcome.suggestions[0] if outcome.suggestions else None
    rewritten: Rewritten | None = None
    failure: KvCanaryError | None = None
    if write is not None or form is FormName.diff:
        try:
            rewritten = rewritten_source(best, looked.parts, looked.reading, looked.demands)
        except (InputError, UsageError) as error:
            if form is FormName.diff:
                raise
            # The suggestion holds all the same, so it is shown first.
            failure = error
    with result_output(output, quiet=quiet) as out:
        for note in looked.notes:
            out.note(f"note: {note}")
        if not quiet:
            for notice in outcome.before.notices:
                out.warn(notice)
        if output_format is FormatName.json:
            out.write([capacities_json.suggest_json(outcome, budget_bytes)])
        elif form is not None:
            out.write(_as(form, best, rewritten))
            if best is None:
                out.note(suggest_text.suggest_summary(outcome))
        elif quiet:
            out.print(suggest_text.suggest_summary(outcome))
        else:
            for part in suggest_text.render_suggestions(outcome, budget_bytes):
                out.print(part)
        if write is not None and failure is None:
            _write(write, best, rewritten, out)
    if failure is not None:
        raise failure
    raise typer.Exit(exit_code(outcome))


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found, and what it was found in."""

    outcome: Outcome
    reading: Reading
    parts: list[RawReading]
    demands: list[Demand]
    notes: list[str]


def look(options: ServingOptions, percent: float, budget_bytes: int | None) -> Looked:
    """Read the sources and the demand, and look for changes.

    Raises:
        UsageError: An option that does not fit.
        InputError: A source that cannot be used.
    """
    from dataclasses import replace

    from kvcanary_cli.serving.demand import observed_demands
    from kvcanary_cli.serving.suggest import suggest, with_headroom

    reading, parts, notes = read_serving(options)
    draft = int(reading.resolve().value("speculative_num_draft_tokens", 0) or 0)
    demands: list[Demand] = read_demands(options, draft)
    for name, seen in reading.observed:
        demands += observed_demands(name, seen, draft)
    # Their peaks are among the demands now, where the headroom reaches them.
    reading = replace(reading, observed=())
    demands = with_headroom(demands, percent)
    outcome = suggest(reading, demands, budget_bytes=budget_bytes)
    return Looked(outcome, reading, parts, demands, notes)


def parse_percent(text: str) -> float:
    """``10%`` or ``10``: per cent.

    Raises:
        UsageError: Not a share.
    """
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= _MAX_HEADROOM:
        raise UsageError(
            f"--headroom: expected a share, found {text[:40]!r}", hint="for example --headroom 10%"
        )
    return value


def exit_code(outcome: Outcome) -> int:
    """0 if nothing need be changed or a change fits, 1 if none does, 5 if nothing was checked."""
    from kvcanary_cli.serving.check_result import Verdict

    if outcome.before.verdict is Verdict.NOT_CHECKED:
        return EXIT_NOTHING_CHECKED
    if outcome.passes_already or outcome.suggestions:
        return EXIT_CLEAN
    return EXIT_FOUND


def _refuse_to_replace(path: Path, sources: list[str]) -> None:
    """A source may be changed in place; any other file needs ``--overwrite``."""
    if not path.is_file():
        return
    if any(Path(name).is_file() and path.samefile(name) for name in sources):
        return
    raise UsageError(
        f"--write {path}: the file exists and is no source of this command",
        hint="choose another name, or add --overwrite",
    )


def _as(form: FormName, best: Suggestion | None, rewritten: Rewritten | None) -> list[str]:
    from kvcanary_cli.report.suggest_text import flags_line
    from kvcanary_cli.serving.rewrite_yaml import yaml_value

    if best is None:
        return []
    if form is FormName.flags:
        return [flags_line(best) + "\n"]
    if form is FormName.yaml:
        return [
            f"{change.flag.lstrip('-')}: {yaml_value(change.after)}\n"
            if change.flag.startswith("-")
            else f"# environment: {change.flag}={int(change.after)}\n"
            for change in best.fix.changes
        ]
    assert rewritten is not None
    old, new = (text.splitlines(keepends=True) for text in (rewritten.old, rewritten.new))
    lines = difflib.unified_diff(old, new, rewritten.name, rewritten.name)
    return [line if line.endswith("\n") else line + "\n" for line in lines]


def _write(path: Path, best: Suggestion | None, rewritten: Rewritten | None, out: Output) -> None:
    if best is None or rewritten is None:
        out.note(f"{path}: not written, there is nothing to change")
        return
    try:
        with path.open("w", encoding=rewritten.encoding, newline="") as file:
            file.write(rewritten.new)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written: {error.strerror}", hint="choose another path for --write"
        ) from error
    for change in best.fix.changes:
        if not change.flag.startswith("-"):
            out.note(f"set {change.flag} in the environment: a configuration file cannot")
    out.note(f"{path}: written, {rewritten.name} with the suggestion")
