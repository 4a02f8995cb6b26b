"""The rooms of the package: imports go downwards only, there is no circle, and modules stay small."""

import ast
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "retryflow"

# Each room may import its own modules and those of the rows below its own, never of its own row's other rooms.
ROWS = (
    {"cmd", "cli"},
    {"service"},
    {"tasks", "queue"},
    {"retry", "plugin"},
    {"model", "tracking"},
    {"conf"},
)
LEVEL = {room: level for level, row in enumerate(ROWS) for room in row}
# Below all rooms: modules of the package's top that import none of them.
GROUND = {"errors", "faults", ""}
MAXIMUM_LINES = 450
MEDIAN_LINES = 130

FILES = sorted(path for path in PACKAGE.rglob("*.py") if "versions" not in path.parts)


def name_of(path: Path) -> str:
    parts = ["retryflow", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """The room; empty for the package itself, the module's name for a module of the top."""
    return module.split(".")[1] if "." in module else ""


MODULES = {name_of(path): path for path in FILES}


def imported(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, base] if base else above)
        for alias in node.names:
            # "from room import module" imports the module, "from module import name" the module before the name.
            yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base


def parents(tree: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Each node, and whether it runs when the module is imported (not inside a function, nor for the type checker)."""
    waiting = [(tree, True)]
    while waiting:
        node, at_import = waiting.pop()
        yield node, at_import
        for child in ast.iter_child_nodes(node):
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            waiting.append((child, at_import and not inside and not typing_only))


@cache
def imports_of(module: str, *, at_import_only: bool = False) -> frozenset[str]:
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(path.read_text(), filename=str(path))
    return frozenset(
        name
        for node, at_import in parents(tree)
        if at_import or not at_import_only
        for name in imported(node, package)
        if name.split(".")[0] == "retryflow"
    )


def allowed(importer: str, target: str) -> bool:
    own, other = room_of(importer), room_of(target)
    if other in GROUND or own == other:
        return True
    return own in LEVEL and other in LEVEL and LEVEL[other] > LEVEL[own]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_its_own_room_and_rooms_below(module: str) -> None:
    assert [target for target in sorted(imports_of(module)) if not allowed(module, target)] == []


def test_every_room_has_its_place() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert rooms == set(LEVEL)
    assert {room_of(module) for module in MODULES} == set(LEVEL) | GROUND


def test_tracking_imports_nothing_of_the_rest() -> None:
    outside = {
        target
        for module in MODULES
        if room_of(module) == "tracking"
        for target in imports_of(module)
        if room_of(target) != "tracking"
    }
    assert outside == set()


def test_there_is_no_circle() -> None:
    """Among the imports that run when a module is imported; one inside a function runs later and closes no circle."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module in done:
            return
        for target in sorted(imports_of(module, at_import_only=True)):
            if target in MODULES and target != module:
                visit(target, [*path, module])
        done.add(module)

    for module in MODULES:
        visit(module, [])


@pytest.mark.parametrize("module", MODULES)
def test_no_module_is_long(module: str) -> None:
    assert len(MODULES[module].read_text().splitlines()) <= MAXIMUM_LINES


def test_modules_are_small_in_the_median() -> None:
    sizes = [len(path.read_text().splitlines()) for path in FILES if path.name != "__init__.py"]
    assert statistics.median(sizes) <= MEDIAN_LINES
