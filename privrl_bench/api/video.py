"""Episodes of a trained policy as pictures: in a window, or in a GIF or MP4 file."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.api.policies import env_of
from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.construction import make_env
from privrl_bench.envs.slots import LoopSlots
from privrl_bench.envs.user_declaration import declared_users
from privrl_bench.errors import ConfigError
from privrl_bench.rollout import begin, rollout
from privrl_bench.training.trained_policy import TrainedPolicy, load_policy
from privrl_bench.training.writable import check_file

SUFFIXES = (".gif", ".mp4")
_RATES = {".gif": 25, ".mp4": 60}  # most pictures a second; browsers show faster GIFs slowly
_GIF_WIDTH = 360


@dataclass(frozen=True)
class Played:
    """What was played.

    Attributes:
        env: name of the environment.
        returns: of each episode; of one that was cut, what it had.
        pictures: how many were drawn; a GIF holds equal ones in a row as one frame that is shown longer.
        file: where they are; None: they were shown in a window.
    """

    env: str
    returns: list[float]
    pictures: int
    file: Path | None


def play(
    path: str | Path,
    *,
    video: str | Path | None = None,
    episodes: int = 1,
    steps: int | None = None,
    env: str | Iterable[str] = (),
    greedy: bool = False,
    seed: int = 0,
    config_dir: str | None = None,
) -> Played:
    """Play episodes of the policy of a finished run.

    Args:
        path: the run folder, or its `policy.pt`.
        video: a .gif or .mp4 file; None: a window, which needs a display.
        episodes: how many, one after the other.
        steps: most steps of an episode; None: its time limit.
        env: words that name another environment; none: that of training.
        greedy: the most likely action instead of a random one.
        seed: of the episodes and of stochastic actions.
        config_dir: a folder with YAML files, for `env`.

    Raises:
        ConfigError: there is no policy, no display, no way to draw the environment, or bad arguments.
    """
    target = None if video is None else _checked(Path(video))
    policy = load_policy(path, seed=seed)
    config = env_of(policy.file, env.split() if isinstance(env, str) else env, config_dir)
    made = _drawn(config, "human" if target is None else "rgb_array")
    returns: list[float] = []
    try:
        rate = float(made.metadata.get("render_fps") or 30)
        every = 1 if target is None else max(1, round(rate / _RATES[target.suffix]))
        limit = steps or policy.file.spec.max_episode_steps
        seeds = range(seed, seed + episodes)
        pictures = _episodes(made, policy, config, seeds, limit, greedy, every, returns)
        if target is None:
            count = sum(1 for _ in pictures)
        else:
            count = write_video(target, pictures, rate / every)
    finally:
        made.close()
    return Played(config.label, returns, count, target)


def _checked(video: Path) -> Path:
    """A file that can be written. Raises ConfigError."""
    if video.suffix not in SUFFIXES:
        raise ConfigError("video", f"must end with {' or '.join(SUFFIXES)}, got {video.name}")
    check_file("video", video)
    if video.suffix == ".mp4" and importlib.util.find_spec("imageio_ffmpeg") is None:
        raise ConfigError("video", ".mp4 needs pip install 'privrl-bench[play]'; .gif does not")
    return video


def use_software_drawing() -> None:
    """Let MuJoCo draw without a display, unless the user's environment variables say how."""
    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return
    if "MUJOCO_GL" not in os.environ:
        os.environ["MUJOCO_GL"] = "egl"
        os.environ.setdefault("PYOPENGL_PLATFORM", "egl")
        if not Path("/dev/dri").exists() and not Path("/dev/nvidiactl").exists():
            os.environ.setdefault("EGL_PLATFORM", "surfaceless")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def _drawn(config: EnvConfig, mode: str) -> Any:
    """The environment, with pictures. Raises ConfigError."""
    use_software_drawing()
    plain = make_env(config)
    modes = [str(mode) for mode in plain.metadata.get("render_modes") or []]
    more = {"render_mode": mode}
    model = getattr(plain.unwrapped, "model", None)
    if config.kind == "gym" and type(model).__module__.startswith("mujoco"):
        import mujoco

        if mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "track") >= 0:
            more["camera_name"] = "track"  # else the robot leaves the picture
    plain.close()
    if not modes:
        none = 'has no render modes (metadata["render_modes"]), so privrl play cannot show it'
        raise ConfigError("env", f"{config.label} {none}")
    if mode == "human" and sys.platform == "linux":
        if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            raise ConfigError("video", "there is no display; write a file with --video play.gif")
    if mode not in modes:
        told = f"it has {', '.join(modes)}"
        raise ConfigError("env", f"{config.label} cannot be drawn as {mode}: {told}")
    return make_env(replace(config, kwargs={**more, **config.kwargs, "render_mode": mode}))


def _episodes(
    env: Any,
    policy: TrainedPolicy,
    config: EnvConfig,
    seeds: range,
    steps: int,
    greedy: bool,
    every: int,
    returns: list[float],
) -> Iterator[np.ndarray | None]:
    """Play, and yield a picture after `every` steps (None in a window); fills `returns`."""
    slots = LoopSlots(lambda: env, 1)
    declared = declared_users(env, config.label) is not None
    for seed in seeds:
        obs = begin(slots, [seed], declared)
        policy.reset()
        returns.append(0.0)
        yield _picture(env, config)

        def act(*_: Any, obs: np.ndarray = obs) -> np.ndarray:
            return policy.choose(obs, greedy=greedy)

        for step in rollout(slots, obs, np.ones(1, bool), act, steps):
            if step.broken.any():
                raise ConfigError(
                    "env", f"{config.label}: an action, observation or reward is not finite"
                )
            returns[-1] += float(step.rewards[0])
            if step.done[0] or (step.t + 1) % every == 0:
                yield _picture(env, config)


def _picture(env: Any, config: EnvConfig) -> np.ndarray | None:
    try:
        found = env.render()
    except Exception as error:  # OpenGL, pygame or the user's code
        what = " ".join(str(error).split()) or type(error).__name__
        hint = "MuJoCo needs EGL or OSMesa where there is no display; classic control pygame"
        raise ConfigError("env", f"{config.label} cannot be drawn here ({what}); {hint}") from error
    return None if found is None else np.asarray(found, np.uint8)


def write_video(target: Path, pictures: Iterable[np.ndarray | None], rate: float) -> int:
    """Write pictures [H, W, 3] as a GIF, at most 360 pixels wide, or MP4.

    Args:
        target: a file with one of `SUFFIXES`.
        pictures: in order.
        rate: pictures a second.

    Returns:
        The number of pictures.
    """
    import imageio.v2 as imageio
    from PIL import Image

    gif = target.suffix == ".gif"
    options: dict[str, Any] = (
        {"duration": 1000.0 / rate, "loop": 0} if gif else {"fps": rate, "macro_block_size": 2}
    )
    count = 0
    open_writer: Any = imageio.get_writer
    with open_writer(target, mode="I", **options) as writer:
        for picture in pictures:
            if picture is None:
                continue
            high, wide = picture.shape[:2]
            if gif and wide > _GIF_WIDTH:
                size = (_GIF_WIDTH, round(high * _GIF_WIDTH / wide))
                picture = np.asarray(
                    Image.fromarray(picture).resize(size, Image.Resampling.NEAREST)
                )
            writer.append_data(picture)
            count += 1
    return count
