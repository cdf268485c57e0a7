"""DPPG on texts: a user's row by hand, users and replicas apart, learning, files, refused settings."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import sized
from text_runs import ABSENT, NEW, PUBLIC, config_of, learned, parts_of, session

from privrl_bench.audit.canary import attack
from privrl_bench.audit.leaks import find_leaks
from privrl_bench.audit.shrink import shrink
from privrl_bench.composition.compose import compose
from privrl_bench.errors import ConfigError
from privrl_bench.packs.text.dppg_text import DppgText
from privrl_bench.packs.text.fine_tuning import AnswerBatch
from privrl_bench.packs.text.prompt_order import reviews_of
from privrl_bench.training.folder import read_lines
from privrl_bench.training.plan import make_plan
from privrl_bench.training.runner import run

BOTH = ("algo.adapter=all", "algo.optimizer=adam", "algo.lr=0.01", "algo.ratio_clip=0.2")
LORA = ("algo.lora_trains=both", "algo.targets=linear", "algo.rank=2")


def one_user(model, adapter, vector, lesson, config, radius):
    """Displacement of one user, by a plain module, autograd and torch's optimisers."""
    fixed = adapter.size - adapter.trained
    start = vector[fixed:]
    moved = torch.zeros_like(start)
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[config.optimizer]
    steps = lesson.old.shape[-1]
    row = lesson.tokens[lesson.seen]  # without padding
    answer = int(lesson.seen[-steps:].sum())
    point = torch.nn.Parameter(start.clone())
    more = {"eps": 1e-5} if config.optimizer == "adam" else {}
    optimizer = kind([point], lr=config.lr, **more)
    for _ in range(config.epochs):
        weights = adapter.weights(torch.cat([vector[:fixed], point]))
        logits = torch.func.functional_call(model, weights, (row[None],)).logits[0]
        said = torch.log_softmax(logits, -1)[:-1].gather(-1, row[1:, None])[-answer:, 0]
        ratio = (said - lesson.old[:answer]).exp()
        gain = ratio * lesson.advantages[:answer]
        if config.ratio_clip is not None:
            low, high = 1 - config.ratio_clip, 1 + config.ratio_clip
            gain = torch.minimum(gain, ratio.clamp(low, high) * lesson.advantages[:answer])
        optimizer.zero_grad()
        (-gain.mean()).backward()
        optimizer.step()
        with torch.no_grad():
            moved = point - start
            norm = float(moved.norm())
            point.copy_(start + moved * min(1.0, radius / norm))
    return (point - start).detach()


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("words", [(), BOTH, LORA], ids=["shipped", "all weights", "linear"])
def test_all_users_at_once_are_each_user_alone(texts, words):
    """The issue's bound is 1e-5; a quarter of the users is clipped and one has a short answer."""
    parts = parts_of(texts, "dppg", *words, "algo.epochs=3", "privacy.clip=0.3")
    algo, task = parts.algo, parts.users.task
    users = session(texts, "dppg", *words).collect(algo.init(parts.streams).tensors["actor"], 0)
    g = torch.Generator().manual_seed(1)
    vector = algo.init(parts.streams).tensors["actor"][0]
    vector = vector + 0.1 * torch.rand(vector.shape, generator=g)
    seen = users.seen[0].clone()
    seen[1, -3:] = False
    old = algo.logprobs(vector, users.tokens[0], seen, NEW)
    batch = AnswerBatch(users.tokens[0], seen, old, torch.rand(5, NEW, generator=g) - 0.3)
    config, rows = parts.config.algo, algo.displacements(vector, batch)
    assert rows.shape == (5, algo.adapter.trained)
    assert (rows.norm(dim=-1) <= 0.3 * (1 + 1e-5)).all()
    there = [u for u in range(5) if u != ABSENT]
    assert rows[there].norm(dim=-1).min() > 1e-3
    assert not rows[ABSENT].any()
    for u in there:
        alone = one_user(
            task.model, algo.adapter, vector, AnswerBatch(*(x[u] for x in batch)), config, 0.3
        )
        torch.testing.assert_close(rows[u], alone, atol=1e-5, rtol=1e-4)


