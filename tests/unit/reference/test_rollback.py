from __future__ import annotations

import pytest

from harness.reference.config import TrainConfig
from harness.reference.formats import load_format
from harness.reference.hooks import TrainingHooks
from harness.reference.loop import loss_jumped
from harness.reference.train import main


@pytest.mark.parametrize(
    ("history", "jumped"),
    [
        ([], False),
        ([1.0, 1.0, 1.0, 9.0], False),  # only three before it
        ([1.0, 1.0, 1.0, 1.0, 2.1], True),
        ([1.0, 1.0, 1.0, 1.0, 2.0], False),
        ([9.0, 1.0, 1.0, 1.0, 1.0, 2.1], True),
        ([1.0, 9.0, 1.0, 1.0, 2.1], True),  # the median, not the mean
        ([1.0, 1.0, 1.0, 1.0, 9.0, 1.0], False),
        ([1.0, 1.0, 1.0, 1.0, float("inf")], True),
    ],
)
def test_a_jump_is_more_than_twice_the_median_before(history, jumped):
    assert loss_jumped(history) is jumped


def test_factor_and_window_are_taken_into_account():
    assert loss_jumped([1.0, 1.6], factor=1.5, window=1)
    assert not loss_jumped([1.0, 1.6], factor=1.7, window=1)
    assert not loss_jumped([1.0, 1.6], factor=1.5, window=2)


@pytest.mark.parametrize(("factor", "window"), [(1.0, 4), (0.5, 4), (float("nan"), 4), (2.0, 0), (2.0, -1)])
def test_what_could_never_tell_a_jump_is_refused(factor, window):
    with pytest.raises(ValueError, match="factor must be above 1 and window at least 1, found"):
        loss_jumped([1.0], factor=factor, window=window)


class Spike(TrainingHooks):
    """One batch with a loss far off; keeps the reports by batch."""

    def __init__(self, batch: int) -> None:
        self.bad = batch
        self.reports: dict = {}

    def logits(self, logits, batch, micro_batch):
        return logits * 100 if batch == self.bad else logits

    def batch(self, report):
        self.reports[report.batch] = report


def run(tmp_path, capsys, spike: int, *more: str):
    arguments = ["--out", str(tmp_path), "--steps", "12", "--keep-last", "9", "--batches-per-epoch", "5"]
    watcher = Spike(spike)
    assert main([*arguments, *more], watcher) == 0
    return watcher.reports, capsys.readouterr().out


def test_without_the_option_training_goes_on(tmp_path, capsys):
    reports, out = run(tmp_path, capsys, 7)
    assert [reports[batch].step for batch in range(1, 13)] == list(range(1, 13))
    assert reports[7].global_loss > 2 * reports[6].global_loss
    assert "loss jumped" not in out


@pytest.mark.parametrize("name", ["single", "sharded", "dcp-async"])
def test_a_jump_leads_back_to_the_weights_before_and_on_to_new_data(tmp_path, capsys, name):
    expected, _ = run(tmp_path / "plain", capsys, 99, "--format", name)
    reports, out = run(tmp_path / "spike", capsys, 7, "--format", name, "--on-loss-jump", "rollback")
    assert "loss jumped at batch 7: weights of" in out
    assert "step-00000004" in out.split("loss jumped")[1]
    assert [reports[batch].step for batch in range(1, 13)] == [1, 2, 3, 4, 5, 6, 7, 5, 6, 7, 8, 9]
    assert reports[8].learning_rate == expected[5].learning_rate
    for batch in range(1, 13):
        assert reports[batch].samples == expected[batch].samples
        assert (reports[batch].epoch, reports[batch].batch_in_epoch) == (expected[batch].epoch, expected[batch].batch_in_epoch)
    assert all(reports[batch].global_loss < 5 for batch in range(8, 13))


def test_a_checkpoint_due_at_the_jump_holds_the_weights_from_before(tmp_path, capsys):
    reports, out = run(tmp_path, capsys, 8, "--on-loss-jump", "rollback")
    assert "step-00000004" in out.split("loss jumped")[1]
    assert reports[9].step == 5
    header = load_format(TrainConfig(out=tmp_path)).verify(tmp_path / "step-00000008.pt")
    assert (header.batch, header.step) == (8, 4)


def test_without_a_checkpoint_there_is_no_way_back(tmp_path, capsys):
    reports, out = run(tmp_path, capsys, 6, "--save-every", "99", "--on-loss-jump", "rollback")
    assert "loss jumped at batch 6: there is no checkpoint to go back to" in out
    assert reports[7].step == 7
