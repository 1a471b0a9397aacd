"""Run by cli_checkpoint_python_test.cc with the module and the library in the environment: prints "ok" at the end."""
import os
import subprocess
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


def arguments(directory):
    """What ctypes would cut to size, or cut off at a zero byte, without a word; and what else is no argument."""
    def writer(text, **options):
        refuses(lambda: orrery_ckpt.Writer(**{"directory": directory, **options}), text)

    for name, bad in (("rank", 2**32), ("rank", -1), ("rank", "a"), ("world", 2**32 + 1), ("keep_full", -1),
                      ("keep_snapshot", 2**32), ("buffers", 2**32 + 2), ("buffers", 10**9), ("buffers", 1.5),
                      ("buffer_bytes", -1), ("write_bytes_per_second", 2**64)):
        writer(name + " is ", **{name: bad})
    for name in ("wait_timeout_s", "peer_timeout_s", "close_timeout_s"):
        for bad in (float("nan"), -1, float("inf"), 1e300, "x", None):
            writer(name + " is ", **{name: bad})
    writer("zero byte", directory=directory + "\0b")
    writer("it is a path", directory=7)
    writer("session is", session="a\0b")
    writer("session is", session=7)
    writer("when_busy is", when_busy=[])
    assert not os.path.exists(directory)
    for question in (lambda: orrery_ckpt.newest_good(directory + "\0b"), lambda: orrery_ckpt.open("a\0b", "x")):
        refuses(question, "zero byte")
    refuses(lambda: orrery_ckpt.newest_good(""), "no directory")
    refuses(lambda: orrery_ckpt.newest_good(directory, full=False, snapshots=False), "neither")
    one = np.zeros(2)
    with orrery_ckpt.Writer(directory) as w:
        refusals = [(lambda: w.save(2**64 + 5, {"x": one}), "step is 18446744073709551621"),
                    (lambda: w.save(-1, {"x": one}), "step is -1"),
                    (lambda: w.save(1.5, {"x": one}), "step is 1.5"),
                    (lambda: w.save(1, {"x": one}, slot=7), "slot is 7"),
                    (lambda: w.save(1, {"n\0a": one}), "zero byte"),
                    (lambda: w.save(1, {"\udcff": one}), "UTF-8"),
                    (lambda: w.save(1, {3: one}), "it is a text"),
                    (lambda: w.save(1, {"x": one}, metadata={"a": "b\0c"}), "zero byte"),
                    (lambda: w.save(1, {"x": one}, metadata={1: "a", "1": "b"}), "the same as text"),
                    (lambda: w.save(1, {"x": one}, metadata=3), "AttributeError"),
                    (lambda: w.save(1, None), "TypeError"),
                    (lambda: w.save(1, {"x": orrery_ckpt.Split(one, -1, 0, 2)}), "dim of the split of x is -1"),
                    (lambda: w.save(1, {"x": orrery_ckpt.Split(one, 0, 0, 2**64 + 2)}), "whole of the split of x"),
                    (lambda: w.save(1, {"x": np.zeros((1,) * 9)}), "eight dimensions")]
        for refused, text in refusals:
            refuses(refused, text)
        for bad in (float("nan"), -1, float("inf"), "x"):
            refuses(lambda: w.wait(bad), "timeout_s is")
            refuses(lambda: w.close(bad), "timeout_s is")
            refuses(lambda: w.hurry(bad), "within_s is")
        assert w.save(5, {"x": np.arange(6).reshape(2, 3), "scalar": np.float32(1)})
        w.wait()
        stats = w.stats()
        assert stats["saves"] == len(refusals) + 1 and stats["refused"] == len(refusals) == stats["abandoned"], stats
    found = orrery_ckpt.newest_good(directory)
    assert found.step == 5
    assert (found.read("x", dim=-1, begin=1) == np.arange(6).reshape(2, 3)[:, 1:]).all()
    refuses(lambda: found.read("x", begin=1, end=2), "need dim")
    refuses(lambda: found.read("x", dim=2), "dim is 2")
    refuses(lambda: found.read("x", dim=0, begin=2, end=1), "end is 1")
    refuses(lambda: found.read("x", dim=0, begin="a"), "begin is 'a'")
    refuses(lambda: found.read("scalar", dim=0), "no dimension")
    refuses(lambda: found.read(["x"]), "no such tensor")
    refuses(lambda: found.verify(0, 0), "parts is 0")
    refuses(lambda: found.verify(3, 2), "no part 3 of 2")
    refuses(lambda: orrery_ckpt.open(directory, ""), '"": is no name of a checkpoint')
    refuses(lambda: orrery_ckpt.withdraw_after(directory, "x\ny"), "is no name of a checkpoint")


