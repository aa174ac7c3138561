"""What LLVM may do with the text of a step on its way to PTX."""

from __future__ import annotations

import re

from core.device import ptx
from core.device.launches import DeviceCode, Launch

TEXT = """
define internal void @exchange1(ptr %a) #0 {
  %v = load i32, ptr %a, align 4
  call void @dev_block_barrier(i32 1)
  %o = call i32 @dev_exchange(i32 %v, i32 1, i32 2)
  store i32 %o, ptr %a, align 4
  call void @dev_block_barrier(i32 3)
  ret void
}
define void @step0(ptr %given, ptr %arena, ptr %control, ptr %stacks) #0 {
  %n = call i32 @dev_thread()
  %few = icmp slt i32 %n, 100
  br i1 %few, label %before, label %both
before:
  %p = getelementptr i32, ptr %given, i32 %n
  store i32 5, ptr %p, align 4
  br label %both
both:
  call void @exchange1(ptr %arena)
  br i1 %few, label %after, label %end
after:
  %q = getelementptr i32, ptr %stacks, i32 %n
  store i32 7, ptr %q, align 4
  br label %end
end:
  call void @exchange1(ptr %arena)
  ret void
}
declare i32 @dev_thread()
declare void @dev_block_barrier(i32)
declare i32 @dev_exchange(i32, i32, i32)
attributes #0 = { nounwind noinline }
"""


def test_a_call_between_two_branches_on_one_condition_stays_one_call(monkeypatch):
    """Copied to both sides, only a part of a warp would reach each barrier and exchange."""
    monkeypatch.setattr(ptx, "SHORT", 1)  # keep it a call

    found = ptx.ptx_of(DeviceCode(TEXT, (Launch("step0", 4, 256),), 0), "sm_90")

    assert len(re.findall(r"call\.uni exchange1", found)) == 2
