"""From the text of a step to PTX, and to the machine code of a GPU (cubin) by nvJitLink, which needs no GPU."""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from core.codegen.cpus import prepare_targets
from core.codegen.machine import optimize
from core.device.launches import PARAMETERS, DeviceCode, Launch
from core.device.parts import parted
from core.device.rules import cluster_of, follows_early
from core.device.threads import WARP
from core.ir.errors import ExecutionError, InternalError

__all__ = ["Cubin", "cubin_of", "has_linker", "linker_version", "machine_code_of", "ptx_of"]

PRELUDE = """
@shared_memory = external addrspace(3) global [0 x i8], align 16
@arrived = internal global i32 0
@round = internal global i32 0
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
declare void @llvm.nvvm.bar.warp.sync(i32)
declare i32 @llvm.nvvm.shfl.sync.bfly.i32(i32, i32, i32, i32)

define internal i32 @dev_thread() #1 {{
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %threads = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %before = mul i32 %block, %threads
  %number = add i32 %before, %thread
  ret i32 %number
}}

define internal ptr @dev_shared() #1 {{
  ret ptr addrspacecast (ptr addrspace(3) @shared_memory to ptr)
}}

define internal void @dev_block_barrier(i32 %place) #1 {{
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  ret void
}}

define internal void @dev_warp_barrier(i32 %place) #1 {{
  call void @llvm.nvvm.bar.warp.sync(i32 -1)
  ret void
}}

define internal i32 @dev_exchange(i32 %value, i32 %distance, i32 %place) #1 {{
  %other = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 %value, i32 %distance, i32 {last})
  ret i32 %other
}}

define internal void @dev_barrier(i32 %place) #1 {{
{clusters}
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %blocks = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
  %speaks = icmp eq i32 %thread, 0
  br i1 %speaks, label %one, label %all
one:
  %round = load atomic i32, ptr @round syncscope("device") acquire, align 4
  %before = atomicrmw add ptr @arrived, i32 1 syncscope("device") acq_rel
  %last = sub i32 %blocks, 1
  %is_last = icmp eq i32 %before, %last
  br i1 %is_last, label %open, label %wait
open:
  store atomic i32 0, ptr @arrived syncscope("device") monotonic, align 4
  %next = add i32 %round, 1
  store atomic i32 %next, ptr @round syncscope("device") release, align 4
  br label %all
wait:
  %now = load atomic i32, ptr @round syncscope("device") acquire, align 4
  %early = icmp eq i32 %now, %round
  br i1 %early, label %wait, label %all
all:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  br label %done
done:
  ret void
}}

attributes #1 = {{ nounwind alwaysinline convergent }}
"""
"""The functions `dev_*` (see `core.device.threads`).

At a barrier of several blocks one thread of each waits until all of them have arrived; the last one opens the next
round. All blocks must run at once (a cooperative launch). The count begins anew in each round: a count that goes on
would overflow after some 100,000 steps, in the middle of a round. The blocks of a cluster have a barrier of their own.
"""

CLUSTERS = """
  %cluster = call i32 @llvm.nvvm.read.ptx.sreg.cluster.nctaid.x()
  %is_cluster = icmp ugt i32 %cluster, 1
  br i1 %is_cluster, label %together, label %apart
together:
  call void @llvm.nvvm.barrier.cluster.arrive.aligned()
  call void @llvm.nvvm.barrier.cluster.wait.aligned()
  br label %done
apart:
"""
"""The beginning of `dev_barrier` where a launch of the text is a cluster."""

CLUSTER_DECLARATIONS = """
declare i32 @llvm.nvvm.read.ptx.sreg.cluster.nctaid.x()
declare void @llvm.nvvm.barrier.cluster.arrive.aligned()
declare void @llvm.nvvm.barrier.cluster.wait.aligned()
"""

MMA = """
declare {{float, float, float, float}} @llvm.nvvm.mma.{instruction}({types}, float, float, float, float)
define internal <4 x float> @dev_mma_{kind}({params}, <4 x float> %c, i32 %place) #1 {{
{before}
  %sum = call {{float, float, float, float}} @llvm.nvvm.mma.{instruction}({words}) convergent
{after}
  ret <4 x float> %d3
}}
"""
"""The function `dev_mma_*` of one kind of numbers."""


def _mma(kind: str) -> str:
    shape = "m16n8k8" if kind == "tf32" else "m16n8k16"
    instruction = f"{shape}.row.col.{'f32.f32' if kind == 'f16' else kind}"
    names = ["%a0", "%a1", "%a2", "%a3", "%b0", "%b1"]
    before = [f"  %c{i} = extractelement <4 x float> %c, i64 {i}" for i in range(4)]
    if kind == "f16":  # the intrinsic takes pairs of numbers
        before += [f"  {n}.h = bitcast i32 {n} to <2 x half>" for n in names]
    words = [f"<2 x half> {n}.h" if kind == "f16" else f"i32 {n}" for n in names]
    words += [f"float %c{i}" for i in range(4)]
    after = []
    for i in range(4):
        after.append(f"  %s{i} = extractvalue {{float, float, float, float}} %sum, {i}")
        into = f"%d{i - 1}" if i else "poison"
        after.append(f"  %d{i} = insertelement <4 x float> {into}, float %s{i}, i64 {i}")
    return MMA.format(
        instruction=instruction, kind=kind, params=", ".join(f"i32 {n}" for n in names),
        types=", ".join(["<2 x half>" if kind == "f16" else "i32"] * 6),
        words=", ".join(words), before="\n".join(before), after="\n".join(after),
    )  # fmt: skip


