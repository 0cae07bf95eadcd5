"""Puts commands/ and presets/ into the package, whether or not the checkout has working links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LINKED = ("commands", "presets")


class LinkedFolders(BuildHookInterface):  # type: ignore[type-arg]
    """A wheel gets the folders inside the package, an sdist at its root; an editable install needs the links."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the folders to the build, or refuse an editable install that could not import them."""
        if version == "editable":
            self._require_links()
            return
        parent = "" if self.target_name == "sdist" else "agentrl_cli/"
        for name in LINKED:
            for file in sorted((Path(self.root) / name).iterdir()):
                if file.is_file():
                    build_data["force_include"][str(file)] = f"{parent}{name}/{file.name}"

    def _require_links(self) -> None:
        """Raise if a link is broken, as in a checkout on a system without symbolic links."""
        for name in LINKED:
            link = Path(self.root) / "agentrl_cli" / name
            if not link.is_dir():
                raise RuntimeError(
                    f"{link} is not a folder: this checkout lost its symbolic links, so an editable install can't "
                    "work. Set git config core.symlinks true and check out again, or install with pip install ."
                )
