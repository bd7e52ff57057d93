"""Networks over images: the default choice, and equality with their papers, against NumPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.agent import state_shapes
from jaxrl.models import ImpalaCNN, MinAtarCNN, NatureCNN, OrthogonalKernel, actor_critic, board_convolution, q_network
from jaxrl.models.images import IMAGE_NETWORKS
from jaxrl.rollout.autoreset import first_input
from jaxrl.rollout.inputs import example_input
from tests.helpers.agents import small_ppo
from tests.helpers.networks import BOARD, check_orthogonal, jit, values_for

FRAMES = spaces.Box(0, 255, (4, 84, 84), np.uint8)
"""envpool's Atari: four frames, channels first."""
PICTURE = spaces.Box(0, 255, (64, 64, 3), np.uint8)
DISCRETE = spaces.Discrete(6)


def shapes(make: Any, space: spaces.Space, actions: spaces.Space = DISCRETE, **settings: Any) -> Any:
    model = make(space, actions, **settings)
    return jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)), example_input(space, actions))["params"]


def count(params: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


# ----------------------------------------------------------------------------------------------------- choice of network


@pytest.mark.parametrize(
    "space, network, features",
    [
        (FRAMES, "nature", 3136),
        (PICTURE, "nature", 1024),
        (spaces.Box(0, 255, (84, 84), np.uint8), "nature", 3136),
        (BOARD, "minatar", 1024),
        (spaces.Box(0, 1, (10, 10, 10), np.float32), "minatar", 1024),
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), "minatar", 400),
        (spaces.Box(0, 1, (4, 7, 5), bool), "minatar", 5 * 3 * 16),
    ],
)
def test_an_image_has_convolutions_that_fit(space: spaces.Space, network: str, features: int) -> None:
    hidden = {"nature": 512, "minatar": 128}[network]
    for make in (actor_critic, q_network):
        torso = shapes(make, space)["torso"]
        assert set(torso) == {network, "hidden_0"}
        assert torso["hidden_0"]["kernel"].shape == (features, hidden)


@pytest.mark.parametrize("shape, dtype", [((7,), np.float32), ((10, 5), np.float32), ((8, 8), np.uint8), ((2, 2, 2), np.float32)])
def test_what_is_no_image_keeps_its_two_layers(shape: tuple[int, ...], dtype: Any) -> None:
    params = shapes(actor_critic, spaces.Box(0, 1, shape, dtype))
    assert set(params) == {"actor", "critic", "policy", "value"}
    assert params["actor"]["hidden_0"]["kernel"].shape == (np.prod(shape), 64)
    assert params["actor"]["hidden_1"]["kernel"].shape == (64, 64)


def test_envpools_atari_has_natures_network_by_default() -> None:
    """Otherwise it would have a layer of 28,224 × 64."""
    agent = small_ppo("envpool:Pong-v5", model=None)
    params = state_shapes(agent).learner.params["params"]
    assert params["torso"]["nature"]["conv_0"]["kernel"].shape == (8, 8, 4, 32)
    assert max(leaf.size for leaf in jax.tree.leaves(params)) == 3136 * 512


def test_parts_of_an_observation_are_encoded_each_by_its_kind() -> None:
    space = spaces.Dict(
        {
            "action_mask": spaces.MultiBinary(6),
            "board": BOARD,
            "many": spaces.Discrete(2000),
            "place": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)]),
        }
    )
    torso = shapes(actor_critic, space)["torso"]
    assert set(torso) == {"minatar_board", "embedding_many_0", "hidden_0"}
    assert torso["embedding_many_0"]["embedding"].shape == (2000, 64)
    assert torso["hidden_0"]["kernel"].shape == (1024 + 64 + 3 + 2, 128)
    flat = shapes(actor_critic, space, encoder="flat")["actor"]
    assert flat["hidden_0"]["kernel"].shape == (400 + 64 + 3 + 2, 64)


