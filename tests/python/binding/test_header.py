"""The binding's numbers, structs and prototypes are those of the header."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

from mlxgen import _abi
from support.paths import HEADER

CALLBACKS = {
    "mlxgen_log_callback": _abi.LogCallback,
    "mlxgen_drop_callback": _abi.DropCallback,
    "mlxgen_progress_callback": _abi.ProgressCallback,
    "mlxgen_wakeup_callback": _abi.WakeupCallback,
}
SCALARS = {
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "mlxgen_status": ctypes.c_int32,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
# Constants of the header that say nothing to a caller in Python.
UNUSED = re.compile(r"VERSION_(MAJOR|MINOR|PATCH)|H")


def source() -> str:
    """The header without comments."""
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", HEADER.read_text(encoding="utf-8"), flags=re.S)


def constants() -> Dict[str, int]:
    found = re.findall(r"#define\s+MLXGEN_(\w+)\s+(\d+)", source())
    return {name: int(value) for name, value in found if not UNUSED.fullmatch(name)}


def structs() -> Dict[str, List[str]]:
    found = re.findall(r"typedef struct(?: \w+)? \{(.*?)\}\s*(\w+);", source(), flags=re.S)
    return {
        name: [re.search(r"(\w+)$", field.strip())[1] for field in body.split(";") if field.strip()]  # type: ignore[index]
        for body, name in found
    }


def functions() -> Dict[str, Tuple[str, List[str]]]:
    """Name -> type of the result, types of the parameters."""
    found = re.findall(r"^([\w ]+?\**)\s*(?<=[\s*])mlxgen_(\w+)\(([^;]*?)\);", source(), flags=re.S | re.M)
    made: Dict[str, Tuple[str, List[str]]] = {}
    for result, name, parameters in found:
        if result.startswith("typedef"):
            continue
        types = []
        for parameter in parameters.split(","):
            text = " ".join(parameter.split())
            if text != "void":
                types.append(re.sub(r"\s*\w+$", "", text))
        made[name] = (" ".join(result.split()), types)
    return made


def ctype(text: str) -> Tuple[Any, ...]:
    """The ctypes that may stand for a C type."""
    plain = text.replace("const ", "").replace(" ", "")
    if plain in CALLBACKS:
        return (CALLBACKS[plain],)
    if plain in SCALARS:
        return (SCALARS[plain],)
    if plain == "void":
        return (None,)
    if plain == "void*":
        return (ctypes.c_void_p,)
    if plain == "char*":
        # A borrowed text whose size is told apart may hold NULs.
        return (ctypes.c_char_p, ctypes.c_void_p)
    if plain.endswith("**"):
        return (ctypes.POINTER(ctypes.c_void_p),)
    if plain.endswith("*"):
        pointed = plain[:-1]
        if pointed in SCALARS:
            return (ctypes.POINTER(SCALARS[pointed]),)
        known = {struct.C_NAME: struct for struct in _abi.STRUCTS}
        if pointed in known:
            return (ctypes.POINTER(known[pointed]),)
        return (ctypes.c_void_p,)  # a handle
    raise AssertionError(f"unknown C type {text!r}")


def test_the_header_is_understood() -> None:
    assert len(functions()) > 50 and len(structs()) >= 10 and len(constants()) > 40


def test_numbers() -> None:
    ours = {name: value for name, value in vars(_abi).items() if name.isupper() and type(value) is int}
    assert ours == constants()


def test_functions() -> None:
    declared = functions()
    assert sorted(_abi.PROTOTYPES) == sorted(declared)
    for name, (result, parameters) in declared.items():
        ours_result, ours_parameters = _abi.PROTOTYPES[name]
        assert ours_result in ctype(result), name
        assert len(ours_parameters) == len(parameters), name
        for number, (ours, theirs) in enumerate(zip(ours_parameters, parameters)):
            assert ours in ctype(theirs), f"{name}, parameter {number}: {theirs}"


def test_struct_fields_have_the_same_names_in_the_same_order() -> None:
    declared = structs()
    assert {struct.C_NAME for struct in _abi.STRUCTS} == set(declared)
    for struct in _abi.STRUCTS:
        assert [field[0] for field in struct._fields_] == declared[struct.C_NAME], struct.C_NAME


def test_struct_layouts_as_the_c_compiler_sees_them(tmp_path: Path) -> None:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.fail("a C compiler is needed: `cc` is not on the path")
    lines = []
    expected = []
    for struct in _abi.STRUCTS:
        lines.append(f'printf("{struct.C_NAME} %zu\\n", sizeof({struct.C_NAME}));')
        expected.append(f"{struct.C_NAME} {ctypes.sizeof(struct)}")
        for name, *_ in struct._fields_:
            field = f"{struct.C_NAME}, {name}"
            size = f"sizeof((({struct.C_NAME} *)0)->{name})"
            lines.append(f'printf("{field} %zu %zu\\n", offsetof({field}), {size});')
            ours = getattr(struct, name)
            expected.append(f"{field} {ours.offset} {ours.size}")
    program = "#include <stdio.h>\n#include <mlxgen.h>\nint main(void) {\n" + "\n".join(lines) + "\n}\n"
    (tmp_path / "layout.c").write_text(program)
    binary = tmp_path / "layout"
    subprocess.run(
        [compiler, "-std=c99", f"-I{HEADER.parent}", "-o", binary, tmp_path / "layout.c"], check=True
    )
    printed = subprocess.run([binary], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == expected
