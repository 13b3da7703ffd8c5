"""The house rules, as tests: layers, where torch may be, sizes, docstrings, banned words, and the map of the modules.

Each rule is a function from source text to what breaks it, so that it is itself tested on planted violations.
Not verified here: what ruff and mypy already say, and imports by a name that is put together at run time.
"""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 600
WORDS = ("errors", "signals", "failures", "log_fields", "seal", "fault", "grammar", "scenario", "plan_lines", "plan", "store")

# From the ground up: a module imports from lower floors and from its own. A new module needs a place here.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("reference",),
    *((word,) for word in WORDS),
    ("checkpoint_files", "shard"),
    ("trace",),
    ("pieces",),
    ("tree",),
    ("probe", "inject", "launch", "crash"),
    ("crash_states", "crash_sample"),
    ("supervisor",),
    ("baseline", "oracle", "judge", "diagnose"),
    ("staging", "causes", "damages", "workers", "resaved"),
    (
        *(
            "case",
            "session",
            "explore",
            "sweep",
            "error_loop",
            "chaos",
            "symptoms",
            "doctor",
            "bench",
            "bench_crash",
            "bench_probe",
            "kinds",
        ),
        *("interval", "power_check", "interleavings", "check", "tracing", "check_request"),
        *("warming", "check_plan", "check_command", "shrink"),
        *("replaying", "bisection", "bisect_request", "commits", "environments", "bug_report", "redaction"),
    ),
    ("report",),
    ("cli", "pytest_plugin", "__main__", "harness"),
)
FLOOR_OF = {unit: number for number, units in enumerate(FLOORS) for unit in units}
# What runs inside a training process stands apart: who may import it, beside itself.
MAY_IMPORT_APART = {"reference": {"probe", *FLOORS[FLOOR_OF["case"]], *FLOORS[FLOOR_OF["cli"]]}, "probe": {"launch"}}
MAY_IMPORT_TORCH = {"reference", "probe"}


def python_files(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py") if "__pycache__" not in file.parts)


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file): file for file in python_files("harness")}
SOURCES = {
    file: file.read_text(encoding="utf-8") for file in [*python_files("harness", "tests", "scenarios"), *ROOT.glob("*.py")]
}
TREES = {file: ast.parse(text) for file, text in SOURCES.items()}
SHELL_SCRIPTS = sorted(file for file in [*ROOT.glob("scripts/*"), *ROOT.glob(".ci/*")] if file.is_file())
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def where(file: Path, node: ast.AST) -> str:
    return f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def unit_of(module: str) -> str:
    """The part of the harness that the floors speak of: `harness.inject.gate` is of `inject`."""
    return module.split(".")[1] if "." in module else module


