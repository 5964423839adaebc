"""Random changes of images, against what a person would do by hand."""

import numpy as np
import torch

from attittud_lab.training.augment import augmented

IMAGES = torch.arange(200 * 2 * 16 * 16).reshape(200, 2, 16, 16)
"""Every pixel is different, so that each shows where it came from."""


def test_each_image_is_mirrored_with_probability_one_half():
    torch.manual_seed(0)
    changed = augmented(IMAGES, ["flip"])
    mirrored = 0
    for image, result in zip(IMAGES, changed, strict=True):
        is_mirrored = torch.equal(result, image.flip(2))
        assert is_mirrored or torch.equal(result, image)
        mirrored += is_mirrored
    assert 70 < mirrored < 130


def test_each_image_is_moved_by_at_most_an_eighth_and_borders_are_repeated():
    torch.manual_seed(0)
    changed = augmented(IMAGES, ["shift"])
    moves = set()
    for image, result in zip(IMAGES, changed, strict=True):
        padded = np.pad(image.numpy(), ((0, 0), (2, 2), (2, 2)), mode="edge")
        windows = np.lib.stride_tricks.sliding_window_view(padded, (16, 16), (1, 2))
        equal = (windows == result.numpy()[:, None, None]).all((0, 3, 4))
        assert equal.sum() == 1
        moves.add(int(equal.argmax()))
    assert len(moves) == 25  # each of the moves occurs among 200 images


def test_without_changes_images_stay_and_draws_follow_the_seed():
    assert augmented(IMAGES, []) is IMAGES
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(augmented(IMAGES, ["flip", "shift"]))
    assert torch.equal(*results)
