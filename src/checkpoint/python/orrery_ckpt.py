"""Checkpoints of a training job: saved while it goes on, complete and verified or not there at all.

    import orrery_ckpt

    writer = orrery_ckpt.Writer("checkpoints", rank=rank, world=world, session=run_id)
    writer.save(step, {"weight": weight, "adam.m": orrery_ckpt.Split(m, dim=0, offset=begin, whole=n)},
                metadata={"loss": "2.31"})          # returns after one copy to host memory
    ...
    writer.close()

    found = orrery_ckpt.newest_good("checkpoints")  # None: none was ever completed; raises if none is good, or if they
                                                    # cannot be looked at
    weight = found.read("weight")                   # a numpy array
    part = found.read("adam.m", dim=0, begin=0, end=100)
    found.read("weight", out=tensor)                # into an array or a torch tensor that is there already

Tensors are numpy arrays, torch tensors (on the CPU, or on a GPU where CUDA's runtime is found), or anything with
__array_interface__. Needs only the shared library: where ORRERY_CKPT_LIBRARY says, beside this file, two folders above it
(as installed), or where the system looks. What the arguments mean: orrery_ckpt.h. Not a torch pickle: files are safetensors.

Whatever is refused raises CheckpointError. A save() that raised counts as this rank's turn: rank 0 is told why and gives that
checkpoint up. Go on to the next save() with all ranks; do not try again on one rank alone.
"""
import atexit
import ctypes
import operator
import os
import sys
import weakref

FULL, SNAPSHOT = 0, 1
_DTYPES = ["bool", "uint8", "int8", "float8_e5m2", "float8_e4m3fn", "int16", "uint16", "float16", "bfloat16", "int32",
           "uint32", "float32", "int64", "uint64", "float64"]
_BYTES = [1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8]
_MAX_DIMS = 8
_POLICIES = {"wait": 0, "skip": 1, "drop": 2}


class CheckpointError(RuntimeError):
    pass


# ctypes cuts numbers to size and texts at a zero byte without a word: so both are looked at before they get there.
def _number(name, value, low, high):
    try:
        value = operator.index(value)
    except TypeError:
        raise CheckpointError("%s is %r: it is a whole number" % (name, value)) from None
    if not low <= value <= high:
        raise CheckpointError("%s is %d: it is from %d to %d" % (name, value, low, high))
    return value


def _seconds(name, value):
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = -1.0
    if not 0 <= seconds <= 1e9:
        raise CheckpointError("%s is %r: it is a number of seconds from 0 to 1e9" % (name, value))
    return seconds


def _text(name, value):
    if not isinstance(value, str):
        raise CheckpointError("%s is %r: it is a text" % (name, value))
    try:
        encoded = value.encode()
    except UnicodeEncodeError:
        raise CheckpointError("%s is %r, which cannot be written as UTF-8" % (name, value)) from None
    if b"\0" in encoded:
        raise CheckpointError("%s is %r: it has a zero byte in it" % (name, value))
    return encoded


def _shown(name):
    """A name in a message of one line."""
    return name if name.isprintable() else ascii(name)


def _path(value):
    try:
        encoded = os.fsencode(value)
    except (TypeError, UnicodeEncodeError):
        raise CheckpointError("directory is %r: it is a path" % (value,)) from None
    if b"\0" in encoded:
        raise CheckpointError("directory is %r: it has a zero byte in it" % (value,))
    return encoded


class Split:
    """A rank's piece of a tensor: [offset, offset + its length) of `whole` along `dim`."""

    def __init__(self, tensor, dim, offset, whole):
        self.tensor, self.dim, self.offset, self.whole = tensor, dim, offset, whole


class _Options(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("directory", ctypes.c_char_p), ("rank", ctypes.c_int32),
                ("world", ctypes.c_int32), ("session", ctypes.c_char_p), ("keep_full", ctypes.c_uint32),
                ("keep_snapshot", ctypes.c_uint32), ("when_busy", ctypes.c_int32), ("buffers", ctypes.c_uint32),
                ("buffer_bytes", ctypes.c_uint64), ("write_bytes_per_second", ctypes.c_uint64),
                ("wait_timeout_s", ctypes.c_double), ("peer_timeout_s", ctypes.c_double),
                ("close_timeout_s", ctypes.c_double), ("pin", ctypes.c_int32), ("read_back", ctypes.c_int32),
                ("lock", ctypes.c_int32)]