ENTRY = """
define ptx_kernel void @{entry}({params}) #{number} {{
{follows}
  call void @{kernel}({params})
  ret void
}}
attributes #{number} = {{ nounwind "nvvm.maxntid"="{block}"{cluster}{resident} }}
"""
FOLLOWS = """
  call void @llvm.nvvm.griddepcontrol.wait()
  call void @llvm.nvvm.griddepcontrol.launch.dependents()
"""
"""The beginning of an entry where blocks may start before the launch before them has ended: they wait for its end, and
for its memory, and then let the blocks of the next launch start and wait. So one launch at most waits behind another.
"""

FOLLOW_DECLARATIONS = """
declare void @llvm.nvvm.griddepcontrol.wait()
declare void @llvm.nvvm.griddepcontrol.launch.dependents()
"""

FIRST_ATTRIBUTES = 10
"""The number of the attributes of the first entry; those of the text and of the prelude have smaller numbers."""


def ptx_of(code: DeviceCode, architecture: str = "sm_80") -> str:
    """The PTX of a step; its kernels are the `entry` of each launch. Raises ExecutionError (compiler_failed)."""
    declared = "\n".join(line for line in code.text.split("\n") if not re.match(r"declare .*? @dev_", line))
    declared = _inlined(declared, {each.kernel for each in code.launches})
    # All threads of a warp call a function together, so LLVM must not copy a call to both sides of a branch.
    declared = declared.replace("attributes #0 = { nounwind ", "attributes #0 = { nounwind convergent ")
    launches = {each.entry: each for each in code.launches}.values()
    has_clusters = any(each.cluster > 1 for each in launches)
    if has_clusters and cluster_of(architecture) == 1:
        raise InternalError(f"{architecture} has no clusters")
    entries = [
        ENTRY.format(
            entry=each.entry, kernel=each.kernel, block=each.block, number=FIRST_ATTRIBUTES + i, params=_params(each),
            cluster=f' "nvvm.cluster_dim"="{each.cluster}"' if each.cluster > 1 else "",
            resident=f' "nvvm.minctasm"="{each.resident}"' if each.resident > 1 else "",
            follows=FOLLOWS if follows_early(architecture) else "",
        )
        for i, each in enumerate(launches)
    ]  # fmt: skip
    kinds = sorted(set(re.findall(r"@dev_mma_(\w+)\(", code.text)))
    prelude = PRELUDE.format(last=WARP - 1, clusters=CLUSTERS if has_clusters else "") + "".join(map(_mma, kinds))
    prelude += CLUSTER_DECLARATIONS if has_clusters else ""
    prelude += FOLLOW_DECLARATIONS if follows_early(architecture) else ""
    prepare_targets()
    machine = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(cpu=architecture, opt=3)
    try:
        module = llvm.parse_assembly(declared + prelude + "".join(entries))
        module.verify()
    except RuntimeError as error:
        raise ExecutionError(f"LLVM refuses the step: {error}", "compiler_failed") from None
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    whole = llvm.create_new_module_pass_manager()
    whole.add_always_inliner_pass()
    whole.run(module, llvm.create_pass_builder(machine, llvm.PipelineTuningOptions()))
    optimize(module, machine)
    return str(machine.emit_assembly(module))


def _params(launch: Launch) -> str:
    """The parameters of a kernel, and the arguments of a call with these names."""
    return ", ".join([*(f"ptr %{p}" for p in PARAMETERS), *(f"i64 %number{i}" for i in range(len(launch.numbers)))])


SHORT = 20_000
"""Characters up to which the text of a function, times its calls, is inline in all of them."""

CROWDED, SEVERAL = 100_000, 4
"""In a kernel of more than CROWDED characters, with its functions inline, SEVERAL products or more stay calls: there
are not enough registers for all of them and the values around them, as in the body of a loop."""


def _inlined(text: str, kernels: Collection[str]) -> str:
    """The text with functions inline that are short or called once, and those of launches; the others stay calls.

    A call costs some registers, but inline at each call LLVM and the assembler would compile the same code again and
    again: minutes for a step with some hundred products.
    """
    pattern = re.compile(r"^define (?:internal )?([^\n]*?@(\w+)\([^\n]*)#0 \{(.*?^\}$)", re.MULTILINE | re.DOTALL)
    bodies = {found[2]: found[3] for found in pattern.finditer(text)}
    calls = Counter(re.findall(r"call void @(\w+)\(", text))
    apart = {name for kernel in kernels for name in _products_in_crowded(kernel, bodies)}

    def marked(found: re.Match[str]) -> str:
        head, name, body = found.groups()
        inline = name in kernels or (name not in apart and (calls[name] <= 1 or calls[name] * len(body) <= SHORT))
        return f"define internal {head}#{1 if inline else 0} {{{body}"

    return pattern.sub(marked, text)


