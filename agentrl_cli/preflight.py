"""What a training command lacks on this machine, found out before anything slow is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl_cli.config.plan import NEEDS_GPU_ABOVE, download_bytes
from agentrl_cli.config.plan_machine import Machine, read_machine
from agentrl_cli.config.plan_memory import GIB, rl_memory
from agentrl_cli.config.plan_models import FoundModel, find_model, is_local_path
from agentrl_cli.config.schema import Config
from agentrl_cli.data.catalog import find_dataset
from agentrl_cli.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Missing:
    """One thing that is not here."""

    what: str
    text: str
    remedy: str
    """The command that gets it."""
    is_fatal: bool
    """The command can't get it by itself."""


def require_possible(config: Config, *, command: str, sources: Sequence[str], machine: Machine | None = None) -> None:
    """Refuse to begin what can't succeed here, naming all that is missing and how to get it.

    What the command would download by itself is no reason to refuse, but is named with the rest.

    Args:
        command: For the message: rl or sft.
        sources: Settings that say where its problems come from: `data.train`, `data.eval`.
        machine: What to hold the settings against; this machine if not given.

    Raises:
        ConfigError: a device, the model or the data is missing and can't be fetched.
    """
    missing = find_missing(config, sources=sources, machine=machine or read_machine())
    if not any(part.is_fatal for part in missing):
        return
    found = "\n".join(f"  {part.what}: {part.text}" for part in missing)
    remedies = "\n".join(f"  {part.what}: {part.remedy}" for part in missing)
    raise ConfigError(f"{command} can't begin on this machine; missing:\n{found}", hint=f"to get it\n{remedies}")


def find_missing(config: Config, *, sources: Sequence[str], machine: Machine) -> list[Missing]:
    """Return what is not here of device, model and data, in this order."""
    model = find_model(config.model.path, hub_cache=machine.hub_cache)
    values = {"data.train": config.data.train, "data.eval": config.data.eval}
    missing = [_no_gpu(config, model, machine), _no_model(config, model, machine)]
    missing += [_no_data(setting, values[setting], machine) for setting in sources]
    return [part for part in missing if part]


def _no_gpu(config: Config, model: FoundModel, machine: Machine) -> Missing | None:
    if model.facts is None or machine.gpus or model.facts.num_parameters <= NEEDS_GPU_ABOVE:
        return None
    needed, there = rl_memory(config, model.facts).peak / GIB, machine.device_bytes / GIB
    return Missing(
        "GPU",
        f"no CUDA device was found; {config.model.path} has {model.facts.num_parameters / 1e9:.1f} billion parameters, "
        f"and rl may need {needed:.0f} GiB at full lengths ({there:.0f} GiB here; see --dry-run)",
        "use a machine with one (agentrl doctor shows what is seen), or begin small: agentrl rl --preset tiny",
        is_fatal=True,
    )


def _no_model(config: Config, model: FoundModel, machine: Machine) -> Missing | None:
    path = config.model.path
    if model.is_here or Path(path).is_dir() or is_local_path(path):
        return None
    size = f" ({download_bytes(model) / GIB:.1f} GiB to download)" if model.facts else ""
    return Missing(
        "model",
        f"{path} is not on this machine{size}",
        f"hf download {path} --local-dir DIR, then --set model.path=DIR",
        is_fatal=machine.is_offline,
    )


def _no_data(setting: str, source: str, machine: Machine) -> Missing | None:
    """Look for the data set that a source names in the cache of the hub; files are looked for by who reads them."""
    dataset = None if Path(source).is_file() else find_dataset(source)
    if dataset is None or (machine.hub_cache / f"datasets--{dataset.repo.replace('/', '--')}").is_dir():
        return None
    return Missing(
        setting,
        f"the data set {dataset.name} ({dataset.repo}) is not on this machine",
        f"hf download {dataset.repo} --repo-type dataset --local-dir DIR, then --set {setting}=DIR/FILE",
        is_fatal=machine.is_offline,
    )
