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
ROOT = Path(__file__).parents[1]

# From the bottom to the top: each imports from those before it only. `replan` is the face, the
# public names; what lies below it must not go through it. `plot` and `report` know the classes that
# they show by their attributes alone.
LAYERS = [
    "errors",
    "check",
    "files",
    "schema",
    "progress",
    "registry",
    "core",
    "models",
    "report",
    "plot",
    "results",
    "protocol",
    "problem",
    "curves",
    "strategies",
    "control",
    "exports",
    "pilots",
    "comparison",
    "simulation",
    "sweeps",
    "replay",
    "studies",
    "replan",
    "page",
    "cli",
]

MODEL = "replan.models.teacher_student"
FACES = {"replan", "replan.models"}  # re-export the models
FRAMEWORKS = {"torch", "lightning", "transformers", "avalanche"}  # that may not be installed
PUBLIC_MODULES = {f"replan.replay.{name}" for name in FRAMEWORKS}


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


def names_imported(nodes):
    """Return the full names of all modules, and names of modules, that some code imports."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports within replan are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported(module):
    tree = TREES[module]
    return names_imported(ast.walk(tree) if is_package(module) else running(tree))


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
    names = set()
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.alias):
            names |= {*node.name.split("."), node.asname}
    return names


def test_the_graph_is_read():
    assert len(IMPORTS) > 60
    assert "replan.problem.file" in IMPORTS["replan.problem.problem"]  # inside a function
    assert "replan.models" in IMPORTS["replan.problem.problem"]
    assert "replan.control" in IMPORTS["replan"]  # lazily


def test_no_cycles():
    cycles = set()
    for module, others in IMPORTS.items():
        for other in others:
            way = shortest_way(other, module)
            if way:
                first = way.index(min(way))
                cycles.add((*way[first:], *way[:first]))
    # the file of a problem makes problems, and problems load and save themselves
    known = [["replan.problem.file", "replan.problem.problem"]]
    assert [cycle for cycle in sorted(map(list, cycles)) if cycle not in known] == []


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


def private_part(module):
    """Return the folder that a private module, or what is in a private folder, belongs to."""
    parts = module.split(".")
    for i, part in enumerate(parts):
        if part.startswith("_") and not part.startswith("__"):
            return ".".join(parts[:i])
    return None


def test_private_modules_are_imported_only_from_their_own_folder():
    reached = []
    for module, tree in TREES.items():
        for name in names_imported(ast.walk(tree)):  # for types, too
            home = private_part(name.rpartition(".")[0]) or private_part(name)
            if name.startswith("replan.") and home is not None:
                inside = module == home or module.startswith(f"{home}.")
                reached += [] if inside else [f"{module} imports {name}"]
    assert reached == []


def all_of(module):
    """Return the `__all__` of a module, read from its source: it may need a framework."""
    for node in TREES[module].body if module in TREES else []:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


def test_reproduction_imports_public_names_only():
    reached = []
    for path in sorted((ROOT / "reproduction").rglob("*.py")):
        for name in names_imported(ast.walk(ast.parse(path.read_text(encoding="utf-8")))):
            if name == "replan" or not name.startswith("replan."):
                continue
            module, _, last = name.rpartition(".")
            public = name in PUBLIC_MODULES or last in all_of(module)
            reached += [] if public else [f"{path.name} imports {name}"]
    assert reached == []


def test_what_uses_a_protocol_knows_nothing_of_the_rest():
    """Plan → Protocol → (evaluate | simulate | train): ways side by side."""
    ways = {"control", "simulation", "replay"}
    for module, others in IMPORTS.items():
        if layer(module) in ways:
            assert {layer(other) for other in others} & ways <= {layer(module)}, module


def test_control_knows_no_model():
    for module in PATHS:
        if layer(module) == "control":
            assert names_in(module).isdisjoint({"TeacherStudent", "Overlaps", "AutoModel"})
            for name in imported(module):
                assert not name.startswith((MODEL, "replan.models.auto")), f"{module}: {name}"


def test_only_its_own_folder_names_a_model():
    naming = {
        module
        for module in PATHS
        if not module.startswith((MODEL, "replan.models.gallery", "replan.page"))
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

    kinds = {"Model", "Policy", "Solver", "Descent", "Chain"}
    return {
        name: module
        for name, (module, node) in classes.items()
        if ancestors(name) & kinds and "abstractmethod" not in ast.unparse(node)
    }


def test_nobody_asks_for_a_concrete_class():
    """No `isinstance` of a policy, model or solver outside its own file."""
    concrete = concrete_classes()
    assert {"TeacherStudent", "AutoModel", "FocusThenReplay", "Relax"} <= set(concrete)
    assert {"CompiledModel", "Policy", "Solver"}.isdisjoint(concrete)
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


# Public names


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


def test_c_has_one_door():
    users = {module for module in PATHS if "ctypes" in imported(module)}
    folder = {module for module in users if module.startswith("replan.core.")}
    assert users - folder <= {"replan.models.compiled_model"}
    assert "replan.core.library" in folder


def test_tests_mirror_the_source():
    folders = {path.parent.name for path in SOURCE.glob("*/*.py")} - {"__pycache__"}
    tested = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert tested == folders
