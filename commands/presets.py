"""`agentrl presets`: what comes with the package, and what a setting means."""

from typing import Annotated

import typer

from agentrl_cli import console
from agentrl_cli.commands import completion, options

presets = typer.Typer(name="presets", help="List, show and explain settings.", no_args_is_help=True)


@presets.command("list")
@options.examples(
    "agentrl presets list",
)
def list_() -> None:
    """List the presets."""
    from agentrl_cli.config.explain import describe_presets

    console.print_text(describe_presets())


@presets.command("show")
@options.examples(
    "agentrl presets show 4b > my.toml",
)
def show(name: Annotated[str, typer.Argument(autocompletion=completion.presets, help="Name of a preset.")]) -> None:
    """Print a preset as TOML, to start a file of your own from."""
    from agentrl_cli.config.load import preset_text

    console.print_text(preset_text(name).rstrip())


@presets.command("explain")
@options.examples(
    "agentrl presets explain epsilon_high",
)
def explain_(
    key: Annotated[
        str,
        typer.Argument(autocompletion=completion.keys, help="A setting or section, such as grpo.epsilon_high."),
    ],
) -> None:
    """Say what a setting means, its choices and its default."""
    from agentrl_cli.config.explain import explain

    console.print_text(explain(key))
