"""TRL's side: GRPOTrainer with the Python tool, run in an environment of its own.

Prints one JSON object: seconds and tokens of each step, peak memory of the process.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from shared import CALL_S, is_right, python
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template


class TimedTrainer(GRPOTrainer):
    """Notes how long generation with tools takes, and the tools alone."""

    generation_s: list[float] = []  # noqa: RUF012
    tool_s: list[float] = []  # noqa: RUF012

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        CALL_S.clear()
        start = time.perf_counter()
        result = super()._generate(*args, **kwargs)
        self.generation_s.append(time.perf_counter() - start)
        self.tool_s.append(sum(CALL_S))
        return result


def reward(completions: list[list[dict[str, Any]]], answer: list[str], **_: Any) -> list[float]:
    """Pay +1 for the right box in the last message, else -1."""
    texts = [str(c[-1].get("content") or "") if c else "" for c in completions]
    return [1.0 if is_right(text, gold) else -1.0 for text, gold in zip(texts, answer, strict=True)]


def main() -> None:
    """Run the steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    job = json.loads(parser.parse_args().job.read_text())
    torch.set_num_threads(job["threads"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    tokenizer.response_template = qwen3_template
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    rows = [{"prompt": [{"role": "user", "content": p["prompt"]}], "answer": p["answer"]} for p in job["problems"]]
    total = job["problems_per_step"] * job["num_generations"]
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=job["micro_batch"],
        gradient_accumulation_steps=total // job["micro_batch"],
        num_generations=job["num_generations"],
        max_completion_length=job["max_completion_length"],
        max_tool_calling_iterations=job["max_turns"] - 1,
        max_steps=job["steps"],
        learning_rate=job["learning_rate"],
        lr_scheduler_type="constant",
        beta=0.0,
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        temperature=1.0,
        mask_truncated_completions=False,
        gradient_checkpointing=job["gradient_checkpointing"],
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        shuffle_dataset=False,
        disable_tqdm=True,
        log_completions=False,
    )
    trainer = TimedTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        tools=[python],
    )
    trainer.train()
    logs = [log for log in trainer.state.log_history if "step_time" in log]
    print(
        json.dumps(
            {
                "step_s": [log["step_time"] for log in logs],
                "generation_s": trainer.generation_s,
                "tool_s": trainer.tool_s,
                "completion_tokens": [log["completions/mean_length"] for log in logs],
                "tool_calls": [log["tools/call_frequency"] for log in logs],
                "reward": [log["reward"] for log in logs],
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
