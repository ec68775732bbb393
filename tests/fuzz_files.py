"""Seeded damage to draft heads and recordings: each file is loaded, or refused in one sentence.

    python tests/fuzz_files.py heads --inputs 1000 --seed 1

Prints "inputs N accepted N refused N crashes N". A crash is any other end; how to try its input
again is said. Input n of a seed is always the same.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import logging
import pickle
import random
import struct
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from head_files import Folder
from models import tiny_target
from recorded import TEXT, recording

from dart_core.errors import ArenaError
from dart_core.heads import head_kind, load_dart_head, load_eagle3_head

HOSTILE = [
    None, True, False, 0, -1, 1, 3, 63, 65, 2**31, 2**63, -(2**70), 10**400, 0.5, -0.5, 1e308,
    float("inf"), float("-inf"), float("nan"), "", "64", "\ud83c", "\x00", "../../x", [], {},
    [None], [1, 2, 3], [2, 3, 4], [0, 0, 0], [1, 2, 2**40], ["a"] * 3, {"rope_type": "linear"},
    {"rope_type": "linear", "factor": 0}, {"rope_type": ["x"]}, {"rope_theta": -1},
    {"rope_type": "yarn", "factor": 1e308, "original_max_position_embeddings": 0}, {"a": {"b": []}},
]  # fmt: skip
DTYPES = ["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I64", "I32", "I8", "U8", "BOOL",
          "C64", "U16", "U64", "F4", "X9", "", 5]  # fmt: skip


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    """Some bytes set, taken out or put in, or the end cut off."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(max(1, len(data)))
        match rng.randrange(5):
            case 0 | 1:
                data[place : place + 1] = bytes([rng.randrange(256)])
            case 2:
                del data[place : place + rng.randint(1, 50)]
            case 3:
                data[place:place] = rng.choice([b"9", b'"', b"[", b"null,", b"\xff", b"\\u", b"{"])
            case 4 if rng.randrange(4) == 0:
                del data[place:]
    return bytes(data)


def damaged_json(data: dict, rng: random.Random, keys: list[str]) -> str:
    """A JSON object with values of the wrong kind, without some, with doubles, or too deep."""
    data = deepcopy(data)
    for _ in range(rng.randint(1, 3)):
        key = rng.choice(keys)
        if rng.randrange(5) == 0:
            data.pop(key, None)
        else:
            data[key] = deepcopy(rng.choice(HOSTILE))
    try:
        text = json.dumps(data)
    except ValueError:  # more digits than Python prints
        text = json.dumps(data, default=str)[:-1] + ', "vocab_size": ' + "9" * 5000 + "}"
    match rng.randrange(12):
        case 0:
            text = (
                text[:-1] + f', "{rng.choice(keys)}": {json.dumps(rng.choice([1, None, []]))}' + "}"
            )
        case 1:
            text = text[:-1] + ', "deep": ' + rng.choice(["[", '{"a":']) * 100_000
    return text


