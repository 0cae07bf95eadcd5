"""What a setting changes, seen through the code that a run uses: each probe is settings in, something visible out."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from agentrl_cli.agent.batch import Job, Setting, run_jobs
from agentrl_cli.agent.chat_format import ChatFormat
from agentrl_cli.agent.loop import AgentLimits
from agentrl_cli.agent.setting import open_setting
from agentrl_cli.agent.stack import Stack, open_actor
from agentrl_cli.agent.token_conversation import TokenConversation
from agentrl_cli.agent.tools import build_toolbox
from agentrl_cli.config.schema import Config, OptimConfig, TransformersSamplerConfig
from agentrl_cli.data.sources import load_problems
from agentrl_cli.errors import AgentRLError
from agentrl_cli.grpo.entropy import EntropyController
from agentrl_cli.grpo.schedules import epsilon_high_at
from agentrl_cli.rewards.compose import make_scorer
from agentrl_cli.sampler.loading import Policy, load_policy
from agentrl_cli.sampler.scripted import ScriptedSampler
from agentrl_cli.sampler.transformers import TransformersSampler
from agentrl_cli.sandbox.local import LocalSandbox
from agentrl_cli.training.advantages import set_advantages
from agentrl_cli.training.optimizer import build_optimizer, step_optimizer
from agentrl_cli.training.reference import Reference
from agentrl_cli.training.sampling import InfraGuard, ProblemStream, sample_step
from agentrl_cli.training.update import StepPlan, loss_settings, train_on_groups
from agentrl_cli.types import (
    AnswerKind,
    Ending,
    Problem,
    SamplingParams,
    SessionKey,
    ToolCall,
    ToolEvent,
    ToolResult,
    ToolStatus,
    Trajectory,
    Verdict,
    VerdictStatus,
)

VOCAB = 50
RIGHT = "\\boxed{42}"


@dataclass(frozen=True)
class Bench:
    """What probes share: a sandbox, a tokenizer, a folder."""

    sandbox: LocalSandbox
    tokenizer: PreTrainedTokenizerFast
    folder: Path


Probe = Callable[[Config, Bench], object]


def call(code: str) -> str:
    """Return a turn that calls the Python tool."""
    return f'<tool_call>\n{{"name": "python", "arguments": {json.dumps({"code": code})}}}\n</tool_call>'


# --- data, model, sampler ---------------------------------------------------------------------------------


def generated_texts(config: Config, bench: Bench) -> object:
    """Texts of the generated training problems."""
    problems = load_problems("generated:train", generated=config.data.generated, seed=config.run.seed)
    return [problem.prompt for problem in problems]


def loaded_policy(config: Config, bench: Bench) -> object:
    """Weights, precision, template, what is trained, and how adapters scale and drop."""
    policy = load_policy(config.model, trainable=True)
    modules = dict(policy.model.named_modules())
    return (
        policy.identity["weights_sha256"] if config.model.lora is None else "",
        str(next(policy.model.parameters()).dtype),
        policy.tokenizer.chat_template,
        [(name, tuple(p.shape)) for name, p in policy.model.named_parameters() if p.requires_grad],
        [module.scaling for module in modules.values() if isinstance(getattr(module, "scaling", None), dict)][:1],
        [module.p for module in modules.values() if isinstance(module, torch.nn.Dropout)],
        bool(getattr(policy.model, "is_gradient_checkpointing", False)),
    )


def has_reference(config: Config, bench: Bench) -> object:
    """Whether a run keeps a reference to measure the KL to."""
    return Reference.if_needed(config, load_policy(config.model), is_resumed=False) is not None


def actor_name(config: Config, bench: Bench) -> object:
    """Who plays an evaluation."""
    with open_actor(config) as actor:
        return actor.name


def decoding_passes(config: Config, bench: Bench) -> object:
    """Passes that four requests of eight tokens take: few at once need more."""
    assert isinstance(config.sampler, TransformersSamplerConfig)
    sampler = TransformersSampler(random_model(), config=config.sampler, max_length=32, pad_token_id=0)

    async def generate() -> int:
        params = SamplingParams(max_tokens=8, temperature=1.0, seed=0)
        await asyncio.gather(*(sampler.generate([3, 4, 5], params) for _ in range(4)))
        await sampler.close()
        return sampler.usage.num_passes

    return asyncio.run(generate())


# --- the agent loop, tools and sandbox ---------------------------------------------------------------------


def conversation(config: Config, bench: Bench, *, turns: Sequence[str]) -> object:
    """Play scripted turns with real tools: the ending, the messages and what tools were on offer."""
    toolbox = build_toolbox(config.tools, bench.sandbox, config.sandbox)
    setting = Setting(toolbox, AgentLimits.from_config(config.agent))
    talk = TokenConversation(
        ScriptedSampler.of_texts(turns, bench.tokenizer),
        ChatFormat(bench.tokenizer, tools=toolbox.schemas, call_format=config.agent.call_format),
        temperature=1.0,
        top_p=1.0,
        max_length=config.agent.max_completion_length,
    )
    job = Job(Problem("p", "What is 6*7?", "42"), "t", "g", 0)
    (trajectory,) = asyncio.run(run_jobs([job], talk, setting, concurrency=1))
    statuses = [str(event.result.status) for event in trajectory.events]
    contents = [message.get("content") for message in trajectory.messages]
    return str(trajectory.ending), contents, statuses, [schema["function"]["name"] for schema in toolbox.schemas]


def talk(*turns: str) -> Probe:
    """Return the probe that plays these turns, then the right answer."""
    return functools.partial(conversation, turns=[*turns, RIGHT])


def system_prompt(config: Config, bench: Bench) -> object:
    """What every trajectory begins with."""
    with open_setting(config) as (setting, _, _):
        return setting.system_prompt


def open_sessions(config: Config, bench: Bench) -> object:
    """Whether a second session is handed out while one is open."""

    async def open_two() -> bool:
        sandbox = LocalSandbox(config.sandbox)
        try:
            await sandbox.open()
            async with asyncio.timeout(1.0):
                await sandbox.open()
            return True
        except TimeoutError:
            return False
        finally:
            await sandbox.close()

    return asyncio.run(open_two())


def warm_interpreters(config: Config, bench: Bench) -> object:
    """Processes below the warm parent once it has settled."""

    async def count() -> int:
        sandbox = LocalSandbox(config.sandbox)
        try:
            await sandbox.health()
            children = Path(f"/proc/{sandbox.zygote_pid}/task/{sandbox.zygote_pid}/children")
            for _ in range(40):
                if len(children.read_text().split()) == config.sandbox.pool_size:
                    break
                await asyncio.sleep(0.05)
            return len(children.read_text().split())
        finally:
            await sandbox.close()

    return asyncio.run(count())


# --- rewards and sampling ----------------------------------------------------------------------------------


def finished(
    name: str, *, is_correct: bool = True, statuses: Sequence[ToolStatus] = (), generated: int = 100, tool: int = 0
) -> Trajectory:
    """Return a trajectory with a verdict, calls of these statuses and so many tokens."""
    trajectory = Trajectory(name, Problem(name, "", "42"), "g", 0, [], [])
    text = RIGHT if is_correct else "\\boxed{41}"
    trajectory.messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]
    trajectory.events = [ToolEvent(0, ToolCall("c", "python", "{}"), ToolResult(s, "")) for s in statuses]
    trajectory.ending = Ending.ANSWERED
    trajectory.verdict = Verdict(is_correct, VerdictStatus.OK, "")
    trajectory.ids = [5] * (generated + tool)
    trajectory.mask = [1] * generated + [0] * tool
    trajectory.turn_tokens = [generated]
    return trajectory


def reward_values(config: Config, bench: Bench) -> object:
    """Reward of a right and a wrong trajectory with three calls, one of them failed, near the length limit."""
    statuses = [ToolStatus.OK, ToolStatus.ERROR, ToolStatus.OK]
    scored = [finished(str(right), is_correct=right, statuses=statuses, generated=150, tool=20) for right in (1, 0)]
    score = make_scorer(
        config.rewards, overlong=config.grpo.overlong, max_completion_length=config.agent.max_completion_length
    )
    score(scored)
    return [(t.reward, t.reward_parts) for t in scored]


def verdict_of_an_expression(config: Config, bench: Bench) -> object:
    """Status of a comparison that a process must make."""
    slow = finished("slow")
    slow.problem = Problem("slow", "", "(x+1)^2", kind=AnswerKind.MATH)
    slow.messages[-1]["content"] = "\\boxed{x^2+2x+1}"
    make_scorer(config.rewards, overlong=config.grpo.overlong, max_completion_length=192)([slow])
    assert slow.verdict is not None
    return str(slow.verdict.status)


def scripted_stack(config: Config, bench: Bench, runner: asyncio.Runner, log: list[Any]) -> Stack:
    """A stack whose model says what its trajectory's number asks for; `log` gets each request.

    Member 0 of the first group answers right, of others wrong; member 1 calls a tool that does not exist and then
    answers wrong, member 2 is cut at the limit, all others answer wrong at once.
    """

    def speak(prompt: Sequence[int], params: SamplingParams, session: SessionKey | None) -> list[int]:
        assert session is not None
        log.append((session.trajectory_id, params.temperature, params.top_p))
        member = int(session.trajectory_id.replace("#", "-").rpartition("-")[2])
        is_first = sum(entry[0] == session.trajectory_id for entry in log) == 1
        text = RIGHT if member == 0 and session.group_id in ("step1-0", "p") else "\\boxed{1}"
        if member == 1 and is_first:
            text = '<tool_call>\n{"name": "nothing", "arguments": {}}\n</tool_call>'
        if member == 2:
            text = "and on " * 500
        return bench.tokenizer.encode(text, add_special_tokens=False)

    toolbox = build_toolbox(config.tools, bench.sandbox, config.sandbox)
    chat = ChatFormat(bench.tokenizer, tools=toolbox.schemas, call_format=config.agent.call_format)
    setting = Setting(toolbox, AgentLimits.from_config(config.agent))
    assert isinstance(config.sampler, TransformersSamplerConfig)
    return Stack(
        Policy(None, bench.tokenizer, {"path": "scripted"}),
        ScriptedSampler(speak),
        chat,
        setting,
        runner,
        config.sampler.max_batch,
        config.run.deterministic,
    )


def sampled_step(config: Config, bench: Bench) -> object:
    """Order of requests, trajectories, and groups that a step trains on."""
    log: list[Any] = []
    problems = [Problem(str(i), f"Problem {i}", "42") for i in range(8)]
    score = make_scorer(config.rewards, overlong=config.grpo.overlong, max_completion_length=192)
    with asyncio.Runner() as runner:
        stack = scripted_stack(config, bench, runner, log)
        step = sample_step(
            stack,
            ProblemStream(problems, seed=0),
            score,
            config=config.grpo,
            seed=config.run.seed,
            step=1,
            cursor=0,
        )
    return log, [t.id for t in step.trajectories], [[t.id for t in group] for group in step.groups], step.num_filtered


def guard_verdict(config: Config, bench: Bench) -> object:
    """Whether a step with 3 failures among 30 stops the run."""
    trajectories = [finished(str(i)) for i in range(30)]
    for trajectory in trajectories[:3]:
        trajectory.ending = Ending.INFRA_ERROR
    try:
        InfraGuard(config.guard).check(trajectories)
    except AgentRLError:
        return "stops"
    return "goes on"


# --- numerics ----------------------------------------------------------------------------------------------


@functools.cache
def random_model() -> Qwen3ForCausalLM:
    """Two random layers."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            initializer_range=0.2,
            tie_word_embeddings=True,
        )
        return Qwen3ForCausalLM(config).eval()


