"""Every setting of agentrl, with its default, unit and meaning.

Strict and frozen: unknown keys, contradictions and values out of range are refused. Defaults live
here, in base.py and grpo.py alone; presets only override. Imports no torch. `docs/settings.md` is generated.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from agentrl_cli.config.base import (
    Fraction,
    LearningRate,
    NonNegative,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Section,
    Unsettable,
)
from agentrl_cli.config.grpo import EntropyControlConfig as EntropyControlConfig
from agentrl_cli.config.grpo import EpsilonHighSchedule as EpsilonHighSchedule
from agentrl_cli.config.grpo import FilterGroupsConfig as FilterGroupsConfig
from agentrl_cli.config.grpo import GrpoConfig as GrpoConfig
from agentrl_cli.config.grpo import OverlongConfig as OverlongConfig


class RunConfig(Section):
    """The run as a whole."""

    seed: NonNegative = 0
    """Seed that all randomness is derived from."""
    steps: Positive = 100
    """RL steps: one sampling round and the training on it each."""
    deterministic: bool = True
    """Equal seeds give equal bits on one machine, thread count and set of versions: a round of turns waits
    for its tools, and batches never depend on wall time."""
    threads: NonNegative = 0
    """CPU threads of torch; 0 leaves torch's own choice. On a machine that others use too,
    set 1: threads that wait for each other cost more than they bring."""
    save_every_steps: Positive = 10
    """A checkpoint that can be resumed is written every so many steps, and at the end."""
    keep_checkpoints: Positive = 2
    """Newest checkpoints to keep, beside the best on held-out problems (`rl`) or rows (`sft`); the others are
    deleted once a newer one is complete."""
    keep_trajectories: bool = True
    """Store every trajectory of training as JSONL under trajectories/ with a token sidecar."""


class LoraConfig(Section):
    """Low-rank adapters (peft)."""

    r: Positive = 16
    """Rank."""
    alpha: Positive = 32
    """Scale: adapters are multiplied by alpha / r."""
    dropout: Fraction = 0.0
    """Dropout on the adapter input. Must be 0 for `rl`: ratios need equal log-probabilities in each pass."""
    target_modules: str | list[str] = "all-linear"
    """Modules to adapt, as peft names them."""


class ModelConfig(Section):
    """The policy."""

    path: str = "builtin:tiny"
    """Checkpoint folder or Hugging Face id; `builtin:tiny` is the starter checkpoint of the package."""
    revision: str = ""
    """Commit or tag of a Hugging Face id; empty takes the default branch, and its commit is recorded."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and training."""
    chat_template: str = ""
    """Jinja file, or `builtin:NAME` for a template of the package; empty keeps the tokenizer's own."""
    trust_remote_code: bool = False
    """Run code that comes with the checkpoint. Recorded in config.json."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third slower."""
    lora: Annotated[LoraConfig | None, Unsettable] = None
    """Train adapters instead of all weights; unset (or "none") trains all."""


class GeneratedConfig(Section):
    """The generator of tool-use word problems that comes with agentrl (`generated:` sources)."""

    families: list[str] = []
    """Families to draw from; empty means all."""
    levels: list[Positive] = [1, 2, 3]
    """Difficulty levels to draw from."""
    num_train: Positive = 4000
    """Distinct training problems."""


class ColumnsConfig(Section):
    """Which columns hold what, for files and `hub:` sets of a layout that is not known."""

    problem: str = ""
    """Column with the text of the problem; empty takes `problem`, `question` or `prompt`."""
    answer: str = ""
    """Column with the gold answer; empty takes `answer`, `ground_truth`, `gold` or `reward_model.ground_truth`."""
    id: str = ""
    """Column with an id that no other problem has; empty takes `id` and the like, else a digest of the problem."""
    level: str = ""
    """Column with the difficulty, a whole number; empty takes `level`."""
    family: str = ""
    """Column with the kind of problem, for scores by family; empty takes `family`, `subject`, `domain` or `ability`."""


