"""No dead settings: with each key of the schema, something that a run does changes.

The table names, for every key, two settings and a probe: the code that a run uses, from settings to something
visible. A new key without an entry is refused.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from agentrl_cli.config.catalog import catalog
from agentrl_cli.config.load import load_config
from agentrl_cli.config.schema import SandboxConfig
from agentrl_cli.data.tiny_model import build_model
from agentrl_cli.errors import AgentRLError
from agentrl_cli.files import read_rows
from agentrl_cli.reporting import NullReporter
from agentrl_cli.sampler.loading import load_policy
from agentrl_cli.sandbox.local import LocalSandbox
from agentrl_cli.training.rl import run_rl
from tests.unit import settings_data_probes as data
from tests.unit import settings_probes as probes
from tests.unit.settings_probes import Bench, Probe, call, talk

MODULE_TOOL = '''
import asyncio

async def wait(seconds: float) -> str:
    """
    Wait.

    Args:
        seconds: how long
    """
    await asyncio.sleep(seconds)
    return "done"

TOOLS = [wait]
'''
WAIT = '<tool_call>\n{"name": "wait", "arguments": {"seconds": 0.5}}\n</tool_call>'
SEARCH = '<tool_call>\n{"name": "search", "arguments": {"query": "zebra"}}\n</tool_call>'
LONG = "and on " * 60


@dataclass(frozen=True)
class Case:
    """A probe that must differ between two values of a key, the rest being equal."""

    probe: Probe
    first: str
    second: str
    both: tuple[str, ...] = ()


def c(probe: Probe, first: object, second: object, *both: str) -> Case:
    """Return a case; values as they are written behind --set."""
    return Case(probe, str(first), str(second), both)


_CHAT = ("sampler.type=openai", "sampler.base_url=http://h/v1", "sampler.model=m")
_COLLECT = ("collect.num_problems=4", "sandbox.pool_size=1")
_LORA = ("model.lora.r=4",)
_SHORT_RAMP = ("grpo.overlong.cache_tokens=8",)
_STEP = ("grpo.problems_per_step=4", "grpo.num_minibatches=1", "grpo.num_epochs=3", "run.steps=8",
         "optim.schedule=constant", "optim.learning_rate=0.001")  # fmt: skip
_KL = (*_STEP, "grpo.beta=0.1")
_IS = (*_STEP, "grpo.rollout_is=token")
_SAMPLE = ("grpo.problems_per_step=2", "grpo.num_minibatches=1", "grpo.num_generations=3")
_CONTROL = ("grpo.entropy_control.enabled=true", "grpo.beta=0.01", "grpo.entropy_control.beta_min=0.005")
_SEARCH = ('tools.names=["search"]', "tools.search.corpus=TEXTS", "max_completion_length=1000")
_NO_SETS = ("filter.near_duplicate_threshold=1.0",)

TABLE: dict[str, Case] = {
    "run.seed": c(probes.generated_texts, 0, 1, "num_train=20"),
    "run.deterministic": c(probes.sampled_step, "true", "false", *_SAMPLE, "sampler.max_batch=2"),
    "model.path": c(probes.loaded_policy, "builtin:tiny", "OTHER_MODEL"),
    "model.dtype": c(probes.loaded_policy, "float32", "bfloat16"),
    "model.chat_template": c(probes.loaded_policy, "", "builtin:smollm2-tools"),
    "model.gradient_checkpointing": c(probes.loaded_policy, "false", "true"),
    "model.lora.r": c(probes.loaded_policy, 4, 8),
    "model.lora.alpha": c(probes.loaded_policy, 4, 8, *_LORA),
    "model.lora.dropout": c(probes.loaded_policy, 0.0, 0.5, *_LORA),
    "model.lora.target_modules": c(probes.loaded_policy, "all-linear", '["q_proj"]', *_LORA),
    "data.generated.families": c(probes.generated_texts, '["total"]', '["left"]', "num_train=20"),
    "data.generated.levels": c(probes.generated_texts, "[1]", "[2]", "num_train=20"),
    "data.generated.num_train": c(probes.generated_texts, 20, 21),
    "sampler.type": c(probes.actor_name, "transformers", "openai"),
    "sampler.max_batch": c(probes.decoding_passes, 1, 4),
    "sampler.base_url": c(data.chat_request, "http://h/v1", "http://h/v2", *_CHAT),
    "sampler.model": c(data.chat_request, "m", "n", *_CHAT),
    "sampler.api_key_env": c(data.chat_request, "", "AGENTRL_TEST_KEY", *_CHAT),
    "sampler.timeout_s": c(data.chat_request, 0.1, 5.0, *_CHAT, "base_url=http://h/slow", "max_retries=0"),
    "sampler.max_retries": c(data.chat_request, 0, 2, *_CHAT, "base_url=http://h/fail"),
    "sandbox.pool_size": c(probes.warm_interpreters, 1, 3),
    "sandbox.max_sessions": c(probes.open_sessions, 1, 2, "sandbox.pool_size=1"),
    "sandbox.timeout_s": c(talk(call("import time; time.sleep(0.8)")), 0.3, 5.0),
    "sandbox.memory_mib": c(talk(call("len(bytearray(200 * 2**20))")), 64, 512),
    "sandbox.max_output_chars": c(talk(call("print('x' * 300)")), 100, 1000, "max_completion_length=1000"),
    "tools.names": c(talk(), "[]", '["python"]'),
    "tools.search.corpus": c(talk(SEARCH), "TEXTS", "FEW_TEXTS", 'tools.names=["search"]'),
    "tools.search.top_k": c(talk(SEARCH), 1, 2, *_SEARCH),
    "tools.search.max_chars": c(talk(SEARCH), 100, 1000, *_SEARCH),
    "tools.module": c(talk(), "", "TOOL_FILE"),
    "tools.timeout_s": c(talk(WAIT), 0.1, 5.0, "tools.module=TOOL_FILE"),
    "agent.system_prompt": c(probes.system_prompt, "", "Think."),
    "agent.max_turns": c(talk(*[call("1+1")] * 4), 2, 4),
    "agent.max_tool_calls": c(talk(*[call("1+1")] * 3), 1, 3),
    "agent.max_completion_length": c(talk(LONG), 40, 1000, *_SHORT_RAMP),
    "agent.max_tokens_without_call": c(talk(LONG), 0, 20, "max_completion_length=1000"),
    "agent.call_format": c(talk("```python\n1+1\n```"), "hermes", "python_block"),
    "rewards.tool_reward": c(probes.reward_values, "release", "paper"),
    "rewards.tool_count": c(probes.reward_values, "executed", "successful"),
    "rewards.components": c(probes.reward_values, '[{name="outcome"}, {name="length"}]',
                            '[{name="outcome", weight=2.0}, {name="length"}]'),
    "rewards.module": c(probes.reward_values, "", "REWARD_FILE"),
    "rewards.verify_timeout_s": c(probes.verdict_of_an_expression, 0.000001, 30.0),
    "grpo.num_generations": c(probes.sampled_step, 2, 3, *_SAMPLE),
    "grpo.problems_per_step": c(probes.sampled_step, 2, 3, *_SAMPLE),
    "grpo.num_minibatches": c(probes.trained_step, 1, 2, *_STEP),
    "grpo.num_epochs": c(probes.trained_step, 1, 2, *_STEP),
    "grpo.micro_batch_tokens": c(probes.trained_step, 1, 10000, *_STEP),
    "grpo.temperature": c(probes.trained_step, 1.0, 0.7, *_STEP),
    "grpo.loss_agg_mode": c(probes.trained_step, "token-mean", "seq-mean-token-mean", *_STEP),
    "grpo.scale_rewards": c(probes.advantages, "group", "batch"),
    "grpo.epsilon_low": c(probes.trained_step, 0.2, 0.5, *_STEP),
    "grpo.epsilon_high": c(probes.trained_step, 0.2, 0.5, *_STEP),
    "grpo.epsilon_high_schedule.kind": c(probes.trained_step, "constant", "progressive", *_STEP),
    "grpo.epsilon_high_schedule.start": c(probes.trained_step, 0.3, 0.9, *_STEP, "grpo.epsilon_high_schedule.end=0.2",
                                          "grpo.epsilon_high_schedule.kind=linear"),
    "grpo.epsilon_high_schedule.end": c(probes.trained_step, 0.2, 0.9, *_STEP, "grpo.epsilon_high_schedule.start=0.3",
                                        "grpo.epsilon_high_schedule.kind=linear"),
    "grpo.delta": c(probes.trained_step, "none", 1.5, *_STEP),
    "grpo.beta": c(probes.trained_step, 0.0, 0.1, *_STEP),
    "grpo.kl_estimator": c(probes.trained_step, "k2", "k3", *_KL),
    "grpo.kl_monitor_every": c(probes.has_reference, 0, 5),
    "grpo.rollout_is": c(probes.trained_step, "auto", "token", *_STEP),
    "grpo.rollout_is_threshold": c(probes.trained_step, 1.2, 4.0, *_IS),
    "grpo.filter_groups.enabled": c(probes.sampled_step, "true", "false", *_SAMPLE),
    "grpo.filter_groups.max_extra_rounds": c(probes.sampled_step, 1, 2, *_SAMPLE),
    "grpo.mask_truncated": c(probes.sampled_step, "true", "false", *_SAMPLE),
    "grpo.overlong.enabled": c(probes.reward_values, "true", "false"),
    "grpo.overlong.max_tokens": c(probes.reward_values, 0, 160),
    "grpo.overlong.cache_tokens": c(probes.reward_values, 48, 96),
    "grpo.overlong.count": c(probes.reward_values, "generated", "all"),
    "grpo.entropy_control.enabled": c(probes.betas, "true", "false", *_CONTROL),
    "grpo.entropy_control.relative": c(probes.betas, "true", "false", *_CONTROL),
    "grpo.entropy_control.target_low": c(probes.betas, 0.4, 0.9, *_CONTROL),
    "grpo.entropy_control.target_high": c(probes.betas, 1.1, 3.0, *_CONTROL),
    "grpo.entropy_control.beta_min": c(probes.betas, 0.005, 0.009, *_CONTROL),
    "grpo.entropy_control.beta_max": c(probes.betas, 0.011, 0.05, *_CONTROL),
    "grpo.entropy_control.ema_decay": c(probes.betas, 0.5, 0.95, *_CONTROL),
    "sft.epochs": c(data.sft_updates, 1, 2),
    "sft.batch_size": c(data.sft_data, 2, 3),
    "sft.micro_batch_tokens": c(data.sft_memory_bound, 1000, 2000),
    "sft.max_length": c(data.sft_data, 50, 704),
    "sft.eval_frac": c(data.sft_data, 0.1, 0.5),
    "eval.num_samples": c(data.held_out_scores, 1, 2),
    "eval.temperature": c(data.held_out_scores, 0.5, 1.0),
    "eval.top_p": c(data.held_out_scores, 0.6, 1.0),
    "guard.max_infra_frac": c(probes.guard_verdict, 0.05, 0.5, "guard.min_infra_count=1"),
    "guard.min_infra_count": c(probes.guard_verdict, 1, 20),
    "collect.problems": c(data.collected, "generated:sft", "generated:train", *_COLLECT),
    "collect.num_problems": c(data.collected, 3, 4, "sandbox.pool_size=1"),
    "collect.trajectories_per_problem": c(data.collected, 1, 2, *_COLLECT),
    "collect.concurrency": c(data.asked_teacher, 1, 4, *_COLLECT),
    "collect.temperature": c(data.asked_teacher, 0.3, 0.9, *_COLLECT),
    "filter.require_correct": c(data.kept_rows, "true", "false"),
    "filter.min_calls": c(data.kept_rows, 0, 1),
    "filter.max_failed_calls": c(data.kept_rows, 1, 2),
    "filter.require_recovery": c(data.kept_rows, "true", "false"),
    "filter.near_duplicate_threshold": c(data.kept_rows, 0.5, 1.0),
    "filter.max_per_problem": c(data.kept_rows, 0, 1, *_NO_SETS),
}  # fmt: skip
for _name, _values in {
    "learning_rate": ("0.001", "0.01"),
    "schedule": ("constant", "cosine"),
    "warmup_frac": ("0.0", "0.5"),
    "beta1": ("0.9", "0.5"),
    "beta2": ("0.95", "0.5"),
    "weight_decay": ("0.0", "0.1"),
    "max_grad_norm": ("1.0", "5.0"),
}.items():
    # rates that are large enough to be seen beside weights of 1 to 4, and a norm that the gradients exceed
    _both = [f"X.{key}={value}" for key, value in (("learning_rate", 0.01), ("weight_decay", 0.0)) if key != _name]
    TABLE[f"optim.{_name}"] = c(probes.rl_optimizer, *_values, *(text.replace("X", "optim") for text in _both))
    TABLE[f"sft.optim.{_name}"] = c(probes.sft_optimizer, *_values, *(text.replace("X", "sft.optim") for text in _both))

SEEN_IN_TESTS_BELOW = {
    "model.revision",
    "model.trust_remote_code",
}
SEEN_IN_A_RUN = {
    "run.steps",
    "run.threads",
    "run.save_every_steps",
    "run.keep_checkpoints",
    "run.keep_trajectories",
    "data.train",
    "data.eval",
    "data.max_prompt_length",
    "eval.num_problems",
    "eval.every_steps",
}
"""Only the loop of a run reads these: two short runs, below, show each by what it leaves in its folder."""
SEEN_BY_READERS = {
    "data.columns.problem",
    "data.columns.answer",
    "data.columns.id",
    "data.columns.level",
    "data.columns.family",
    "data.strict",
}
"""A run on a file of foreign columns, below, shows these."""


@pytest.fixture(scope="module")
def bench(tiny_tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One sandbox and a folder with another model and a user's files."""
    folder = tmp_path_factory.mktemp("settings")
    build_model(tiny_tokenizer, seed=1).save_pretrained(folder / "other")
    tiny_tokenizer.save_pretrained(folder / "other")
    (folder / "tool.py").write_text(MODULE_TOOL)
    (folder / "texts" / "few").mkdir(parents=True)
    (folder / "texts" / "few" / "a.txt").write_text("zebra " + "and on " * 30)
    (folder / "texts" / "b.txt").write_text("zebra")
    (folder / "reward.py").write_text("def reward(trajectory):\n    return 0.25\n")
    sandbox = LocalSandbox(SandboxConfig(pool_size=1))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # everything here is too small to be worth two
    yield Bench(sandbox, tiny_tokenizer, folder)
    torch.set_num_threads(threads)
    asyncio.run(sandbox.close())


