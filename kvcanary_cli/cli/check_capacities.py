"""``kvcanary check-capacities``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvcanary_cli.cli.common_options import FormatName, OutputFile, OutputFormat
from kvcanary_cli.cli.output import result_output
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
from kvcanary_cli.errors import EXIT_CLEAN, EXIT_FOUND, EXIT_NOTHING_CHECKED, UsageError

if TYPE_CHECKING:
    from kvcanary_cli.serving.check_result import CheckReport

EPILOG = (
    "Examples:\n\n"
    "  kvcanary check-capacities configs/single_gpu.yaml --gpu h100 "
    "--set max_total_num_tokens=400000\n\n"
    "  kvcanary check-capacities configs/low_cuda_graph_max_bs.yaml --peak-batch-size 12\n\n"
    "  kvcanary check-capacities --gpu l40s -- python -m sglang.launch_server --model-path m"
)


def check_capacities(
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
    against: Annotated[
        str | None,
        typer.Option(help="Another source: list the values that differ and what that does."),
    ] = None,
    output_format: OutputFormat = FormatName.text,
    output: OutputFile = None,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit 0 even if a check fails.")
    ] = False,
    quiet: Quiet = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Every resolved value with its source.")
    ] = False,
) -> None:
    """Check whether the canary's buffers hold what a server with these arguments may run."""
    from kvcanary_cli.report import capacities_json, capacities_text

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
    report, notes = make_report(options, against)
    with result_output(output, quiet=quiet) as out:
        for note in notes:
            out.note(f"note: {note}")
        if not quiet:
            for notice in report.notices:
                out.warn(notice)
        if output_format is FormatName.json:
            out.write([capacities_json.check_json(report)])
        elif quiet:
            out.print(capacities_text.summary_line(report))
        else:
            for part in capacities_text.render(report, width=out.width, verbose=verbose):
                out.print(part)
    raise typer.Exit(exit_code(report, exit_zero=exit_zero))


def make_report(options: ServingOptions, against: str | None) -> tuple[CheckReport, list[str]]:
    """Read, resolve, check and compare.

    Raises:
        UsageError: An option that does not fit.
        InputError: A source that cannot be used.
    """
    from dataclasses import replace

    from kvcanary_cli.serving.check_report import build_report

    read_once = [*options.sources, *options.logs, against]
    if read_once.count("-") > 1:
        raise UsageError(
            "stdin can be read once: give - once",
            hint="save one of the inputs to a file and give its name",
        )
    reading, _, notes = read_serving(options)
    resolution = reading.resolve()
    draft = int(resolution.value("speculative_num_draft_tokens", 0) or 0)
    demands = read_demands(options, draft)
    report = build_report(reading, demands)
    if report.failing:
        from kvcanary_cli.serving.suggest import with_fixes

        report = with_fixes(report, reading, demands)
    if against is not None:
        from kvcanary_cli.serving.compare import compare

        other, _, _ = read_serving(
            replace(options, sources=[against], words=[], launch=None, settings=[])
        )
        differences = compare(report.resolution, other.resolve())
        report = replace(report, differences=differences, against=against)
    return report, notes


def exit_code(report: CheckReport, *, exit_zero: bool) -> int:
    """Exit status for a report (docs/output.md)."""
    from kvcanary_cli.serving.check_result import Verdict

    if report.verdict is Verdict.NOT_CHECKED:
        return EXIT_NOTHING_CHECKED
    found = report.verdict is Verdict.VIOLATIONS
    return EXIT_FOUND if found and not exit_zero else EXIT_CLEAN
