"""The architecture, read off the imports.

A module imports its own layer or a lower one. torch and what pulls it in stay out of everything that
`agentrl --help`, the settings and the sandbox need. rich lives in console.py, typer in the commands.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = "agentrl_cli"
ROOT = Path(__file__).resolve().parent.parent

LAYERS: list[set[str]] = [
    {"errors", "types", "records", "reporting", "seeding", "files", "user_code"},
    {"config"},
    {"runs"},
    {"data", "sampler", "sandbox", "grpo"},
    {"rewards"},
    {"agent"},
    {"filtering", "collection", "evaluation", "diagnosis"},
    {"training"},
    {"engines"},
    {"runs_index"},
    {"view", "export", "doctor", "preflight", "chat"},
    {"pipeline"},
    {"progress", "console"},
    {"commands"},
    {"main", "__main__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

HEAVY = {"torch", "transformers", "peft", "datasets", "accelerate"}
TORCH_FREE = {
    *LAYERS[0],
    "config",
    "runs",
    "data",
    "sandbox",
    "rewards",
    "collection",
    "filtering",
    "diagnosis",
    "runs_index",
    "view",
    "doctor",
    "preflight",
    "chat",
    "pipeline",
    "progress",
    "console",
    "commands",
    "main",
    "__main__",
    "__init__",
}
TORCH_ALLOWED = {"data.tiny_model"}
"""Modules of torch-free parts that build or run models themselves."""

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80
MAX_COMMAND_LINES = 60


@dataclass(frozen=True)
class Import:
    """One import statement: what, where, and whether it runs when the module is loaded."""

    target: str
    line: int
    at_load: bool


def _modules() -> dict[str, Path]:
    """Map dotted names inside the package (without its own name) to files; links are followed once."""
    found: dict[str, Path] = {}
    folders = [ROOT / PACKAGE, ROOT / PACKAGE / "commands"]
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            relative = path.relative_to(ROOT / PACKAGE)
            parts = relative.with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


def _imports(tree: ast.Module, package: str) -> Iterator[Import]:
    """Yield every import of a module; `if TYPE_CHECKING` and function bodies do not run at load."""

    def visit(node: ast.AST, at_load: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, at_load) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            assert node.level == 0, f"line {node.lineno}: relative import in {package}"
            yield Import(base, node.lineno, at_load)
            if base == PACKAGE:
                yield from (Import(f"{PACKAGE}.{alias.name}", node.lineno, at_load) for alias in node.names)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for child in ast.iter_child_nodes(node):
                yield from visit(child, at_load and not inside and not typing_only)

    yield from visit(tree, True)


MODULES = _modules()
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def _part(module: str) -> str:
    """Return the first component: the layer's member that a module belongs to."""
    return module.split(".")[0]


def test_every_module_has_a_layer() -> None:
    """A new top-level module or folder must be given its place in the order."""
    assert {_part(name) for name in MODULES} - set(RANK) == {"__init__"}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_down(module: str) -> None:
    """A module imports its own layer or a lower one, also inside functions; nobody imports bare `commands`."""
    if module == "__init__":
        return
    wrong = []
    for item in _imports(TREES[module], module):
        top, _, rest = item.target.partition(".")
        assert top != "commands", f"{module}:{item.line} imports bare commands: write {PACKAGE}.commands"
        if top == PACKAGE and rest and RANK.get(_part(rest), -1) > RANK[_part(module)]:
            wrong.append(f"{module}:{item.line} imports {item.target}, which lies above it")
    assert wrong == []


@pytest.mark.parametrize("module", sorted(name for name in MODULES if _part(name) in TORCH_FREE - {"__init__"}))
def test_torch_free_parts_load_no_torch(module: str) -> None:
    """Help, settings, data, rewards and the sandbox load without torch and what pulls it in."""
    if module in TORCH_ALLOWED:
        return
    heavy = [f"{module}:{i.line} {i.target}" for i in _imports(TREES[module], module) if i.at_load and _is_heavy(i)]
    assert heavy == []


def test_sandbox_never_imports_torch() -> None:
    """Interpreters are forked from the sandbox's processes: torch's threads must never be in one."""
    heavy = [
        f"{name}:{item.line}"
        for name, tree in TREES.items()
        if _part(name) == "sandbox"
        for item in _imports(tree, name)
        if _is_heavy(item)
    ]
    assert heavy == []


@pytest.mark.parametrize(("library", "allowed"), [("rich", {"console"}), ("typer", {"commands", "main"})])
def test_terminal_libraries_stay_at_the_edge(library: str, allowed: set[str]) -> None:
    """Only the console imports rich, only commands and main import typer."""
    users = {
        _part(name)
        for name, tree in TREES.items()
        for item in _imports(tree, name)
        if item.target.split(".")[0] == library
    }
    assert users == allowed


def test_chat_samplers_load_no_torch() -> None:
    """Of the samplers, the protocol and the chat endpoints load without torch, so that collect needs none."""
    light = [name for name in ("sampler", "sampler.base", "sampler.openai") if name in TREES]
    assert light
    for name in light:
        assert not [i for i in _imports(TREES[name], name) if i.at_load and _is_heavy(i)], name


@pytest.mark.parametrize("module", sorted(MODULES))
def test_files_and_functions_stay_short(module: str) -> None:
    """No file is longer than 500 lines, no function than 80, no command file than 60."""
    lines = MODULES[module].read_text(encoding="utf-8").count("\n")
    is_command = _part(module) == "commands" and module not in ("commands", "commands.options")
    assert lines <= (MAX_COMMAND_LINES if is_command else MAX_FILE_LINES), module
    long = [
        f"{module}:{node.lineno} {node.name} {node.end_lineno - node.lineno + 1}"
        for node in ast.walk(TREES[module])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert long == []


def _is_heavy(item: Import) -> bool:
    return item.target.split(".")[0] in HEAVY
