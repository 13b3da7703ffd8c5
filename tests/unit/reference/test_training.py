from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from harness.reference.amp import all_finite, back_off, build_scaler, clip_global_l2_norm
from harness.reference.comm import gather_values, mean_over_ranks, raise_together, rank0_decides, word_failures
from harness.reference.config import TrainConfig
from harness.reference.data import EpochLoader, SuccessorDataset
from harness.reference.defects import DEFECTS, check_defects, omitted_parts
from harness.reference.errors import CheckpointError, RefusalError, one_line
from harness.reference.hooks import TrainingHooks
from harness.reference.schedule import FINAL_FACTOR, learning_rate_factor
from harness.reference.state import Training
from harness.reference.train import main
from harness.reference.world import World

SAMPLERS = ("distributed", "random")


class Recorder(TrainingHooks):
    def __init__(self, bad_batches: tuple[int, ...] = ()) -> None:
        self.calls: list[str] = []
        self.reports: list = []
        self.bad_batches = bad_batches

    def start(self, world, arguments):
        self.calls.append("start")

    def resume(self, step, checkpoint, skipped, world_size_saved):
        self.calls.append(f"resume {step} {checkpoint} {world_size_saved}")

    def state(self, moment, training):
        self.calls.append(f"state {moment}")

    def logits(self, logits, batch, micro_batch):
        return logits * math.nan if batch in self.bad_batches else logits

    def batch(self, report):
        self.calls.append(f"batch {report.batch}")
        self.reports.append(report)

    def save_begin(self, step, checkpoint):
        self.calls.append(f"begin {checkpoint}")

    def save_end(self, step, checkpoint):
        self.calls.append(f"end {checkpoint}")

    def end(self, step, batches):
        self.calls.append(f"end {step} {batches}")