def test_few_users_at_once_are_many_at_once(texts, monkeypatch):
    """Copies of weights are limited; where they are cut into pieces makes no difference."""
    parts = parts_of(texts, "dppg")
    users = session(texts, "dppg").collect(parts.algo.init(parts.streams).tensors["actor"], 0)
    state = parts.algo.init(parts.streams)
    whole = parts.algo.user_update(state, users, parts.streams).take()[0]["actor"]
    monkeypatch.setattr("privrl_bench.packs.text.dppg_text._ROOM", 2 * parts.algo.copied)
    pieces = parts.algo.user_update(state, users, parts.streams).take()[0]["actor"]
    torch.testing.assert_close(pieces, whole, atol=1e-6, rtol=1e-5)


def test_an_advantage_is_what_follows_less_the_baseline(texts):
    one = session(texts, "dppg", "algo.kl_coef=0.3")
    algo, state = one.parts.algo, one.state
    state.tensors["actor"] += 0.2
    users = one.collect(state.tensors["actor"], 0)
    batch, ratios = algo.answer_batch(state.tensors["actor"][0], users, 0)
    for u in range(5):
        for t in range(int(users.mask[0, u].sum())):
            expected = users.scores[0, u] - 0.3 * ratios[u, t:].sum()
            torch.testing.assert_close(batch.advantages[u, t], expected, atol=1e-5, rtol=1e-5)
    assert ratios.abs().max() > 1e-3
    start = algo.init(one.parts.streams)
    _, nothing = algo.answer_batch(start.tensors["actor"][0], users, 0)
    assert nothing.abs().max() < 1e-5  # the policy is the start: no penalty


def test_adam_at_the_server_sees_releases_only(texts, monkeypatch):
    words = ("algo.server=adam", "algo.server_lr=0.02", "algo.anneal_server=false")
    one = session(texts, "dppg", *words)
    algo = one.parts.algo
    released, real = [], algo.server
    monkeypatch.setattr(algo, "server", lambda state, r: (released.append(r), real(state, r))[1])
    point = torch.nn.Parameter(one.state.tensors["actor"][:, -algo.adapter.trained :].clone())
    known = torch.optim.Adam([point], lr=0.02, eps=1e-8)
    for _ in range(3):
        one.step()
        point.grad = -released[-1].values["actor"]
        known.step()
    moved = one.state.tensors["actor"][:, -algo.adapter.trained :]
    torch.testing.assert_close(moved, point.detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("words", [(), LORA, BOTH], ids=["shipped", "linear", "all weights"])
def test_a_release_moves_the_trained_parameters_and_nothing_else(texts, words, monkeypatch):
    """No value head: all that is trained is one clipped block of adapter parameters of the model."""
    one = session(texts, "dppg", "algo.anneal_server=false", *words)
    algo, model = one.parts.algo, one.parts.users.task.model
    (block,) = algo.blocks()
    assert block.size == algo.adapter.trained
    assert set(one.state.tensors) == {"actor", "baseline"}
    assert set(algo.adapter.names) <= {name for name, _ in model.named_parameters()}
    before, frozen = one.state.tensors["actor"], [p.clone() for p in model.parameters()]
    released, real = [], algo.server
    monkeypatch.setattr(algo, "server", lambda state, r: (released.append(r), real(state, r))[1])
    one.step()
    moved = one.state.tensors["actor"] - before
    fixed = moved.shape[1] - block.size
    assert not moved[:, :fixed].any()
    torch.testing.assert_close(moved[:, fixed:], released[0].values["actor"], atol=1e-6, rtol=1e-5)
    assert moved[:, fixed:].any()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), frozen, strict=True))


