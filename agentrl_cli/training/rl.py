"""The RL run: sample -> score -> advantage -> update -> log -> save, step by step.

GRPO-TCR (arXiv 2510.11701): token-level loss, clip-higher, overlong reward shaping, no KL by default.
Everything random is derived from the run's seed and the position in the data, so a run that was killed
goes on from its last checkpoint to the same bits (`run.deterministic`, one machine and thread count).
"""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl_cli.agent.behaviour import BehaviourBaseline
from agentrl_cli.agent.stack import Stack, open_stack, pad_id
from agentrl_cli.config.schema import Config
from agentrl_cli.data.sources import Reading, load_problems
from agentrl_cli.errors import DataError, OutOfMemoryError, TrainingError, explain_out_of_memory
from agentrl_cli.evaluation.runner import eval_metrics, evaluate_held_out
from agentrl_cli.grpo.entropy import EntropyController
from agentrl_cli.grpo.schedules import epsilon_high_at
from agentrl_cli.records import write_step_records
from agentrl_cli.reporting import Reporter
from agentrl_cli.rewards.compose import make_scorer
from agentrl_cli.rewards.verify import check_gold
from agentrl_cli.runs import RunFolder
from agentrl_cli.training.advantages import set_advantages
from agentrl_cli.training.checkpoint import TrainerState, load_trainer_state, save_checkpoint
from agentrl_cli.training.interrupts import graceful_stop
from agentrl_cli.training.metrics import rl_metrics, step_metrics
from agentrl_cli.training.optimizer import build_optimizer
from agentrl_cli.training.reference import Reference
from agentrl_cli.training.sampling import InfraGuard, ProblemStream, SampledStep, sample_step
from agentrl_cli.training.setup import (
    LESS_MEMORY,
    check_trainable,
    open_run,
    require_no_dropout,
    say_resumed,
    set_threads,
)
from agentrl_cli.training.update import StepPlan, UpdateResult, loss_settings, train_on_groups
from agentrl_cli.types import Problem


def run_rl(config: Config, *, out: Path | None, resume: Path | None, reporter: Reporter) -> dict[str, Any]:
    """Train the policy with GRPO-TCR and measure it on held-out problems before and after.

    Returns:
        `{run, steps, before: {accuracy, accuracy_greedy, tool_calls, n}, after: {…}, wall_s, peak_mib}`;
        the peak is that of this process.

    Raises:
        ConfigError, DataError, ModelError, RunError: it can't begin.
        TrainingError: it went wrong; the last checkpoint stands.
    """
    start = time.monotonic()
    check_trainable(config.model)
    require_no_dropout(config.model)
    set_threads(config.run.threads)
    run, checkpoint = open_run(config, kind="rl", out=out, resume=resume)
    with run, open_stack(config, model_path=str(checkpoint) if checkpoint else None, trainable=True) as stack:
        if not checkpoint:
            run.record_identity(stack.policy.identity)
        else:
            reporter.info(say_resumed(run, checkpoint, total=config.run.steps))
        trainer = RlTrainer(config, stack, run=run, checkpoint=checkpoint, reporter=reporter)
        before = trainer.measure(0)
        if not run.has_step(0):
            run.log_metrics(0, eval_metrics(before))
        trainer.train(behaviour_baseline=before.pop("behaviour_baseline"))
        after = trainer.measure(config.run.steps)
        after.pop("behaviour_baseline")
    return {
        "run": str(run.path),
        "steps": config.run.steps,
        "before": before,
        "after": after,
        "wall_s": round(time.monotonic() - start, 2),
        "peak_mib": round(peak_mib(), 1),
    }


def peak_mib() -> float:
    """Return the peak resident memory of this process in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


@dataclass(frozen=True, slots=True)
class _Updated:
    """One step's updates with the settings they were made under."""

    result: UpdateResult
    beta: float
    epsilon_high: float


