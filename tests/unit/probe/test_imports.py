"""A function is called right after a module has been imported, and nobody can tell that it was."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest

from harness.probe.injected.resume_probe import imports
from harness.probe.injected.resume_probe.imports import when_imported


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """What is waited for, what finds modules, and what is there."""
    monkeypatch.setattr(imports, "_waiting", {})
    monkeypatch.setattr(imports, "_executed", set())
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "modules", sys.modules)
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "awaited.py").write_text("import builtins\nvalue = 1\n")
    (tmp_path / "other.py").write_text("")
    return tmp_path


def calls_of(name):
    calls = []
    when_imported(name, lambda: calls.append(getattr(sys.modules[name], "value", None)))
    return calls


def finders():
    return [finder for finder in sys.meta_path if isinstance(finder, imports._Finder)]


def test_the_call_comes_once_when_all_of_the_module_is_there(folder):
    calls = calls_of("awaited")
    importlib.import_module("other")
    assert calls == []
    importlib.import_module("awaited")
    importlib.import_module("awaited")
    assert calls == [1]


def test_a_module_that_is_there_already_calls_at_once(folder):
    importlib.import_module("awaited")
    assert calls_of("awaited") == [1]
    assert finders() == []


def test_several_calls_come_in_their_order_through_one_finder(folder):
    calls = []
    for number in range(3):
        when_imported("awaited", lambda number=number: calls.append(number))
    assert len(finders()) == 1
    importlib.import_module("awaited")
    assert calls == [0, 1, 2]


def test_to_look_for_a_module_is_not_to_import_it(folder):
    calls = calls_of("awaited")
    assert importlib.util.find_spec("awaited") is not None
    assert importlib.util.find_spec("awaited") is not None
    assert calls == []
    importlib.import_module("awaited")
    assert calls == [1]


def facts_of(module):
    spec = module.__spec__
    return module.__file__, type(module.__loader__), type(spec.loader), spec.origin, spec.cached


def test_the_module_is_what_it_would_have_been(folder):
    plain = importlib.import_module("awaited")
    facts = facts_of(plain)
    del sys.modules["awaited"]
    calls_of("awaited")
    found = importlib.import_module("awaited")
    assert facts_of(found) == facts
    assert found.__loader__ is found.__spec__.loader


def test_what_a_loader_can_do_beside_loading_it_can_do_still(folder):
    calls_of("awaited")
    loader = importlib.util.find_spec("awaited").loader
    assert loader.get_filename("awaited") == str(folder / "awaited.py")
    assert loader.get_data(str(folder / "other.py")) == b""
    with pytest.raises(AttributeError):
        _ = loader.no_such_thing
    with pytest.raises(AttributeError):  # of a copy that is being made, and not a recursion
        _ = imports._Loader.__new__(imports._Loader).anything


def test_a_module_that_fails_to_import_calls_nobody_and_may_be_tried_again(folder):
    (folder / "awaited.py").write_text("import no_such_module")
    calls = calls_of("awaited")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        importlib.import_module("awaited")
    assert (calls, "awaited" in sys.modules) == ([], False)
    (folder / "awaited.py").write_text("value = 'mended'")
    importlib.invalidate_caches()
    importlib.import_module("awaited")
    assert calls == ["mended"]


def test_a_module_that_does_not_exist_is_missing_as_ever(folder):
    calls = calls_of("no_such_awaited")
    assert importlib.util.find_spec("no_such_awaited") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_awaited")
    assert calls == []


def test_what_a_call_raises_never_reaches_the_import(folder):
    calls = []

    def fail():
        raise KeyError("planted")

    when_imported("awaited", fail)
    when_imported("awaited", lambda: calls.append(1))
    assert importlib.import_module("awaited").value == 1
    assert calls == [1]


def test_who_asks_while_the_module_is_being_imported_waits_for_its_end(folder):
    (folder / "awaited.py").write_text("import asking\nvalue = 1\n")
    (folder / "asking.py").write_text(
        "import sys\nfrom harness.probe.injected.resume_probe.imports import when_imported\nseen = []\n"
        "when_imported('awaited', lambda: seen.append(sys.modules['awaited'].value))\n"
    )
    calls_of("awaited")  # so that somebody is there to see the end of it
    importlib.import_module("awaited")
    assert sys.modules["asking"].seen == [1]


class _AsksAll:
    """A finder that asks the others, as those of editable installs and of tests do."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "awaited":
            return None
        others = [finder for finder in sys.meta_path if finder is not _AsksAll and hasattr(finder, "find_spec")]
        return next((spec for finder in others if (spec := finder.find_spec(name, path, target))), None)


def test_a_finder_that_asks_all_others_finds_no_end_of_itself(folder):
    sys.meta_path.insert(0, _AsksAll)
    calls = calls_of("awaited")
    assert importlib.import_module("awaited").value == 1
    assert calls == [1]


def test_a_package_and_a_module_of_it(folder):
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("from package.inner import value")
    (folder / "package" / "inner.py").write_text("value = 2")
    calls = calls_of("package.inner")
    importlib.import_module("package")
    assert calls == [2]
