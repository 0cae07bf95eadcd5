"""Who solves the problems: the scripted teacher, a chat endpoint, or a local checkpoint.

A spec names one: `scripted`, `openai:NAME@URL`, `model:PATH` (a folder, a run or a Hugging Face id).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from agentrl_cli.agent.base import Conversation
from agentrl_cli.agent.batch import Job, Setting
from agentrl_cli.agent.chat_conversation import ChatConversation
from agentrl_cli.agent.setting import open_setting
from agentrl_cli.collection.scripted import ScriptedTeacher
from agentrl_cli.config.schema import Config, OpenAISamplerConfig, SamplerConfig
from agentrl_cli.errors import ConfigError
from agentrl_cli.sampler.base import ChatSampler
from agentrl_cli.types import Problem

_OPENAI = re.compile(r"openai:(?P<name>.+?)@(?P<url>https?://[^\s/]+(?:/\S*)?)")
_TOP_P = 1.0


@dataclass(frozen=True, slots=True)
class TeacherSpec:
    """A spec, read."""

    kind: Literal["scripted", "openai", "model"]
    name: str = ""
    """Of the endpoint's model, or the path."""
    url: str = ""

    @property
    def text(self) -> str:
        """The spec as it is written."""
        return {"scripted": "scripted", "openai": f"openai:{self.name}@{self.url}", "model": f"model:{self.name}"}[
            self.kind
        ]


@dataclass(frozen=True, slots=True)
class Teacher:
    """A teacher at work."""

    setting: Setting
    runner: asyncio.Runner
    concurrency: int
    """Trajectories in flight."""
    converse: Callable[[Sequence[Job]], Conversation]
    """Makes the conversation that these jobs, in flight together, share."""
    in_batches: bool = False
    """Jobs go in batches of `concurrency`, one after the other, so that equal seeds give equal bits."""
    identity: dict[str, str] = field(default_factory=dict)
    """Of a local model: path and digests."""

    def batches(self, jobs: Sequence[Job]) -> list[Sequence[Job]]:
        """Cut jobs into those that share a conversation."""
        size = self.concurrency if self.in_batches else len(jobs)
        return [jobs[i : i + size] for i in range(0, len(jobs), size)] if jobs else []


def parse_teacher(spec: str) -> TeacherSpec:
    """Read a spec.

    Raises:
        ConfigError: it names no teacher.
    """
    if spec == "scripted":
        return TeacherSpec("scripted")
    if spec.startswith("model:") and spec != "model:":
        return TeacherSpec("model", spec.removeprefix("model:"))
    if match := _OPENAI.fullmatch(spec):
        if "@" in match["url"].split("/")[2]:
            raise ConfigError(
                "the address of --teacher holds a user name or password",
                hint="name the environment variable of the key instead: sampler.api_key_env",
            )
        return TeacherSpec("openai", match["name"], match["url"].rstrip("/"))
    raise ConfigError(
        f"unknown teacher {spec!r}",
        hint="teachers are scripted, openai:NAME@URL (such as openai:qwen3@http://localhost:8000/v1) and model:PATH",
    )


@contextmanager
def open_teacher(spec: TeacherSpec, config: Config, problems: Sequence[Problem]) -> Iterator[Teacher]:
    """Open a teacher with tools; everything is closed on the way out.

    Raises:
        ConfigError: the settings do not fit, or the scripted teacher does not know a problem.
        ModelError: a local model can't be loaded.
    """
    if spec.kind == "model":
        with _open_model(spec.name, config) as teacher:
            yield teacher
        return
    sampler: ChatSampler
    if spec.kind == "scripted":
        sampler = ScriptedTeacher(problems, seed=config.run.seed)
    else:
        from agentrl_cli.sampler.openai import OpenAIChatSampler

        sampler = OpenAIChatSampler(endpoint_config(spec, config.sampler))
    with open_setting(config) as (setting, runner, closing):
        closing.callback(lambda: runner.run(sampler.close()))
        conversation = ChatConversation(sampler, temperature=config.collect.temperature, top_p=_TOP_P)
        yield Teacher(setting, runner, config.collect.concurrency, lambda jobs: conversation)


def endpoint_config(spec: TeacherSpec, sampler: SamplerConfig) -> OpenAISamplerConfig:
    """Return how to reach a teacher's endpoint: time limit, retries and key are those of [sampler] if it is one.

    Raises:
        ConfigError: [sampler] names another address, whose key must not go to this one.
    """
    if not isinstance(sampler, OpenAISamplerConfig):
        return OpenAISamplerConfig(base_url=spec.url, model=spec.name)
    if sampler.base_url.rstrip("/") != spec.url:
        raise ConfigError(
            f"--teacher is at {spec.url!r}, but sampler.base_url is {sampler.base_url!r}",
            hint=f"--set sampler.base_url={spec.url}",
        )
    return sampler.model_copy(update={"model": spec.name})


@contextmanager
def _open_model(path: str, config: Config) -> Iterator[Teacher]:
    """Open a local model; torch is loaded here and not before."""
    from agentrl_cli.agent.rounds import RoundSampler
    from agentrl_cli.agent.stack import open_stack
    from agentrl_cli.agent.token_conversation import TokenConversation
    from agentrl_cli.evaluation.runner import find_model

    model_path, _ = find_model(path)
    with open_stack(config, model_path=model_path) as stack:

        def converse(jobs: Sequence[Job]) -> Conversation:
            sampler = stack.sampler
            if stack.deterministic:
                sampler = RoundSampler(sampler, [job.trajectory_id for job in jobs])
            return TokenConversation(
                sampler,
                stack.chat_format,
                temperature=config.collect.temperature,
                top_p=_TOP_P,
                max_length=stack.setting.limits.max_completion_length,
            )

        yield Teacher(
            stack.setting,
            stack.runner,
            min(config.collect.concurrency, stack.max_batch),
            converse,
            in_batches=stack.deterministic,
            identity=dict(stack.policy.identity),
        )
