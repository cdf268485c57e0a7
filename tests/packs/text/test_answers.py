"""Per-token rewards and losses of answers: known results and an independent implementation."""

import torch
from helpers import policy_loss

from privrl_bench.functional.losses import surrogate_loss
from privrl_bench.packs.text.fine_tuning import token_rewards


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


MASK = torch.tensor(
    [[True] * 5, [True, True, True, False, False], [True] + [False] * 4, [False] * 5]
)


def test_the_score_comes_on_the_last_token_and_the_penalty_on_all():
    logprobs, reference, scores = drawn(4, 5), drawn(4, 5, seed=1), drawn(4, seed=2)
    found = token_rewards(scores, logprobs, reference, MASK, 0.3)
    expected = torch.zeros(4, 5, dtype=torch.float64)
    for u, size in enumerate([5, 3, 1, 0]):
        for t in range(size):
            expected[u, t] = -0.3 * (logprobs[u, t] - reference[u, t])
            if t == size - 1:
                expected[u, t] += scores[u]
    torch.testing.assert_close(found, expected)


def test_a_policy_that_is_its_reference_pays_no_penalty():
    same = drawn(4, 5)
    found = token_rewards(torch.ones(4).double(), same, same, MASK, 7.0)
    assert found.sum(-1).tolist() == [1.0, 1.0, 1.0, 0.0]


def test_a_whole_answer_has_ppos_loss():
    now, old, advantages = drawn(3, 5), drawn(3, 5, seed=1), drawn(3, 5, seed=2)
    everything = torch.ones(3, 5, dtype=torch.bool)
    for clip in (None, 0.2):
        found = surrogate_loss(now, old, advantages, everything, clip)
        torch.testing.assert_close(found, policy_loss(now, old, advantages, clip))


def test_what_is_outside_an_answer_has_no_influence():
    now, old, advantages = drawn(4, 5), drawn(4, 5, seed=1), drawn(4, 5, seed=2)
    now.requires_grad_()
    wild = torch.where(MASK, now, 1e4)
    found = surrogate_loss(wild, old, advantages, MASK, None)
    assert found[3] == 0.0
    for u, size in enumerate([5, 3, 1]):
        alone = policy_loss(now[u, :size], old[u, :size], advantages[u, :size], None)
        torch.testing.assert_close(found[u], alone)
    (grad,) = torch.autograd.grad(found.sum(), now)
    assert torch.isfinite(grad).all()
    assert (grad[~MASK] == 0).all()
