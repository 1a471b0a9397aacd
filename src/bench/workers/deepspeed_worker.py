"""Trains or fine-tunes by DeepSpeed: ZeRO 0, 2 and 3, with the optimizer or all in the host's memory.

    python deepspeed_worker.py SPEC.json
"""
import importlib

import torch_worker
from adapters import cast
from report import missing, refuse
from torch_worker import torch


def load():
    try:
        return importlib.import_module("deepspeed")
    except ImportError as error:
        missing("deepspeed", error)


def settings(spec):
    letters = set(spec["techniques"])
    stage = 3 if letters & {"Z3", "Z3O"} else 2 if letters & {"Z2", "Z2O"} else 0
    zero = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}
    if letters & {"Z2O", "Z3O"}:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if "Z3O" in letters:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return {
        "train_micro_batch_size_per_gpu": spec["batch"],
        "gradient_accumulation_steps": 1,
        "zero_optimization": zero,
        "bf16": {"enabled": spec["precision"] == "bf16"},
        "fp16": {"enabled": spec["precision"] == "fp16"},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "steps_per_print": 10**9,
    }


def partitioner(deepspeed, spec):
    """`partition(layer)`: of ZeRO 3 each layer as soon as it is made, so that the whole model is on no device; what is
    left the engine does."""
    config = settings(spec)
    if config["zero_optimization"]["stage"] < 3:
        return lambda layer: layer

    def partition(layer):
        cast(layer, torch_worker.DTYPES[spec["precision"]])  # adapters, too: the engine no longer does
        deepspeed.zero.Init(module=layer, config_dict_or_path=config)
        return layer

    return partition


def size_of(parameter):
    return getattr(parameter, "ds_numel", parameter.numel())  # of a sharded one nothing is left here


class Training:
    def __init__(self, spec, place):
        deepspeed = load()
        if spec["task"] == "inference":
            refuse("generation is measured in plain PyTorch")
        deepspeed.init_distributed(dist_backend="nccl" if place.cuda else "gloo")
        # Cast as its engine would, of the whole at once.
        model = torch_worker.build(spec, place, partitioner(deepspeed, spec), all_cast=True)
        model.train()
        self.place = place
        self.parameters = sum(size_of(p) for p in model.parameters())
        learns = [p for p in model.parameters() if p.requires_grad]
        self.learning = sum(size_of(p) for p in learns)
        self.engine, _, _, _ = deepspeed.initialize(model=torch_worker._Loss(model), model_parameters=learns,
                                                    config=settings(spec))
        generator = torch.Generator().manual_seed(place.rank)
        size = (spec["batch"], spec["seq_length"])
        self.tokens = torch.randint(0, spec["model"]["vocab"], size, generator=generator)

    def step(self):
        tokens = self.tokens.to(self.place.device)
        with torch.profiler.record_function("forward"):
            loss = self.engine(tokens)
        with torch.profiler.record_function("backward"):
            self.engine.backward(loss)
        with torch.profiler.record_function("optimizer"):
            self.engine.step()
        return {}


if __name__ == "__main__":
    torch_worker.main(Training, load)
