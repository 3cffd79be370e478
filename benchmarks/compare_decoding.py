#!/usr/bin/env python3
"""Sets sash's greedy decoding on a CPU beside llama.cpp's and PyTorch's: tokens/s, batch 1.

    pip install llama-cpp-python torch transformers
    python benchmarks/compare_decoding.py build/test/bin/generate SmolLM2-135M-Instruct.Q4_1.gguf

llama.cpp reads the file as it is, and float32, float16 and bfloat16 copies of it; sash dequantises it.
PyTorch has random weights of the same shape, by transformers. In each round every program runs once.
"""

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

PROMPT = "Gravity is the force by which all bodies attract each other. "
FTYPES = {"float32": 0, "float16": 1, "bfloat16": 32}


def llama_copy(path, to, ftype):
    import llama_cpp

    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.allow_requantize, options.nthread = ftype, True, 2
    if llama_cpp.llama_model_quantize(path.encode(), to.encode(), options):
        raise RuntimeError(f"llama.cpp cannot convert {path}")


def run_llama(path, threads, ids, count):
    import llama_cpp
    import numpy as np

    room = len(ids) + count + 8
    model = llama_cpp.Llama(path, n_ctx=room, n_batch=room, n_threads=threads,
                            n_threads_batch=threads, verbose=False)
    context = model.ctx

    def read(tokens):
        words = (llama_cpp.llama_token * len(tokens))(*tokens)
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(words, len(tokens))):
            raise RuntimeError("llama_decode failed")
        logits = llama_cpp.llama_get_logits_ith(context, -1)
        return int(np.ctypeslib.as_array(logits, (model.n_vocab(),)).argmax())

    return decode(read, ids, count)


def run_torch(dtype, threads, ids, count):
    import torch
    import transformers

    torch.set_num_threads(threads)
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192,
        tie_word_embeddings=True)
    model = transformers.LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()
    cache = transformers.DynamicCache()

    @torch.inference_mode()
    def read(tokens):
        out = model(torch.tensor([tokens]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        return int(out.logits[0, -1].argmax())

    return decode(read, ids, count)


def decode(read, ids, count):
    tokens = [read(ids)]
    start = time.perf_counter()
    while len(tokens) < count:
        tokens.append(read(tokens[-1:]))
    return {"rate": (count - 1) / (time.perf_counter() - start), "tokens": tokens}


def run_sash(args, dtype, threads, prompt):
    result = subprocess.run(
        [*args.prefix, args.generate, args.model, "--raw", "--prompt", prompt, "--temperature", "0",
         "--repetition-penalty", "1", "--count", str(args.count), "--no-stop", "--ids", "--dtype", dtype,
         "--threads", str(threads)], check=True, capture_output=True, text=True)
    rate = re.search(r"new: \d+ tokens, ([\d.]+) tokens/s", result.stderr).group(1)
    return {"rate": float(rate), "tokens": [int(word) for word in result.stdout.split()]}


def run_peer(args, kind, what, threads, ids):
    call = json.dumps({"what": what, "threads": threads, "ids": ids, "count": args.count})
    result = subprocess.run([*args.prefix, sys.executable, __file__, "--peer", kind], input=call,
                            check=True, capture_output=True, text=True)
    return json.loads(result.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("generate", help="the example's program")
    parser.add_argument("model", help="a GGUF file of SmolLM2-135M")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=100, help="tokens to write")
    parser.add_argument("--repeat", type=int, default=1, help="repeats of the prompt's sentence")
    parser.add_argument("--prefix", type=shlex.split, default=[], help="runs each program: 'nice -n -5'")
    args = parser.parse_args()
    prompt = PROMPT * args.repeat
    ids = [int(word) for word in subprocess.run(
        [args.generate, args.model, "--raw", "--prompt", prompt, "--prompt-ids"], check=True,
        capture_output=True, text=True).stdout.split()]
    with tempfile.TemporaryDirectory() as folder:
        entrants = {f"sash {dtype}": ("sash", dtype) for dtype in FTYPES}
        entrants["llama.cpp " + os.path.basename(args.model).split(".")[-2]] = ("llama", args.model)
        for dtype, ftype in FTYPES.items():
            path = f"{folder}/{dtype}.gguf"
            llama_copy(args.model, path, ftype)
            entrants[f"llama.cpp {dtype}"] = ("llama", path)
            entrants[f"PyTorch {dtype}"] = ("torch", dtype)
        rates, tokens = {}, {}
        for _ in range(args.rounds):
            for threads in args.threads:
                for name, (kind, what) in entrants.items():
                    run = (run_sash(args, what, threads, prompt) if kind == "sash"
                           else run_peer(args, kind, what, threads, ids))
                    rates.setdefault((name, threads), []).append(run["rate"])
                    tokens[name] = run["tokens"]
    print(f"{len(ids)} tokens of prompt, {args.count} new; load {os.getloadavg()[0]:.1f}")
    for name in entrants:
        same = sum(a == b for a, b in zip(tokens[name], tokens["sash float32"]))
        figures = [f"{statistics.median(rates[name, t]):7.1f} ({min(rates[name, t]):.1f} to "
                   f"{max(rates[name, t]):.1f})" for t in args.threads]
        print(f"{name:20} tokens/s on {args.threads} threads: {'  '.join(figures)}, "
              f"{same} tokens as sash float32")


def peer(kind):
    call = json.load(sys.stdin)
    run = {"llama": run_llama, "torch": run_torch}[kind]
    print(json.dumps(run(call["what"], call["threads"], call["ids"], call["count"])))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        peer(sys.argv[2])
    else:
        main()