def test_the_public_baseline_is_the_mean_reward_of_public_prompts(texts):
    words = ("algo.baseline_prompts=7", "algo.kl_coef=0.0")
    one = session(texts, "dppg", *words)
    one.step()
    algo, actor = one.parts.algo, one.state.tensors["actor"]
    answers = algo._context.sources.given.ask(algo.adapter, 7, actor, 1)
    assert answers.scores.shape == (1, 7)
    torch.testing.assert_close(one.state.tensors["baseline"][0, 0], answers.scores.mean())
    fixed = session(texts, "dppg", "algo.baseline=constant", "algo.baseline_value=0.7")
    assert fixed.state.tensors["baseline"].tolist() == [[pytest.approx(0.7)]]


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("algo", ["dppg", "ppo"])
def test_replicas_and_resumed_runs_are_the_same_bit_for_bit(texts, algo):
    """Alone, beside others, and restored in the middle."""
    together = session(texts, algo, rounds=3, seeds=(4, 5))
    while not together.over:
        together.step()
    alone = session(texts, algo, rounds=3, seeds=(5,))
    alone.step()
    saved = alone.checkpoint(alone.snapshot(), 0)
    resumed = session(texts, algo, rounds=3, seeds=(5,))
    assert resumed.restore([saved])
    while not resumed.over:
        alone.step()
        resumed.step()
    for name, x in alone.state.tensors.items():
        assert torch.equal(resumed.state.tensors[name], x), name
        assert torch.equal(together.state.tensors[name][1], x[0]), name
    assert not torch.equal(*together.state.tensors["actor"])
    (batch,), (again,) = alone.evaluate(), resumed.evaluate()
    assert batch.returns.tolist() == again.returns.tolist()
    assert batch.more == again.more


def test_it_learns_what_is_scored(texts):
    words = ("algo.adapter=all", "privacy.z=0.01", "privacy.clip=2", "algo.lr=3")
    scores = learned(texts, "dppg", *words)
    assert scores[-1] > scores[0] + 1.0, scores


def test_everybody_is_asked_once(texts):
    one = session(texts, "dppg", rounds=12)
    actor, prompts = one.state.tensors["actor"], one.parts.users.task.prompts_train
    asked = []
    for index in range(12):
        users = one.collector.collect(actor, index, sized(5))
        for row, seen in zip(users.tokens[0], users.seen[0], strict=True):
            asked.append(row[:-NEW][seen[:-NEW]].tolist())
    assert asked == prompts[:60]
    assert [k for k, prompt in enumerate(asked) if not prompt][:3] == [2, 7, 14]
    nobody = one.collector.collect(actor, 0, sized(0))
    assert not nobody.valid.any()
    assert not nobody.tokens.any()


@pytest.mark.parametrize("algo", ["dppg", "ppo"])
def test_a_short_review_is_an_absent_user_and_moves_nobody(texts, algo, tmp_path):
    """Zero-out: the others' answers, scores and rows are the same to the last bit."""
    (given,) = (word for word in texts if "prompts=" in word)
    lines = Path(given.partition("=")[2]).read_text().splitlines()
    place = next(iter(reviews_of(config_of(texts, algo).env.text))).place
    lines[place] = ""
    (tmp_path / "short.txt").write_text("\n".join(lines) + "\n")
    other = tuple(word for word in texts if word != given)
    other = (*other, f"env.text.prompts={tmp_path / 'short.txt'}")
    found = []
    for words in (texts, other):
        one = session(words, algo)
        users = one.collect(one.state.tensors["actor"], 0)
        assert users.stats[0]["train/invalid_users"] == 0.0
        rows = one.parts.algo.user_update(one.state, users, one.parts.streams).take()[0]["actor"]
        found.append((users, rows))
        one.step()
        assert torch.isfinite(one.state.tensors["actor"]).all()
    (before, rows), (after, rows_after) = found
    there = [u for u in range(5) if u not in (0, ABSENT)]
    assert before.valid[0].tolist() == [True, True, False, True, True]
    assert after.valid[0].tolist() == [False, True, False, True, True]
    for name in ("tokens", "seen", "mask", "scores"):
        x, y = getattr(before, name)[0], getattr(after, name)[0]
        assert torch.equal(x[there], y[there]), name
        assert not y[[0, ABSENT]].any(), name
    if algo == "dppg":
        assert torch.equal(rows[0, there], rows_after[0, there])
        assert not rows_after[0, [0, ABSENT]].any()
    else:
        assert rows_after.abs().max() > 0


