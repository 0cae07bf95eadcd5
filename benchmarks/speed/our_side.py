"""Our side: the same steps through agentrl's sampling and update phases, with the tool in process or sandboxed.

Prints one JSON object of the same form as TRL's side.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from shared import CALL_S, PYTHON_SCHEMA, is_right, python

from agentrl_cli.agent.arguments import read_arguments
from agentrl_cli.agent.base import Toolbox, ToolSession
from agentrl_cli.agent.batch import Setting
from agentrl_cli.agent.chat_format import ChatFormat
from agentrl_cli.agent.loop import AgentLimits
from agentrl_cli.agent.stack import Stack, pad_id
from agentrl_cli.agent.tools import build_toolbox
from agentrl_cli.config.grpo import FilterGroupsConfig, GrpoConfig, OverlongConfig
from agentrl_cli.config.schema import ModelConfig, OptimConfig, SandboxConfig, ToolsConfig, TransformersSamplerConfig
from agentrl_cli.sampler.loading import load_policy
from agentrl_cli.sampler.transformers import TransformersSampler
from agentrl_cli.sandbox.local import LocalSandbox
from agentrl_cli.training.advantages import set_advantages
from agentrl_cli.training.optimizer import build_optimizer
from agentrl_cli.training.rl import peak_mib
from agentrl_cli.training.sampling import ProblemStream, sample_step
from agentrl_cli.training.update import StepPlan, loss_settings, train_on_groups
from agentrl_cli.types import Problem, ToolCall, ToolResult, ToolStatus, Trajectory, Verdict, VerdictStatus

TIMES = ("step_s", "generation_s", "tool_s")


class InProcessToolbox:
    """The Python tool without a sandbox, as on TRL's side."""

    schemas = (PYTHON_SCHEMA,)

    def open(self) -> InProcessToolbox:
        return self

    async def call(self, call: ToolCall) -> ToolResult:
        arguments, error = read_arguments(call, PYTHON_SCHEMA)
        error = call.error or error
        return ToolResult(ToolStatus.INVALID, error) if error else ToolResult(ToolStatus.OK, python(arguments["code"]))

    async def close(self) -> None:
        """Nothing is held."""


class TimedToolbox:
    """The sandboxed Python tool, with the seconds that its calls are waited for."""

    schemas = (PYTHON_SCHEMA,)

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox

    def open(self) -> TimedToolSession:
        return TimedToolSession(self._toolbox.open())


class TimedToolSession:
    """One trajectory's tools, timed."""

    def __init__(self, session: ToolSession) -> None:
        self._session = session

    async def call(self, call: ToolCall) -> ToolResult:
        start = time.perf_counter()
        result = await self._session.call(call)
        CALL_S.append(time.perf_counter() - start)
        return result

    async def close(self) -> None:
        await self._session.close()


def score(trajectories: list[Trajectory]) -> None:
    """Pay as TRL's side does."""
    for trajectory in trajectories:
        right = is_right(trajectory.final_text, trajectory.problem.answer)
        trajectory.verdict = Verdict(right, VerdictStatus.OK)
        trajectory.reward = 1.0 if right else -1.0


def main() -> None:
    """Run the steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    job = json.loads(parser.parse_args().job.read_text())
    torch.set_num_threads(job["threads"])
    policy = load_policy(ModelConfig(path=job["model"]), trainable=True)
    grpo = GrpoConfig(
        num_generations=job["num_generations"],
        problems_per_step=job["problems_per_step"],
        num_minibatches=1,
        micro_batch_tokens=job["micro_batch_tokens"],
        filter_groups=FilterGroupsConfig(enabled=False),
        overlong=OverlongConfig(enabled=False),
    )
    optim = OptimConfig(learning_rate=job["learning_rate"], weight_decay=0.0)
    limits = AgentLimits(
        max_turns=job["max_turns"],
        max_tool_calls=job["max_turns"],
        max_completion_length=job["max_completion_length"],
        max_tokens_without_call=0,
    )
    batch = job["problems_per_step"] * job["num_generations"]
    sampler = TransformersSampler(
        policy.model,
        config=TransformersSamplerConfig(max_batch=batch),
        max_length=512 + job["max_completion_length"],
        pad_token_id=pad_id(policy),
    )
    with ExitStack() as closing:
        runner = closing.enter_context(asyncio.Runner())
        toolbox: Toolbox = InProcessToolbox()
        if job["sandbox"]:
            sandbox = LocalSandbox(SandboxConfig())
            closing.callback(lambda: runner.run(sandbox.close()))
            toolbox = TimedToolbox(build_toolbox(ToolsConfig(), sandbox, SandboxConfig()))
        chat_format = ChatFormat(policy.tokenizer, tools=toolbox.schemas, call_format="hermes")
        stack = Stack(policy, sampler, chat_format, Setting(toolbox, limits), runner, batch, True)
        print(json.dumps(run_steps(stack, job, grpo=grpo, optim=optim)))


def run_steps(stack: Stack, job: dict[str, Any], *, grpo: GrpoConfig, optim: OptimConfig) -> dict[str, Any]:
    """Return seconds, tokens and calls of each step."""
    stream = ProblemStream([Problem(str(i), p["prompt"], p["answer"]) for i, p in enumerate(job["problems"])], seed=0)
    model = stack.policy.model
    optimizer = build_optimizer(model, optim)
    result: dict[str, Any] = {k: [] for k in (*TIMES, "completion_tokens", "tool_calls", "reward")}
    cursor = 0
    for step in range(job["steps"]):
        CALL_S.clear()
        start = time.perf_counter()
        sampled = sample_step(stack, stream, score, config=grpo, seed=0, step=step, cursor=cursor)
        cursor = sampled.cursor
        generated = time.perf_counter()
        set_advantages(sampled.groups, config=grpo)
        plan = StepPlan(
            loss=loss_settings(grpo, epsilon_high=grpo.epsilon_high, longest=job["max_completion_length"]),
            beta=0.0,
            first_update=step,
            total_updates=job["steps"],
            pad_id=pad_id(stack.policy),
        )
        train_on_groups(model, optimizer, sampled.groups, plan=plan, config=grpo, optim=optim)
        stack.runner.run(stack.sampler.update_weights(step + 1))
        result["step_s"].append(time.perf_counter() - start)
        result["generation_s"].append(generated - start)
        result["tool_s"].append(sum(CALL_S))
        rows = sampled.trajectories
        result["completion_tokens"].append(sum(t.num_generated for t in rows) / len(rows))
        result["tool_calls"].append(sum(t.num_calls for t in rows) / len(rows))
        result["reward"].append(sum(t.reward for t in rows) / len(rows))
    return {**result, "peak_mib": peak_mib()}


if __name__ == "__main__":
    main()
