"""All steps of a private recommender: references, plan, training, guarantee, export and audits.

    python walkthrough.py --scale smoke     # about a minute: the steps, with too few users to learn
    python walkthrough.py --scale full      # minutes: 100,000 users at epsilon 1

Run it in the folder that shall have `outputs`. A rerun loads finished runs.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import gymnasium as gym
import numpy as np

import privrl_bench as pb
from privrl_bench.cli.main import main as privrl
from privrl_recommender import PLUGIN
from privrl_recommender.references import references

SETTING = "algo=dppg env=recommender privacy.delta=1e-6 privacy.noise=secure log=none"
PRIVATE = f"{SETTING} privacy.epsilon=1 privacy.population=100_000"
# PPO keeps its environments between rounds, which is refused for declared users: sessions of newly drawn ones.
REFERENCE = "algo=ppo env=recommender env.kwargs.users=null log=none"
ATTACK = f"{PRIVATE} env.kwargs.users=null"  # simulated users, and the planned noise


@dataclass(frozen=True)
class Scale:
    """Sizes of one scale.

    Attributes:
        private: further words of the private run.
        reference: further words of the run of PPO.
        sessions: sessions of each evaluation.
        scores: scores of `privrl audit epsilon`.
    """

    private: str
    reference: str
    sessions: int
    scores: int


SCALES = {
    "smoke": Scale(
        private="rounds=3 privacy.users_per_round=100 eval.episodes=10 eval.every=0 log.plot=false",
        reference="total_steps=10_240 eval.episodes=10 eval.every=0 log.plot=false",
        sessions=200,
        scores=500,
    ),
    "full": Scale(
        private="eval.episodes=200", reference="eval.episodes=200", sessions=5_000, scores=5_000
    ),
}


def heading(text: str) -> None:
    """Print the title of a step."""
    print(f"\n=== {text}", flush=True)


def command(words: str) -> int:
    """Run a command of `privrl` in this process, and return its exit code.

    Args:
        words: the command line after `privrl`, without quoted spaces.
    """
    print(f"$ privrl {words}", flush=True)
    return privrl(words.split())


def exported_agrees(folder: str, observations: np.ndarray) -> bool:
    """Export the policy to ONNX, and compare its actions with those of `policy.pt`.

    Args:
        folder: of the run.
        observations: [B, D].
    """
    import onnxruntime

    path = pb.export(folder, to="onnx")
    session = onnxruntime.InferenceSession(str(path))
    (actions,) = session.run(None, {session.get_inputs()[0].name: observations})
    same = np.array_equal(actions, pb.load_policy(folder).act(observations, greedy=True))
    print(f"{path.name}: {len(observations)} greedy actions {'agree' if same else 'DIFFER'}")
    return same


def seen(sessions: int) -> np.ndarray:
    """Observations of random sessions of newly drawn users, [B, D] float32."""
    env = gym.make("privrl_recommender.env:Recommender-v0", users=None)
    env.action_space.seed(0)
    found = []
    for session in range(sessions):
        found.append(env.reset(seed=session)[0])
        over = False
        while not over:
            obs, _, over, _, _ = env.step(env.action_space.sample())
            found.append(obs)
    return np.stack(found)


def train(scale: Scale, seed: int) -> pb.Run:
    """Train with privacy and without, and print the mean clicks of all policies.

    Args:
        scale: the sizes.
        seed: of both runs.

    Returns:
        The private run.
    """
    heading("references, which use no data of a declared user")
    clicks = references(scale.sessions)
    ppo = pb.run(f"{REFERENCE} {scale.reference} seed={seed}", quiet=True)
    clicks["PPO, not private"] = pb.evaluate(ppo.folder, episodes=scale.sessions).mean
    for name, value in clicks.items():
        print(f"{name:20}{value:6.2f} clicks in a session of 20")

    heading("plan")
    print("\n".join(pb.plan(f"{PRIVATE} {scale.private} seed={seed}").lines()))

    heading("training")
    run = pb.run(f"{PRIVATE} {scale.private} seed={seed}")
    found = pb.evaluate(run.folder, episodes=scale.sessions)
    low, high = found.interval
    print(f"{'DPPG, epsilon 1':20}{found.mean:6.2f} clicks ({low:.2f} to {high:.2f})")
    return run


def main() -> int:
    """Perform the steps. Returns 0 if the guarantee is formal and the checks found nothing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", choices=sorted(SCALES), default="smoke")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    scale = SCALES[chosen.scale]
    pb.register(PLUGIN)  # not needed where the package is installed
    run = train(scale, chosen.seed)

    heading("the guarantee")
    failed = command(f"explain {run.folder}")
    failed += run.guarantee["status"] != "formal"

    heading("export")
    failed += not exported_agrees(str(run.folder), seen(20))

    heading("audits")
    failed += command(f"audit leaks {PRIVATE}")
    print(
        "\nAn attack would need the declared users, so the next command is refused (exit code 2):"
    )
    failed += command(f"audit epsilon {PRIVATE}") != 2
    print("\nThe same configuration with simulated users is attacked instead:")
    failed += command(f"audit epsilon {ATTACK} --scores {scale.scores}")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
