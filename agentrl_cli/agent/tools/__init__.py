"""The tools of the package, and the tools of a trajectory."""

from agentrl_cli.agent.tools.python import PYTHON_SCHEMA as PYTHON_SCHEMA
from agentrl_cli.agent.tools.registry import build_toolbox as build_toolbox