class RlTrainer:
    """The loop over steps, and the state that it carries from one to the next."""

    def __init__(
        self, config: Config, stack: Stack, *, run: RunFolder, checkpoint: Path | None, reporter: Reporter
    ) -> None:
        self._config = config
        self._stack = stack
        self._run = run
        self._reporter = reporter
        self._model = stack.policy.model
        self._stream = ProblemStream(self._load_problems(config.data.train), seed=config.run.seed)
        self._held_out = self._load_problems(config.data.eval)[: config.eval.num_problems]
        self._score = make_scorer(
            config.rewards, overlong=config.grpo.overlong, max_completion_length=config.agent.max_completion_length
        )
        self._optimizer = build_optimizer(self._model, config.optim)
        self._controller = EntropyController(config.grpo.entropy_control, beta=config.grpo.beta)
        self._state = TrainerState(step=0, update=0, cursor=0, extra={})
        if checkpoint:
            self._state = load_trainer_state(checkpoint, self._optimizer)
            self._controller.load_state(self._state.extra["entropy"])
        self._reference = Reference.if_needed(config, stack.policy, is_resumed=checkpoint is not None)
        self._guard = InfraGuard(config.guard)
        self._behaviour: BehaviourBaseline | None = None

    def train(self, *, behaviour_baseline: dict[str, float] | None) -> None:
        """Run the remaining steps; behaviour classes are relative to the first evaluation's."""
        if behaviour_baseline is not None:
            self._behaviour = BehaviourBaseline.from_json(behaviour_baseline)
        self._reporter.begin_rl(self._run.metric_rows(), self._run.settings)
        with graceful_stop(self._reporter) as stop:
            while self._state.step < self._config.run.steps:
                self._one_step()
                step = self._state.step
                if step % self._config.run.save_every_steps == 0 or step == self._config.run.steps or stop:
                    self._save()
                if stop:
                    resume = f"agentrl rl --resume {self._run.path}"
                    self._reporter.info(f"stopped after step {self._state.step}; go on with: {resume}")
                    stop.exit()

    def measure(self, step: int) -> dict[str, Any]:
        """Evaluate on held-out problems, or read back what was measured before an interruption."""
        return evaluate_held_out(
            self._stack,
            self._held_out,
            config=self._config.eval,
            seed=self._config.run.seed,
            score=self._score,
            run=self._run,
            step=step,
            reporter=self._reporter,
        )

    def _one_step(self) -> None:
        config, start = self._config, time.monotonic()
        step = self._state.step + 1
        sampled = sample_step(
            self._stack,
            self._stream,
            self._score,
            config=config.grpo,
            seed=config.run.seed,
            step=step,
            cursor=self._state.cursor,
        )
        self._guard.check(sampled.trajectories)
        set_advantages(sampled.groups, config=config.grpo)
        sampled_at = time.monotonic()
        updated = self._update_or_log(sampled, step)
        trained_at = time.monotonic()
        if config.run.keep_trajectories:
            write_step_records(self._run.trajectories, step, sampled.trajectories)
        metrics = rl_metrics(
            sampled,
            updated.result,
            beta=updated.beta,
            epsilon_high=updated.epsilon_high,
            sample_s=sampled_at - start,
            train_s=trained_at - sampled_at,
            baseline=self._behaviour,
        )
        if "entropy" in metrics:
            self._controller.observe(step, metrics["entropy"])
        self._reporter.step(step, config.run.steps, metrics)
        every = config.eval.every_steps
        if step == config.run.steps or (every and step % every == 0):
            metrics |= eval_metrics(self.measure(step))
        self._run.log_metrics(step, metrics)
        self._state = TrainerState(
            step=step,
            update=self._state.update + updated.result.num_updates,
            cursor=sampled.cursor,
            extra={"entropy": self._controller.state()},
        )

    def _update_or_log(self, sampled: SampledStep, step: int) -> _Updated:
        """Run the updates; if they fail, what was sampled and that they failed is still logged."""
        try:
            with explain_out_of_memory("updating the policy", lower=f"grpo.micro_batch_tokens, then {LESS_MEMORY}"):
                return self._update(sampled, step)
        except (TrainingError, OutOfMemoryError):
            self._run.log_metrics(step, {**step_metrics(sampled.trajectories), "loss": float("nan")})
            raise

    def _update(self, sampled: SampledStep, step: int) -> _Updated:
        config, grpo = self._config, self._config.grpo
        epsilon_high = epsilon_high_at(grpo, step=step - 1, total=config.run.steps)
        beta = self._controller.beta
        per_step = grpo.num_minibatches * grpo.num_epochs
        padding = pad_id(self._stack.policy)
        is_monitored = grpo.kl_monitor_every and step % grpo.kl_monitor_every == 0
        ref_logp = None
        if self._reference is not None and (beta > 0 or is_monitored):
            ref_logp = self._reference.logps(sampled.groups, pad_id=padding)
        plan = StepPlan(
            loss=loss_settings(grpo, epsilon_high=epsilon_high, longest=config.agent.max_completion_length),
            beta=beta,
            first_update=(step - 1) * per_step,
            total_updates=config.run.steps * per_step,
            pad_id=padding,
        )
        result = train_on_groups(
            self._model,
            self._optimizer,
            sampled.groups,
            plan=plan,
            config=grpo,
            optim=config.optim,
            ref_logp=ref_logp,
        )
        self._stack.runner.run(self._stack.sampler.update_weights(step))
        return _Updated(result, beta, epsilon_high)

    def _save(self) -> None:
        self._run.sync()
        save_checkpoint(self._run.checkpoint_path(self._state.step), self._stack.policy, self._optimizer, self._state)
        self._run.prune_checkpoints(self._config.run.keep_checkpoints)

    def _load_problems(self, source: str) -> list[Problem]:
        data = self._config.data
        problems = load_problems(
            source,
            generated=data.generated,
            seed=self._config.run.seed,
            reading=Reading(columns=data.columns, strict=data.strict, check=check_gold),
            warn=self._reporter.warn,
        )
        limit = data.max_prompt_length
        fitting, num_too_long = self._stack.fit_prompts(problems, max_prompt_length=limit)
        if num_too_long:
            self._reporter.warn(f"{num_too_long} problems of {source} are longer than {limit} tokens: left out")
        if not fitting:
            raise DataError(f"{source} has no problem whose prompt fits data.max_prompt_length={limit}")
        return fitting