def damaged_safetensors(data: bytes, rng: random.Random) -> bytes:
    """The file with a header that lies: of dtypes, shapes, offsets, names, or its own length."""
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    names = [name for name in header if name != "__metadata__"]
    for _ in range(rng.randint(1, 3)):
        entry = header[rng.choice(names)]
        shape = entry["shape"] if isinstance(entry["shape"], list) else []
        numbers = [0, 1, -1, 64, 2**31, 2**62, 2**64, 0.5, "1", None, len(body), len(body) + 1]
        match rng.randrange(7):
            case 0:
                entry["dtype"] = rng.choice(DTYPES)
            case 1:
                if shape:
                    shape[rng.randrange(len(shape))] = rng.choice(numbers)
            case 2:
                entry["shape"] = rng.choice([[], [1] * 100, shape[::-1], [2**32, 2**32], 7, None])
            case 3:
                entry["data_offsets"][rng.randrange(2)] = rng.choice(numbers)
            case 4:
                entry["data_offsets"] = list(header[rng.choice(names)]["data_offsets"])
            case 5:
                name = rng.choice(names)
                entry = header.pop(name)
                names.remove(name)
                odd = ["../x", "", "\n", "x" * 5000, "\x1b[2J", "layers.1.x", "model." + name]
                header[rng.choice([name, *odd])] = entry
            case 6:
                where = 8 * rng.randrange(len(body) // 8)
                bits = rng.choice(
                    [b"\xff" * 8, b"\0\0\xc0\x7f" * 2, b"\xff\xff\xff\xff\xff\xff\xff\x7f"]
                )
                body = body[:where] + bits + body[where + 8 :]
        if not names:
            break
    text = json.dumps(header).encode()
    told = len(text)
    if rng.randrange(6) == 0:
        told = rng.choice([0, 1, told - 1, told + 1, 10**8 + 1, 2**31, 2**63, 2**64 - 1])
    return struct.pack("<Q", told) + text + body


def one_sentence(error: Exception, folder: Path) -> None:
    """Raises AssertionError unless the error is a refusal as a user should read it."""
    told = str(error)
    assert isinstance(error, ArenaError | FileNotFoundError), f"{type(error).__name__}: {told}"
    assert "\n" not in told and "\x1b" not in told and 10 < len(told) < 2000, told[:3000]
    assert str(folder) in told or error.__class__ is ArenaError, told


class Heads:
    """A head of either kind, spoilt in its config, its safetensors or its pickle."""

    def __init__(self, folder: Path):
        self.target = tiny_target()
        self.folders = [Folder(folder / kind, self.target, kind) for kind in ("dart", "eagle3")]
        self.good = [(f.path / "model.safetensors").read_bytes() for f in self.folders]
        self.pickles = []
        for head in self.folders:
            file = io.BytesIO()
            torch.save(head.tensors, file)
            self.pickles.append(file.getvalue())

    def try_one(self, rng: random.Random) -> bool:
        """True if the head loads. Raises where it is neither loaded nor refused in words."""
        which = rng.randrange(2)
        head, good = self.folders[which], self.good[which]
        weights, pickled = head.path / "model.safetensors", head.path / "pytorch_model.bin"
        config, data = json.dumps(head.config), good
        pickled.unlink(missing_ok=True)
        match rng.randrange(6):
            case 0 | 1:
                keys = [*head.config, "transformer_layer_config", "rope_parameters", "eagle_config",
                        "target_layer_ids", "target_hidden_size", "fc_norm"]  # fmt: skip
                config = damaged_json(head.config, rng, keys)
            case 2:
                config = damaged_bytes(config.encode(), rng).decode(errors="replace")
            case 3 | 4:
                data = damaged_safetensors(good, rng)
            case 5:
                data = None
                pickled.write_bytes(damaged_bytes(self.pickles[which], rng))
        (head.path / "config.json").write_text(config, encoding="utf-8", errors="surrogatepass")
        weights.unlink(missing_ok=True)
        if data is not None:
            weights.write_bytes(data)
        load = load_dart_head if rng.randrange(8) else load_eagle3_head
        if head.kind == "eagle3":
            load = load_eagle3_head if rng.randrange(8) else load_dart_head
        try:
            head_kind(head.path)
        except (ArenaError, FileNotFoundError) as error:
            one_sentence(error, head.path)
        try:
            loaded = load(
                head.path, dtype=torch.float32, device="cpu", target_config=self.target.config
            )
        except (ArenaError, FileNotFoundError) as error:
            one_sentence(error, head.path)
            return False
        assert all(tensor.isfinite().all() for tensor in loaded.parameters())
        return True


class Recordings:
    """A short run, spoilt as data, as text and as a packed file."""

    def __init__(self, folder: Path):
        import test_recording

        self.tests, self.folder = test_recording, folder
        self.good = test_recording.data_of(recording(TEXT[:24]))
        self.text = json.dumps(self.good).encode()
        recording(TEXT[:24]).save(folder / "good.json.gz")
        self.packed = (folder / "good.json.gz").read_bytes()

    def try_one(self, rng: random.Random) -> bool:
        """True if the recording can be shown. Raises where it is neither shown nor refused."""
        path = self.folder / "run.json"
        match rng.randrange(4):
            case 0 | 1:
                data = deepcopy(self.good)
                self.tests.mutate(data, rng)
                try:
                    path.write_text(json.dumps(data))
                except ValueError:  # more digits than Python prints
                    return False
            case 2:
                path.write_bytes(damaged_bytes(self.text, rng))
            case 3 if rng.randrange(2):
                path.write_bytes(damaged_bytes(self.packed, rng))
            case 3:
                path.write_bytes(gzip.compress(damaged_bytes(self.text, rng), 1))
        return self.tests.take_in(path) is not None


TARGETS: dict[str, Callable[[Path], Heads | Recordings]] = {
    "heads": Heads,
    "recordings": Recordings,
}


def malicious_pickle(path: Path, marker: Path, *, archived: bool) -> None:
    """A ``pytorch_model.bin`` that would make a file when it is unpickled, as torch writes them now
    or as a bare pickle.
    """

    class Attack:
        def __reduce__(self):
            return (Path.touch, (marker,))

    content = pickle.dumps({"fc.weight": Attack()}, protocol=2)  # as torch writes
    if not archived:
        path.write_bytes(content)
        return
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")


def run(name: str, inputs: int, seed: int, first: int = 0) -> int:
    """Try that many inputs, from number ``first`` on; returns the number of crashes."""
    accepted = crashes = 0
    with tempfile.TemporaryDirectory() as folder:
        target = TARGETS[name](Path(folder))
        for number in range(first, first + inputs):
            try:
                accepted += target.try_one(random.Random(f"{seed} {number}"))
            except Exception:
                crashes += 1
                again = f"{name} --first {number} --inputs 1 --seed {seed}"
                print(f"crash at input {number} of seed {seed} ({again})", file=sys.stderr)
                traceback.print_exc()
    refused = inputs - accepted - crashes
    print(f"inputs {inputs} accepted {accepted} refused {refused} crashes {crashes}")
    return crashes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # of what the loaders make do with
    sys.exit(run(args.target, args.inputs, args.seed, args.first) > 0)