class _Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_int32), ("place", ctypes.c_int32),
                ("dims", ctypes.c_int32), ("split_dim", ctypes.c_int32), ("shape", ctypes.c_int64 * _MAX_DIMS),
                ("offset", ctypes.c_int64), ("whole", ctypes.c_int64), ("data", ctypes.c_void_p)]


class _Stats(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in (
        "saves accepted skipped dropped written failed committed abandoned removed bytes_copied bytes_written blocked_ns "
        "blocked_max_ns blocked_last_ns waited_ns write_ns write_last_ns buffer_growths oldest_unwritten_ns").split()]
    _fields_ += [("committed_step", ctypes.c_int64), ("pinned", ctypes.c_int32), ("refused", ctypes.c_uint64)]


def _load():
    here = os.path.dirname(os.path.abspath(__file__))
    names = [os.environ.get("ORRERY_CKPT_LIBRARY")]
    names += [os.path.join(here, *place, "liborrery_ckpt.so.1") for place in ((), ("..", ".."))]  # as installed
    names.append("liborrery_ckpt.so.1")
    failures = []
    for name in filter(None, names):
        try:
            lib = ctypes.CDLL(name)
            break
        except OSError as error:
            failures.append(str(error))
    else:
        raise ImportError("liborrery_ckpt.so.1 was not found: set ORRERY_CKPT_LIBRARY to its path (%s)" % "; ".join(failures))
    handle, text = ctypes.c_void_p, ctypes.c_char_p
    handle_out = ctypes.POINTER(handle)
    signatures = {
        "last_error": (text, []),
        "options_init": (None, [ctypes.POINTER(_Options)]),
        "open": (ctypes.c_int, [ctypes.POINTER(_Options), handle_out]),
        "save": (ctypes.c_int, [handle, ctypes.c_int64, ctypes.c_int32, ctypes.POINTER(_Tensor), ctypes.c_size_t,
                                ctypes.POINTER(text), ctypes.c_size_t, ctypes.POINTER(ctypes.c_int32)]),
        "refuse": (ctypes.c_int, [handle, ctypes.c_int64, ctypes.c_int32, text]),
        "wait": (ctypes.c_int, [handle, ctypes.c_double]),
        "hurry": (None, [handle, ctypes.c_double]),
        "get_stats": (ctypes.c_int, [handle, ctypes.POINTER(_Stats)]),
        "close": (ctypes.c_int, [handle]),
        "close_within": (ctypes.c_int, [handle, ctypes.c_double]),
        "newest_good": (ctypes.c_int, [text, ctypes.c_int32, handle_out]),
        "open_id": (ctypes.c_int, [text, text, handle_out]),
        "withdraw_after": (ctypes.c_int, [text, text]),
        "reader_free": (None, [handle]),
        "step": (ctypes.c_int64, [handle]),
        "slot": (ctypes.c_int32, [handle]),
        "world": (ctypes.c_int32, [handle]),
        "id": (text, [handle]),
        "rejected": (text, [handle, ctypes.c_size_t]),
        "metadata_key": (text, [handle, ctypes.c_size_t]),
        "metadata_value": (text, [handle, ctypes.c_size_t]),
        "tensor_count": (ctypes.c_size_t, [handle]),
        "tensor_info": (ctypes.c_int, [handle, ctypes.c_size_t, ctypes.POINTER(_Tensor)]),
        "verify": (ctypes.c_int, [handle, ctypes.c_int32, ctypes.c_int32]),
        "read": (ctypes.c_int, [handle, text, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int64),
                                ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint64]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, "orrery_ckpt_" + name)
        function.restype, function.argtypes = result, arguments
    return lib


_lib = _load()


def _call(name, *arguments):
    """Calls a function that can fail; the status when it is 0 or "none"."""
    status = getattr(_lib, "orrery_ckpt_" + name)(*arguments)
    if status == 1:
        raise CheckpointError(_lib.orrery_ckpt_last_error().decode("utf-8", "replace"))
    return status


