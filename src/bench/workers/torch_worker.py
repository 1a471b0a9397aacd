"""Trains, fine-tunes or generates in PyTorch, on CUDA, ROCm or CPU, and tells `orrery bench` what it took.

    python torch_worker.py SPEC.json

Started once it starts its ranks itself; under srun or torchrun it is the rank that they say. Nothing is downloaded:
weights and tokens are random.
"""
import contextlib
import json
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import time

from report import host_bytes, missing, refuse, tell

try:
    import torch
    import torch.distributed as dist
except ImportError as import_error:
    missing("torch", import_error)


# ---- ranks ----


def die_with_parent():
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def start_ranks(spec_path, world):
    """One process a rank. The first that fails ends the others; its status is ours."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(world):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(port))
        ranks.append(subprocess.Popen([sys.executable, sys.argv[0], spec_path], env=env, preexec_fn=die_with_parent))
    status = 0
    running = list(ranks)
    while running and status == 0:
        for process in list(running):
            if process.poll() is None:
                continue
            running.remove(process)
            status = status or process.returncode
        time.sleep(0.02)
    for process in running:
        process.kill()
        process.wait()
    return status if status >= 0 else 128 - status


def first_of(names):
    return next((int(os.environ[n]) for n in names if os.environ.get(n)), None)


class Place:
    """Which rank this is, and the device it computes on."""

    def __init__(self, spec):
        self.world = spec["gpus"]
        self.rank = first_of(["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"]) if self.world > 1 else 0
        local = first_of(["LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"]) if self.world > 1 else 0
        wanted = spec.get("device", "auto")
        self.cuda = wanted != "cpu" and torch.cuda.is_available()
        if wanted == "cuda" and not self.cuda:
            refuse("no GPU that PyTorch can use")
        if self.cuda and local >= torch.cuda.device_count():
            refuse(f"{self.world} GPUs are asked for, {torch.cuda.device_count()} are here")
        self.device = torch.device("cuda", local) if self.cuda else torch.device("cpu")
        if self.cuda:
            torch.cuda.set_device(self.device)
        else:
            cores = len(os.sched_getaffinity(0))
            torch.set_num_threads(spec.get("threads") or max(1, cores // self.world))
        if self.world > 1:
            if "MASTER_ADDR" not in os.environ:  # srun: rank 0 is on the first node
                os.environ["MASTER_ADDR"] = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
                os.environ["MASTER_PORT"] = str(20000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 20000)
            dist.init_process_group("nccl" if self.cuda else "gloo", rank=self.rank, world_size=self.world)

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()


# ---- the model as the techniques have it ----

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def build(spec, place):
    from adapters import add_lora, add_prompt, freeze, quantize
    from llama import Llama

    letters, shape, dtype = set(spec["techniques"]), spec["model"], DTYPES[spec["precision"]]
    if shape.get("experts"):
        refuse("the PyTorch worker has no mixture of experts")
    flash = "F" in letters
    if flash and not hasattr(torch.nn.functional, "scaled_dot_product_attention"):
        refuse(f"torch {torch.__version__} has no scaled_dot_product_attention")
    torch.manual_seed(spec.get("seed", 1))
    positions = spec["seq_length"] + spec.get("output_tokens", 0) + spec.get("prompt_tokens", 0)
    with torch.device(place.device) if hasattr(torch, "get_default_device") else contextlib.nullcontext():
        model = Llama(shape, flash, "R" in letters, positions)
    model = model.to(place.device)
    if letters & {"L", "QL", "P"} or (spec["task"] == "finetune" and "Q" in letters):
        freeze(model, dtype)
    if letters & {"Q", "QL"}:
        quantize(model, place.device, dtype if dtype != torch.float32 else torch.bfloat16)
    if letters & {"L", "QL"}:
        add_lora(model, spec.get("lora_rank", 64))
    if "P" in letters:
        add_prompt(model, spec.get("prompt_tokens", 32))
    if letters == {"Q"} and spec["task"] != "inference":  # norms, embedding and head learn
        for name, p in model.named_parameters():
            if p.is_floating_point() and ("norm" in name or "embed" in name or "head" in name):
                p.requires_grad_(True)
    if spec["task"] == "inference":
        for p in model.parameters():
            if p.is_floating_point():
                p.data = p.data.to(dtype)
        model.eval()
    return model


def shard(model, spec, place):
    """FullyShardedDataParallel: Z3 and the framework's own way keep weights sharded, Z2 keeps them whole."""
    offload = any(letter.endswith("O") for letter in spec["techniques"])
    keep = any(letter.startswith("Z2") for letter in spec["techniques"])
    dtype = DTYPES[spec["precision"]]
    try:
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
    except ImportError:
        from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy

        mixed = MixedPrecision(dtype, dtype, dtype) if dtype != torch.float32 else None
        how = ShardingStrategy.SHARD_GRAD_OP if keep else ShardingStrategy.FULL_SHARD
        for i, layer in enumerate(model.layers):
            model.layers[i] = FullyShardedDataParallel(layer, sharding_strategy=how, mixed_precision=mixed,
                                                       cpu_offload=CPUOffload(offload), use_orig_params=True)
        return FullyShardedDataParallel(model, sharding_strategy=how, mixed_precision=mixed,
                                        cpu_offload=CPUOffload(offload), use_orig_params=True)
    mixed = MixedPrecisionPolicy(dtype, torch.float32) if dtype != torch.float32 else MixedPrecisionPolicy()
    policy = CPUOffloadPolicy() if offload else OffloadPolicy()
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=not keep, mp_policy=mixed, offload_policy=policy)
    return fully_shard(model, reshard_after_forward=not keep, mp_policy=mixed, offload_policy=policy)


