"""DPPG fine-tunes a language model: one user is one prompt with its answer.

    repeat for every round, their number fixed in advance:
        U prompts are answered by the released policy, every answer is scored
        each user: E steps on her own tokens, the adapter's displacement kept in a ball of radius clip
        adapter <- adapter + (sum of displacements + N(0, (z clip)^2 I)) / U, or Adam along that mean

A token's advantage is what follows: the answer's score, less `kl_coef` times the log ratios to the frozen
start from here on, less a baseline. There is no value head (it would share the policy's trunk), the
coefficient is fixed and nothing is normalised across users: each of these would pass un-noised statistics of
some users to others. Nothing is whitened within an answer either: the score is the same for all its tokens,
so the mean takes it away. `algo.baseline=public` is the mean reward of the last released policy's answers to
public prompts.

Source: "Differentially Private Policy Gradient" (Rio, Barlier, Colin), algorithms 2 and 3 and section 6, which
leaves clip, batch, adapter and steps unsaid; the KL penalty is that of TRL's sentiment example.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmContext, annealed
from privrl_bench.algorithms.language.fine_tuning import TextAlgoConfig, TextAlgorithm
from privrl_bench.algorithms.language.local_fine_tuning import LocalOptimizerConfig
from privrl_bench.errors import require, require_choice
from privrl_bench.functional.optim import Adam, adam_step
from privrl_bench.functional.rng import Streams
from privrl_bench.privacy.contribution import Contribution, Released
from privrl_bench.types import State, TextBatch


@dataclass
class DppgTextConfig(TextAlgoConfig):
    """Settings of DPPG on texts."""

    name: str = "dppg_text"
    optimizer: str = "sgd"  # of a user's own steps: sgd | adam, which begins afresh
    ratio_clip: float | None = None  # PPO clipping of the ratio; the paper does without
    baseline: str = "public"  # public: mean reward on public prompts | constant
    baseline_prompts: int = 64  # of baseline=public
    baseline_value: float = 0.0  # of baseline=constant
    server: str = "average"  # average: add the released change | adam: its direction
    server_lr: float = 0.01  # step size of server=adam
    anneal_server: bool = True  # step at the server: linearly from all of it to 0, or constant

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("algo.optimizer", self.optimizer, ("sgd", "adam"))
        require_choice("algo.baseline", self.baseline, ("public", "constant"))
        require_choice("algo.server", self.server, ("average", "adam"))
        ok = math.isfinite(self.server_lr) and self.server_lr > 0
        require("algo.server_lr", ok, "> 0", self.server_lr)
        ok = self.ratio_clip is None or self.ratio_clip > 0
        require("algo.ratio_clip", ok, "null or > 0", self.ratio_clip)
        prompts = self.baseline_prompts
        require("algo.baseline_prompts", prompts >= 1, "a whole number >= 1", prompts)
        ok = math.isfinite(self.baseline_value)
        require("algo.baseline_value", ok, "a finite number", self.baseline_value)


class DppgText(TextAlgorithm):
    """See the module's text. `local` reads one user's data only; rows never mix users."""

    def __init__(self, config: DppgTextConfig, setup: AlgorithmContext):
        super().__init__(config, setup)
        assert setup.sources.task is not None
        assert setup.sources.ask is not None
        self._ask = None
        if config.baseline == "public":
            there = len(setup.sources.task.prompts_eval)
            rule = f"at most the {there} prompts for evaluation"
            require(
                "algo.baseline_prompts",
                config.baseline_prompts <= there,
                rule,
                config.baseline_prompts,
            )
            self._ask = setup.sources.ask(self.adapter, config.baseline_prompts)

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`; with Adam at the server, its moments."""
        state = super().init(streams)
        if self.config.server == "adam":
            zeros = torch.zeros(len(streams), self.adapter.trained)
            state.tensors.update(m=zeros, v=zeros.clone())
        return self._with_baseline(state)

    def local(  # type: ignore[override]  # its users have texts
        self, state: State, users: TextBatch, streams: list[Streams]
    ) -> Contribution:
        """Algorithm 3 for every user.

        Guarantee: row u depends on user u's data and on released parameters only.
        """
        config, rows, seen = self.config, [], []
        descent = LocalOptimizerConfig(
            config.epochs,
            self.learning_rate(state.round),
            self._setup.privacy.clip,
            config.optimizer,
            config.ratio_clip,
        )
        for r, actor in enumerate(state.tensors["actor"]):  # so that replicas do not meet
            vector = actor.to(self.task.model.device)
            lessons, ratios = self.lessons(vector, users, r)
            baseline = state.tensors["baseline"][r].to(vector.device)
            lessons = lessons._replace(advantages=lessons.advantages - baseline)
            rows.append(self.trainer(vector, lessons, descent).cpu())
            here = users.mask[r].any(-1)
            kl = ratios.sum(-1).cpu()[here]
            seen.append({"train/kl": float(kl.mean()) if len(kl) else math.nan})
        return Contribution({"actor": torch.stack(rows)}, users.valid, diagnostics=seen)

    def server(self, state: State, released: Released) -> State:
        """Go along the noised mean displacement; whole steps, or annealed, which averages the noise out."""
        step = annealed(1.0, self.config.anneal_server, state.round, self._setup.rounds)
        tensors, change = dict(state.tensors), released.values["actor"]
        if self.config.server == "adam":  # releases alone are in its moments
            before = Adam(tensors["m"], tensors["v"], state.round)
            size = self.config.server_lr
            change, after = adam_step(torch.zeros_like(change), -change, before, size, eps=1e-8)
            tensors |= {"m": after.m, "v": after.v}
        tensors["actor"] = self.moved(tensors["actor"], step * change)
        return State(state.round + 1, tensors)

    def after_release(self, state: State, streams: list[Streams]) -> State:
        """The baseline for the next round: the released policy answers public prompts."""
        return self._with_baseline(state)

    def _with_baseline(self, state: State) -> State:
        """With `baseline` [R, 1]. Nobody's data: public prompts, and the policy of this state."""
        actor = state.tensors["actor"]
        baseline = torch.full((len(actor), 1), float(self.config.baseline_value))
        if self._ask is not None and state.round < self._setup.rounds:
            answers = self._ask(actor, state.round)
            baseline = torch.stack([self._mean(v, answers, r) for r, v in enumerate(actor)])
        return State(state.round, dict(state.tensors) | {"baseline": baseline})

    def _mean(self, actor: Tensor, answers: TextBatch, r: int) -> Tensor:
        """[1] mean reward of whole answers."""
        lessons, _ = self.lessons(actor.to(self.task.model.device), answers, r)
        whole = lessons.advantages[:, 0].cpu()
        return whole[answers.valid[r]].mean(0, keepdim=True)


ALGORITHM, CONFIG = DppgText, DppgTextConfig
