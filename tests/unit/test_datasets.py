"""Data sets are written and read in each format; damaged and foreign files are refused."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from dingsdk import hookimpl
from dingsdk.data import Dataset, SampleBatch
from dingsdk.data.columns import column_equal
from dingsdk.errors import DatasetError
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.worker import DatasetFormat, NaiveReplayBuffer, read_dataset, write_dataset
from dingsdk.worker.dataset_spaces import check_dataset, spaces_of
from dingsdk.worker.datasets import has_dataset
from tests.extras import needs

PATHS = ["data.npz", pytest.param("data.h5", marks=needs("hdf5")), "folder"]


def make(rows: int = 8, **changes: Any) -> Dataset:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "obs": rng.normal(size=(rows, 3)).astype(np.float32),
        "action": rng.integers(0, 2, rows),
        "reward": rng.normal(size=rows).astype(np.float32),
        "terminated": np.arange(rows) == 2,
        "truncated": np.arange(rows) == 5,
        "next_obs": rng.normal(size=(rows, 3)).astype(np.float32),
    }
    return Dataset({**columns, **changes})


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("is_dict", [False, True])
def test_what_is_written_is_read(name: str, is_dict: bool, tmp_path: Path) -> None:
    obs = {"image": np.zeros((8, 2, 2, 1), np.uint8), "speed": np.arange(8.0)}
    # Rows of a saved buffer that do not follow each other are pieces of their own.
    follow = {"obs": obs, "next_obs": {**obs, "speed": np.arange(8.0) + 1}}
    written = make(**(follow if is_dict else {}))
    path = tmp_path / "above" / name

    write_dataset(written, path)
    found = read_dataset(path)

    assert found.source == str(path)
    if name == "folder" and not is_dict:
        assert found.ends.tolist() == list(range(1, 9))
        found.columns["truncated"] = written.columns["truncated"]
    else:
        assert found.ends.tolist() == written.ends.tolist() == [3, 6, 8]
    assert column_equal(found.columns, written.columns)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("name", "is_right"),
    [
        *(("x" * 250 + ".npz", True), ("x" * 300 + ".npz", False), ("f/a.npz", False)),
        *(("f", False), ("empty", True), ("other", False)),
    ],
)
def test_target_of_a_recording_is_checked_before_it_begins(
    name: str, is_right: bool, tmp_path: Path
) -> None:
    (tmp_path / "f").touch()
    (tmp_path / "empty").mkdir()
    page = tmp_path / "other" / "manifest.json"
    page.parent.mkdir()
    page.write_text("{}")
    for use in (lambda path: write_dataset(make(), path), has_dataset):
        with nullcontext() if is_right else pytest.raises(DatasetError):
            use(tmp_path / name)
    assert (page.read_text(), [*page.parent.iterdir()]) == ("{}", [page])


@pytest.mark.parametrize("gamma", [0.99, 1.0])
def test_saved_buffer_of_one_step_samples_is_read(gamma: float, tmp_path: Path) -> None:
    from dingsdk.policy import DQNPolicy

    model = {"obs_shape": 3, "action_shape": 2}
    policy = DQNPolicy({"model": model, "discount_factor": gamma}, seed=0)
    expected = make()
    columns = dict(expected.columns)
    columns["done"] = columns["terminated"] | columns.pop("truncated")
    buffer = NaiveReplayBuffer({"replay_buffer_size": 100})
    buffer.push(policy.samples(columns, expected.ends), 0)
    buffer.save_data(str(tmp_path / "rows"))
    buffer.close()

    found = read_dataset(tmp_path / "rows").columns

    for name in ("obs", "action", "reward", "terminated", "next_obs"):
        assert column_equal(found[name], expected.columns[name]), name


def test_saved_buffer_of_several_steps_is_refused(tmp_path: Path) -> None:
    buffer = NaiveReplayBuffer({"replay_buffer_size": 100})
    discount = np.array([0.81, 0.9, 0.0, 0.0], np.float32)
    rows = {"obs": np.zeros((4, 1)), "action": np.zeros(4), "reward": np.zeros(4)}
    buffer.push(
        SampleBatch(
            {**rows, "discount": discount, "done": np.arange(4) == 3, "next_obs": rows["obs"]}
        ),
        0,
    )
    buffer.save_data(str(tmp_path / "rows"))
    buffer.close()

    with pytest.raises(DatasetError, match=r"rows: .*several steps"):
        read_dataset(tmp_path / "rows")


@needs("hdf5")
def test_files_of_d4rl_are_read(tmp_path: Path) -> None:
    import h5py

    with h5py.File(tmp_path / "d4rl.hdf5", "w") as file:
        file["observations"] = np.arange(6, dtype=np.float32).reshape(6, 1)
        file["actions"] = np.zeros((6, 2), np.float32)
        file["rewards"] = np.ones(6, np.float32)
        file["terminals"] = np.zeros(6, bool)
        file["timeouts"] = np.arange(6) % 3 == 2
        file["infos/qpos"] = np.zeros((6, 4))
        file["metadata/algorithm"] = "sac"

    found = read_dataset(tmp_path / "d4rl.hdf5")

    assert found.columns["obs"][:, 0].tolist() == [0, 1, 3, 4]
    assert found.columns["next_obs"][:, 0].tolist() == [1, 2, 4, 5]
    assert found.ends.tolist() == [2, 4]


@needs("hdf5")
def test_links_of_hdf5_to_other_files_are_not_followed(tmp_path: Path) -> None:
    import h5py

    write_dataset(make(), tmp_path / "other.h5")
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["observations"] = h5py.ExternalLink("other.h5", "observations")

    with pytest.raises(DatasetError, match=r"data\.h5 cannot be read: 'observations' is a link"):
        read_dataset(tmp_path / "data.h5")


def test_pickles_in_npz_are_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", obs=np.array([{}, {}]))

    with pytest.raises(DatasetError, match=r"data\.npz cannot be read: Object arrays"):
        read_dataset(tmp_path / "data.npz")


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("kept", [0.1, 0.6, 0.98])
def test_truncated_file_is_refused(name: str, kept: float, tmp_path: Path) -> None:
    path = tmp_path / name
    write_dataset(make(500), path)
    files = [path] if path.is_file() else sorted(path.iterdir())
    for file in files:
        content = file.read_bytes()
        file.write_bytes(content[: int(len(content) * kept)])

    with pytest.raises(DatasetError, match=str(path)) as caught:
        read_dataset(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("absent.npz", "does not exist"),
        ("absent", "no saved buffer"),
        ("data.csv", "no format has the suffix '.csv'; known: .h5, .hdf5, .npz"),
        ("acme:name", "no 'acme' among the datasets"),
        ("npz:", "is no name of a data set: npz: comes before a name, as in npz:NAME"),
    ],
)
def test_path_of_nothing_is_one_line(
    path: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(DatasetError, match=text) as caught:
        read_dataset(path)
    assert str(caught.value).startswith(path)
    assert "\n" not in str(caught.value)


class Acme(DatasetFormat):
    def read(self, name: str) -> Dataset:
        return make(int(name))


class AcmePlugin:
    @staticmethod
    @hookimpl
    def dingsdk_register_datasets(registry: Any) -> None:
        registry.register("acme", Acme)


def test_plugin_provides_data_sets_by_a_scheme(tmp_path: Path) -> None:
    manager = PluginManager()
    manager.register_plugin(AcmePlugin, "acme")

    with use_manager(manager):
        assert len(read_dataset("acme:12")) == 12
        with pytest.raises(DatasetError, match="can only be read"):
            write_dataset(make(), "acme:12")


BOX = spaces.Box(-1, 1, (3,), np.float32)


@pytest.mark.parametrize(
    ("observation_space", "action_space", "changes"),
    [
        (BOX, spaces.Discrete(2), {}),
        (spaces.Box(-1, 1, (3,), np.float64), spaces.Discrete(3, start=-1), {}),
        (BOX, spaces.Box(-1, 1, (2,)), {"action": np.full((8, 2), 1.00001)}),
        (BOX, spaces.MultiDiscrete([2, 4]), {"action": np.full((8, 2), [1, 3])}),
    ],
)
def test_data_of_the_spaces_pass(
    observation_space: Any, action_space: Any, changes: dict[str, Any]
) -> None:
    check_dataset(make(**changes), observation_space, action_space, "the env")


@pytest.mark.parametrize(
    ("observation_space", "action_space", "changes", "text"),
    [
        (spaces.Box(-1, 1, (4,)), spaces.Discrete(2), {}, r"'obs' is float32\[3\]"),
        (spaces.Box(0, 9, (3,), np.uint8), spaces.Discrete(2), {}, "'obs' is float32"),
        (spaces.Dict({"x": BOX}), spaces.Discrete(2), {}, "'obs' is there"),
        (BOX, spaces.Discrete(2), {"action": np.full(8, 2)}, "'action' is 2 in row 0"),
        (BOX, spaces.Discrete(2, start=1), {"action": np.zeros(8, int)}, "'action' is 0 in row 0"),
        (BOX, spaces.Discrete(2), {"action": np.zeros(8)}, "'action' is float32"),
        (BOX, spaces.Box(-1, 1, (1,)), {}, r"'action' is int64\[\]"),
        (BOX, spaces.Box(-1, 1, (1,)), {"action": np.full((8, 1), 1.1)}, "in row 0"),
    ],
)
def test_data_of_another_env_are_refused(
    observation_space: Any, action_space: Any, changes: dict[str, Any], text: str
) -> None:
    data = make(**changes)
    data.source = "data.npz"
    with pytest.raises(DatasetError, match=text) as caught:
        check_dataset(data, observation_space, action_space, "the env")
    assert str(caught.value).startswith("data.npz: column '")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"action": np.array([-1, 2] * 4)},
        {"action": np.tile([1, 3], (8, 1))},
        {"action": np.linspace([-2, 3], [5, 3], 8)},
        {"obs": np.arange(8), "next_obs": np.arange(8) + 1},
        {"obs": np.zeros((8, 2), bool), "next_obs": None},
        {"obs": {"a": np.zeros((8, 2, 2, 3), np.uint8), "b": np.zeros((8, 2))}, "next_obs": None},
    ],
)
def test_spaces_of_a_data_set_contain_its_rows(changes: dict[str, Any]) -> None:
    columns = {**make().columns, **changes}
    found = Dataset({name: each for name, each in columns.items() if each is not None})

    check_dataset(found, *spaces_of(found), "the data")
