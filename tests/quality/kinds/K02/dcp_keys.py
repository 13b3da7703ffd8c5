"""A checkpoint by torch's own helpers, in one process: what a scheduler had put into the groups is gone after the load."""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

OUT, REMEMBER = sys.argv[1], "--remember" in sys.argv
dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/meet", rank=0, world_size=1)
torch.manual_seed(0)
model = torch.nn.Linear(5, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
names = sorted(name for name in os.listdir(OUT) if os.path.exists(os.path.join(OUT, name, ".metadata")))
step, last = 0, -1
if names:
    model_state, optim_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optim": optim_state, "step": 0}
    dcp.load(state, checkpoint_id=os.path.join(OUT, names[-1]))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    step = last = state["step"]
    if REMEMBER:
        for group in optimizer.param_groups:
            group["initial_lr"] = 0.2
            last = step - 1
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + n), last_epoch=last)
while step < 15:
    x = torch.sin(torch.arange(20.0) * (step + 1)).reshape(4, 5)
    loss = (model(x) - x).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    step += 1
    if step % 5 == 0:
        model_state, optim_state = get_state_dict(model, optimizer)
        dcp.save({"model": model_state, "optim": optim_state, "step": step}, checkpoint_id=os.path.join(OUT, f"step-{step:03d}"))
dist.destroy_process_group()
