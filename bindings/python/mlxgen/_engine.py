"""The engine: a budget of memory, in which models and caches live."""

from __future__ import annotations

from ctypes import byref, c_uint64, c_void_p, sizeof
from os import PathLike
from typing import TYPE_CHECKING, Optional, Union

from . import _abi
from ._handle import Handle, call, seconds_to_ms, whole
from ._library import library
from ._types import ComputeType, Device, MemoryInfo, Numerics

if TYPE_CHECKING:
    from ._cancel import Cancel
    from ._model import Model, ProgressFunction


class Engine(Handle):
    """A budget of memory. May be used from any thread.

    Args:
        memory_limit: bytes that models, cache sets and work may take together;
            0: three quarters of the machine's memory.
        pool_limit: bytes of freed buffers kept for reuse; 0: a default. The process has one pool of
            them: the limit that was set last holds for all engines.
        threads: threads for arithmetic, at most 1024; 0: the physical cores. The process has one
            pool of them: the engine that was made last decides for all, also after it is closed.
        device: where arithmetic runs.

    Raises:
        InvalidArgumentError: a number is out of its range.
        UnsupportedError: the device does not exist in this build.
    """

    KIND = "engine"

    def __init__(
        self,
        memory_limit: int = 0,
        pool_limit: int = 0,
        threads: int = 0,
        device: Device = Device.AUTO,
    ) -> None:
        super().__init__(None)
        lib = library()
        options = _abi.EngineOptions()
        lib.engine_options_init(byref(options), sizeof(options))
        options.memory_limit = whole("memory_limit", memory_limit, 64)
        options.pool_limit = whole("pool_limit", pool_limit, 64)
        options.threads = whole("threads", threads, 32)
        options.device = whole("device", device, 31)
        made = c_void_p()
        call(lib.engine_new, byref(options), byref(made))
        super().__init__(made.value)

    def memory(self) -> MemoryInfo:
        """What is in use now, in bytes. Never waits for running work."""
        info = _abi.MemoryInfo(struct_size=sizeof(_abi.MemoryInfo))
        call(library().engine_memory, self._pointer, byref(info))
        return MemoryInfo(
            info.active,
            info.pooled,
            info.peak,
            info.limit,
            info.pool_limit,
            info.available,
            info.models,
            info.caches,
        )

    def set_limits(self, memory_limit: int = 0, pool_limit: int = 0) -> None:
        """Sets both limits in bytes; 0 means the default. What is loaded already stays."""
        call(
            library().engine_set_limits,
            self._pointer,
            whole("memory_limit", memory_limit, 64),
            whole("pool_limit", pool_limit, 64),
        )

    def trim(self) -> int:
        """Gives pooled buffers back to the system; returns the bytes freed."""
        freed = c_uint64()
        call(library().engine_trim, self._pointer, byref(freed))
        return freed.value

    def suspend(self, timeout: float = 10.0) -> None:
        """Stops all work: when it returns nothing runs, and streams pause at a committed token.

        Until :meth:`resume`, calls that need work raise WrongStateError.

        Args:
            timeout: seconds to wait for running work.

        Raises:
            StreamTimeoutError: the work did not stop in time; the engine runs on.
        """
        call(library().engine_suspend, self._pointer, seconds_to_ms(timeout))

    def resume(self) -> None:
        """Lets work go on after :meth:`suspend`."""
        call(library().engine_resume, self._pointer)

    def load_model(
        self,
        path: Union[str, "PathLike[str]"],
        *,
        numerics: Numerics = Numerics.FAST,
        compute_type: ComputeType = ComputeType.AUTO,
        prefill_chunk: int = 0,
        context_limit: int = 0,
        cancel: Optional[Cancel] = None,
        progress: Optional[ProgressFunction] = None,
    ) -> Model:
        """Loads a model; see :class:`Model`."""
        from ._model import Model

        return Model(
            self,
            path,
            numerics=numerics,
            compute_type=compute_type,
            prefill_chunk=prefill_chunk,
            context_limit=context_limit,
            cancel=cancel,
            progress=progress,
        )
