"""The command tree. Commands import what they need when they run: ``--help`` stays quick."""

from __future__ import annotations

from typing import Annotated

import typer

from kvcanary_cli import __version__
from kvcanary_cli.cli.check_capacities import EPILOG as CHECK_EPILOG
from kvcanary_cli.cli.check_capacities import check_capacities
from kvcanary_cli.cli.demo import demo
from kvcanary_cli.cli.explain import EPILOG as EXPLAIN_EPILOG
from kvcanary_cli.cli.explain import explain
from kvcanary_cli.cli.inject import EPILOG as INJECT_EPILOG
from kvcanary_cli.cli.inject import inject
from kvcanary_cli.cli.inspect import EPILOG as INSPECT_EPILOG
from kvcanary_cli.cli.inspect import inspect
from kvcanary_cli.cli.record import EPILOG as RECORD_EPILOG
from kvcanary_cli.cli.record import RecordCommand, record
from kvcanary_cli.cli.replay import EPILOG as REPLAY_EPILOG
from kvcanary_cli.cli.replay import replay
from kvcanary_cli.cli.selftest import EPILOG as SELFTEST_EPILOG
from kvcanary_cli.cli.selftest import selftest
from kvcanary_cli.cli.serving_options import LaunchCommand
from kvcanary_cli.cli.suggest_flags import EPILOG as SUGGEST_EPILOG
from kvcanary_cli.cli.suggest_flags import suggest_flags
from kvcanary_cli.cli.trace import trace_app

app = typer.Typer(
    name="kvcanary",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help=(
        "Find out who corrupted which slot of an LLM server's KV cache, when and how.\n\n"
        "Exit codes: 0 clean, 1 something was found, 2 wrong usage, 3 a bug in kvcanary, "
        "4 input that cannot be used, 5 nothing was checked, 130 interrupted."
    ),
    epilog=(
        "Examples:\n\n"
        "  kvcanary demo\n\n"
        "  kvcanary replay trace.pt\n\n"
        "  kvcanary trace info trace.pt"
    ),
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvcanary {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere.")
    ] = False,
) -> None:
    """Options of all commands."""


app.command("replay", epilog=REPLAY_EPILOG)(replay)
app.command("record", epilog=RECORD_EPILOG, cls=RecordCommand)(record)
app.command("demo", epilog="Examples:\n\n  kvcanary demo\n\n  kvcanary demo | less")(demo)
app.command("inspect", epilog=INSPECT_EPILOG)(inspect)
app.command("explain", epilog=EXPLAIN_EPILOG)(explain)
app.command("check-capacities", epilog=CHECK_EPILOG, cls=LaunchCommand)(check_capacities)
app.command("suggest-flags", epilog=SUGGEST_EPILOG, cls=LaunchCommand)(suggest_flags)
app.command("inject", epilog=INJECT_EPILOG)(inject)
app.command("selftest", epilog=SELFTEST_EPILOG)(selftest)
app.add_typer(trace_app, name="trace")