def test_the_schedule_warms_up_and_comes_down():
    factors = [learning_rate_factor(step, 4, 24) for step in range(30)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[3:25] == sorted(factors[3:25], reverse=True)
    assert factors[24] == pytest.approx(FINAL_FACTOR)
    assert factors[29] == factors[24]
    assert learning_rate_factor(0, 0, 1) == 1.0


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_batches_hold_the_same_samples_on_any_number_of_ranks(world_size, sampler):
    dataset, config = SuccessorDataset(36, 0), TrainConfig(sampler=sampler)
    whole = [indices.tolist() for indices, _ in EpochLoader(dataset, config, World()).epoch(1, 0)]
    loaders = [EpochLoader(dataset, config, World(rank, rank, world_size)) for rank in range(world_size)]
    shares = [[indices.tolist() for indices, _ in loader.epoch(1, 0)] for loader in loaders]
    for batch, expected in enumerate(whole):
        for rank in range(world_size):
            assert shares[rank][batch] == expected[rank::world_size]
    assert sorted(index for batch in whole for index in batch) == list(range(36))


def test_a_position_in_an_epoch_is_reached_without_loading():
    class Counting(SuccessorDataset):
        loaded = 0

        def __getitem__(self, index):
            self.loaded += 1
            return super().__getitem__(index)

    dataset = Counting(36, 0)
    loader = EpochLoader(dataset, TrainConfig(), World())
    whole = [indices.tolist() for indices, _ in loader.epoch(0, 0)]
    dataset.loaded = 0
    assert [indices.tolist() for indices, _ in loader.epoch(0, 2)] == whole[2:]
    assert dataset.loaded == 12
    assert [indices.tolist() for indices, _ in loader.epoch(1, 0)] != whole


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_an_iterator_over_the_data_draws_from_no_global_generator(sampler):
    loader = EpochLoader(SuccessorDataset(24, 0), TrainConfig(sampler=sampler), World())
    before = torch.get_rng_state()
    list(loader.epoch(0, 0))
    assert torch.equal(torch.get_rng_state(), before)


def test_clipping():
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    before, after = clip_global_l2_norm([parameter], 1.0)
    assert (before, after) == (5.0, 1.0)
    assert parameter.grad.norm() == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(ValueError, match="max_norm must be positive"):
        clip_global_l2_norm([parameter], 0.0)


def test_large_finite_numbers_are_finite():
    assert all_finite([torch.full((4,), 3e38)])
    assert not all_finite([torch.ones(2), torch.tensor([math.inf])])
    assert not all_finite([torch.ones(2), torch.tensor([math.nan])])


def test_backing_off_halves_the_scale_before_and_after_first_use():
    scaler = build_scaler("fp16", "cpu")
    back_off(scaler)
    assert scaler.get_scale() == 2.0**9
    scaler.scale(torch.ones(()))
    back_off(scaler)
    assert scaler.get_scale() == 2.0**8
    back_off(None)
    assert build_scaler("fp32", "cpu") is None


def test_one_rank_needs_no_process_group():
    assert gather_values(3) == [3]
    assert mean_over_ranks(torch.tensor(2.5)) == 2.5
    assert rank0_decides(lambda: 7) == 7
    raise_together(None, "load")
    with pytest.raises(CheckpointError, match="load failed on rank 0: OSError: disk"):
        raise_together(OSError("disk"), "load")

    def refuse():
        raise RefusalError("no")

    with pytest.raises(RefusalError, match="no"):
        rank0_decides(refuse)


def test_wording():
    assert word_failures([None, "x", "x", "y"]) == "rank 1, 2: x; rank 3: y"
    assert one_line(ValueError("a\nb")) == "ValueError: a b"
    assert one_line(CheckpointError("a\nb")) == "a b"


def test_the_registry_of_defects():
    assert check_defects(list(DEFECTS), "x") != []
    assert omitted_parts(["no-rng", "no-skip"]) == {"rng"}
    assert omitted_parts([]) == frozenset()


def test_the_hooks_are_called_in_order(tmp_path):
    recorder = Recorder()
    assert main(["--out", str(tmp_path), "--steps", "2"], recorder) == 0
    name = "step-00000002.pt"
    expected = ["start", "state start", "resume 0 None None", "batch 1", "batch 2"]
    expected += ["state save", f"begin {name}", f"end {name}", "state end"]
    assert recorder.calls == [*expected, "end 2 2"]
    recorder = Recorder()
    assert main(["--out", str(tmp_path), "--steps", "2"], recorder) == 0
    assert recorder.calls == ["start", "state start", f"resume 2 {name} 1", "state load", "state end", "end 2 2"]


def test_a_skipped_batch_changes_nothing_but_the_position(tmp_path):
    recorder = Recorder(bad_batches=(1, 3))
    assert main(["--out", str(tmp_path), "--steps", "4", "--precision", "fp16"], recorder) == 0
    assert [(report.batch, report.step, report.reason) for report in recorder.reports] == [
        (1, 0, "non_finite_loss"),
        (2, 1, None),
        (3, 1, "non_finite_loss"),
        (4, 2, None),
    ]
    assert [report.scale for report in recorder.reports] == [1024.0, 512.0, 512.0, 256.0]
    assert recorder.reports[0].learning_rate == recorder.reports[1].learning_rate


def test_training_learns(tmp_path):
    recorder = Recorder()
    main(["--out", str(tmp_path), "--steps", "60", "--save-every", "60", "--learning-rate", "1e-2"], recorder)
    losses = [report.global_loss for report in recorder.reports]
    assert sum(losses[-10:]) / 10 < 0.8 * sum(losses[:5]) / 5


def test_wrong_usage_is_exit_code_2(capsys, tmp_path):
    assert main(["--steps", "0", "--out", str(tmp_path)]) == 2
    assert "usage error: --steps" in capsys.readouterr().err


class InTheWay(TrainingHooks):
    """Puts a file where the directory of the checkpoints is to be, once it can no longer be seen at the start."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def built(self, training: Training) -> None:
        self._path.touch()


def test_a_directory_that_cannot_be_made_is_one_line(capsys, tmp_path):
    assert main(["--out", str(tmp_path / "file/out"), "--steps", "1"], InTheWay(tmp_path / "file")) == 1
    error = capsys.readouterr().err
    assert error.startswith("rank 0: failed: ")
    assert len(error.splitlines()) == 1


def test_no_more_than_a_configuration_is_needed():
    assert TrainConfig().steps == 24