def random_groups(*, num_groups: int = 4) -> list[list[Trajectory]]:
    """Groups of three random rows whose sampler's log-probabilities lie far from the model's, on both sides."""
    rng = random.Random(1)
    groups = []
    for g in range(num_groups):
        prompt = [rng.randrange(VOCAB) for _ in range(5)]
        group = []
        for i in range(3):
            trajectory = Trajectory(f"{g}-{i}", Problem(str(g), "", ""), str(g), 0, [], [])
            length = 6 + 4 * i
            trajectory.prompt_ids, trajectory.ids = prompt, [rng.randrange(VOCAB) for _ in range(length)]
            trajectory.mask, trajectory.turn_tokens = [1] * length, [length]
            trajectory.sampler_logp = [rng.uniform(-9.0, -1.0) for _ in range(length)]
            trajectory.reward = float(i) + 0.3 * g * (i == 0)
            group.append(trajectory)
        groups.append(group)
    return groups


def trained_step(config: Config, bench: Bench, *, step: int = 2) -> object:
    """Losses, gradient norms, learning rate and forward passes of one step's updates on a random model."""
    grpo = config.grpo
    model = copy.deepcopy(random_model())
    passes: list[int] = []
    model.model.register_forward_hook(lambda *_: passes.append(1))
    groups = random_groups()
    set_advantages(groups, config=grpo)
    per_step = grpo.num_minibatches * grpo.num_epochs
    plan = StepPlan(
        loss=loss_settings(
            grpo,
            epsilon_high=epsilon_high_at(grpo, step=step, total=config.run.steps),
            longest=config.agent.max_completion_length,
        ),
        beta=grpo.beta,
        first_update=step * per_step,
        total_updates=config.run.steps * per_step,
        pad_id=0,
    )
    reference = {t.id: torch.tensor(t.sampler_logp) / 2 for group in groups for t in group} if grpo.beta else None
    result = train_on_groups(
        model,
        build_optimizer(model, config.optim),
        groups,
        plan=plan,
        config=grpo,
        optim=config.optim,
        ref_logp=reference,
    )
    return result.losses, result.grad_norms, result.learning_rate, len(passes)