def imports_of(tree: ast.AST, module: str, *, is_package: bool = False) -> set[str]:
    """Full names of all that is imported anywhere: at the top, in functions, under TYPE_CHECKING, relatively."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".")[: None if is_package else -1]
                anchor = package[: len(package) - node.level + 1]
                base = ".".join([*anchor, base] if base else anchor)
            names = {f"{base}.{alias.name}" for alias in node.names} - {"harness.__version__"}  # a fact, not a layer
            found |= {name if name in MODULES else base for name in names}
    return found


IMPORTS = {name: imports_of(TREES[file], name, is_package=file.name == "__init__.py") for name, file in MODULES.items()}


def own_imports(module: str) -> set[str]:
    return {name for name in IMPORTS[module] if name.split(".")[0] == "harness"}


# --- (a) layers


def breaks_layers(module: str, imported: str) -> str:
    """What is wrong with this import, or ""."""
    here, there = unit_of(module), unit_of(imported)
    if here == there:
        return ""
    if here == "reference":
        return "reference imports nothing else of harness"
    if here == "probe" and there != "reference":
        return "probe imports reference only"
    if (module, imported) == ("harness.scenario", "harness.reference.defects"):
        return ""  # the names of the planted defects: words, without torch
    if there in MAY_IMPORT_APART:
        return "" if here in MAY_IMPORT_APART[there] else f"only {sorted(MAY_IMPORT_APART[there])} may import {there}"
    return "" if FLOOR_OF[there] <= FLOOR_OF[here] else f"{there} is above {here}"


def test_every_module_has_a_floor():
    assert sorted({unit_of(name) for name in MODULES} - set(FLOOR_OF)) == [], "give the new module its place in FLOORS"
    assert {f"harness.{word}" for word in WORDS} <= set(MODULES)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_downwards(module):
    broken = {imported: breaks_layers(module, imported) for imported in sorted(own_imports(module))}
    assert {imported: why for imported, why in broken.items() if why} == {}


def test_parts_on_one_floor_do_not_import_each_other_in_a_circle():
    graph: dict[str, set[str]] = {unit_of(module): set() for module in MODULES}
    for module in MODULES:
        graph[unit_of(module)] |= {unit_of(imported) for imported in own_imports(module)} - {unit_of(module)}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


@pytest.mark.parametrize(
    ("module", "imported", "allowed"),
    [
        ("harness.plan", "harness.scenario", True),
        ("harness.scenario", "harness.plan", False),
        ("harness.store", "harness.supervisor", False),
        ("harness.launch.warm", "harness.inject.gate", True),
        ("harness.launch.warm", "harness.probe.event_log", True),
        ("harness.inject.gate", "harness.supervisor", False),
        ("harness.supervisor", "harness.judge", False),
        ("harness.judge", "harness.oracle.loss", True),
        ("harness.oracle.loss", "harness.reference.train", False),
        ("harness.probe.digest", "harness.reference.state", True),
        ("harness.probe.digest", "harness.store", False),
        ("harness.reference.train", "harness.errors", False),
        ("harness.reference.train", "harness.probe.digest", False),
        ("harness.case", "harness.report.text", False),
        ("harness.cli", "harness.report.text", True),
        ("harness.errors", "harness", False),
        ("harness", "harness.scenario", True),
    ],
)
def test_the_floors_mean_what_they_say(module, imported, allowed):
    assert (breaks_layers(module, imported) == "") is allowed


def test_imports_are_found_wherever_they_stand():
    source = """
from __future__ import annotations
import os.path
from harness import fault, Scenario
from harness import __version__
from . import sibling
from .sub import thing
from ..oracle import loss
if TYPE_CHECKING:
    from harness.case import Case
def f():
    import torch.nn
