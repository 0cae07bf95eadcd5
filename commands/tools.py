"""`agentrl tools`: what a model may call, and how it answers."""

import typer

from agentrl_cli import console
from agentrl_cli.commands import options
from agentrl_cli.commands.tools_call import Name, call

tools = typer.Typer(name="tools", help="List, show and try the tools that a model may call.", no_args_is_help=True)


@tools.command("list")
@options.examples(
    "agentrl tools list",
    "agentrl tools list --set tools.module=my_tools.py",
)
def list_(
    preset: options.Preset = None,
    config_file: options.ConfigFile = None,
    overrides: options.Overrides = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """List the package's tools and yours, and say which the settings offer."""
    from agentrl_cli.agent.tools.by_hand import list_text, list_tools

    found = list_tools(options.settings(preset, config_file, overrides=overrides, seed=None))
    if as_json:
        console.print_json({"tools": found})
    else:
        console.print_text(list_text(found))


@tools.command("show")
@options.examples(
    "agentrl tools show symbolic",
)
def show(
    name: Name,
    preset: options.Preset = None,
    config_file: options.ConfigFile = None,
    overrides: options.Overrides = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Show what a tool does, costs and is bounded by, and the schema that the model sees."""
    from agentrl_cli.agent.tools.by_hand import describe_text, describe_tool

    tool = describe_tool(options.settings(preset, config_file, overrides=overrides, seed=None), name)
    if as_json:
        console.print_json(tool)
    else:
        console.print_text(describe_text(tool))


tools.command("call")(call)