@pytest.mark.parametrize("key", sorted(TABLE))
def test_a_setting_changes_something(key: str, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two values of one key, all else equal: the probe shows a difference, and none between equal values."""
    monkeypatch.setenv("AGENTRL_TEST_KEY", "secret")
    monkeypatch.setenv("XDG_CACHE_HOME", str(bench.folder / "cache"))
    case = TABLE[key]
    first, again, second = (observe(key, value, case, bench) for value in (case.first, case.first, case.second))
    assert first == again, f"the probe of {key} is not stable"
    assert first != second, f"{key} changes nothing"


def observe(key: str, value: str, case: Case, bench: Bench) -> object:
    """Return what a probe sees of one value."""
    if key == "sampler.type" and value == "openai":
        case = Case(case.probe, case.first, case.second, _CHAT)
    texts = [*case.both, f"{key}={value}"]
    names = {"OTHER_MODEL": "other", "TOOL_FILE": "tool.py", "REWARD_FILE": "reward.py",
             "FEW_TEXTS": "texts/few", "TEXTS": "texts"}  # fmt: skip
    for word, file in names.items():
        texts = [text.replace(word, str(bench.folder / file)) for text in texts]
    return case.probe(load_config("tiny", None, texts), bench)


def test_every_setting_has_an_entry() -> None:
    """A key that is new in the schema needs a line in the table; a key that is gone leaves none behind."""
    leaves = {path for path, setting in catalog().items() if not setting.is_section}
    assert set(TABLE) | SEEN_IN_TESTS_BELOW | SEEN_IN_A_RUN | SEEN_BY_READERS == leaves


def test_a_revision_chooses_the_weights(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of the hub's cache with two commits: each name loads its own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--me--tiny"
    digests = []
    for number, name in enumerate(("first", "second")):
        commit = str(number) * 40
        snapshot = repository / "snapshots" / commit
        build_model(tiny_tokenizer, seed=number).save_pretrained(snapshot)
        tiny_tokenizer.save_pretrained(snapshot)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / name).write_text(commit)
        config = load_config("tiny", None, ["model.path=me/tiny", f"model.revision={name}"])
        digests.append(load_policy(config.model).identity["weights_sha256"])
    assert digests[0] != digests[1]


def test_code_of_a_checkpoint_runs_only_if_trusted(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint whose configuration is a Python file: refused, unless trust_remote_code is set."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder, ran = tmp_path / "custom", tmp_path / "ran"
    shutil.copytree(bench.folder / "other", folder)
    values = json.loads((folder / "config.json").read_text())
    values |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "mine.py").write_text(
        "from pathlib import Path\nfrom transformers import Qwen3Config\n"
        f"Path({str(ran)!r}).touch()\nclass Mine(Qwen3Config):\n    model_type = 'mine'\n"
    )
    for is_trusted in ("false", "true"):
        config = load_config("tiny", None, [f"model.path={folder}", f"trust_remote_code={is_trusted}"])
        with pytest.raises(AgentRLError):  # a model of this type is not known either way
            load_policy(config.model)
        assert ran.exists() == (is_trusted == "true")


@pytest.fixture
def own_threads() -> Iterator[None]:
    """One thread of torch for this test."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Warnings(NullReporter):
    """Keeps what it is warned of."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        self.texts.append(text)


def write_problems(file: Path, names: list[str], *, long: str = "") -> Path:
    """Write problems with these ids, the one called `long` with a text that fills any prompt."""
    rows = [{"id": n, "problem": "What is 6*7?" + " and so on" * 100 * (n == long), "answer": "42"} for n in names]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def short_run(folder: Path, *settings: str) -> tuple[Path, Warnings]:
    """Run `rl` on next to nothing; returns its folder and what it warned of."""
    small = ["problems_per_step=2", "num_minibatches=1", "num_generations=2", "filter_groups.enabled=false",
             "max_completion_length=64", "cache_tokens=16", "sandbox.pool_size=1", "eval.num_samples=1"]  # fmt: skip
    reporter = Warnings()
    config = load_config("tiny", None, [*small, *settings])
    run_rl(config, out=folder, resume=None, reporter=reporter)
    return folder, reporter


def checkpoints(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def measured(run: Path) -> dict[int, int]:
    """Problems of each evaluation, by step."""
    files = sorted((run / "eval").glob("step-*.json"))
    results = [json.loads(file.read_text()) for file in files]
    return {result["step"]: result["n"] for result in results}


def test_what_only_a_run_reads_first(tmp_path: Path, own_threads: None) -> None:
    """Three steps, saved every second, one kept, evaluated at each on 2 of 3 problems; one problem is too long."""
    train = write_problems(tmp_path / "train.jsonl", ["a", "b", "c"], long="c")
    held_out = write_problems(tmp_path / "eval.jsonl", ["x", "y", "z"])
    torch.set_num_threads(2)
    run, reporter = short_run(
        tmp_path / "run", f"data.train={train}", f"data.eval={held_out}", "run.steps=3", "save_every_steps=2",
        "keep_checkpoints=1", "keep_trajectories=false", "eval.num_problems=2", "eval.every_steps=1",
        "max_prompt_length=400", "run.threads=1",
    )  # fmt: skip
    assert torch.get_num_threads() == 1
    assert [text for text in reporter.texts if "longer than 400 tokens" in text] == reporter.texts != []
    assert checkpoints(run) == ["step-000003"]
    assert measured(run) == {0: 2, 1: 2, 2: 2, 3: 2}
    assert [row["step"] for row in read_rows(run / "metrics.jsonl")[0]] == [0, 1, 2, 3]
    assert list((run / "trajectories").glob("*.jsonl")) == []


def test_what_only_a_run_reads_second(tmp_path: Path, own_threads: None) -> None:
    """Two steps, each saved and kept, evaluated before and after on all 3 problems; the long problem is trained on."""
    train = write_problems(tmp_path / "train.jsonl", ["a", "b"], long="b")
    held_out = write_problems(tmp_path / "eval.jsonl", ["x", "y", "z"])
    run, reporter = short_run(
        tmp_path / "run", f"data.train={train}", f"data.eval={held_out}", "run.steps=2", "save_every_steps=1",
        "keep_checkpoints=2", "keep_trajectories=true", "eval.num_problems=200", "eval.every_steps=0",
        "max_prompt_length=2000", "run.threads=0",
    )  # fmt: skip
    assert torch.get_num_threads() == 1
    assert reporter.texts == []
    assert checkpoints(run) == ["step-000001", "step-000002"]
    assert measured(run) == {0: 3, 2: 3}
    stored = [row for file in (run / "trajectories").glob("*.jsonl") for row in read_rows(file)[0]]
    assert {row["problem_id"] for row in stored} == {"a", "b"}


def test_columns_and_strictness_reach_a_run(tmp_path: Path, own_threads: None) -> None:
    """A file of foreign columns with a row that is no problem: read by its map, the row left out or refused."""
    file = tmp_path / "foreign.jsonl"
    rows = [{"q": f"What is 6*{i}?", "a": str(6 * i), "key": f"k{i}", "hard": i, "sort": "times"} for i in (1, 2)]
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"nothing": 1}]))
    columns = [f"data.columns.{name}={column}" for name, column in
               {"problem": "q", "answer": "a", "id": "key", "level": "hard", "family": "sort"}.items()]  # fmt: skip
    both = [f"data.train={file}", "data.eval=generated:test", "run.steps=1", "eval.num_problems=1"]
    run, reporter = short_run(tmp_path / "run", *both, *columns)
    assert len(reporter.texts) == 1
    stored = read_rows(next((run / "trajectories").glob("*.jsonl")))[0]
    shown = {(r["problem_id"], r["problem"], r["answer"], r["level"], r["family"]) for r in stored}
    assert shown == {("k1", "What is 6*1?", "6", 1, "times"), ("k2", "What is 6*2?", "12", 2, "times")}
    with pytest.raises(AgentRLError):
        short_run(tmp_path / "strict", *both, *columns, "data.strict=true")