"""
    assert imports_of(ast.parse(source), "harness.launch.warm") == {
        *("__future__", "os.path", "harness.fault", "harness", "harness.launch", "harness.launch.sub"),
        *("harness.oracle.loss" if "harness.oracle.loss" in MODULES else "harness.oracle", "harness.case", "torch.nn"),
    }
    assert imports_of(ast.parse("from . import x"), "harness.launch", is_package=True) == {"harness.launch"}
    assert imports_of(ast.parse("from harness import __version__"), "harness.launch") == set()


# --- (b), (f) torch


def imports_torch(names: set[str]) -> bool:
    return any(name.split(".")[0] == "torch" for name in names)


def test_only_what_runs_inside_a_training_process_imports_torch():
    guilty = sorted(name for name in MODULES if imports_torch(IMPORTS[name]) and unit_of(name) not in MAY_IMPORT_TORCH)
    assert guilty == []


def test_torch_is_seen_in_every_spelling():
    for source in ("import torch", "import torch.nn as nn", "from torch import Tensor", "def f():\n from torch.nn import x"):
        assert imports_torch(imports_of(ast.parse(source), "harness.plan"))
    for source in ("name = 'torch'", "import torchvision", "import os"):
        assert not imports_torch(imports_of(ast.parse(source), "harness.plan"))
    assert any(imports_torch(IMPORTS[name]) for name in MODULES if unit_of(name) == "reference"), "nothing was looked at"


def test_importing_the_harness_leaves_torch_out_of_the_process():
    modules = sorted(name for name in MODULES if unit_of(name) not in {*MAY_IMPORT_TORCH, "__main__"})
    assert {f"harness.{word}" for word in WORDS} <= set(modules)
    program = (
        "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name); print(name, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *modules], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name} False" for name in modules]


# --- (c) sizes


def long_functions(tree: ast.AST) -> list[tuple[str, int, int]]:
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    sizes = [(node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1) for node in functions]
    return [(name, line, size) for name, line, size in sizes if size > MAX_FUNCTION_LINES]


def test_a_function_fits_a_screen():
    found = [
        f"{file.relative_to(ROOT)}:{line} {name}: {size} lines"
        for file, tree in TREES.items()
        for name, line, size in long_functions(tree)
    ]
    assert found == []


def test_a_file_stays_readable():
    texts = {**SOURCES, **{file: file.read_text(encoding="utf-8") for file in SHELL_SCRIPTS}}
    sizes = {file: len(text.splitlines()) for file, text in texts.items()}
    assert [f"{file.relative_to(ROOT)}: {size} lines" for file, size in sizes.items() if size > MAX_FILE_LINES] == []


def test_length_is_counted_from_def_to_the_last_line():
    body = "    x = 1\n"
    assert long_functions(ast.parse("def f():\n" + body * (MAX_FUNCTION_LINES - 1))) == []
    assert long_functions(ast.parse("@d\ndef f():\n" + body * MAX_FUNCTION_LINES)) == [("f", 2, MAX_FUNCTION_LINES + 1)]
    method = "class C:\n async def g(self):\n" + ("  x = 1\n" * MAX_FUNCTION_LINES)
    assert long_functions(ast.parse(method)) == [("g", 2, MAX_FUNCTION_LINES + 1)]


# --- (d) docstrings


def undocumented(tree: ast.Module | ast.ClassDef, prefix: str = "") -> list[str]:
    """Public module, classes, functions and methods without a docstring; what stands inside a function is private."""
    found = []
    if isinstance(tree, ast.Module) and not ast.get_docstring(tree):
        found.append("the module")
    for node in tree.body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("_"):
            continue
        # A setter is described by its getter, an overload by its implementation.
        if {ast.unparse(d).rpartition(".")[2] for d in node.decorator_list} & {"setter", "deleter", "overload"}:
            continue
        if not ast.get_docstring(node):
            found.append(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            found += undocumented(node, f"{prefix}{node.name}.")
    return found


@pytest.mark.parametrize("module", sorted(MODULES))
def test_everything_public_is_described(module):
    assert undocumented(TREES[MODULES[module]]) == []


def test_missing_docstrings_are_found():
    source = '''
class A:
    """x"""
    def m(self): ...
    def _p(self): ...
    @property
    def q(self): return 1
    @q.setter
    def q(self, v):
        """x"""
    @v.setter
    def v(self, v): ...
class _B:
    def m(self): ...
class C:
    class D:
        """x"""
        async def e(self): ...
def f():
    """x"""
    def inner(): ...
def g(): ...
@typing.overload
def h(): ...
'''
    assert undocumented(ast.parse(source)) == ["the module", "A.m", "A.q", "C", "C.D.e", "g"]


# --- (e) banned

# Put together, so that this file does not hold the words itself.
BANNED_IN_CODE = {rf"\b{a}{b}\b" for a, b in (("p", "kill"), ("kill", "all"), ("TO", "DO"), ("FIX", "ME"))}
BANNED_IN_TESTS = {r"\btime\.sl" + r"eep\("}


def banned_words(text: str, patterns: set[str]) -> list[str]:
    return [
        f"line {number}: {match.group()}"
        for number, line in enumerate(text.splitlines(), 1)
        for pattern in sorted(patterns)
        for match in re.finditer(pattern, line)
    ]


def in_tests(file: Path) -> bool:
    # Trainers as people write them may sleep, as people's do.
    parts = file.relative_to(ROOT).parts
    return parts[0] in ("tests", "scenarios") and parts[:3] != ("tests", "quality", "kinds")


def test_banned_words_are_nowhere():
    texts = {**SOURCES, **{file: file.read_text(encoding="utf-8") for file in [*SHELL_SCRIPTS, *DOCUMENTS]}}
    found = {}
    for file, text in texts.items():
        words = banned_words(text, BANNED_IN_CODE | BANNED_IN_TESTS if in_tests(file) else BANNED_IN_CODE)
        if words:
            found[str(file.relative_to(ROOT))] = words
    assert found == {}


def test_banned_words_are_found():
    text = "x\nsub" + "TO" + "DO() # TO" + "DO: later\np" + "kill -f train\ntime.sl" + "eep(1)"
    assert banned_words(text, BANNED_IN_CODE) == ["line 2: TO" + "DO", "line 3: p" + "kill"]
    assert banned_words(text, BANNED_IN_TESTS) == ["line 4: time.sl" + "eep("]


def careless(tree: ast.AST) -> list[tuple[int, str]]:
    """Bare excepts, sleeps by another name, and tests that are skipped or expected to fail without a reason."""
    found = []
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            found.append((node.lineno, "bare except"))
        if isinstance(node, ast.ImportFrom) and node.module == "time" and any(a.name == "sleep" for a in node.names):
            found.append((node.lineno, "sleep"))
        if isinstance(node, ast.Attribute) and without_reason(ast.unparse(node), called.get(id(node))):
            found.append((node.lineno, f"{ast.unparse(node)} without a reason"))
    return sorted(found)


def without_reason(name: str, call: ast.Call | None) -> bool:
    if not re.fullmatch(r"(pytest\.)?(mark\.)?(skip|skipif|xfail|importorskip)", name) or "." not in name:
        return False
    if call is None:
        return True
    given = [keyword.value for keyword in call.keywords if keyword.arg == "reason"]
    if name in ("pytest.skip", "pytest.xfail", "mark.skip", "pytest.mark.skip"):
        given += call.args[:1]
    return not any(not isinstance(value, ast.Constant) or value.value for value in given)


def test_nothing_is_careless():
    found = [f"{file.relative_to(ROOT)}:{line} {what}" for file, tree in TREES.items() for line, what in careless(tree)]
    assert [text for text in found if in_tests(ROOT / text.split(":")[0]) or not text.endswith(" sleep")] == []


def test_careless_code_is_found():
    source = """
