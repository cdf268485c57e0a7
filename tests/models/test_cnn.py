"""Convolutional networks against torch's modules and autograd."""

import pytest
import torch

from privrl_bench.algorithms.policy_gradient.user_training import (
    PolicyObjective,
    UserOptimizerConfig,
    UserTrainer,
    compiled,
)
from privrl_bench.functional.optim import adam_start
from privrl_bench.models.cnn import Cnn
from privrl_bench.models.policy import make_policy
from privrl_bench.types import EnvSpec, Image

SMALL = Image(5, 7, 3, False, 1 / 255)
FIRST = Image(5, 7, 2, True, 1 / 255)
LARGE = Image(40, 36, 1, True, 1 / 255)
ONE_PIXEL = Image(1, 1, 1, False, 1.0)


def pixels(image, *shape, seed=0):
    size = image.height * image.width * image.channels
    g = torch.Generator().manual_seed(seed)
    return torch.randint(256, (*shape, size), generator=g).double()


def reference(net, params, x):
    """One network [P] on [B, in] by torch.nn.functional."""
    image, at = net.image, 0

    def take(*shape):
        nonlocal at
        piece = params[at : at + torch.Size(shape).numel()].reshape(shape)
        at += piece.numel()
        return piece

    if image.channels_first:
        y = x.reshape(-1, image.channels, image.height, image.width)
    else:
        y = x.reshape(-1, image.height, image.width, image.channels).permute(0, 3, 1, 2)
    y = y * image.scale
    for one in net.convolutions:
        size = one.window["kernel_size"]
        weight = take(one.inputs, one.filters).T.reshape(one.filters, -1, size, size)
        y = torch.conv2d(
            y, weight, take(one.filters), one.window["stride"], one.window["padding"]
        ).relu()
    y = y.flatten(1)
    for index, (fan_in, fan_out) in enumerate(net.dense.shapes):
        y = y @ take(fan_in, fan_out) + take(fan_out)
        y = y if index == len(net.dense.shapes) - 1 else y.tanh()
    assert at == len(params)
    return y


@pytest.mark.parametrize("image", [SMALL, FIRST, LARGE, ONE_PIXEL])
def test_outputs_and_gradient_are_those_of_torch(image):
    net = Cnn(image, (6,), 3)
    g = torch.Generator().manual_seed(1)
    params = torch.stack([net.init(g, 1.0) for _ in range(2)]).double()
    params += 0.05 * torch.randn(params.shape, generator=g)
    params.requires_grad_(True)
    x = pixels(image, 2, 70)  # more than one piece
    expected = torch.stack([reference(net, p, one) for p, one in zip(params, x, strict=True)])
    with torch.inference_mode():
        got = net.forward(params, x)
        assert torch.allclose(net.by_rows(params)(x), got)
    assert torch.allclose(got, expected)
    weight = torch.randn(expected.shape, generator=g).double()
    (of_torch,) = torch.autograd.grad((expected * weight).sum(), params)
    (ours,) = torch.autograd.grad((net.forward(params, x) * weight).sum(), params)
    assert torch.allclose(ours, of_torch, rtol=1e-8, atol=1e-8)


def test_a_user_does_not_depend_on_the_others():
    spec = EnvSpec("image", 5 * 7 * 3, True, 3, 10, image=SMALL)
    objective = PolicyObjective(make_policy(spec, [6], "cnn"), 0.2, 0.1, True)
    assert not compiled(objective)
    users, steps, policy = 4, 8, objective.policy
    g = torch.Generator().manual_seed(0)
    start = torch.stack([policy.init(g)] * users)
    obs = pixels(SMALL, users, steps).float()
    actions = torch.randint(3, (users, steps), generator=g)
    data = {
        "obs": obs,
        "action": actions,
        "old": policy.log_prob(start, obs, actions)[0],
        "advantage": torch.randn(users, steps, generator=g),
    }
    order = torch.rand(2, users, steps, generator=g).argsort(-1).reshape(2, users, 2, 4)
    optimizer = UserOptimizerConfig(order, 1e-2, 0.5, adam_start(start))
    train = UserTrainer(objective)
    before = train(start, data, optimizer)
    assert float(before.norm(dim=-1).min()) > 0.1
    data["obs"][2] = 255.0 - data["obs"][2]
    data["advantage"][2, 3] = float("inf")
    after = train(start, data, optimizer)
    others = [0, 1, 3]
    assert torch.equal(before[others], after[others])
    assert not torch.equal(before[2], after[2])
