"""`python -m agentrl_cli` is `agentrl`."""

from agentrl_cli.main import app

app(prog_name="agentrl")
