"""Everything that rolls out a model, opened together and closed together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from agentrl_cli.agent.batch import Job, Setting, run_jobs
from agentrl_cli.agent.chat_conversation import ChatConversation
from agentrl_cli.agent.chat_format import ChatFormat
from agentrl_cli.agent.rounds import RoundSampler
from agentrl_cli.agent.setting import open_setting
from agentrl_cli.agent.token_conversation import TokenConversation
from agentrl_cli.config.schema import Config, OpenAISamplerConfig, TransformersSamplerConfig
from agentrl_cli.errors import ConfigError
from agentrl_cli.sampler.base import ChatSampler, Sampler
from agentrl_cli.sampler.loading import Policy, load_policy
from agentrl_cli.sampler.openai import OpenAIChatSampler
from agentrl_cli.sampler.transformers import TransformersSampler
from agentrl_cli.types import Message, Problem, Trajectory


class Actor(Protocol):
    """Something that can play trajectories: a local policy or a chat endpoint."""

    @property
    def name(self) -> str:
        """What reports call the model."""
        ...

    def run(self, jobs: Sequence[Job], *, temperature: float, top_p: float = 1.0) -> list[Trajectory]:
        """Run jobs to their endings, in their order."""
        ...


@dataclass(slots=True)
class Stack:
    """A local policy with its sampler, tools and the event loop that they live on."""

    policy: Policy
    sampler: Sampler
    chat_format: ChatFormat
    setting: Setting
    runner: asyncio.Runner
    max_batch: int
    deterministic: bool

    @property
    def name(self) -> str:
        """Where the weights came from."""
        return self.policy.identity["path"]

    def run(self, jobs: Sequence[Job], *, temperature: float, top_p: float = 1.0) -> list[Trajectory]:
        """Run jobs to their endings, in their order.

        Deterministic runs go batch by batch, each by rounds; others refill the batch as places come free.
        """
        if not self.deterministic:
            return self._run(jobs, self.sampler, temperature=temperature, top_p=top_p)
        trajectories = []
        for start in range(0, len(jobs), self.max_batch):
            batch = jobs[start : start + self.max_batch]
            rounds = RoundSampler(self.sampler, [job.trajectory_id for job in batch])
            trajectories += self._run(batch, rounds, temperature=temperature, top_p=top_p)
        return trajectories

    def fit_prompts(self, problems: Sequence[Problem], *, max_prompt_length: int) -> tuple[list[Problem], int]:
        """Return the problems whose prompt fits, and how many do not."""
        fitting = [p for p in problems if len(self.prompt_ids(p)) <= max_prompt_length]
        return fitting, len(problems) - len(fitting)

    def prompt_ids(self, problem: Problem) -> list[int]:
        """Return the prompt's ids as the loop will send them."""
        system = self.setting.system_prompt
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        return self.chat_format.prompt_ids([*messages, {"role": "user", "content": problem.prompt}])

    def _run(self, jobs: Sequence[Job], sampler: Sampler, *, temperature: float, top_p: float) -> list[Trajectory]:
        conversation = TokenConversation(
            sampler,
            self.chat_format,
            temperature=temperature,
            top_p=top_p,
            max_length=self.setting.limits.max_completion_length,
        )
        return self.runner.run(run_jobs(jobs, conversation, self.setting, concurrency=self.max_batch))


@dataclass(slots=True)
class ChatStack:
    """A chat endpoint with our tools."""

    name: str
    sampler: ChatSampler
    setting: Setting
    runner: asyncio.Runner
    concurrency: int

    def run(self, jobs: Sequence[Job], *, temperature: float, top_p: float = 1.0) -> list[Trajectory]:
        """Run jobs to their endings, in their order."""
        conversation = ChatConversation(self.sampler, temperature=temperature, top_p=top_p)
        return self.runner.run(run_jobs(jobs, conversation, self.setting, concurrency=self.concurrency))


@contextmanager
def open_stack(config: Config, *, model_path: str | None = None, trainable: bool = False) -> Iterator[Stack]:
    """Open sandbox, model and sampler as the settings say; everything is closed on the way out.

    Reads several sections, since it hands each module its own.

    Raises:
        ConfigError: the settings name an engine that has no token ids.
    """
    if not isinstance(config.sampler, TransformersSamplerConfig):
        raise ConfigError(
            f"sampler.type={config.sampler.type!r} gives messages, not token ids",
            hint="use --set sampler.type=transformers here",
        )
    with open_setting(config) as (setting, runner, closing):
        policy = load_policy(config.model, path=model_path, trainable=trainable)
        chat_format = ChatFormat(policy.tokenizer, tools=setting.toolbox.schemas, call_format=config.agent.call_format)
        sampler = TransformersSampler(
            policy.model,
            config=config.sampler,
            max_length=config.data.max_prompt_length + config.agent.max_completion_length,
            pad_token_id=pad_id(policy),
        )
        closing.callback(lambda: runner.run(sampler.close()))
        yield Stack(policy, sampler, chat_format, setting, runner, config.sampler.max_batch, config.run.deterministic)


@contextmanager
def open_actor(config: Config, *, model_path: str | None = None) -> Iterator[Actor]:
    """Open whatever the settings let play: a local policy, or a chat endpoint with our tools."""
    if not isinstance(config.sampler, OpenAISamplerConfig):
        with open_stack(config, model_path=model_path) as stack:
            yield stack
        return
    with open_setting(config) as (setting, runner, closing):
        sampler = OpenAIChatSampler(config.sampler)
        closing.callback(lambda: runner.run(sampler.close()))
        name = f"{config.sampler.model}@{config.sampler.base_url}"
        yield ChatStack(name, sampler, setting, runner, config.collect.concurrency)


def pad_id(policy: Policy) -> int:
    """Return an id to pad with; it is always masked, so any id will do."""
    pad = policy.tokenizer.pad_token_id
    return int(pad if pad is not None else policy.tokenizer.eos_token_id)