class Training:
    def __init__(self, spec, place):
        self.spec, self.place = spec, place
        self.model = build(spec, place)
        self.plain = self.model
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.model.train()
        fsdp = spec["framework"] == "fsdp" and place.world > 1
        dtype = DTYPES[spec["precision"]]
        self.autocast = (contextlib.nullcontext if fsdp or dtype == torch.float32 else
                         lambda: torch.autocast(place.device.type, dtype))
        if fsdp:
            self.model = self.plain = shard(self.model, spec, place)
        elif place.world > 1:
            ids = [place.device.index] if place.cuda else None
            self.model = torch.nn.parallel.DistributedDataParallel(_Loss(self.model), device_ids=ids)
        learns = [p for p in self.plain.parameters() if p.requires_grad]
        self.learning = sum(p.numel() for p in learns)
        self.optimizer = torch.optim.AdamW(learns, lr=1e-4)
        self.scaler = torch.cuda.amp.GradScaler() if place.cuda and dtype == torch.float16 and not fsdp else None
        generator = torch.Generator().manual_seed(place.rank)
        size = (spec["batch"], spec["seq_length"])
        self.batches = [torch.randint(0, spec["model"]["vocab"], size, generator=generator) for _ in range(4)]
        self.count = 0

    def step(self):
        tokens = self.batches[self.count % len(self.batches)].to(self.place.device, non_blocking=True)
        self.count += 1
        with torch.profiler.record_function("forward"), self.autocast():
            wrapped = isinstance(self.model, torch.nn.parallel.DistributedDataParallel)
            loss = self.model(tokens) if wrapped else self.plain.loss(tokens)
        with torch.profiler.record_function("backward"):
            (self.scaler.scale(loss) if self.scaler else loss).backward()
        with torch.profiler.record_function("optimizer"):
            if self.scaler:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return {}


class _Loss(torch.nn.Module):
    """DistributedDataParallel calls forward; what it is to call is the loss."""

    def __init__(self, model):
        super().__init__()
        self.module_of_loss = model

    def forward(self, tokens):
        return self.module_of_loss.loss(tokens)


