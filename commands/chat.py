"""`agentrl chat`: ask a checkpoint a problem and see what it does with its tools."""

from typing import Annotated

import typer

from agentrl_cli import console
from agentrl_cli.commands import completion, options


@options.examples(
    "agentrl chat",
    'agentrl chat runs/first --ask "$(cat problem.txt)" --gold 388',
    "agentrl chat runs/first < problems.txt",
)
def chat(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|CHECKPOINT|MODEL",
            callback=options.find_run,
            autocompletion=completion.runs,
            help="Whom to ask; the newest run in ./runs.",
        ),
    ] = None,
    ask: Annotated[str | None, typer.Option("--ask", metavar="TEXT", help="One problem; then end.")] = None,
    gold: Annotated[str | None, typer.Option("--gold", metavar="TEXT", help="Right answer of --ask.")] = None,
    preset: options.Preset = None,
    config_file: options.ConfigFile = None,
    overrides: options.Overrides = None,
    seed: options.Seed = None,
    as_json: options.Json = False,
    offline: options.Offline = False,
    debug: options.Debug = False,
) -> None:
    """Ask a model a problem and see its calls and reward.

    Type problems one a line, or pipe them in; nothing is remembered from one to the next. Type = GOLD after an
    answer to score it, /help for more. A run answers under its own settings; --set eval.temperature=0 makes it
    greedy. Equal seeds and questions give equal answers.
    """
    from agentrl_cli.chat import conversation, session
    from agentrl_cli.records import trajectory_to_row

    question = session.read_question(ask, gold=gold, as_json=as_json)
    run = options.run_folder(session.run_name(model))
    config = options.settings(preset, config_file, overrides=overrides, seed=seed, shortcuts={}, run=run)
    with console.open_reporter() as reporter, session.open_session(config, model=model, reporter=reporter) as opened:
        width, show = console.PLAIN_WIDTH, console.print_text
        if question is None:
            conversation.converse(conversation.read_lines(), opened, width=width, show=show, say=reporter.info)
            return
        trajectory = opened.ask(question)
    if as_json:
        console.print_json(trajectory_to_row(trajectory))
    else:
        show(conversation.render_answer(trajectory, width))
    session.require_answer(trajectory)
