"""Trains, fine-tunes or generates in PyTorch, on CUDA, ROCm or CPU, and tells `orrery bench` what it took.

    python torch_worker.py SPEC.json

Started once it starts its ranks itself; under srun or torchrun it is the rank that they say. ORRERY_BENCH_LAUNCH is "one"
or "srun" where `orrery bench` started it: what that itself runs in leaves variables of a rank as well. Nothing is
downloaded: weights and tokens are random.
"""
import contextlib
import gc
import hashlib
import json
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import time

from report import forget_host_peak, host_bytes, missing, refuse, tell

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


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def start_ranks(spec_path, world):
    """One process a rank. The first that fails ends the others; its status is ours."""
    port = free_port()
    ranks = []
    for rank in range(world):
        env = dict(os.environ, ORRERY_BENCH_LAUNCH="", RANK=str(rank), LOCAL_RANK=str(rank),
                   WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
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


def given_rank(names=("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")):
    """The rank that a launcher made this process; None: it is to start its ranks itself."""
    launch = os.environ.get("ORRERY_BENCH_LAUNCH")
    return None if launch == "one" else first_of([n for n in names if launch != "srun" or n.startswith("SLURM")])


class Place:
    """Which rank this is, and the device it computes on."""

    def __init__(self, spec):
        self.world = spec["gpus"]
        self.rank = given_rank() if self.world > 1 else 0
        local = given_rank(("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")) if self.world > 1 else 0
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
            torch.set_num_threads(spec.get("threads") or 1)  # of a rank among others see below
        if self.world == 1:
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
        else:  # srun: rank 0 is on the first node
            os.environ.setdefault("MASTER_ADDR", os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"))
            os.environ.setdefault("MASTER_PORT", str(20000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 20000))
        # Frameworks that look for themselves find the same, also of a single rank.
        os.environ.update(RANK=str(self.rank), LOCAL_RANK=str(local), WORLD_SIZE=str(self.world))
        if self.world > 1:
            dist.init_process_group("nccl" if self.cuda else "gloo", rank=self.rank, world_size=self.world)
        if not self.cuda and not spec.get("threads"):
            torch.set_num_threads(self.cores_alone())

    def cores_alone(self):
        """Cores that this rank may use, shared evenly among the ranks that may use the very same: a launcher binds each
        to its own, or none."""
        cores = sorted(os.sched_getaffinity(0))
        if self.world == 1:
            return len(cores)
        which = hashlib.sha256(f"{socket.gethostname()} {cores}".encode()).digest()
        mine = torch.tensor([int.from_bytes(which[:7], "big")])
        of_all = [torch.zeros_like(mine) for _ in range(self.world)]
        dist.all_gather(of_all, mine)
        return max(1, len(cores) // sum(int(torch.equal(other, mine)) for other in of_all))

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()


# ---- the model as the techniques have it ----

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def build(spec, place, shard_layer=lambda layer: layer, all_cast=False):
    """The model on its device. Layers are cast, quantised, given adapters and sharded one by one: the whole model is
    not there in full precision, where the run itself needs it in less. `all_cast`: what learns is cast as well."""
    from adapters import add_lora, add_prompt, cast, freeze, quantize
    from llama import Llama, made_on

    letters, shape, dtype = set(spec["techniques"]), spec["model"], DTYPES[spec["precision"]]
    if shape.get("experts"):
        refuse("the PyTorch worker has no mixture of experts")
    flash = "F" in letters
    if flash and not hasattr(torch.nn.functional, "scaled_dot_product_attention"):
        refuse(f"torch {torch.__version__} has no scaled_dot_product_attention")
    torch.manual_seed(spec.get("seed", 1))
    positions = spec["seq_length"] + spec.get("output_tokens", 0) + spec.get("prompt_tokens", 0)
    frozen = letters & {"L", "QL", "P"} or (spec["task"] == "finetune" and "Q" in letters)
    # Beside weights in 4 bits: norms, embedding and head; in full precision, as what learns is everywhere.
    learns_beside_4_bits = "Q" in letters and "P" not in letters and spec["task"] != "inference"

    def as_it_stays(module):
        if frozen or spec["task"] == "inference":
            freeze(module, dtype)
        elif all_cast:
            cast(module, dtype)

    def finish(layer):
        as_it_stays(layer.to(place.device))
        if letters & {"Q", "QL"}:
            quantize(layer, place.device, dtype if dtype != torch.float32 else torch.bfloat16)
        if letters & {"L", "QL"}:
            add_lora(layer, spec.get("lora_rank", 64))
        if learns_beside_4_bits:
            let_learn(layer.input_layernorm)
            let_learn(layer.post_attention_layernorm)
        return shard_layer(layer)

    def let_learn(module):
        cast(module, torch.float32)
        module.requires_grad_(True)

    with made_on(place.device):
        model = Llama(shape, flash, "R" in letters, positions, finish)
    for name, child in model.named_children():
        if name != "layers":
            as_it_stays(child.to(place.device))
            if learns_beside_4_bits:
                let_learn(child)
    if "P" in letters:
        add_prompt(model, spec.get("prompt_tokens", 32))
    return model.eval() if spec["task"] == "inference" else model


def sharder(spec):
    """`shard(module)` by FullyShardedDataParallel: Z3 and the framework's own way keep weights sharded, Z2 keeps them
    whole."""
    offload = any(letter.endswith("O") for letter in spec["techniques"])
    keep = any(letter.startswith("Z2") for letter in spec["techniques"])
    dtype = DTYPES[spec["precision"]]
    try:
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
    except ImportError:
        from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy

        mixed = MixedPrecision(dtype, dtype, dtype) if dtype != torch.float32 else None
        how = ShardingStrategy.SHARD_GRAD_OP if keep else ShardingStrategy.FULL_SHARD
        return lambda module: FullyShardedDataParallel(module, sharding_strategy=how, mixed_precision=mixed,
                                                       cpu_offload=CPUOffload(offload), use_orig_params=True)
    mixed = MixedPrecisionPolicy(dtype, torch.float32) if dtype != torch.float32 else MixedPrecisionPolicy()
    policy = CPUOffloadPolicy() if offload else OffloadPolicy()
    return lambda module: fully_shard(module, reshard_after_forward=not keep, mp_policy=mixed, offload_policy=policy)


class Training:
    def __init__(self, spec, place):
        self.spec, self.place = spec, place
        fsdp = spec["framework"] == "fsdp" and place.world > 1
        dtype = DTYPES[spec["precision"]]
        self.autocast = (contextlib.nullcontext if fsdp or dtype == torch.float32 else
                         lambda: torch.autocast(place.device.type, dtype))
        if fsdp:
            shard = sharder(spec)
            self.model = shard(_Loss(build(spec, place, shard)))
        else:
            self.model = _Loss(build(spec, place))
        self.model.train()
        if place.world > 1 and not fsdp:
            ids = [place.device.index] if place.cuda else None
            self.model = torch.nn.parallel.DistributedDataParallel(self.model, device_ids=ids)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        learns = [p for p in self.model.parameters() if p.requires_grad]
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
            loss = self.model(tokens)
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
    """What shards and what reduces gradients see to it in forward; what it is to call is the loss."""

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
    if spec["gpus"] > 1 and given_rank() is None:
        sys.exit(start_ranks(spec_path, spec["gpus"]))
    place = Place(spec)
    if place.rank == 0:
        tell("environment", **environment(place))
    if spec["precision"] == "tf32" and place.cuda:
        torch.backends.cuda.matmul.allow_tf32 = True
    heap = host_bytes("RssAnon")  # Python's and its libraries', before there is a model
    job = job_of(spec, place)
    forget_setup(place)
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
        # What is not the allocator's (contexts, libraries) stays as it is.
        memory["device_used_bytes"] = total - free - torch.cuda.memory_reserved() + memory["device_peak_bytes"]
    tell("memory", **memory)
    if spec.get("trace_steps", 0) > 0:
        profile(spec, place, job)
    if place.world > 1:
        dist.barrier()
        dist.destroy_process_group()
    if place.rank == 0:
        tell("done")


def forget_setup(place):
    """Peaks are those of the steps: what making the model took beside it is given back and not counted."""
    gc.collect()
    if place.cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    forget_host_peak()


def profile(spec, place, job):
    activities = [torch.profiler.ProfilerActivity.CPU]
    if place.cuda:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    path = os.path.join(spec["trace_directory"], f"rank-{place.rank}.json")
    with torch.profiler.profile(activities=activities, record_shapes=True, with_stack=True) as profiler:
        for i in range(spec["trace_steps"]):
            # What profiler.step() marks with a schedule alone: without marks a trace is one long step.
            with torch.profiler.record_function(f"ProfilerStep#{i}"):
                job.step()
                place.wait()
    profiler.export_chrome_trace(path + ".part")
    os.rename(path + ".part", path)
    if place.rank == 0:
        tell("trace", directory=spec["trace_directory"])


if __name__ == "__main__":
    main(lambda spec, place: (Generation if spec["task"] == "inference" else Training)(spec, place))
