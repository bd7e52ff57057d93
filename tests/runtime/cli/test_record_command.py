"""``jaxrl record``: pictures are checked pixel by pixel, and videos are read back."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image, ImageColor

from jaxrl import make_env
from jaxrl.envs.backends import envpool
from jaxrl.envs.rendering.gymnax import BODY, FIGURES, FORCE, GOAL, LIMB, REAL_TIME
from jaxrl.runtime.cli.commands.record import RecordOptions
from jaxrl.runtime.cli.film import film, player
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.evaluation.load_policy import load_policy
from jaxrl.runtime.evaluation.rendering import drawing
from jaxrl.runtime.evaluation.video import CAPTION, Shot, check_film, write_film
from jaxrl.runtime.run import run
from jaxrl.types import Env, HostEnv
from tests.helpers.agents import cartpole, small

pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of seeds 4 and 2 on CartPole."""
    made = tmp_path_factory.mktemp("runs") / "ppo"
    run(cartpole("ppo"), 64, seeds=[4, 2], out=made, eval_every=1, eval_episodes=4, quiet=True, tensorboard=False)
    return made


def frames(path: Path) -> tuple[list[np.ndarray], list[int]]:
    """Return the pictures of a GIF, u8[height, width, 3], and their durations in milliseconds."""
    pictures, times = [], []
    with Image.open(path) as film:
        for index in range(film.n_frames):
            film.seek(index)
            times.append(film.info["duration"])
            pictures.append(np.asarray(film.convert("RGB")))
    return pictures, times


def where(picture: Any, colour: str, *, tolerance: int = 40) -> tuple[float, float]:
    """Return (right, up) of the centre of all pixels of a colour, relative to the picture's centre, in shares of its width."""
    pixels = np.asarray(picture).astype(int)
    found = np.argwhere(np.abs(pixels - ImageColor.getrgb(colour)).sum(-1) < tolerance)
    assert len(found) > 5, f"there is nothing of colour {colour}"
    height, width = pixels.shape[:2]
    down, right = found.mean(axis=0)
    return (right - width / 2) / width, (height / 2 - down) / width


def figure(env_id: str, action: Any = None, **state: float) -> np.ndarray:
    """Render a state of a gymnax environment."""
    env = make_env(env_id)
    assert isinstance(env, Env) and env.render is not None
    picture = env.render(types.SimpleNamespace(**state), action, env.params)
    assert picture.dtype == np.uint8 and picture.shape[1:] == (480, 3)
    return picture


# ---------------------------------------------------------------------------------------------------------------------- figures


def test_the_pole_leans_the_way_it_falls() -> None:
    upright, right, left = (figure("CartPole-v1", x=0, theta=angle) for angle in (0.0, 0.3, -0.3))
    assert where(upright, LIMB)[0] == pytest.approx(0, abs=0.005)
    assert where(right, LIMB)[0] > 0.02 and where(left, LIMB)[0] < -0.02
    assert where(right, LIMB)[1] < where(upright, LIMB)[1], "a pole that leans is lower"
    # The environment agrees: without a push, a positive angle of the pole grows, and a push to the right raises the pole.
    env = make_env("CartPole-v1")
    state, _ = env.reset(jax.random.key(0), env.params)
    state = state.replace(x=np.float32(0), x_dot=np.float32(0), theta=np.float32(0.1), theta_dot=np.float32(0))
    pushed, _ = env.step(jax.random.key(0), state, np.int32(1), env.params)
    assert pushed.x_dot > 0 and pushed.theta_dot < 0


def test_the_cart_is_where_it_is_and_the_arrow_points_to_the_push() -> None:
    cart = [where(figure("CartPole-v1", 1, x=x, theta=0), BODY)[0] for x in (-2.4, 0.0, 1.2)]
    np.testing.assert_allclose(cart, [-2.4 / 6, 0, 1.2 / 6], atol=0.005)
    for action, sign in ((0, -1), (1, 1)):
        picture = figure("CartPole-v1", action, x=0, theta=0)[:, 80:-80]  # without the marks of the limits
        assert sign * where(picture, FORCE)[0] > 0.02