class DataConfig(Section):
    """Problems (rl, collect, eval during training) and rows (sft)."""

    train: str = "generated:train"
    """Problems for `rl`: a file (JSONL, JSON, parquet, CSV), a data set by name, `hub:ORG/NAME`, or
    `generated:train` (see docs/data.md). For `sft`: a JSONL file of trajectory rows."""
    eval: str = "generated:test"
    """Held-out problems for evaluation during `rl`, given like `train`."""
    columns: ColumnsConfig = ColumnsConfig()
    """Column map of problem files whose layout is not known."""
    strict: bool = False
    """Stop at a row that can't be used; otherwise such rows are left out, with a warning that counts them."""
    generated: GeneratedConfig = GeneratedConfig()
    """Settings of `generated:` sources."""
    max_prompt_length: Positive = 2560
    """Problems whose prompt has more tokens are left out and counted."""


class TransformersSamplerConfig(Section):
    """Continuous batching inside the trainer's process, on the trainer's own module: no copy of the weights."""

    type: Literal["transformers"] = "transformers"
    max_batch: Positive = 128
    """Sequences that generate at the same time; the KV cache is preallocated for them."""


class OpenAISamplerConfig(Section):
    """Any OpenAI-compatible chat endpoint; good for collect and eval, refused for rl (it has no token ids)."""

    type: Literal["openai"] = "openai"
    base_url: str
    """Address up to and including /v1."""
    model: str
    """Model name that the endpoint knows."""
    api_key_env: str = ""
    """Environment variable that holds the key; empty sends none."""
    timeout_s: PositiveFloat = 300.0
    """Limit of one request."""
    max_retries: NonNegative = 5
    """Further tries after a rate limit, a server error or a lost connection, with growing waits."""


SamplerConfig = Annotated[TransformersSamplerConfig | OpenAISamplerConfig, Field(discriminator="type")]


class SandboxConfig(Section):
    """Where model-written Python runs."""

    pool_size: Positive = 4
    """Interpreters kept forked ahead of need."""
    max_sessions: Positive = 256
    """Sessions open at the same time; further trajectories wait."""
    timeout_s: PositiveFloat = 5.0
    """Wall-clock limit of one cell, from its start."""
    memory_mib: Positive = 512
    """Memory that a cell may take on top of the loaded interpreter."""
    max_output_chars: Positive = 4000
    """Limit of each output stream; the middle is cut out with a marker."""


class SearchConfig(Section):
    """The tool `search`."""

    corpus: str = ""
    """Folder of .txt, .md and .jsonl files (rows with `text`, perhaps `title` and `id`) that the model may search."""
    top_k: Positive = 3
    """Passages that a search returns."""
    max_chars: Annotated[int, Field(ge=100)] = 1000
    """Characters of a passage; longer texts are divided into several, at the end of a paragraph where one is near."""


class ToolsConfig(Section):
    """Tools that the model may call."""

    names: list[Literal["python", "calculator", "symbolic", "search"]] = ["python"]
    """Tools of the package that are offered to the model (`agentrl tools list`); none with an empty list."""
    module: str = ""
    """Python file with tools of your own: functions with type hints and a docstring, listed as `TOOLS`."""
    timeout_s: PositiveFloat = 30.0
    """Wall-clock limit of one call of a tool from `module`; `python` and `symbolic` have sandbox.timeout_s."""
    search: SearchConfig = SearchConfig()

    @model_validator(mode="after")
    def _search_has_a_corpus(self) -> ToolsConfig:
        if "search" in self.names and not self.search.corpus:
            raise ValueError("names lists 'search' but tools.search.corpus names no folder: set it, or drop the tool")
        if self.search.corpus and "search" not in self.names:
            raise ValueError("tools.search.corpus is set but names has no 'search': add it, or unset the corpus")
        return self

    @field_validator("names")
    @classmethod
    def _names_are_unique(cls, value: list[str]) -> list[str]:
        if len(set(value)) != len(value):
            raise ValueError(f"a tool is named twice: {value}")
        return value


