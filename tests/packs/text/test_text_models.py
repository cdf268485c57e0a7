"""Models from folders in the hub's layout, scores, the package's own models, and errors."""

from __future__ import annotations

import itertools
import json
import shutil
import socket
from dataclasses import asdict, replace

import pytest
import torch
from text_folders import (
    script,
    text_env,
    tiny_judge,
    tiny_policy,
    tokenizer_of,
    write_judge,
    write_policy,
    write_reward_model,
)

from privrl_bench.composition.compose import compose
from privrl_bench.composition.identity import group_key, identity, noise_key
from privrl_bench.config.overrides import later_wins
from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.registry import env_spec, make_slots
from privrl_bench.errors import ConfigError
from privrl_bench.packs.text import command, models
from privrl_bench.packs.text.generation import answer_perplexity
from privrl_bench.packs.text.models import Scorer, load_classifier, load_policy, score_id
from privrl_bench.packs.text.task import TextTask, open_task
from privrl_bench.training.plan import make_plan

ANSWERS = 12


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """(policy, old policy, judge): folders."""
    root = tmp_path_factory.mktemp("hub")
    return write_policy(root / "a"), write_policy(root / "b", True), write_judge(root / "c")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_):
        pytest.fail("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def env_of(folders, **changes) -> EnvConfig:
    more = {"policy": str(folders[0]), "classifier": str(folders[2]), "new_tokens": ANSWERS}
    return text_env(**{**more, "reviews": 80, **changes})


def problem(call, *words) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- folders in the hub's layout


@pytest.mark.parametrize(
    "old", [False, True], ids=["safetensors", "vocab.json, merges.txt and .bin"]
)
def test_a_policy_is_what_its_folder_holds(folders, old):
    model, tokenizer = load_policy(str(folders[1 if old else 0]))
    known = tiny_policy()
    for name, weight in known.state_dict().items():
        assert model.state_dict()[name].equal(weight), name
    assert not model.training
    assert not any(w.requires_grad for w in model.parameters())
    text = "I saw this film last night. The acting was awful."
    assert tokenizer(text)["input_ids"] == tokenizer_of()(text)["input_ids"]
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize("bert", [False, True])
def test_the_positive_logit_is_read_by_its_label(tmp_path, bert):
    texts = ["The acting was great.", "What a bore, and so long that I almost slept.", ""]
    found = {}
    for labels in ({0: "NEGATIVE", 1: "POSITIVE"}, {0: "positive", 1: "negative"}, None):
        names = labels or {0: "LABEL_0", 1: "LABEL_1"}
        folder = write_judge(tmp_path / str(len(found)), names, bert)
        model, tokenizer = load_classifier(str(folder))
        at = score_id(model.config)
        assert names[at].upper() in ("POSITIVE", "LABEL_1")
        found[at] = Scorer(model, tokenizer, 40)(texts)
        for text, score in zip(texts, found[at], strict=True):
            row = torch.tensor([tokenizer(text)["input_ids"]])
            torch.testing.assert_close(score, model(input_ids=row).logits[0, at], rtol=0, atol=1e-5)
    assert set(found) == {0, 1}
    assert not torch.allclose(found[0], found[1])


@pytest.mark.parametrize("labels", [{0: "sad", 1: "happy"}, {0: "LABEL_1", 1: "POSITIVE"}, {}])
def test_labels_that_do_not_say_which_are_refused(labels):
    class Config:
        id2label = labels

    assert problem(score_id, Config).startswith("env.text.classifier: must have one label (a re")


@pytest.mark.parametrize("kind", ["bert", "distilbert", "gpt2", "gpt2 without padding"])
def test_the_only_logit_of_a_reward_model_is_the_score(folders, tmp_path, kind):
    """A model that reads the last token is not given the padding."""
    if kind.startswith("gpt2"):
        folder = write_reward_model(tmp_path, padding=None if "without" in kind else 2)
    else:
        folder = write_judge(tmp_path, {0: "LABEL_0"}, kind == "bert")
    model, tokenizer = load_classifier(str(folder))
    texts = ["The acting was great.", "What a bore, and so long that I almost slept.", ""]
    scores = Scorer(model, tokenizer, 40)(texts)
    for text, score in zip(texts, scores, strict=True):
        row = torch.tensor([tokenizer(text)["input_ids"]])
        torch.testing.assert_close(score, model(input_ids=row).logits[0, 0], rtol=0, atol=1e-5)
    assert len(set(scores.tolist())) == 3
    task = open_task(env_of(folders, classifier=str(folder)))
    assert task.score(texts).equal(Scorer(model, tokenizer, 2 * (task.width + ANSWERS) + 2)(texts))


def test_a_score_does_not_depend_on_the_other_texts():
    score = Scorer(tiny_judge({0: "NEGATIVE", 1: "POSITIVE"}), tokenizer_of(), 30)
    texts = ["good film. " * 3, "bad", "long and " * 40]
    assert score(texts)[0].equal(score([texts[0], "x " * 25, ""])[0])
    assert score([]).shape == (0,)


def test_perplexity_is_that_of_transformers():
    model, rows = tiny_policy(), [[5, 6, 7], [1, 2, 3, 4, 9, 9, 9], [8, 8]]
    losses = [model(input_ids=torch.tensor([r]), labels=torch.tensor([r])).loss for r in rows]
    mean = sum(float(x) * (len(r) - 1) for x, r in zip(losses, rows, strict=True)) / 9
    assert script().perplexity(model, rows) == pytest.approx(
        float(torch.tensor(mean).exp()), rel=1e-5
    )


def test_a_hub_name_is_its_copy_on_this_machine(folders, tmp_path, monkeypatch):
    """Laid out as `hf download` does."""
    kept = tmp_path / "models--someone--some-gpt2"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folders[0], kept / "snapshots" / ("0" * 40))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    model, _ = load_policy("someone/some-gpt2")
    assert model.lm_head.weight.equal(tiny_policy().lm_head.weight)
    assert problem(load_policy, "someone/other").endswith(
        "download it with: hf download someone/other"
    )


