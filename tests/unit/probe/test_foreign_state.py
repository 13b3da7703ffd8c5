"""What the probe reads of a foreign job's state: by name, whole over ranks, and in variables. In this process, without a job."""

from __future__ import annotations

import gc
import importlib
import random
import sys
import weakref
from collections import Counter, deque
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "harness" / "probe" / "injected"))

from resume_probe import digests
from resume_probe.attributes import Attributes
from resume_probe.content import content, gradients, values
from resume_probe.found import Found
from resume_probe.whole import _mixed, _sum, whole

from harness.probe import whole as of_reference


class Tied(torch.nn.Module):
    def __init__(self, tied: bool = True):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.norm = torch.nn.BatchNorm1d(3)
        self.register_buffer("seen", torch.zeros(1), persistent=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.norm(self.embed(x)))


class Stopper:
    def __init__(self):
        self.patience, self.best = 3, 0.5
        self.history = deque([1.0, 2.0])
        self.draws = torch.Generator().manual_seed(7)

    @property
    def trap(self):
        raise AssertionError("nothing of the trainer's is called")


@pytest.fixture
def job():
    gc.collect()  # an optimizer and its scheduler hold each other, in other tests of this process too
    torch.manual_seed(0)
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    model(torch.tensor([0, 1])).sum().backward()
    optimizer.step()
    average = torch.optim.swa_utils.AveragedModel(model)
    yield model, optimizer, scheduler, average
    # What another test finds among the living objects must not be ours.
    del model, optimizer, scheduler, average


def own(names):
    """Those of functions and of what trains: other tests in this process have modules with variables, too."""
    return [name for name in names if "()" in name.partition(".")[0] or name.startswith(("model.", "optimizer."))]


def read(job):
    del job
    return content(Found())


def test_every_component_is_there_by_name(job):
    parts = read(job)
    assert set(parts) == {
        "model",
        "model.ties",
        "buffers",
        "optimizer",
        "scheduler",
        "ema",
        "rng.python",
        "rng.torch",
        "rng.numpy",
    }
    assert "0.seen" in parts["buffers"]
    assert parts["model.ties"] == {"0.embed.weight": ["0.head.weight"]}
    assert torch.equal(parts["optimizer"]["0:0.norm.bias.exp_avg"], job[1].state[job[0].norm.bias]["exp_avg"])
    assert values(parts)["scheduler.lr.0.0"] == 0.5
    assert values(parts)["scheduler.0.last_epoch"] == 0.0
    assert {name for name in parts["ema"] if "n_averaged" in name}
    assert set(gradients(Found())) == set(parts["model"])


def test_a_tie_that_is_undone_is_seen_though_all_values_are_the_same(job):
    model, optimizer, *_ = job
    before = digests.of_components(digests.of_parts(read(job)))
    model.head.weight = torch.nn.Parameter(model.embed.weight.detach().clone())
    optimizer.add_param_group({"params": [model.head.weight]})
    after = digests.of_components(digests.of_parts(read(job)))
    assert "model.ties" in before
    assert "model.ties" not in after


def test_a_dtype_is_a_part_of_a_digest(job):
    before = digests.of_parts(read(job))
    state = job[1].state[job[0].norm.bias]
    state["exp_avg"] = state["exp_avg"].to(torch.bfloat16).float()
    rounded = digests.of_parts(read(job))
    state["exp_avg"] = state["exp_avg"].double()
    widened = digests.of_parts(read(job))
    name = "0:0.norm.bias.exp_avg"
    assert len({one["optimizer"][name] for one in (before, rounded, widened)}) == 3
    assert before["model"] == widened["model"]


def test_briefly_says_the_parts_of_what_has_several():
    parts = {"one": {"": "abcdef012345"}, "two": {"a": "abcdef012345", "b": "0123456789ab"}}
    assert digests.briefly(parts) == {"two": {"a": "abcdef01", "b": "01234567"}}


def test_the_sum_over_parts_is_that_of_the_whole():
    tensor = torch.randn(6, 5)
    once = _sum("w", tensor, tensor, 0)
    assert once == (_sum("w", tensor, tensor[:2], 0) + _sum("w", tensor, tensor[2:], 10)) % 2**64
    places = torch.arange(30).view(6, 5)
    columns = [_sum("w", tensor, tensor[:, part].contiguous(), places[:, part].flatten()) for part in (slice(0, 2), slice(2, 5))]
    assert once == sum(columns) % 2**64
    assert once != _sum("other", tensor, tensor, 0)
    assert once != _sum("w", tensor, tensor.roll(1, 0), 0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64, torch.bool, torch.uint8, torch.int64])
