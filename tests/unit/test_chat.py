"""A conversation with a policy: what each line does, and one real question through the command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agentrl_cli.agent.batch import Job
from agentrl_cli.chat.conversation import OPENING, converse
from agentrl_cli.chat.session import Session, make_problem, read_question, run_name
from agentrl_cli.config.grpo import OverlongConfig
from agentrl_cli.config.load import load_config
from agentrl_cli.config.schema import EvalConfig, RewardsConfig
from agentrl_cli.errors import AgentRLError, ConfigError, DataError
from agentrl_cli.main import app
from agentrl_cli.rewards.compose import make_scorer
from agentrl_cli.runs import RunFolder
from agentrl_cli.sampler.loading import resolve_path
from agentrl_cli.seeding import derive_seed
from agentrl_cli.types import Ending, Trajectory

QUESTION = "What is 12 times 34?"
SEED = 7


class CountingActor:
    """Answers its n-th question with n in a box, and loses the question `lose this`."""

    name = "counting"

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.sampling: list[tuple[float, float]] = []

    def run(self, jobs: Sequence[Job], *, temperature: float, top_p: float = 1.0) -> list[Trajectory]:
        """Answer one question."""
        (job,) = jobs
        self.jobs.append(job)
        self.sampling.append((temperature, top_p))
        lost = job.problem.prompt == "lose this"
        answer = {"role": "assistant", "content": f"It is \x1b[2J\\boxed{{{len(self.jobs)}}}."}
        return [
            Trajectory(
                id=job.trajectory_id,
                problem=job.problem,
                group_id=job.group_id,
                seed=job.seed,
                messages=[{"role": "user", "content": job.problem.prompt}, answer],
                tools=(),
                turn_tokens=[5],
                ending=Ending.INFRA_ERROR if lost else Ending.ANSWERED,
                error="the engine is gone" if lost else "",
            )
        ]


class Talk:
    """A conversation that took place: what was shown and what was said."""

    def __init__(self, *lines: str) -> None:
        self.actor = CountingActor()
        self.shown: list[str] = []
        self.said: list[str] = []
        score = make_scorer(RewardsConfig(), overlong=OverlongConfig(), max_completion_length=20480)
        config = EvalConfig(temperature=0.5, top_p=0.9)
        session = Session(self.actor, score, config=config, seed=SEED)
        converse(lines, session, width=80, show=self.shown.append, say=self.said.append)

    @property
    def asked(self) -> list[str]:
        """Problems in their order."""
        return [job.problem.prompt for job in self.actor.jobs]


def chat(*arguments: str, stdin: str | bytes = "") -> Result:
    """Run `agentrl chat` in this process."""
    return CliRunner().invoke(app, ["chat", *arguments], input=stdin, prog_name="agentrl")


def values(text: str) -> dict[str, str]:
    """Return the header of a shown trajectory by name."""
    head = text.split("\n\n")[0].splitlines()[1:]
    return {line.split()[0]: line.split(maxsplit=1)[1] if " " in line.strip() else "" for line in head}


def test_each_line_is_a_problem_with_a_seed_of_its_own() -> None:
    """Lines are asked as they are, sampled as [eval] says; the seed is that of the run and the question's number."""
    talk = Talk("x = 2, what is x?\n", "and now?\n")
    assert talk.asked == ["x = 2, what is x?", "and now?"]
    assert [job.seed for job in talk.actor.jobs] == [derive_seed(SEED, "chat", 1), derive_seed(SEED, "chat", 2)]
    assert talk.actor.sampling == [(0.5, 0.9), (0.5, 0.9)]
    assert talk.said == [OPENING]
    assert "nothing is remembered" in OPENING
    assert "boxed{1}" in talk.shown[0]
    assert "boxed{2}" in talk.shown[1]


def test_again_asks_the_last_problem_with_the_next_seed() -> None:
    """`/again` repeats the problem under the same id, as another trajectory of it."""
    talk = Talk("first", "second", "/again")
    assert talk.asked == ["first", "second", "second"]
    assert [job.seed for job in talk.actor.jobs][2] == derive_seed(SEED, "chat", 3)
    assert [job.group_id for job in talk.actor.jobs] == ["question-1", "question-2", "question-2"]


