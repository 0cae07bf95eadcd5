"""`agentrl doctor`: what it reports, when it fails, and how presets are judged."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from agentrl_cli.commands.doctor import doctor
from agentrl_cli.config.plan_machine import Gpu, Machine
from agentrl_cli.config.plan_memory import GIB
from agentrl_cli.config.schema import SandboxConfig
from agentrl_cli.doctor import DoctorError, check_sandbox, examine, installed_version, report_text, require_basics
from agentrl_cli.errors import ConfigError
from agentrl_cli.main import ErrorBoundary
from agentrl_cli.sandbox.local import LocalSandbox


def a_machine(folder: Path, *, gpus: tuple[Gpu, ...] = (), ram: int = 64 * GIB, is_offline: bool = False) -> Machine:
    """A machine with two cores, a large disk and an empty model cache."""
    return Machine(gpus, ram, 2, 10**15, folder, is_offline)


def app() -> typer.Typer:
    """The command inside the error boundary."""
    root = typer.Typer(cls=ErrorBoundary, add_completion=False)
    root.callback()(lambda: None)
    root.command("doctor")(doctor)
    return root


def test_json_has_a_fixed_form() -> None:
    """Scripts find one object with these names, whatever the machine; exit code 0 where the basics work."""
    result = CliRunner().invoke(app(), ["doctor", "--preset", "tiny", "--json"])
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert list(report) == [
        "ok",
        "agentrl",
        "python",
        "os",
        "torch",
        "devices",
        "ram_gib",
        "free_disk_gib",
        "engines",
        "sandbox",
        "hub",
        "presets",
        "notes",
        "failures",
    ]
    assert report["torch"]["version"] == torch.__version__
    assert list(report["engines"]) == ["transformers", "vllm", "verl"]
    assert report["sandbox"]["isolation"] != ""
    assert report["sandbox"]["layers"] != []
    assert list(report["presets"][0]) == ["name", "verdict", "memory_gib", "disk_gib", "download_gib", "problems"]


def test_presets_are_judged_one_by_one(tmp_path: Path) -> None:
    """64 GiB without a GPU: tiny fits, 135m must be fetched (0.251 GiB), 4b needs a device."""
    report = examine(["tiny", "135m", "4b"], machine=a_machine(tmp_path))
    assert [preset["verdict"] for preset in report["presets"]] == ["fits", "needs a download", "does not fit"]
    text = report_text(report).splitlines()
    assert [line.split()[0] for line in text if line.endswith("verdict") or " GiB  " in line] == [
        "preset",
        "tiny",
        "135m",
        "4b",
    ]
    assert any("fits, needs a download of 0.251 GiB" in line for line in text)
    assert "  - no CUDA device: 4.0 billion parameters need one" in text


def test_offline_a_missing_model_does_not_fit(tmp_path: Path) -> None:
    """What can't be fetched can't be run."""
    report = examine(["135m"], machine=a_machine(tmp_path, is_offline=True))
    assert report["presets"][0]["verdict"] == "does not fit"
    assert report["hub"] == {"cache": str(tmp_path), "offline": True}


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a torch without CUDA")
def test_a_gpu_that_torch_cannot_use_does_not_count(tmp_path: Path) -> None:
    """The driver lists a GPU, torch was built without CUDA: the CPU is planned for, and the report says so."""
    report = examine(["4b"], machine=a_machine(tmp_path, gpus=(Gpu("GPU", 900 * GIB),)))
    assert [device["kind"] for device in report["devices"]] == ["cpu"]
    assert "can't use CUDA" in report["notes"][0]
    assert report["presets"][0]["verdict"] == "does not fit"


def test_an_unknown_preset_is_refused() -> None:
    """Exit code 2, before anything is tried."""
    with pytest.raises(ConfigError, match="unknown preset '5b'"):
        examine(["5b"])


def test_a_sandbox_that_gives_no_session_is_a_failure() -> None:
    """The reason is reported, not raised, so that the rest of the report stands."""

    async def check_closed() -> dict[str, object]:
        sandbox = LocalSandbox(SandboxConfig(pool_size=1, max_sessions=1))
        await sandbox.close()
        return await check_sandbox(sandbox)

    assert asyncio.run(check_closed()) == {"isolation": "", "layers": [], "error": "the sandbox is closed"}


def test_failed_basics_are_an_error_with_a_hint() -> None:
    """A run would fail too: exit code 1, and what to do about it."""
    report = {"failures": [{"what": "the sandbox does not work: no process", "hint": "allow more processes"}]}
    with pytest.raises(DoctorError) as caught:
        require_basics(report)
    assert caught.value.exit_code == 1
    assert (caught.value.message, caught.value.hint) == (
        "the sandbox does not work: no process",
        "allow more processes",
    )
    require_basics({"failures": []})


def test_without_torch_the_report_still_comes(tmp_path: Path) -> None:
    """A torch that can't be imported: the rest is reported as JSON, then exit code 1 with the hint on stderr."""
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart is missing')")
    code = (
        "import typer\n"
        "from agentrl_cli.main import ErrorBoundary\n"
        "from agentrl_cli.commands.doctor import doctor\n"
        "app = typer.Typer(cls=ErrorBoundary)\n"
        "app.callback()(lambda: None)\n"
        "app.command('doctor')(doctor)\n"
        "app(['doctor', '--preset', 'tiny', '--json'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert (report["ok"], report["torch"]["error"]) == (False, "libcudart is missing")
    assert report["sandbox"]["error"] == ""
    assert done.stderr.startswith("error: torch does not work: libcudart is missing\n\nhint: install it")


def test_versions_are_read_without_importing() -> None:
    """What is not installed has no version."""
    assert installed_version("pydantic").startswith("2.")
    assert installed_version("no-such-package-anywhere") == ""