def test_a_longer_pole_is_drawn_longer() -> None:
    length = [np.ptp(limb_rows(figure(f"CartPole-v1?length={half}", x=0, theta=0))) for half in (0.25, 0.5)]
    assert length[1] == pytest.approx(2 * length[0], rel=0.15)


def limb_rows(picture: np.ndarray) -> np.ndarray:
    return np.argwhere(np.abs(picture.astype(int) - ImageColor.getrgb(LIMB)).sum(-1) < 40)[:, 0]


def test_a_track_without_end_is_drawn_in_part() -> None:
    picture = figure("CartPole-v1?x_threshold=1e30", 1, x=0, theta=0.1)
    assert where(picture, BODY)[0] == pytest.approx(0, abs=0.01)


def test_the_pendulum_is_upright_at_angle_zero_and_turns_counterclockwise() -> None:
    for angle, (right, up) in {0: (0, 1), math.pi: (0, -1), math.pi / 2: (-1, 0), -math.pi / 2: (1, 0)}.items():
        at = where(figure("Pendulum-v1", theta=angle), LIMB)
        radius = 0.5 / (2 * 1.3 * 1.6)
        np.testing.assert_allclose(at, (right * radius, up * radius), atol=0.02)
    torques = [where(figure("Pendulum-v1", np.array([u]), theta=math.pi), FORCE)[1] for u in (2.0, -2.0)]
    assert torques[0] > 0.03 and torques[1] < -0.03, "from the right upwards is counterclockwise"


def test_the_acrobot_hangs_down_at_zero_and_reaches_its_goal_line_where_the_episode_ends() -> None:
    hanging = figure("Acrobot-v1", joint_angle1=0, joint_angle2=0)
    assert where(hanging, BODY)[1] < where(hanging, LIMB)[1] < 0
    assert where(figure("Acrobot-v1", joint_angle1=math.pi / 2, joint_angle2=0), BODY)[0] > 0.2, (
        "counterclockwise is to the right"
    )
    folded = figure("Acrobot-v1", joint_angle1=math.pi / 2, joint_angle2=math.pi / 2)
    assert where(folded, BODY)[1] > 0.05, "the second angle is added to the first"
    goal = where(hanging, GOAL)[1]
    side = 2.2  # half the height of the picture, in metres
    assert goal == pytest.approx(1.0 / (2 * 1.3 * side), abs=0.005)


def test_the_car_follows_the_hill() -> None:
    valley, goal = (where(figure("MountainCar-v0", position=x), BODY) for x in (-math.pi / 6, 0.5))
    assert valley[0] == pytest.approx((-math.pi / 6 + 0.3) / 1.8, abs=0.02) and goal[0] == pytest.approx(0.8 / 1.8, abs=0.04)
    assert goal[1] - valley[1] > 0.3
    pushes = [where(figure("MountainCar-v0", action, position=-math.pi / 6), FORCE)[0] - valley[0] for action in (0, 2)]
    assert pushes[0] < -0.02 and pushes[1] > 0.02
    harder, softer = (
        where(figure("MountainCarContinuous-v0", np.array([push]), position=-math.pi / 6), FORCE)[0] for push in (1.0, 0.5)
    )
    assert harder > softer > valley[0]


@pytest.mark.parametrize("name", [*FIGURES, "FourRooms-misc", "MetaMaze-misc", "PointRobot-misc"])
def test_gymnax_draws_itself(name: str) -> None:
    """At the start of an episode and after an action."""
    env = make_env(name)
    assert isinstance(env, Env) and env.render is not None and env.render_fps == REAL_TIME.get(name, 10)
    state, _ = jax.eval_shape(env.reset, jax.random.key(0), env.params)
    still = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), state)
    pictures = [drawing(env).draw(still, None, action) for action in (None, np.asarray(env.action_space.sample()))]
    assert pictures[0].shape == pictures[1].shape and pictures[0].std() > 5


