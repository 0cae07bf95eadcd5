"""Supervised fine-tuning on trajectories: plain next-token loss on assistant tokens, nothing else.

One loop of named phases: rows -> batches -> forward, backward -> update -> log -> save. The loss of an
update is the mean over all assistant tokens of its batch, however it is cut into micro-batches.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agentrl_cli.config.schema import Config, SftConfig
from agentrl_cli.data.bad_rows import BadRows
from agentrl_cli.errors import DataError, explain_out_of_memory
from agentrl_cli.files import RowReader
from agentrl_cli.reporting import Reporter
from agentrl_cli.runs import RunFolder
from agentrl_cli.sampler.loading import Policy, load_policy
from agentrl_cli.seeding import derive_seed
from agentrl_cli.training.checkpoint import TrainerState, load_trainer_state, save_checkpoint
from agentrl_cli.training.forward import build_row_batch, score_tokens
from agentrl_cli.training.interrupts import graceful_stop
from agentrl_cli.training.optimizer import build_optimizer, step_optimizer
from agentrl_cli.training.setup import LESS_MEMORY, check_trainable, open_run, say_resumed, set_threads
from agentrl_cli.training.sft_data import RowBuilder, TokenRow

_ROWS_HINT = "each row needs `messages`, with a prompt before an assistant turn; agentrl collect writes such rows"


@dataclass(frozen=True, slots=True)
class SftData:
    """Token rows to train on and held-out ones."""

    train: list[TokenRow]
    held_out: list[TokenRow]
    num_too_long: int


def run_sft(config: Config, *, data: Path, out: Path | None, resume: Path | None, reporter: Reporter) -> dict[str, Any]:
    """Fine-tune the policy on a file of trajectories.

    Returns:
        `{run, steps, rows, loss, eval_loss, checkpoint, wall_s}`.

    Raises:
        DataError: no usable row; RunError: the run can't be created or resumed.
    """
    start = time.monotonic()
    check_trainable(config.model)
    set_threads(config.run.threads)
    run, checkpoint = open_run(config, kind="sft", out=out, resume=resume, inputs=[data])
    with run:
        policy = load_policy(config.model, path=str(checkpoint) if checkpoint else None, trainable=True)
        if not checkpoint:
            run.record_identity(policy.identity)
        rows = load_rows(data, policy, config, reporter=reporter)
        reporter.info(
            f"{len(rows.train)} rows to train on, {len(rows.held_out)} held out, {rows.num_too_long} too long"
        )
        result = _train(config, policy, rows, data=data, run=run, checkpoint=checkpoint, reporter=reporter)
    return {"run": str(run.path), **result, "wall_s": round(time.monotonic() - start, 2)}


def load_rows(data: Path, policy: Policy, config: Config, *, reporter: Reporter) -> SftData:
    """Read and tokenise the rows, hold some out, leave out those that are too long or can't be used.

    Raises:
        DataError: no row can be used, or one can't under `data.strict`.
    """
    bad = BadRows(str(data), strict=config.data.strict)
    builder = RowBuilder(policy.tokenizer, call_format=config.agent.call_format)
    rows = []
    for line in RowReader(data, on_bad=bad.add):
        try:
            rows.append(builder.build(line.row, number=line.number))
        except DataError as error:
            bad.add(error)
    if bad.num and not rows:
        raise DataError(f"none of the {bad.num} rows of {str(data)!r} can be used: {bad.first}", hint=_ROWS_HINT)
    if bad.num:
        reporter.warn(bad.warning(len(rows) + bad.num))
    fitting = [row for row in rows if row.num_tokens <= config.sft.max_length]
    random.Random(derive_seed(config.run.seed, "sft-split")).shuffle(fitting)
    num_held_out = round(len(fitting) * config.sft.eval_frac)
    if len(fitting) - num_held_out < 1:
        raise DataError(
            f"{str(data)!r} has no row to train on: {len(rows)} read, {len(rows) - len(fitting)} longer than "
            f"sft.max_length={config.sft.max_length}"
        )
    return SftData(fitting[num_held_out:], fitting[:num_held_out], len(rows) - len(fitting))


def _train(
    config: Config,
    policy: Policy,
    rows: SftData,
    *,
    data: Path,
    run: RunFolder,
    checkpoint: Path | None,
    reporter: Reporter,
) -> dict[str, Any]:
    sft = config.sft
    optimizer = build_optimizer(policy.model, sft.optim)
    state = TrainerState(step=0, update=0, cursor=0, extra={})
    if checkpoint:
        state = load_trainer_state(checkpoint, optimizer)
    per_epoch = -(-len(rows.train) // sft.batch_size)
    total = per_epoch * sft.epochs
    if checkpoint:
        reporter.info(say_resumed(run, checkpoint, total=total))
    loss = next((row["loss"] for row in reversed(run.metric_rows()) if "loss" in row), float("nan"))
    with graceful_stop(reporter) as stop:
        for step in range(state.step, total):
            began = time.monotonic()
            batch = batch_of(rows.train, step, per_epoch=per_epoch, config=sft, seed=config.run.seed)
            with explain_out_of_memory("fine-tuning", lower=f"sft.micro_batch_tokens, then {LESS_MEMORY}"):
                loss = _accumulate(policy, batch, config=sft)
                norm, rate = step_optimizer(policy.model, optimizer, sft.optim, update=step, total=total)
            done = step + 1
            metrics = {"loss": loss, "grad_norm": norm, "learning_rate": rate}
            if done % per_epoch == 0 and rows.held_out:
                metrics["eval_loss"] = _eval_loss(policy, rows.held_out, config=sft)
            metrics["time/step_s"] = time.monotonic() - began
            run.log_metrics(done, metrics)
            reporter.step(done, total, metrics)
            if done % config.run.save_every_steps == 0 or done == total or stop:
                state = TrainerState(step=done, update=done, cursor=done, extra={})
                run.sync()
                save_checkpoint(run.checkpoint_path(done), policy, optimizer, state)
                run.prune_checkpoints(config.run.keep_checkpoints)
            if stop:
                reporter.info(f"stopped after step {done}; go on with: agentrl sft --data {data} --resume {run.path}")
                stop.exit()
    eval_loss = _eval_loss(policy, rows.held_out, config=sft) if rows.held_out else None
    return {
        "steps": total,
        "rows": len(rows.train),
        "loss": loss,
        "eval_loss": eval_loss,
        "checkpoint": str(run.checkpoint_path(total)),
    }


def batch_of(rows: Sequence[TokenRow], step: int, *, per_epoch: int, config: SftConfig, seed: int) -> list[TokenRow]:
    """Return the rows of one update; the order of each epoch is derived from the seed."""
    epoch, offset = divmod(step, per_epoch)
    order = list(range(len(rows)))
    random.Random(derive_seed(seed, "sft-order", epoch)).shuffle(order)
    return [rows[i] for i in order[offset * config.batch_size : (offset + 1) * config.batch_size]]


def _accumulate(policy: Policy, rows: Sequence[TokenRow], *, config: SftConfig) -> float:
    """Forward and backward over one batch; returns its loss in nats per assistant token."""
    num_tokens = sum(sum(row.mask) for row in rows)
    policy.model.train()
    loss_sum = 0.0
    for micro_batch in _cut(rows, config.micro_batch_tokens):
        loss = -_sum_logp(policy, micro_batch) / num_tokens
        loss.backward()  # type: ignore[no-untyped-call]
        loss_sum += float(loss.detach())
    policy.model.eval()
    return loss_sum


@torch.no_grad()
def _eval_loss(policy: Policy, rows: Sequence[TokenRow], *, config: SftConfig) -> float:
    num_tokens = sum(sum(row.mask) for row in rows)
    total = sum(float(_sum_logp(policy, micro_batch)) for micro_batch in _cut(rows, config.micro_batch_tokens))
    return -total / num_tokens


def _sum_logp(policy: Policy, rows: Sequence[TokenRow]) -> torch.Tensor:
    pad = policy.tokenizer.pad_token_id
    batch = build_row_batch(
        [(row.prompt_ids, row.ids, row.mask) for row in rows],
        pad_id=policy.tokenizer.eos_token_id if pad is None else pad,
        device=policy.device,
    )
    return score_tokens(policy.model, batch, temperature=1.0, with_entropy=False).logp.sum()


def _cut(rows: Sequence[TokenRow], max_tokens: int) -> list[list[TokenRow]]:
    """Cut rows, sorted by length, into micro-batches of at most `max_tokens` padded tokens."""
    batches: list[list[TokenRow]] = []
    for row in sorted(rows, key=lambda r: (r.num_tokens, r.id)):
        if batches and row.num_tokens * (len(batches[-1]) + 1) <= max_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches
