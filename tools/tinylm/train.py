#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train the tiny language model of tests/data/tinylm-f16.gguf, write it, check it.

A llama-architecture model (grouped-query attention, RoPE, RMSNorm, SwiGLU, tied
embeddings) small enough to live in the tree and trained long enough that greedy
continuations are readable. Not part of the build: README.md says how to repeat it.

    train.py --work DIR --minutes 30        train, keep checkpoints in DIR
    train.py --work DIR --export FILE       write the newest checkpoint as GGUF
    train.py --work DIR --export FILE --check    and hold FILE against the checkpoint
    train.py --check-file FILE --prompt TEXT     read FILE with numpy only, continue TEXT

Everything the numpy reader needs is in the GGUF file itself, so --check proves that
the file, and not this script's memory, carries the model: tokenizer included.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time

import numpy as np

VOCAB = 1024
CONTEXT = 2048
WIDTH = 256
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 64
LAYERS = 3
HIDDEN = 448
ROPE_BASE = 10000.0
RMS_EPS = 1e-5

UNK, BOS, EOS = 0, 1, 2
SPACE = "\u2581"  # how SentencePiece spells a space inside a piece

# Sequences per step by length: every step sees about the same number of tokens. Most
# are short because they are cheap; the long ones teach the later positions.
SHAPES = [(128, 0.25), (256, 0.48), (512, 0.12), (1024, 0.11), (2048, 0.04)]


# --------------------------------------------------------------------------- text


def bible_chapters(command):
    """[[verse, ...], ...], one list per chapter, from Debian's bible-kjv."""
    out = subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout
    chapters, last = [], None
    for line in out.splitlines():
        m = re.match(r"^(\S+?)(\d+):(\d+) (.*)$", line)
        if not m:
            continue
        key = (m.group(1), m.group(2))
        if key != last:
            chapters.append([])
            last = key
        chapters[-1].append(m.group(4).strip())
    if len(chapters) != 1189:
        raise SystemExit(f"expected the 1189 chapters of the King James Version, got {len(chapters)}")
    return chapters


def plain_chapters(path):
    """Blank-line separated paragraphs of a plain text file, one unit per line."""
    with open(path, encoding="utf-8") as f:
        blocks = re.split(r"\n\s*\n", f.read())
    return [[line.strip() for line in b.splitlines() if line.strip()] for b in blocks if b.strip()]


def load_chapters(args):
    return plain_chapters(args.text) if args.text else bible_chapters(args.bible)


# ---------------------------------------------------------------------- tokenizer


def train_tokenizer(chapters, work):
    import sentencepiece as spm

    path = os.path.join(work, "tokenizer.txt")
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(v for c in chapters for v in c) + "\n")
    spm.SentencePieceTrainer.train(
        input=path,
        model_prefix=os.path.join(work, "tokenizer"),
        model_type="bpe",
        vocab_size=VOCAB,
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=True,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        pad_id=-1,
        input_sentence_size=0,
        num_threads=1,
        minloglevel=1,
    )


def load_tokenizer(work):
    import sentencepiece as spm

    return spm.SentencePieceProcessor(model_file=os.path.join(work, "tokenizer.model"))


class Corpus:
    """Tokens of all chapters in order, and where sequences may start.

    A sequence is BOS, then text from the start of some verse onward, with EOS and BOS
    where a chapter ends: what an engine feeds in when it is given a prompt.
    """

    def __init__(self, chapters, sp):
        tokens, starts = [], []
        for chapter in chapters:
            if tokens:
                tokens += [EOS, BOS]
            for verse in chapter:
                starts.append(len(tokens))
                tokens += sp.encode(verse)
        self.tokens = np.array(tokens, dtype=np.int64)
        self.starts = np.array(starts, dtype=np.int64)

    def batch(self, rng, rows, length):
        usable = self.starts[self.starts + length + 1 < len(self.tokens)]
        pick = rng.choice(usable, size=rows)
        out = np.empty((rows, length + 1), dtype=np.int64)
        out[:, 0] = BOS
        for i, s in enumerate(pick):
            out[i, 1:] = self.tokens[s : s + length]
        return out


# -------------------------------------------------------------------------- model


def build_model():
    import torch
    from torch import nn
    from torch.nn import functional as F

    class RMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x):
            return F.rms_norm(x.float(), (WIDTH,), self.weight, RMS_EPS)

    def rotate(x, cos, sin):
        # Adjacent pairs (2i, 2i+1) turn together: the layout that "llama" means in GGUF.
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2).to(x.dtype)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn_norm = RMSNorm()
            self.attn_q = nn.Linear(WIDTH, HEADS * HEAD_DIM, bias=False)
            self.attn_k = nn.Linear(WIDTH, KV_HEADS * HEAD_DIM, bias=False)
            self.attn_v = nn.Linear(WIDTH, KV_HEADS * HEAD_DIM, bias=False)
            self.attn_output = nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False)
            self.ffn_norm = RMSNorm()
            self.ffn_gate = nn.Linear(WIDTH, HIDDEN, bias=False)
            self.ffn_up = nn.Linear(WIDTH, HIDDEN, bias=False)
            self.ffn_down = nn.Linear(HIDDEN, WIDTH, bias=False)

        def forward(self, x, cos, sin, cache=None):
            rows, length, _ = x.shape
            h = self.attn_norm(x)
            q = self.attn_q(h).view(rows, length, HEADS, HEAD_DIM).transpose(1, 2)
            k = self.attn_k(h).view(rows, length, KV_HEADS, HEAD_DIM).transpose(1, 2)
            v = self.attn_v(h).view(rows, length, KV_HEADS, HEAD_DIM).transpose(1, 2)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            if cache is not None:
                if "k" in cache:
                    k, v = torch.cat((cache["k"], k), 2), torch.cat((cache["v"], v), 2)
                cache["k"], cache["v"] = k, v
            k = k.repeat_interleave(HEADS // KV_HEADS, dim=1)
            v = v.repeat_interleave(HEADS // KV_HEADS, dim=1)
            o = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
            x = x + self.attn_output(o.transpose(1, 2).reshape(rows, length, -1))
            h = self.ffn_norm(x)
            return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.token_embd = nn.Embedding(VOCAB, WIDTH)
            self.blk = nn.ModuleList([Block() for _ in range(LAYERS)])
            self.output_norm = RMSNorm()
            angle = torch.outer(
                torch.arange(CONTEXT).float(),
                ROPE_BASE ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM),
            )
            self.register_buffer("cos", angle.cos(), persistent=False)
            self.register_buffer("sin", angle.sin(), persistent=False)
            for name, p in self.named_parameters():
                if p.dim() == 2:
                    scale = 0.02 if name == "token_embd.weight" else p.shape[1] ** -0.5
                    if name.endswith(("attn_output.weight", "ffn_down.weight")):
                        scale /= math.sqrt(2 * LAYERS)
                    nn.init.normal_(p, std=scale)

        def forward(self, ids, caches=None, at=0):
            # With caches: a whole prompt at 0, or one token a row at position `at`.
            length = ids.shape[1]
            cos, sin = self.cos[at : at + length], self.sin[at : at + length]
            x = self.token_embd(ids)
            for i, block in enumerate(self.blk):
                x = block(x, cos, sin, caches[i] if caches else None)
            return F.linear(self.output_norm(x), self.token_embd.weight)

        @torch.no_grad()
        def greedy(self, ids, count):
            caches = [{} for _ in self.blk]
            logits = self(ids, caches)
            out = [ids]
            for i in range(count):
                out.append(logits[:, -1:].argmax(-1))
                if i + 1 < count:
                    logits = self(out[-1], caches, ids.shape[1] + i)
            return torch.cat(out, 1)

    return Model()


# ----------------------------------------------------------------------- training


def newest_checkpoint(work):
    path = os.path.join(work, "checkpoint.pt")
    return path if os.path.exists(path) else None


def train(args):
    import torch
    from torch.nn import functional as F

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    os.makedirs(args.work, exist_ok=True)

    chapters = load_chapters(args)
    if args.minutes or args.steps:
        train_tokenizer(chapters, args.work)
    sp = load_tokenizer(args.work)
    held_out = Corpus(chapters[25::50], sp)
    corpus = Corpus([c for i, c in enumerate(chapters) if i % 50 != 25], sp)
    print(f"{len(corpus.tokens)} training tokens, {len(held_out.tokens)} held out", flush=True)

    model = build_model()
    if not args.minutes and not args.steps:
        model.load_state_dict(torch.load(newest_checkpoint(args.work), weights_only=True))
    count = sum(p.numel() for p in model.parameters())
    print(f"{count} parameters", flush=True)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
        lr=args.lr,
        betas=(0.9, 0.98),
        fused=True,
    )
    lengths = [s[0] for s in SHAPES]
    weights = [s[1] for s in SHAPES]
    check_rng = np.random.default_rng(1)
    check_ids = torch.from_numpy(held_out.batch(check_rng, 32, 256))

    def loss_of(ids):
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            logits = model(ids[:, :-1])
        return F.cross_entropy(logits.float().reshape(-1, VOCAB), ids[:, 1:].reshape(-1))

    begin = last_save = time.monotonic()
    budget = args.minutes * 60.0
    step, seen, mean = 0, 0, None
    log = open(os.path.join(args.work, "loss.jsonl"), "a", encoding="utf-8")

    def save(final):
        model.eval()
        with torch.no_grad():
            held = loss_of(check_ids).item()
        model.train()
        path = os.path.join(args.work, "checkpoint.pt")
        torch.save(model.state_dict(), path + ".new")
        os.replace(path + ".new", path)
        line = {
            "step": step,
            "tokens": seen,
            "seconds": round(time.monotonic() - begin),
            "train_loss": round(mean, 4),
            "held_out_loss": round(held, 4),
        }
        log.write(json.dumps(line) + "\n")
        log.flush()
        print(json.dumps(line), "final" if final else "", flush=True)

    while args.minutes or args.steps:
        # The schedule follows steps where a number of steps is given (repeatable), else the clock.
        done = step / args.steps if args.steps else (time.monotonic() - begin) / budget
        if done >= 1.0:
            break
        warm = min(1.0, (step + 1) / 100)
        rate = args.lr * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        length = int(rng.choice(lengths, p=weights))
        rows = max(1, args.batch_tokens // length)
        ids = torch.from_numpy(corpus.batch(rng, rows, length))
        loss = loss_of(ids)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        seen += rows * length
        mean = loss.item() if mean is None else 0.98 * mean + 0.02 * loss.item()
        if step % 50 == 0:
            spent = time.monotonic() - begin
            print(f"step {step} loss {mean:.4f} rate {rate:.2e} {seen / spent:.0f} tokens/s", flush=True)
        if time.monotonic() - last_save > args.save_every * 60.0:
            save(False)
            last_save = time.monotonic()
    if args.minutes or args.steps:
        save(True)

    # Greedy decoding of a small model falls into loops ("and the LORD of hosts, and the
    # LORD of hosts, ..."), which makes all prompts end alike. The last phase lets the
    # model continue prompts greedily and lowers the probability of what it repeated
    # (unlikelihood training, Welleck et al. 2020, arXiv:1908.04319), beside ordinary steps.
    word_start = np.array([sp.id_to_piece(i).startswith(SPACE) for i in range(VOCAB)])
    begin = last_save = time.monotonic()
    budget = args.polish * 60.0
    mean, repeated = mean or 0.0, None
    while time.monotonic() - begin < budget:
        done = (time.monotonic() - begin) / budget
        rate = args.polish_lr * min(1.0, (1.0 - done) * 2 + 0.02)
        for group in optimizer.param_groups:
            group["lr"] = rate
        prefix = int(rng.integers(4, 64))
        rollout = model.greedy(torch.from_numpy(corpus.batch(rng, 24, prefix - 1)), 128)
        marks = repeats(rollout.numpy(), prefix, word_start, args.polish_ngram)
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            logits = model(rollout[:, :-1])
        p = logits.float().softmax(-1).gather(-1, rollout[:, 1:, None])[..., 0]
        mask = torch.from_numpy(marks[:, 1:])
        unlikely = -(torch.log1p(-p.clamp(max=1 - 1e-4)) * mask).sum() / mask.sum().clamp(min=64)
        ids = torch.from_numpy(corpus.batch(rng, args.batch_tokens // 256, 256))
        loss = loss_of(ids)
        optimizer.zero_grad(set_to_none=True)
        (loss + args.polish_weight * unlikely).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        seen += ids.numel()
        mean = 0.95 * mean + 0.05 * loss.item() if mean else loss.item()
        share = marks.sum() / max(1, (word_start[rollout.numpy()[:, prefix:]]).sum())
        repeated = share if repeated is None else 0.9 * repeated + 0.1 * share
        if step % 10 == 0:
            print(f"polish {done:.2f} loss {mean:.4f} repeated words {repeated:.3f}", flush=True)
        if time.monotonic() - last_save > args.save_every * 60.0:
            save(False)
            last_save = time.monotonic()
    if budget:
        save(True)


def repeats(rows, prefix, word_start, n):
    """1.0 where a generated token starts a word and lies in an n-gram that occurred before.

    Only starts of words: pushing down the middle of a word would misspell it.
    """
    marks = np.zeros(rows.shape, dtype=np.float32)
    for r, row in enumerate(rows.tolist()):
        seen = set()
        for end in range(n, len(row) + 1):
            gram = tuple(row[end - n : end])
            if gram in seen:
                marks[r, max(prefix, end - n) : end] = 1.0
            seen.add(gram)
    return marks * word_start[rows]


# ------------------------------------------------------------------------- export


def export(args):
    import gguf
    import torch

    sp = load_tokenizer(args.work)
    state = torch.load(newest_checkpoint(args.work), map_location="cpu", weights_only=True)
    w = gguf.GGUFWriter(args.export, "llama")
    w.add_type(gguf.GGUFType.MODEL)
    w.add_name("tinylm")
    w.add_description("Tiny llama-architecture model trained on the King James Version")
    w.add_license("Apache-2.0")
    w.add_custom_alignment(32)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    w.add_vocab_size(VOCAB)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(WIDTH)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(HIDDEN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_key_length(HEAD_DIM)
    w.add_value_length(HEAD_DIM)
    w.add_rope_dimension_count(HEAD_DIM)
    w.add_rope_freq_base(ROPE_BASE)
    w.add_layer_norm_rms_eps(RMS_EPS)

    kinds = gguf.TokenType
    tokens, scores, types = [], [], []
    for i in range(VOCAB):
        tokens.append(sp.id_to_piece(i).encode("utf-8"))
        scores.append(float(sp.get_score(i)))
        if sp.is_unknown(i):
            types.append(kinds.UNKNOWN)
        elif sp.is_control(i):
            types.append(kinds.CONTROL)
        elif sp.is_byte(i):
            types.append(kinds.BYTE)
        else:
            types.append(kinds.NORMAL)
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_scores(scores)
    w.add_token_types(types)
    w.add_bos_token_id(BOS)
    w.add_eos_token_id(EOS)
    w.add_unk_token_id(UNK)
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    w.add_add_space_prefix(True)

    for name, tensor in state.items():
        # One-dimensional tensors stay f32, as llama.cpp writes them. No output.weight: tied.
        data = tensor.float().numpy()
        w.add_tensor(name, data.astype(np.float32 if data.ndim == 1 else np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(f"{args.export}: {os.path.getsize(args.export)} bytes")


# -------------------------------------------- an independent reader, numpy only


class GGUF:
    """Reads a GGUF v3 file by its published layout, without the gguf package."""

    SCALAR = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|b1", 10: "<u8", 11: "<i8", 12: "<f8"}

    def __init__(self, path):
        with open(path, "rb") as f:
            self.raw = f.read()
        self.at = 0
        if self.take(4) != b"GGUF" or self.scalar(4) != 3:
            raise SystemExit(f"{path}: not GGUF version 3")
        tensors, pairs = self.scalar(10), self.scalar(10)
        self.meta = {}
        for _ in range(pairs):
            key = self.string()
            self.meta[key] = self.value(self.scalar(4))
        infos = []
        for _ in range(tensors):
            name = self.string()
            shape = [self.scalar(10) for _ in range(self.scalar(4))]
            infos.append((name, shape, self.scalar(4), self.scalar(10)))
        align = self.meta.get("general.alignment", 32)
        base = (self.at + align - 1) // align * align
        self.tensors, self.types = {}, {}
        for name, shape, kind, offset in infos:
            dtype = {0: "<f4", 1: "<f2"}[kind]
            data = np.frombuffer(self.raw, dtype, math.prod(shape), base + offset)
            # The first dimension is the contiguous one: reversed, it is numpy's order.
            self.tensors[name] = data.reshape(shape[::-1]).astype(np.float32)
            self.types[name] = dtype

    def take(self, n):
        out = self.raw[self.at : self.at + n]
        if len(out) != n:
            raise SystemExit("truncated GGUF")
        self.at += n
        return out

    def scalar(self, kind):
        dtype = np.dtype(self.SCALAR[kind])
        return np.frombuffer(self.take(dtype.itemsize), dtype)[0].item()

    def string(self):
        return self.take(self.scalar(10)).decode("utf-8")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            inner, count = self.scalar(4), self.scalar(10)
            return [self.value(inner) for _ in range(count)]
        return self.scalar(kind)


class NumpyModel:
    def __init__(self, path):
        self.file = GGUF(path)
        m = self.file.meta
        assert m["general.architecture"] == "llama" and m["tokenizer.ggml.model"] == "llama"
        self.layers = m["llama.block_count"]
        self.heads = m["llama.attention.head_count"]
        self.kv_heads = m["llama.attention.head_count_kv"]
        self.rope_dim = m["llama.rope.dimension_count"]
        self.rope_base = m["llama.rope.freq_base"]
        self.eps = m["llama.attention.layer_norm_rms_epsilon"]
        self.tokens = m["tokenizer.ggml.tokens"]
        self.scores = m["tokenizer.ggml.scores"]
        self.kinds = m["tokenizer.ggml.token_type"]
        self.bos = m["tokenizer.ggml.bos_token_id"]
        self.eos = m["tokenizer.ggml.eos_token_id"]
        self.by_text = {t: i for i, t in enumerate(self.tokens) if self.kinds[i] == 1}

    def encode(self, text):
        """Greedy merging by score, leftmost first among equals; bytes for the rest."""
        symbols = list((SPACE if text else "") + text.replace(" ", SPACE))
        while True:
            best, where = None, -1
            for i in range(len(symbols) - 1):
                token = self.by_text.get(symbols[i] + symbols[i + 1])
                if token is not None and (best is None or self.scores[token] > best):
                    best, where = self.scores[token], i
            if best is None:
                break
            symbols[where : where + 2] = [symbols[where] + symbols[where + 1]]
        ids = [self.bos]
        for s in symbols:
            if s in self.by_text:
                ids.append(self.by_text[s])
            else:
                ids += [self.tokens.index(f"<0x{b:02X}>") for b in s.encode("utf-8")]
        return ids

    def decode(self, ids):
        out = b""
        for i in ids:
            if self.kinds[i] == 6:
                out += bytes([int(self.tokens[i][3:5], 16)])
            elif self.kinds[i] == 1:
                out += self.tokens[i].replace(SPACE, " ").encode("utf-8")
        return out.decode("utf-8", "replace")

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.file.tensors[name]

    def rotate(self, x, at):
        # x: [heads, dim] at one position.
        pair = np.arange(0, self.rope_dim, 2)
        angle = at * self.rope_base ** (-pair / self.rope_dim)
        out = x.copy()
        out[:, pair] = x[:, pair] * np.cos(angle) - x[:, pair + 1] * np.sin(angle)
        out[:, pair + 1] = x[:, pair] * np.sin(angle) + x[:, pair + 1] * np.cos(angle)
        return out

    def start(self):
        self.keys = [[] for _ in range(self.layers)]
        self.values = [[] for _ in range(self.layers)]

    def step(self, token, at):
        """One token through the model with a growing cache; returns the logits."""
        t = self.file.tensors
        x = t["token_embd.weight"][token]
        for n in range(self.layers):
            p = f"blk.{n}."
            h = self.norm(x, p + "attn_norm.weight")
            q = self.rotate((t[p + "attn_q.weight"] @ h).reshape(self.heads, -1), at)
            k = self.rotate((t[p + "attn_k.weight"] @ h).reshape(self.kv_heads, -1), at)
            self.keys[n].append(k)
            self.values[n].append((t[p + "attn_v.weight"] @ h).reshape(self.kv_heads, -1))
            keys, values = np.stack(self.keys[n]), np.stack(self.values[n])
            out = np.empty_like(q)
            for head in range(self.heads):
                kv = head // (self.heads // self.kv_heads)
                s = keys[:, kv] @ q[head] / math.sqrt(q.shape[1])
                s = np.exp(s - s.max())
                out[head] = (s / s.sum()) @ values[:, kv]
            x = x + t[p + "attn_output.weight"] @ out.reshape(-1)
            h = self.norm(x, p + "ffn_norm.weight")
            gate = t[p + "ffn_gate.weight"] @ h
            x = x + t[p + "ffn_down.weight"] @ (gate / (1 + np.exp(-gate)) * (t[p + "ffn_up.weight"] @ h))
        head = t.get("output.weight", t["token_embd.weight"])
        return head @ self.norm(x, "output_norm.weight")

    def greedy(self, ids, count):
        self.start()
        for at, token in enumerate(ids):
            logits = self.step(token, at)
        out = []
        while True:
            out.append(int(logits.argmax()))
            if len(out) == count or out[-1] == self.eos:
                return out
            logits = self.step(out[-1], len(ids) + len(out) - 1)


CHECK_PROMPTS = [
    "In the beginning",
    "And it came to pass in those days, that",
    "The king said unto his servants,",
    "Blessed are they that",
    "My mother went to the market on Monday with 12 eggs and a caf\u00e9 cup",
    "O",
    "He that walketh uprightly",
    "And the LORD spake unto Moses, saying, Speak unto the children of Israel, and say unto them, "
    "When ye be come into the land which I give you, then shall the land keep a sabbath. " * 4,
]


def read_prompts(path):
    with open(path, encoding="utf-8") as f:
        return [line.rstrip("\n") for line in f if line.strip()]


def check(args):
    """The file against the checkpoint: tensors, tokenizer, greedy continuations."""
    import gguf
    import torch

    path = args.export
    reader = gguf.GGUFReader(path)
    model = NumpyModel(path)
    for tensor in reader.tensors:
        ours = model.file.tensors[tensor.name]
        theirs = np.asarray(tensor.data, dtype=np.float32).reshape(ours.shape)
        assert list(tensor.shape) == list(ours.shape[::-1]), tensor.name
        assert np.array_equal(ours, theirs), tensor.name
    assert len(reader.tensors) == len(model.file.tensors) == 2 + 9 * LAYERS
    print(f"gguf package and our reader agree on {len(reader.tensors)} tensors")

    sp = load_tokenizer(args.work)
    prompts = CHECK_PROMPTS + (read_prompts(args.prompts) if args.prompts else [])
    for prompt in prompts:
        assert model.encode(prompt) == [BOS] + sp.encode(prompt), prompt
    print(f"tokenizer agrees with sentencepiece on {len(prompts)} prompts")

    state = torch.load(newest_checkpoint(args.work), map_location="cpu", weights_only=True)
    torch_model = build_model().eval()
    torch_model.load_state_dict({k: v.half().float() if v.dim() == 2 else v for k, v in state.items()})
    bad = 0
    with torch.no_grad():
        for prompt in CHECK_PROMPTS:
            ids = model.encode(prompt)
            mine = model.greedy(ids, args.tokens)
            theirs, row = [], list(ids)
            while len(theirs) < args.tokens and (not theirs or theirs[-1] != EOS):
                theirs.append(int(torch_model(torch.tensor([row]))[0, -1].argmax()))
                row.append(theirs[-1])
            bad += mine != theirs
            print(f"{'same' if mine == theirs else 'DIFFERENT'}: [{prompt[-60:]}]{model.decode(mine)}")
    if bad:
        raise SystemExit(f"{bad} continuations differ between numpy and PyTorch")
    print("numpy and PyTorch continue alike")


def show(args):
    model = NumpyModel(args.check_file)
    if args.meta:
        for key, value in model.file.meta.items():
            print(key, "=", value if not isinstance(value, list) else f"[{len(value)}] {value[:4]} ...")
        for name, data in model.file.tensors.items():
            print(name, list(data.shape[::-1]), model.file.types[name])
    prompts = read_prompts(args.prompts) if args.prompts else []
    lengths = [len(model.encode(p)) for p in prompts]
    if lengths:
        print(f"{len(lengths)} prompts, tokens: min {min(lengths)} mean {np.mean(lengths):.1f} max {max(lengths)}")
        print("sorted:", sorted(lengths))
    for prompt in args.prompt:
        ids = model.encode(prompt)
        print(f"[{prompt}]{model.decode(model.greedy(ids, args.tokens))}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--work", help="directory for tokenizer, checkpoints and the loss log")
    p.add_argument("--bible", default="bible -f gen1:1-rev22:21", help="command that prints the text (Debian: bible-kjv)")
    p.add_argument("--text", help="train on this plain text file instead (paragraphs apart by blank lines)")
    p.add_argument("--minutes", type=float, default=30.0, help="training time; the rate follows the clock")
    p.add_argument("--polish", type=float, default=5.0, metavar="MINUTES", help="last phase, against loops; --minutes 0 runs it alone, on the newest checkpoint")
    p.add_argument("--polish-lr", type=float, default=5e-4)
    p.add_argument("--polish-weight", type=float, default=1.0)
    p.add_argument("--polish-ngram", type=int, default=6)
    p.add_argument("--steps", type=int, help="a number of steps instead of minutes: same machine, same result")
    p.add_argument("--save-every", type=float, default=3.0, metavar="MINUTES")
    p.add_argument("--batch-tokens", type=int, default=2048, help="tokens per step")
    p.add_argument("--lr", type=float, default=2.5e-3)
    p.add_argument("--seed", type=int, default=1611)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--bf16", action="store_true", help="matrix products in bfloat16 (fast only with AVX512_BF16 or AMX)")
    p.add_argument("--export", metavar="FILE", help="write the newest checkpoint as GGUF; does not train")
    p.add_argument("--check", action="store_true", help="after --export: compare FILE with the checkpoint")
    p.add_argument("--check-file", metavar="FILE", help="only read FILE (numpy, nothing else) and continue --prompt")
    p.add_argument("--prompt", action="append", default=[])
    p.add_argument("--prompts", metavar="FILE", help="prompts, one a line: tokenizer check, token counts")
    p.add_argument("--meta", action="store_true", help="with --check-file: print metadata and tensors")
    p.add_argument("--tokens", type=int, default=60, help="length of continuations")
    args = p.parse_args()
    if args.check_file:
        return show(args)
    if not args.work:
        p.error("--work is needed")
    if args.check and not args.export:
        p.error("--check needs --export")
    if args.export:
        export(args)
        if args.check:
            check(args)
        return None
    return train(args)


if __name__ == "__main__":
    sys.exit(main())
