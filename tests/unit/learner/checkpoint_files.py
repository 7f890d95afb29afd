"""Small checkpoints for the tests of saving, loading and refusing them."""

import torch

from dingsdk.worker.learner.checkpoint import save_checkpoint


def state(value=1.0):
    return {"model": {"weight": torch.full((3, 2), value), "bias": torch.zeros(2)}, "count": 4}


def save(folder, stem="iteration_1", value=1.0, iteration=1, **kwargs):
    return save_checkpoint(folder, stem, state(value), iteration=iteration, **kwargs)


def value_of(found):
    return float(found.state["model"]["weight"][0, 0])
