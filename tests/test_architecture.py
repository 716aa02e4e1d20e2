"""The shape of the code, read from its sources: who imports whom, and who knows whom.

Imports inside functions count like those at the top. Those under `if TYPE_CHECKING` do not, but for
packages that load their public names lazily: there they say what is loaded.
"""

import ast
from importlib import import_module
from inspect import ismodule
from pathlib import Path

import pytest

import replan

SOURCE = Path(replan.__file__).parent
TESTS = Path(__file__).parent

# From the bottom to the top: each imports from those before it only. `replan` is the face, the
# public names; what lies below it must not go through it.
LAYERS = [
    "errors",
    "check",
    "_common",
    "dynamics",
    "protocol",
    "problem",
    "curves",
    "transfer",
    "trajectory",
    "strategies",
    "comparison",
    "control",
    "simulation",
    "replay",
    "sweeps",
    "studies",
    "networks",
    "paper",
    "explorer",
    "replan",
    "cli",
]

MODEL = "replan.dynamics.teacher_student"
FACES = {"replan", "replan.dynamics"}  # re-export the models
FRAMEWORKS = {"torch", "lightning", "avalanche", "panel", "bokeh"}  # that may not be installed


def module_name(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(["replan", *(part for part in parts if part != "__init__")])


PATHS = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in PATHS.items()}


def is_package(module):
    return PATHS[module].name == "__init__.py"


def running(node):
    """Yield all nodes but those that only a type checker sees."""
    yield node
    only_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    for child in node.orelse if only_types else ast.iter_child_nodes(node):
        yield from running(child)


def imported(module):
    """Return the full names of all modules, and names of modules, that a module imports."""
    nodes = ast.walk(TREES[module]) if is_package(module) else running(TREES[module])
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports within replan are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def modules_of(names):
    """Return the modules of replan that imported names stand for or are in."""
    homes = {name if name in PATHS else name.rpartition(".")[0] for name in names}
    return homes & set(PATHS)


IMPORTS = {module: modules_of(imported(module)) - {module} for module in PATHS}


def layer(module):
    return module.split(".")[1] if "." in module else module


def shortest_way(start, end):
    """Return the modules along the fewest imports from one to another; none if there is no way."""
    ways = {start: [start]}
    todo = [start]
    for module in todo:
        for other in sorted(IMPORTS[module] - set(ways)):
            ways[other] = [*ways[module], other]
            todo.append(other)
    return ways.get(end, [])


def names_in(module):
    """Return the words of a module's code; words in texts do not count."""
    found = set()
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found |= {*node.name.split("."), node.asname}
    return found


def test_the_graph_is_read():
    assert len(IMPORTS) > 80
    assert "replan.problem._file" in IMPORTS["replan.problem._problem"]  # inside a function
    assert "replan.control._search" not in IMPORTS["replan.control._solver"]  # for types only
    assert "replan.control.relax" in IMPORTS["replan.control"]  # lazily
    assert "replan.dynamics" in IMPORTS["replan.problem._problem"]


def test_no_cycles():
    cycles = set()
    for module, others in IMPORTS.items():
        for other in others:
            way = shortest_way(other, module)
            if way:
                first = way.index(min(way))
                cycles.add((*way[first:], *way[:first]))
    assert sorted(map(list, cycles)) == []


def test_layers_are_all_there_is():
    assert sorted(LAYERS) == sorted({layer(module) for module in PATHS})


def test_layers_import_only_from_lower_ones():
    upwards = [
        f"{module} imports {other}"
        for module, others in IMPORTS.items()
        for other in sorted(others)
        if LAYERS.index(layer(other)) > LAYERS.index(layer(module))
    ]
    assert upwards == []


def test_what_uses_a_protocol_knows_nothing_of_the_rest():
    """Plan → Protocol → (evaluate | simulate | train): ways side by side."""
    ways = {"control", "simulation", "networks"}
    for module, others in IMPORTS.items():
        if layer(module) in ways:
            assert {layer(other) for other in others} & ways <= {layer(module)}, module


