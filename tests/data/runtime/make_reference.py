#!/usr/bin/env python3
"""Reference losses and gradients of two tiny models under PyTorch autograd, fp32 on the CPU.

usage: python3 make_reference.py > reference.json        (needs torch only)

The layers are written here from their formulas: RMSNorm, rotary embedding on halves of a head, causal grouped-query attention
by torch's scaled_dot_product_attention, SwiGLU, softmax-then-top-k routing with renormalised weights, the load-balancing loss
E sum_e (share of tokens that chose e) (mean probability of e) and the z loss, both averaged over the layers.  Weights and
tokens are a function of name and index alone, so that the test makes the same ones:
    weight(name, i) = ((fnv1a(name) + i * 2654435761) mod 2^32 mod 1000 - 500) / 500 * deviation;   norms: 1 + that / 10
"""
import json
import math

import torch
import torch.nn.functional as F

DENSE = dict(hidden=32, layers=2, q=4, kv=2, d=8, inter=48, vocab=61, eps=1e-5, theta=100.0, experts=0)
MOE = dict(DENSE, experts=4, k=2, inter=24, qk_norm=True, balance=0.1, z=0.05)
BATCH, SEQUENCE, DEVIATION = 2, 12, 0.2


def key(name):
    h = 0x811C9DC5
    for letter in name.encode():
        h = ((h ^ letter) * 0x01000193) & 0xFFFFFFFF
    return h


def values(name, numel, deviation):
    k = key(name)
    out = [((((k + i * 2654435761) & 0xFFFFFFFF) % 1000) - 500) / 500 * deviation for i in range(numel)]
    return torch.tensor(out, dtype=torch.float64).to(torch.float32)


def shapes(m):
    h, result = m["hidden"], {"model.embed_tokens.weight": (m["vocab"], m["hidden"])}
    for l in range(m["layers"]):
        p = f"model.layers.{l}."
        a = p + "self_attn."
        result[a + "q_proj.weight"] = (m["q"] * m["d"], h)
        result[a + "k_proj.weight"] = (m["kv"] * m["d"], h)
        result[a + "v_proj.weight"] = (m["kv"] * m["d"], h)
        result[a + "o_proj.weight"] = (h, m["q"] * m["d"])
        if m.get("qk_norm"):
            result[a + "q_norm.weight"] = result[a + "k_norm.weight"] = (m["d"],)
        if m["experts"]:
            result[p + "mlp.gate.weight"] = (m["experts"], h)
            result[p + "mlp.experts.gate_up_proj"] = (m["experts"], 2 * m["inter"], h)
            result[p + "mlp.experts.down_proj"] = (m["experts"], h, m["inter"])
        else:
            result[p + "mlp.gate_proj.weight"] = result[p + "mlp.up_proj.weight"] = (m["inter"], h)
            result[p + "mlp.down_proj.weight"] = (h, m["inter"])
        result[p + "input_layernorm.weight"] = result[p + "post_attention_layernorm.weight"] = (h,)
    result["model.norm.weight"] = (h,)
    result["lm_head.weight"] = (m["vocab"], h)
    return result


def weights(m):
    made = {}
    for name, shape in shapes(m).items():
        flat = values(name, math.prod(shape), DEVIATION)
        made[name] = (1 + flat / 10 if len(shape) == 1 else flat).reshape(shape).clone().requires_grad_()
    return made


