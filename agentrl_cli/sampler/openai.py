"""Chat over HTTP: any endpoint that speaks OpenAI's /chat/completions, tools included.

Rate limits, server errors, lost connections and answers that can't be read are tried again with growing,
jittered waits. The key comes from an environment variable, travels in one header, and appears in no
message: bodies that are quoted in errors are scrubbed of it.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from agentrl_cli.config.schema import OpenAISamplerConfig
from agentrl_cli.errors import ConfigError, SamplerError
from agentrl_cli.types import ChatCompletion, FinishReason, Message, SamplingParams

MAX_WAIT_S = 60.0
"""Longest wait between two tries, whatever the endpoint asks for."""
_RETRIED = frozenset({408, 409, 425, 429})
_QUOTED_CHARS = 300


@dataclass(frozen=True, slots=True)
class _Failure:
    """A try that may be repeated."""

    reason: str
    wait_s: float = 0.0
    """What the endpoint asked to wait."""
    cause: Exception | None = None


class OpenAIChatSampler:
    """A `ChatSampler` on an OpenAI-compatible endpoint."""

    def __init__(self, config: OpenAISamplerConfig, *, first_wait_s: float = 0.5) -> None:
        """Read the key; nothing is sent yet.

        Args:
            config: The [sampler] section.
            first_wait_s: Wait before the second try; each further one waits up to twice as long.

        Raises:
            ConfigError: the address is none, or the key's variable is not set or can't be a header.
        """
        self._config = config
        self._first_wait_s = first_wait_s
        try:
            self._url = httpx.URL(config.base_url)
        except httpx.InvalidURL as error:
            raise ConfigError(f"sampler.base_url={config.base_url!r} is no address: {error}") from error
        self._key = _read_key(config.api_key_env)
        self._jitter = random.Random(0)
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], params: SamplingParams
    ) -> ChatCompletion:
        """Return the next assistant message.

        `top_k` and `stop_token_ids` mean nothing to a chat endpoint and are not sent.

        Raises:
            SamplerError: the request was refused, or failed after its retries.
        """
        body: dict[str, Any] = {
            "model": self._config.model,
            "messages": list(messages),
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "seed": params.seed,
        }
        if tools:
            body["tools"] = [dict(tool) for tool in tools]
        attempt = 0
        while isinstance(result := await self._try(body), _Failure):
            if attempt == self._config.max_retries:
                raise SamplerError(
                    f"{self._where()} failed {attempt + 1} times; the last time: {result.reason}",
                    hint="check sampler.base_url and the endpoint's log; sampler.max_retries sets the tries",
                ) from result.cause
            await asyncio.sleep(self._wait(attempt, result))
            attempt += 1
        return result

    async def close(self) -> None:
        """Free connections."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    async def _try(self, body: Mapping[str, Any]) -> ChatCompletion | _Failure:
        try:
            response = await self._connection().post("chat/completions", json=body)
        except httpx.RequestError as error:
            return _Failure(f"{type(error).__name__} {self._quote(str(error))}".strip(), cause=error)
        status = response.status_code
        if status in _RETRIED or status >= 500:
            return _Failure(f"status {status}: {self._quote(response.text)}", _retry_after(response))
        if status != 200:
            raise SamplerError(
                f"{self._where()} refused the request with status {status}: {self._quote(response.text)}",
                hint="check sampler.model, sampler.base_url and sampler.api_key_env",
            )
        try:
            return _read(response.json())
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            # not from error: a JSON error carries the whole body
            return _Failure(
                f"an answer that is no chat completion ({type(error).__name__}): {self._quote(response.text)}"
            )

    def _connection(self) -> httpx.AsyncClient:
        """Return the client of the running event loop; connections can't outlive their loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client = httpx.AsyncClient(
                base_url=self._url,
                headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
                timeout=self._config.timeout_s,
                limits=httpx.Limits(max_connections=None),
            )
            self._loop = loop
        return self._client

    def _wait(self, attempt: int, failure: _Failure) -> float:
        """Return seconds: exponential with jitter between half and full, or what the endpoint asked for if longer."""
        backoff: float = self._first_wait_s * 2**attempt * self._jitter.uniform(0.5, 1.0)
        return min(MAX_WAIT_S, max(backoff, failure.wait_s))

    def _where(self) -> str:
        """Name model and endpoint, without credentials that an address may hold."""
        return f"{self._config.model!r} at {self._url.copy_with(userinfo=b'')}"

    def _quote(self, text: str) -> str:
        """Return the beginning of a text from outside, without the key."""
        if self._key:
            text = text.replace(self._key, "***")
        text = " ".join(text.split())
        return text if len(text) <= _QUOTED_CHARS else f"{text[:_QUOTED_CHARS]}..."


def _read_key(variable: str) -> str:
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(f"environment variable {variable!r} is not set", hint="it must hold the endpoint's key")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"environment variable {variable!r} holds characters that no key has")
    return key


def _retry_after(response: httpx.Response) -> float:
    """Return the seconds that a Retry-After header asks for (a number or a date); 0 without one."""
    text = response.headers.get("retry-after", "")
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return 0.0


def _read(answer: Any) -> ChatCompletion:
    """Read a chat completion; anything that does not have its shape raises."""
    choice = answer["choices"][0]
    raw = choice["message"]
    message: Message = {"role": "assistant", "content": raw.get("content") or ""}
    if calls := raw.get("tool_calls"):
        message["tool_calls"] = [_read_call(call, number) for number, call in enumerate(calls)]
    usage = answer.get("usage") or {}
    return ChatCompletion(
        message=message,
        finish_reason=FinishReason.LENGTH if choice.get("finish_reason") == "length" else FinishReason.STOP,
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        completion_tokens=int(usage.get("completion_tokens") or 0),
    )


def _read_call(call: Any, number: int) -> dict[str, Any]:
    function = call["function"]
    name, arguments = function["name"], function.get("arguments") or "{}"
    if not isinstance(name, str):
        raise TypeError(f"the name of call {number} is {name!r}")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {
        "id": str(call.get("id") or f"call_{number}"),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
