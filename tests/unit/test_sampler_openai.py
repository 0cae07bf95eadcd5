"""The chat endpoint client, against a real HTTP server on this machine that misbehaves on demand."""

from __future__ import annotations

import asyncio
import email.utils
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from agentrl_cli.config.schema import OpenAISamplerConfig
from agentrl_cli.errors import ConfigError, SamplerError
from agentrl_cli.sampler.openai import OpenAIChatSampler
from agentrl_cli.types import ChatCompletion, FinishReason, SamplingParams

CANARY = "sk-canary-4f1d9"
MESSAGES = [{"role": "user", "content": "What is 2+2?"}]
GOOD: dict[str, Any] = {
    "choices": [{"message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 11, "completion_tokens": 3},
}


class Endpoint:
    """Answers requests from a list, one (status, headers, body) each; None drops the connection."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], str] | None] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                endpoint.times.append(time.monotonic())
                endpoint.headers.append({k.lower(): v for k, v in self.headers.items()})
                endpoint.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                answer = endpoint.answers.pop(0)
                if answer is None:
                    self.connection.close()
                    return
                status, headers, body = answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *args: object) -> None:
                """Nothing to stderr."""

        class QuietServer(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                """A connection that we dropped ourselves."""

        self.server = QuietServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def say(self, answer: dict[str, Any] | str = GOOD, *, status: int = 200, **headers: str) -> None:
        """Queue an answer; header names are written with underscores."""
        body = answer if isinstance(answer, str) else json.dumps(answer)
        self.answers.append((status, {k.replace("_", "-"): v for k, v in headers.items()}, body))


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    server = Endpoint()
    thread = threading.Thread(target=server.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.server.shutdown()
    server.server.server_close()
    thread.join()


def ask(
    endpoint: Endpoint,
    *,
    tools: list[dict[str, Any]] | None = None,
    params: SamplingParams | None = None,
    max_retries: int = 3,
    api_key_env: str = "",
    url: str = "",
) -> ChatCompletion:
    """Ask once, with waits of milliseconds."""
    config = OpenAISamplerConfig(
        base_url=url or endpoint.url, model="tiny", max_retries=max_retries, api_key_env=api_key_env, timeout_s=5.0
    )

    async def run() -> ChatCompletion:
        sampler = OpenAIChatSampler(config, first_wait_s=0.01)
        try:
            return await sampler.complete(MESSAGES, tools or [], params or SamplingParams(max_tokens=9))
        finally:
            await sampler.close()

    return asyncio.run(run())


def test_a_request_holds_what_was_asked_and_the_answer_comes_back_with_its_usage(endpoint: Endpoint) -> None:
    """Model, messages, tools and sampling settings are sent; message, ending and token counts are read."""
    endpoint.say()
    tool = {"type": "function", "function": {"name": "python", "parameters": {}}}
    params = SamplingParams(max_tokens=9, temperature=0.5, top_p=0.9, seed=7)
    completion = ask(endpoint, tools=[tool], params=params)
    assert completion == ChatCompletion({"role": "assistant", "content": "4"}, FinishReason.STOP, 11, 3)
    assert endpoint.bodies == [
        {
            "model": "tiny",
            "messages": MESSAGES,
            "max_tokens": 9,
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 7,
            "tools": [tool],
        }
    ]


def test_tool_calls_come_back_in_the_openai_format(endpoint: Endpoint) -> None:
    """Arguments are a JSON string even if the endpoint sends an object, and a missing id is made up."""
    calls = [{"function": {"name": "python", "arguments": {"code": "1"}}}]
    endpoint.say({"choices": [{"message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}]})
    message = ask(endpoint).message
    assert message["content"] == ""
    assert message["tool_calls"] == [
        {"id": "call_0", "type": "function", "function": {"name": "python", "arguments": '{"code": "1"}'}}
    ]


def test_an_answer_cut_at_its_limit_says_so(endpoint: Endpoint) -> None:
    """finish_reason "length" is LENGTH."""
    endpoint.say({"choices": [{"message": {"content": "4"}, "finish_reason": "length"}]})
    completion = ask(endpoint)
    assert (completion.finish_reason, completion.completion_tokens) == (FinishReason.LENGTH, 0)


@pytest.mark.parametrize("fault", ["500", "garbage", "no choices", "dropped", "calls without a function"])
def test_a_passing_fault_is_tried_again(endpoint: Endpoint, fault: str) -> None:
    """A server error, an unreadable answer and a lost connection cost a second try, not the trajectory."""
    match fault:
        case "500":
            endpoint.say("oops", status=500)
        case "garbage":
            endpoint.say("<html>{not json")
        case "no choices":
            endpoint.say({"error": "busy"})
        case "dropped":
            endpoint.answers.append(None)
        case _:
            endpoint.say({"choices": [{"message": {"tool_calls": [{"id": "1"}]}}]})
    endpoint.say()
    assert ask(endpoint).message["content"] == "4"
    assert len(endpoint.bodies) == 2


def test_a_rate_limit_waits_as_long_as_it_is_asked_to(endpoint: Endpoint) -> None:
    """Retry-After in seconds overrides the (much shorter) growing wait."""
    endpoint.say("slow down", status=429, retry_after="0.4")
    endpoint.say()
    ask(endpoint)
    assert endpoint.times[1] - endpoint.times[0] >= 0.4


def test_a_rate_limit_may_name_a_date(endpoint: Endpoint) -> None:
    """Retry-After as a date is waited for: a date 2 s ahead, cut to whole seconds, is at least 1 s ahead."""
    date = email.utils.formatdate(time.time() + 2.0, usegmt=True)
    endpoint.say("slow down", status=429, retry_after=date)
    endpoint.say()
    ask(endpoint)
    assert endpoint.times[1] - endpoint.times[0] >= 0.9


def test_waits_grow(endpoint: Endpoint) -> None:
    """Wait i is at least half of 10 ms * 2**i: 5, 10 and 20 ms."""
    for _ in range(3):
        endpoint.say("oops", status=503)
    endpoint.say()
    ask(endpoint)
    waits = [b - a for a, b in zip(endpoint.times, endpoint.times[1:], strict=False)]
    assert [wait >= least for wait, least in zip(waits, (0.005, 0.010, 0.020), strict=True)] == [True] * 3


def test_a_lasting_fault_is_an_error_that_names_endpoint_and_fault(endpoint: Endpoint) -> None:
    """After max_retries further tries the error tells model, address, number of tries and the last answer."""
    for _ in range(3):
        endpoint.say("disk full", status=500)
    with pytest.raises(SamplerError) as caught:
        ask(endpoint, max_retries=2)
    assert caught.value.message == f"'tiny' at {endpoint.url} failed 3 times; the last time: status 500: disk full"
    assert len(endpoint.bodies) == 3


def test_nobody_listening_is_an_error(endpoint: Endpoint) -> None:
    """A refused connection ends in the same error, not in the HTTP library's."""
    with pytest.raises(SamplerError, match="failed 2 times; the last time: ConnectError"):
        ask(endpoint, max_retries=1, url="http://127.0.0.1:9/v1")


def test_a_refused_request_is_not_tried_again(endpoint: Endpoint) -> None:
    """A bad request would be bad again."""
    endpoint.say("unknown model", status=404)
    with pytest.raises(SamplerError, match="refused the request with status 404: unknown model"):
        ask(endpoint)
    assert len(endpoint.bodies) == 1


def test_the_key_travels_in_its_header_and_nowhere_else(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint gets the key; errors, their causes and the sampler's repr never show it, even when echoed."""
    monkeypatch.setenv("TEST_API_KEY", f" {CANARY}\n")
    endpoint.say({"error": f"invalid key {CANARY}"}, status=401)
    with pytest.raises(SamplerError) as refused:
        ask(endpoint, api_key_env="TEST_API_KEY")
    assert endpoint.headers[0]["authorization"] == f"Bearer {CANARY}"
    assert CANARY not in json.dumps(endpoint.bodies)
    for fault in (f"{{{CANARY}", json.dumps({"error": CANARY})):
        endpoint.say(fault)
        with pytest.raises(SamplerError) as unreadable:
            ask(endpoint, api_key_env="TEST_API_KEY", max_retries=0)
        texts = [str(unreadable.value), repr(unreadable.value), repr(unreadable.value.__cause__)]
        assert not any(CANARY in text for text in texts), texts
    assert "***" in refused.value.message
    assert CANARY not in refused.value.message
    config = OpenAISamplerConfig(base_url=endpoint.url, model="tiny", api_key_env="TEST_API_KEY")
    assert CANARY not in repr(OpenAIChatSampler(config)) + repr(config)


def test_a_key_that_is_missing_or_broken_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable's name is told, its content never."""
    config = OpenAISamplerConfig(base_url="http://127.0.0.1:9/v1", model="tiny", api_key_env="TEST_API_KEY")
    monkeypatch.delenv("TEST_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="'TEST_API_KEY' is not set"):
        OpenAIChatSampler(config)
    monkeypatch.setenv("TEST_API_KEY", f"{CANARY}\nx: y")
    with pytest.raises(ConfigError) as caught:
        OpenAIChatSampler(config)
    assert CANARY not in str(caught.value)


def test_no_key_sends_no_header(endpoint: Endpoint) -> None:
    """An endpoint without keys is asked without one."""
    endpoint.say()
    ask(endpoint)
    assert "authorization" not in endpoint.headers[0]


def test_credentials_in_an_address_are_not_shown(endpoint: Endpoint) -> None:
    """An address with a user and a password is named without them."""
    endpoint.say("oops", status=500)
    url = endpoint.url.replace("http://", f"http://user:{CANARY}@")
    with pytest.raises(SamplerError) as caught:
        ask(endpoint, max_retries=0, url=url)
    assert CANARY not in str(caught.value)
    assert endpoint.url in str(caught.value)


def test_one_sampler_serves_several_event_loops(endpoint: Endpoint) -> None:
    """A second asyncio.run does not meet the connections of the first."""
    sampler = OpenAIChatSampler(OpenAISamplerConfig(base_url=endpoint.url, model="tiny"), first_wait_s=0.01)
    for _ in range(2):
        endpoint.say()
        answer = asyncio.run(sampler.complete(MESSAGES, [], SamplingParams(max_tokens=9)))
        assert answer.message["content"] == "4"
