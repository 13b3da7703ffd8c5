"""A small trainer that saves with a library as its documentation shows: `python trainer.py OUT HOW`.

HOW is `dcp` (`torch.distributed.checkpoint.save` to one checkpoint id, which is overwritten), `dcp-steps` (one id a step) or
`safetensors` (`save_file` over one name). Writes the event log (docs/event-log.md). It does nothing to help the library: what is
found here is what the library leaves after a crash.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import nn

STEPS = 4


def say(event: str, **fields: object) -> None:
    line = json.dumps({"event": event, "rank": 0, "time_s": time.time(), **fields}) + "\n"
    log = os.open(os.environ["HARNESS_EVENT_LOG"] + "/rank-0.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(log, line.encode())
    os.close(log)


def name_of(how: str, step: int) -> str:
    return {"dcp": "latest", "dcp-steps": f"step-{step}", "safetensors": "latest.safetensors"}[how]


def save(how: str, path: Path, model: nn.Module, step: int) -> None:
    if how == "safetensors":
        save_file({**model.state_dict(), "step": torch.tensor(step)}, path)
    else:
        dcp.save({"model": model.state_dict(), "step": torch.tensor(step)}, checkpoint_id=path, no_dist=True)


def load(how: str, root: Path, model: nn.Module) -> tuple[int, str | None]:
    """The step of what was loaded and its name; 0 and None where there is nothing."""
    candidates = [path for path in sorted(root.iterdir(), reverse=True) if how == "safetensors" or (path / ".metadata").exists()]
    for path in [path for path in candidates if not path.name.startswith(".")]:
        state = {**model.state_dict(), "step": torch.tensor(0)}
        if how == "safetensors":
            state = load_file(path)
        else:
            whole = {"model": model.state_dict(), "step": torch.tensor(0)}
            dcp.load(whole, checkpoint_id=path, no_dist=True)
            state = {**whole["model"], "step": whole["step"]}
        step = int(state.pop("step"))
        model.load_state_dict(state)
        return step, path.name
    return 0, None


def main() -> None:
    root, how = Path(sys.argv[1]), sys.argv[2]
    torch.manual_seed(0)
    model = nn.Linear(40, 40)
    say("start", world_size=1, pid=os.getpid(), python="", torch=torch.__version__, arguments=sys.argv[1:])
    done, checkpoint = load(how, root, model)
    say("resume", step=done, checkpoint=checkpoint, skipped=[], world_size_saved=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(done + 1, STEPS + 1):
        batch = torch.randn(8, 40, generator=torch.Generator().manual_seed(step))
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = float(loss.detach()).hex()
        say("batch", batch=step, step=step, epoch=0, batch_in_epoch=step, tag="STEP", loss=value, global_loss=value)
        name = name_of(how, step)
        say("save", moment="begin", step=step, checkpoint=name)
        save(how, root / name, model, step)
        say("save", moment="end", step=step, checkpoint=name)
    say("end", step=STEPS, batches=STEPS)


if __name__ == "__main__":
    main()
