"""Trains a low-rank adapter of a pretrained Llama on a text: llama_adapter.py FOLDER TEXT."""

import pathlib
import sys

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

torch.manual_seed(1)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]))

text = pathlib.Path(sys.argv[2]).read_text()
tokens = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids[0]
loader = DataLoader(tokens.unfold(0, 33, 32), batch_size=4, shuffle=True)
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
losses = []
while len(losses) < 50:
    for batch in loader:
        optimizer.zero_grad()
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
print(f"loss {losses[0]:.3f} before, {losses[-1]:.3f} after")
