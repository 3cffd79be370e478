"""The training steps of `bench_train --case ...` under PyTorch's DistributedDataParallel, compiled, with
bfloat16 autocast. Prints one JSON line per case from rank 0:

    torchrun --nproc-per-node 2 benchmarks/peers/ranks.py gpt2_124m llama_160m
"""

import json
import os
import pathlib
import statistics
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import models  # noqa: E402
import train  # noqa: E402


def make(name):
    """Model, vocabulary, batch and length."""
    if name in train.GPU_CASES:
        case = train.GPU_CASES[name]
        return train.make_model(torch, True, case), case.vocab, case.batch, case.context
    case = models.CASES[name]
    return models.make_model(torch, case), case.vocab, case.batch, case.length


def time_case(name, rank, size):
    torch.manual_seed(rank)
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    with torch.device("cuda"):
        model, vocab, batch, length = make(name)
        x, y = (torch.randint(vocab, (batch, length)) for _ in range(2))
    run = torch.compile(model)
    if size > 1:
        run = DistributedDataParallel(run, device_ids=[torch.cuda.current_device()],
                                      gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def timed(count):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            step()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) / count

    for _ in range(5):
        step()
    ms = statistics.median(timed(5) for _ in range(8))
    if rank == 0:
        print(json.dumps({"kind": "ranks", "case": name, "impl": "ddp", "ranks": size, "ms": ms,
                          "tok_s": round(size * batch * length / ms * 1e3)}), flush=True)


def main():
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    torch.set_float32_matmul_precision("high")
    if size > 1:
        dist.init_process_group("nccl")
    for name in sys.argv[1:]:
        time_case(name, rank, size)
    if size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
