"""What learns in fine-tuning beside a model that stays as it is: LoRA, QLoRA, prompt tuning; and 4-bit weights."""
import math

import torch
from torch import nn

from llama import made_on
from report import missing


class LoraLinear(nn.Module):
    """Hu et al. 2021: y = W x + (alpha / rank) B A x, with W frozen and B zero at the begin."""

    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.lora_B(self.lora_A(x)) * self.scale


def replace_linears(layer, make):
    for parent in list(layer.modules()):  # as they were: what `make` returns has linear layers, too
        for name, child in list(parent.named_children()):
            if type(child).__name__ in ("Linear", "Linear4bit"):
                setattr(parent, name, make(child))


def quantize(layer, device, compute):
    """NF4 with double quantisation (Dettmers et al. 2023), as bitsandbytes has it."""
    try:
        import bitsandbytes as bnb
    except ImportError as error:
        missing("bitsandbytes", error)

    def four_bits(linear):
        with made_on("cpu"):  # bitsandbytes packs the weights when they move
            q = bnb.nn.Linear4bit(linear.in_features, linear.out_features, bias=linear.bias is not None,
                                  compute_dtype=compute, compress_statistics=True, quant_type="nf4")
        q.load_state_dict(linear.state_dict())
        return q.to(device)

    replace_linears(layer, four_bits)


def cast(module, dtype):
    for p in module.parameters():
        if p.is_floating_point():
            p.data = p.data.to(dtype)


def freeze(module, dtype):
    module.requires_grad_(False)
    cast(module, dtype)


def add_lora(layer, rank):
    def adapted(linear):
        return LoraLinear(linear, rank, 2 * rank).to(linear.weight.device)

    replace_linears(layer, adapted)


def add_prompt(model, tokens):
    """Lester et al. 2021: embeddings that learn, before those of the text."""
    hidden = model.shape["hidden"]
    device = model.embed_tokens.weight.device
    model.prompt = nn.Parameter(0.02 * torch.randn(1, tokens, hidden, device=device))
