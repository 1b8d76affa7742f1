"""Torch's C++ side of a device that is not there: a build without CUDA has no current device and no stream of it.

`.to("cuda")` and backward passes ask for both. A small library, compiled once for a version of torch, puts a device
guard and hooks in place that do nothing.
"""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

SOURCE = r"""
#include <new>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
using namespace c10;
static thread_local DeviceIndex current = 0;
struct Guard final : impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  static Device at(DeviceIndex i) { return Device(DeviceType::CUDA, i < 0 ? current : i); }
  Device exchangeDevice(Device d) const override { auto old = at(-1); current = at(d.index()).index(); return old; }
  Device getDevice() const override { return at(-1); }
  void setDevice(Device d) const override { current = at(d.index()).index(); }
  void uncheckedSetDevice(Device d) const noexcept override { current = at(d.index()).index(); }
  Stream getStream(Device d) const noexcept override { return Stream(Stream::DEFAULT, at(d.index())); }
  Stream getDefaultStream(Device d) const override { return getStream(d); }
  Stream exchangeStream(Stream s) const noexcept override { return getStream(s.device()); }
  DeviceIndex deviceCount() const noexcept override { return 8; }
};
struct Hooks final : at::CUDAHooksInterface {
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  DeviceIndex deviceCount() const override { return 8; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void init() const override {}
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
};
static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface));
extern "C" void pretend_cuda(bool on) {
  auto& slot = impl::device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)];
  static Guard guard;
  auto* hooks = const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks());
  if (on) new (hooks) Hooks(); else new (hooks) at::CUDAHooksInterface();  // no members: another table of functions
  slot.store(on ? &guard : nullptr);
  current = 0;
}
extern "C" int pretend_current(int index) {
  if (index >= 0) current = static_cast<DeviceIndex>(index);
  return current;
}
"""


def impossible() -> str | None:
    """Why no device can be pretended here; None if it can."""
    if torch.cuda._is_compiled():
        return "this torch is built with CUDA; devices are pretended in builds without it"
    return None if shutil.which("g++") else "needs g++, once for a version of torch"


@functools.cache
def hooks() -> Any:
    """The library, compiled if it is not there yet."""
    reason = impossible()
    if reason is not None:
        raise RuntimeError(f"pretend_cuda: {reason}.")
    digest = hashlib.sha256(SOURCE.encode()).hexdigest()[:8]
    built = Path(tempfile.gettempdir()) / f"pretend_cuda_{digest}_{torch.__version__}_{os.getuid()}.so"
    if not built.exists():
        _compile(built)
    return ctypes.CDLL(str(built))


def _compile(built: Path) -> None:
    base = Path(torch.__file__).parent
    flags = ["-shared", "-fPIC", "-std=c++20", f"-I{base}/include", f"-L{base}/lib", "-ltorch_cpu", "-lc10"]
    flags.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}")
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "hooks.cpp"), Path(folder, "hooks.so")
        source.write_text(SOURCE)
        subprocess.run(["g++", source, *flags, "-o", out], check=True)
        shutil.copy(out, f"{built}.{os.getpid()}")
        os.replace(f"{built}.{os.getpid()}", built)  # two processes may compile at once