def test_what_gymnax_draws_with_matplotlib_becomes_pixels() -> None:
    env = make_env("PointRobot-misc")
    draw = drawing(env).draw
    left, right = (draw(types.SimpleNamespace(pos=(x, 0.0), goal=(0.0, 1.0)), None, None) for x in (-0.5, 0.5))
    assert left.dtype == np.uint8 and where(left, "#ff0000")[0] < -0.05 and where(right, "#ff0000")[0] > 0.05


@pytest.mark.parametrize(("name", "fps"), [("CartPole-v1", 50), ("Pong-v5", 15), ("MiniGrid-Empty-5x5-v0", 10)])
def test_envpool_draws_itself(name: str, fps: float) -> None:
    """Each environment as it is, and as it would be played without pictures."""
    env = make_env(f"envpool:{name}")
    assert isinstance(env, HostEnv) and env.open_render is not None
    action = np.stack([env.action_space.sample()] * 2)
    envs, plain = env.open_render(2, 0), env.open(2, 0)
    np.testing.assert_equal(envs.reset(), plain.reset())
    before = envs.render().copy()
    for _ in range(40 if "Pong" in name else 2):
        row, same_row = envs.step(action), plain.step(action)
    np.testing.assert_equal(row, same_row)
    drawn = drawing(env)
    picture = drawn.draw(envs, None, None)
    assert picture.dtype == np.uint8 and picture.ndim == 3 and min(picture.shape[:2]) >= 300 and drawn.fps == fps
    assert "Pong" not in name or (before[0] != envs.render()[0]).any()
    with pytest.raises(OSError, match=rf"envpool cannot render envpool:{name} here: render_mode must be set"):
        plain.render()  # type: ignore[attr-defined]
    envs.close()
    plain.close()


