"""Raw float32 weights with a small header, read into one buffer."""

import argparse
import json
import os
import struct

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--check-length", action="store_true")
args = parser.parse_args()

torch.manual_seed(40)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def write(path, step):
    flat = torch.cat([parameter.data.flatten() for parameter in model.parameters()])
    header = json.dumps({"step": step, "count": flat.numel()}).encode()
    with open(path + ".tmp", "wb") as file:
        file.write(struct.pack("<I", len(header)) + header + flat.numpy().tobytes())
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)


def read(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<I", file.read(4))
        header = json.loads(file.read(length))
        buffer = torch.zeros(header["count"])
        got = file.readinto(buffer.numpy().view("u1"))
    if args.check_length and got != buffer.numel() * 4:
        raise ValueError(f"{path} is cut short: {got} bytes of weights, expected {buffer.numel() * 4}")
    first = 0
    for parameter in model.parameters():
        parameter.data.copy_(buffer[first : first + parameter.numel()].view_as(parameter))
        first += parameter.numel()
    return header["step"]


step = 0
shards = sorted(name for name in os.listdir(args.out) if name.endswith(".shard"))
for name in reversed(shards):
    try:
        step = read(os.path.join(args.out, name))
        break
    except ValueError as error:
        print(error)
while step < 16:
    inputs = torch.randn(4, 16, generator=torch.Generator().manual_seed(step))
    loss = (model(inputs) - inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 4 == 0:
        write(os.path.join(args.out, f"{step:04d}.shard"), step)