def test_every_dtype_has_a_sum(dtype):
    tensor = torch.ones(3, dtype=dtype)
    other = torch.zeros(3, dtype=dtype)
    assert _sum("w", tensor, tensor, 0) != _sum("w", other, other, 0)


def test_the_numbers_are_mixed_as_in_the_reference_trainer():
    numbers = torch.tensor([0, 1, -1, 2**62 + 12345])
    expected = of_reference._mixed(numbers.numpy().view(np.uint64))
    assert np.array_equal(_mixed(numbers).numpy().view(np.uint64), expected)


def test_what_a_rank_holds_alone_is_told_from_what_all_hold(job):
    parts = read(job)
    all_hold, some_hold = whole(parts, partial=False), whole(parts, partial=True)
    assert all_hold["own"] == {}
    assert set(some_hold["own"]) == {"optimizer"}
    assert all_hold["common"]["model"] == some_hold["common"]["model"]
    together = int(some_hold["common"]["optimizer"], 16) + int(some_hold["own"]["optimizer"], 16)
    assert f"{together % 2**64:016x}" == all_hold["common"]["optimizer"]
    assert not any(name.startswith("rng") for name in all_hold["common"])


def looked(**given):
    """What is seen of these variables of a function, by their names."""
    seen = Attributes().look(Found())
    assert given
    start = "looked().given["
    return {
        field: {name.removeprefix(start).replace("]", "", 1): value for name, value in those.items() if name.startswith(start)}
        for field, those in seen.items()
    }


def test_variables_and_attributes_are_walked(job):
    model = job[0]
    seen = looked(
        stopper=Stopper(),
        ema={name: value.detach().clone() for name, value in model.named_parameters()},
        plain=[1, 2.5],
        own=random.Random(1),
        numpy_own=np.random.default_rng(3),
    )
    assert seen["attributes"]["stopper.patience"] == "=3"
    assert seen["attributes"]["stopper.best"] == f"={(0.5).hex()}"
    assert {"stopper.history", "plain"} <= set(seen["attributes"])
    assert {"stopper.draws", "own", "numpy_own"} <= set(seen["generators"])
    assert "ema" in seen["averages"]


def test_an_average_has_another_digest_once_it_has_moved(job):
    ema = [value.detach().clone() for value in job[0].parameters()]
    walker = Attributes()

    def digest_now():
        return next(digest for name, digest in walker.look(Found())["averages"].items() if name.endswith("moved().ema"))

    before = digest_now()
    assert digest_now() == before
    ema[0].mul_(0.9)
    assert digest_now() != before


def test_a_state_dict_is_the_model_by_another_name_and_no_average(job):
    assert looked(ema=job[0].state_dict(), stopper=1)["averages"] == {}


def test_only_what_is_new_is_said_again():
    walker = Attributes()

    def said(counter, other):
        assert (counter, other) is not None
        return {name: value for name, value in walker.news(Found())["attributes"].items() if name.startswith("said()")}

    assert said(1, "a") == {"said().counter": "=1", "said().other": "='a'"}
    assert said(2, "a") == {"said().counter": "=2"}
    assert said(2, object()) == {"said().other": None}


class Progress:
    consumed = 3
    limit: int = 9
    rows: list[int] = []  # noqa: RUF012  as people write it

    def method(self):
        raise AssertionError("nothing of the trainer's is called")


class Momentum(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})
        self.momenta = [one.detach().clone() for group in self.param_groups for one in group["params"]]
        self.calls = 2


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.BatchNorm1d(2, affine=False)


def test_classes_that_hold_values_are_walked():
    progress = Progress()
    progress.limit = 5
    seen = Attributes().look(Found())["attributes"]
    mine = {name.rpartition("test_foreign_state.")[2].rpartition("().")[2]: value for name, value in seen.items()}
    expected = {"Progress.consumed": "=3", "Progress.limit": "=9", "progress.consumed": "=3", "progress.limit": "=5"}
    assert {name: mine.get(name) for name in expected} == expected
    assert mine["Progress.rows"] == "=[]"
    assert not [name for name in own(seen) if "Counter." in name or "method" in name]


def test_what_is_empty_is_said_and_an_empty_window_is_a_state_of_it():
    seen = looked(rows=[], table={}, window=deque(maxlen=3), lasting=deque(), full=list(range(1000)))["attributes"]
    assert [seen[name] for name in ("rows", "table", "lasting")] == ["=[]"] * 3
    assert not seen["window"].startswith("=")
    assert "full" not in seen


def test_what_an_optimizer_of_the_trainers_own_keeps_is_walked(job):
    model = job[0]
    mine = Momentum(model.parameters())
    seen = Attributes().look(Found())
    number = next(n for n, one in enumerate(Found().optimizers) if one is mine)
    assert f"optimizer.{number}.momenta" in seen["averages"]
    assert seen["attributes"][f"optimizer.{number}.calls"] == "=2"
    assert not [name for name in own(seen["attributes"]) if "param_groups" in name or "defaults" in name]


