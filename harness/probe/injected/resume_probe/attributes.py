"""What the job holds in variables and plain attributes, and may be in no state dict: counters, averages, generators, patience.

Responsible for: walking from the variables of the trainer's functions and modules over the attributes of its objects, by names
that two runs share, and saying what stands there in a few characters. Calls nothing of the trainer's: no property, no `__repr__`.
Does not see: what is held by threads, by objects of extension types, or deeper than a few attributes.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import random
import sys
import sysconfig
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any

import torch

from . import digests
from .content import plain_name
from .found import Found

_DEEPEST, _MOST_OBJECTS, _MOST_ITEMS = 5, 600, 256
_MOST_TEXT = 40
# In whose code these stand, that holds the very mapping in which a frame tells its variables.
_READS_LOCALS = {"locals", "vars", "f_locals", "eval", "exec", "dir"}
# A tensor that is no copy of the parameters is read only where it is small: data sets are in variables, too.
_MOST_BYTES = 1 << 22
# Of an array nobody counts the changes: it is read each time.
_MOST_BYTES_OF_ARRAY = 1 << 16
_PLAIN = (bool, int, float, str, type(None))
# By their exact types: a class of the trainer's own would be asked, and its code would run.
_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_SEQUENCES = (list, tuple, deque)
_SETS = (set, frozenset)
# Of a list or a mapping without entries: what has been gathered may be for people to read, what was lost of it is told apart.
_EMPTY = "=[]"
# What torch itself keeps in an optimizer, and in no state dict or in it.
_OF_OPTIMIZERS = ("state", "param_groups", "defaults")
# Of torch's own objects only these count something that no state dict has.
_OF_TORCH = ("torch.utils.data",)


class Attributes:
    """Of one process. Remembers what has been read, so that what does not change is read once."""

    def __init__(self) -> None:
        # Of harness/probe/injected/resume_probe/attributes.py: all that starts or watches a trainer.
        own = os.path.realpath(__file__).rsplit(os.sep, 4)[0]
        paths = (*sysconfig.get_paths().values(), own)
        self._elsewhere = tuple({os.path.realpath(path) + os.sep for path in paths if path})
        self._ours: dict[str, bool] = {}
        self._said: dict[str, str] = {}
        self._read: dict[int, tuple[weakref.ref[torch.Tensor], int, int, str]] = {}

    def news(self, found: Found) -> dict[str, dict[str, Any]]:
        """What stands where now, of `attributes` only what has changed since the last time: None for what is gone."""
        now = self.look(found)
        plain = now["attributes"]
        changed: dict[str, str | None] = {name: value for name, value in plain.items() if self._said.get(name) != value}
        changed.update((name, None) for name in self._said if name not in plain)
        self._said = plain
        return {**now, "attributes": changed}

    def look(self, found: Found) -> dict[str, dict[str, str]]:
        """What stands where now.

        Returns:
            `averages`: name → digest, of sets of tensors shaped like the parameters; `generators`: name → digest of their state;
            `modes`: which modules are in train mode, which parameters are trained; `attributes`: name → value or digest of
            everything else.
        """
        walk = _Walk(self, found)
        for number, optimizer in enumerate(found.optimizers):
            walk.optimizer(f"optimizer.{number}", optimizer)
        for name, value in self._variables():
            walk.visit(name, value, 0)
        for number, root in enumerate(found.roots):
            for place, module in root.named_modules():
                if not type(module).__module__.startswith("torch."):
                    walk.visit(f"model.{number}.{plain_name(place)}".strip("."), module, _DEEPEST - 1)
        # Last: a repository has hundreds of modules, and what they hold must not take the place of what trains.
        for name, value in self._of_other_modules():
            walk.visit(name, value, 0)
        return {"averages": walk.averages, "generators": walk.generators, "modes": _modes(found), "attributes": walk.attributes}

    def _variables(self) -> Iterator[tuple[str, Any]]:
        """Of the trainer's functions that are being run, the outermost first, and of its modules."""
        frames = []
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            if self._is_ours(frame.f_code.co_filename):
                frames.append(frame)
            frame = frame.f_back
        modules = {id(frame.f_globals): frame.f_globals for frame in frames}
        main = sys.modules.get("__main__")
        if main is not None and self._is_ours(getattr(main, "__file__", None) or ""):
            modules.setdefault(id(vars(main)), vars(main))
        for variables in modules.values():
            own = variables.get("__name__", "")
            start = "" if own == "__main__" else f"{own}."
            yield from ((start + name, value) for name, value in list(variables.items()) if not name.startswith("__"))
        for frame in reversed(frames):
            if frame.f_code.co_name == "<module>":
                continue
            for name, value in _locals_of(frame):
                if name.isidentifier():  # those of comprehensions, and of tools that rewrite code, are not
                    yield f"{frame.f_code.co_name}().{name}", value

    def _of_other_modules(self) -> Iterator[tuple[str, Any]]:
        """Variables of the trainer's modules none of whose functions is being run; of those above they have been seen."""
        for own, module in list(sys.modules.items()):
            named = type(module) is types.ModuleType and own not in ("__main__", "__mp_main__") and not own.startswith("harness")
            facts = module.__dict__ if named else {}
            file = facts.get("__file__")
            if type(file) is str and self._is_ours(file):
                yield from ((f"{own}.{name}", value) for name, value in list(facts.items()) if not name.startswith("__"))

    def is_ours(self, code: types.CodeType) -> bool:
        """Whether it was compiled from a file of the trainer's."""
        return self._is_ours(code.co_filename)

    def _is_ours(self, file: str) -> bool:
        """Whether a file is the trainer's, not a library's or the probe's."""
        known = self._ours.get(file)
        if known is None:
            path = os.path.realpath(file) if file and not file.startswith("<") else ""
            known = self._ours[file] = bool(path) and not path.startswith(self._elsewhere) and "site-packages" not in path
        return known

    def owns(self, kind: type) -> bool:
        """Whether objects of this class may hold state of the trainer's own."""
        if kind.__module__.startswith("torch."):
            return kind.__module__.startswith(_OF_TORCH)
        if kind.__module__.partition(".")[0] in sys.stdlib_module_names:
            return kind is types.SimpleNamespace
        module = sys.modules.get(kind.__module__)
        return module is not None and not kind.__module__.startswith(("numpy", "resume_probe"))

    def is_own(self, kind: type) -> bool:
        """Whether a class was written by the trainer."""
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        return type(file) is str and self._is_ours(file)

    def defaults(self, kind: type) -> dict[str, Any]:
        """The plain values that the trainer's own classes hold for an object until it has got its own."""
        found: dict[str, Any] = {}
        for one in reversed(kind.__mro__):
            if self.is_own(one):
                found.update((key, value) for key, value in list(vars(one).items()) if type(value) in _PLAIN and key[:2] != "__")
        return found

    def of_tensor(self, tensor: torch.Tensor) -> str:
        """Its digest; read again only where torch has counted a change."""
        if hasattr(tensor, "to_local"):
            return digests.digest(tensor)
        known = self._read.get(id(tensor))
        version, place = tensor._version, tensor.data_ptr()
        if known is not None and known[0]() is tensor and known[1:3] == (version, place):
            return known[3]
        text = digests.digest(tensor)
        if not tensor.requires_grad:
            self._read[id(tensor)] = (weakref.ref(tensor), version, place, text)
        return text


