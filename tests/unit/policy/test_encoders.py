"""Encoders compared with the same layers of torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from dingsdk.config import read_section
from dingsdk.errors import ConfigError, SchemaMismatchError
from dingsdk.policy import (
    DQNPolicy,
    ModelSection,
    discrete_model,
    make_encoder,
    obs_shape,
)
from dingsdk.policy.encoders import Convolutions


def plain(encoder: nn.Module, *layers: nn.Module) -> nn.Sequential:
    """Return layers of torch with the weights of an encoder."""
    made = nn.Sequential(*layers)
    made.load_state_dict(dict(zip(made.state_dict(), encoder.state_dict().values(), strict=True)))
    return made


def screen_layers(channels: int, features: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(features, 5),
        nn.ReLU(),
    ]


@pytest.mark.parametrize(
    ("shape", "channels", "order"),
    [
        ([4, 84, 84], 4, "nchw->nchw"),
        ([84, 84, 4], 4, "nhwc->nchw"),
        ([84, 84], 1, "nhw->nhw"),
        ([2, 84, 84, 3], 6, "nkhwc->nkchw"),
    ],
)
def test_large_images_go_through_the_convolutions_of_mnih_2015(shape, channels, order) -> None:
    encoder = make_encoder(shape, [5])
    images = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    before = images.clone()
    channels_first = torch.einsum(order, images.float() / 255).reshape(2, channels, 84, 84)

    expected = plain(encoder, *screen_layers(channels, 3136))(channels_first)

    assert encoder.width == 5
    torch.testing.assert_close(encoder(images), expected)
    torch.testing.assert_close(encoder(images.float() / 255), expected)
    assert torch.equal(images, before)


@pytest.mark.parametrize(("height", "width", "features"), [(36, 36, 64), (210, 160, 22528)])
def test_width_depends_on_the_size_of_the_image(height, width, features) -> None:
    assert Convolutions([3, height, width]).width == features


@pytest.mark.parametrize(("height", "width"), [(35, 84), (84, 35), (4, 3)])
def test_small_images_go_through_the_small_convolutions(height, width) -> None:
    encoder = make_encoder([2, height, width], [5])
    images = torch.rand(2, 2, height, width)
    features = 32 * ((height + 1) // 2) * ((width + 1) // 2)
    layers = plain(
        encoder,
        nn.Conv2d(2, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(features, 5),
        nn.ReLU(),
    )

    torch.testing.assert_close(encoder(images), layers(images))


@pytest.mark.parametrize(
    ("shape", "is_last"),
    [([3, 5, 4], False), ([4, 5, 4], True), ([5, 4, 4], True), ([1, 9, 9, 1], True)],
)
def test_channels_are_first_if_there_are_fewer_than_columns(shape, is_last) -> None:
    assert Convolutions(shape).has_channels_last == is_last
    assert Convolutions(shape)(torch.zeros(2, *shape)).shape == (2, Convolutions(shape).width)


@pytest.mark.parametrize(
    ("shape", "is_image"), [([36, 36], True), ([35, 84], False), ([84, 35], False)]
)
def test_matrix_with_a_side_below_36_is_not_an_image(shape, is_image) -> None:
    features = make_encoder(shape, []).features

    assert isinstance(features, Convolutions) == is_image


def test_discrete_observations_become_one_hot_vectors() -> None:
    encoder = make_encoder("Discrete(3)", [])

    assert encoder(torch.tensor([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert encoder(torch.tensor([1.0])).tolist() == [[0, 1, 0]]


def test_parts_of_a_dict_are_joined_in_the_order_of_their_names() -> None:
    shape = {"where": {"y": 1, "x": 1}, "image": [7, 7, 3], "kind": "Discrete(2)"}
    encoder = make_encoder(shape, [4], is_tanh=True)
    image = torch.rand(2, 7, 7, 3)
    obs = {
        "where": {"x": torch.tensor([[1.0], [2.0]]), "y": torch.tensor([[3.0], [4.0]])},
        "kind": torch.tensor([1, 0]),
        "image": image,
    }
    of_image = encoder.features.parts[0](image)
    rest = torch.tensor([[0.0, 1, 1, 3], [1, 0, 2, 4]])
    weight, bias = encoder.layers.layers[0].weight, encoder.layers.layers[0].bias

    expected = torch.tanh(torch.cat([of_image, rest], 1) @ weight.T + bias)

    torch.testing.assert_close(encoder(obs), expected)


@pytest.mark.parametrize(
    "shape",
    [0, [], [1, 2, 3, 4, 5], [3, 0], "Discrete(0)", "Box(3)", {}, {"a": {"b": -1}}, 2.5, [True]],
)
def test_unsupported_shape_is_refused(shape) -> None:
    with pytest.raises(ConfigError, match=r"policy\.model\.obs_shape"):
        make_encoder(shape)
    with pytest.raises(ConfigError, match="obs_shape"):
        read_section(ModelSection, {"obs_shape": shape}, "policy.model")


def test_an_image_of_another_size_is_refused() -> None:
    policy = DQNPolicy({"model": {"obs_shape": [8, 6, 1], "action_shape": 2}}, seed=0)

    # It has the same number of pixels and of features.
    with pytest.raises(SchemaMismatchError, match=r"\(1, 6, 8, 1\)"):
        policy.eval_mode.forward({0: np.zeros((6, 8, 1), np.uint8)})


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (spaces.Box(0, 1, (4,)), 4),
        (spaces.Box(0, 255, (84, 84, 4), np.uint8), [84, 84, 4]),
        (spaces.Discrete(16), "Discrete(16)"),
        (spaces.MultiBinary(3), 3),
        (
            spaces.Dict(a=spaces.Box(0, 1, (2,)), b=spaces.Dict(c=spaces.Discrete(3))),
            {"a": 2, "b": {"c": "Discrete(3)"}},
        ),
    ],
)
def test_encoders_accept_the_shapes_of_observation_spaces(space, shape) -> None:
    found = obs_shape("dqn", space)

    assert found == shape
    section = read_section(ModelSection, {"obs_shape": found, "action_shape": 2}, "policy.model")
    assert make_encoder(section.observation, [7]).width == 7


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 1, ()),
        spaces.Box(0, 1, (3, 0)),
        spaces.Box(0, 1, (1, 1, 1, 1, 1)),
        spaces.Text(3),
        spaces.Dict(),
        spaces.Dict(a=spaces.Box(0, 1, (2,)), b=spaces.Tuple([spaces.Discrete(2)])),
    ],
)
def test_error_for_other_observation_spaces_names_both_sides(space) -> None:
    with pytest.raises(ConfigError, match="type dqn cannot use the observation space") as caught:
        discrete_model("dqn", space, spaces.Discrete(2))

    assert caught.value.facts["found"] == str(space)
    assert "Box" in caught.value.facts["expected"]