class AgentConfig(Section):
    """The multi-turn loop."""

    system_prompt: str = ""
    """System message before the problem; empty sends none of ours."""
    max_turns: Positive = 16
    """Turns of the model; at the limit it is told so and gets one last turn."""
    max_tool_calls: Positive = 32
    """Executed tool calls of a trajectory; at the limit the model is told so and gets one last turn."""
    max_completion_length: Positive = 20480
    """Tokens after the prompt, tool output included."""
    max_tokens_without_call: NonNegative = 0
    """Close a turn after so many generated tokens without a call and add a reminder (masked); 0 switches it off."""
    call_format: Literal["hermes", "python_block"] = "hermes"
    """How calls are written: `<tool_call>` JSON, or fenced ```python blocks."""


class RewardComponent(Section):
    """One named part of the reward."""

    name: Literal["outcome", "tool", "length", "module"]
    """outcome: +1 / -1. tool: the tool term of `tool_reward`. length: overlong shaping. module: your own."""
    weight: float = 1.0
    """Factor of the part in the sum."""


class RewardsConfig(Section):
    """How a trajectory is paid."""

    tool_reward: Literal["release", "call_bonus", "paper", "none"] = "release"
    """Form of the tool term; `call_bonus` can be farmed (see docs/method.md)."""
    tool_count: Literal["executed", "successful"] = "executed"
    """Which calls the tool term counts."""
    components: list[RewardComponent] = [
        RewardComponent(name="outcome"),
        RewardComponent(name="tool"),
        RewardComponent(name="length"),
    ]
    """Parts of the reward and their weights."""
    module: str = ""
    """Python file with `def reward(trajectory) -> float`: the part `module`, added with weight 1 unless listed."""
    verify_timeout_s: PositiveFloat = 5.0
    """Wall-clock limit for verifying one answer; the worker is killed at the limit."""

    @model_validator(mode="after")
    def _module_is_a_part(self) -> RewardsConfig:
        is_listed = any(component.name == "module" for component in self.components)
        if is_listed and not self.module:
            raise ValueError("components lists 'module' but rewards.module names no file: set it, or drop the part")
        if self.module and not is_listed:
            parts = [*self.components, RewardComponent(name="module")]
            return self.model_copy(update={"components": parts})
        return self

    @field_validator("components")
    @classmethod
    def _names_are_unique(cls, value: list[RewardComponent]) -> list[RewardComponent]:
        names = [component.name for component in value]
        if len(set(names)) != len(names):
            raise ValueError(f"each component may stand once, got {names}")
        return value


class OptimConfig(Section):
    """AdamW and its schedule."""

    learning_rate: LearningRate = 1e-6
    """Peak learning rate. Full weights of billions of parameters take about 1e-6, adapters ten times as much, a model
    of a million parameters more; too high destroys a model within a few updates."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate moves after warm-up: constant, or falling so that it would reach 0 right after the last update."""
    warmup_frac: Fraction = 0.0
    """Share of the updates on which the rate rises linearly from 0."""
    beta1: Fraction = 0.9
    """Decay of the first moment."""
    beta2: Fraction = 0.95
    """Decay of the second moment."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled weight decay, on matrices only."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradients with a larger norm are scaled down to it."""


class SftOptimConfig(OptimConfig):
    """Optimizer of sft."""

    learning_rate: LearningRate = 1e-5
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """How the rate moves after warm-up: constant, or falling so that it would reach 0 right after the last update."""
    warmup_frac: Fraction = 0.1
    """Share of the updates on which the rate rises linearly from 0."""


