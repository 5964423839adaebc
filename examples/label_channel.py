"""Learn from auxiliary labels that are all wrong: translate them with a label channel.

    python examples/label_channel.py   # about ten seconds on a CPU

The task: scikit-learn's digits with 50 labels. In the auxiliary data every label is shifted to the
next digit: each 3 is called 4, each 9 is called 0. A model of the auxiliary data alone (the source)
predicts the labelled images, and the channel learns from its predictions what each label means.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attittud import Eta, Guide, LabelChannel

Data = tuple[Tensor, Tensor]
Step = Callable[[nn.Module, Data, Data], None]  # fills .grad from a primary and an auxiliary batch
CLASSES = 10


def digits(seed: int) -> tuple[Data, Data, Data]:
    """Return 50 primary, 1,000 auxiliary and 747 test images, as pixels and labels."""
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32) / 16
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    primary, auxiliary, test = order[:50], order[50:1050], order[1050:]
    shifted = (labels[auxiliary] + 1) % CLASSES
    return (
        (images[primary], labels[primary]),
        (images[auxiliary], shifted),
        (images[test], labels[test]),
    )


def train(step: Step, primary: Data, auxiliary: Data, seed: int, steps: int = 300) -> nn.Module:
    """Train a small network; `step` decides what it learns from."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        batches = []
        for images, labels in (primary, auxiliary):
            rows = torch.randint(len(labels), (32,), generator=generator)
            batches.append((images[rows], labels[rows]))
        optimizer.zero_grad()
        step(model, *batches)
        optimizer.step()
    return model


def auxiliary_alone(model: nn.Module, _primary: Data, auxiliary: Data) -> None:
    cross_entropy(model(auxiliary[0]), auxiliary[1]).backward()


def primary_alone(model: nn.Module, primary: Data, _auxiliary: Data) -> None:
    cross_entropy(model(primary[0]), primary[1]).backward()


def plain_sum(model: nn.Module, primary: Data, auxiliary: Data) -> None:
    loss = cross_entropy(model(primary[0]), primary[1])
    (loss + cross_entropy(model(auxiliary[0]), auxiliary[1])).backward()


def translated(channel: LabelChannel) -> Step:
    def step(model: nn.Module, primary: Data, auxiliary: Data) -> None:
        loss = cross_entropy(model(primary[0]), primary[1])
        (loss + channel.loss(model(auxiliary[0]), auxiliary[1])).backward()

    return step


def translated_and_guided(channel: LabelChannel) -> Step:
    """The auxiliary loss of a guide may be any scalar, so also that of a channel."""
    guide: Guide | None = None

    def step(model: nn.Module, primary: Data, auxiliary: Data) -> None:
        nonlocal guide
        if guide is None:
            guide = Guide(model, eta=Eta(neutral=1, helpful=1, harmful=0))
        losses = cross_entropy(model(primary[0]), primary[1], reduction="none")
        loss = channel.loss(model(auxiliary[0]), auxiliary[1])
        guide.backward(primary=losses, auxiliary=loss)

    return step


def estimate(source: nn.Module, primary: Data, auxiliary: Data) -> LabelChannel:
    """Estimate the channel from the source's predictions for the labelled primary images."""
    images, labels = primary
    shares = torch.bincount(auxiliary[1], minlength=CLASSES) / len(auxiliary[1])
    with torch.no_grad():
        log_probs = source(images).log_softmax(dim=1)
    return LabelChannel.estimate(log_probs, labels, shares, classes=CLASSES)


def accuracy(model: nn.Module, test: Data) -> float:
    with torch.no_grad():
        return float((model(test[0]).argmax(dim=1) == test[1]).float().mean())


def main(seed: int = 0) -> dict[str, float]:
    """Print and return the test accuracy of each way to use the auxiliary data."""
    primary, auxiliary, test = digits(seed)
    source = train(auxiliary_alone, primary, auxiliary, seed)
    channel = estimate(source, primary, auxiliary)
    print(channel)
    for digit, row in enumerate(channel.matrix):
        label = int(row.argmax())
        print(f"a {digit} is called {label} with probability {row[label]:.2f}")
    steps = {
        "primary alone": primary_alone,
        "plain sum": plain_sum,
        "label channel": translated(channel),
        "label channel and guide": translated_and_guided(channel),
    }
    accuracies = {}
    for name, step in steps.items():
        accuracies[name] = accuracy(train(step, primary, auxiliary, seed), test)
        print(f"{name:24} {accuracies[name]:.1%}")
    return accuracies


if __name__ == "__main__":
    main()
