"""PPO on texts: advantages and a whole update by hand, what it leaks, that it learns."""

import pytest
import torch
from text_runs import ABSENT, NEW, config_of, learned, session

from privrl_bench.audit.leaks import find_leaks
from privrl_bench.audit.shrink import shrink
from privrl_bench.packs.text.ppo_text import whitened
from privrl_bench.users.collectors.collector import BatchShape


def test_advantages_are_whitened_over_the_batch():
    rewards = torch.tensor([[1.0, 2.0, 3.0], [3.0, 6.0, 9.0], [5.0, 9.0, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, True, False], [True, False, False]])
    centred = torch.tensor([[-2.0, -2.0, 0.0], [0.0, 2.0, 0.0], [2.0, 0.0, 0.0]]).double()
    spread = (centred[mask] ** 2).mean().sqrt()
    torch.testing.assert_close(whitened(rewards, mask), centred / spread)


def test_a_round_is_torchs_adam_on_the_clipped_loss(texts):
    """Three passes over all users, one after the other, against autograd through each user alone."""
    one = session(texts, "ppo", "algo.epochs=3", "algo.lr=0.03", "algo.max_grad_norm=0.02")
    algo, state = one.parts.algo, one.state
    users = one.collect(state.tensors["actor"], 0)
    found = algo.user_update(state, users, one.parts.streams).take()[0]["actor"][0, 0]
    vector = state.tensors["actor"][0]
    batch, _ = algo.answer_batch(vector, users, 0)
    there = [u for u in range(5) if u != ABSENT]
    advantages = torch.zeros_like(batch.advantages)
    advantages[there] = whitened(batch.advantages[there], users.mask[0, there])
    point = torch.nn.Parameter(vector.clone())
    optimizer = torch.optim.Adam([point], lr=0.03, eps=1e-5)
    for _ in range(3):
        weights, losses = algo.adapter.weights(point), []
        for u in there:
            row, size = users.tokens[0, u][users.seen[0, u]], int(users.mask[0, u].sum())
            logits = torch.func.functional_call(
                one.parts.users.task.model, weights, (row[None],)
            ).logits[0]
            said = torch.log_softmax(logits, -1)[:-1].gather(-1, row[1:, None])[-size:, 0]
            ratio, gain = (said - batch.old[u, :size]).exp(), advantages[u, :size]
            losses.append(-torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean())
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        torch.nn.utils.clip_grad_norm_([point], 0.02)
        optimizer.step()
    torch.testing.assert_close(found, (point - vector).detach(), atol=1e-5, rtol=1e-3)
    assert found.abs().max() > 0.01


def test_a_round_with_a_broken_score_is_skipped(texts):
    one = session(texts, "ppo")
    users = one.collect(one.state.tensors["actor"], 0)
    users.scores[0, 1], users.valid[0, 1] = torch.nan, False
    _, valid, bypass = one.parts.algo.user_update(one.state, users, one.parts.streams).take()
    assert not valid.any()
    (moments,) = bypass.values()
    assert not any(x.any() for x in moments.values())


@pytest.mark.slow
def test_everything_is_outside_the_gate(texts):
    report = find_leaks(shrink(config_of(texts, "ppo"))[0], late=False)
    assert set(report.found) == {"pooled training"}
    assert report.open
    assert report.ok


def test_minibatches_divide_users(texts):
    one = session(texts, "ppo", "algo.minibatches=2", rounds=1)
    one.step()
    assert one.state.tensors["actor"].abs().sum() > 0
    assert one.collector.shape == BatchShape(1, 5, NEW)


def test_it_learns_what_is_scored(texts):
    scores = learned(texts, "ppo", "algo.adapter=all", "algo.lr=0.02")
    assert scores[-1] > scores[0] + 1.0, scores