# --- a whole task


def test_a_task_from_folders(folders):
    from privrl_bench.packs.text.generation import generate

    config = env_of(folders)
    task = open_task(config)
    assert isinstance(task, TextTask)
    assert (task.new_tokens, task.width, task.eos) == (ANSWERS, 7, 0)
    assert len(task.prompts_train) > 40 > len(task.prompts_eval) > 0
    prompts = task.prompts_train[:5]
    numbers = torch.rand(5, ANSWERS, generator=torch.Generator().manual_seed(0))
    answers = generate(task.model, None, prompts, ANSWERS, numbers, task.width)
    texts = task.texts(answers)
    for text, prompt in zip(texts, prompts, strict=True):
        assert text.startswith(task.decode([prompt])[0])
        assert "<|endoftext|>" not in text
    assert task.rewards(answers).equal(task.score(texts))
    behavior_probs = answers.logprobs.sum() / answers.answer_mask.sum()
    assert answer_perplexity(task.model, answers) == pytest.approx(
        float((-behavior_probs).exp()), rel=1e-5
    )
    assert open_task(config).prompts_train == task.prompts_train


def test_what_an_algorithm_may_know_is_read_without_loading_a_model(folders, monkeypatch):
    monkeypatch.setattr("privrl_bench.packs.text.models._model", None)
    spec = env_spec(env_of(folders))
    assert (spec.obs_dim, spec.actions, spec.max_episode_steps, spec.discrete) == (
        7 + ANSWERS,
        400,
        ANSWERS,
        True,
    )
    assert env_spec(text_env()).actions == 440
    assert problem(make_slots, text_env(), 1).startswith(
        "env: sentiment_small has no simulator (env.kind=text)"
    )


# --- what is missing or wrong


def test_what_is_not_there_is_one_line_with_the_command_that_gets_it(folders, tmp_path):
    real = compose(["env=sentiment"]).env
    assert problem(open_task, real) == (
        "env.text.policy: 'lvwerra/gpt2-imdb' is not on this machine; download it with: "
        "hf download lvwerra/gpt2-imdb"
    )
    assert problem(env_spec, real).startswith("env.text.policy: 'lvwerra/gpt2-imdb' is not on")
    here = env_of(folders, classifier="lvwerra/distilbert-imdb")
    assert "env.text.classifier: 'lvwerra/distilbert-imdb' is not" in problem(open_task, here)
    assert "hf download stanfordnlp/imdb" in problem(open_task, env_of(folders, prompts=None))
    (tmp_path / "empty").mkdir()
    empty = problem(open_task, env_of(folders, policy=str(tmp_path / "empty")))
    assert "has no config.json" in empty
    (tmp_path / "empty" / "config.json").write_text("{")
    assert "cannot load" in problem(open_task, env_of(folders, policy=str(tmp_path / "empty")))


