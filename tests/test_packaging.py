"""What reaches a user's machine: wheel, sdist and editable install, with and without working links."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from agentrl_cli import __version__

ROOT = Path(__file__).resolve().parent.parent
LINKED = ("commands", "presets")
COPIED = ("agentrl_cli", "commands", "presets", "pyproject.toml", "README.md", "LICENSE", "hatch_build.py")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with an sdist of this tree and the wheel that was built from the sdist alone."""
    pytest.importorskip("build", reason="needs the dev extra")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def broken_tree(tmp_path: Path) -> Path:
    """A copy of the sources whose links are text files, as git makes them where there are no links."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / name)
    for name in LINKED:
        link = tree / "agentrl_cli" / name
        assert link.is_symlink()
        link.unlink()
        link.write_text(f"../{name}")
    return tree


def wheel_names(folder: Path) -> set[str]:
    """Return the files in the only wheel of a folder."""
    (wheel,) = folder.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def tree_files(folder: str) -> set[str]:
    """Return the files below a folder of the tree, by their path from the root."""
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in found}


def call_backend(tree: Path, hook: str, out: Path) -> subprocess.CompletedProcess[str]:
    """Call a build hook of hatchling in a tree, as pip does."""
    out.mkdir(exist_ok=True)
    code = f"import sys; from hatchling import build; build.{hook}(sys.argv[1])"
    return subprocess.run([sys.executable, "-c", code, str(out)], cwd=tree, capture_output=True, text=True, check=False)


def test_only_the_package_reaches_site_packages(built: Path) -> None:
    """Neither commands/ nor tests/ become importable names of their own."""
    tops = {name.split("/")[0] for name in wheel_names(built)}
    assert tops == {"agentrl_cli", f"agentrl-{__version__}.dist-info"}


def test_wheel_holds_every_module_preset_and_asset(built: Path) -> None:
    """All of agentrl_cli, with commands and presets inside it, and nothing else: by way of the sdist too."""
    expected = {f for f in tree_files("agentrl_cli") if not f.startswith(tuple(f"agentrl_cli/{n}/" for n in LINKED))}
    expected |= {f"agentrl_cli/{f}" for name in LINKED for f in tree_files(name)}
    packed = {name for name in wheel_names(built) if name.startswith("agentrl_cli/")}
    assert packed == expected
    assert {"agentrl_cli/commands/rl.py", "agentrl_cli/presets/tiny.toml"} <= packed


def test_sdist_holds_the_real_folders_and_the_tests(built: Path) -> None:
    """The root folders are in the sdist as files; the links are left to the build."""
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {member.name.partition("/")[2] for member in tar.getmembers()}
    assert {"commands/rl.py", "presets/4b.toml", "tests/test_packaging.py", "Makefile", "constraints.txt"} <= names
    assert {"docs/settings.md", "LICENSE", "README.md", "hatch_build.py", "pyproject.toml"} <= names
    assert not any(name.startswith(("agentrl_cli/commands", "agentrl_cli/presets", ".git/")) for name in names)


def test_the_wheel_runs_away_from_the_tree(built: Path, tmp_path: Path) -> None:
    """Unpacked elsewhere, the command finds its presets and checks a configuration."""
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import sys; sys.path.insert(0, 'site'); from agentrl_cli.main import app; app(sys.argv[1:])"
    for arguments in (["presets", "list"], ["rl", "--preset", "4b", "--dry-run"]):
        command = [sys.executable, "-P", "-c", code, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_a_wheel_needs_no_links(broken_tree: Path, built: Path, tmp_path: Path) -> None:
    """A checkout that lost its links still builds the same wheel."""
    done = call_backend(broken_tree, "build_wheel", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert wheel_names(tmp_path / "out") == wheel_names(built)


def test_an_editable_install_refuses_broken_links(broken_tree: Path, tmp_path: Path) -> None:
    """It could not import its commands, so the build says why and what to do."""
    done = call_backend(broken_tree, "build_editable", tmp_path / "out")
    assert done.returncode != 0
    assert "lost its symbolic links" in done.stderr
    assert "core.symlinks" in done.stderr


def test_running_from_a_broken_clone_says_so(broken_tree: Path) -> None:
    """The first import names the cause instead of a missing module."""
    done = subprocess.run(
        [sys.executable, "-m", "agentrl_cli"], cwd=broken_tree, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "ImportError: agentrl_cli/commands is not a folder" in done.stderr


def test_an_editable_install_points_at_the_tree(tmp_path: Path) -> None:
    """With working links it is one path file and holds no copies."""
    done = call_backend(ROOT, "build_editable", tmp_path)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert len(files) == 1
        assert archive.read(files[0]).decode().strip() == str(ROOT)


def test_declared_dependencies_are_the_imported_ones() -> None:
    """Everything that is imported is declared, and nothing is installed that no module imports."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {_requirement_name(text) for text in project["dependencies"]}
    extras = {_requirement_name(text) for extra in project["optional-dependencies"].values() for text in extra}
    distributions = packages_distributions()
    imported = {
        _normal(distributions[name][0])
        for file in [*(ROOT / "agentrl_cli").rglob("*.py"), *(ROOT / "commands").glob("*.py")]
        for name in _imported_names(file)
        if name in distributions and name not in sys.stdlib_module_names and name != "agentrl_cli"
    }
    assert imported - declared - extras == set()
    assert declared - imported == set()


def test_every_pip_install_is_held_to_the_tested_versions() -> None:
    """README and Makefile never install anything outside of constraints.txt."""
    for name in ("README.md", "Makefile", "CONTRIBUTING.md"):
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            if "pip install" in line:
                assert re.search(r"-c \S*constraints\.txt", line), f"{name}: {line}"


def test_constraints_pin_every_declared_dependency() -> None:
    """Base, dev and bench are all pinned to one version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(text for extra in project["optional-dependencies"].values() for text in extra),
    ]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {_normal(line.partition("==")[0]) for line in lines if "==" in line}
    assert {_requirement_name(text) for text in declared} - pinned == set()


def _imported_names(file: Path) -> set[str]:
    """Return the top-level names that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def _requirement_name(text: str) -> str:
    """Return the distribution that a requirement asks for."""
    return _normal(re.split(r"[<>=!~ \[;]", text)[0])


def _normal(name: str) -> str:
    """Return a distribution name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
