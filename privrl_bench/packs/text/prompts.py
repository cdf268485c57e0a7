"""Users with prompts: a user is one place of a public order, and their prompt is answered in one round."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from privrl_bench.config.schema import MADE, EnvConfig, RunConfig
from privrl_bench.config.traits import Data, Draws
from privrl_bench.errors import refuse, require, require_choice
from privrl_bench.privacy.rules import rules
from privrl_bench.users.facts import Room, UserSize
from privrl_bench.users.refusals import check_noise
from privrl_bench.users.users import Users

if TYPE_CHECKING:
    from privrl_bench.functional.rng import Streams
    from privrl_bench.packs.text.task import TextTask
    from privrl_bench.types import EnvSpec
    from privrl_bench.users.collectors.collector import Collector

_TASKS: dict[str, TextTask] = {}  # the last one opened, shared by the runs of a process

# Settings of environments that have no meaning for texts.
_OF_NUMBERS = (
    *("domain", "task", "kwargs", "wrappers", "backend", "obs_mean", "obs_std", "action"),
    "max_episode_steps",
    *("reward_scale", "obs_low", "obs_high", "reward_low", "reward_high"),
)


class PromptUsers(Users):
    """Users with prompts; see `Users`.

    Attributes:
        task: models and prompts.
    """

    name = "prompts"
    gives = Data.TEXTS
    draws = (Draws.NEXT,)
    in_environments = False
    used_up = True
    simulator = False
    scarce = True
    sized = ("baseline_prompts",)
    whole = True
    reads = ("env.text.",)
    private_because = "env names prompts"
    untested = "how texts are loaded, cut to prompts and split (the prompt is replaced after it)"

    @classmethod
    def check(cls, run: RunConfig) -> None:
        """See `Users.check`: prompts go with an algorithm that answers them, and have no numbers."""
        texts, answers = run.env.kind == "text", Data.TEXTS in run.algo.traits.data
        refuse(
            not answers,
            "env",
            f"{run.env.name} is prompts and answers, from which algo={run.algo.name} does not learn; "
            "use algo=dppg_text or algo=ppo_text",
        )
        refuse(
            not texts, "env", f"{run.env.label} has no prompts, which algo={run.algo.name} answers"
        )
        on_devices = rules(run.privacy).mechanism.on_devices
        refuse(on_devices, "privacy", "local adds noise to numbers, and a text has none")
        steps, new = run.env.user_steps, run.env.text.new_tokens
        require("env.user_steps", steps in (None, new), f"null or env.text.new_tokens={new}", steps)
        refuse(run.env.user == "segment", "env.user", "of a text is fresh or episode, got segment")
        for key in ("obs_scaling", "reward_scaling"):
            value = getattr(run.env, key)
            require(f"env.{key}", value == "none", "none for a text", value)
        plain = EnvConfig(id="any")
        for key in _OF_NUMBERS:
            value = getattr(run.env, key)
            require(f"env.{key}", value == getattr(plain, key), "left out for texts", value)
        require_choice("eval.policy", run.eval.policy, ("stochastic",))
        if _real(run.env):
            mark = ", or, if they are simulated, say env.text.simulated=true"
            check_noise(run, "reviews of a file may be of real users", mark)
        super().check(run)

    @classmethod
    def size_of(cls, run: RunConfig, spec: EnvSpec | None = None, most: int = 1) -> UserSize:
        """See `Users.size_of`: an answer's length is a setting."""
        if spec is not None:
            return super().size_of(run, spec)
        tokens = run.env.text.new_tokens
        return UserSize(tokens, run.privacy.users_per_round * tokens)

    @classmethod
    def shrink(cls, cuts: Any, rounds: int, users: int, user: int) -> None:
        """See `Users.shrink`."""
        cuts.cut("algo", **dict.fromkeys(cls.sized, users))
        run = cuts.config
        need = rounds * run.privacy.users_per_round * run.env.text.new_tokens
        if run.total_steps > need and not {"total_steps", "rounds"} & cuts.given:
            cuts.steps(need)

    def __init__(self, configs: list[RunConfig], spec: EnvSpec):
        self.task = _task_of(configs[0])
        super().__init__(configs, spec)
        self.numbered = True  # by their place: every run begins with the first prompt
        self.may_be_real = _real(configs[0].env)

    def room(self, rounds: int) -> Room:
        """See `Users.room`: every user is a place with a prompt of its own."""
        room, there = super().room(rounds), len(self.task.prompts_train)
        each = self.config.privacy.users_per_round
        words = f"rounds of {each} users need {rounds * each} reviews, and each is used once"
        bound = there, f"{words}; {self.config.env.label} has"
        return replace(room, need=lambda r: r * each, bounds=(*room.bounds, bound))

    def public_sources(self, streams: list[Streams]) -> dict[str, Any]:
        """Models and prompts, and answers to public ones."""
        from privrl_bench.packs.text.answers import PublicTexts

        return {"given": PublicTexts(self.task, streams)}

    def collector(self, parts: Any, size: int) -> Collector:
        """See `Users.collector`."""
        from privrl_bench.packs.text.answers import PromptCollector
        from privrl_bench.users.collectors.shards import microbatch

        slots, algo = parts.gate.slots, parts.algo
        together = microbatch(slots, self.config.algo.traits.microbatch)
        return PromptCollector(
            self.config.env, self.task, algo.adapter, parts.streams, slots, together, size
        )


def _real(env: EnvConfig) -> bool:
    """Whether the prompts may be those of real users."""
    return env.text.prompts not in (None, MADE) and not env.text.simulated


def _task_of(run: RunConfig) -> TextTask:
    """Models and prompts of a text environment. Raises ConfigError."""
    from privrl_bench.packs.text.task import open_task

    device = run.hardware.device  # a model that is in use is never moved
    key = repr((run.env, run.env.text, device))
    if key not in _TASKS:
        _TASKS.clear()
        _TASKS[key] = open_task(run.env).to(device)
    there = len(_TASKS[key].prompts_eval)
    rule = f"at most the {there} prompts for evaluation of {run.env.label}"
    require("eval.episodes", run.eval.episodes <= there, rule, run.eval.episodes)
    return _TASKS[key]


USERS = PromptUsers