def advantages(config: Config, bench: Bench) -> object:
    """Advantages of all rows."""
    groups = random_groups()
    set_advantages(groups, config=config.grpo)
    return [t.advantage for group in groups for t in group]


def betas(config: Config, bench: Bench) -> object:
    """Beta after each of 60 steps whose entropy stands at 2, falls to 1 and rises to 4."""
    controller = EntropyController(config.grpo.entropy_control, beta=config.grpo.beta)
    seen = []
    for step in range(1, 61):
        controller.observe(step, 2.0 if step <= 12 else 1.0 if step <= 30 else 4.0)
        seen.append(controller.beta)
    return seen


def rl_optimizer(config: Config, bench: Bench) -> object:
    """Weights and rates under [optim]."""
    return _optimizer_steps(config.optim)


def sft_optimizer(config: Config, bench: Bench) -> object:
    """Weights and rates under [sft.optim]."""
    return _optimizer_steps(config.sft.optim)


def _optimizer_steps(optim: OptimConfig) -> object:
    """Four updates of one matrix with known, changing gradients."""
    module = torch.nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    optimizer = build_optimizer(module, optim)
    rates = []
    for update in range(4):
        module.weight.grad = torch.tensor([[1.0, -2.0], [0.5, 3.0]]) * (1 + update * update)
        rates.append(step_optimizer(module, optimizer, optim, update=update, total=4)[1])
    return module.weight.tolist(), rates
