"""Switches of the whole process: each has one owner for each kind of process, a file that documents it.

Two files that set the same switch undo each other's work, so a new user of a switch calls its owner instead.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]

OWNERS = {
    "gc.freeze": {"service/cli/main.py"},  # the API process
    "gc.disable": {"core/ir/recursion.py", "core/runtime/forked.py", "service/cli/main.py"},  # any; an op; the API
    "gc.enable": {"core/ir/recursion.py", "service/cli/main.py"},  # any process; the API process
    "sys.setrecursionlimit": {"core/ir/recursion.py"},
    "llvm.initialize_all_targets": {"core/codegen/cpus.py"},
    "llvm.initialize_all_asmprinters": {"core/codegen/cpus.py"},
    "llvm.add_symbol": {"core/codegen/machine.py"},
    "set_threads": {"core/runtime/blas_threads.py"},
    "os.dup2": {"core/codegen/compiler_main.py", "service/cli/output.py"},  # the compiler process; a command that ends
    # the compiler process; the child of an op; a worker
    "prctl": {"core/codegen/compiler_main.py", "core/runtime/forked.py", "service/worker/main.py"},
    "os.nice": {"core/codegen/compiler_main.py"},  # the compiler process
    "warnings.simplefilter": {"core/runtime/forked.py"},  # restored at once
    "faulthandler.enable": {"service/worker/main.py"},
    "resource.setrlimit": {
        "core/codegen/compiler_main.py",
        "service/worker/memory.py",
    },  # the compiler process; a worker
    "sys.setswitchinterval": {"service/cli/main.py", "service/worker/main.py"},  # the service; a worker
    "threading.stack_size": {"service/worker/compiling.py"},
    # before the service runs, and while it runs; a worker
    "signal.signal": {"service/cli/main.py", "service/cli/server.py", "service/worker/main.py"},
    "signal.setitimer": {"service/cli/server.py"},
    "logging.basicConfig": {"service/logs.py"},
    "os.environ": {"service/cli/main.py", "service/worker/main.py"},  # a spare worker learns its GPU from `Start`
}
"""Every file that may set a switch; two where the files run in different processes."""

OTHERS = {
    "gc.set_threshold", "gc.set_debug", "sys.settrace", "sys.setprofile", "threading.settrace",
    "threading.setprofile", "signal.setitimer", "signal.set_wakeup_fd", "faulthandler.register", "locale.setlocale",
    "os.chdir", "os.umask", "os.putenv", "os.sched_setaffinity", "np.seterr", "np.seterrcall",
    "np.set_printoptions", "np.setbufsize", "warnings.filterwarnings", "random.seed",
    "np.random.seed", "multiprocessing.set_start_method",
}  # fmt: skip
"""Switches that no file sets."""


WORDS = {name.rpartition(".")[2] for name in OWNERS.keys() | OTHERS}


def switches(text: str) -> set[str]:
    found: set[str] = set()
    if not any(word in text for word in WORDS):  # most files, because parsing takes long
        return found
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = ast.unparse(node.func)
            found |= {name, name.rpartition(".")[2]} & (OWNERS.keys() | OTHERS)
            if name in ("os.environ.setdefault", "os.environ.update", "os.environ.pop", "os.environ.clear"):
                found.add("os.environ")
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else []
        if any(isinstance(t, ast.Subscript) and ast.unparse(t.value) == "os.environ" for t in targets):
            found.add("os.environ")
    return found


def sources() -> list[Path]:
    return [path for folder in ("core", "service") for path in sorted((ROOT / folder).rglob("*.py"))]


def test_each_switch_of_the_process_is_set_by_its_owner_alone():
    users = defaultdict(set)
    for path in sources():
        for switch in switches(path.read_text()):
            users[switch].add(path.relative_to(ROOT).as_posix())

    assert users == OWNERS


def test_no_module_of_core_rebinds_globals_but_the_owner_of_the_recursion_limit():
    users = [
        path.relative_to(ROOT).as_posix()
        for path in sources()
        if "global " in (text := path.read_text())  # few files, because parsing takes long
        and any(isinstance(node, ast.Global) for node in ast.walk(ast.parse(text)))
    ]

    assert users == ["core/ir/recursion.py"]
