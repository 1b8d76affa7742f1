"""CUDA devices that are not there: tensors that say "cuda:0", hold their values on the CPU, and mix as CUDA's would.

Within `pretend_cuda()`:

- `torch.cuda.is_available()` is True, and `device="cuda"`, `.cuda()`, `.to("cuda")` give a `PretendTensor`;
- an operator whose tensors are not all on one device raises the RuntimeError of CUDA. What CUDA lets pass passes: one
  0-dimensional CPU tensor among the operands of a pointwise operator, CPU indices of a CUDA tensor, `copy_` and `to`,
  CPU scalars in `where`, `masked_fill` and `index_put_`;
- `.numpy()` and `np.asarray` raise TypeError; `.cpu()`, `.item()`, `.tolist()`, `bool()` work;
- each device has a random state of its own; generators of other devices are refused;
- `torch.save` remembers the device, `torch.load` obeys `map_location`, also with `weights_only=True`;
- every operator, every copy between host and device and everything at which the host would wait for a CUDA stream is
  logged with the line of code that asked for it.

A wrapper subclass of Tensor is labelled with the device, and a `TorchDispatchMode` sees every operator below autograd,
also those of backward passes, BoTorch and GPyTorch. It runs them on the CPU tensors inside and labels what comes out.

What cannot be seen:

- Kernels. Values are the CPU's: nothing is learned of CUDA's rounding, of atomics whose order differs (index_add_), of
  operators that CUDA lacks or has in fewer dtypes, of cuSOLVER's failures, or of device-side asserts: an index out of
  range raises here and poisons the process there.
- Time and memory. The log says how often the host waits and how many kernels there are, not what that costs. Nothing is
  asynchronous: a missing synchronisation goes unnoticed.
- What reads memory behind the dispatcher: KeOps, Triton, torch.compile, numba, dlpack, `data_ptr()`.
- `x.data = y` that takes a CPU tensor to the device: raises or misleads here, is legal in CUDA. Modules are moved by
  new Parameters, so their identity over `module.to` is lost here and kept by CUDA.
- Other threads: there tensors are computed with, but not made on the device. Other processes see no device at all.
- Draws: the states are those of CPU generators and give other numbers than CUDA's.
- `type(x) is torch.Tensor` is False for tensors of the device, though isinstance holds.
"""

from pretended.cuda import pretend_cuda
from pretended.hooks import impossible
from pretended.log import Event, Log
from pretended.tensors import PretendTensor

__all__ = ["Event", "Log", "PretendTensor", "impossible", "pretend_cuda"]