def test_shared_and_separate() -> None:
    assert set(shapes(actor_critic, BOARD, shared=False)) == {"actor", "critic", "policy", "value"}
    assert set(shapes(actor_critic, spaces.Box(-1, 1, (3,), np.float32), shared=True)) == {"torso", "policy", "value"}


# ------------------------------------------------------------------------------------------------------------------ papers


def test_sizes_of_the_published_networks() -> None:
    """Nature's network on Pong, IMPALA's on Procgen as in Cobbe et al. 2020, and MinAtar's DQN."""
    assert count(shapes(q_network, FRAMES)) == 1_687_206
    assert count(shapes(actor_critic, PICTURE, spaces.Discrete(15), encoder="impala")) == 626_256
    small = shapes(q_network, FRAMES, encoder="mnih2013")["torso"]  # 16 of 8×8 by 4, 32 of 4×4 by 2, 256 units
    assert count(small) == (8 * 8 * 4 * 16 + 16) + (4 * 4 * 16 * 32 + 32) + (9 * 9 * 32 * 256 + 256)
    assert count(shapes(q_network, BOARD)) == (9 * 4 * 16 + 16) + (1024 * 128 + 128) + (128 * 6 + 6)
    wide = shapes(q_network, PICTURE, encoder="impala", channel_multiplier=4)["torso"]["impala"]
    assert wide["conv_0"]["kernel"].shape == (3, 3, 3, 64) and wide["residual_2_1_1"]["kernel"].shape == (3, 3, 128, 128)


def convolved(x: np.ndarray, layer: Any, stride: int = 1, padding: int = 0) -> np.ndarray:
    """Convolve [N, H, W, C] by windows, in NumPy."""
    kernel, bias = np.asarray(layer["kernel"]), np.asarray(layer["bias"])
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], axis=(1, 2))[:, ::stride, ::stride]
    return np.einsum("nhwcij,ijcf->nhwf", windows, kernel) + bias


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def nature(x: np.ndarray, params: Any) -> np.ndarray:
    for i, stride in enumerate((4, 2, 1)[: len(params)]):
        x = relu(convolved(x, params[f"conv_{i}"], stride))
    return x


def impala(x: np.ndarray, params: Any) -> np.ndarray:
    for i in range(3):
        x = convolved(x, params[f"conv_{i}"], padding=1)
        odd = [size % 2 for size in x.shape[1:3]]  # "SAME" pads the end first
        x = np.pad(x, ((0, 0), (odd[0], 1), (odd[1], 1), (0, 0)), constant_values=-np.inf)
        x = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))[:, ::2, ::2].max((-1, -2))
        for j in range(2):
            y = convolved(relu(x), params[f"residual_{i}_{j}_0"], padding=1)
            x = x + convolved(relu(y), params[f"residual_{i}_{j}_1"], padding=1)
    return relu(x)


def minatar(x: np.ndarray, params: Any) -> np.ndarray:
    return relu(convolved(x, params))


@pytest.mark.parametrize(
    "module, reference, shape",
    [
        (NatureCNN(), nature, (40, 36, 2)),
        (IMAGE_NETWORKS["mnih2013"](), nature, (27, 20, 2)),
        (ImpalaCNN(), impala, (9, 8, 2)),
        (MinAtarCNN(), minatar, (5, 4, 3)),
    ],
    ids=["nature", "mnih2013", "impala", "minatar"],
)
def test_networks_are_those_of_their_papers(module: Any, reference: Any, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).normal(size=(2, 3, *shape)).astype(np.float32)
    boxed = jax.eval_shape(module.init, jax.eval_shape(lambda: jax.random.key(0)), x)
    leaves = jax.tree.leaves(boxed, is_leaf=lambda x: isinstance(x, OrthogonalKernel))
    assert all(isinstance(leaf, OrthogonalKernel) or leaf.ndim == 1 for leaf in leaves)
    params = values_for(nn.meta.unbox(boxed))
    expected = reference(x.reshape(6, *shape), params["params"]).reshape(2, 3, -1)
    np.testing.assert_allclose(jit(module.apply)(params, x), expected, rtol=1e-4, atol=1e-4)


