"""Batches of the bias study's trials."""

import torch

from lm_validity.cells.trials.training import IGNORED, Batch


def test_masked_places_are_found_on_the_host():
    """On a device a boolean index would make the host wait; one without content could not even answer."""
    ids = torch.arange(12).reshape(3, 4)
    labels = torch.full_like(ids, IGNORED)
    labels[0, 1], labels[1, 3], labels[2, 0] = 7, 8, 9
    batch = Batch(ids, torch.ones_like(ids), labels, 12)
    here = batch.to(torch.device("cpu"))
    assert torch.equal(here.labels[here.predicted_places()], labels[labels != IGNORED])
    part = here.rows(1, 3)
    assert torch.equal(part.labels[part.predicted_places()], torch.tensor([8, 9]))
    places = batch.to(torch.device("meta")).predicted_places()
    assert [(each.device.type, len(each)) for each in places] == [("meta", 3)] * 2
