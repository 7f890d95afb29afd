"""Copies that bypass the CPU caches, for data that is too large to stay in them.

An ordinary copy reads each line of the target before it writes it, and evicts other data from the
caches. Non-temporal stores do neither: 3.6 MB into memory that was not used for a while take
175 us instead of 310 (AMD EPYC, 2026-11). No library that we need has such a copy, so LLVM compiles
one at the first use, which takes 60 ms with the import.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST_BYTES = 512 << 10
"""Smallest copy that bypasses the caches; smaller data is still cached when it is read."""
_LINE_BYTES = 64
"""A cache line."""
_CODE = """
define void @copy(i64* noalias %target, i64* noalias %source, i64 %count) {
entry:
  %to = bitcast i64* %target to <8 x i64>*
  %from = bitcast i64* %source to <8 x i64>*
  br label %loop
loop:
  %index = phi i64 [0, %entry], [%next, %loop]
  %next = add nuw i64 %index, 1
  %read = getelementptr <8 x i64>, <8 x i64>* %from, i64 %index
  %written = getelementptr <8 x i64>, <8 x i64>* %to, i64 %index
  %line = load <8 x i64>, <8 x i64>* %read, align 1
  store <8 x i64> %line, <8 x i64>* %written, align 64, !nontemporal !0
  %is_more = icmp ult i64 %next, %count
  br i1 %is_more, label %loop, label %done
done:
  fence seq_cst
  ret void
}
!0 = !{i32 1}
"""  # the fence: other processes see the copy before anything that is written after it


def copy(target: NDArray[np.uint8], source: NDArray[np.uint8]) -> None:
    """Copy ``source`` to ``target``, of the same size; other threads can run during the copy."""
    to, copied = target.ctypes.data, 0
    if source.size >= LEAST_BYTES and to % _LINE_BYTES == 0:
        if target.size != source.size:
            raise ValueError(f"{source.size} bytes, and room for {target.size}")
        count = source.size // _LINE_BYTES
        _copy_lines()(to, source.ctypes.data, count)
        copied = count * _LINE_BYTES
    target[copied:] = source[copied:]


@functools.cache
def _copy_lines() -> Callable[[int, int, int], None]:
    """Return the function that copies lines: (address of target, of source, how many, at least 1).

    The target's address is a multiple of the size of a line.
    """
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=2,
    )
    engine = binding.create_mcjit_compiler(binding.parse_assembly(_CODE), machine)
    engine.finalize_object()
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    found: Any = prototype(engine.get_function_address("copy"))
    found.engine = engine  # it owns the code
    return found  # type: ignore[no-any-return]
