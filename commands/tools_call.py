"""`agentrl tools call`: one tool by hand."""

from typing import Annotated

import typer

from agentrl_cli.commands import options

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a tool; see `agentrl tools list`.")]


@options.examples(
    """agentrl tools call calculator '{"expression": "0.1 + 0.2"}'""",
    """agentrl tools call python '{"code": "6 * 7"}'""",
)
def call(
    name: Name,
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="Its arguments, as a JSON object.")],
    preset: options.Preset = None,
    config_file: options.ConfigFile = None,
    overrides: options.Overrides = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Call a tool as a model would.

    It need not be offered by the settings. Exit code 1 if the call fails.
    """
    from agentrl_cli.agent.tools.by_hand import call_tool

    result = call_tool(options.settings(preset, config_file, overrides=overrides, seed=None), name, arguments)
    shown = result if as_json else {"status": result["status"], "wall_s": result["wall_s"]}
    options.show(shown, as_json=as_json, text=result["result"])
    if result["status"] != "ok":
        raise typer.Exit(1)