try:
    from time import sleep
except:
    pytest.skip()
pytest.skip("no gate here")
pytest.skip(f"no {thing}")
pytest.xfail(reason="")
@pytest.mark.skip
@pytest.mark.skipif(True)
@pytest.mark.skipif(True, reason="Linux only")
@pytest.mark.xfail(strict=True)
@pytest.mark.xfail(reason="known")
def f():
    pytest.importorskip("x")
    self.skip
"""
    assert careless(ast.parse(source)) == [
        (3, "sleep"),
        (4, "bare except"),
        (5, "pytest.skip without a reason"),
        (8, "pytest.xfail without a reason"),
        (9, "pytest.mark.skip without a reason"),
        (10, "pytest.mark.skipif without a reason"),
        (12, "pytest.mark.xfail without a reason"),
        (15, "pytest.importorskip without a reason"),
    ]


def test_no_module_is_a_drawer_for_everything():
    drawers = {"util", "utils", "misc"}
    assert [
        str(file.relative_to(ROOT))
        for file in SOURCES
        if drawers & {part.removesuffix(".py") for part in file.relative_to(ROOT).parts}
    ] == []


def test_every_test_file_has_a_name_of_its_own():
    """A plain `pytest` imports test files by their bare names: two of one name are an error of collection."""
    files = [file for folder in ("tests", "scenarios") for file in (ROOT / folder).rglob("test_*.py")]
    names = [file.name for file in files]
    assert sorted(str(file.relative_to(ROOT)) for file in files if names.count(file.name) > 1) == []


# --- (g) the map of the modules


def test_the_map_names_every_module_exactly_once():
    """In docs/whats-here.md a module stands in backticks by its full name, such as `harness.inject.gate`."""
    document = ROOT / "docs" / "whats-here.md"
    assert document.exists(), "docs/whats-here.md is missing"
    named = re.findall(r"`(harness(?:\.\w+)*)`", document.read_text(encoding="utf-8"))
    assert {
        "missing": sorted(set(MODULES) - set(named)),
        "twice": sorted({name for name in named if named.count(name) > 1}),
        "unknown": sorted(set(named) - set(MODULES)),
    } == {"missing": [], "twice": [], "unknown": []}
