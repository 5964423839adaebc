"""The order of examples, losses per example, and output layers that tasks share."""

from dataclasses import replace

import pytest
import torch

from attittud_lab.data.tasks import Examples, Order, Task, can_share, per_example_losses, share_head
from tests.helpers.multi_label import Fixed, task


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_texts_in_a_batch_have_similar_lengths():
    lengths = torch.randint(1, 200, (500,), generator=torch.Generator().manual_seed(0))
    order = Order(500, 3, "s", lengths=lengths)
    walk = [order.batch(step, 16) for step in range(94)]  # just over three epochs
    flat = torch.cat(walk).tolist()
    for epoch in range(3):
        assert sorted(flat[500 * epoch : 500 * (epoch + 1)]) == list(range(500))
    assert flat[:500] != flat[500:1000]
    sizes = torch.stack([lengths[rows].float() for rows in walk])
    # All but the few batches that have rows of two epochs.
    assert sizes.std(1).quantile(0.9) < lengths.float().std() / 5
    # Long and short batches take turns, and the first rows of a batch are not its shortest.
    means = sizes.mean(1)
    assert abs(float(torch.corrcoef(torch.stack([means[:-1], means[1:]]))[0, 1])) < 0.35
    assert 0.35 < float((sizes[:, :1] > sizes).float().mean()) < 0.65
    # Entered anywhere, and known on the host.
    assert torch.equal(Order(500, 3, "s", lengths=lengths).batch(40, 16), walk[40])
    assert torch.equal(order.batch(40, 16, in_memory=True), walk[40])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_batch_of_texts_is_cut_to_the_bucket_of_its_longest_text():
    inputs = torch.zeros(4, 50, dtype=torch.int32)
    examples = Examples(inputs, None, torch.tensor([3, 32, 33, 50]), bucket=32)
    widths = [examples.width(torch.tensor(rows)) for rows in ([0], [0, 1], [0, 2], [3])]
    assert widths == [32, 32, 50, 50]
    assert examples.take(torch.tensor([0, 1]), 32)[0].shape == (2, 32)
    assert Examples(inputs, None).width(torch.tensor([0])) is None


def test_losses_are_means_over_labels():
    torch.manual_seed(1)
    outputs, targets = torch.randn(7, 3), torch.randint(0, 2, (7, 3))
    found = per_example_losses(Fixed(), task(outputs, targets)[0], outputs, targets)
    chance = 1 / (1 + torch.exp(-outputs.double()))
    wanted = -(targets * chance.log() + (1 - targets) * (1 - chance).log()).mean(1)
    torch.testing.assert_close(found.double(), wanted, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("several", [False, True])
def test_a_shared_output_layer_needs_the_same_classes_in_whatever_order(several):
    objective = "multi_label" if several else "classify"
    targets = torch.tensor([[0, 1, 1], [1, 0, 0]]) if several else torch.tensor([0, 1, 2, 2])
    primary = Task("primary", objective, ["a", "b", "c"], Examples(torch.zeros(2, 1), None))
    examples = Examples(torch.zeros(len(targets), 1), targets)
    other = Task("other", objective, ["c", "a", "b"], examples)
    assert can_share(other, primary)
    found = share_head(other, primary)
    assert found.shares_head
    assert found.classes == ["a", "b", "c"]
    wanted = [[1, 1, 0], [0, 0, 1]] if several else [2, 0, 1, 1]
    assert found.examples.targets.tolist() == wanted and other.classes == ["c", "a", "b"]
    assert share_head(found, primary).examples.targets is found.examples.targets
    assert not can_share(replace(other, classes=["a", "b"]), primary)
    assert not can_share(replace(other, objective="masked_lm"), primary)


def test_order_visits_everything_once_in_an_epoch():
    order = Order(10, 3, "s")
    walk = torch.cat([order.batch(step, 4) for step in range(5)]).tolist()
    assert sorted(walk[:10]) == sorted(walk[10:]) == list(range(10)) and walk[:10] != walk[10:]
    assert Order(10, 3, "s").batch(3, 4).tolist() == walk[12:16]  # entered anywhere
    assert Order(10, 3, "t").batch(0, 10).tolist() != walk[:10]
    assert Order(10, 4, "s").batch(0, 10).tolist() != walk[:10]
    assert len(Order(3, 0, "s").batch(1, 8)) == 8
