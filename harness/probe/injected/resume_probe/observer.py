"""What a foreign job does, as records of docs/event-log.md: batches, updates, skips, saves, where it began, and its end.

Responsible for: the order of things within a process. One batch is what lies between two updates (or skipped updates) of the
optimizers; its loss is the sum of what `backward` was called on, as the trainer scales it for accumulation, and without the
scale of a GradScaler. The position after a restart is told by comparing the state before the first batch with the uninterrupted
run's (`golden`). Changes nothing, and a fault of the probe's own never reaches the trainer: it is written down instead.
Where it is called from is in `attached`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import math
import os
import platform
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import resume_probe
import torch
from torch.optim.optimizer import Optimizer

from . import digests, memory
from .attributes import Attributes
from .content import content, gradients, plain_name, values, weights
from .flip import VARIABLE as FLIP_VARIABLE
from .flip import flip_after, flip_last_bits
from .found import Found
from .golden import Golden, Unfinished, read_earlier, read_golden
from .inputs import Inputs
from .log import Log, hex_of
from .saves import Saves
from .whole import whole

# What tells where a job began without a doubt.
_SURE = "model+optimizer"
_FACTORS = {"overflow": 1e5, "nan": math.nan, "nonfinite-grad": math.inf, "spike": 1000.0}


def begin() -> None:
    """Attaches the probe to this process."""
    from .attached import attach

    attach(Observer(os.environ["HARNESS_EVENT_LOG"], os.environ["HARNESS_PROBE"], os.environ.get("HARNESS_PROBE_GOLDEN", "")))


def _careful(function: Callable[..., Any]) -> Callable[..., Any]:
    """A fault of ours is written down, once, and ends the probe; the trainer goes on."""

    @functools.wraps(function)
    def run(self: Observer, *args: Any, **kwargs: Any) -> Any:
        if self.off:
            return None
        try:
            return function(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  whatever it is
            self.fail(function.__name__, error)
            return None

    return run


class Observer:
    """Of one process."""

    def __init__(self, folder: str, root: str, golden: str) -> None:
        self.log = Log(folder)
        self.off = False
        self.stale = True  # an optimizer has been made since somebody looked
        self.had_optimizers = False
        self.exit_status: object = None
        self.repeats = False  # a closure is called again: the same batch
        self._process = os.getpid()
        self._thread = 0
        self._golden_folder = golden
        self._told_by = ""
        self._golden = Golden()
        self._found: Found | None = None
        self._attributes = Attributes()
        self._memory = memory.Memory()
        self._inside: weakref.ref[torch.nn.Module] | None = None
        self._begun = False
        self._over = False
        self._batch = 0
        self._step = 0
        self._losses: list[torch.Tensor] = []
        self._scaled: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        self._inputs = Inputs()
        self._looked = -1  # the batch before which it was looked around last
        self._dirty = False  # a save has happened since the state was last written down
        self._saved_at = (0, 0)
        self._background = False  # the current save was seen to begin in another thread: when, is chance
        self._faults: list[dict[str, Any]] = json.loads(os.environ.get("HARNESS_NUMERIC_FAULTS") or "[]")
        self._flip = flip_after(os.environ.get(FLIP_VARIABLE))
        self._saves = Saves(root, self._save_begins, lambda: self._saved_at[0] != self._batch, self._save_ends, self.fail)

    def fail(self, where: str, error: Exception) -> None:
        """A fault of the probe's own."""
        self.off = True
        with contextlib.suppress(Exception):
            self.log.write("probe-failed", where=where, error=f"{type(error).__name__}: {error}")

    def forked(self) -> None:
        """In a child: a copy of a process that trains is not the trainer."""
        if self._begun:
            self.off = True
        else:
            self._process = os.getpid()

    @property
    def waits(self) -> bool:
        """Whether no module is being called that counts."""
        return self._inside is None

    # -- what is seen -------------------------------------------------------------------------------------------------

    def entered(self, module: torch.nn.Module, args: Any, kwargs: Callable[[], Any]) -> None:
        """Before the forward pass of any module."""
        if self.off or self._inside is not None or self.repeats or not torch.is_grad_enabled():
            return
        self._forward(module, args, kwargs)

    def left(self, module: torch.nn.Module, output: object) -> None:
        """After it, or when it has raised."""
        if self._inside is not None and self._inside() in (module, None):
            self._inside = None
            self._made(output)

    @_careful
    def _made(self, output: object) -> None:
        self._inputs.made(output)

    @_careful
    def _forward(self, module: torch.nn.Module, args: Any, kwargs: Callable[[], Any]) -> None:
        if self._thread not in (0, threading.get_ident()) or not self._trains(module) or _is_traced():
            return
        self._inside = weakref.ref(module)
        self._before_batch(self._inputs.given([args, kwargs()], training=module.training))

    def _trains(self, module: torch.nn.Module) -> bool:
        if self._found is not None and self._found.trains(module):
            return True
        if not self.stale:
            return False
        self._look()
        return self._found is not None and self._found.trains(module)

    def _look(self) -> Found:
        self.stale = False
        self._found = Found(plain_name)
        return self._found

    @_careful
    def stepped(self, optimizer: Optimizer) -> None:
        """After an optimizer's step."""
        self.repeats = False
        if self._losses:  # without a backward before it, it updates nothing: DCP calls it so to make the state
            if self._found is None or not self._found.knows(optimizer):
                self._look()
            rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
            self._batch_done("STEP", None, rates)

    @_careful
    def skipped(self) -> None:
        """Before a scaler's update: where the losses are still there, no optimizer has done its step."""
        if self._losses:
            found = self._found or self._look()
            rates = [float(group["lr"]) for one in found.optimizers for group in one.param_groups if "lr" in group]
            self._batch_done("SKIP", "non_finite_grad", rates)

    @_careful
    def scaled(self, result: Any, outputs: Any) -> None:
        """After a scaler has multiplied a loss."""
        if isinstance(result, torch.Tensor) and isinstance(outputs, torch.Tensor):
            pairs = [(result, outputs)]
        elif isinstance(result, (list, tuple)) and isinstance(outputs, (list, tuple)):
            pairs = [(a, b) for a, b in zip(result, outputs, strict=False) if isinstance(a, torch.Tensor)]
        else:
            return
        self._scaled = {key: kept for key, kept in self._scaled.items() if kept[0]() is not None}
        for after, before in pairs:
            if after is not before:
                self._scaled[id(after)] = (weakref.ref(after), before.detach().clone())

    @_careful
    def losses(self, tensors: Any, gradients: Any) -> Any:
        """Before `backward`.

        Returns:
            What it is to be called on instead, where a fault is asked for; else None.
        """
        several = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        weights = [gradients] if isinstance(gradients, torch.Tensor) or gradients is None else list(gradients)
        if not several or not any(one.requires_grad for one in several):
            return None
        self._inside = None
        if not self._losses and not self.repeats:
            self._before_batch(self._inputs.samples)  # nobody called a module
        factor = self._fault_factor()
        if not self.repeats:
            weights += [None] * (len(several) - len(weights))
            values = [self._value_of(one, weight) for one, weight in zip(several, weights, strict=False)]
            self._losses.append(values[0] if len(values) == 1 else torch.stack([v.double().cpu() for v in values]).sum())
        if factor is None:
            return None
        return several[0] * factor if isinstance(tensors, torch.Tensor) else [several[0] * factor, *several[1:]]

    @property
    def num_losses(self) -> int:
        """How often `backward` was called since the last update."""
        return len(self._losses)

    def forget(self, known: int) -> None:
        """The `backward` that was announced has raised: there is no gradient."""
        del self._losses[known:]

    def _value_of(self, tensor: torch.Tensor, weight: Any) -> torch.Tensor:
        """A copy: a trainer may go on to reduce its loss over ranks, in place."""
        reference, plain = self._scaled.pop(id(tensor), (None, tensor))
        if reference is not None and reference() is tensor:
            return plain
        value = tensor.detach()
        if isinstance(weight, torch.Tensor):
            value = value * weight.detach()
        return value.clone() if value.numel() == 1 else value.sum()

    def _fault_factor(self) -> float | None:
        for fault in self._faults:
            ranks, first, micro = fault.get("ranks"), int(fault["batch"]), fault.get("micro_batch")
            hit = (ranks is None or self.log.rank in ranks) and micro in (None, len(self._losses) + 1)
            if hit and first <= self._batch + 1 < first + int(fault.get("times", 1)):
                return _FACTORS[fault["effect"]]
        return None

    # -- what is written ----------------------------------------------------------------------------------------------

    def _before_batch(self, taken: Sequence[int]) -> None:
        """Right before the first forward pass of a batch."""
        if self._losses or self._looked == self._batch:
            return
        if not self._begun:
            if not (self._found or self._look()).optimizers:
                return
            self._start(taken)
            if self.off:
                return
        self._looked = self._batch
        if self._saves.name and self.log.world_size == 1 and self._saves.quiet():
            self._save_ends()
        if self._dirty or not self._golden_folder:
            self._write_state("next", all_of_it=self._dirty)
            self._dirty = False
        if figures := self._memory.after(self._batch):
            self.log.write("memory", batch=self._batch, **figures)
        if self._batch == self._flip:
            self._flip = None
            flip_last_bits(weights(self._found or self._look()))

    def _start(self, taken: Sequence[int]) -> None:
        self._begun, self._thread = True, threading.get_ident()
        arguments = [str(word) for word in sys.orig_argv]
        if not self.log.open():
            self.off = True
            return
        facts = {"python": platform.python_version(), "torch": torch.__version__, "arguments": arguments}
        self.log.write("start", world_size=self.log.world_size, pid=os.getpid(), **facts)
        state, by = self._state(all_of_it=True, attributes=True), "start"
        found, opened, unfinished = state["digests"], list(self._saves.opened), Unfinished()
        if self._golden_folder:
            self._golden = read_golden(self._golden_folder, self.log.rank)
            self._golden.earlier = read_earlier(self.log.folder, self.log.rank)
            self._batch, by = self._golden.position(found, taken, opened)
            self._step = self._golden.steps.get(self._batch, self._batch)
            unfinished = self._golden.unfinished_at(self._batch, self._pending(), taken)
        self._saves.loading = False
        name = self._golden.saved_as(self._batch, opened) or (opened[-1] if opened else None)
        self._told_by = by
        more: dict[str, object] = {"skipped": [], "world_size_saved": None, "told_by": by}
        self.log.write("resume", step=self._step, batch=self._batch, checkpoint=name, **more)
        if unfinished.micro:
            # The rest of a batch that was saved in its middle: its losses and samples go on from there.
            self._losses = [torch.tensor(value, dtype=torch.float64) for value in unfinished.losses]
            self._inputs.samples = [*unfinished.samples, *self._inputs.samples]
            state = {"micro": unfinished.micro, **state, "digests": {**found, **self._pending()}}
        self.log.write("state", moment="load", step=self._step, **state)
        self._saved_at = (self._batch, self._step)
        self._memory.begun(self._batch)

    def _state(self, *, all_of_it: bool, attributes: bool) -> dict[str, Any]:
        """The fields of a `state` record.

        Args:
            all_of_it: with a digest per part, and what can be compared over a change of the number of ranks.
            attributes: with what is held outside of models, optimizers and the like.
        """
        found = self._found or self._look()
        parts = content(found)
        read = digests.of_parts(parts)
        fields: dict[str, Any] = {"digests": digests.of_components(read), "values": values(parts)}
        if all_of_it:
            fields |= {"parts": digests.briefly(read), **whole(parts, found.is_partial)}
        return fields | (self._attributes.news(found) if attributes else {})

    def _write_state(self, moment: str, *, all_of_it: bool, attributes: bool = True) -> None:
        self.log.write("state", moment=moment, step=self._step, **self._state(all_of_it=all_of_it, attributes=attributes))

    def _pending(self) -> dict[str, str]:
        """`gradients`, where some have been accumulated."""
        held = gradients(self._found or self._look())
        return {"gradients": digests.digest(held)} if held else {}

    def _batch_done(self, tag: str, reason: str | None, rates: list[float]) -> None:
        if not self._begun:
            return
        self.exit_status = None  # whoever was asked to exit has not
        self._batch += 1
        self._step += tag == "STEP"
        self._saves.batch_done()
        values, micro_batches = [float(one) for one in self._losses], len(self._losses)
        samples = self._inputs.taken()
        self._losses, self._inside = [], None
        value = hex_of(math.fsum(values) if all(map(math.isfinite, values)) else sum(values))
        scalers = [one for one in (self._found.scalers if self._found else []) if one.is_enabled()]
        self.log.write(
            "batch",
            batch=self._batch,
            step=self._step,
            epoch=0,
            batch_in_epoch=self._batch,
            tag=tag,
            reason=reason,
            loss=value,
            global_loss=value if self.log.world_size == 1 else None,
            learning_rate=hex_of(rates[0]) if rates else None,
            scale=hex_of(float(scalers[0].get_scale())) if scalers else None,
            samples=samples,
            micro_batches=micro_batches,
        )
        if self._saves.name and self.log.world_size > 1 and self._saves.quiet():
            self._save_ends()

    def _save_begins(self, name: str) -> None:
        if not self._begun or self.off:
            self._saves.taken()
            return
        self._dirty = True
        if self._saves.goes_on:
            self._write_save("begin", *self._saved_at, self._golden.saves.get(self._saved_at[0], name))
            return
        self._saved_at = (self._batch, self._step)
        micro = len(self._losses)
        if (self._golden_folder or micro) and self._thread == threading.get_ident() and self._found is not None:
            # In case it has gone wrong: a kill in this save may leave what the uninterrupted run never had.
            self._write_saving(micro)
        self._background = threading.get_ident() != self._thread
        name = self._golden.saves.get(self._batch, name)
        self._write_save("begin", self._batch, self._step, name)

    def _write_save(self, moment: str, batch: int, step: int, name: str, **more: object) -> None:
        how = {"background": True} if self._background else {"pointer": True} if self._saves.pointer else {}
        self.log.write("save", moment=moment, step=step, batch=batch, checkpoint=name, **how, **more)

    def _write_saving(self, micro: int) -> None:
        state = self._state(all_of_it=True, attributes=False)
        if micro:
            losses = [hex_of(float(one)) for one in self._losses]
            state = {"micro": micro, "losses": losses, "samples": list(self._inputs.samples), **state}
            state["digests"] |= self._pending()
        self.log.write("state", moment="saving", step=self._step, **state)

    def _save_ends(self) -> None:
        """All that was written since `save begin` is complete: every rank has done another batch, or there is one rank."""
        batch, step = self._saved_at
        name, written = self._saves.taken()
        name = self._golden.saves.get(batch, name)
        also = [one for one in written if one != name]
        self._write_save("end", batch, step, name, **({"also": also} if also else {}))

    @_careful
    def end(self) -> None:
        """The process is about to be over."""
        if self._over or os.getpid() != self._process or self._is_failing():
            return
        self._over = True
        if not self._begun:
            # Nothing was left to do. A launcher has no optimizer.
            if not self.had_optimizers:
                return
            self._look()
            self._start([])
            if self.off:
                return
        if self._saves.name and self._saves.pending == 0:
            self._save_ends()
        if self._leaves_early():
            return
        # What nobody refers to any more may still be there, or not: that is chance.
        gc.collect()
        if self._found is not None and self._found.complete():
            self._write_state("end", all_of_it=True)
        self.log.write("end", step=self._step, batches=self._batch)
        if self.log.rank == 0 and not self._golden_folder:
            self._write_imports()

    def _leaves_early(self) -> bool:
        """Whether less is done than the uninterrupted run did, on as many ranks: after a SIGTERM, say, that was answered.

        Where it is not sure where the job began, less may be all that it had planned.
        """
        same = bool(self._golden_folder) and self.log.world_size == self._golden.world_size
        return same and self._told_by == _SURE and self._batch < self._golden.last

    def _is_failing(self) -> bool:
        """Whether an exception or an exit code other than 0 ends this process."""
        error = sys.exc_info()[1]  # multiprocessing calls us while it is on its way
        codes = [self.exit_status, resume_probe.exit_code, error.code if isinstance(error, SystemExit) else None]
        raised = hasattr(sys, "last_type") or hasattr(sys, "last_exc")
        return raised or any(codes) or (error is not None and not isinstance(error, SystemExit))

    def _write_imports(self) -> None:
        """What the job had imported in the end, but for its own files: a preloaded process imports it beforehand."""
        own = os.path.dirname(os.path.abspath(sys.argv[0])) + os.sep  # noqa: PTH100, PTH120
        names = []
        for name, module in list(sys.modules.items()):
            origin = getattr(getattr(module, "__spec__", None), "origin", None)
            ours = name.partition(".")[0] in ("resume_probe", "sitecustomize", "__main__", "__mp_main__")
            if origin and not ours and (not origin.startswith(own) or "site-packages" in origin):
                names.append(name)
        with open(os.path.join(self.log.folder, "imported.json"), "w", encoding="utf-8") as file:  # noqa: PTH118, PTH123
            json.dump(names, file)


def _is_traced() -> bool:
    """Whether torch records what is done instead of only doing it: to read a tensor would be part of that."""
    if torch._C._get_tracing_state() is not None:
        return True
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]