def test_an_answer_is_scored_by_the_runs_rewards_and_can_be_scored_again() -> None:
    """`= GOLD` shows verdict, reward and parts without repeating what was said; a second gold replaces the first."""
    talk = Talk("what?", "= 1", "=2.5", "= \\frac{2}{2}")
    right, wrong, same = map(values, talk.shown[1:])
    # no calls and 5 of 20480 tokens: right 1 + 0 + 0, wrong -1 + 0 + 0
    assert right["verdict"] == same["verdict"] == "right (ok), answer 1"
    assert right["reward"] == same["reward"] == "1 (outcome 1, tool 0, length 0; before weights)"
    assert (wrong["verdict"], wrong["reward"]) == (
        "wrong (ok), answer 1",
        "-1 (outcome -1, tool 0, length 0; before weights)",
    )
    assert (wrong["gold"], same["gold"]) == ("2.5", "\\frac{2}{2}")
    assert "what?" not in "".join(talk.shown[1:])
    assert talk.asked == ["what?"]


def test_what_a_line_gets_wrong_is_said_and_the_conversation_goes_on() -> None:
    """Scores without an answer, golds that can't be compared, lost answers and unknown commands end nothing."""
    talk = Talk("= 3", "/again", "/agian", "lose this", "= 3", "fine", "=", "", "  ", "/help", "last")
    assert talk.asked == ["lose this", "fine", "last"]
    said = talk.said[1:]
    assert said[:2] == ["nothing was asked yet; type a problem first"] * 2
    assert said[2] == "unknown command '/agian': known are /again, /help, /quit and = GOLD"
    assert said[3].startswith("the last answer was lost (the engine is gone)")
    assert "the gold answer '' is no math answer" in said[4]
    assert [name for name in ("= GOLD", "/again", "/help", "/quit") if name not in said[5]] == []
    assert len(said) == 6


def test_quit_ends_before_the_lines_do() -> None:
    """What follows `/quit` is not asked."""
    assert Talk("one", "/quit", "two").asked == ["one"]


def test_control_characters_of_an_answer_never_reach_the_terminal() -> None:
    """The model's escape sequence is shown, not sent."""
    (shown,) = Talk("clear my screen").shown
    assert "\x1b" not in shown
    assert "\\x1b[2J" in shown


@pytest.mark.parametrize(
    ("ask", "gold", "as_json", "error", "message"),
    [
        (None, "4", False, ConfigError, "--gold '4' has no question"),
        (None, None, True, ConfigError, "--json prints one answer"),
        (" \n", None, False, DataError, "the problem is empty"),
        ("2+2?", "", False, DataError, "the gold answer '' is no math answer"),
        ("2+\udcff?", None, False, DataError, "the problem holds bytes that are no UTF-8 text: '2+\\udcff?'"),
        ("2+2?", "\udcff", False, DataError, "the gold answer holds bytes"),
    ],
)
def test_options_that_make_no_question_are_refused(
    ask: str | None, gold: str | None, as_json: bool, error: type[AgentRLError], message: str
) -> None:
    """Before any model is loaded, the message says which option lacks what."""
    with pytest.raises(error) as caught:
        read_question(ask, gold=gold, as_json=as_json)
    assert message in caught.value.message


def test_a_question_may_hold_anything_and_no_question_means_a_conversation() -> None:
    """`--ask` is taken literally: lines, slashes and equals signs are part of the problem."""
    question = read_question("/quit\n= 5", gold=" 1,000 ", as_json=True)
    assert question == make_problem("/quit\n= 5", name="question-1", gold="1,000")
    assert question is not None
    assert (question.prompt, question.answer, question.kind) == ("/quit\n= 5", "1,000", "integer")
    assert read_question(None, gold=None, as_json=False) is None


def test_a_checkpoint_is_used_with_its_run() -> None:
    """The folder of a run's checkpoint leads to the run; other names stay what they are."""
    assert run_name("runs/a/checkpoints/step-000010") == "runs/a"
    assert [run_name(name) for name in ("runs/a", "Qwen/Qwen3-4B", None)] == ["runs/a", "Qwen/Qwen3-4B", None]