def test_statistics_of_a_module_without_parameters_are_walked(job):
    loss, normal = Scaled(), torch.nn.BatchNorm1d(2, affine=False)
    assert any(name.endswith("normal.running_mean") for name in Attributes().look(Found())["attributes"])
    assert normal.training

    def said():
        found = Attributes().look(Found())["attributes"]
        assert not [name for name in own(found) if name.endswith((".seen", "norm.running_mean"))]  # those of what is trained
        return next(value for name, value in found.items() if name.endswith("loss.inner.running_mean"))

    before = said()
    loss.inner.running_mean += 1
    assert said() != before


class Slotted:
    __slots__ = ("never", "tokens")

    def __init__(self):
        self.tokens = 7


class Finer(Slotted):  # with a dictionary beside the slots
    def __init__(self):
        super().__init__()
        self.level = 2


def counting():
    calls = 0

    def count():
        nonlocal calls
        calls += 1

    count()
    return count


def stream():
    position = 0
    while True:
        position += 1
        yield position


def begun(closed=False):
    batches = stream()
    next(batches)
    if closed:
        batches.close()
    return batches


def test_modes_of_models_are_told():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5), torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    number = Found().roots.index(model)
    walker = Attributes()

    def told(what):
        return walker.look(Found())["modes"].get(f"model.{number}.{what}")

    assert (told("training"), told("requires_grad")) == ("=True", "=True")
    model[1].eval()
    model[0].requires_grad_(False)
    assert (told("training"), told("requires_grad")) == ("=False of 1", "=False of 0.bias, 0.weight")
    model.eval()
    assert told("training") == "=False"
    with torch.no_grad():
        assert told("training") is None
    del optimizer


def test_what_is_kept_in_slots_closures_generators_sets_and_numpy_is_walked():
    seen = looked(
        state=Finer(),
        count=counting(),
        batches=begun(),
        done=begun(closed=True),
        ids={3, 1},
        per_class=Counter({"a": 2}),
        best=np.float64(0.5),
        mean=np.zeros(3),
        large=np.zeros(1 << 16),
        objects=np.array([object()]),
    )["attributes"]
    assert (seen["state.tokens"], seen["state.level"]) == ("=7", "=2")
    assert (seen["count().calls"], seen["batches().position"], seen["best"]) == ("=1", "=1", f"={(0.5).hex()}")
    assert {"ids", "per_class", "mean"} <= set(seen)
    assert not {"large", "objects", "state.never", "done().position"} & set(seen)
    assert looked(ids={1, 3}, mean=np.zeros(3))["attributes"]["ids"] == seen["ids"]
    assert looked(mean=np.ones(3))["attributes"]["mean"] != seen["mean"]


def test_variables_of_a_module_that_is_not_running_are_walked(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "helper_of_a_trainer.py").write_text("patience = 3\n")
    helper = importlib.import_module("helper_of_a_trainer")
    try:
        walker = Attributes()
        assert walker.look(Found())["attributes"]["helper_of_a_trainer.patience"] == "=3"
        helper.patience = 4
        assert walker.look(Found())["attributes"]["helper_of_a_trainer.patience"] == "=4"
    finally:
        del sys.modules["helper_of_a_trainer"]


@pytest.mark.usefixtures("job")
def test_what_trains_comes_before_the_variables_of_other_modules(tmp_path, monkeypatch):
    """A repository has hundreds of modules, and as many objects in them as are looked at."""
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "class One:\n    def __init__(self):\n        self.at = 1\n\n\nMANY = [One() for _ in range(250)]\n"
    names = [f"crowd_of_a_trainer_{number}" for number in range(4)]
    for name in names:
        (tmp_path / f"{name}.py").write_text(text)
        importlib.import_module(name)
    Found().roots[0].patience = 3
    try:
        assert Attributes().look(Found())["attributes"]["model.0.patience"] == "=3"
    finally:
        for name in names:
            del sys.modules[name]


@pytest.mark.usefixtures("job")
def test_a_variable_that_a_function_deletes_is_gone_although_it_was_looked_at():
    """A wrapped model that is still held makes the end of its process group wait for itself."""
    seen = []

    def train():
        model = Stopper()
        there = weakref.ref(model)
        seen.extend(Attributes().look(Found())["attributes"])
        del model
        return there()

    def asks():
        kept, first = locals(), 1
        Attributes().look(Found())
        return kept, first

    assert train() is None
    assert "train().model.patience" in seen
    assert asks()[0]["first"] == 1
