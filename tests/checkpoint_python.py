"""Run by cli_checkpoint_python_test.cc with the module and the library in the environment: prints "ok" at the end."""
import os
import sys
import tempfile

import numpy as np

import orrery_ckpt


class FakeTorch:
    """What the module uses of a torch tensor."""

    class device:
        type = "cpu"

    def __init__(self, array, dtype):
        self.array, self.dtype, self.shape = array, "torch." + dtype, array.shape

    def data_ptr(self):
        return self.array.__array_interface__["data"][0]

    def is_contiguous(self):
        return True


def refuses(function, text):
    try:
        function()
    except orrery_ckpt.CheckpointError as error:
        assert text in str(error), error
        return
    raise AssertionError("not refused: " + text)


def arrays(directory):
    assert orrery_ckpt.newest_good(directory) is None
    all_types = {t: np.arange(6).reshape(2, 3).astype(t)
                 for t in "bool uint8 int8 int16 uint16 float16 int32 uint32 float32 int64 uint64 float64".split()}
    with orrery_ckpt.Writer(directory, keep_full=2) as writer:
        source = np.arange(12, dtype=np.float32).reshape(3, 4)
        assert writer.save(1, {"w": source, "t": source.T, "scalar": np.float64(2.5), **all_types},
                           metadata={"loss": 1.5, "note": "ü"})
        source[:] = -1
        writer.wait()
        assert writer.save(2, {"bf": FakeTorch(np.array([1, 2, 3], np.uint16), "bfloat16")}, slot=orrery_ckpt.SNAPSHOT)
        writer.wait()
        stats = writer.stats()
        assert stats["committed"] == 2 and stats["committed_step"] == 2 and stats["blocked_ns"] > 0, stats
        refuses(lambda: writer.save(3, {"x": np.zeros(2, dtype=">f4")}), ">f4")
        refuses(lambda: writer.save(3, {"x": np.zeros(2, dtype=complex)}), "complex128")
        refuses(lambda: orrery_ckpt.Writer(directory), "has a writer there already")
    refuses(lambda: writer.save(4, {}), "closed")
    found = orrery_ckpt.newest_good(directory, snapshots=False)
    assert found.step == 1 and found.metadata == {"loss": "1.5", "note": "ü"}
    expected = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert (found.read("w") == expected).all() and (found.read("t") == expected.T).all()
    assert found.read("scalar") == 2.5 and found.read("scalar").shape == ()
    for name, array in all_types.items():
        assert found.shapes()[name] == (name, (2, 3)) and (found.read(name) == array).all(), name
    assert (found.read("w", dim=1, begin=1, end=3) == expected[:, 1:3]).all()
    out = np.zeros((3, 4), np.float32)
    found.read("w", out=out)
    assert (out == expected).all()
    refuses(lambda: found.read("w", out=np.zeros((4, 3), np.float32)), "is float32 [3, 4]")
    refuses(lambda: found.read("w", out=np.zeros((4, 3), np.float32).T), "not contiguous")
    refuses(lambda: found.read("w", dim=0, begin=2, end=5), "end is 5")
    refuses(lambda: found.read("nothing"), "no such tensor")
    newest = orrery_ckpt.newest_good(directory)
    into = FakeTorch(np.zeros(3, np.uint16), "bfloat16")
    newest.read("bf", out=into)
    assert newest.slot == orrery_ckpt.SNAPSHOT and list(into.array) == [1, 2, 3] and list(newest.read("bf")) == [1, 2, 3]


def ranks(directory):
    whole = np.arange(20, dtype=np.int32).reshape(10, 2)
    writers = [orrery_ckpt.Writer(directory, rank=r, world=3, session="a") for r in range(3)]
    for r, writer in enumerate(writers):
        begin, end = 10 * r // 3, 10 * (r + 1) // 3
        writer.save(5, {"x": orrery_ckpt.Split(whole[begin:end], dim=0, offset=begin, whole=10)})
    writers[0].wait()
    for writer in writers:
        writer.close()
    found = orrery_ckpt.newest_good(directory)
    assert found.world == 3 and (found.read("x") == whole).all()
    assert (found.read("x", dim=0, begin=2, end=8) == whole[2:8]).all()
    shard = os.path.join(directory, found.id, "rank-00001.safetensors")
    with open(shard, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    refuses(lambda: orrery_ckpt.newest_good(directory), "none of them good")
    refuses(lambda: orrery_ckpt.open(directory, found.id).verify(), "was altered")


with tempfile.TemporaryDirectory() as scratch:
    arrays(os.path.join(scratch, "a"))
    ranks(os.path.join(scratch, "b"))
try:
    import torch
except ImportError:
    print("no torch here: its tensors were stood in for")
else:
    with tempfile.TemporaryDirectory() as scratch:
        with orrery_ckpt.Writer(os.path.join(scratch, "c")) as writer:
            tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
            writer.save(1, {"w": tensor, "t": tensor.t(), "b": tensor.to(torch.bfloat16)})
        found = orrery_ckpt.newest_good(os.path.join(scratch, "c"))
        out = torch.zeros(2, 3, dtype=torch.bfloat16)
        found.read("b", out=out)
        assert torch.equal(out, tensor.to(torch.bfloat16)) and (found.read("t") == tensor.t().numpy()).all()
print("ok", file=sys.stdout)
