"""What the shell offers on TAB: names of presets, settings, benchmarks and runs."""

from __future__ import annotations

from collections.abc import Iterable


def presets(incomplete: str) -> list[str]:
    """Return the presets that begin so."""
    from agentrl_cli.config.load import preset_names

    return _beginning(preset_names(), incomplete)


def settings(incomplete: str) -> list[str]:
    """Return the settings that begin so, ready for their value."""
    from agentrl_cli.config.catalog import catalog

    return _beginning((f"{path}=" for path, setting in catalog().items() if not setting.is_section), incomplete)


def keys(incomplete: str) -> list[str]:
    """Return the settings and sections that begin so."""
    from agentrl_cli.config.catalog import catalog

    return _beginning(catalog(), incomplete)


def benchmarks(incomplete: str) -> list[str]:
    """Return what `agentrl eval` measures by name."""
    from agentrl_cli.data.catalog import BENCHMARKS

    return _beginning(("generated", *BENCHMARKS, "verifier"), incomplete)


def runs(incomplete: str) -> list[str]:
    """Return the runs in ./runs, the newest first."""
    from agentrl_cli.runs import ROOT, runs_by_age

    return _beginning((str(path) for path in runs_by_age(ROOT)), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
