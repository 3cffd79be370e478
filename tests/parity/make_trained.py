#!/usr/bin/env python3
"""Writes trained.json: texts, and the vocabularies and merges that the trainers of the library
`tokenizers` make of them. Needs tokenizers.
"""

import json
import pathlib
import random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

FOLDER = pathlib.Path(__file__).parent
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHECK = "The 2nd house's windows (12345) -- caf\u00e9, na\u00efve \U0001f600\n\n  aabab bbaab <|end|> x"


def texts():
    """Words of a few syllables, words of two letters, whose pairs overlap, and other scripts."""
    draw = random.Random(0)
    syllables = [a + b for a in "bdkmnst" for b in "aeiou"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(120)]
    result = []
    for _ in range(12):
        line = draw.choices(words, weights=[1 / (i + 1) for i in range(len(words))], k=40)
        result.append(" ".join(line).capitalize() + ".\n")
    for _ in range(6):
        result.append(" ".join("".join(draw.choices("ab", k=draw.randint(2, 24))) for _ in range(60)))
    result.append("It's 1024, 2048 and 65536; they'll say: \u00abcaf\u00e9\u00bb, na\u00efve, \u4f60\u597d\u4e16\u754c!\r\n\t\U0001f600\U0001f600")
    return result


def bpe(texts, pattern, **options):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(show_progress=False, initial_alphabet=alphabet, **options)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def word_level(texts, **options):
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(show_progress=False, special_tokens=["[UNK]", "[PAD]"], **options)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def row(tokenizer):
    model = json.loads(tokenizer.to_str())["model"]
    merges = {"merges": model["merges"]} if "merges" in model else {}
    return {"vocab": model["vocab"], "ids": tokenizer.encode(CHECK).ids} | merges


def main():
    lines = texts()
    special = ["<|end|>", "<|pad|>"]
    rows = {
        "texts": lines,
        "check": CHECK,
        "gpt2": row(bpe(lines, GPT2, vocab_size=700, special_tokens=special)),
        "llama3": row(bpe(lines, LLAMA3, vocab_size=5000, min_frequency=2)),
        "words": row(word_level(lines, vocab_size=100)),
        "frequent_words": row(word_level(lines, min_frequency=4)),
    }
    (FOLDER / "trained.json").write_text(json.dumps(rows, separators=(",", ":")) + "\n")


main()
