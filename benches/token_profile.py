"""Where the time of a token goes, by samples of Linux's `perf` and the line tables of a release build."""

from __future__ import annotations

import collections
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Callable, Counter, Dict, List, Optional, Tuple

#: Samples a second.
RATE = 4000

#: What a sample belongs to: by the innermost file of the library that is not the instruction set's.
KERNELS = [
    (r"linear/", "products with weights"),
    (r"(attention|kv)/", "attention, keys and values"),
    (r"pool\.rs|routine\.rs", "waiting for the other threads"),
    (r"vocabulary\.rs", "greedy choice"),
    (r"primitive", "MLX: graph and dispatch"),
    (r"", "norms, gates and other kernels"),
]
#: Or else by the file that it was loaded from.
OBJECTS = [
    (r"kernel\.kallsyms|\[guest", "system"),
    (r"vdso", "system"),
    (r"libmlxgen_mlx|libstdc\+\+", "MLX: graph and dispatch"),
    (r"libc\.", "C library: memory allocation"),
    (r"libmlxgen\.", "the rest of the library"),
    (r"", "others"),
]


def available() -> Optional[str]:
    """Why there can be no profile, if so."""
    missing = [tool for tool in ("perf", "addr2line", "readelf") if shutil.which(tool) is None]
    return f"{', '.join(missing)} not installed" if missing else None


class Profile:
    """Seconds of each thread by what they went to."""

    def __init__(self, pid: int, library: Path, tables: Path, work: Callable[[], None], data: Path) -> None:
        """`library` is what the process has loaded, `tables` the same with its line tables."""
        if build_id(library) != build_id(tables):
            raise RuntimeError(f"{library} and {tables} are of different builds")
        recorder = subprocess.Popen(
            ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(RATE), "-o", str(data), "-p", str(pid)],
            stderr=subprocess.DEVNULL,
        )
        time.sleep(0.5)
        begin = time.perf_counter()
        try:
            work()
            self.seconds = time.perf_counter() - begin
        finally:
            recorder.send_signal(signal.SIGINT)
            recorder.wait()
        self.threads = attributed(data, tables)


def build_id(path: Path) -> str:
    found = re.search(r"Build ID: (\w+)", output(["readelf", "-n", str(path)]))
    if found is None:
        raise RuntimeError(f"{path} has no build id")
    return found[1]


def attributed(data: Path, tables: Path) -> Dict[str, Dict[str, float]]:
    mappings: List[Tuple[int, int, int]] = []
    samples: List[Tuple[str, int, str]] = []
    script = ["perf", "script", "-i", str(data), "-F", "comm,tid,time,ip,sym,dso", "--show-mmap-events"]
    for line in output(script).splitlines():
        mapped = re.search(r"\[0x([0-9a-f]+)\(0x([0-9a-f]+)\) @ (\w+) .*\]: \S+ (\S+)$", line)
        sample = re.match(r"\s*(\S+)\s+\d+\s+[\d.]+:\s+([0-9a-f]+)\s.*\((.*)\)$", line)
        if mapped and "libmlxgen.so" in mapped[4]:
            mappings.append((int(mapped[1], 16), int(mapped[2], 16), int(mapped[3], 0)))
        elif sample:
            samples.append((sample[1], int(sample[2], 16), sample[3]))
    segments = [
        (int(found[1], 16), int(found[2], 16), int(found[3], 16))
        for found in re.finditer(
            r"LOAD\s+0x(\w+)\s+0x(\w+)\s+\w+\s+0x(\w+)", output(["readelf", "-lW", str(tables)])
        )
    ]

    def address(sampled: int) -> int:
        """The address in the file of an address in the process."""
        for start, size, offset in mappings:
            place = sampled - start + offset
            for file_offset, virtual, length in segments:
                if start <= sampled < start + size and file_offset <= place < file_offset + length:
                    return place - file_offset + virtual
        return 0

    inside = {sampled: address(sampled) for _, sampled, file in samples if "libmlxgen.so" in file}
    files = source_files(tables, sorted(set(inside.values())))
    seconds: Dict[str, Counter[str]] = collections.defaultdict(collections.Counter)
    for thread, sampled, file in samples:
        kernel = files.get(inside.get(sampled, 0), "")
        rules, name = (KERNELS, kernel) if kernel else (OBJECTS, file)
        seconds[thread][next(what for pattern, what in rules if re.search(pattern, name))] += 1
    return {
        thread: {what: count / RATE for what, count in counts.most_common()}
        for thread, counts in seconds.items()
    }


def source_files(tables: Path, addresses: List[int]) -> Dict[int, str]:
    """For each address the innermost file of the kernels' folder that it comes from, if any."""
    listing = subprocess.run(
        ["addr2line", "-a", "-i", "-e", str(tables)],
        input="\n".join(map(hex, addresses)), capture_output=True, text=True, check=True,
    ).stdout
    files: Dict[int, str] = {}
    current = 0
    for line in listing.splitlines():
        if line.startswith("0x"):
            current = int(line, 16)
            continue
        found = re.search(r"mlx/kernels/(.*?\.(rs|cpp))", line)
        if found and not re.match(r"simd_|sixteen", found[1]):
            files.setdefault(current, found[1])
    return files


def output(command: List[str]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