def test_boards_have_the_same_function_on_every_platform() -> None:
    """Slices and a matmul, a convolution, and NumPy, with gradients."""
    rng = np.random.default_rng(2)
    x, kernel = jnp.float32(rng.normal(size=(2, 3, 10, 10, 4))), jnp.float32(rng.normal(size=(3, 3, 4, 16)))
    weight = jnp.float32(rng.normal(size=(2, 3, 8, 8, 16)))
    expected = convolved(np.asarray(x).reshape(6, 10, 10, 4), {"kernel": kernel, "bias": 0}).reshape(2, 3, 8, 8, 16)

    def both(method: str) -> Any:
        def loss(x: Any, kernel: Any) -> Any:
            out = board_convolution(x, kernel, method)
            return (out * weight).sum(), out

        return jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(x, kernel)

    ((_, slices), by_slices), ((_, convolution), by_convolution), ((_, auto), by_platform) = map(
        both, ("slices", "convolution", "auto")
    )
    for out in (slices, convolution, auto):
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    for one, two, three in zip(by_slices, by_convolution, by_platform, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(one, three, rtol=1e-4, atol=1e-4)


def test_the_platform_chooses_how_boards_are_convolved() -> None:
    """The platform that the program is compiled for decides, so the choice costs no time. Over seeds and in gradients too."""
    x, kernels = jnp.zeros((5, 10, 10, 4)), jnp.zeros((2, 3, 3, 4, 16))
    loss = lambda kernel, x, method: (board_convolution(x, kernel, method) ** 2).sum()  # noqa: E731

    def program(method: str, platform: str) -> Any:
        seeds = jax.jit(jax.vmap(jax.grad(partial(loss, method=method)), in_axes=(0, None)))
        return seeds.trace(kernels, x).lower(lowering_platforms=(platform,))

    for method, platform, convolves in (
        ("auto", "cpu", False),
        ("auto", "cuda", True),
        ("slices", "cuda", False),
        ("convolution", "cpu", True),
    ):
        assert ("stablehlo.convolution" in program(method, platform).as_text()) == convolves, (method, platform)
    assert " conditional(" not in program("auto", "cpu").compile().as_text()


def test_kernels_of_convolutions_begin_orthogonal_over_seeds() -> None:
    model = actor_critic(BOARD, DISCRETE, hidden_sizes=(8,))
    init = jit(jax.vmap(lambda key: model.init(key, example_input(BOARD, DISCRETE))))
    kernels = init(jax.random.split(jax.random.key(0), 3))["params"]["torso"]["minatar"]["kernel"]
    for kernel in kernels:
        check_orthogonal(kernel / np.sqrt(2))
    assert np.ptp(kernels, axis=0).max() > 1e-3


# ------------------------------------------------------------------------------------------------------------------ layouts


def outputs(space: spaces.Box, x: Any, **settings: Any) -> Any:
    """Return Q-values with the same parameters for any layout of the image."""
    model = q_network(space, DISCRETE, encoder="minatar", hidden_sizes=(8,), **settings)
    inputs = first_input(jnp.asarray(x), DISCRETE, 2)
    params = values_for(jax.eval_shape(model.init, jax.random.key(0), inputs))
    return np.asarray(model.apply(params, (), inputs)[1])


def test_channels_are_where_the_space_or_the_user_says() -> None:
    board = np.random.default_rng(3).random((2, 6, 5, 4)).astype(np.float32)
    base = outputs(spaces.Box(0, 1, (6, 5, 4), np.float32), board)
    first = np.moveaxis(board, -1, 1)
    space = spaces.Box(0, 1, (4, 6, 5), np.float32)
    np.testing.assert_array_equal(outputs(space, first), base)
    np.testing.assert_array_equal(outputs(space, first, image_layout="CHW"), base)
    assert outputs(spaces.Box(0, 1, (4, 6, 5), np.float32), first, image_layout="HWC").shape == base.shape
    assert (outputs(space, first, image_layout="HWC") != base).any()


def test_bytes_are_scaled_and_numbers_are_not() -> None:
    pixels = np.random.default_rng(4).integers(256, size=(2, 6, 5, 4)).astype(np.uint8)
    base = outputs(spaces.Box(0, 1, (6, 5, 4), np.float32), pixels / np.float32(255))
    np.testing.assert_allclose(outputs(spaces.Box(0, 255, (6, 5, 4), np.uint8), pixels), base, rtol=1e-5)
    larger = outputs(spaces.Box(0, 255, (6, 5, 4), np.float32), pixels.astype(np.float32))
    assert np.abs(larger).max() > 10 * np.abs(base).max()


def test_a_picture_in_grey_is_one_of_a_single_channel() -> None:
    grey = spaces.Box(0, 255, (40, 36), np.uint8)
    assert shapes(q_network, grey)["torso"]["nature"]["conv_0"]["kernel"].shape == (8, 8, 1, 32)


# -------------------------------------------------------------------------------------------------------- invalid arguments


@pytest.mark.parametrize("make", [actor_critic, q_network])
@pytest.mark.parametrize(
    "space, settings, words",
    [
        (BOARD, {"encoder": "natur"}, r"encoder='natur' is unknown: choose one of \('auto', .*\). Did you mean 'nature'\?"),
        (
            BOARD,
            {"encoder": "nature"},
            r"images of at least 36×36, but .* is 10×10 .*'impala' or encoder='minatar' or .*'flat'",
        ),
        (spaces.Box(0, 1, (2, 9, 9), np.float32), {"encoder": "impala", "image_layout": "HWC"}, r"at least 8×8, but .* is 2×9"),
        (spaces.Box(0, 1, (3,), np.float32), {"encoder": "impala"}, r"encoder='impala' has no effect on Box.*: it is for image"),
        (spaces.Discrete(3), {"channel_multiplier": 2}, r"channel_multiplier=2 has no effect on Discrete"),
        (spaces.Discrete(3), {"image_layout": "CHW"}, r"image_layout='CHW' has no effect"),
        (BOARD, {"channel_multiplier": 0}, r"channel_multiplier"),
        (BOARD, {"image_layout": "CWH"}, r"image_layout='CWH' is unknown: choose one of .* Did you mean 'CHW'"),
        (BOARD, {"convolution": "slice"}, r"convolution='slice' is unknown.* Did you mean 'slices'"),
        (PICTURE, {"convolution": "slices"}, r"convolution='slices' has no effect on .*: it is for boards"),
        (BOARD, {"embedding_size": 4}, r"embedding_size=4 has no effect on .*: it is for Discrete and MultiDiscrete"),
        (
            BOARD,
            {"dtype": "float16"},
            r"dtype='float16' is unknown: choose one of \('float32', 'bfloat16'\). Did you mean 'b?f",
        ),
        (BOARD, {"activation": "rel"}, r"activation='rel' is unknown: .* Did you mean 'relu'"),
    ],
)
def test_settings_that_do_not_fit_the_observation(make: Any, space: spaces.Space, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        make(space, DISCRETE, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("settings", [{"layer_norm": 1}, {"use_previous": "yes"}])
@pytest.mark.parametrize("make", [actor_critic, q_network])
def test_switches(make: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=rf"{next(iter(settings))}=.* must be True or False"):
        make(BOARD, DISCRETE, **settings)
    with pytest.raises(TypeError, match=r"shared='no' must be True or False"):
        actor_critic(BOARD, DISCRETE, shared="no")  # type: ignore[arg-type]
