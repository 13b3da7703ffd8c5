"""The checkpoint is written by a thread, which starts after the next step so as not to compete with this one."""

import argparse
import copy
import os
import threading

import torch
from torch import nn


class AsyncSaver:
    def __init__(self, folder, copied):
        self.folder, self.copied = folder, copied
        self.waiting, self.thread = None, None

    def save(self, state, step):
        self.wait()
        self.waiting = (copy.deepcopy(state) if self.copied else state, step)

    def after_step(self):
        if self.waiting is not None:
            self.thread = threading.Thread(target=self.write, args=self.waiting)
            self.waiting = None
            self.thread.start()

    def write(self, state, step):
        target = os.path.join(self.folder, f"step-{step}.pt")
        torch.save(state, target + ".tmp")
        os.replace(target + ".tmp", target)

    def wait(self):
        self.after_step()
        if self.thread is not None:
            self.thread.join()
            self.thread = None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--copy", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(14)
    model = nn.Sequential(nn.Linear(9, 9), nn.ELU(), nn.Linear(9, 9))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    saver, step = AsyncSaver(args.out, args.copy), 0
    found = [name for name in os.listdir(args.out) if name.endswith(".pt")]
    if found:
        state = torch.load(os.path.join(args.out, max(found, key=lambda name: int(name[5:-3]))))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    data = torch.randn(20, 3, 9)
    while step < 16:
        loss = (model(data[step]) - data[step].roll(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        saver.after_step()
        if step % 5 == 0:
            saver.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, step)
    saver.wait()


main()
