"""Trains by Megatron-Core's GPT model with its own DistributedDataParallel and distributed optimizer.

    python megatron_worker.py SPEC.json
"""
import importlib

import torch_worker
from report import missing, refuse
from torch_worker import torch


def load():
    try:
        return importlib.import_module("megatron.core")
    except ImportError as error:
        missing("megatron.core", error)


def layer_spec(fused):
    """Attention as one kernel is Transformer Engine's; the plain layers multiply scores and values apart."""
    from megatron.core.models.gpt import gpt_layer_specs

    if not fused:
        return gpt_layer_specs.get_gpt_layer_local_spec()
    try:
        importlib.import_module("transformer_engine.pytorch")
    except ImportError as error:
        missing("transformer_engine", error)
    return gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec()


class Training:
    def __init__(self, spec, place):
        core = load()
        if spec["task"] != "pretrain":
            refuse("the Megatron worker trains from the start only")
        if not place.cuda:
            refuse("Megatron-Core needs a GPU")
        from megatron.core import parallel_state
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        from megatron.core.models.gpt import GPTModel
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
        from megatron.core.transformer import TransformerConfig

        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("nccl", rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
        model_parallel_cuda_manual_seed(spec.get("seed", 1))
        shape, recompute = spec["model"], "R" in spec["techniques"]
        half = spec["precision"]
        config = TransformerConfig(
            num_layers=shape["layers"], hidden_size=shape["hidden"], ffn_hidden_size=shape["ffn"],
            num_attention_heads=shape["heads"], num_query_groups=shape["kv_heads"], kv_channels=shape["head_dim"],
            gated_linear_unit=shape["gated_mlp"], normalization="RMSNorm" if shape["rms_norm"] else "LayerNorm",
            activation_func=torch.nn.functional.silu if shape["gated_mlp"] else torch.nn.functional.gelu,
            add_bias_linear=shape["linear_bias"], add_qkv_bias=shape["qkv_bias"], hidden_dropout=0.0, attention_dropout=0.0,
            bf16=half == "bf16", fp16=half == "fp16", pipeline_dtype=torch_worker.DTYPES[half],
            params_dtype=torch_worker.DTYPES[half],  # never there in full precision
            recompute_granularity="full" if recompute else None, recompute_method="uniform" if recompute else None,
            recompute_num_layers=1 if recompute else None)
        model = GPTModel(config, layer_spec("F" in spec["techniques"]), vocab_size=shape["vocab"],
                         max_sequence_length=spec["seq_length"],
                         position_embedding_type="learned_absolute" if shape["learned_positions"] else "rope",
                         share_embeddings_and_output_weights=shape["tied_embeddings"]).cuda()
        self.parameters = self.learning = sum(p.numel() for p in model.parameters())
        self.model = DistributedDataParallel(
            config, DistributedDataParallelConfig(overlap_grad_reduce=True, use_distributed_optimizer=True), model)
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(optimizer="adam", lr=1e-4, bf16=half == "bf16", fp16=half == "fp16",
                            use_distributed_optimizer=True), [self.model])
        self.version = getattr(core, "__version__", None)
        length = spec["seq_length"]
        generator = torch.Generator().manual_seed(place.rank)
        self.tokens = torch.randint(0, shape["vocab"], (spec["batch"], length), generator=generator).cuda()
        self.positions = torch.arange(length).expand(spec["batch"], -1).cuda()
        self.mask = torch.ones(1, 1, length, length, dtype=torch.bool).triu(1).cuda()

    def step(self):
        self.model.zero_grad_buffer()
        with torch.profiler.record_function("forward"):
            loss = self.model(self.tokens, self.positions, self.mask, labels=self.tokens).float().mean()
        with torch.profiler.record_function("backward"):
            loss.backward()
            self.model.finish_grad_sync()
        with torch.profiler.record_function("optimizer"):
            self.optimizer.step()
        return {}


if __name__ == "__main__":
    torch_worker.main(Training, load)
