"""Auxiliary batches: every example once in an epoch, and the same order after a resume."""

import pytest
import torch
from torch.utils.data import DataLoader

pytest.importorskip("accelerate", reason="needs the extra 'transformers'")

from attittud.integrations.auxiliary import Shuffled, Stream


def stream(
    drawn: int = 0, *, sized: bool = True, size: int = 7, name: str = "web", whole: int = 1
) -> Stream:
    shuffled = Shuffled(range(size), seed=3, name=name, whole=whole)
    loader = (
        DataLoader(range(size), batch_size=2, sampler=shuffled)
        if sized
        else [torch.tensor([i]) for i in range(size)]
    )
    return Stream(loader, name, shuffled if sized else None, drawn)


@pytest.mark.parametrize(("drawn", "sized"), [(0, True), (4, True), (9, False), (30, True)])
def test_a_resumed_stream_continues_where_it_stopped(drawn, sized):
    whole, resumed = stream(sized=sized), stream(drawn, sized=sized)
    batches = [whole.draw().tolist() for _ in range(drawn + 10)]
    assert [resumed.draw().tolist() for _ in range(10)] == batches[drawn:]
    assert resumed.drawn == whole.drawn == drawn + 10


@pytest.mark.parametrize(("drawn", "whole"), [(0, 2), (3, 4), (9, 2)])
def test_full_batches_go_on_with_the_next_epoch(drawn, whole):
    short, full = stream(), stream(drawn, whole=whole)
    in_order = [i for _ in range(40) for i in short.draw().tolist()]
    batches = [full.draw().tolist() for _ in range(12)]
    assert {len(batch) for batch in batches} == {2}
    assert [i for batch in batches for i in batch] == in_order[2 * drawn : 2 * drawn + 24]


def test_an_epoch_has_every_example_once_in_its_own_order():
    one, two = stream(), stream(name="old")
    epochs = [[i for _ in range(4) for i in source.draw().tolist()] for source in (one, one, two)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_drawing_batches_does_not_change_the_random_state():
    source, state = stream(), torch.get_rng_state()
    for _ in range(9):
        source.draw()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("sized", [True, False])
def test_an_empty_dataset_is_refused_by_name(sized):
    source = stream(sized=False, size=0)
    if sized:
        loader = DataLoader([1], batch_size=2, drop_last=True)
        source = Stream(loader, "web", Shuffled([1], 0, "web"))
    with pytest.raises(ValueError, match="web"):
        source.draw()