def _describe(tensor, for_writing=False):
    """(dtype index, place, shape, address, what must stay alive) of an array or a torch tensor."""
    if hasattr(tensor, "data_ptr"):  # torch
        if not tensor.is_contiguous():
            if for_writing:
                raise CheckpointError("the tensor to read into is not contiguous")
            tensor = tensor.detach().contiguous()
        dtype = str(tensor.dtype).replace("torch.", "")
        if dtype not in _DTYPES:
            raise CheckpointError("tensors of %s are not supported" % dtype)
        place = {"cpu": 0, "cuda": 1}.get(tensor.device.type)
        if place is None or (for_writing and place != 0):
            raise CheckpointError("a tensor on %s is not supported here" % tensor.device)
        return _DTYPES.index(dtype), place, tuple(tensor.shape), tensor.data_ptr(), tensor
    import numpy
    if for_writing and (isinstance(tensor, numpy.generic) or not hasattr(tensor, "__array_interface__")):
        raise CheckpointError("%s is nothing to read into: it takes an array or a torch tensor" % type(tensor).__name__)
    tensor = numpy.asarray(tensor)  # a scalar's interface is of memory that goes with it
    dtype = str(tensor.dtype)
    if dtype not in _DTYPES:  # also an array in the other byte order: ">f4"
        raise CheckpointError("arrays of %s are not supported" % dtype)
    if not tensor.flags["C_CONTIGUOUS"]:
        if for_writing:
            raise CheckpointError("the array to read into is not contiguous")
        tensor = tensor.copy(order="C")
    interface = tensor.__array_interface__
    if for_writing and interface["data"][1]:
        raise CheckpointError("the array to read into is read-only")
    return _DTYPES.index(dtype), 0, tuple(interface["shape"]), interface["data"][0], tensor


_open_writers = weakref.WeakSet()


@atexit.register
def _close_all():
    """What was accepted is written also where a script ends without close()."""
    for writer in list(_open_writers):
        if not writer._handle or writer._process != os.getpid():
            continue
        try:
            # After an error a peer may be dead: its part never comes.
            writer.close(timeout_s=10 if getattr(sys, "last_value", None) is not None else None)
        except CheckpointError as error:
            print("orrery_ckpt: %s" % error, file=sys.stderr)