def test_the_guarantee_says_what_it_covers(texts):
    plan = parts_of(texts, "dppg").gate
    said = plan.guarantee(0)
    assert said.status == "formal"
    assert said.unit == "one private review (its prompt, answer and score), used once"
    assert said.notes["reviews"].startswith("their number, 200, and order are assumed to be public")
    assert "start model and classifier" in said.notes
    assert said.epsilon < 10.0  # z = 0.5, as shipped
    papers = parts_of(texts, "dppg", "privacy.z=0.01").gate
    assert papers.guarantee(0).epsilon == pytest.approx(5426, abs=1)


def logits_of(model, weights, tokens):
    """Logits in double precision, in which the order of sums does not decide."""
    precise = copy.deepcopy(model).double()
    weights = {name: x.double() for name, x in weights.items()}
    with torch.no_grad():
        return torch.func.functional_call(precise, weights, (tokens,)).logits


def test_a_run_leaves_samples_and_an_adapter_that_peft_loads(texts, tmp_path, capsys):
    config = config_of(texts, "dppg", "algo.targets=linear", rounds=2)
    (result,) = run([config], [tmp_path / "run"], [[]])
    assert result.status == "done"
    said = capsys.readouterr().out
    assert "before" in said
    assert "after" in said
    rows = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["round"] for row in rows] == [0, 1, 2]
    assert rows[0]["eval/kl"] == pytest.approx(0.0, abs=1e-5)
    assert all(row["eval/perplexity"] > 1 for row in (rows[0], rows[-1]))
    samples = read_lines(tmp_path / "run" / "samples.jsonl")
    assert {s["round"] for s in samples} == {0, 2}
    assert len(samples) == 8

    from peft import PeftModel

    folder = tmp_path / "run" / "adapter"
    assert sorted(p.name for p in folder.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    parts = make_plan([config])
    saved = torch.load(tmp_path / "run" / "policy.pt", weights_only=True)
    assert set(saved) == {"format", "actor", "policy", "spec", "algo", "env", "eval", "guarantee"}
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    weights = parts.algo.adapter.weights(saved["actor"])
    ours = logits_of(parts.users.task.model, weights, tokens)
    loaded = PeftModel.from_pretrained(copy.deepcopy(parts.users.task.model), str(folder)).eval()
    torch.testing.assert_close(logits_of(loaded, {}, tokens), ours, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(ours, logits_of(parts.users.task.model, {}, tokens), atol=1e-4)
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == config.algo.rank


def test_all_weights_leave_a_whole_model(texts, tmp_path):
    config = config_of(texts, "dppg", *BOTH, rounds=1)
    run([config], [tmp_path / "run"], [[]])
    from transformers import AutoModelForCausalLM

    parts = make_plan([config])
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").eval()
    tokens = torch.tensor([[1, 2, 3]])
    saved = torch.load(tmp_path / "run" / "policy.pt", weights_only=True)
    weights = parts.algo.adapter.weights(saved["actor"])
    ours = logits_of(parts.users.task.model, weights, tokens)
    torch.testing.assert_close(logits_of(loaded, {}, tokens), ours, atol=1e-6, rtol=1e-5)


REFUSED = {
    ("algo", "server", "sgd"): "algo.server: must be one of average, adam, got 'sgd'",
    ("algo", "server_lr", 0.0): "algo.server_lr: must be > 0, got 0",
    (
        "",
        "total_steps",
        100_000,
    ): "total_steps: 3333 rounds of 5 users need 16665 reviews, and each is used once",
    ("", "rounds", 41): "rounds: 41 rounds of 5 users need 205 reviews",
    ("eval", "episodes", 500): f"eval.episodes: must be at most the {PUBLIC} prompts",
    ("eval", "policy", "greedy"): "eval.policy: must be one of stochastic",
    (
        "algo",
        "baseline_prompts",
        PUBLIC + 1,
    ): f"algo.baseline_prompts: must be at most the {PUBLIC}",
    ("algo", "gamma", 0.9): "algo.gamma: must be 1",
    ("env", "obs_scaling", "public"): "env.obs_scaling",
    ("env", "reward_scale", 2.0): "env.reward_scale: must be left out",
}


def changed(config, section, key, value):
    """The configuration with one other value."""
    if section:
        key, value = section, replace(getattr(config, section), **{key: value})
    return replace(config, **{key: value})


@pytest.mark.parametrize("given", REFUSED, ids=str)
def test_what_means_nothing_is_refused_by_name(texts, given):
    section, key, value = given
    config = config_of(texts, "dppg")
    with pytest.raises(ConfigError) as caught:
        make_plan([changed(config, section, key, value)])
    assert str(caught.value).startswith(REFUSED[given])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("privacy=poisson privacy.population=500", "privacy.sampling: algo=dppg_text takes fixed"),
        ("privacy=local", "privacy: local adds noise to numbers, and a text has none"),
        ("algo.critic=none", "algo.critic: no such key"),
        (
            "algo=reinforce",
            "env: sentiment_small is prompts and answers, from which algo=reinforce",
        ),
        (
            "algo=dppg_text env=cartpole",
            "env: cartpole has no prompts, which algo=dppg_text answers",
        ),
        (
            "env.text.prompts=my.txt",
            "privacy.noise: reviews of a file may be of real users, and the",
        ),
    ],
)
def test_other_choices_are_refused_by_name(words, complaint):
    with pytest.raises(ConfigError) as caught:
        compose(words.split() if "env=" in words else ["env=sentiment_small", *words.split()])
    assert str(caught.value).startswith(complaint)


