"""The chain of a preset: collect, filter, sft, rl, eval, diagnose, in one folder."""