class Writer:
    """One a rank. All ranks call save() in the same order; see Options in checkpoint.h for the arguments."""

    def __init__(self, directory, rank=0, world=1, session=None, keep_full=2, keep_snapshot=2, when_busy="wait", buffers=2,
                 buffer_bytes=0, write_bytes_per_second=0, wait_timeout_s=600.0, peer_timeout_s=600.0,
                 close_timeout_s=600.0, pin=True, read_back=True, lock=True):
        self._handle = None
        options = _Options()
        _lib.orrery_ckpt_options_init(ctypes.byref(options))
        if options.struct_size != ctypes.sizeof(_Options):
            raise CheckpointError("this module and liborrery_ckpt are of different versions")
        options.directory = _path(directory)
        options.session = _text("session", session) if session is not None else None
        if not isinstance(when_busy, str) or when_busy not in _POLICIES:
            raise CheckpointError("when_busy is %r: it is wait, skip or drop" % (when_busy,))
        options.when_busy = _POLICIES[when_busy]
        for name, value, high in (("rank", rank, 2**31 - 1), ("world", world, 2**31 - 1),
                                  ("keep_full", keep_full, 2**32 - 1), ("keep_snapshot", keep_snapshot, 2**32 - 1),
                                  ("buffers", buffers, 2**32 - 1), ("buffer_bytes", buffer_bytes, 2**63 - 1),
                                  ("write_bytes_per_second", write_bytes_per_second, 2**63 - 1)):
            setattr(options, name, _number(name, value, 0, high))
        for name, value in (("wait_timeout_s", wait_timeout_s), ("peer_timeout_s", peer_timeout_s),
                            ("close_timeout_s", close_timeout_s)):
            setattr(options, name, _seconds(name, value))
        for name, value in (("pin", pin), ("read_back", read_back), ("lock", lock)):
            setattr(options, name, int(bool(value)))
        handle = ctypes.c_void_p()
        _call("open", ctypes.byref(options), ctypes.byref(handle))
        self._handle, self._process = handle, os.getpid()
        _open_writers.add(self)

    def save(self, step, tensors, slot=FULL, metadata=None):
        """True: accepted. False: skipped, since storage is slow. The tensors may change as soon as it returns."""
        handle = self._open()
        try:
            step = _number("step", step, 0, 2**63 - 1)
            slot = _number("slot", slot, FULL, SNAPSHOT)
            rows, alive = self._rows(tensors)
            texts = self._texts({} if metadata is None else metadata)
        except BaseException as error:  # the other ranks must hear that nothing comes from here
            why = "%s: %s" % (type(error).__name__, error) if not isinstance(error, CheckpointError) else str(error)
            known = step if isinstance(step, int) and 0 <= step < 2**63 else 0
            _lib.orrery_ckpt_refuse(handle, known, SNAPSHOT if slot == SNAPSHOT else FULL,
                                    why.encode("utf-8", "replace").replace(b"\0", b"?"))
            if isinstance(error, (TypeError, ValueError, OverflowError, AttributeError, LookupError)):
                raise CheckpointError(why) from error
            raise
        pairs = (ctypes.c_char_p * max(1, len(texts)))(*texts)
        outcome = ctypes.c_int32()
        _call("save", handle, step, slot, rows, len(alive), pairs, len(texts) // 2, ctypes.byref(outcome))
        return outcome.value == 0

    @staticmethod
    def _rows(tensors):
        """The tensors as the library takes them, and what must stay alive meanwhile."""
        rows = (_Tensor * max(1, len(tensors)))()
        alive = []
        for row, (name, tensor) in zip(rows, tensors.items()):
            encoded = _text("the name of a tensor", name)
            split = tensor if isinstance(tensor, Split) else None
            dtype, place, shape, address, keep = _describe(split.tensor if split else tensor)
            if len(shape) > _MAX_DIMS:
                raise CheckpointError("%s has more than eight dimensions" % _shown(name))
            if place == 1:  # the library waits for the current device alone
                sys.modules["torch"].cuda.synchronize(keep.device)
            alive.append((keep, encoded))
            row.name, row.dtype, row.place, row.dims, row.data = encoded, dtype, place, len(shape), address
            row.shape[:len(shape)] = shape
            row.split_dim = -1
            if split:
                row.split_dim = _number("dim of the split of %s" % _shown(name), split.dim, 0, _MAX_DIMS - 1)
                row.offset = _number("offset of the split of %s" % _shown(name), split.offset, 0, 2**63 - 1)
                row.whole = _number("whole of the split of %s" % _shown(name), split.whole, 0, 2**63 - 1)
        return rows, alive

    @staticmethod
    def _texts(metadata):
        texts = [(str(key), str(value)) for key, value in metadata.items()]
        if len({key for key, _ in texts}) < len(texts):
            raise CheckpointError("two keys of the metadata are the same as text")
        return [encoded for key, value in texts for encoded in (
            _text("a key of the metadata", key), _text("the value of %s in the metadata" % ascii(key), value))]

    def wait(self, timeout_s=600.0):
        """Until all that was accepted is written (on rank 0: complete); raises if something of it failed."""
        _call("wait", self._open(), _seconds("timeout_s", timeout_s))

    def hurry(self, within_s):
        """The process is about to be ended: save() does not wait for a buffer any more, wait() and close() end after within_s
        at the latest, also those under way in another thread. A signal handler of Python runs only when a call that waits
        has returned: so a job that is sent signals sets wait_timeout_s below the time it is given to end."""
        _lib.orrery_ckpt_hurry(self._open(), _seconds("within_s", within_s))

    def stats(self):
        stats = _Stats(struct_size=ctypes.sizeof(_Stats))
        _call("get_stats", self._open(), ctypes.byref(stats))
        return {name: getattr(stats, name) for name, _ in _Stats._fields_[1:]}

    def close(self, timeout_s=None):
        if timeout_s is not None:
            timeout_s = _seconds("timeout_s", timeout_s)
        handle, self._handle = self._handle, None
        if handle and timeout_s is None:
            _call("close", handle)
        elif handle:
            _call("close_within", handle, timeout_s)

    def _open(self):
        if not self._handle:
            raise CheckpointError("the writer is closed")
        return self._handle

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is None:
            self.close()
            return
        try:
            self.close(timeout_s=10)  # a peer may be dead: its part never comes
        except CheckpointError:
            pass  # what ended the block matters more

    def __del__(self):
        if getattr(self, "_handle", None) and not sys.is_finalizing():
            try:
                self.close()
            except CheckpointError:
                pass  # nobody is left to tell


class Checkpoint:
    """One that is complete. From newest_good() or open()."""

    def __init__(self, handle):
        self._handle = handle
        self.step = _lib.orrery_ckpt_step(handle)
        self.slot = _lib.orrery_ckpt_slot(handle)
        self.world = _lib.orrery_ckpt_world(handle)
        self.id = _lib.orrery_ckpt_id(handle).decode()
        self.rejected = [text.decode("utf-8", "replace") for text in self._all("rejected")]
        self.metadata = dict(zip((k.decode() for k in self._all("metadata_key")),
                                 (v.decode() for v in self._all("metadata_value"))))
        self._tensors = {}
        row = _Tensor()
        for index in range(_lib.orrery_ckpt_tensor_count(handle)):
            _call("tensor_info", handle, index, ctypes.byref(row))
            self._tensors[row.name.decode()] = (row.dtype, tuple(row.shape[:row.dims]))

    def _all(self, function):
        index = 0
        while True:
            text = getattr(_lib, "orrery_ckpt_" + function)(self._handle, index)
            if text is None:
                return
            yield text
            index += 1

    def shapes(self):
        """{name: (dtype, shape of the whole tensor)}"""
        return {name: (_DTYPES[dtype], shape) for name, (dtype, shape) in self._tensors.items()}

    def verify(self, part=0, parts=1):
        _call("verify", self._handle, _number("part", part, 0, 2**31 - 1), _number("parts", parts, 1, 2**31 - 1))

    def read(self, name, dim=None, begin=0, end=None, out=None):
        """The tensor, or [begin, end) of it along `dim`: a new numpy array, or into `out`. bfloat16 and float8, which numpy
        lacks, come as uint16 and uint8 of the same bits unless `out` is a torch tensor."""
        if not isinstance(name, str) or name not in self._tensors:
            raise CheckpointError("no such tensor: %s" % ascii(name))
        dtype, shape = self._tensors[name]
        shape, start = list(shape), [0] * len(shape)
        if dim is None and (end is not None or begin != 0):
            raise CheckpointError("begin and end of %s need dim: along which dimension?" % _shown(name))
        if dim is not None:
            if not shape:
                raise CheckpointError("%s has no dimension to read a part along" % _shown(name))
            dim = _number("dim", dim, -len(shape), len(shape) - 1)
            begin = _number("begin", begin, 0, shape[dim])
            end = shape[dim] if end is None else _number("end", end, begin, shape[dim])
            start[dim], shape[dim] = begin, end - begin
        if out is None:
            import numpy
            plain = {"bfloat16": "uint16", "float8_e5m2": "uint8", "float8_e4m3fn": "uint8"}
            out = numpy.empty(shape, dtype=plain.get(_DTYPES[dtype], _DTYPES[dtype]))
        else:
            out_dtype, _, out_shape, _, _ = _describe(out, for_writing=True)
            if out_dtype != dtype or list(out_shape) != shape:
                raise CheckpointError("%s is %s %s, what it is read into is %s %s" %
                                      (_shown(name), _DTYPES[dtype], shape, _DTYPES[out_dtype], list(out_shape)))
        address = _describe(out, for_writing=True)[3]
        size = _BYTES[dtype]
        for length in shape:
            size *= length
        box = ctypes.c_int64 * max(1, len(shape))
        _call("read", self._handle, name.encode(), box(*start), box(*shape), len(shape), address, size)
        return out

    def __del__(self):
        if getattr(self, "_handle", None) and not sys.is_finalizing():
            _lib.orrery_ckpt_reader_free(self._handle)


def newest_good(directory, full=True, snapshots=True):
    """The newest checkpoint of which every byte is as written; None if none was ever completed there (or its file system is
    not mounted, which looks the same). One rank asks and tells the others its id."""
    handle = ctypes.c_void_p()
    slots = int(bool(full)) + 2 * int(bool(snapshots))
    if slots == 0:
        raise CheckpointError("asked for neither full checkpoints nor snapshots")
    if _call("newest_good", _path(directory), slots, ctypes.byref(handle)) == 2:
        return None
    return Checkpoint(handle)


def open(directory, id):  # pylint: disable=redefined-builtin
    handle = ctypes.c_void_p()
    _call("open_id", _path(directory), _text("id", id), ctypes.byref(handle))
    return Checkpoint(handle)


def withdraw_after(directory, id):
    """Later ones are not loaded any more: for a job that goes back on purpose."""
    _call("withdraw_after", _path(directory), _text("id", id))
