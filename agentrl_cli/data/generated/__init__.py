"""Generated tool-use word problems: the world that preset `tiny` learns in."""

from agentrl_cli.data.generated.families import FAMILIES, Family, Params
from agentrl_cli.data.generated.generator import LEVELS, Split, generate_problems, split_of

__all__ = ["FAMILIES", "LEVELS", "Family", "Params", "Split", "generate_problems", "split_of"]
