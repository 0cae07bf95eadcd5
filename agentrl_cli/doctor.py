"""What this machine can do: versions, devices, engines, the sandbox, and which presets fit.

Only two things are essential, torch and the sandbox; everything else is reported and never a failure.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

from agentrl_cli import __version__
from agentrl_cli.config.load import load_config, preset_names
from agentrl_cli.config.plan import make_plan
from agentrl_cli.config.plan_machine import Machine, read_machine
from agentrl_cli.config.plan_memory import GIB
from agentrl_cli.config.schema import SandboxConfig
from agentrl_cli.errors import AgentRLError, SandboxError
from agentrl_cli.sandbox.base import Limits, Sandbox
from agentrl_cli.sandbox.local import LocalSandbox

ENGINES = ("transformers", "vllm", "verl")
LAYERS: Mapping[str, Sequence[str]] = {
    "minimal": ("separate process", "resource limits", "clean environment", "own folder"),
}
"""What each isolation level of the sandbox consists of."""
FITS, TOO_LARGE, NEEDS_DOWNLOAD = "fits", "does not fit", "needs a download"
_CHECK_LIMITS = Limits(timeout_s=30.0, memory_mib=512, max_output_chars=100)
_TORCH_HINT = "install it with the tested versions: pip install -c constraints.txt -e ."
_SANDBOX_HINT = "it needs POSIX processes and about 300 MiB of memory; in a container allow more processes (pids)"


class DoctorError(AgentRLError):
    """Something without which no run can start is missing."""

    exit_code = 1


def examine(names: Sequence[str] = (), *, machine: Machine | None = None) -> dict[str, Any]:
    """Return the state of this machine as JSON-able values.

    Args:
        names: Presets to hold against it; all if empty.
        machine: What the machine offers; it is looked at if not given.

    Raises:
        ConfigError: there is no such preset.
    """
    configs = {name: load_config(name, None, []) for name in names or preset_names()}
    torch = check_torch()
    machine = machine or read_machine()
    notes = []
    if machine.gpus and not torch["has_cuda"]:
        notes.append(f"the driver lists {len(machine.gpus)} GPU(s), but torch {torch['version']} can't use CUDA")
        machine = replace(machine, gpus=())
    sandbox = asyncio.run(check_sandbox(LocalSandbox(SandboxConfig(pool_size=1, max_sessions=1))))
    failures = [
        {"what": f"{name} does not work: {result['error']}", "hint": hint}
        for name, result, hint in (("torch", torch, _TORCH_HINT), ("the sandbox", sandbox, _SANDBOX_HINT))
        if result["error"]
    ]
    return {
        "ok": not failures,
        "agentrl": __version__,
        "python": platform.python_version(),
        "os": platform.platform(),
        "torch": torch,
        "devices": _devices(machine),
        "ram_gib": _gib(machine.ram_bytes),
        "free_disk_gib": _gib(machine.free_disk_bytes),
        "engines": {name: installed_version(name) for name in ENGINES},
        "sandbox": sandbox,
        "hub": {"cache": str(machine.hub_cache), "offline": machine.is_offline},
        "presets": [_judge(name, make_plan(config, machine)) for name, config in configs.items()],
        "notes": notes,
        "failures": failures,
    }


def require_basics(report: Mapping[str, Any]) -> None:
    """Raise for the first of the essentials that failed.

    Raises:
        DoctorError: torch or the sandbox does not work; the hint says what to do.
    """
    for failure in report["failures"]:
        raise DoctorError(failure["what"], hint=failure["hint"])


def check_torch() -> dict[str, Any]:
    """Import torch and return its version, whether it can use CUDA, and what went wrong."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return {"version": "", "has_cuda": False, "error": " ".join(str(error).split())}
    return {"version": torch.__version__, "has_cuda": torch.cuda.is_available(), "error": ""}


async def check_sandbox(sandbox: Sandbox) -> dict[str, Any]:
    """Run a cell in a session and return the isolation level in force, and what went wrong; closes the sandbox."""
    level, error = "", ""
    try:
        session = await sandbox.open()
        result = await session.run("print(1)", _CHECK_LIMITS)
        await session.close()
        level = await sandbox.health()
        if result.stdout.strip() != "1":
            error = f"print(1) gave {result.stdout!r} ({result.status})"
    except SandboxError as failure:
        error = failure.message
    finally:
        await sandbox.close()
    return {"isolation": level, "layers": list(LAYERS.get(level, ())), "error": error}


def installed_version(package: str) -> str:
    """Return the version of a package, or an empty string if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def report_text(report: Mapping[str, Any]) -> str:
    """Return the report for people: a line a fact, then a table of presets with what stands against each."""
    torch, sandbox, hub = report["torch"], report["sandbox"], report["hub"]
    engines = ", ".join(f"{name} {version or 'not installed'}" for name, version in report["engines"].items())
    facts = {
        "agentrl": report["agentrl"],
        "python": f"{report['python']} on {report['os']}",
        "torch": torch["version"] or f"FAILED: {torch['error']}",
        "devices": "; ".join(f"{d['name']} ({d['memory_gib']:g} GiB)" for d in report["devices"]),
        "memory": f"{report['ram_gib']:g} GiB",
        "free disk": f"{report['free_disk_gib']:g} GiB here",
        "engines": engines,
        "sandbox": f"FAILED: {sandbox['error']}"
        if sandbox["error"]
        else f"{sandbox['isolation']} ({', '.join(sandbox['layers'])})",
        "hub cache": f"{hub['cache']} ({'offline' if hub['offline'] else 'downloads allowed'})",
    }
    lines = [f"{name:<10} {value}" for name, value in facts.items()]
    lines += [f"{'note':<10} {note}" for note in report["notes"]]
    head = f"{'preset':<10} {'memory':>12} {'disk':>12}  verdict"
    return "\n".join([*lines, "", head, *(line for preset in report["presets"] for line in _preset_lines(preset))])


def _preset_lines(preset: Mapping[str, Any]) -> list[str]:
    memory, disk = f"{preset['memory_gib']:g} GiB", f"{preset['disk_gib']:g} GiB"
    verdict = preset["verdict"]
    if verdict == NEEDS_DOWNLOAD:
        verdict = f"{FITS}, {NEEDS_DOWNLOAD} of {preset['download_gib']:g} GiB"
    return [f"{preset['name']:<10} {memory:>12} {disk:>12}  {verdict}", *(f"  - {why}" for why in preset["problems"])]


def _judge(name: str, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return one row of the table."""
    download = plan["model"]["download_gib"]
    verdict = NEEDS_DOWNLOAD if download else FITS
    return {
        "name": name,
        "verdict": TOO_LARGE if plan["problems"] else verdict,
        "memory_gib": plan["memory_gib"]["rl_peak"],
        "disk_gib": plan["disk_gib"]["rl_run"],
        "download_gib": download,
        "problems": plan["problems"],
    }


def _devices(machine: Machine) -> list[dict[str, Any]]:
    gpus = [{"kind": "cuda", "name": gpu.name, "memory_gib": _gib(gpu.num_bytes)} for gpu in machine.gpus]
    return gpus or [{"kind": "cpu", "name": machine.device_name, "memory_gib": _gib(machine.ram_bytes)}]


def _gib(num_bytes: int) -> float:
    return float(f"{num_bytes / GIB:.3g}")
