"""A decoder-only transformer in plain PyTorch, of any shape that `orrery` knows, with random weights made here."""
import contextlib

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def made_on(device):
    """Where tensors are made; before PyTorch 2 that is the host, and whoever makes them moves them."""
    return torch.device(device) if hasattr(torch, "set_default_device") else contextlib.nullcontext()


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * y.to(x.dtype)


def norm_of(shape):
    return RMSNorm(shape["hidden"]) if shape["rms_norm"] else nn.LayerNorm(shape["hidden"])


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


class Attention(nn.Module):
    def __init__(self, shape, flash):
        super().__init__()
        self.heads, self.kv_heads, self.width = shape["heads"], shape["kv_heads"], shape["head_dim"]
        self.flash = flash
        bias = shape["linear_bias"] or shape["qkv_bias"]
        self.q_proj = nn.Linear(shape["hidden"], self.heads * self.width, bias=bias)
        self.k_proj = nn.Linear(shape["hidden"], self.kv_heads * self.width, bias=bias)
        self.v_proj = nn.Linear(shape["hidden"], self.kv_heads * self.width, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.width, shape["hidden"], bias=shape["linear_bias"])

    def forward(self, x, rotary, cache):
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.width).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.width).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.width).transpose(1, 2)
        if rotary is not None:
            cos, sin = rotary
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache is not None:
            k, v = cache.append(k, v)
        if self.kv_heads != self.heads:
            times = self.heads // self.kv_heads
            k, v = k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1)
        causal = length > 1  # one query sees all keys; several are at the end of theirs: a prompt, or training
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        else:
            scores = torch.matmul(q, k.transpose(2, 3)) * self.width**-0.5
            if causal:
                mask = torch.full((length, length), float("-inf"), device=x.device, dtype=scores.dtype).triu(1)
                scores = scores + mask
            y = torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype), v)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self, shape):
        super().__init__()
        hidden, ffn, bias = shape["hidden"], shape["ffn"], shape["linear_bias"]
        self.gated = shape["gated_mlp"]
        if self.gated:
            self.gate_proj = nn.Linear(hidden, ffn, bias=bias)
        self.up_proj = nn.Linear(hidden, ffn, bias=bias)
        self.down_proj = nn.Linear(ffn, hidden, bias=bias)

    def forward(self, x):
        if self.gated:
            return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return self.down_proj(F.gelu(self.up_proj(x)))


class DecoderLayer(nn.Module):
    def __init__(self, shape, flash):
        super().__init__()
        self.input_layernorm = norm_of(shape)
        self.self_attn = Attention(shape, flash)
        self.post_attention_layernorm = norm_of(shape)
        self.mlp = MLP(shape)

    def forward(self, x, rotary, cache=None):
        x = x + self.self_attn(self.input_layernorm(x), rotary, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class LayerCache:
    """Keys and values of one layer, room for all of them from the start."""

    def __init__(self, batch, shape, length, like):
        size = (batch, shape["kv_heads"], length, shape["head_dim"])
        self.keys, self.values, self.used = like.new_empty(size), like.new_empty(size), 0

    def append(self, k, v):
        begin, self.used = self.used, self.used + k.shape[2]
        self.keys[:, :, begin : self.used] = k
        self.values[:, :, begin : self.used] = v
        return self.keys[:, :, : self.used], self.values[:, :, : self.used]


class Llama(nn.Module):
    """`finish(layer)`: each decoder layer as it stays, made before the next one is: of what a layer is while it is
    made there is never more than one."""

    def __init__(self, shape, flash=False, recompute=False, most_positions=4096, finish=lambda layer: layer):
        super().__init__()
        self.shape, self.recompute = shape, recompute
        self.embed_tokens = nn.Embedding(shape["vocab"], shape["hidden"])
        self.embed_positions = nn.Embedding(most_positions, shape["hidden"]) if shape["learned_positions"] else None
        self.norm = norm_of(shape)
        self.lm_head = nn.Linear(shape["hidden"], shape["vocab"], bias=False)
        if shape["tied_embeddings"]:
            self.lm_head.weight = self.embed_tokens.weight
        self.prompt = None  # prompt tuning: embeddings of its own before the text
        self.apply(self.begin)
        self.layers = nn.ModuleList(finish(DecoderLayer(shape, flash).apply(self.begin)) for _ in range(shape["layers"]))

    @staticmethod
    def begin(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)

    def rotary(self, positions, dtype):
        if self.embed_positions is not None:
            return None
        width = self.shape["head_dim"]
        powers = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
        angles = positions.float()[:, None] * (10000.0**-powers)[None, :]
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def forward(self, tokens, begin=0, caches=None, last_only=False):
        x = self.embed_tokens(tokens)
        if self.prompt is not None:
            x = torch.cat((self.prompt.to(x.dtype).expand(x.shape[0], -1, -1), x), dim=1)
        positions = torch.arange(begin, begin + x.shape[1], device=tokens.device)
        if self.embed_positions is not None:
            x = x + self.embed_positions(positions)
        compute = torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else x.dtype
        rotary = self.rotary(positions, compute)
        for i, layer in enumerate(self.layers):
            if self.recompute and self.training:
                x = checkpoint(layer, x, rotary, use_reentrant=False)
            else:
                x = layer(x, rotary, caches[i] if caches is not None else None)
        return self.lm_head(self.norm(x[:, -1:] if last_only else x))

    def loss(self, tokens):
        logits = self(tokens)[:, -tokens.shape[1] :]
        return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]).float(), tokens[:, 1:].reshape(-1))
