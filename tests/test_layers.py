"""The dependency order of the modules, and what importing the package loads."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

EDGES = (
    "alike",
    "targets",
    "output_files",
    "planfile",
    "planning",
    "setting",
    "fit",
    "compare",
    "explain",
    "why_not",
    "edits",
    "sweep",
    "objectives",
    "default_batch",
    "doctor",
    "elastic",
    "correlation",
    "exporters.",
    "importers.",
    "report.",
    "calibration",
    "calibration_predictor",
    "calibration_runs",
    "calibration_speed",
    "runlogs",
    "validation",
    "ranked_groups",
    "residuals",
    "robustness",
    "scored_row",
    "scores",
    "measurements",
    "measured_*",
    "run_defaults",
    "stage_split",
    "input_files",
    "schedule_ratios",
    "tuning.",
)

# Lowest first. A module may import from the layers below its own, and within its own layer where
# the last column says so. Branch "core" sees the core alone: reading files is another branch over
# the same types, and joins above the simulator. "name." is a package, "name*" a family of modules.
FILE_READERS = ("yaml_io", "schemas*", "huggingface*", "catalog", "calibration_overlay")
STAGES = (
    "exposure",
    "stages",
    "costs",
    "layer_costs",
    "edge_costs",
    "sublayer_seconds",
    "selective",
    "memory",
    "memory_states",
    "memory_activations",
    "stage_seconds",
    "optimizers",
    "sharded",
    "pipeline*",
)
LAYERS: tuple[tuple[str, str, tuple[str, ...], bool], ...] = (
    # layer, branch, modules, may import within
    ("base", "core", ("errors", "units"), False),
    ("timeline", "core", ("timeline.",), True),
    ("kinds", "core", ("layers", "layer_checks", "lora", "custom_layers", "expressions"), True),
    ("types", "core", ("model", "cluster", "framework"), False),
    ("plan", "core", ("plan",), False),
    ("batch", "core", ("plan_batch",), False),
    ("data", "files", ("frameworks.", "models.", "clusters."), False),
    ("files", "files", FILE_READERS, True),
    ("rules", "core", ("rules", "rule_*"), True),
    ("operators", "core", ("operators",), False),
    ("sublayers", "core", ("sublayers.",), True),
    ("seconds", "core", ("compute", "collectives", "savedtensors", "uncertainty"), False),
    ("stages", "core", STAGES, True),
    ("step", "core", ("step",), False),
    ("causes", "core", ("causes",), False),
    ("frames", "core", ("frames",), False),
    ("simulate", "core", ("simulate",), False),
    ("replay", "core", ("replay", "replay_costs"), True),
    ("whole run", "core", ("whole_run",), False),
    ("processes", "top", ("processes", "progress"), False),
    ("search", "top", ("search.",), True),
    ("edges", "top", EDGES, True),
    ("program", "top", ("cli*", "commands."), True),
    ("entry", "top", ("__main__",), False),
)

CORE_THIRD_PARTY = {"": {"numpy"}, "frames": {"numpy", "pandas"}}
"""What a module of the core may import; pandas in the function that makes a frame of it."""


def _source_files() -> dict[str, Path]:
    """Installed dotted name without the leading "parallelsim.", to its file; the face is ""."""
    found = {}
    for tree in ("parallelsim", "search", "models", "clusters"):
        for file in (ROOT / tree).rglob("*.py"):
            parts = list(file.relative_to(ROOT).with_suffix("").parts)
            parts = parts[1:] if tree == "parallelsim" else parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


FILES = _source_files()
MODULES = sorted(name for name in FILES if name)


def _layer(module: str) -> int | None:
    for position, (_, _, patterns, _) in enumerate(LAYERS):
        for pattern in patterns:
            package = pattern.endswith(".") and f"{module}.".startswith(pattern)
            family = pattern.endswith("*") and module.startswith(pattern[:-1])
            if module == pattern or package or family:
                return position
    return None


def _imports(module: str) -> set[tuple[str, bool]]:
    """(absolute dotted name, is it run at import time) of every import in the module."""
    found = set()
    tree = ast.parse(FILES[module].read_text())
    is_package = FILES[module].name == "__init__.py"
    package = f"parallelsim.{module}".rstrip(".").split(".")
    package = package if is_package else package[:-1]
    lazy = {
        node
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.If)
        and (not isinstance(outer, ast.If) or "TYPE_CHECKING" in ast.unparse(outer.test))
        for node in ast.walk(outer)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(alias.name, node not in lazy) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            parent = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            for alias in node.names:
                full = f"{parent}.{alias.name}"
                inner = full.removeprefix("parallelsim.")
                found.add((full if inner in FILES else parent, node not in lazy))
    return found


def _inner_imports(module: str) -> set[str]:
    return {
        name.removeprefix("parallelsim").removeprefix(".")
        for name, _ in _imports(module)
        if name.split(".")[0] == "parallelsim"
    }


@pytest.mark.parametrize("module", MODULES)
def test_module_has_a_layer_and_imports_downwards(module: str) -> None:
    layer = _layer(module)
    assert layer is not None, f"{module} has no layer: put it into LAYERS"
    _, branch, _, within = LAYERS[layer]
    for target in sorted(_inner_imports(module)):
        assert target, f"{module} imports from the public face; name the module"
        assert target in FILES, f"{module} imports parallelsim.{target}, which does not exist"
        below = _layer(target)
        assert below is not None, f"{target} has no layer: put it into LAYERS"
        allowed = below < layer or (below == layer and within)
        assert allowed, f"{module} ({LAYERS[layer][0]}) imports {target} ({LAYERS[below][0]})"
        visible = branch == "top" or LAYERS[below][1] in ("core", branch)
        assert visible, f"{module} ({LAYERS[layer][0]}) imports {target} ({LAYERS[below][0]})"


@pytest.mark.parametrize(
    "module", [m for m in MODULES if (i := _layer(m)) is not None and LAYERS[i][1] == "core"]
)
def test_core_module_imports_numpy_alone(module: str) -> None:
    roots = {name.split(".")[0] for name, _ in _imports(module)}
    third_party = roots - set(sys.stdlib_module_names) - {"parallelsim"}
    assert third_party <= CORE_THIRD_PARTY.get(module, CORE_THIRD_PARTY[""]), third_party


def test_imports_have_no_cycle() -> None:
    import networkx as nx

    graph = nx.DiGraph((m, target) for m in MODULES for target in _inner_imports(m) if target != m)
    assert not list(nx.simple_cycles(graph))


HEAVY = ("optuna", "networkx", "pandas", "pydantic", "rich", "click", "yaml", "matplotlib", "scipy")


@pytest.mark.parametrize(
    "statement",
    [
        "import parallelsim",
        "import parallelsim.simulate",
        "from parallelsim import simulate, SearchSpace, grid_search, Plan, PlanBatch, ModelSpec",
        "import parallelsim.search.grid",
        "import parallelsim.search.grid; from parallelsim import simulate; simulate.__call__",
    ],
)
def test_import_loads_numpy_and_nothing_heavy(statement: str) -> None:
    code = f"import sys; {statement}; print([m for m in {HEAVY!r} if m in sys.modules])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_simulating_and_searching_load_no_heavy_library_beyond_the_file_readers() -> None:
    code = f"""if True:
        import sys
        from parallelsim import SearchSpace, grid_search, load_cluster, load_framework, load_model
        from parallelsim import simulate
        model = load_model("llama3-8b")
        cluster, framework = load_cluster("hgx-h100", num_gpus=8), load_framework("megatron-core")
        result = grid_search(SearchSpace(model, cluster, framework, 64), top_k=2)
        simulate(model, cluster, framework, result.plans.plans)
        reads_files = ("yaml", "pydantic")
        print([m for m in {HEAVY!r} if m in sys.modules and m not in reads_files])
    """
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
