"""Memory of training on one device, worked out from sizes: an upper bound with every row at its limit.

Symbols: P parameters, T trained ones, v bytes of a value (2 or 4), L layers, h hidden size, q and k widths of
all query and key heads, I inner size of the MLP, V vocabulary, n tokens of a micro-batch.

- weights: P v, plus T 4 for adapters, which peft keeps in float32; the same again for a reference model.
- gradients: one value a trained parameter. Adam: two (arXiv 1412.6980, the moments m and v).
- KV cache: 2 L k v a token (keys and values). The engine stores the prompt of a group once, so that
  `max_batch` rows hold their completions and ceil(max_batch / group) prompts. It is given back when the
  weights change, so the updates of a step run beside it.
- activations: L n (6h + 5q + 6k + 4I) v, counted over what a layer keeps for its backward pass: of both norms
  the input, the normalised input and the output; of the attention the queries and keys before, in and after
  their norm, values, the output twice and the keys behind a shared prompt; of the MLP gate, its activation, up
  and their product. It is the count of arXiv 2205.05198, section 4.1, for a gated MLP, with grouped heads and
  without stored scores. With gradient checkpointing: L n h v, and one layer in full.
- head: a chunk of at most 4096 tokens has logits, log-probabilities and a gradient in float32, 12 V bytes a
  token; chunks that are small enough keep their log-probabilities for the backward pass.
- process: Python with torch and transformers loaded, or a CUDA context: about 0.4 GiB, measured.

Left out: attention scores while decoding, copies while a cache grows, fragmentation. Allow a fifth.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from agentrl_cli.config.plan_models import ModelFacts
from agentrl_cli.config.schema import Config, TransformersSamplerConfig

GIB = 2**30
PROCESS_BYTES = int(0.4 * GIB)
HEAD_CHUNK_TOKENS = 4096
"""As `agentrl_cli.training.forward.score_tokens`."""
MAX_KEPT_LOGITS = 2**22
"""As `agentrl_cli.training.forward`."""
_FLOAT32 = 4
_VALUE_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes on one device."""

    process: int
    weights: int
    reference: int
    gradients: int
    adam: int
    kv_cache: int
    activations: int
    head: int

    @property
    def peak(self) -> int:
        """All parts at once."""
        return sum(asdict(self).values())


def num_trained(config: Config, facts: ModelFacts) -> int:
    """Return the parameters that the optimizer moves."""
    lora = config.model.lora
    return facts.num_parameters if lora is None else facts.num_adapter_parameters(lora)


def weight_bytes(config: Config, facts: ModelFacts) -> int:
    """Return the bytes of the policy's weights, adapters included."""
    adapters = num_trained(config, facts) * _FLOAT32 if config.model.lora is not None else 0
    return facts.num_parameters * _VALUE_BYTES[config.model.dtype] + adapters


def adam_bytes(config: Config, facts: ModelFacts) -> int:
    """Return the bytes of the optimizer's states."""
    return 2 * _trained_bytes(config, facts)


def rl_memory(config: Config, facts: ModelFacts) -> MemoryEstimate:
    """Return what `rl` needs at most; see the module's text."""
    has_copy = config.model.lora is None and needs_reference(config)
    trainable = rl_micro_batch_tokens(config, prompts=False)
    return MemoryEstimate(
        process=PROCESS_BYTES,
        weights=weight_bytes(config, facts),
        reference=weight_bytes(config, facts) if has_copy else 0,
        gradients=_trained_bytes(config, facts),
        adam=adam_bytes(config, facts),
        kv_cache=kv_cache_bytes(config, facts),
        activations=_activation_bytes(config, facts, num_tokens=rl_micro_batch_tokens(config)),
        head=_head_bytes(facts, num_tokens=trainable),
    )


def sft_memory(config: Config, facts: ModelFacts) -> MemoryEstimate:
    """Return what `sft` needs at most; no cache, no reference."""
    num_tokens = min(
        max(config.sft.micro_batch_tokens, config.sft.max_length), config.sft.batch_size * config.sft.max_length
    )
    return MemoryEstimate(
        process=PROCESS_BYTES,
        weights=weight_bytes(config, facts),
        reference=0,
        gradients=_trained_bytes(config, facts),
        adam=adam_bytes(config, facts),
        kv_cache=0,
        activations=_activation_bytes(config, facts, num_tokens=num_tokens),
        head=_head_bytes(facts, num_tokens=num_tokens),
    )


def needs_reference(config: Config) -> bool:
    """Whether some setting reads the log-probabilities of a reference."""
    grpo = config.grpo
    return grpo.beta > 0 or grpo.kl_monitor_every > 0 or grpo.entropy_control.enabled


def rl_micro_batch_tokens(config: Config, *, prompts: bool = True) -> int:
    """Return the most tokens of one forward pass of `rl`: a group is never cut, a mini-batch never exceeded.

    Args:
        prompts: Count the prompt of each group as well.
    """
    grpo = config.grpo
    completions = grpo.num_generations * config.agent.max_completion_length
    group = completions + config.data.max_prompt_length
    groups = min(max(1, grpo.micro_batch_tokens // group), grpo.problems_per_step // grpo.num_minibatches)
    return groups * (group if prompts else completions)


def kv_cache_bytes(config: Config, facts: ModelFacts) -> int:
    """Return the cache of `max_batch` trajectories of full length; chat endpoints keep their own."""
    if not isinstance(config.sampler, TransformersSamplerConfig):
        return 0
    rows = config.sampler.max_batch
    prompts = -(-rows // config.grpo.num_generations)
    tokens = rows * config.agent.max_completion_length + prompts * config.data.max_prompt_length
    return 2 * facts.num_layers * facts.kv_size * _VALUE_BYTES[config.model.dtype] * tokens


def _trained_bytes(config: Config, facts: ModelFacts) -> int:
    """Return the bytes of one value for each trained parameter."""
    value = _FLOAT32 if config.model.lora is not None else _VALUE_BYTES[config.model.dtype]
    return num_trained(config, facts) * value


def _activation_bytes(config: Config, facts: ModelFacts, *, num_tokens: int) -> int:
    layer = 6 * facts.hidden_size + 5 * facts.query_size + 6 * facts.kv_size + 4 * facts.intermediate_size
    values = facts.num_layers * layer
    if config.model.gradient_checkpointing:
        values = facts.num_layers * facts.hidden_size + layer
    return num_tokens * values * _VALUE_BYTES[config.model.dtype]


def _head_bytes(facts: ModelFacts, *, num_tokens: int) -> int:
    chunk = min(num_tokens, HEAD_CHUNK_TOKENS)
    kept = num_tokens if chunk * facts.vocab_size <= MAX_KEPT_LOGITS else 0
    return (3 * chunk + kept) * facts.vocab_size * _FLOAT32
