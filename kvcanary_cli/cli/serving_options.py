"""What ``check-capacities`` and ``suggest-flags`` share: options and reading the sources."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from kvcanary_cli.errors import InputError, UsageError

if TYPE_CHECKING:
    from kvcanary_cli.serving.demand import Demand
    from kvcanary_cli.serving.read_raw import RawReading
    from kvcanary_cli.serving.read_sources import Reading
    from kvcanary_cli.serving.values import Given

AFTER_DASHES = "kvcanary.launch_words"


class LaunchCommand(TyperCommand):
    """A command after whose ``--`` a launch command may stand."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[AFTER_DASHES] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SOURCE",
        help="YAML configuration, script or file with a launch command, server log, server-info "
        "JSON, - for stdin, or -- COMMAND. Several are merged, later ones win.",
        show_default=False,
    ),
]
Version = Annotated[
    str | None, typer.Option("--sglang-version", help="Version of the server, such as 0.5.14.")
]
GpuMem = Annotated[
    str | None,
    typer.Option("--gpu-mem", help="Memory of one GPU: 81559MiB as nvidia-smi prints it, or 80GB."),
]
Gpu = Annotated[str | None, typer.Option("--gpu", help="GPU product: h100, a100, l40s, ...")]
Gpus = Annotated[int | None, typer.Option("--gpus", help="GPUs of the launch, all nodes.")]
ModelConfig = Annotated[
    str | None,
    typer.Option("--model-config", help="The model's config.json, or the folder that holds it."),
]
DraftModelConfig = Annotated[
    str | None,
    typer.Option("--draft-model-config", help="The draft model's config.json, or its folder."),
]
WeightsBytes = Annotated[
    str | None,
    typer.Option("--weights-bytes", help="Weights that one rank loads: 16060522496, 15GiB."),
]
Setting = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Another value of anything (repeatable)."),
]
Launch = Annotated[
    int | None,
    typer.Option("--launch", help="Which launch command of a file that holds several, from 1."),
]
Traces = Annotated[
    list[Path] | None,
    typer.Option("--trace", help="Take the demand from this trace (repeatable)."),
]
Logs = Annotated[
    list[str] | None,
    typer.Option("--log", help="Take the demand from this server log (repeatable)."),
]
PeakBatch = Annotated[
    int | None, typer.Option("--peak-batch-size", min=1, help="Most requests of one batch.")
]
PeakTokens = Annotated[
    int | None, typer.Option("--peak-tokens", min=1, help="Most tokens of one forward.")
]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Only the summary line; no remarks on stderr.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """The shared options as they were given."""

    sources: list[str]
    words: list[str]
    version: str | None
    gpu_mem: str | None
    gpu: str | None
    gpus: int | None
    model_config: str | None
    draft_model_config: str | None = None
    weights_bytes: str | None
    settings: list[str]
    launch: int | None
    traces: list[Path]
    logs: list[str]
    peak_batch_size: int | None
    peak_tokens: int | None


def launch_words(ctx: typer.Context) -> list[str]:
    """The words after ``--``."""
    words: list[str] = ctx.meta.get(AFTER_DASHES, [])
    return words


def read_serving(options: ServingOptions) -> tuple[Reading, list[RawReading], list[str]]:
    """Read and merge the sources.

    Returns:
        The reading, its parts, and what was taken for what in our own options.

    Raises:
        UsageError: No source, or an option of ours that does not fit.
        InputError: Something to correct in the sources.
    """
    from kvcanary_cli.serving.read_source import read_source
    from kvcanary_cli.serving.read_sources import merge

    if not options.sources and not options.words:
        raise UsageError(
            "no source was given",
            hint="give a configuration, script, log or server-info, or -- followed by the launch "
            "command",
        )
    if options.sources.count("-") > 1:
        raise UsageError("stdin can be read once: give - once")
    parts = [read_source(name, pick=options.launch) for name in options.sources]
    if options.words:
        from kvcanary_cli.serving.read_command import read_words

        parts.append(read_words(options.words))
    overrides, notes = _overrides(options)
    return merge(parts, overrides, version=options.version), parts, notes


def _overrides(options: ServingOptions) -> tuple[list[Given], list[str]]:
    from kvcanary_cli.serving.read_overrides import (
        gpu_statements,
        model_statement,
        parse_bytes,
        set_statement,
    )
    from kvcanary_cli.serving.values import Given

    given, notes = gpu_statements(memory=options.gpu_mem, name=options.gpu, count=options.gpus)
    if options.model_config is not None:
        given.append(model_statement(options.model_config))
    if options.draft_model_config is not None:
        given.append(model_statement(options.draft_model_config, "draft_model_config"))
    if options.weights_bytes is not None:
        value = parse_bytes(options.weights_bytes, "--weights-bytes")
        given.append(Given("weights_bytes", value, "--weights-bytes", None, "override"))
    given += [set_statement(text, options.version) for text in options.settings]
    return given, notes


def read_demands(options: ServingOptions, draft_tokens: int) -> list[Demand]:
    """Demands of traces, logs and peaks that were given."""
    from kvcanary_cli.serving.demand import observed_demands, stated_demands

    out = stated_demands(peak_batch_size=options.peak_batch_size, peak_tokens=options.peak_tokens)
    if options.logs:
        from kvcanary_cli.serving.read_log import read_log
        from kvcanary_cli.serving.read_source import load
    for name in options.logs:
        text, shown = load(name)
        seen = read_log(text, shown).observed
        if seen is None or not (seen.batch_lines or seen.errors):
            raise InputError(
                f"--log {name}: holds no batch line and no canary message",
                hint="give the log of a server under load",
            )
        out += observed_demands(shown, seen, draft_tokens)
    if options.traces:
        from kvcanary_cli.serving.trace_demand import trace_demands
        from kvcanary_cli.trace.reader import open_trace

        for path in options.traces:
            out += trace_demands(open_trace(path))
    return out