class _Walk:
    """Over the objects of one moment."""

    def __init__(self, attributes: Attributes, found: Found) -> None:
        self.averages: dict[str, str] = {}
        self.generators: dict[str, str] = {}
        self.attributes: dict[str, str] = {}
        self._of = attributes
        self._seen: set[int] = set()
        known = found.tensors()
        self._known = {id(one) for one in known}
        self._places = {one.data_ptr() for one in known if not hasattr(one, "to_local") and one.numel()}
        self._shapes = found.shapes()
        self._trains = found.trains

    def visit(self, name: str, value: Any, depth: int) -> None:
        """Writes down what stands there, and goes on to what it holds."""
        # By type, not by isinstance: that asks an object for its __class__, which lazy modules answer by importing.
        kind = type(value)
        if kind in _PLAIN:
            self.attributes[name] = _brief(value)
        elif kind in _SETS:
            self._set(name, value)
        elif kind.__module__ == "numpy":
            self._numpy(name, value, kind)
        elif kind in (types.FunctionType, types.GeneratorType):
            self._variables_of(name, value, depth)
        elif issubclass(kind, torch.Tensor):
            if (text := self._tensor(value)) is not None:
                self.attributes[name] = text
        elif kind in _MAPPINGS:
            self._container(name, value, list(value.items()), depth)
        elif kind in _SEQUENCES:
            self._container(name, value, list(enumerate(value)) if len(value) <= _MOST_ITEMS else [], depth)
        elif issubclass(kind, type):
            self._class(name, value, depth)
        elif (state := _generator_state(value, kind)) is not None:
            self.generators[name] = digests.digest(state)
        else:
            self._object(name, value, kind, depth)

    def _set(self, name: str, value: Any) -> None:
        if 0 < len(value) <= _MOST_ITEMS and {type(one) for one in value} <= set(_PLAIN):
            self.attributes[name] = digests.digest(sorted(repr(one) for one in value))

    def _numpy(self, name: str, value: Any, kind: type) -> None:
        """Of arrays those that are small and hold numbers; a number by itself as Python has it."""
        if kind.__name__ == "ndarray":
            if value.dtype.kind in "biufc" and value.nbytes <= _MOST_BYTES_OF_ARRAY:
                self.attributes[name] = digests.digest([str(value.dtype), list(value.shape), value.tobytes()])
        elif hasattr(value, "dtype") and value.dtype.kind in "biuf":
            self.attributes[name] = _brief(value.item())

    def _variables_of(self, name: str, value: Any, depth: int) -> None:
        """Those that a function keeps from where it was made, and those of a generator that waits."""
        function = type(value) is types.FunctionType
        code = value.__code__ if function else value.gi_code
        if depth >= _DEEPEST or (function and not value.__closure__) or id(value) in self._seen or not self._of.is_ours(code):
            return
        self._seen.add(id(value))
        if function:
            variables = _cells(value)
        else:
            variables = dict(value.gi_frame.f_locals) if value.gi_frame is not None and not value.gi_running else {}
        for key, one in variables.items():
            if key.isidentifier():
                self.visit(f"{name}().{key}", one, depth + 1)

    def optimizer(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        """What an optimizer that is not torch's keeps beside its state, such as momenta in a list of its own."""
        if type(optimizer).__module__.startswith("torch."):
            return
        for key, one in list(optimizer.__dict__.items()):
            if key not in _OF_OPTIMIZERS and not key.startswith("_"):
                self.visit(f"{name}.{key}", one, 1)

    def _class(self, name: str, value: type, depth: int) -> None:
        """What a class of the trainer's own holds by itself, as one that is used as a name space does."""
        if depth >= _DEEPEST or id(value) in self._seen or not self._of.is_own(value):
            return
        self._seen.add(id(value))
        for key, one in list(vars(value).items()):
            if not key.startswith("__") and not issubclass(type(one), (type, types.FunctionType)):
                self.visit(f"{name}.{key}", one, depth + 1)

    def _object(self, name: str, value: Any, kind: type, depth: int) -> None:
        if depth >= _DEEPEST or len(self._seen) >= _MOST_OBJECTS or id(value) in self._seen:
            return
        of_module = issubclass(kind, torch.nn.Module)
        if of_module and not self._trains(value):
            # A loss with running statistics has no parameters, so that no optimizer leads to it.
            for key, one in torch.nn.Module.named_buffers(value):
                self.visit(f"{name}.{key}", one, depth + 1)
        if issubclass(kind, (type, types.FunctionType, types.ModuleType, torch.optim.Optimizer)) or not self._of.owns(kind):
            return
        self._seen.add(id(value))
        facts = {**self._of.defaults(kind), **_slots(value, kind)}
        with contextlib.suppress(AttributeError):
            facts |= object.__getattribute__(value, "__dict__")
        for key, one in list(facts.items()):
            if not (of_module and (key.startswith("_") or key == "training")):
                self.visit(f"{name}.{key}", one, depth + 1)

    def _container(self, name: str, value: Any, items: list[tuple[Any, Any]], depth: int) -> None:
        if not value:
            # An empty window, over which something is worked out, is one of its states.
            self.attributes[name] = digests.digest([]) if type(value) is deque and value.maxlen else _EMPTY
        if id(value) in self._seen or not 0 < len(items) <= _MOST_ITEMS or depth >= _DEEPEST:
            return
        self._seen.add(id(value))
        kinds = {type(one) for _, one in items}
        if all(issubclass(kind, torch.Tensor) for kind in kinds):
            shapes = tuple(sorted(tuple(one.shape) for _, one in items))
            if shapes in self._shapes and not any(self._is_known(one) for _, one in items):
                self.averages[name] = digests.digest([f"{key}{self._of.of_tensor(one)}" for key, one in items])
                return
        if kinds <= set(_PLAIN):
            self.attributes[name] = digests.digest([[str(key), one] for key, one in items])
            return
        for key, one in items:
            self.visit(f"{name}[{_key(key)}]", one, depth + 1)

    def _is_known(self, tensor: torch.Tensor) -> bool:
        """Whether it is the job's already, or another name for the same memory, as in a state dict."""
        return id(tensor) in self._known or (not hasattr(tensor, "to_local") and tensor.data_ptr() in self._places)

    def _tensor(self, tensor: torch.Tensor) -> str | None:
        """None for what is the job's already, what is computed and not kept, and what is large."""
        if self._is_known(tensor) or tensor.grad_fn is not None or tensor.layout != torch.strided:
            return None
        if tensor.numel() * tensor.element_size() > _MOST_BYTES or hasattr(tensor, "to_local"):
            return None
        return self._of.of_tensor(tensor)


def _modes(found: Found) -> dict[str, str]:
    """Of each model, which of its modules are in train mode and which of its parameters require a gradient."""
    said: dict[str, str] = {}
    for number, root in enumerate(found.roots):
        said[f"model.{number}.requires_grad"] = _flags({name: one.requires_grad for name, one in root.named_parameters()})
        if torch.is_grad_enabled():  # else it is being validated: what is trained next may be set anew
            said[f"model.{number}.training"] = _flags({name: one.training for name, one in root.named_modules()})
    return said


def _flags(several: dict[str, bool]) -> str:
    """One value where all agree; else whose is False, or a digest and how many there are."""
    off = sorted(plain_name(name) for name, value in several.items() if not value)
    if len(off) in (0, len(several)):
        return f"={not off}"
    text = f"=False of {', '.join(off)}"
    return text if len(text) <= _MOST_TEXT else f"=False of {len(off)} of {len(several)} ({digests.digest(off)[:8]})"


def _locals_of(frame: types.FrameType) -> list[tuple[str, Any]]:
    """The variables of a function that is being run, of which nothing is kept alive.

    Before Python 3.13 the mapping that tells them stays with the frame, and holds what the function has deleted since: a wrapped
    model that is deleted so that the end of its process group need not wait for it. Who asks for the mapping by itself keeps it.
    """
    variables = frame.f_locals
    found = list(variables.items())
    code = frame.f_code
    if sys.version_info < (3, 13) and code.co_flags & inspect.CO_OPTIMIZED and not _READS_LOCALS & {*code.co_names}:
        variables.clear()
    return found


def _slots(value: Any, kind: type) -> dict[str, Any]:
    """What a class keeps in slots, read without code of the trainer's."""
    found: dict[str, Any] = {}
    for one in kind.__mro__:
        for name, member in list(vars(one).items()):
            if type(member) is types.MemberDescriptorType and not name.startswith("__"):
                with contextlib.suppress(AttributeError):  # it has not been set
                    found[name] = member.__get__(value, kind)
    return found


def _cells(function: types.FunctionType) -> dict[str, Any]:
    """What a function has kept from where it was made."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # it has not been set
            found[name] = cell.cell_contents
    return found


def _key(key: Any) -> str:
    return str(key)[:_MOST_TEXT] if type(key) in _PLAIN else type(key).__name__


def _brief(value: Any) -> str:
    """The value itself where it is short."""
    text = value.hex() if isinstance(value, float) else repr(value)
    return f"={text}" if len(text) <= _MOST_TEXT else digests.digest(text)


def _generator_state(value: Any, kind: type) -> object:
    """The state of a generator that the trainer has made; None for anything else."""
    if issubclass(kind, torch.Generator):
        return value.get_state()
    if kind is random.Random:
        return value.getstate()
    if kind.__module__.startswith("numpy.random"):
        if kind.__name__ == "Generator":
            return _without_arrays(value.bit_generator.state)
        if kind.__name__ == "RandomState":
            name, keys, *rest = value.get_state()
            return [name, keys.tobytes(), *rest]
    return None


def _without_arrays(state: Any) -> Any:
    if type(state) is dict:
        return {key: _without_arrays(value) for key, value in state.items()}
    return state.tobytes() if hasattr(state, "tobytes") else str(state) if isinstance(state, int) else state