def test_an_environment_of_prompts_chooses_an_algorithm_that_answers_them():
    assert compose(["env=sentiment_small"]).algo.name == "dppg_text"
    assert compose(["env=sentiment_small", "algo=ppo_text"]).algo.name == "ppo_text"


@pytest.mark.slow
def test_no_path_around_the_gate(texts):
    report = find_leaks(shrink(config_of(texts, "dppg", *BOTH))[0], late=False)
    assert report.verdict() == "formal: no path around the gate", report.lines()
    assert report.compared > 100


class Whitening(DppgText):
    """Wrong, as TRL does it: advantages are normalised over the batch."""

    def answer_batch(self, vector, users, r):
        """With the mean over all users subtracted."""
        batch, ratios = super().answer_batch(vector, users, r)
        advantages = batch.advantages - batch.advantages.mean()
        return batch._replace(advantages=advantages), ratios


class Adaptive(DppgText):
    """Wrong, as TRL does it: the penalty follows the users' divergence."""

    def user_update(self, state, users, streams):
        """And leaves a coefficient for the next round."""
        self.config = replace(self.config, kl_coef=0.1 * float(users.scores.abs().mean()))
        return super().user_update(state, users, streams)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [Whitening, Adaptive])
def test_what_trl_does_is_found(texts, wrong, monkeypatch):
    monkeypatch.setattr("privrl_bench.packs.text.dppg_text.ALGORITHM", wrong)
    report = find_leaks(shrink(config_of(texts, "dppg"))[0], later=1, late=False)
    assert not report.ok
    assert report.undeclared


@pytest.mark.slow
def test_canaries_measure_the_claim(texts):
    config = config_of(texts, "dppg", "privacy.users_per_round=4", "algo.baseline=constant")
    # The noise follows the settings, and those the path of the texts: a difference of means has a
    # standard deviation of 0.17, so that 1.0 is six of them.
    found = attack(config, 140, 4, 0.95, print)
    assert not found.exceeded()
    assert not found.problems
    inside, outside = found.inside.mean(), found.outside.mean()
    assert inside - outside == pytest.approx(2.0, abs=1.0)  # 1 / z
