"""`agentrl diagnose`: what is wrong with a run, and which setting to change."""

from agentrl_cli import console
from agentrl_cli.commands import options


@options.examples(
    "agentrl diagnose",
    "agentrl diagnose runs/first --json",
)
def diagnose(
    run: options.Run = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Say what is wrong with a run and what to change."""
    from agentrl_cli.diagnosis import diagnose_run

    diagnosis = diagnose_run(run or options.newest_run_or_refuse())
    if as_json:
        console.print_json(diagnosis.to_json())
    else:
        console.print_text(diagnosis.to_text())