def test_one_question_is_answered_with_tools_and_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model calls Python and answers 408; --json prints the record alone, the model goes to stderr."""
    monkeypatch.chdir(tmp_path)
    done = chat("--ask", QUESTION, "--gold", "408", "--set", "eval.temperature=0", "--json")
    assert done.exit_code == 0, done.stderr
    row = json.loads(done.stdout)
    assert (row["problem"], row["answer"], row["seed"]) == (QUESTION, "408", derive_seed(0, "chat", 1))
    assert row["messages"][0] == {"role": "user", "content": QUESTION}
    assert [event["content"] for event in row["events"]] == ["408"]
    assert row["verdict"] == {"correct": True, "status": "ok", "extracted": "408"}
    # right: outcome 1; release pays calls only when wrong; far from the length limit
    assert (row["reward"], row["reward_parts"]) == (1.0, {"outcome": 1.0, "tool": 0.0, "length": 0.0})
    assert "model: builtin:tiny" in done.stderr


def test_equal_seeds_give_equal_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a temperature that makes noise, the seed decides what is drawn."""
    monkeypatch.chdir(tmp_path)
    noisy = ["--ask", QUESTION, "--json", "--set", "eval.temperature=3", "--seed"]
    first, second, other = (json.loads(chat(*noisy, seed).stdout)["messages"] for seed in ("1", "1", "2"))
    assert first == second
    assert first != other


def test_problems_are_read_from_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal each line of stdin is one line of the conversation, until it ends; nobody is prompted."""
    monkeypatch.chdir(tmp_path)
    done = chat("--set", "eval.temperature=0", stdin=f"{QUESTION}\n= 408\n")
    assert done.exit_code == 0, done.stderr
    assert "call python\n" in done.stdout
    assert "tool python: ok" in done.stdout
    assert "right (ok), answer 408" in done.stdout
    assert "nothing is remembered" in done.stderr
    assert "nothing is remembered" not in done.stdout
    assert "> " not in done.stderr


def test_a_pipe_that_is_no_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that are not UTF-8 end with exit code 2, not with a traceback."""
    monkeypatch.chdir(tmp_path)
    done = chat(stdin=b"What is \xff?\n")
    assert done.exit_code == 2
    assert "error: what was piped in is no UTF-8 text" in done.stderr


def test_a_lost_answer_is_shown_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A problem longer than the engine takes (512 + 192 tokens) ends with exit code 1 and says so."""
    monkeypatch.chdir(tmp_path)
    done = chat("--ask", "one two " * 800, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["ending"] == "infra_error"
    assert "error: the answer was lost: a prompt of" in done.stderr


def test_a_run_answers_under_its_own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unnamed, named or by checkpoint: the run's newest checkpoint with the run's settings, --set over them."""
    monkeypatch.chdir(tmp_path)
    config = load_config("tiny", None, ["agent.system_prompt=Be brief.", "eval.temperature=0"])
    with RunFolder.create(config, kind="rl", out=Path("runs/mine"), digest="d") as run:
        checkpoint = run.checkpoint_path(3)
    shutil.copytree(resolve_path("builtin:tiny"), checkpoint)
    for name in ([], ["runs/mine"], [str(checkpoint)]):
        done = chat(*name, "--ask", QUESTION, "--json", "--set", "agent.max_turns=1")
        assert done.exit_code == 0, done.stderr
        row = json.loads(done.stdout)
        assert row["messages"][0] == {"role": "system", "content": "Be brief."}
        assert row["metrics"]["num_turns"] == 1
        assert "model: runs/mine/checkpoints/step-000003" in done.stderr


def test_a_run_without_a_checkpoint_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has just begun can't answer: exit code 2 and what to do."""
    monkeypatch.chdir(tmp_path)
    RunFolder.create(load_config("tiny", None, []), kind="rl", out=Path("runs/new"), digest="d").close()
    done = chat("--ask", QUESTION)
    assert done.exit_code == 2
    assert "the run 'runs/new' has no checkpoint yet" in done.stderr