def scalars_and_others(directory):
    """Whose memory is made when it is asked for: each keeps its own."""
    class Image:
        __array_interface__ = {"shape": (2,), "typestr": "<f4", "version": 3, "data": np.float32([7, 8]).tobytes()}

    values = {name: np.float64(value) for name, value in (("lr", .25), ("loss", 1.25), ("best", 2.25), ("scale", 3.25))}
    with orrery_ckpt.Writer(directory) as writer:
        assert writer.save(1, {**values, "list": [1, 2], "number": 5, "image": Image()})
        writer.wait()
    found = orrery_ckpt.newest_good(directory)
    assert {name: float(found.read(name)) for name in values} == {name: float(v) for name, v in values.items()}
    assert list(found.read("list")) == [1, 2] and found.read("number") == 5 and list(found.read("image")) == [7, 8]
    for nothing in (np.float64(0), 3.0, [0.0]):
        refuses(lambda: found.read("lr", out=nothing), "nothing to read into")


def left_open(directory):
    """A script that ends without close() has saved; a forked child neither waits nor writes, and may open its own."""
    script = """
import os, sys
import numpy as np
import orrery_ckpt
w = orrery_ckpt.Writer(sys.argv[1])
pid = os.fork()
if pid == 0:
    w.close()
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
assert w.save(1, {"x": np.zeros(1 << 20)})
"""
    subprocess.run([sys.executable, "-c", script, directory], check=True, timeout=300)
    assert orrery_ckpt.newest_good(directory).step == 1


def refused_on_one_rank(directory):
    """Rank 0 is told at once, and the next save works: with what this module refuses before it calls the library."""
    bad = [lambda w: w.save(1, {"x": np.zeros(2, dtype=complex)}), lambda w: w.save(-1, {}), lambda w: w.save(1, {"\udcff": 1}),
           lambda w: w.save(1, {}, slot=9), lambda w: w.save(1, {}, metadata={"\udcff": "v"}),
           lambda w: w.save(1, {"x": np.zeros((1,) * 9)}), lambda w: w.save(1, 5)]
    writers = [orrery_ckpt.Writer(directory, rank=r, world=2, session="a") for r in range(2)]
    for turn, refused in enumerate(bad):
        writers[0].save(10 * turn, {"a": np.zeros(1)})
        refuses(lambda: refused(writers[1]), "")
        refuses(lambda: writers[0].wait(60), "rank 1: ")
        for r, writer in enumerate(writers):
            writer.save(10 * turn + 5, {"ab"[r]: np.zeros(1)})
        writers[0].wait(60)
        assert orrery_ckpt.newest_good(directory).step == 10 * turn + 5
    for writer in writers:
        writer.close()


with tempfile.TemporaryDirectory() as scratch:
    arrays(os.path.join(scratch, "a"))
    ranks(os.path.join(scratch, "b"))
    arguments(os.path.join(scratch, "d"))
    refused_on_one_rank(os.path.join(scratch, "e"))
    scalars_and_others(os.path.join(scratch, "f"))
    left_open(os.path.join(scratch, "g"))
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
