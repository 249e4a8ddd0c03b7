"""Files that the process may not read: an error of kind IO that names them, from every call that takes a path."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Tuple

import pytest

from safetensors import safe_open

from support.run import run_python

#: Loads each path in turn. Permissions do not bind root, so it becomes nobody first.
CHILD = """
import json, os, sys
import mlxgen

engine = mlxgen.Engine()
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)

def attempt(work, path):
    try:
        work(path).close()
    except mlxgen.MlxgenError as error:
        return [type(error).__name__, error.detail.file and str(error.detail.file), str(error)]
    return ["", None, ""]

class Estimated:
    def __init__(self, path):
        mlxgen.estimate(path, engine=engine)
    def close(self):
        pass

works = {"model": engine.load_model, "estimate": Estimated, "tokenizer": mlxgen.Tokenizer}
found = {name: {work: attempt(works[work], path) for work, path in calls} for name, calls in json.loads(sys.argv[1]).items()}
engine.close()
print(json.dumps([found, mlxgen.live_handles()]))
"""

READERS = ("model", "estimate", "tokenizer")
INDEX = "model.safetensors.index.json"


def repository(folder: Path) -> None:
    """Makes of a model's folder a repository of the hub's cache."""
    files = list(folder.iterdir())
    snapshot = folder / "snapshots" / "abc"
    for made in (folder / "blobs", folder / "refs", snapshot):
        made.mkdir(parents=True)
    for file in files:
        file.rename(folder / "blobs" / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    (folder / "refs" / "main").write_text("abc")


def sharded(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    with safe_open(str(folder / "model-1.safetensors"), "numpy") as file:
        index = {"weight_map": {name: "model-1.safetensors" for name in file.keys()}}
    (folder / INDEX).write_text(json.dumps(index))


def templates(folder: Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "other.jinja").write_text("{{ messages }}")


def gguf(folder: Path) -> None:
    (folder / "model.gguf").write_bytes(b"GGUF")


def nothing(folder: Path) -> None:
    pass


#: By name: how the folder is laid out, what is denied, the mode it gets, what is loaded, the file that the error
#: names, and who reads it.
CASES: Dict[str, Tuple[Callable[[Path], None], str, int, str, str, Tuple[str, ...]]] = {
    "config": (nothing, "config.json", 0, "", "config.json", READERS),
    "generation config": (nothing, "generation_config.json", 0, "", "generation_config.json", READERS),
    "weights": (nothing, "model.safetensors", 0, "", "model.safetensors", READERS[:2]),
    "index": (sharded, INDEX, 0, "", INDEX, READERS[:2]),
    "shard": (sharded, "model-1.safetensors", 0, "", "model-1.safetensors", READERS[:2]),
    "tokenizer": (nothing, "tokenizer.json", 0, "", "tokenizer.json", ("model", "tokenizer")),
    "tokenizer alone": (nothing, "tokenizer.json", 0, "tokenizer.json", "tokenizer.json", ("tokenizer",)),
    "tokenizer config": (nothing, "tokenizer_config.json", 0, "", "tokenizer_config.json", ("model", "tokenizer")),
    "templates": (
        templates, "additional_chat_templates", 0, "", "additional_chat_templates", ("model", "tokenizer")
    ),
    "gguf": (gguf, "model.gguf", 0, "model.gguf", "model.gguf", READERS),
    "folder": (nothing, "", 0, "", "config.json", READERS[:2]),
    "folder of a tokenizer": (nothing, "", 0, "", "tokenizer_config.json", ("tokenizer",)),
    "folder's list": (nothing, "", 0o111, "", "", READERS[:2]),
    "folder above": (nothing, "", 0, "model.gguf", "model.gguf", READERS),
    "reference of a repository": (repository, "refs/main", 0, "", "refs/main", READERS),
    "snapshots of a repository": (repository, "snapshots", 0, "", "snapshots/abc", READERS),
    "blob of a repository": (
        repository, "blobs/model.safetensors", 0, "", "snapshots/abc/model.safetensors", READERS[:2]
    ),
}


@pytest.fixture(scope="module")
def base(random_llama: Path) -> Iterator[Path]:
    """A folder that everyone may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def test_what_must_not_be_read_is_named(base: Path, random_llama: Path) -> None:
    calls: Dict[str, List[Tuple[str, str]]] = {}
    denied: List[Path] = []
    try:
        for name, (arrange, deny, mode, load, _, works) in CASES.items():
            folder = shutil.copytree(random_llama, base / name)
            (folder / "generation_config.json").write_text("{}")
            arrange(folder)
            for path in (folder, *folder.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)
            calls[name] = [(work, str(folder / load)) for work in works]
            denied.append(folder / deny)
            (folder / deny).chmod(mode)
        whole = shutil.copytree(random_llama, base / "whole")
        whole.chmod(0o755)
        for path in whole.iterdir():
            path.chmod(0o644)
        calls["whole"] = [(work, str(whole)) for work in READERS]
        found, handles = run_python(CHILD, json.dumps(calls))
    finally:
        for path in denied:
            path.chmod(0o755)
    assert handles == 0
    assert found.pop("whole") == {work: ["", None, ""] for work in READERS}
    for name, (_, _, _, _, named, works) in CASES.items():
        for work in works:
            kind, file, message = found[name][work]
            assert (kind, file) == ("IoError", str(base / name / named).rstrip("/")), (name, work, message)
            assert "Permission denied" in message, (name, work, message)