def test_without_egl_mujoco_is_not_asked_to_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end the process."""
    monkeypatch.setattr(envpool, "_load_egl", lambda: False)
    with pytest.raises(ValueError, match=r"its observations are Box\(17,\), and it has no render"):
        drawing(envpool.make("HalfCheetah-v4", {}))


def test_a_picture_of_another_type_is_refused() -> None:
    env = box_env(spaces.Discrete(2))._replace(render=lambda state, action, params: np.zeros((4, 4)))
    with pytest.raises(
        ValueError, match=r"tests:box cannot be drawn: render gave float64\[4, 4\]; a picture is an array uint8\["
    ):
        drawing(env).draw(None, None, None)


# ------------------------------------------------------------------------------------------------------------- boards and images


def box_env(space: spaces.Space) -> Env:
    return Env(None, None, space, spaces.Discrete(2), name="tests:box")  # type: ignore[arg-type]


def test_boards_have_a_colour_per_channel_and_the_last_one_is_on_top() -> None:
    draw = drawing(box_env(spaces.Box(0, 1, (3, 4, 2)))).draw
    board = np.zeros((3, 4, 2), np.float32)
    board[0, 0, 0] = board[0, 1, 1] = board[2, 3] = 1
    board[1, 1, 0] = 0.5
    picture = draw(None, board, None).astype(int)
    cell = picture.shape[1] // 4
    cells = picture[cell // 2 :: cell, cell // 2 :: cell]
    assert cells.shape == (3, 4, 3)
    first, second, night = cells[0, 0], cells[0, 1], cells[0, 2]
    assert np.abs(first - second).sum() > 150 and night.sum() < 100
    np.testing.assert_array_equal(cells[2, 3], second)
    assert night.sum() < cells[1, 1].sum() < first.sum(), "weaker is darker"


@pytest.mark.parametrize("name", ["Breakout-MinAtar", "Catch-bsuite", "DeepSea-bsuite?size=5", "Pong-misc"])
def test_gymnax_boards_are_drawn(name: str) -> None:
    env = make_env(name)
    _, obs = jax.jit(env.reset)(jax.random.key(0), env.params)
    picture = drawing(env).draw(None, np.asarray(obs), 0)
    lit = (np.asarray(obs).reshape(*obs.shape[:2], -1) > 0).any(-1)
    cell = picture.shape[0] // lit.shape[0]
    np.testing.assert_array_equal(picture[cell // 2 :: cell, cell // 2 :: cell].max(-1) > 60, lit)


def test_the_newest_image_of_a_stack_is_drawn() -> None:
    obs = np.zeros((4, 84, 84), np.uint8)
    obs[3, :42] = 200
    obs[0] = 77
    picture = drawing(box_env(spaces.Box(0, 255, obs.shape, np.uint8))).draw(None, obs, 0)
    assert picture.shape == (420, 420, 3) and (picture[:210] == 200).all() and (picture[210:] == 0).all()
    obs = np.zeros((12, 84, 84), np.uint8)
    obs[9] = 255
    assert (drawing(box_env(spaces.Box(0, 255, obs.shape, np.uint8))).draw(None, obs, 0) == [255, 0, 0]).all()


def test_images_with_channels_behind() -> None:
    obs = np.zeros((40, 60, 3), np.float32)
    obs[..., 1] = 0.5
    picture = drawing(box_env(spaces.Box(0, 1, (40, 60, 3)))).draw(None, obs, None)
    assert picture.shape == (280, 420, 3) and (picture == [0, 128, 0]).all()


@pytest.mark.parametrize(
    "env", ["Reacher-misc", "SimpleBandit-bsuite", "FrozenLake-misc", "envpool:FrozenLake-v1", box_env(spaces.Dict({}))], ids=str
)
def test_what_cannot_be_drawn_is_told(env: Any) -> None:
    env = make_env(env) if isinstance(env, str) else env
    with pytest.raises(
        ValueError, match=r"cannot be drawn: its observations are .* Supported are .*classic control, .*MinAtar.* images"
    ):
        drawing(env)


# ----------------------------------------------------------------------------------------------------------------------- videos


def shots(colours: list[tuple[int, int, int]], seconds: float) -> Iterator[Shot]:
    for colour in colours:
        yield Shot(Image.new("RGB", (8, 6), colour), seconds)


def test_a_gif_keeps_time_though_it_counts_in_hundredths(tmp_path: Path) -> None:
    path = tmp_path / "x.gif"
    colours = [(10 * i, 0, 255 - 10 * i) for i in range(12)]
    write_film(path, shots(colours, 1 / 30), 30)
    pictures, times = frames(path)
    assert [tuple(picture[0, 0]) for picture in pictures] == colours
    assert sum(times) == 400 and set(times) == {30, 40}
    with Image.open(path) as film:
        assert film.info["loop"] == 0


def test_a_film_that_breaks_off_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x.gif"
    path.write_bytes(b"before")

    def broken() -> Iterator[Shot]:
        yield from shots([(1, 2, 3)], 1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_film(path, broken(), 30)
    assert [file.name for file in tmp_path.iterdir()] == ["x.gif"] and path.read_bytes() == b"before"


def test_an_mp4_gets_every_picture_for_as_long_as_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder is replaced: the test checks its input."""
    given: dict[str, Any] = {"sent": []}

    def write_frames(path: str, size: tuple[int, int], **settings: Any) -> Any:
        given.update(size=size, **settings)
        try:
            while True:
                given["sent"].append((yield))
        finally:
            Path(path).write_bytes(b"film")

    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", types.SimpleNamespace(write_frames=write_frames))
    path = check_film(tmp_path / "new" / "x.mp4", 25)
    write_film(path, shots([(1, 2, 3), (4, 5, 6)], 3 / 25), 25)
    assert path.read_bytes() == b"film" and given["size"] == (8, 6) and given["fps"] == 25
    assert given["sent"] == [bytes((1, 2, 3)) * 48] * 3 + [bytes((4, 5, 6)) * 48] * 3


