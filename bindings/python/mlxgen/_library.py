"""Finds and loads the dynamic library, once, at the first use."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from pathlib import Path
from typing import Any, Iterator, Optional

from . import _abi


class LibraryNotFoundError(ImportError):
    """The dynamic library is missing, cannot be loaded, or speaks another ABI."""


class Library:
    """The loaded library: each function of the header as an attribute without its prefix.

    ctypes gives the interpreter lock back for as long as a call runs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # RTLD_LOCAL: our symbols must not answer for anybody else's.
            cdll = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
        except OSError as error:
            raise LibraryNotFoundError(f"cannot load {path}: {error}") from error
        self._cdll = cdll
        version = getattr(cdll, "mlxgen_abi_version", None)
        if version is None:
            raise LibraryNotFoundError(f"{path} is not libmlxgen")
        version.restype, version.argtypes = ctypes.c_uint32, []
        if version() != _abi.ABI_VERSION:
            raise LibraryNotFoundError(
                f"{path} has ABI {version()}; this package needs ABI {_abi.ABI_VERSION}"
            )
        for name, (result, parameters) in _abi.PROTOTYPES.items():
            try:
                function = getattr(cdll, f"mlxgen_{name}")
            except AttributeError:
                raise LibraryNotFoundError(f"{path} lacks mlxgen_{name}") from None
            function.restype, function.argtypes = result, parameters
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that __init__ did not set; tells type checkers that any may exist.
        raise AttributeError(f"mlxgen_{name} is not a function of the library")


def _file_name() -> str:
    return "libmlxgen.dylib" if sys.platform == "darwin" else "libmlxgen.so"


def _candidates() -> Iterator[Path]:
    here = Path(__file__).resolve().parent
    yield here / _file_name()
    yield here / "lib" / _file_name()
    # A checkout: bindings/python/mlxgen -> the repository's build output.
    if len(here.parents) >= 3:
        yield here.parents[2] / "target" / "dist" / "lib" / _file_name()


def find_library() -> Path:
    """The library's path: ``MLXGEN_LIBRARY`` if set, else beside the package, else the build output.

    Raises:
        LibraryNotFoundError: it is in none of these places.
    """
    chosen = os.environ.get("MLXGEN_LIBRARY")
    if chosen:
        path = Path(chosen)
        if not path.is_file():
            raise LibraryNotFoundError(f"MLXGEN_LIBRARY names {path}, which is not a file")
        return path.resolve()
    tried = list(_candidates())
    for path in tried:
        if path.is_file():
            return path
    places = ", ".join(str(path) for path in tried)
    raise LibraryNotFoundError(
        f"{_file_name()} was not found; set MLXGEN_LIBRARY or build it (make demo). Tried: {places}"
    )


_lock = threading.Lock()
_loaded: Optional[Library] = None


def library() -> Library:
    """The library, loaded at the first call."""
    global _loaded
    loaded = _loaded
    if loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = Library(find_library())
            loaded = _loaded
    return loaded
