"""Problems that a person asks one policy, and what its answers are paid.

Each question is a problem of its own and runs through the loop of training: system prompt, tools, limits and
template are those of the settings. Nothing is remembered from one to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from agentrl_cli.agent.batch import Job
from agentrl_cli.agent.stack import Actor, open_actor
from agentrl_cli.config.schema import Config, EvalConfig
from agentrl_cli.data.layouts import infer_kind
from agentrl_cli.errors import ConfigError, DataError, SamplerError
from agentrl_cli.evaluation.runner import find_model
from agentrl_cli.reporting import Reporter
from agentrl_cli.rewards.compose import ScoreFn, make_scorer
from agentrl_cli.rewards.verify import check_gold
from agentrl_cli.seeding import derive_seed
from agentrl_cli.types import Problem, Trajectory


class Session:
    """Questions to one actor; the number of each, from 1, gives its seed."""

    def __init__(self, actor: Actor, score: ScoreFn, *, config: EvalConfig, seed: int) -> None:
        self._actor = actor
        self._score = score
        self._config = config
        self._seed = seed
        self._num_asked = 0
        self._last: Trajectory | None = None

    def ask(self, problem: Problem) -> Trajectory:
        """Return the policy's trajectory; it is scored if the problem has a gold answer and nothing failed."""
        self._num_asked += 1
        seed = derive_seed(self._seed, "chat", self._num_asked)
        job = Job(problem, f"chat-{self._num_asked}", problem.id, seed)
        (self._last,) = self._actor.run([job], temperature=self._config.temperature, top_p=self._config.top_p)
        if problem.answer and self._last.ending.is_valid:
            self._score([self._last])
        return self._last

    def ask_text(self, text: str) -> Trajectory:
        """Ask a problem whose answer nobody has told.

        Raises:
            DataError: the text can't be encoded.
        """
        return self.ask(make_problem(text, name=f"question-{self._num_asked + 1}"))

    def again(self) -> Trajectory:
        """Ask the last problem once more, with the next seed.

        Raises:
            DataError: nothing was asked yet.
        """
        return self.ask(self._require_last().problem)

    def grade(self, gold: str) -> Trajectory:
        """Return the last trajectory scored against a gold answer; it can be graded again with another.

        Raises:
            DataError: there is no answer to grade, or the gold can't be read.
        """
        last = self._require_last()
        if not last.ending.is_valid:
            raise DataError(f"the last answer was lost ({last.error}): nothing to score", hint="/again asks once more")
        problem = make_problem(last.problem.prompt, name=last.problem.id, gold=gold)
        graded = replace(last, problem=problem)
        self._score([graded])
        return graded

    def _require_last(self) -> Trajectory:
        if self._last is None:
            raise DataError("nothing was asked yet", hint="type a problem first")
        return self._last


def make_problem(text: str, *, name: str, gold: str | None = None) -> Problem:
    """Return what a person typed as a problem; the gold answer's kind is read off the gold.

    Raises:
        DataError: the problem is empty or no text, or the gold can't be compared.
    """
    if not text.strip():
        raise DataError("the problem is empty")
    for what, value in (("problem", text), ("gold answer", gold or "")):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"the {what} holds bytes that are no UTF-8 text: {value!a}") from error
    if gold is None:
        return Problem(name, text, "", source="chat")
    problem = Problem(name, text, gold.strip(), infer_kind(gold), source="chat")
    check_gold(problem, where=name)
    return problem


def read_question(ask: str | None, *, gold: str | None, as_json: bool) -> Problem | None:
    """Return the one question of the command line, or None for a conversation.

    Raises:
        ConfigError: options need a question and there is none.
        DataError: the question or its gold answer can't be used.
    """
    if ask is not None:
        return make_problem(ask, name="question-1", gold=gold)
    if gold is not None:
        raise ConfigError(f"--gold {gold!r} has no question", hint="add --ask TEXT, or type = GOLD after an answer")
    if as_json:
        raise ConfigError("--json prints one answer, but no question was given", hint="add --ask TEXT")
    return None


def run_name(model: str | None) -> str | None:
    """Return the run that a checkpoint of it lies in, and any other name as it is."""
    folder = Path(model or "")
    return str(folder.parent.parent) if folder.parent.name == "checkpoints" else model


@contextmanager
def open_session(config: Config, *, model: str | None, reporter: Reporter) -> Iterator[Session]:
    """Open what `model` names (see `find_model`) with its tools, and close it on the way out.

    Raises:
        RunError: the run has no checkpoint yet.
        ModelError: the model can't be loaded.
    """
    path, _ = find_model(model)
    score = make_scorer(
        config.rewards, overlong=config.grpo.overlong, max_completion_length=config.agent.max_completion_length
    )
    with open_actor(config, model_path=path) as actor:
        reporter.info(f"model: {actor.name}")
        yield Session(actor, score, config=config.eval, seed=config.run.seed)


def require_answer(trajectory: Trajectory) -> None:
    """Fail if the answer, or its reward, was lost to sampler, sandbox or verifier.

    Raises:
        SamplerError: it was.
    """
    if not trajectory.ending.is_valid:
        raise SamplerError(f"the answer was lost: {trajectory.error}")