def test_models_of_another_kind_are_refused(folders, tmp_path):
    assert "is another kind of model" in problem(load_classifier, str(folders[0]))
    assert problem(load_policy, str(folders[2])).startswith("env.text.policy: ")
    more = env_of(folders, new_tokens=42)
    assert (
        problem(open_task, more) == "env.text.new_tokens: must be at most 41 for this model, got 42"
    )
    tiny_policy(eos_token_id=None).save_pretrained(tmp_path / "endless")
    tokenizer_of().save_pretrained(tmp_path / "endless")
    assert "names no eos_token_id" in problem(load_policy, str(tmp_path / "endless"))
    tiny_policy(vocab_size=300).save_pretrained(tmp_path / "fewer")
    tokenizer_of().save_pretrained(tmp_path / "fewer")
    assert "the tokenizer has 400 tokens, the model 300" in problem(
        load_policy, str(tmp_path / "fewer")
    )


def test_without_the_extra_there_is_a_line_with_the_command(monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(models.importlib, "import_module", missing)
    assert "pip install 'privrl-bench[rlhf]'" in problem(load_policy, "any/name")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("env.user_steps=5", "env.user_steps: must be null or env.text.new_tokens=24, got 5"),
        ("env.user=segment", "env.user: of a text is fresh or episode, got segment"),
        ("env.reward_scaling=running", "env.reward_scaling: must be none for a text"),
        ("env.max_episode_steps=3", "env.max_episode_steps: must be left out for texts, got 3"),
    ],
)
def test_settings_that_mean_nothing_for_a_text(word, expected):
    assert problem(compose, ["algo=dppg_text", "env=sentiment_small", word]).startswith(expected)


# --- the package's own models


def test_the_package_has_models_that_fit_the_grammar_of_today():
    task, vocabulary = open_task(text_env(reviews=60)), script().vocabulary()
    assert task.tokenizer.get_vocab() == vocabulary
    assert load_classifier("made")[1].get_vocab() == vocabulary
    assert models.read_card()["recipe"] == asdict(script().Recipe())
    good, bad = task.score(["The acting was great.", "The acting was terrible."])
    assert good > 1 > -1 > bad


@pytest.mark.parametrize(
    "name", ["policy/model.safetensors", "classifier/config.json", "card.json", "missing"]
)
def test_damaged_models_are_refused(tmp_path, monkeypatch, name):
    folder = shutil.copytree(models.SMALL, tmp_path / "small")
    monkeypatch.setattr(models, "SMALL", folder)
    assert models.small() == folder
    if name == "missing":
        (folder / "classifier" / "model.safetensors").unlink()
    else:
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(before[:-3] + b"x" + before[-2:])
    end = "(digests in card.json); install the package again"
    assert problem(load_policy, "made").endswith(end)
    assert problem(load_classifier, "made").endswith(end)


def test_models_are_made_whole_and_the_same_bit_for_bit(tmp_path):
    module = script()
    sizes = {"positions": 48, "width": 16, "layers": 2, "heads": 2}
    recipe = module.Recipe("tiny", 3, 48, 12, 1, 1, **sizes)
    state, cards = torch.get_rng_state(), []
    for name in "ab":
        cards.append(module.make(recipe, tmp_path / name))
        (tmp_path / name / "card.json").write_text(json.dumps(cards[-1]))
    assert torch.get_rng_state().equal(state)
    for card, name in itertools.product(cards, "ab"):
        assert card["files"] == models.digests(tmp_path / name)
    for part in ("policy", "classifier"):
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
            p.name for p in (tmp_path / "a" / part).iterdir()
        }
    assert cards[0]["vocabulary"] == 440
    assert 0 <= cards[0]["test"]["accuracy"] <= 1 < cards[0]["test"]["perplexity"]
    where = {name: str(tmp_path / "a" / name) for name in ("policy", "classifier")}
    task = open_task(text_env(new_tokens=ANSWERS, reviews=60, **where))
    assert task.model.config.vocab_size == env_spec(text_env()).actions
    assert task.score(["The acting was great."]).shape == (1,)


def test_the_command_line(capsys):
    assert command.main(["size=small"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert command.main([]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "test accuracy 98.9%" in out[0]
    assert out[1] == str(models.SMALL)


# --- what a run is


def test_text_settings_are_part_of_what_a_run_is():
    run = compose(["env=sentiment_small"])
    other = replace(run, env=text_env(prompt_tokens=[3, 5]))
    assert noise_key(run) != noise_key(other)
    assert group_key(run) != group_key(other)
    assert identity(run) != identity(other)


def test_a_users_steps_are_the_tokens_of_their_answer(texts):
    few = ("env.text.min_characters=0", "env.text.holdout=3", "env.text.prompt_tokens=[1,4]")
    words = ["algo=ppo_text", "env=sentiment_small", *texts, *few, "env.text.new_tokens=10"]
    run = compose(later_wins([*words, "privacy.users_per_round=3", "rounds=1", "eval.episodes=1"]))
    assert run.env.user_steps == 10
    parts = make_plan([run])
    assert parts.steps == 10
