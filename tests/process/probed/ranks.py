"""Jobs of two ranks: DDP and FSDP2, started by a launcher that sets RANK, or by `mp.spawn`."""

import os
import sys

import torch
import torch.distributed as dist
from common import after, arguments, batch, seed
from torch.nn.functional import cross_entropy

OUT, STEPS, EVERY = arguments.out, arguments.steps, arguments.every


def say(rank, loss):
    os.write(1, f"{rank} {float(loss).hex()}\n".encode())  # in one go: the ranks may share a file


def ddp(rank):
    seed()
    net = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    path, first = os.path.join(OUT, "last.pt"), 0
    if os.path.exists(path):
        state = torch.load(path)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    for step in range(first + 1, STEPS + 1):
        x, y = batch(step, shift=rank)
        optimizer.zero_grad()
        loss = cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        say(rank, loss)
        if step % EVERY == 0:
            if rank == 0:
                torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
            dist.barrier()
        after(step)


def fsdp(rank):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    seed()
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    fully_shard(net[0])
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    names = sorted((n for n in os.listdir(OUT) if os.path.exists(f"{OUT}/{n}/.metadata")), key=lambda n: int(n[5:]))
    first = 0
    if names:
        model_state, optimizer_state = get_state_dict(net, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        dcp.load(state, checkpoint_id=f"{OUT}/{names[-1]}")
        set_state_dict(net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        first = int(names[-1][5:])
    for step in range(first + 1, STEPS + 1):
        x, y = batch(step, shift=rank)
        optimizer.zero_grad()
        loss = cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        say(rank, loss)
        if step % EVERY == 0:
            with torch.no_grad():
                net(x)  # leaves the root's parameters gathered
            model_state, optimizer_state = get_state_dict(net, optimizer)
            dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=f"{OUT}/step-{step}")
        after(step)


def become(rank, kind, how):
    dist.init_process_group("gloo", init_method=how, rank=rank, world_size=2)
    {"ddp": ddp, "fsdp": fsdp}[kind](rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        become(int(os.environ["RANK"]), sys.argv[1], "env://")
    else:
        torch.multiprocessing.start_processes(
            become, (sys.argv[1], f"file://{OUT}-meeting"), nprocs=2, start_method="fork" if "fork" in sys.argv else "spawn"
        )