@pytest.mark.slow
def test_an_mp4_without_its_package(monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert main(["record", str(folder), "--out", "x.mp4"]) == 2
    assert 'pip install "jaxrl[video]"' in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------------- command


def test_record(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The video shows the first episode that eval plays, from its first observation to its end."""
    assert main(["eval", str(folder), "--seed", "2", "--episodes", "2", "--eval-seed", "7", "--json", "-"]) == 0
    played = json.loads(capsys.readouterr().out)["runs"][0]
    film = tmp_path / "x.gif"
    assert main(["record", str(folder), "--seed", "2", "--eval-seed", "7", "--episodes", "2", "--out", str(film)]) == 0
    out, err = capsys.readouterr()
    lengths = played["episodic_length"][0]
    told = re.findall(r"return (\S+) in (\d+) steps", out)
    assert err == "" and [int(steps) for _, steps in told] == lengths
    np.testing.assert_allclose([float(each) for each, _ in told], played["episodic_return"][0], rtol=0.01)
    pictures, times = frames(film)
    assert sum(times) == sum(20 * n + 1000 for n in lengths)  # 50 pictures per second, and the last one stays
    assert pictures[0].shape == (pictures[0].shape[0], 480, 3) and pictures[0].shape[0] % 2 == 0
    assert where(pictures[0][CAPTION:], BODY)[0] == pytest.approx(0, abs=0.02)


def test_the_return_of_a_game_is_player_0s() -> None:
    """Player 1 wins with the middle row, and gets the reward of its move."""
    moves, agent = jnp.array([0, 3, 1, 4, 8, 5]), small("ppo", "jaxrl:TicTacToe")

    def act(policy: Any, carry: Any, inputs: Any, env_id: Any, key: Any, *, explore: bool) -> Any:
        return carry, moves[inputs.obs["observation"].sum((1, 2, 3)).astype(int)], {}

    agent = agent._replace(algorithm=agent.algorithm._replace(act=act, initial_carry=lambda size: ()))
    options, tally = RecordOptions(run="x"), list[str]()
    play, drawn = player(agent, (), 0, options), drawing(agent.env)  # type: ignore[arg-type]
    shots = [*film(play, drawn, "game", 2, options, tally, lambda text: None)]
    assert len(shots) == 7 and tally == ["return -1.00 in 6 steps"]


def test_the_default_file_is_in_the_runs_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", str(folder), "--max-steps", "2", "--fps", "10", "--which", "last", "--seed", "4"]) == 0
    out = capsys.readouterr().out
    assert re.search(
        r": last policies: iteration \d+, evaluation return \S+; the best: iteration \d+, \S+\n|which is also the best", out
    )
    assert "PPO on gymnax:CartPole-v1, seed 4, last policy" in out and "in 2 steps (cut by --max-steps)" in out
    assert frames(folder / "last-seed-4.gif")[1] == [100, 100, 1000]


def test_exploring_draws_other_actions(folder: Path, tmp_path: Path) -> None:
    films = []
    for flags in ([], ["--explore"]):
        film = tmp_path / f"{len(flags)}.gif"
        assert main(["record", str(folder), "--max-steps", "12", "--out", str(film), *flags]) == 0
        films.append(film.read_bytes())
    assert films[0] != films[1]


def test_host_environments_are_recorded(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    film = tmp_path / "x.gif"
    args = ["--env", "envpool:CartPole-v1", "--episodes", "2", "--max-steps", "3", "--out", str(film)]
    assert main(["record", str(folder), *args]) == 0
    pictures, _ = frames(film)
    assert len(pictures) == 8 and "PPO on envpool:CartPole-v1" in capsys.readouterr().out
    assert (pictures[0][CAPTION:] != pictures[4][CAPTION:]).any(), "each episode begins elsewhere"


def grey_cartpole() -> Env:
    """CartPole drawn as a grey that becomes lighter with every step."""
    env = make_env("CartPole-v1")
    assert isinstance(env, Env)

    def render(state: Any, action: Any, params: Any) -> np.ndarray:
        assert (action is None) == (state.time == 0) and float(params.length) == 0.5
        return np.full((30, 400, 3), 40 * int(state.time), np.uint8)

    return env._replace(render=render, render_fps=5)


def test_a_users_own_render_gets_the_states_that_were_reached(folder: Path, tmp_path: Path) -> None:
    film = tmp_path / "x.gif"
    args = ["--env", f"{__name__}:grey_cartpole", "--max-steps", "3", "--out", str(film)]
    assert main(["record", str(folder), *args]) == 0
    pictures, times = frames(film)
    assert [picture[-1, 0, 0] for picture in pictures] == [0, 40, 80, 120] and times == [200, 200, 200, 1000]


def fast_cartpole() -> Env:
    return grey_cartpole()._replace(render_fps=125)


def test_a_gif_is_slower_than_real_time_if_that_is_too_fast_for_one(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run without best policies names the file after the last."""
    copy = tmp_path / "ppo"
    shutil.copytree(folder, copy)
    shutil.rmtree(copy / "best")
    args = ["--env", f"{__name__}:fast_cartpole", "--max-steps", "3", "--seed", "4"]
    with pytest.warns(UserWarning, match="has no best/"):
        assert main(["record", str(copy), *args]) == 0
    out = capsys.readouterr().out
    assert frames(copy / "last-seed-4.gif")[1] == [20, 20, 20, 1000]
    assert "at 50 pictures/s" in out and "seed 4, last policy" in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--out", "x.avi"], "out='x.avi' must end in .gif or .mp4"),
        (["--out", "/proc/x.gif"], "out='/proc/x.gif' cannot be written to"),
        (["--out", f"{__file__}/x.gif"], "cannot be written to"),
        (["--fps", "60"], "fps=60 must be a number from 0.1 to 50 for a GIF"),
        (["--fps", "nan"], "fps=nan must be"),
        (["--episodes", "0"], "episodes=0"),
        (["--max-steps", "0"], "max_steps=0"),
        (["--eval-seed", "-1"], "eval_seed=-1"),
        (["--eval-seed", "4294967296"], "eval_seed=4294967296 must be between 0 and"),
        (["--seed", "3"], "seed=3 was not trained in"),
        (["--env", "Acrobot-v1"], "env='Acrobot-v1' does not fit these policies: its observations are Box(6) float32"),
        (["--env", "CartPol-v1"], "Did you mean 'CartPole-v1'"),
    ],
)
def test_wrong_requests_are_one_line(
    args: list[str], words: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["record", str(folder), *args]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("jaxrl: ") and words in err
    assert not list(tmp_path.iterdir())


def test_a_seed_that_diverged(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def with_nan(*args: Any, **settings: Any) -> Any:
        loaded = load_policy(*args, **settings)
        loaded.policy = loaded.policy._replace(params=jax.tree.map(lambda x: x * np.nan, loaded.policy.params))
        return loaded

    monkeypatch.setattr("jaxrl.runtime.evaluation.load_policy.load_policy", with_nan)
    assert main(["record", str(folder), "--seed", "2"]) == 2
    assert "seed=2 of" in (err := capsys.readouterr().err) and "diverged" in err


def test_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", str(tmp_path)]) == 2
    assert "is not a run folder: it has no config.json" in capsys.readouterr().err


def test_a_run_on_an_environment_without_a_drawing(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("jaxrl.runtime.evaluation.rendering.drawing", lambda env: drawing(env._replace(render=None)))
    assert main(["record", str(folder)]) == 2
    assert "gymnax:CartPole-v1 cannot be drawn: its observations are Box(4,), and it has no render." in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["record", "--help"])
    assert exit_.value.code == 0
    out = capsys.readouterr().out
    flags = ("--out", "--episodes", "--max-steps", "--which", "--seed", "--explore", "--env", "--eval-seed", "--fps")
    assert all(flag in out for flag in flags) and "jaxrl record runs/cartpole" in out
