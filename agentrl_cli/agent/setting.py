"""What trajectories need besides a model: tools over a sandbox, limits, and the event loop that they live on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from agentrl_cli.agent.batch import Setting
from agentrl_cli.agent.loop import AgentLimits
from agentrl_cli.agent.tools import build_toolbox
from agentrl_cli.config.schema import Config
from agentrl_cli.sandbox.local import LocalSandbox


@contextmanager
def open_setting(config: Config) -> Iterator[tuple[Setting, asyncio.Runner, ExitStack]]:
    """Open sandbox, tools and event loop; what else lives on the loop goes onto the stack to be closed before them.

    Trajectories that are still running when the block is left (by a signal) are cancelled first: they must
    not meet a closed sandbox and take it for an infrastructure failure.
    """
    with ExitStack() as closing:
        runner = closing.enter_context(asyncio.Runner())
        sandbox = LocalSandbox(config.sandbox)
        closing.callback(lambda: runner.run(sandbox.close()))
        setting = Setting(
            toolbox=build_toolbox(config.tools, sandbox, config.sandbox),
            limits=AgentLimits.from_config(config.agent),
            system_prompt=config.agent.system_prompt,
        )
        try:
            yield setting, runner, closing
        finally:
            _cancel_tasks(runner)


def _cancel_tasks(runner: asyncio.Runner) -> None:
    """Cancel what still runs on the loop and wait for its end.

    A task that was left by an exit passes it on to the tasks that wait for it, and each stops the loop once.
    """
    while tasks := asyncio.all_tasks(runner.get_loop()):
        try:
            runner.run(_cancel(tasks))
        except (SystemExit, KeyboardInterrupt):
            continue


async def _cancel(tasks: set[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