class SftConfig(Section):
    """Supervised fine-tuning on trajectories; loss on assistant tokens only."""

    epochs: Positive = 5
    """Passes over the rows."""
    batch_size: Positive = 32
    """Rows of one optimizer update."""
    micro_batch_tokens: Positive = 16384
    """Most tokens (padding included) in one forward and backward pass; changes memory and speed, not the result."""
    max_length: Positive = 32768
    """Rows with more tokens are left out and counted."""
    eval_frac: Fraction = 0.02
    """Share of the rows held out for eval loss."""
    optim: SftOptimConfig = SftOptimConfig()
    """Optimizer of sft; `rl` has its own under [optim]."""


class EvalConfig(Section):
    """Evaluation: before, during and after rl, and `agentrl eval`."""

    num_samples: Positive = 4
    """k: trajectories of one problem."""
    num_problems: Positive = 200
    """Held-out problems evaluated before and after `rl`; all if the source has fewer."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus sampling."""
    every_steps: NonNegative = 0
    """Evaluate during rl every so many steps too; 0 only before and after."""


class GuardConfig(Section):
    """When a run stops by itself."""

    max_infra_frac: Fraction = 0.05
    """Stop when more than this share of a step's trajectories (and `min_infra_count`) failed by infrastructure."""
    min_infra_count: Positive = 20
    """See `max_infra_frac`; more than half of the trajectories in two steps running stop the run as well."""


class CollectConfig(Section):
    """Recording trajectories of a teacher."""

    problems: str = ""
    """Problems to solve, given like `data.train`; empty takes those of `data.train`."""
    num_problems: NonNegative = 0
    """Problems to take from the source; 0 takes all."""
    trajectories_per_problem: Positive = 1
    """Trajectories recorded of each problem."""
    concurrency: Positive = 16
    """Trajectories in flight."""
    temperature: NonNegativeFloat = 0.7
    """Sampling temperature of the teacher."""


class FilterConfig(Section):
    """Which collected trajectories are kept."""

    require_correct: bool = True
    """Keep right answers only."""
    min_calls: NonNegative = 1
    """Fewest executed tool calls."""
    max_failed_calls: NonNegative = 2
    """Most failed tool calls."""
    require_recovery: bool = True
    """Drop trajectories whose last tool call failed: they answer on nothing."""
    near_duplicate_threshold: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9
    """Estimated Jaccard similarity of word 5-grams (problem and calls) that makes a row a duplicate; 1 only exact."""
    max_per_problem: NonNegative = 0
    """Most rows of one problem; 0 is no limit."""


class Config(Section):
    """All settings of one run."""

    run: RunConfig = RunConfig()
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    sampler: SamplerConfig = TransformersSamplerConfig()
    sandbox: SandboxConfig = SandboxConfig()
    tools: ToolsConfig = ToolsConfig()
    agent: AgentConfig = AgentConfig()
    rewards: RewardsConfig = RewardsConfig()
    grpo: GrpoConfig = GrpoConfig()
    optim: OptimConfig = OptimConfig()
    sft: SftConfig = SftConfig()
    eval: EvalConfig = EvalConfig()
    guard: GuardConfig = GuardConfig()
    collect: CollectConfig = CollectConfig()
    filter: FilterConfig = FilterConfig()

    @model_validator(mode="after")
    def _sections_agree(self) -> Config:
        overlong = self.grpo.overlong
        limit = self.agent.max_completion_length
        longest = overlong.max_tokens or limit
        if overlong.enabled and not overlong.cache_tokens <= longest <= limit:
            raise ValueError(
                f"grpo.overlong needs cache_tokens <= max_tokens <= agent.max_completion_length, got "
                f"{overlong.cache_tokens} <= {longest} <= {limit}: set grpo.overlong.cache_tokens below {longest}"
            )
        has_length = any(component.name == "length" for component in self.rewards.components)
        if overlong.enabled and not has_length:
            raise ValueError(
                "grpo.overlong is enabled but rewards.components has no 'length': add it or set "
                "grpo.overlong.enabled=false"
            )
        return self
