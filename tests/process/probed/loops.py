"""Loops of every kind, each a few lines; the first argument is its name. Each prints its losses, and saves as it likes."""

import json
import os
import sys

import common
import numpy
import torch
from common import after, arguments, batch, load, model, save_all, say, seed
from torch.nn.functional import cross_entropy

OUT, STEPS, EVERY = arguments.out, arguments.steps, arguments.every


def plain(warm_up=0, evaluate=False, compiled=None, workers=0):
    seed()
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: n / warm_up if n < warm_up else 1 / (1 + n))
    parts = {"model": net, "optimizer": optimizer, "schedule": schedule}
    first = load(**parts)
    call = compiled(net) if compiled else net
    for step in range(first + 1, STEPS + 1):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = cross_entropy(call(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        say(loss)
        if evaluate:
            net.eval()
            with torch.no_grad():
                say(cross_entropy(net(x), y))
            net.train()
        with open(os.path.join(OUT, "train.log"), "a") as file:
            file.write(f"{step}\n")
        if step % EVERY == 0:
            save_all(step, **parts)
        after(step)


def two_names():
    """The best every other step, the last every third, a pointer and figures beside them: at step 6 all is written at once."""
    seed()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(1, STEPS + 1):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        say(loss)
        if step % 2 == 0:
            torch.save(net.state_dict(), os.path.join(OUT, "best.pt"))
        if step % 3 == 0:
            common.save({"model": net.state_dict(), "step": step}, "last.pt")
            with open(os.path.join(OUT, "latest"), "w") as file:
                file.write("last.pt")
            with open(os.path.join(OUT, "metrics.json"), "w") as file:
                json.dump({"loss": loss.item()}, file)


def warmup():
    plain(warm_up=4)


def evaluated():
    plain(evaluate=True)


class Called(torch.nn.Module):
    """The compiler leaves frames of torch's own alone; this one is not torch's."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) * 2


def compiled(how):
    """Prints the graphs that the compiler makes, which are to be the same as well."""
    graphs = []

    def backend(graph, _inputs):
        graphs.append([str(node) for node in graph.graph.nodes])
        return graph.forward

    plain(compiled=lambda net: how(Called(net), backend=backend))
    assert graphs
    print("graphs", graphs)


def compiled_outside():
    compiled(lambda net, backend: torch.compile(net, backend=backend, fullgraph=True))


def compiled_in_place():
    def how(net, backend):
        net.compile(backend=backend, fullgraph=True)
        return net

    compiled(how)


def compiled_step():
    """All of a step in one compiled function, with breaks where there must be."""
    seed()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def train(x, y):
        loss = cross_entropy(net(x), y)
        loss.backward()
        return loss

    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        say(train(*batch(step)))
        optimizer.step()
        if step % EVERY == 0:
            save_all(step, model=net, optimizer=optimizer)


def accumulated():
    seed()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    first = load(model=net, optimizer=optimizer)
    for step in range(first + 1, STEPS + 1):
        optimizer.zero_grad()
        total = 0.0
        for micro in range(3):
            x, y = batch(3 * step + micro)
            loss = cross_entropy(net(x), y) / 3
            loss.backward()
            total += float(loss)
            loss.mul_(7)  # such as a sum over ranks, in place
        optimizer.step()
        say(total)
        if step % EVERY == 0:
            save_all(step, model=net, optimizer=optimizer)
        after(step)


def gan():
    seed()
    maker, critic = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
    makes = torch.optim.Adam(maker.parameters(), lr=0.01)
    criticises = torch.optim.Adam(critic.parameters(), lr=0.02)
    parts = {"maker": maker, "critic": critic, "makes": makes, "criticises": criticises}
    first = load(**parts)
    for step in range(first + 1, STEPS + 1):
        real, _ = batch(step)
        noise = torch.randn(6, 4)
        criticises.zero_grad()
        loss = critic(maker(noise).detach()).mean() - critic(real).mean()
        loss.backward()
        criticises.step()
        say(loss)
        makes.zero_grad()
        loss = -critic(maker(noise)).mean()
        loss.backward()
        makes.step()
        say(loss)
        if step % EVERY == 0:
            save_all(step, **parts)
        after(step)


def closure():
    seed()
    net = torch.nn.Linear(8, 4)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4)
    first = load(model=net, optimizer=optimizer)
    for step in range(first + 1, STEPS + 1):
        x, y = batch(step)

        def evaluate(x=x, y=y):
            optimizer.zero_grad()
            loss = cross_entropy(net(x), y)
            loss.backward()
            return loss

        say(optimizer.step(evaluate))
        if step % EVERY == 0:
            save_all(step, model=net, optimizer=optimizer)
        after(step)


def scaled():
    seed()
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=3)
    first = load(model=net, optimizer=optimizer, scaler=scaler)
    for step in range(first + 1, STEPS + 1):
        x, y = batch(step)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(net(x), y) * (1e4 if step == 3 and "overflow" in sys.argv else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        say(loss)
        if step % EVERY == 0:
            save_all(step, model=net, optimizer=optimizer, scaler=scaler)
        after(step)


class Keywords(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model(0.0)

    def forward(self, inputs=None, labels=None):
        return cross_entropy(self.inner(inputs), labels)


def keywords():
    seed()
    net = Keywords()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(1, STEPS + 1):
        x, y = batch(step)
        loss = net(inputs=x, labels=y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(loss)
        if step % EVERY == 0:
            torch.save(net, os.path.join(OUT, f"whole-{step}.pt"))


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        x, y = batch(index, rows=1)
        return x[0] + torch.randn(8), y[0]


def loaded():
    seed()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(2):
        for x, y in torch.utils.data.DataLoader(Numbers(), batch_size=8, shuffle=True, num_workers=2):
            loss = cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            say(loss)
        save_all(epoch + 1, model=net)


def swallowing():
    seed()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(1, STEPS + 1):
        x, y = batch(step)
        try:
            optimizer.zero_grad()
            if step == 2:
                net(x[:, :3])
            loss = cross_entropy(net(x), y)
            if step == 4:
                loss.backward(torch.ones(5))
            loss.backward()
            optimizer.step()
            say(loss)
        except RuntimeError as error:
            print("swallowed", type(error).__name__)
        if step % EVERY == 0:
            save_all(step, model=net)


def checkpointed():
    seed()
    first, second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    for step in range(1, STEPS + 1):
        x, y = batch(step)
        hidden = torch.utils.checkpoint.checkpoint(
            lambda x: torch.tanh(first(x)), x.requires_grad_(), use_reentrant=step % 2 == 0
        )
        loss = cross_entropy(second(hidden), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(loss)


def forms():
    """A save of another form after every step: files of numpy, JSON, safetensors, moved and linked ones, and in a thread."""
    import shutil
    import threading

    from safetensors.torch import save_file

    seed()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    weights = dict(net.state_dict())

    def by_numpy(path):
        numpy.savez(path + ".npz", **{name: value.numpy() for name, value in weights.items()})

    def by_json(path):
        with open(path + ".json", "w") as file:
            json.dump({name: value.tolist() for name, value in weights.items()}, file)

    def by_safetensors(path):
        save_file(weights, path + ".safetensors")

    def by_move(path):
        torch.save(weights, OUT + "-staging")
        shutil.move(OUT + "-staging", path + ".moved")

    def by_link(path):
        torch.save(weights, OUT + "-staging")
        os.link(OUT + "-staging", path + ".linked")

    def by_folder(path):
        os.mkdir(path + ".tmp")
        with open(path + ".tmp/data", "wb") as file:
            torch.save(weights, file)
        os.rename(path + ".tmp", path)

    def in_thread(path):
        thread = threading.Thread(target=torch.save, args=(weights, path + ".thread"))
        thread.start()
        thread.join()

    forms = [by_numpy, by_json, by_safetensors, by_move, by_link, by_folder, in_thread]
    for step, form in enumerate(forms, 1):
        x, y = batch(step)
        loss = cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(loss)
        with open(os.path.join(OUT, "metrics.json"), "w") as file:
            json.dump({"step": step}, file)
        form(os.path.join(OUT, f"state-{step}"))


def forked():
    seed()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(1, STEPS + 1):
        x, y = batch(step)
        loss = cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(loss)
        child = os.fork()
        if child == 0:
            cross_entropy(net(x), y).backward()
            optimizer.step()
            sys.exit(0) if step > 1 else os._exit(0)
        os.waitpid(child, 0)


def ending():
    try:
        plain()
    finally:
        if "raise" in sys.argv:
            raise ValueError("it is over")
        sys.exit(3)


def idle():
    print(float(torch.ones(3).sum()).hex())
    net = torch.nn.Linear(2, 2)
    net(torch.ones(1, 2)).sum().backward()
    open(os.path.join(OUT, "model.bin"), "wb").close()


def broken():
    """The probe has a fault of its own."""
    places = {"schedules": ("content", "_schedules"), "rows": ("digests", "rows"), "generators": ("content", "generators")}
    module, name = next(places[word] for word in sys.argv if word in places)
    probe = sys.modules.get(f"resume_probe.{module}")
    if probe is not None:

        def fail(*_):
            raise KeyError("planted")

        setattr(probe, name, fail)
    plain()


seed()
assert common.arguments is arguments
globals()[sys.argv[1]]()