class Generation:
    """A batch of prompts of `seq_length` tokens, then `output_tokens` more of each, greedily."""

    def __init__(self, spec, place):
        self.spec, self.place = spec, place
        self.model = build(spec, place)
        self.parameters, self.learning = sum(p.numel() for p in self.model.parameters()), 0
        generator = torch.Generator().manual_seed(place.rank)
        size = (spec["batch"], spec["seq_length"])
        self.tokens = torch.randint(0, spec["model"]["vocab"], size, generator=generator).to(place.device)

    @torch.no_grad()
    def step(self):
        from llama import LayerCache

        spec, like = self.spec, self.model.norm.weight
        length = spec["seq_length"] + spec["output_tokens"]
        begin = time.perf_counter()
        caches = [LayerCache(spec["batch"], spec["model"], length, like) for _ in self.model.layers]
        with torch.profiler.record_function("prefill"):
            logits = self.model(self.tokens, caches=caches, last_only=True)
            token = logits[:, -1].argmax(-1, keepdim=True)
        self.place.wait()
        middle = time.perf_counter()
        with torch.profiler.record_function("decode"):
            for i in range(spec["output_tokens"] - 1):
                logits = self.model(token, begin=spec["seq_length"] + i, caches=caches)
                token = logits[:, -1].argmax(-1, keepdim=True)
        self.place.wait()
        end = time.perf_counter()
        return {"prefill_ms": (middle - begin) * 1e3, "decode_ms": (end - middle) * 1e3}


# ---- the run ----


def driver_version():
    with contextlib.suppress(OSError):
        with open("/proc/driver/nvidia/version", encoding="ascii", errors="replace") as file:
            return file.readline().strip()
    return None


def environment(place):
    devices, driver = [], driver_version()
    if place.cuda:
        devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda,
            "hip": getattr(torch.version, "hip", None), "nccl": ".".join(map(str, torch.cuda.nccl.version()))
            if place.cuda else None, "device": place.device.type, "devices": devices, "driver": driver,
            "threads": torch.get_num_threads(), "world": place.world, "host": socket.gethostname()}


def cpu_ms():
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) * 1e3


def main(job_of, before=lambda: None):
    """`job_of(spec, place)` makes what has a step(); `before` imports what it needs: told before ranks are started."""
    spec_path = sys.argv[1]
    with open(spec_path, encoding="utf-8") as file:
        spec = json.load(file)
    before()
    if spec["gpus"] > 1 and first_of(["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"]) is None:
        sys.exit(start_ranks(spec_path, spec["gpus"]))
    place = Place(spec)
    if place.rank == 0:
        tell("environment", **environment(place))
    if spec["precision"] == "tf32" and place.cuda:
        torch.backends.cuda.matmul.allow_tf32 = True
    heap = host_bytes("RssAnon")  # Python's and its libraries', before there is a model
    job = job_of(spec, place)
    if place.rank == 0:
        tell("ready", parameters=job.parameters, learning=job.learning)

    def measured(number, warm):
        place.wait()
        begin, cpu = time.perf_counter(), cpu_ms()
        more = job.step()
        place.wait()
        ms = (time.perf_counter() - begin) * 1e3
        if place.rank == 0:
            tell("step", step=number, warmup=warm, ms=ms, cpu_ms=cpu_ms() - cpu, **more)

    for i in range(spec["warmup_steps"]):
        measured(i, True)
    if place.world > 1:
        dist.barrier()
    for i in range(spec["steps"]):
        measured(spec["warmup_steps"] + i, False)
    memory = {"rank": place.rank, "host_peak_bytes": host_bytes("VmHWM")}
    mapped = host_bytes("RssFile")  # programs and libraries, as far as they were needed
    if heap is not None and mapped is not None:
        memory["host_base_bytes"] = heap + mapped
    if place.cuda:
        memory["device_peak_bytes"] = torch.cuda.max_memory_reserved()
        memory["device_allocated_bytes"] = torch.cuda.max_memory_allocated()
        free, total = torch.cuda.mem_get_info()
        memory["device_used_bytes"] = total - free
    tell("memory", **memory)
    if spec.get("trace_steps", 0) > 0:
        profile(spec, place, job)
    if place.world > 1:
        dist.barrier()
        dist.destroy_process_group()
    if place.rank == 0:
        tell("done")


def profile(spec, place, job):
    activities = [torch.profiler.ProfilerActivity.CPU]
    if place.cuda:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    path = os.path.join(spec["trace_directory"], f"rank-{place.rank}.json")
    with torch.profiler.profile(activities=activities, record_shapes=True, with_stack=True) as profiler:
        for _ in range(spec["trace_steps"]):
            job.step()
            place.wait()
            profiler.step()
    profiler.export_chrome_trace(path + ".part")
    os.rename(path + ".part", path)
    if place.rank == 0:
        tell("trace", directory=spec["trace_directory"])


if __name__ == "__main__":
    main(lambda spec, place: (Generation if spec["task"] == "inference" else Training)(spec, place))