def test_control_knows_no_model():
    for module in PATHS:
        if layer(module) == "control":
            assert names_in(module).isdisjoint({"TeacherStudent", "Overlaps", "AutoDynamics"})
            for name in imported(module):
                assert not name.startswith((MODEL, "replan.dynamics.auto")), f"{module}: {name}"


def test_only_its_own_folder_names_a_model():
    naming = {
        module
        for module in PATHS
        if not module.startswith(MODEL)
        and (
            not names_in(module).isdisjoint({"TeacherStudent", "Overlaps"})
            or any(name.startswith(MODEL) for name in imported(module))
        )
    }
    assert naming - FACES == set()


def concrete_classes():
    """Return where each policy, model and solver that is not abstract is defined."""
    classes = {
        node.name: (module, node)
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }

    def ancestors(name):
        bases = [ast.unparse(base) for base in classes[name][1].bases]
        return {*bases}.union(*(ancestors(base) for base in bases if base in classes))

    kinds = {"Dynamics", "Policy", "Solver", "Descent", "Chain"}
    return {
        name: module
        for name, (module, node) in classes.items()
        if ancestors(name) & kinds and "abstractmethod" not in ast.unparse(node)
    }


def test_nobody_asks_for_a_concrete_class():
    """No `isinstance` of a policy, model or solver outside its own file."""
    concrete = concrete_classes()
    assert {"TeacherStudent", "AutoDynamics", "FocusThenReplay", "Relax"} <= set(concrete)
    assert {"CompiledDynamics", "Policy", "Solver"}.isdisjoint(concrete)
    asked = []
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            words = set()
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "isinstance",
                "issubclass",
            ):
                words = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
            elif isinstance(node, ast.MatchClass):
                words = {ast.unparse(node.cls)}
            elif isinstance(node, ast.Compare) and "type(" in ast.unparse(node):
                words = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            asked += [f"{module}: {word}" for word in words if concrete.get(word, module) != module]
    assert asked == []


def load(module):
    """Return a module, or skip the test where a framework that it needs is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        first = error.__cause__ or error  # adapters say what to install
        if not isinstance(first, ModuleNotFoundError) or first.name not in FRAMEWORKS:
            raise
        pytest.skip(f"{first.name} is not installed")


@pytest.mark.parametrize("package", [module for module in PATHS if is_package(module)])
def test_no_public_name_hides_a_module(package):
    inside = {module.rpartition(".")[2] for module in PATHS if module.rpartition(".")[0] == package}
    assigned = {
        alias.asname or alias.name
        for node in TREES[package].body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    found = load(package)
    for name in inside & (assigned | set(getattr(found, "__all__", []))):
        assert ismodule(getattr(found, name)), f"{package}.{name} hides a module"


@pytest.mark.parametrize("module", [m for m in PATHS if "._" not in m and "__all__" in names_in(m)])
def test_public_names_exist(module):
    found = load(module)
    for name in found.__all__:
        assert hasattr(found, name), f"{module}.{name}"
    assert len(set(found.__all__)) == len(found.__all__)


@pytest.mark.parametrize("package", [m for m in PATHS if is_package(m) and "._" not in m])
def test_packages_say_what_is_public(package):
    """All that a package takes from its modules is in `__all__`: nothing leaks."""
    taken = {
        alias.asname or alias.name
        for node in ast.walk(TREES[package])
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("replan.")
        for alias in node.names
    }
    if package != "replan.cli":  # a program
        assert taken <= set(getattr(load(package), "__all__", []))


def test_numba_has_one_door():
    users = {
        module: {name for name in imported(module) if name.split(".")[0] == "numba"}
        for module in PATHS
    }
    door = "replan._common.compiled"
    assert users.pop(door)
    assert {module: names for module, names in users.items() if names} == {
        "replan.dynamics._loops": {"numba.extending.overload"}
    }
    assert [module for module in PATHS if "njit" in names_in(module)] == [door]


def test_tests_mirror_the_source():
    folders = {path.parent.name for path in SOURCE.glob("*/*.py")}
    tested = {path.parent.name for path in TESTS.glob("*/test_*.py")}
    assert tested == {name.removeprefix("_") for name in folders}