def _products_in_crowded(kernel: str, bodies: Mapping[str, str]) -> set[str]:
    """The products of a kernel that is too long with its functions inline; their names begin with "product".

    bodies: the text of each function.
    """
    reached = [kernel]
    for name in reached:  # the list grows during the loop
        reached += [each for each in re.findall(r"call void @(\w+)\(", bodies[name]) if each in bodies]
    if sum(len(bodies[name]) for name in reached) <= CROWDED:
        return set()
    products = {name for name in reached if name.startswith("product")}
    return products if len(products) >= SEVERAL else set()


PTX_INPUT = 2
"""The number of PTX among nvJitLink's kinds of inputs."""

ASSEMBLERS = 2
"""Threads that assemble the functions of a text."""


LINKERS = ("nvjitlink", "cu13")
"""Folders of NVIDIA's packages that have nvJitLink."""


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code of a GPU. registers: entry -> registers of a thread.

    spills: function -> bytes of registers it keeps in memory.
    """

    code: bytes
    registers: Mapping[str, int]
    spills: Mapping[str, int]

    @property
    def spilled(self) -> int:
        return sum(self.spills.values())


def has_linker() -> bool:
    """Whether nvJitLink is installed (the package nvidia-nvjitlink-cu12, or that of CUDA 13)."""
    return _linker_path() is not None


def linker_version() -> str:
    """The version of nvJitLink; empty without it."""
    if not has_linker():
        return ""
    numbers = ctypes.c_uint(), ctypes.c_uint()
    _linker()("Version", *map(ctypes.byref, numbers))
    return ".".join(str(each.value) for each in numbers)


def machine_code_of(code: DeviceCode, architecture: str) -> Cubin:
    """The machine code of a step. LLVM writes a part of it while the one before is assembled.

    Raises ExecutionError (compiler_failed).
    """
    return cubin_of((ptx_of(part, architecture) for part in parted(code)), architecture)


def cubin_of(ptx: str | Iterable[str], architecture: str = "sm_80") -> Cubin:
    """The machine code of a text of PTX, or of several ones, which are assembled as they come, in another thread.

    Raises ExecutionError (compiler_failed) with nvJitLink's message.
    """
    link, handle = _linker(), ctypes.c_void_p()
    given = (f"-arch={architecture}".encode(), b"-verbose", f"-split-compile={ASSEMBLERS}".encode())
    if link("Create", ctypes.byref(handle), len(given), (ctypes.c_char_p * len(given))(*given)):
        raise ExecutionError(f"nvJitLink takes no {architecture}", "compiler_failed")

    def add(text: str) -> Any:
        source = text.encode() + b"\0"
        return link("AddData", handle, PTX_INPUT, source, ctypes.c_size_t(len(source)), b"step")

    def log_of(which: str) -> str:
        size = ctypes.c_size_t()
        link(f"Get{which}LogSize", handle, ctypes.byref(size))
        room = ctypes.create_string_buffer(size.value + 1)
        link(f"Get{which}Log", handle, room)
        return room.value.decode()

    try:
        with ThreadPoolExecutor(1) as assembler:
            added = [assembler.submit(add, text) for text in ([ptx] if isinstance(ptx, str) else ptx)]
        if any(each.result() for each in added) or link("Complete", handle):
            raise ExecutionError(f"nvJitLink refuses the step: {log_of('Error')}", "compiler_failed")
        size = ctypes.c_size_t()
        link("GetLinkedCubinSize", handle, ctypes.byref(size))
        room = ctypes.create_string_buffer(size.value)
        link("GetLinkedCubin", handle, room)
        return Cubin(room.raw, *_used(log_of("Info")))
    finally:
        link("Destroy", ctypes.byref(handle))


def _used(report: str) -> tuple[dict[str, int], dict[str, int]]:
    """Registers and spills, from the report of nvJitLink."""
    used = re.findall(r"Function properties for (\S+)\n[^\n]*\n[^\n]*[Uu]sed (\d+) registers", report)
    spills = re.findall(r"Function properties for (\S+)\n.*? (\d+) bytes spill stores", report)
    return {name: int(count) for name, count in used}, {name: int(nbytes) for name, nbytes in spills if nbytes != "0"}


def _linker_path() -> Path | None:
    """The library of CUDA 12 or, where that is missing, of CUDA 13."""
    try:
        found = find_spec("nvidia")
    except ModuleNotFoundError:
        return None
    folders = [Path(each) for each in (found.submodule_search_locations if found else None) or ()]
    places = (path for kind in LINKERS for each in folders for path in each.glob(f"{kind}/lib/libnvJitLink.so.*"))
    return next(places, None)


@cache
def _linker() -> Any:
    path = _linker_path()
    if path is None:
        raise ExecutionError("nvJitLink is not installed: it comes with nvidia-nvjitlink-cu12", "compiler_failed")
    library = ctypes.CDLL(str(path))
    return lambda name, *args: getattr(library, f"nvJitLink{name}")(*args)