def rms(x, w, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def turn(x, theta):
    s, d = x.shape[-2], x.shape[-1]
    angle = torch.arange(s)[:, None] * theta ** (-2 * torch.arange(d // 2) / d)
    c, si = torch.cos(angle), torch.sin(angle)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([a * c - b * si, b * c + a * si], -1)


def mixture(m, w, p, x):
    logits = F.linear(x, w[p + "mlp.gate.weight"])
    prob = logits.softmax(-1)
    top, chosen = prob.topk(m["k"], -1)
    top = top / top.sum(-1, keepdim=True)
    out = torch.zeros_like(x)
    for e in range(m["experts"]):
        token, slot = torch.where(chosen == e)
        gate, up = F.linear(x[token], w[p + "mlp.experts.gate_up_proj"][e]).chunk(2, -1)
        y = F.linear(F.silu(gate) * up, w[p + "mlp.experts.down_proj"][e])
        out = out.index_add(0, token, y * top[token, slot, None])
    share = F.one_hot(chosen, m["experts"]).sum(1).float().mean(0)
    balance = m["experts"] * (share * prob.mean(0)).sum()
    return out, balance, logits.logsumexp(-1).pow(2).mean()


def forward(m, w, ids, labels):
    b, s = ids.shape
    x = w["model.embed_tokens.weight"][ids]
    balance = z = 0.0
    for l in range(m["layers"]):
        p = f"model.layers.{l}."
        a = p + "self_attn."
        y = rms(x, w[p + "input_layernorm.weight"], m["eps"])
        heads = lambda n, c: F.linear(y, w[a + n + "_proj.weight"]).view(b, s, m[c], m["d"])
        q, k, v = heads("q", "q"), heads("k", "kv"), heads("v", "kv")
        if m.get("qk_norm"):
            q, k = rms(q, w[a + "q_norm.weight"], m["eps"]), rms(k, w[a + "k_norm.weight"], m["eps"])
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        q, k = turn(q, m["theta"]), turn(k, m["theta"])
        repeat = m["q"] // m["kv"]
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, -1)
        x = x + F.linear(o, w[a + "o_proj.weight"])
        y = rms(x, w[p + "post_attention_layernorm.weight"], m["eps"])
        if m["experts"]:
            out, lb, lz = mixture(m, w, p, y.reshape(b * s, -1))
            balance, z = balance + m["balance"] * lb / m["layers"], z + m["z"] * lz / m["layers"]
            x = x + out.view_as(x)
        else:
            gate, up = (F.linear(y, w[p + f"mlp.{n}_proj.weight"]) for n in ("gate", "up"))
            x = x + F.linear(F.silu(gate) * up, w[p + "mlp.down_proj.weight"])
    logits = F.linear(rms(x, w["model.norm.weight"], m["eps"]), w["lm_head.weight"])
    return F.cross_entropy(logits.reshape(b * s, -1), labels.reshape(-1)), balance, z


def batch(m, step):
    ids = torch.tensor([(i * 17 + step * 29 + (i * i) % 13) % m["vocab"] for i in range(BATCH * SEQUENCE)])
    return ids.view(BATCH, SEQUENCE), ((ids * 7 + 3) % m["vocab"]).view(BATCH, SEQUENCE)


def rounded(tensor, digits=7):
    return [float(f"{v:.{digits}g}") for v in tensor.reshape(-1).tolist()]


def reference(m, rate):
    w = weights(m)
    losses = forward(m, w, *batch(m, 0))
    sum(losses).backward()
    gradients = {}
    for name, parameter in w.items():  # every eleventh element, and the norm over all
        gradients[name] = {"norm": parameter.grad.norm().item(), "every_11th": rounded(parameter.grad.reshape(-1)[::11])}
    result = {"loss": losses[0].item(), "balance_loss": float(losses[1]), "z_loss": float(losses[2]), "gradients": gradients}
    w = weights(m)
    optimizer = torch.optim.AdamW(w.values(), lr=rate, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    result["learning_rate"], result["losses"], result["norms"] = rate, [], []
    for step in range(100):
        optimizer.zero_grad()
        losses = forward(m, w, *batch(m, step % 5))
        sum(losses).backward()
        result["norms"].append(float(torch.nn.utils.clip_grad_norm_(w.values(), 1.0)))
        optimizer.step()
        result["losses"].append(losses[0].item())
    return result


if __name__ == "__main__":
    torch.manual_seed(0)
    # The slower rate keeps tokens at the edge between two experts from choosing otherwise for a rounding's sake.
    print(json.dumps({"torch": torch.__version__, "dense": reference(DENSE, 3e-3), "moe": reference(MOE, 1e-3)}))
