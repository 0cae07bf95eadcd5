"""The search tool: passages of a local folder of texts."""

from __future__ import annotations

import asyncio
import time

from agentrl_cli.agent.arguments import read_checked
from agentrl_cli.agent.base import ToolRunner
from agentrl_cli.agent.tools.declared import IN_PROCESS, Card, ProcessTool
from agentrl_cli.config.schema import SearchConfig
from agentrl_cli.data.corpus import Passage, SearchIndex, open_index
from agentrl_cli.sandbox.output import make_safe
from agentrl_cli.types import ToolCall, ToolResult, ToolStatus

MAX_CHARS = 1000
CARD = Card(
    schema={
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search a collection of texts by words. Returns the passages that fit best.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "maxLength": MAX_CHARS, "description": "Words to look for."}
                },
                "required": ["query"],
            },
        },
    },
    doc="Finds passages in a folder of .txt, .md and .jsonl files by their words (BM25) and shows the best with title "
    "and id. The index is built once and kept in the user's cache folder until a file changes.",
    cost=f"{IN_PROCESS}; the index stays in memory, and the folder is read at each start",
    limits=("tools.search.corpus", "tools.search.top_k", "tools.search.max_chars"),
    fixed_limits={"query": f"{MAX_CHARS} characters"},
)


def search_tool(config: SearchConfig) -> ProcessTool:
    """Return the tool over the folder that the settings name.

    Raises:
        ConfigError: there is no such folder, it holds no texts, or the library is missing.
        DataError: a file can't be read.
    """
    index = open_index(config.corpus, max_chars=config.max_chars)
    return ProcessTool(CARD, lambda: _Runner(index, config.top_k))


class _Runner(ToolRunner):
    def __init__(self, index: SearchIndex, top_k: int) -> None:
        self._index = index
        self._top_k = top_k

    async def run(self, call: ToolCall) -> ToolResult:
        start = time.perf_counter()
        query = read_checked(call)["query"]
        found = await asyncio.to_thread(self._index.search, query, self._top_k)
        text = "\n\n".join(show(passage) for passage in found) or "nothing was found"
        return ToolResult(ToolStatus.OK, text, wall_s=time.perf_counter() - start)

    async def close(self) -> None:
        """Nothing is held."""


def show(passage: Passage) -> str:
    """Return a passage as the model sees it: id and title, then its text."""
    return make_safe(f"[{passage.id}] {passage.title}".rstrip() + f"\n{passage.text}")
