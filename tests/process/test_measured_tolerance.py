"""The tolerance `auto` on real jobs: the noise is measured where the restart went on, and tells small errors from rounding."""

from __future__ import annotations

from dataclasses import replace

from harness.case import run_case
from harness.judge import judge
from harness.plan import make_plan, read_plan
from harness.scenario import Command, Scenario, job
from harness.store import read_baseline, read_run

# Goes on from its newest checkpoint, and has then lost the last digits of its weights: a hundred thousandth of each.
TRAINER = """
import sys
from pathlib import Path
import torch
folder = Path(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs, targets = torch.randn(64, 8), torch.randn(64, 1)
step, file = 0, folder / "last.pt"
if file.exists():
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    step = saved["step"]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 1e-5)
while step < 12:
    rows = torch.arange(step * 4, step * 4 + 4) % 64
    optimizer.zero_grad()
    ((model(inputs[rows]) - targets[rows]) ** 2).mean().backward()
    optimizer.step()
    step += 1
    if step % 3 == 0:
        torch.save({"model": model.state_dict(), "step": step}, folder / "last.tmp")
        (folder / "last.tmp").replace(file)
"""


def test_a_healthy_change_of_the_number_of_ranks_passes_beside_its_noise(harness_workbench):
    case = job(
        "sharded",
        ranks=(2, 1),
        steps=8,
        batches_per_epoch=4,
        save_every=2,
        reshard=True,
        rng_scope="global",
        faults="sigkill all ranks at step 5",
        tolerance="auto",
        name="auto-healthy",
    )
    verdict, directory = run_case(case, harness_workbench)
    assert verdict.outcome == "PASS", verdict.findings
    assert verdict.noise is not None
    assert (verdict.noise.after, verdict.noise.is_chaotic) == (4, False)
    assert 0 < verdict.noise.first < 1e-5
    assert verdict.noise.times is not None
    assert verdict.noise.times < 16
    assert read_plan(directory.plan_file).scenario.tolerance == "auto"


def test_an_error_that_the_fixed_tolerance_misses_is_caught(harness_workbench, tmp_path):
    (tmp_path / "train.py").write_text(TRAINER)
    command = Command(command=("{python}", str(tmp_path / "train.py"), "{ckpt}"), probe=True)
    facts = {"name": "auto-planted", "workload": command, "world_sizes": (1,), "faults": ("sigkill all ranks at step 8",)}
    facts["deadline_s"] = 300.0
    case = Scenario.build({**facts, "tolerance": "auto", "launch": "cold"})
    verdict, directory = run_case(case, harness_workbench)
    assert verdict.outcome == "FAIL"
    assert "loss" in {finding.oracle for finding in verdict.findings}
    assert verdict.noise is not None
    assert verdict.noise.times is not None
    assert verdict.noise.times > 16
    # The same records, with the fixed tolerance: no loss differs by as much.
    fixed = replace(read_run(directory.path), plan=make_plan(case.model_copy(update={"tolerance": 1e-4})))
    again = judge(fixed, read_baseline(directory.golden))
    assert "loss" not in {finding.oracle for finding in again.findings}
    assert again.max_loss_diff is not None
    assert 0 < again.max_loss_diff < 1e-4
